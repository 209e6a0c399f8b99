#include "worker/client/task_inputs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>

#include "storage/base/error.hpp"
#include "storage/files/hash.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::worker {
namespace {

using storage::ErrorKind;
using ::testing::ElementsAre;

class TaskInputs : public ::testing::Test {
 protected:
  TaskInputs() {
    for (const char* name : {"a.safetensors", "b.safetensors"}) {
      std::ofstream(directory_ / name) << "bytes of " << name;
      const auto path = layout_.resolve(name);
      task_.inputs.push_back({name, std::filesystem::file_size(path), storage::hash_file(path)});
    }
  }
  std::optional<ErrorKind> refusal() const {
    try {
      verify_inputs(layout_, task_, std::chrono::milliseconds(0));
    } catch (const storage::Error& error) {
      return error.kind();
    }
    return std::nullopt;
  }

  tests::TemporaryDirectory directory_;
  storage::RunLayout layout_{directory_.path()};
  wire::Task task_;
};

// A student with a flipped bit has a header that fits and other weights.
TEST_F(TaskInputs, AnArtifactThatChangedIsNeverLoaded) {
  EXPECT_EQ(refusal(), std::nullopt);
  std::ofstream(directory_ / "b.safetensors") << "bytes of c.safetensors";
  EXPECT_EQ(refusal(), ErrorKind::kCorrupt);
  std::filesystem::remove(directory_ / "b.safetensors");
  EXPECT_EQ(refusal(), ErrorKind::kNotFound);
}

TEST_F(TaskInputs, AllThatAreMissingAreNamedOnceOneIs) {
  task_.inputs.push_back({"hidden/b0001/s00000.t1.h5", 10, {}});
  task_.resume = storage::FileRecord{"attempts/t1/c.safetensors", 10, {}};
  EXPECT_THAT(damaged_files(layout_, task_, ErrorKind::kNotFound, "no hidden/b0001/s00000.t1.h5"),
              ElementsAre("hidden/b0001/s00000.t1.h5", "attempts/t1/c.safetensors"));
  EXPECT_THAT(damaged_files(layout_, task_, ErrorKind::kCorrupt, "a.safetensors: hash"),
              ElementsAre("a.safetensors"));
  EXPECT_THAT(damaged_files(layout_, task_, ErrorKind::kInternal, "a.safetensors"), ElementsAre());
}

}  // namespace
}  // namespace hedgerow::worker
