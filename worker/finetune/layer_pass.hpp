// One student layer with LoRA, forward and backward. The base and the feature maps are frozen, so
// the backward pass is written out: gradients of inputs through the frozen products, of A and B
// from the products' inputs, and autograd only inside the attention. What backward needs is a
// LayerActivations: kept from the forward pass where memory allows, else made again from the
// layer's input (activation checkpointing); both give the same bytes.
//
//   x1 = norm(h), q k v = rope(x1 Wqkv^T + lora), y = attention(q, k, v), m = h + y Wo^T + lora,
//   out = m + swiglu(norm(m) Wgu^T) Wd^T, rounded to `stream`
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

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

// Activations of one layer for one micro-batch [B, T, ...].
struct LayerActivations {
  at::Tensor normed;                   // x1 [B, T, M] fp32
  at::Tensor low_rank;                 // x1 A^T of q, k, v side by side [B T, n r] fp32
  at::Tensor qkv;                      // before RoPE; kept only where q/k norms need it
  Qkv heads;                           // leaves of the attention's graph
  at::Tensor attended;                 // y with its graph
  at::Tensor merged, merged_low_rank;  // y [B T, H D] fp32 and y A^T
  at::Tensor mid;                      // m
  at::Tensor gate_up;                  // [B, T, 2 I]
};

class StudentLayer {
 public:
  // `parameters` nullopt: the layer keeps its softmax attention. Takes the matrices out of
  // `weights`. rows = B T of a micro-batch.
  StudentLayer(const StudentModel& model,
               LayerWeights weights,
               std::optional<kernels::HybridParameters> parameters,
               std::int64_t rows);

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
  // writes this layer's matrices of `gradient` (views as LoraParameters::views_of makes them).
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
  at::Tensor project(const at::Tensor& normed,
                     const LoraAdapter& lora,
                     int layer_idx,
                     LayerActivations* activations) const;
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
  // The gradients of q's, k's and v's LoRA matrices from dqkv; returns their part of the gradient
  // of the layer's normed input, undefined where nobody needs it.
  at::Tensor projection_gradient(const at::Tensor& dqkv,
                                 const LayerActivations& activations,
                                 const LoraAdapter& lora,
                                 LoraAdapter& gradient,
                                 int layer_idx,
                                 bool needs_input) const;

  const StudentModel& model_;
  LayerWeights weights_;  // norms; the matrices live in the products
  std::optional<kernels::HybridParameters> parameters_;
  FrozenProduct qkv_, o_, gate_up_, down_;
};

}  // namespace hedgerow::worker
