// Prints causal linear attention of six tokens as a stream, with S and z alone kept between them,
// the third program of "Efficient Attention Mechanisms": a row of y a token, six decimals.
#include <cmath>
#include <vector>

#include "kernels/plain/attention.hpp"
#include "kernels/plain/examples/table.hpp"

int main() {
  using namespace hedgerow::plain;
  using examples::table;
  constexpr std::size_t T = 6, D = 4, E = 3, F = 5;
  const auto k =
      table(T, D, [](double i, double j) { return 0.1 * std::cos(0.2 * (i + 1) * (j + 1)); });
  const auto q =
      table(T, D, [](double i, double j) { return 0.1 * std::sin(0.3 * (i + 1) * (j + 2)); });
  const auto v = table(T, E, [](double i, double j) { return 0.05 * (i + 1 + j); });
  const auto weight_q =
      table(D, F, [](double i, double j) { return 0.15 * std::sin(0.1 * (i + 1) * (j + 1)); });
  const auto weight_k =
      table(D, F, [](double i, double j) { return 0.12 * std::cos(0.13 * (i + 1) * (j + 2)); });
  const std::vector<double> no_bias(F);

  const Rows<const double> queries(q, D), keys(k, D), values(v, E);
  LinearState<double> state(F, E);
  std::vector<double> phi(F), y(E);
  for (std::size_t t = 0; t < T; ++t) {
    elu_plus_one_features<double>({weight_k, F}, no_bias, {keys[t], D}, {phi, F});
    state.add(phi, values[t]);
    elu_plus_one_features<double>({weight_q, F}, no_bias, {queries[t], D}, {phi, F});
    state.attend(phi, y);
    examples::print(y, E);
  }
}
