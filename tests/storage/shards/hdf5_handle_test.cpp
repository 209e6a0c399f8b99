#include "storage/shards/hdf5_handle.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

using ::testing::HasSubstr;

// Files as HDF5 itself can write them, each with one thing in it that ours never have.
class Hdf5Layout : public ::testing::Test {
 protected:
  // `make` adds to an open file; returns what opening "d" as a BF16 dataset of a file with only "d"
  // says.
  std::string refusal(const std::function<void(hid_t)>& make) {
    {
      const hdf5::Handle file = hdf5::create_file(path_, 0);
      make(file.id());
    }
    try {
      const hdf5::Handle file = hdf5::open_file(path_);
      hdf5::require_names(file, kNames, path_);
      (void)hdf5::open_dataset(file, "d", DType::kBF16, path_);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << error.what();
      return error.what();
    }
    return "(accepted)";
  }
  static void dataset(hid_t file, const char* name, hid_t type, hid_t properties) {
    const std::array<hsize_t, 2> shape{4, 8};
    const hdf5::Handle space(H5Screate_simple(2, shape.data(), nullptr), H5Sclose);
    const hdf5::Handle made(
        H5Dcreate2(file, name, type, space.id(), H5P_DEFAULT, properties, H5P_DEFAULT), H5Dclose);
    ASSERT_GE(made.id(), 0);
  }
  static hdf5::Handle creation() { return {H5Pcreate(H5P_DATASET_CREATE), H5Pclose}; }

  static constexpr std::array kNames{"d"};
  tests::TemporaryDirectory directory_;
  std::string path_ = (directory_ / "x.h5").string();
  hdf5::Handle bf16_ = hdf5::file_type(DType::kBF16);
};

TEST_F(Hdf5Layout, APlainDatasetIsAccepted) {
  EXPECT_EQ(refusal([&](hid_t file) { dataset(file, "d", bf16_.id(), H5P_DEFAULT); }),
            "(accepted)");
}

TEST_F(Hdf5Layout, MissingSurplusAndLinkedNamesAreRefused) {
  EXPECT_THAT(refusal([](hid_t) {}), HasSubstr("0 entries"));
  EXPECT_THAT(refusal([&](hid_t file) {
                dataset(file, "d", bf16_.id(), H5P_DEFAULT);
                dataset(file, "e", bf16_.id(), H5P_DEFAULT);
              }),
              HasSubstr("2 entries"));
  EXPECT_THAT(refusal([&](hid_t file) { dataset(file, "e", bf16_.id(), H5P_DEFAULT); }),
              HasSubstr("no dataset 'd'"));
  EXPECT_THAT(refusal([](hid_t file) {
                H5Lcreate_external("/etc/passwd", "x", file, "d", H5P_DEFAULT, H5P_DEFAULT);
              }),
              HasSubstr("of its own"));
  EXPECT_THAT(
      refusal([](hid_t file) { H5Lcreate_soft("/nowhere", file, "d", H5P_DEFAULT, H5P_DEFAULT); }),
      HasSubstr("of its own"));
  EXPECT_THAT(refusal([](hid_t file) {
                const hdf5::Handle group(
                    H5Gcreate2(file, "d", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
              }),
              HasSubstr("not a dataset"));
}

TEST_F(Hdf5Layout, AnotherElementTypeIsRefused) {
  const hdf5::Handle f16 = hdf5::file_type(DType::kF16);
  for (const hid_t type : {H5T_IEEE_F32LE, H5T_STD_I16LE, H5T_IEEE_F64BE, f16.id()}) {
    EXPECT_THAT(refusal([&](hid_t file) { dataset(file, "d", type, H5P_DEFAULT); }),
                HasSubstr("element type"));
  }
}

TEST_F(Hdf5Layout, FiltersExternalAndVirtualStorageAreRefused) {
  EXPECT_THAT(refusal([&](hid_t file) {
                const hdf5::Handle properties = creation();
                const std::array<hsize_t, 2> chunk{1, 8};
                H5Pset_chunk(properties.id(), 2, chunk.data());
                H5Pset_fletcher32(properties.id());
                dataset(file, "d", bf16_.id(), properties.id());
              }),
              HasSubstr("filters"));
  EXPECT_THAT(refusal([&](hid_t file) {
                const hdf5::Handle properties = creation();
                H5Pset_external(properties.id(), "/etc/passwd", 0, H5F_UNLIMITED);
                dataset(file, "d", bf16_.id(), properties.id());
              }),
              HasSubstr("other files"));
  EXPECT_THAT(refusal([&](hid_t file) {
                const hdf5::Handle properties = creation();
                const std::array<hsize_t, 2> shape{4, 8};
                const hdf5::Handle space(H5Screate_simple(2, shape.data(), nullptr), H5Sclose);
                H5Pset_virtual(properties.id(), space.id(), "/etc/passwd", "d", space.id());
                dataset(file, "d", bf16_.id(), properties.id());
              }),
              HasSubstr("virtual"));
}

TEST_F(Hdf5Layout, Hdf5PrintsNothingAndItsReasonIsInTheMessage) {
  testing::internal::CaptureStderr();
  try {
    (void)hdf5::open_file(directory_ / "none.h5");
    ADD_FAILURE() << "opened";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("none.h5"));
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace hedgerow::storage
