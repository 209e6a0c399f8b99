// Products with a frozen matrix in oneDNN's blocked layout: on the CPU in bf16, packing the matrix
// anew for every product costs about half as much as a product of 512 rows. The same primitive as
// at::linear runs, and gives the same bits. PyTorch's own compiler calls these operators; they have
// no C++ declaration.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hedgerow::worker {

// bf16, on the CPU, with a oneDNN that packs.
[[nodiscard]] bool can_pack(const at::Tensor& weight);
// weight [out, in], packed for products of `rows` rows (others work, slower).
[[nodiscard]] at::Tensor pack(const at::Tensor& weight, std::int64_t rows);
// x [..., in] times packed^T, plus bias [out] or undefined -> [..., out].
[[nodiscard]] at::Tensor packed_linear(const at::Tensor& x,
                                       const at::Tensor& packed,
                                       const at::Tensor& bias);

}  // namespace hedgerow::worker
