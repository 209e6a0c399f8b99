// LibTorch's "PrivateUse1" is the place for devices that are not in its tree.
#include "tests/support/foreign_device.hpp"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <optional>

namespace hedgerow::tests {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kType, 0);

struct Pages {
  void* begin = nullptr;
  std::size_t size = 0;
};

void release(void* context) {
  auto* pages = static_cast<Pages*>(context);
  ::munmap(pages->begin, pages->size);
  delete pages;
}

// Memory that faults when it is touched.
class ForeignAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    if (size == 0) return {nullptr, nullptr, &release_nothing, kDevice};
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    auto* pages = new Pages{.size = (size + page - 1) / page * page};
    pages->begin =
        ::mmap(nullptr, pages->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages->begin == MAP_FAILED) throw std::bad_alloc();
    return {pages->begin, pages, &release, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    default_copy_data(to, from, size);
  }

 private:
  static void release_nothing(void* /*context*/) {}
};
ForeignAllocator allocator;

// A tensor's memory as a CPU tensor, as long as this lives.
class Opened {
 public:
  explicit Opened(const at::Tensor& tensor) : tensor_(tensor) {
    if (!is_foreign()) return;
    protect(PROT_READ | PROT_WRITE);
    tensor_ = at::from_blob(
        static_cast<char*>(tensor.storage().mutable_data()) +
            tensor.storage_offset() * static_cast<std::int64_t>(tensor.element_size()),
        tensor.sizes(),
        tensor.strides(),
        at::TensorOptions(tensor.scalar_type()));
    storage_ = tensor.storage();
  }
  ~Opened() {
    if (storage_) protect(PROT_NONE);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  const at::Tensor& operator*() const { return tensor_; }

 private:
  [[nodiscard]] bool is_foreign() const { return tensor_.device().type() == kType; }
  void protect(int rights) {
    const c10::Storage& storage = storage_ ? *storage_ : tensor_.storage();
    const auto* pages = static_cast<const Pages*>(storage.data_ptr().get_context());
    TORCH_CHECK(::mprotect(pages->begin, pages->size, rights) == 0, "mprotect failed");
  }

  at::Tensor tensor_;
  std::optional<c10::Storage> storage_;
};

std::mutex copying;  // two tensors may share pages

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  if (to.numel() == 0) return to;
  const std::lock_guard lock(copying);
  if (from.storage().is_alias_of(to.storage())) {
    at::Tensor between;
    {
      const Opened source(from);
      between = (*source).clone();
    }
    const Opened target(to);
    (*target).copy_(between);
    return to;
  }
  const Opened source(from), target(to);
  (*target).copy_(*source);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) {
    const c10::Storage& storage = to.storage();
    if (from.nbytes() > storage.nbytes()) {
      storage.set_data_ptr_noswap(allocator.allocate(from.nbytes()));
      storage.set_nbytes(from.nbytes());
    }
    to.unsafeGetTensorImpl()->set_sizes_contiguous(from.sizes());
  }
  return copy_from(from, to, false);
}

at::Tensor empty(at::IntArrayRef size,
                 std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> /*device*/,
                 std::optional<bool> /*pin_memory*/,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size,
                                   &allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(at::IntArrayRef size,
                         at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> /*device*/,
                         std::optional<bool> /*pin_memory*/) {
  return at::detail::empty_strided_generic(size,
                                           stride,
                                           &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// A CPU scalar may stand beside device tensors, as with CUDA; anything larger may not.
void refuse_cpu_tensors(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto check = [&op](const at::Tensor& tensor) {
    TORCH_CHECK(!tensor.defined() || tensor.device().type() == kType || tensor.dim() == 0,
                op.schema().operator_name(),
                ": expected all tensors on the foreign device, found one of shape ",
                tensor.sizes(),
                " on ",
                tensor.device());
  };
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) check(argument.toTensor());
    if (!argument.isTensorList()) continue;
    for (const at::Tensor& tensor : argument.toTensorVector()) check(tensor);
  }
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  refuse_cpu_tensors(op, *stack);
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

struct ForeignGuard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  c10::Device exchangeDevice(c10::Device /*device*/) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Stream getStream(c10::Device /*device*/) const noexcept override { return stream(); }
  c10::Stream exchangeStream(c10::Stream /*stream*/) const noexcept override { return stream(); }

 private:
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
};

// Autograd asks for these before it runs a backward on the device.
struct ForeignHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex /*index*/) const override {}
};

const bool registered = [] {
  static ForeignHooks hooks;
  c10::register_privateuse1_backend("foreign");
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

C10_REGISTER_GUARD_IMPL(PrivateUse1, ForeignGuard)

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace

at::Device foreign_device() { return kDevice; }

}  // namespace hedgerow::tests
