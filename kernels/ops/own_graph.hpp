// A small autograd graph inside an operator's kernel. The dispatcher calls kernels with recording
// excluded, because the operator has its own backward; what ATen knows how to differentiate may
// still be left to it, within one call. Included by the *_ops.cpp alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <functional>
#include <tuple>

namespace hedgerow::kernels::ops {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using ThreeLeaves = std::array<at::Tensor, 3>;

// Lets autograd see what is called in this scope; whether it records is still GradMode's to say.
class RecordingGuard {
 public:
  RecordingGuard();

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
};

// d(function(inputs)).dy by each input, contiguous; an absent() one for undefined inputs. Costs the
// function once more.
Three gradients_of(const ThreeLeaves& inputs,
                   const at::Tensor& dy,
                   const std::function<at::Tensor(const ThreeLeaves&)>& function);

}  // namespace hedgerow::kernels::ops
