#include "storage/shards/hdf5_handle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace hedgerow::storage::hdf5 {
namespace {

constexpr hsize_t kAlignment = 4096;  // a page, so that readers may use O_DIRECT

struct Fault {
  std::string text;
  int error_number = 0;
};

// Keeps the innermost description, and the errno that the file driver wrote into its own.
herr_t collect(unsigned, const H5E_error2_t* error, void* data) {
  auto& fault = *static_cast<Fault*>(data);
  if (error->desc == nullptr) return 0;
  const std::string text = error->desc;
  if (fault.text.empty()) fault.text = text;
  if (const std::size_t at = text.find("errno = ");
      at != std::string::npos && fault.error_number == 0) {
    fault.error_number = std::atoi(text.c_str() + at + 8);
    fault.text = text;
  }
  return 0;
}

Handle access_properties() {
  Handle properties(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(properties.id(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  H5Pset_alignment(properties.id(), kAlignment, kAlignment);
  H5Pset_file_locking(properties.id(), false, true);
  return properties;
}

[[noreturn]] void refuse_hdf5(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::kCorrupt,
              fmt::format("{}: {}; this is no file that hedgerow wrote", path, what));
}

}  // namespace

void prepare() {
  static const bool once = [] {
    // HDF5 keeps a file that it could not close (a full disk) half closed, and crashes on it at
    // exit. All our handles close themselves, so there is nothing left to do then.
    H5dont_atexit();
    H5open();
    H5PLset_loading_state(0);
    return true;
  }();
  static_cast<void>(once);
  thread_local const bool quiet = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
  static_cast<void>(quiet);
}

void throw_error(const char* call, const std::string& file, ErrorKind otherwise) {
  Fault fault;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect, &fault);
  H5Eclear2(H5E_DEFAULT);
  if (fault.error_number != 0) throw system_error(call, file, fault.error_number);
  throw Error(
      otherwise,
      fmt::format(
          "{}: {} failed: {}", file, call, fault.text.empty() ? "no reason given" : fault.text));
}

Handle open_file(const std::filesystem::path& path) {
  prepare();
  const Handle access = access_properties();
  return {check(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), "H5Fopen", path.string()),
          H5Fclose};
}

Handle create_file(const std::filesystem::path& path, std::uint64_t user_block) {
  prepare();
  const Handle access = access_properties();
  const Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_userblock(creation.id(), user_block);
  H5Pset_obj_track_times(creation.id(), false);
  return {check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.id(), access.id()),
                "H5Fcreate",
                path.string(),
                ErrorKind::kUnavailable),
          H5Fclose};
}

Handle file_type(DType dtype) {
  prepare();
  const auto standard = [](hid_t id) { return Handle(H5Tcopy(id), H5Tclose); };
  const auto small_float =
      [&](std::size_t exponent_bits, std::size_t mantissa_bits, std::size_t bias) {
        Handle type = standard(H5T_IEEE_F32LE);
        H5Tset_fields(type.id(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits);
        H5Tset_size(type.id(), 2);
        H5Tset_ebias(type.id(), bias);
        return type;
      };
  switch (dtype) {
    case DType::kF64:
      return standard(H5T_IEEE_F64LE);
    case DType::kF32:
      return standard(H5T_IEEE_F32LE);
    case DType::kF16:
      return small_float(5, 10, 15);
    case DType::kBF16:
      return small_float(8, 7, 127);
    case DType::kI64:
      return standard(H5T_STD_I64LE);
    case DType::kI32:
      return standard(H5T_STD_I32LE);
    case DType::kI16:
      return standard(H5T_STD_I16LE);
    case DType::kI8:
      return standard(H5T_STD_I8LE);
    case DType::kU8:
    case DType::kBool:
      break;
  }
  return standard(H5T_STD_U8LE);
}

Handle create_dataset(const Handle& file,
                      const char* name,
                      DType dtype,
                      const DatasetLayout& layout,
                      const std::string& path) {
  const std::vector<hsize_t> shape(layout.shape.begin(), layout.shape.end());
  const Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
                     H5Sclose);
  const Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  if (!layout.chunk.empty()) {
    const std::vector<hsize_t> chunk(layout.chunk.begin(), layout.chunk.end());
    check(H5Pset_chunk(properties.id(), static_cast<int>(chunk.size()), chunk.data()),
          "H5Pset_chunk",
          path,
          ErrorKind::kInternal);
  }
  // Early allocation of unfiltered chunks of a fixed shape: one run of chunks without an index
  // between them.
  H5Pset_alloc_time(properties.id(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(properties.id(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(properties.id(), false);
  const Handle type = file_type(dtype);
  return {
      check(H5Dcreate2(
                file.id(), name, type.id(), space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT),
            "H5Dcreate2",
            path,
            ErrorKind::kUnavailable),
      H5Dclose};
}

void require_names(const Handle& file,
                   std::span<const char* const> names,
                   const std::string& path) {
  H5G_info_t info{};
  check(H5Gget_info(file.id(), &info), "H5Gget_info", path);
  if (info.nlinks != names.size()) {
    refuse_hdf5(
        path, fmt::format("its root group has {} entries, expected {}", info.nlinks, names.size()));
  }
  for (const char* name : names) {
    H5L_info_t link{};
    if (H5Lget_info(file.id(), name, &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD) {
      H5Eclear2(H5E_DEFAULT);
      refuse_hdf5(path, fmt::format("it has no dataset '{}' of its own", name));
    }
  }
}

Handle open_dataset(const Handle& file, const char* name, DType dtype, const std::string& path) {
  Handle object(check(H5Oopen(file.id(), name, H5P_DEFAULT), "H5Oopen", path), H5Oclose);
  if (H5Iget_type(object.id()) != H5I_DATASET)
    refuse_hdf5(path, fmt::format("'{}' is not a dataset", name));
  const Handle type(check(H5Dget_type(object.id()), "H5Dget_type", path), H5Tclose);
  const Handle expected = file_type(dtype);
  if (H5Tequal(type.id(), expected.id()) <= 0) {
    refuse_hdf5(
        path,
        fmt::format("dataset '{}' has another element type, expected {}", name, to_string(dtype)));
  }
  const Handle properties(check(H5Dget_create_plist(object.id()), "H5Dget_create_plist", path),
                          H5Pclose);
  const H5D_layout_t layout = H5Pget_layout(properties.id());
  if (layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED) {
    refuse_hdf5(
        path,
        fmt::format("dataset '{}' is neither contiguous nor chunked (a virtual dataset?)", name));
  }
  if (H5Pget_nfilters(properties.id()) != 0)
    refuse_hdf5(path, fmt::format("dataset '{}' has filters", name));
  if (H5Pget_external_count(properties.id()) != 0) {
    refuse_hdf5(path, fmt::format("dataset '{}' keeps its data in other files", name));
  }
  return object;
}

DatasetLayout layout_of(const Handle& dataset, const std::string& path) {
  DatasetLayout layout;
  std::vector<hsize_t> extent(H5S_MAX_RANK);
  const Handle space(check(H5Dget_space(dataset.id()), "H5Dget_space", path), H5Sclose);
  const int rank = check(H5Sget_simple_extent_dims(space.id(), extent.data(), nullptr),
                         "H5Sget_simple_extent_dims",
                         path);
  layout.shape.assign(extent.begin(), extent.begin() + rank);
  const Handle properties(check(H5Dget_create_plist(dataset.id()), "H5Dget_create_plist", path),
                          H5Pclose);
  if (H5Pget_layout(properties.id()) == H5D_CHUNKED) {
    const int chunk_rank =
        check(H5Pget_chunk(properties.id(), H5S_MAX_RANK, extent.data()), "H5Pget_chunk", path);
    layout.chunk.assign(extent.begin(), extent.begin() + chunk_rank);
  }
  return layout;
}

}  // namespace hedgerow::storage::hdf5
