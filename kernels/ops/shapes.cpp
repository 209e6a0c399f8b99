#include "kernels/ops/shapes.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/problem/checks.hpp"

namespace hedgerow::kernels::ops {

bool sizes_are_known(at::ArrayRef<at::Tensor> tensors) {
  return std::none_of(tensors.begin(), tensors.end(), [](const at::Tensor& x) {
    return x.defined() && x.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  });
}

void check_known(const AttentionArguments& arguments,
                 const at::Tensor& q,
                 const at::Tensor& k,
                 const at::Tensor& v) {
  const HybridParameters parameters = arguments.parameters();
  if (sizes_are_known({q,
                       k,
                       v,
                       parameters.q.layer,
                       parameters.q.bias,
                       parameters.k.layer,
                       parameters.k.bias,
                       parameters.window_factors})) {
    const AttentionShape shape = check_attention(q, k, v);
    check_parameters(parameters, arguments.options, shape.H, shape.G, shape.D, q.device());
  }
}

at::Tensor in_rows(const at::Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); }

at::Tensor empty_in_rows(const at::Tensor& x, at::ScalarType dtype) {
  return empty_of(x, {x.sym_size(0), x.sym_size(2), x.sym_size(1), x.sym_size(3)}, dtype)
      .transpose(1, 2);
}

at::Tensor empty_of(const at::Tensor& x, c10::SymIntArrayRef sizes, at::ScalarType dtype) {
  return at::empty_symint(sizes, x.options().dtype(dtype));
}

at::Tensor absent(const at::Tensor& like) {
  return at::empty({0}, like.options().dtype(at::kFloat));
}

c10::SymInt num_features(const std::optional<at::Tensor>& layer,
                         const FeatureMapOptions& options,
                         const c10::SymInt& head_dim) {
  const c10::SymInt projected = layer.has_value() ? layer->sym_size(2) : head_dim;
  const FeatureMapRow& row = options.row();
  if (row.series) {
    return num_monomials(projected.guard_int(__FILE__, __LINE__));
  }
  return row.negation && options.negation ? projected * 2 : projected;
}

}  // namespace hedgerow::kernels::ops
