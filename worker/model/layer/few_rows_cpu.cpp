#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "worker/model/layer/cpu_rows.hpp"
#include "worker/model/layer/row_math.hpp"

namespace hedgerow::worker::cpu {
namespace {

// Two neighbors of bf16 are one lane of 32 bits: its halves are taken apart by a shift and a mask,
// which the compiler does not find by itself.
using Lanes = float __attribute__((vector_size(64)));
using Pairs = std::uint32_t __attribute__((vector_size(64)));

constexpr std::int64_t kPairLanes = 2 * kLanes;  // bf16 numbers in the 64 bytes of a vector
constexpr std::int64_t kFewRows = 3;             // at eight oneDNN is faster; between, untried
constexpr std::int64_t kAhead = 8;               // rows of the matrix that are fetched ahead
constexpr std::int64_t kColumns = 4;             // rows of the matrix at a time
constexpr std::int64_t kGrainBytes = 1 << 17;    // of the matrix: less is not worth a thread

template <typename Vector, typename T>
HEDGEROW_INLINE Vector load(const T* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

// A row of x [in] in fp32, even elements apart from odd ones, as the halves of a pair are met.
struct WideRow {
  std::vector<float> even, odd;
};

WideRow widened(const at::BFloat16* x, std::int64_t in) {
  WideRow row{std::vector<float>(static_cast<std::size_t>(in / 2)),
              std::vector<float>(static_cast<std::size_t>(in / 2))};
  for (std::size_t i = 0; i < row.even.size(); ++i) {
    row.even[i] = static_cast<float>(x[2 * i]);
    row.odd[i] = static_cast<float>(x[2 * i + 1]);
  }
  return row;
}

// y[0 .. kColumns) = W x for as many rows of the matrix, which begin at `weight`. The sums' order
// depends on `in` alone.
HEDGEROW_INLINE void products(const at::BFloat16* weight,
                              const float* even,
                              const float* odd,
                              std::int64_t in,
                              float* y) {
  std::array<Lanes, kColumns> even_sums{}, odd_sums{};
  for (std::int64_t i = 0; i < in; i += kPairLanes) {
    const Lanes x_even = load<Lanes>(even + i / 2), x_odd = load<Lanes>(odd + i / 2);
    for (std::int64_t c = 0; c < kColumns; ++c) {
      const at::BFloat16* const at = weight + c * in + i;
      __builtin_prefetch(at + kAhead * in);
      const Pairs pair = load<Pairs>(at);
      const auto column = static_cast<std::size_t>(c);
      even_sums[column] += reinterpret_cast<Lanes>(pair << 16) * x_even;
      odd_sums[column] += reinterpret_cast<Lanes>(pair & 0xffff0000U) * x_odd;
    }
  }
  for (std::size_t c = 0; c < kColumns; ++c) {
    const Lanes both = even_sums[c] + odd_sums[c];
    float lanes[kLanes];
    std::memcpy(lanes, &both, sizeof lanes);
    y[c] = sum_lanes(lanes);
  }
}

// Of a part of the matrix: its rows begin .. end - 1, [.., in], for all rows of x.
HEDGEROW_CLONES void part(const at::BFloat16* weight,
                          const std::vector<WideRow>& rows,
                          const float* bias,
                          std::int64_t in,
                          std::int64_t out,
                          std::int64_t begin,
                          std::int64_t end,
                          at::BFloat16* y) {
  for (std::int64_t first = begin; first < end; first += kColumns) {
    for (std::size_t row = 0; row < rows.size(); ++row) {
      std::array<float, kColumns> sums;
      products(weight + first * in, rows[row].even.data(), rows[row].odd.data(), in, sums.data());
      at::BFloat16* const to = y + static_cast<std::int64_t>(row) * out + first;
      for (std::int64_t c = 0; c < kColumns; ++c) {
        const float sum = sums[static_cast<std::size_t>(c)];
        to[c] = static_cast<at::BFloat16>(bias == nullptr ? sum : sum + bias[first + c]);
      }
    }
  }
}

}  // namespace

bool takes_few_rows(const at::Tensor& x, const at::Tensor& weight) {
  const bool is_ours = x.is_cpu() && x.scalar_type() == at::kBFloat16 &&
                       weight.scalar_type() == at::kBFloat16 && weight.is_contiguous();
  return is_ours && x.numel() <= kFewRows * x.size(-1) && weight.size(0) % kColumns == 0 &&
         weight.size(1) % kPairLanes == 0;
}

at::Tensor few_rows_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const std::int64_t out = weight.size(0), in = weight.size(1);
  const at::Tensor rows_of_x = x.contiguous();
  std::vector<WideRow> rows;
  for (std::int64_t row = 0; row < x.numel() / in; ++row)
    rows.push_back(widened(rows_of_x.const_data_ptr<at::BFloat16>() + row * in, in));
  const at::Tensor wide_bias = bias.defined() ? bias.to(at::kFloat).contiguous() : bias;
  auto shape = x.sizes().vec();
  shape.back() = out;
  at::Tensor y = at::empty(shape, x.options());
  const std::int64_t blocks = out / kColumns, bytes_of_block = kColumns * in * 2;
  at::parallel_for(0,
                   blocks,
                   std::max<std::int64_t>(1, kGrainBytes / bytes_of_block),
                   [&](std::int64_t begin, std::int64_t end) {
                     part(weight.const_data_ptr<at::BFloat16>(),
                          rows,
                          bias.defined() ? wide_bias.const_data_ptr<float>() : nullptr,
                          in,
                          out,
                          begin * kColumns,
                          end * kColumns,
                          y.mutable_data_ptr<at::BFloat16>());
                   });
  return y;
}

}  // namespace hedgerow::worker::cpu
