#include "kernels/ops/own_graph.hpp"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/ops/shapes.hpp"

namespace hedgerow::kernels::ops {

RecordingGuard::RecordingGuard()
    : keys_(c10::impl::tls_local_dispatch_key_set().included_,
            c10::impl::tls_local_dispatch_key_set().excluded_ -
                c10::autograd_dispatch_keyset_with_ADInplaceOrView) {}

Three gradients_of(const ThreeLeaves& inputs,
                   const at::Tensor& dy,
                   const std::function<at::Tensor(const ThreeLeaves&)>& function) {
  const RecordingGuard recording;
  const at::AutoGradMode grad_mode(true);
  ThreeLeaves leaves, gradients;
  torch::autograd::variable_list given;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (inputs[i].defined()) {
      leaves[i] = inputs[i].detach().set_requires_grad(true);
      given.push_back(leaves[i]);
    }
  }
  const torch::autograd::variable_list found =
      torch::autograd::grad({function(leaves)}, given, {dy});
  std::size_t next = 0;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    gradients[i] = leaves[i].defined() ? found[next++].contiguous() : absent(dy);
  }
  return {gradients[0], gradients[1], gradients[2]};
}

}  // namespace hedgerow::kernels::ops
