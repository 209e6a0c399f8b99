// One decoder layer, forward and backward, of every family (storage/model/architecture.hpp), around
// an attention that the caller brings: the teacher's, a student's, with LoRA or without. Residual
// stream [B, T, M] in the compute dtype. The base is frozen but for its norms, so the backward pass
// is written out: gradients of inputs through the frozen products, of LoRA's A and B from the
// products' inputs; norms are trained where their .grad() is defined. What backward needs is a
// LayerTape: kept from the forward pass, or made again from the layer's input (activation
// checkpointing); both give the same bytes. Without autograd; plain_layer.hpp is the same with it.
//
//   before: m = h + attention(norm(h)) Wo^T,  out = m + swiglu(norm(m) Wgu^T) Wd^T
//   after:  m = h + norm(attention(h) Wo^T),  out = m + norm(swiglu(m Wgu^T) Wd^T)
//
// with LoRA's update beside every product, `out` rounded to the stream. Callers that promise equal
// bytes (capture, transfer, evaluate) go through worker/model/block_runner.hpp, which fixes the
// shape of every product; the functions here take any shape.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>

#include "storage/model/model_config.hpp"
#include "worker/model/layer/layer_weights.hpp"
#include "worker/model/layer/rotary.hpp"

namespace hedgerow::worker {

// What all layers share.
struct LayerContext {
  storage::ModelConfig config;
  RopeTable rope;         // row t belongs to token t of every sequence
  at::ScalarType stream;  // the residual stream between layers is rounded to it
};

struct LoraPair {
  at::Tensor a;  // [r, in] fp32
  at::Tensor b;  // [out, r] fp32
};
// LoRA's matrices of one layer; empty: none.
struct LayerLora {
  int rank = 0;
  double scaling = 0.0;
  std::map<storage::Slot, LoraPair> pairs{};
};

// What modules with LoRA read, the same for all of them; undefined where none has it.
struct LoraInput {
  at::Tensor x;         // [B T, in] fp32
  at::Tensor low_rank;  // x A^T side by side [B T, n r] fp32
};

// What a layer's backward needs of its forward, for one micro-batch [B, T, ...].
struct LayerTape {
  LoraInput qkv_lora;      // what qkv_proj reads
  at::Tensor qkv;          // before RoPE; kept only where q/k norms need it
  LoraInput o_lora;        // y
  at::Tensor attended;     // y Wo^T, where a norm reads it
  at::Tensor mid;          // m
  LoraInput gate_up_lora;  // what gate_up_proj reads
  at::Tensor gate_up;      // [B, T, 2 I]; what down_proj reads is made of it again
  at::Tensor down;         // of down_proj, where a norm reads it
};

// q [B, H, T, D], k and v [B, G, T, D] after bias, q/k norm and RoPE, in the compute dtype.
[[nodiscard]] Qkv layer_qkv(const at::Tensor& hidden_states,
                            const LayerWeights& weights,
                            const LayerContext& context,
                            const LayerLora& lora = {},
                            LayerTape* tape = nullptr);
// The rest of the layer from the attention's output [B, H, T, D]. With `only_tape` not what the
// output alone needs: the result is undefined.
at::Tensor layer_output(const at::Tensor& hidden_states,
                        const at::Tensor& attention_output,
                        const LayerWeights& weights,
                        const LayerContext& context,
                        const LayerLora& lora = {},
                        LayerTape* tape = nullptr,
                        bool only_tape = false);
// A whole layer: `attend` gets q, k and v and gives [B, H, T, D].
template <typename Attention>
at::Tensor run_layer(const at::Tensor& hidden_states,
                     const LayerWeights& weights,
                     const LayerContext& context,
                     const Attention& attend,
                     const LayerLora& lora = {},
                     LayerTape* tape = nullptr,
                     bool only_tape = false) {
  const at::Tensor y = attend(layer_qkv(hidden_states, weights, context, lora, tape));
  return layer_output(hidden_states, y, weights, context, lora, tape, only_tape);
}

// The backward pass, in its two halves around the attention. Writes LoRA's gradients into those of
// `gradient` [same shapes], adds the norms' to theirs.
struct OutputGradients {
  at::Tensor hidden_states;     // [B, T, M], of the way past the attention
  at::Tensor attention_output;  // [B, T, H D]
};
[[nodiscard]] OutputGradients layer_output_backward(const at::Tensor& output_gradient,
                                                    const LayerWeights& weights,
                                                    const LayerContext& context,
                                                    const LayerLora& lora,
                                                    const LayerTape& tape,
                                                    const LayerLora& gradient);
// The gradient of hidden_states, `past_attention` added; undefined where neither the caller nor the
// norm needs it.
at::Tensor layer_qkv_backward(const Qkv& gradient_of_heads,
                              const at::Tensor& past_attention,
                              const at::Tensor& hidden_states,
                              const LayerWeights& weights,
                              const LayerContext& context,
                              const LayerLora& lora,
                              const LayerTape& tape,
                              const LayerLora& gradient,
                              bool needs_input);

}  // namespace hedgerow::worker
