// Prints softmax attention of four tokens, the first program of "Efficient Attention Mechanisms":
// a row of y a token, six decimals.
#include <vector>

#include "kernels/plain/attention.hpp"
#include "kernels/plain/examples/table.hpp"

int main() {
  using namespace hedgerow::plain;
  constexpr std::size_t T = 4, D = 3, E = 2;
  const auto q = examples::table(T, D, [](double i, double j) { return (i + 1) * 0.1 + j * 0.01; });
  const auto k =
      examples::table(T, D, [](double i, double j) { return (i + 2) * 0.05 + j * 0.02; });
  const auto v = examples::table(T, E, [](double i, double j) { return (i + 1) * 0.2 + j * 0.03; });
  std::vector<double> y(T * E);
  softmax_attention<double>(Mask::kBidirectional, {q, D}, {k, D}, {v, E}, {y, E});
  examples::print(y, E);
}
