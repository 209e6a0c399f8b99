#include "worker/device/device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "coordinator/machine/memory.hpp"
#include "storage/base/error.hpp"
#include "worker/device/cuda_device.hpp"
#include "worker/model/decoder.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;
using ::testing::HasSubstr;

TEST(Device, TheCpuIsTakenWhereItIsAskedForOrNothingElseIsVisible) {
  EXPECT_TRUE(resolve_device("cpu").is_cpu());
  EXPECT_EQ(resolve_device("auto").is_cpu(), cuda::num_devices() == 0);
  EXPECT_FALSE(device_model(at::kCPU).empty());
  EXPECT_EQ(device_memory_bytes(at::kCPU), wire::usable_memory_bytes());
}

TEST(Device, CudaThatIsAskedForAndMissingIsAnErrorThatSaysWhatToDo) {
  if (cuda::num_devices() > 0) GTEST_SKIP() << "this machine has a GPU";
  try {
    static_cast<void>(resolve_device("cuda"));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), cuda::is_built() ? ErrorKind::kUnavailable : ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr(cuda::is_built() ? "nvidia-smi" : "cmake --preset cuda"));
  }
}

TEST(Device, AnUnknownWordNamesTheKnownOnes) {
  try {
    static_cast<void>(resolve_device("tpu"));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("expected auto, cpu or cuda, found 'tpu'"));
  }
}

TEST(Device, TheLocalRankIsMpirunsBeforeSlurms) {
  ::unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
  ::unsetenv("SLURM_LOCALID");
  EXPECT_EQ(local_rank_of_environment(), 0);
  ::setenv("SLURM_LOCALID", "3", 1);
  EXPECT_EQ(local_rank_of_environment(), 3);
  ::setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
  EXPECT_EQ(local_rank_of_environment(), 1);
  ::unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
  ::unsetenv("SLURM_LOCALID");
}

TEST(Device, GpusComputeInBf16UnlessToldOtherwise) {
  const at::Device gpu(at::kCUDA, 0);
  EXPECT_EQ(resolve_compute_dtype("auto", gpu), at::kBFloat16);
  EXPECT_EQ(resolve_compute_dtype("fp32", gpu), at::kFloat);
}

}  // namespace
}  // namespace hedgerow::worker
