// An optional value that most records are without: it lies elsewhere, so that those take a pointer
// and not its size. Copied and compared as the value that it is; * and -> must not be asked without
// one. A moved-from one has none.
#pragma once

#include <memory>
#include <utility>

namespace hedgerow::coordinator {

template <typename T>
class BoxedOptional {
 public:
  BoxedOptional() = default;
  BoxedOptional(const BoxedOptional& other)
      : value_(other ? std::make_unique<T>(*other) : nullptr) {}
  BoxedOptional(BoxedOptional&&) noexcept = default;
  BoxedOptional& operator=(const BoxedOptional& other) { return *this = BoxedOptional(other); }
  BoxedOptional& operator=(BoxedOptional&&) noexcept = default;
  BoxedOptional& operator=(T value) {
    value_ = std::make_unique<T>(std::move(value));
    return *this;
  }
  void reset() { value_.reset(); }

  explicit operator bool() const { return value_ != nullptr; }
  [[nodiscard]] const T& operator*() const { return *value_; }
  [[nodiscard]] const T* operator->() const { return value_.get(); }
  bool operator==(const BoxedOptional& other) const {
    return value_ && other.value_ ? *value_ == *other.value_ : value_ == other.value_;
  }

 private:
  std::unique_ptr<T> value_;
};

}  // namespace hedgerow::coordinator
