#include "worker/device/device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <string>

#include "coordinator/machine/memory.hpp"
#include "storage/base/error.hpp"
#include "worker/device/cuda_device.hpp"
#include "worker/model/decoder.hpp"
#include "worker/serve.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;
using ::testing::HasSubstr;

TEST(Device, TheCpuIsTakenWhereItIsAskedForOrNothingElseIsVisible) {
  EXPECT_TRUE(resolve_device("cpu").is_cpu());
  EXPECT_EQ(resolve_device("auto").is_cpu(), cuda::num_devices() == 0);
  EXPECT_FALSE(device_model(at::kCPU).empty());
  EXPECT_EQ(device_memory_bytes(at::kCPU), machine::usable_memory_bytes());
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

constexpr std::array kLocalRanks = {"OMPI_COMM_WORLD_LOCAL_RANK",
                                    "MPI_LOCALRANKID",
                                    "PMI_LOCAL_RANK",
                                    "PALS_LOCAL_RANKID",
                                    "MV2_COMM_WORLD_LOCAL_RANK",
                                    "SLURM_LOCALID"};

// Catches: all ranks of a node on its first GPU, because mpirun is not Open MPI's.
TEST(Device, TheLocalRankIsThatOfAnyLauncherAndAnMpiLaunchersBeforeSlurms) {
  for (const char* name : kLocalRanks) ::unsetenv(name);
  EXPECT_EQ(local_rank_of_environment(), 0);
  for (const char* name : kLocalRanks) {
    ::setenv(name, "3", 1);
    EXPECT_EQ(local_rank_of_environment(), 3) << name;
    ::setenv(name, "none", 1);
    EXPECT_EQ(local_rank_of_environment(), 0) << name << " that is no number";
    ::unsetenv(name);
  }
  for (std::size_t i = 0; i < kLocalRanks.size(); ++i)
    ::setenv(kLocalRanks[i], std::to_string(i + 1).c_str(), 1);
  for (std::size_t i = 0; i < kLocalRanks.size(); ++i) {
    EXPECT_EQ(local_rank_of_environment(), static_cast<int>(i + 1)) << kLocalRanks[i];
    ::unsetenv(kLocalRanks[i]);
  }
}

TEST(Device, AWorkerThatSharesItsDeviceSaysItsPartOfTheMemory) {
  const std::uint64_t whole = make_hello("w", 1, at::kCPU).memory_bytes;
  EXPECT_EQ(whole, machine::usable_memory_bytes());
  EXPECT_EQ(make_hello("w", 1, at::kCPU, /*workers_on_device=*/3).memory_bytes, whole / 3);
}

TEST(Device, GpusComputeInBf16UnlessToldOtherwise) {
  const at::Device gpu(at::kCUDA, 0);
  EXPECT_EQ(resolve_compute_dtype("auto", gpu), at::kBFloat16);
  EXPECT_EQ(resolve_compute_dtype("fp32", gpu), at::kFloat);
}

}  // namespace
}  // namespace hedgerow::worker
