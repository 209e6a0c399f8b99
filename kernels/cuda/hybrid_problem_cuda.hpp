// The hybrid's problem and its states in the terms of the CUDA kernels (kernels/cuda/), for the
// fused backends; columns, rows and shared memory for decode_cuda.cpp too.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/hybrid/hybrid_launch.hpp"
#include "kernels/problem/hybrid_problem.hpp"

namespace hedgerow::kernels::cuda {

// The options for kernels, of a window and sinks as long as they are here.
[[nodiscard]] WindowArguments window_arguments(const HybridOptions& options,
                                               std::int64_t window,
                                               std::int64_t sinks);

// The activation of a map that has one, as the kernels know it.
[[nodiscard]] MapFunction map_function(const FeatureMapOptions& options);

// Columns of a map's projection: head_dim without one.
[[nodiscard]] std::int64_t columns_of(const FeatureMapWeights& map, std::int64_t head_dim);

// Which of the compiled kernels a problem with this q wants; there may be none.
[[nodiscard]] KernelShape kernel_shape(const at::Tensor& q,
                                       const HybridParameters& parameters,
                                       const HybridOptions& options);

// Empty where the device has this much shared memory for a threadblock of `what`; else why not.
[[nodiscard]] std::string why_not_shared(const char* what, std::size_t need);

// Empty where a launch holds all heads of q's batch; else why not.
[[nodiscard]] std::string why_not_rows(const at::Tensor& q);

// A problem in the kernels' terms, with what backs the pointers.
struct Prepared {
  KernelShape shape{};
  HybridInputs inputs;
  std::int64_t tiles = 0;
  bool has_far = false, has_near = false;
  Stream stream = nullptr;
  std::vector<at::Tensor> kept;  // copies that the pointers need
};

Prepared prepare(const HybridProblem& problem);

[[nodiscard]] inline const std::uint16_t* bf16(const at::Tensor& x) {
  return static_cast<const std::uint16_t*>(x.const_data_ptr());
}
[[nodiscard]] inline std::uint16_t* bf16_out(const at::Tensor& x) {
  return static_cast<std::uint16_t*>(x.data_ptr());
}
[[nodiscard]] inline float* floats(const at::Tensor& x) {
  return x.defined() ? x.data_ptr<float>() : nullptr;
}

// [B, heads, T, D] bf16 as the kernels read it, copied into kept where it is not aligned.
Rows rows_of(const at::Tensor& x, std::vector<at::Tensor>& kept);

// States and the features of one side, as one walk makes them; undefined while all keys lie in the
// window.
struct Walked {
  at::Tensor states, sums, features;
  [[nodiscard]] States pointers() const {
    return {states.defined() ? bf16_out(states) : nullptr, floats(sums)};
  }
  [[nodiscard]] const std::uint16_t* features_pointer() const {
    return features.defined() ? bf16(features) : nullptr;
  }
};

Walked walk_keys(const Prepared& p, const at::TensorOptions& options);
// dn [B, H, T, D] bf16, beta [B, H, T] fp32.
Walked walk_queries(Prepared& p,
                    const at::Tensor& dn,
                    const at::Tensor& beta,
                    const at::TensorOptions& options);

}  // namespace hedgerow::kernels::cuda
