// Where storage's named byte spans become tensors and back: storage knows no LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include "storage/tensors/checkpoint.hpp"
#include "storage/tensors/safetensors.hpp"

namespace hedgerow::worker {

[[nodiscard]] at::ScalarType scalar_type(storage::DType dtype);
[[nodiscard]] storage::DType storage_dtype(
    at::ScalarType type);  // Throws kInternal for a type that storage lacks

// A copy on the CPU, in the dtype of the bytes.
[[nodiscard]] at::Tensor to_tensor(const storage::TensorView& view);
[[nodiscard]] at::Tensor to_tensor(const storage::OwnedTensor& owned);
[[nodiscard]] storage::OwnedTensor to_owned(const at::Tensor& tensor);
// The tensor's own memory; it must be contiguous, on the CPU, and outlive the view.
[[nodiscard]] storage::TensorView view_of(const at::Tensor& tensor);

}  // namespace hedgerow::worker
