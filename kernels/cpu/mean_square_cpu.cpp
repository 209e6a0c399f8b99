// One pass over memory a direction, in pieces that stay in the L1 cache: 4 + 2 bytes read an
// element (fp32 against bf16), 4 written in the backward.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <array>
#include <vector>

#include "kernels/cpu/cpu_tiles.hpp"
#include "kernels/cpu/transfer_loss_cpu.hpp"

namespace hedgerow::kernels::cpu {
namespace {

constexpr std::int64_t kPiece = 1024;
constexpr std::int64_t kBlock = 16 * kPiece;

// Two tensors whose elements one index walks; what does not lie alike is copied.
struct Pair {
  at::Tensor pred, truth;
};

Pair walk_together(const at::Tensor& y_pred, const at::Tensor& y_true) {
  if (y_pred.is_non_overlapping_and_dense() && y_pred.strides() == y_true.strides()) {
    return {y_pred, y_true};
  }
  return {y_pred.contiguous(), y_true.contiguous()};
}

const void* at_element(const at::Tensor& x, std::int64_t i) {
  return static_cast<const char*>(x.const_data_ptr()) +
         i * static_cast<std::int64_t>(x.element_size());
}

// visit(first element, count, difference) over the pieces of one range.
template <typename Visit>
void for_pieces(const Pair& pair, std::int64_t begin, std::int64_t end, const Visit& visit) {
  std::array<float, kPiece> pred, truth;
  for (std::int64_t i = begin; i < end; i += kPiece) {
    const std::int64_t count = std::min(kPiece, end - i);
    widen_rows(
        at_element(pair.pred, i), pair.pred.scalar_type(), count, 1, count, pred.data(), kPiece);
    widen_rows(
        at_element(pair.truth, i), pair.truth.scalar_type(), count, 1, count, truth.data(), kPiece);
    subtract(truth.data(), count, pred.data());
    visit(i, count, pred.data());
  }
}

}  // namespace

at::Tensor mean_square_cpu(const at::Tensor& y_pred, const at::Tensor& y_true) {
  const Pair pair = walk_together(y_pred, y_true);
  const std::int64_t elements = y_pred.numel(), num_blocks = (elements + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<std::size_t>(num_blocks), 0.0);
  at::parallel_for(0, num_blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      double& sum = sums[static_cast<std::size_t>(block)];
      for_pieces(pair,
                 block * kBlock,
                 std::min((block + 1) * kBlock, elements),
                 [&](std::int64_t, std::int64_t count, const float* difference) {
                   float square = 0.0F;
                   row_dots(difference, 0, difference, 0, 1, count, &square);
                   sum += static_cast<double>(square);
                 });
    }
  });
  double total = 0;
  for (const double sum : sums) {
    total += sum;
  }
  return at::full({}, total / static_cast<double>(elements), y_pred.options().dtype(at::kFloat));
}

at::Tensor mean_square_gradient_cpu(const at::Tensor& y_pred,
                                    const at::Tensor& y_true,
                                    double scale) {
  const Pair pair = walk_together(y_pred, y_true);
  const std::int64_t elements = y_pred.numel();
  at::Tensor gradient = at::empty_like(pair.pred);
  const auto factor = static_cast<float>(2.0 * scale / static_cast<double>(elements));
  at::parallel_for(0, elements, kBlock, [&](std::int64_t begin, std::int64_t end) {
    for_pieces(pair, begin, end, [&](std::int64_t i, std::int64_t count, const float* difference) {
      auto* to = const_cast<void*>(at_element(gradient, i));
      narrow_rows(difference, count, 1, count, &factor, to, gradient.scalar_type(), count);
    });
  });
  return gradient;
}

}  // namespace hedgerow::kernels::cpu
