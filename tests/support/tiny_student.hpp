// A student of a few thousand weights, drawn by Philox: the same on every rank and machine.
#pragma once

#include <ATen/core/Tensor.h>

#include "storage/shards/tokens_file.hpp"
#include "worker/model/decoder.hpp"
#include "worker/model/student.hpp"
#include "worker/task/run_context.hpp"

namespace hedgerow::tests {

struct TinyOptions {
  int num_layers = 3;
  storage::QkNorm qk_norm = storage::QkNorm::kNone;
  storage::NormPlace norm_place = storage::NormPlace::kBefore;
  std::vector<int> layers_without_rope = {};
  bool biases = false;   // as Qwen2, and on o_proj and the MLP as Llama's flags allow
  at::ScalarType dtype = at::kFloat;
  storage::WindowLayout window = storage::WindowLayout::kTerraced;
  int window_size = 8;
  int num_sinks = 4;  // where there is a window
  storage::KeyMaps key_maps = storage::KeyMaps::kKvHead;
  std::vector<int> softmax_layers = {};
};

struct TinyStudent {
  storage::ModelConfig config;
  worker::OuterWeights outer;
  std::vector<worker::LayerWeights> layers;
  worker::Student student;
};
TinyStudent make_tiny_student(const TinyOptions& options = {});
// A student of the run's model on disk, in `name` of the run directory: random maps, and layer 2 of
// its four with softmax.
void write_tiny_student(const worker::RunContext& run, const std::string& name);
// All its tensors copied to `device`.
TinyStudent on_device(const TinyStudent& tiny, const at::Device& device);

// Uniform values in [-scale, scale] keyed by `stream`.
at::Tensor uniform(std::vector<std::int64_t> shape, double scale, std::uint32_t stream);

// Random tokens with two thirds of the positions counting.
storage::TokenSequences make_tiny_tokens(std::int64_t num_train,
                                         std::int64_t num_validation,
                                         std::int64_t seq_len,
                                         std::int64_t vocab_size);

}  // namespace hedgerow::tests
