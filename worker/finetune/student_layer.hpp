// One student layer with LoRA in training: worker/model/layer around an attention whose maps and
// window factors are trained where their .grad() is defined. Autograd runs only inside the
// attention. What backward needs is a LayerActivations: kept from the forward pass where memory
// allows, else made again from the layer's input (activation checkpointing); both give the same
// bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "kernels/hybrid_attention.hpp"
#include "worker/model/layer/layer.hpp"
#include "worker/model/lora.hpp"

namespace hedgerow::worker {

// What all layers share.
struct StudentModel {
  LayerContext layers;  // its rope of seq_len positions
  kernels::HybridOptions attention;
};

// Activations of one layer for one micro-batch [B, T, ...].
struct LayerActivations {
  LayerTape tape;
  std::vector<at::Tensor> leaves;  // of the attention's graph: q, k, v, trained parameters
  at::Tensor attended;             // y [B, H, T, D] with its graph
};

class StudentLayer {
 public:
  // `parameters` nullopt: the layer keeps its softmax attention. rows = B T of a micro-batch.
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
                     const LayerLora& lora,
                     LayerActivations* activations) const;

  // The activations alone.
  LayerActivations recompute(const at::Tensor& hidden_states, const LayerLora& lora) const;

  // output_gradient [B, T, M] -> the gradient of hidden_states (undefined unless `needs_input`);
  // writes the matrices of `gradient` (views as TrainedParameters::views_of makes them). Consumes
  // the activations' attention graph.
  at::Tensor backward(const at::Tensor& output_gradient,
                      const at::Tensor& hidden_states,
                      LayerActivations& activations,
                      const LayerLora& lora,
                      const LayerLora& gradient,
                      bool needs_input) const;

 private:
  at::Tensor attend(const Qkv& heads, LayerActivations* activations) const;
  Qkv attention_gradient(const at::Tensor& gradient, LayerActivations& activations) const;

  const StudentModel& model_;
  LayerWeights weights_;
  std::optional<kernels::HybridParameters> parameters_;
};

}  // namespace hedgerow::worker
