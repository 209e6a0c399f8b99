#include "worker/model/tensor_bytes.hpp"

#include <array>
#include <cstring>
#include <utility>

#include "storage/base/error.hpp"

namespace hedgerow::worker {
namespace {

using storage::DType;

constexpr std::array<std::pair<DType, at::ScalarType>, 10> kTypes = {{{DType::kF64, at::kDouble},
                                                                      {DType::kF32, at::kFloat},
                                                                      {DType::kF16, at::kHalf},
                                                                      {DType::kBF16, at::kBFloat16},
                                                                      {DType::kI64, at::kLong},
                                                                      {DType::kI32, at::kInt},
                                                                      {DType::kI16, at::kShort},
                                                                      {DType::kI8, at::kChar},
                                                                      {DType::kU8, at::kByte},
                                                                      {DType::kBool, at::kBool}}};

at::Tensor copy_of(std::span<const std::byte> bytes,
                   const std::vector<std::int64_t>& shape,
                   DType dtype) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(scalar_type(dtype)));
  if (tensor.nbytes() != bytes.size()) {
    throw storage::Error(storage::ErrorKind::kInternal,
                         "a tensor of " + std::to_string(tensor.nbytes()) + " bytes was given " +
                             std::to_string(bytes.size()));
  }
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  throw storage::Error(storage::ErrorKind::kInternal,
                       "unknown dtype " + std::string(to_string(dtype)));
}

DType storage_dtype(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  throw storage::Error(storage::ErrorKind::kInternal,
                       std::string("no file holds tensors of type ") + toString(type));
}

at::Tensor to_tensor(const storage::TensorView& view) {
  return copy_of(view.bytes, view.shape, view.dtype);
}

at::Tensor to_tensor(const storage::OwnedTensor& owned) {
  return copy_of(owned.bytes, owned.shape, owned.dtype);
}

storage::OwnedTensor to_owned(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().cpu().contiguous();
  const storage::TensorView view = view_of(plain);
  return {view.dtype, view.shape, {view.bytes.begin(), view.bytes.end()}};
}

storage::TensorView view_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous() && tensor.is_cpu(),
              "view_of needs a contiguous tensor on the CPU");
  return {storage_dtype(tensor.scalar_type()),
          tensor.sizes().vec(),
          {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}};
}

}  // namespace hedgerow::worker
