// Catches: a plan that fits the machine but not the container, so that the kernel kills the worker.
#include "coordinator/machine/memory.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "tests/support/temporary_directory.hpp"

namespace hedgerow::machine {
namespace {

constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

class CgroupMemory : public ::testing::Test {
 protected:
  void limit(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = mount_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }

  tests::TemporaryDirectory mount_;
};

TEST_F(CgroupMemory, IsTheSmallestOnTheWayToTheRootInVersion2) {
  limit("slurm/memory.max", "4096");
  limit("slurm/job/memory.max", "8192");
  limit("slurm/job/step/memory.max", "max");
  EXPECT_EQ(cgroup_memory_limit("0::/slurm/job/step\n", mount_.path()), 4096U);
  EXPECT_EQ(cgroup_memory_limit("0::/other\n", mount_.path()), kNone);
}

TEST_F(CgroupMemory, IsReadOfTheMountItselfInAContainersOwnNamespace) {
  limit("memory.max", "1024");
  EXPECT_EQ(cgroup_memory_limit("0::/\n", mount_.path()), 1024U);
}

TEST_F(CgroupMemory, IsThatOfTheMemoryControllerInVersion1) {
  limit("memory/docker/memory.limit_in_bytes", "2048");
  EXPECT_EQ(cgroup_memory_limit("5:cpu,cpuacct:/docker\n4:memory:/docker\n", mount_.path()), 2048U);
  EXPECT_EQ(cgroup_memory_limit("5:cpu:/docker\nnonsense\n", mount_.path()), kNone);
}

TEST(UsableMemory, IsSomethingAndNoMoreThanTheMachineHas) {
  EXPECT_GT(usable_memory_bytes(), 64ULL << 20);
  EXPECT_LT(usable_memory_bytes(), 1ULL << 50);
}

}  // namespace
}  // namespace hedgerow::machine
