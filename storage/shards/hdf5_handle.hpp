// HDF5's C API with owned handles and errors that say something. Included by .cpp files of storage
// only, so that no header of ours brings HDF5 along. HDF5 keeps one global lock and one error stack
// per thread: every function here may be called from any thread, none belongs on a hot path.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/dtype.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::storage::hdf5 {

// Once a process: no plugin is ever loaded. Once a thread: HDF5 prints nothing, errors come through
// check(). Called by every function below that makes a handle.
void prepare();

// Throws what HDF5's error stack of this thread says: the system's error (system_error: kExhausted
// on a full disk) if it names one, else of kind `otherwise`. `call` and `file` go into the message.
[[noreturn]] void throw_error(const char* call, const std::string& file, ErrorKind otherwise);

// An owned identifier of any kind. Move-only; destroying closes and ignores the error, close()
// reports it.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Close closer) noexcept : id_(id), close_(closer) {}
  Handle(Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { static_cast<void>(close()); }

  // False when HDF5 could not close, for a file: could not write what it held back.
  bool close() noexcept {
    const hid_t id = std::exchange(id_, H5I_INVALID_HID);
    return id < 0 || close_(id) >= 0;
  }
  [[nodiscard]] hid_t id() const noexcept { return id_; }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

// A checked call: HDF5 signals failure by a negative value. Usage: check(H5Dwrite(...), "H5Dwrite",
// path, kind).
template <typename T>
T check(T value,
        const char* call,
        const std::string& file,
        ErrorKind otherwise = ErrorKind::kCorrupt) {
  if (value < 0) throw_error(call, file, otherwise);
  return value;
}

// Both without file locks (our files are immutable, and locks fail on some network file systems).
[[nodiscard]] Handle open_file(const std::filesystem::path& path);
// Same calls, same bytes: no times are stored. `user_block` bytes in front belong to us.
[[nodiscard]] Handle create_file(const std::filesystem::path& path, std::uint64_t user_block);

// How an element type stands in a file: little-endian; BF16 and F16 as custom floats that h5py and
// HDF5 tools read.
[[nodiscard]] Handle file_type(DType dtype);

struct DatasetLayout {
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> chunk;  // empty: contiguous
  bool operator==(const DatasetLayout&) const = default;
};

// A dataset of this file that is exactly what we write: this name as a hard link, element type, no
// filter, no external or virtual storage. Throws kCorrupt naming the difference.
[[nodiscard]] Handle open_dataset(const Handle& file,
                                  const char* name,
                                  DType dtype,
                                  const std::string& path);
[[nodiscard]] DatasetLayout layout_of(const Handle& dataset, const std::string& path);
[[nodiscard]] Handle create_dataset(const Handle& file,
                                    const char* name,
                                    DType dtype,
                                    const DatasetLayout& layout,
                                    const std::string& path);

// Throws kCorrupt unless the root group holds exactly these names.
void require_names(const Handle& file, std::span<const char* const> names, const std::string& path);

}  // namespace hedgerow::storage::hdf5
