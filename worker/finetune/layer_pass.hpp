// One student layer with LoRA, forward and backward. The base is frozen but for its norms, so the
// backward pass is written out: gradients of inputs through the frozen products, of A and B from
// the products' inputs, and autograd only inside the attention. Maps, window factors and norms are
// trained where their .grad() is defined: their gradients are added to it. What backward needs is a
// LayerActivations: kept from the forward pass where memory allows, else made again from the
// layer's input (activation checkpointing); both give the same bytes.
//
//   x1 = norm(h), q k v = rope(x1 Wqkv^T + lora), y = attention(q, k, v), m = h + y Wo^T + lora,
//   out = m + swiglu(norm(m) Wgu^T + lora) Wd^T + lora, rounded to `stream`
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>
#include <vector>

#include "kernels/hybrid_attention.hpp"
#include "worker/finetune/frozen_product.hpp"
#include "worker/model/decoder.hpp"
#include "worker/model/lora.hpp"

namespace hedgerow::worker {

// What all layers share.
struct StudentModel {
  storage::ModelConfig config;
  kernels::HybridOptions attention;
  RopeTable rope;         // of seq_len positions
  at::ScalarType stream;  // the residual stream between layers is rounded to it
};

// What modules with LoRA read, the same for all of them; undefined where none has it.
struct LoraInput {
  at::Tensor x;         // [B T, in] fp32
  at::Tensor low_rank;  // x A^T side by side [B T, n r] fp32
};

// A module with LoRA, and its place among the columns of its product.
struct LoraUpdate {
  const LoraPair* pair;
  const char* module;
  std::int64_t first_column;
};

// Activations of one layer for one micro-batch [B, T, ...].
struct LayerActivations {
  LoraInput qkv_lora;              // x1
  at::Tensor qkv;                  // before RoPE; kept only where q/k norms need it
  std::vector<at::Tensor> leaves;  // of the attention's graph: q, k, v, trained parameters
  at::Tensor attended;             // y with its graph
  LoraInput o_lora;                // y
  at::Tensor mid;                  // m
  LoraInput gate_up_lora;          // norm(m)
  at::Tensor gate_up;              // [B, T, 2 I]; what down_proj reads is made of it again
};

class StudentLayer {
 public:
  // `parameters` nullopt: the layer keeps its softmax attention. Takes the matrices out of
  // `weights`. rows = B T of a micro-batch.
  StudentLayer(const StudentModel& model,
               LayerWeights weights,
               std::optional<kernels::HybridParameters> parameters,
               std::int64_t rows);

  // What finetune.trainable can name, in a fixed order: no maps and window factors where the linear
  // branch is off.
  [[nodiscard]] std::vector<TrainedPart> parts(int layer_idx);

  // h [B, T, M] -> the layer's output. Fills `activations` if it is given. LoRA's matrices are
  // read, never written.
  at::Tensor forward(const at::Tensor& hidden_states,
                     const LoraAdapter& lora,
                     int layer_idx,
                     LayerActivations* activations) const;

  // The activations alone: forward without the last product.
  LayerActivations recompute(const at::Tensor& hidden_states,
                             const LoraAdapter& lora,
                             int layer_idx) const;

  // output_gradient [B, T, M] -> the gradient of hidden_states (undefined unless `needs_input`);
  // writes this layer's matrices of `gradient` (views as TrainedParameters::views_of makes them).
  // Consumes the activations's attention graph.
  at::Tensor backward(const at::Tensor& output_gradient,
                      const at::Tensor& hidden_states,
                      LayerActivations& activations,
                      const LoraAdapter& lora,
                      LoraAdapter& gradient,
                      int layer_idx,
                      bool needs_input) const;

 private:
  [[nodiscard]] HeadNorms head_norms() const;
  [[nodiscard]] std::vector<LoraUpdate> updates(const LoraAdapter& lora,
                                                int layer_idx,
                                                std::initializer_list<const char*> modules) const;
  at::Tensor attend(const Qkv& heads, LayerActivations* activations) const;
  // m and, through `activations`, gate_up.
  at::Tensor through_mlp_input(const at::Tensor& hidden_states,
                               const LoraAdapter& lora,
                               int layer_idx,
                               LayerActivations& activations,
                               bool keep) const;
  Qkv attention_gradient(const at::Tensor& mid_gradient,
                         LayerActivations& activations,
                         const LoraAdapter& lora,
                         LoraAdapter& gradient,
                         int layer_idx) const;
  const StudentModel& model_;
  LayerWeights weights_;  // norms; the matrices live in the products
  std::optional<kernels::HybridParameters> parameters_;
  FrozenProduct qkv_, o_, gate_up_, down_;
};

}  // namespace hedgerow::worker
