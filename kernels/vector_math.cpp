#include "kernels/vector_math.hpp"

#include <ATen/ATen.h>

#include <array>

namespace hedgerow::kernels {

void resolve_vector_math() {
  using Function = at::Tensor (*)(const at::Tensor&);
  constexpr std::array<Function, 15> kFunctions = {&at::acos,
                                                   &at::asin,
                                                   &at::atan,
                                                   &at::cos,
                                                   &at::erf,
                                                   &at::erfc,
                                                   &at::exp,
                                                   &at::expm1,
                                                   &at::log,
                                                   &at::log10,
                                                   &at::log2,
                                                   &at::sin,
                                                   &at::sqrt,
                                                   &at::tan,
                                                   &at::tanh};
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor x = at::full({1}, 0.5, dtype);
    for (const Function function : kFunctions) static_cast<void>(function(x));
  }
}

}  // namespace hedgerow::kernels
