#include "storage/shards/hdf5_attribute.hpp"

#include <fmt/format.h>

#include "storage/base/error.hpp"
#include "storage/shards/hdf5_handle.hpp"

namespace hedgerow::storage::hdf5 {
namespace {

constexpr std::size_t kMaxTextBytes = 16U << 20;

Handle open_scalar(const Handle& file, const char* name, const std::string& path) {
  const hid_t id = H5Aopen(file.id(), name, H5P_DEFAULT);
  if (id < 0) {
    H5Eclear2(H5E_DEFAULT);
    throw Error(ErrorKind::kCorrupt, fmt::format("{}: the attribute '{}' is missing", path, name));
  }
  Handle attribute(id, H5Aclose);
  const Handle space(check(H5Aget_space(attribute.id()), "H5Aget_space", path), H5Sclose);
  if (H5Sget_simple_extent_type(space.id()) != H5S_SCALAR) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("{}: the attribute '{}' is not one value", path, name));
  }
  return attribute;
}

[[noreturn]] void refuse_type(const char* name, const char* expected, const std::string& path) {
  throw Error(ErrorKind::kCorrupt,
              fmt::format("{}: the attribute '{}' is not {}", path, name, expected));
}

Handle utf8_type() {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.id(), H5T_VARIABLE);
  H5Tset_cset(type.id(), H5T_CSET_UTF8);
  return type;
}

void write_scalar(const Handle& file,
                  const char* name,
                  hid_t type,
                  hid_t memory_type,
                  const void* value,
                  const std::string& path) {
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(
      check(H5Acreate2(file.id(), name, type, space.id(), H5P_DEFAULT, H5P_DEFAULT),
            "H5Acreate2",
            path,
            ErrorKind::kUnavailable),
      H5Aclose);
  check(H5Awrite(attribute.id(), memory_type, value), "H5Awrite", path, ErrorKind::kUnavailable);
}

}  // namespace

std::string read_text(const Handle& file, const char* name, const std::string& path) {
  const Handle attribute = open_scalar(file, name, path);
  const Handle type(check(H5Aget_type(attribute.id()), "H5Aget_type", path), H5Tclose);
  if (H5Tget_class(type.id()) != H5T_STRING || H5Tis_variable_str(type.id()) <= 0) {
    refuse_type(name, "a string of variable length", path);
  }
  const Handle memory_type = utf8_type();
  H5Tset_cset(memory_type.id(), H5Tget_cset(type.id()));
  char* text = nullptr;
  check(H5Aread(attribute.id(), memory_type.id(), &text), "H5Aread", path);
  std::string value = text == nullptr ? "" : text;
  H5free_memory(text);
  if (value.size() > kMaxTextBytes) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("{}: the attribute '{}' has {} bytes, expected at most {}",
                            path,
                            name,
                            value.size(),
                            kMaxTextBytes));
  }
  return value;
}

std::int64_t read_integer(const Handle& file, const char* name, const std::string& path) {
  const Handle attribute = open_scalar(file, name, path);
  const Handle type(check(H5Aget_type(attribute.id()), "H5Aget_type", path), H5Tclose);
  if (H5Tget_class(type.id()) != H5T_INTEGER) refuse_type(name, "an integer", path);
  std::int64_t value = 0;
  check(H5Aread(attribute.id(), H5T_NATIVE_INT64, &value), "H5Aread", path);
  return value;
}

void write_text(const Handle& file,
                const char* name,
                const std::string& value,
                const std::string& path) {
  const Handle type = utf8_type();
  const char* const text = value.c_str();
  write_scalar(file, name, type.id(), type.id(), &text, path);
}

void write_integer(const Handle& file,
                   const char* name,
                   std::int64_t value,
                   const std::string& path) {
  write_scalar(file, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value, path);
}

}  // namespace hedgerow::storage::hdf5
