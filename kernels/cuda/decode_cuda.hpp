// The fused CUDA backend of the decode step and of prefill: tensors to the decode kernels of
// kernels/cuda/. decode.cpp checks, and takes the ATen backend where this one does not apply. A
// build without CUDA has no backend; the tests give it one that runs the same kernels on the host.
#pragma once

#include <string>

#include "kernels/problem/decode_state.hpp"

namespace hedgerow::kernels::cuda {

struct DecodeBackend {
  // Empty where the kernels take this state and these parameters; else why not, in words. They want
  // a bf16 ring, head_dim 64 or 128, maps of a multiple of 4 columns, at most 256 features, with a
  // recall cache a window of at most 128 tokens, and shared memory for a threadblock.
  std::string (*why_not)(const DecodeState& state,
                         const HybridParameters& parameters,
                         const HybridOptions& options);
  // Fills an empty state whose positions hold each row's length; without a recall cache.
  void (*prefill)(const at::Tensor& k,
                  const at::Tensor& v,
                  const HybridParameters& parameters,
                  const HybridOptions& options,
                  const DecodeState& state);
  at::Tensor (*step)(const at::Tensor& q,
                     const at::Tensor& k,
                     const at::Tensor& v,
                     const HybridParameters& parameters,
                     const HybridOptions& options,
                     const DecodeState& state);
};

// Null as hybrid_backend(). On the current stream of the state's device; y from ATen's caching
// allocator; never waits, and launches the same kernels whatever the positions are: a step can be
// captured in a CUDA graph, and replayed. A row's bytes depend on that row alone.
[[nodiscard]] const DecodeBackend* decode_backend();

}  // namespace hedgerow::kernels::cuda
