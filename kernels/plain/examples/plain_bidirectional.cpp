// Prints bidirectional linear attention of five tokens with phi = ELU(x W + b) + 1, the second
// program of "Efficient Attention Mechanisms": a row of y a token, six decimals.
#include <cmath>
#include <vector>

#include "kernels/plain/attention.hpp"
#include "kernels/plain/examples/table.hpp"

int main() {
  using namespace hedgerow::plain;
  using examples::table;
  constexpr std::size_t T = 5, D = 4, E = 3, F = 6;
  const auto q = table(T, D, [](double i, double j) { return std::sin(0.1 * (i + 1) * (j + 1)); });
  const auto k = table(T, D, [](double i, double j) { return std::cos(0.07 * (i + 2) * (j + 3)); });
  const auto v = table(T, E, [](double i, double j) { return 0.1 * (i + 1) + 0.05 * j; });
  const auto weight_q =
      table(D, F, [](double i, double j) { return 0.2 * std::cos(0.3 * (i + 1) * (j + 1)); });
  const auto weight_k =
      table(D, F, [](double i, double j) { return 0.2 * std::sin(0.4 * (i + 1) * (j + 2)); });
  const auto bias_q = table(1, F, [](double, double j) { return 0.01 * j; });
  const auto bias_k = table(1, F, [](double, double j) { return -0.02 * j; });

  std::vector<double> phi_q(T * F), phi_k(T * F), y(T * E);
  elu_plus_one_features<double>({weight_q, F}, bias_q, {q, D}, {phi_q, F});
  elu_plus_one_features<double>({weight_k, F}, bias_k, {k, D}, {phi_k, F});
  linear_attention<double>(Mask::kBidirectional, {phi_q, F}, {phi_k, F}, {v, E}, {y, E});
  examples::print(y, E);
}
