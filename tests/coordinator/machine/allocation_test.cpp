#include "coordinator/machine/allocation.hpp"

#include <gtest/gtest.h>

#include <map>

namespace hedgerow::machine {
namespace {

std::optional<Allocation> allocation_in(const std::map<std::string, std::string>& environment) {
  return allocation_of([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(Allocation, OutsideAJobThereIsNone) {
  EXPECT_FALSE(allocation_in({{"SLURM_JOB_NUM_NODES", "3"}}));
}

TEST(Allocation, SlurmTellsNodesTasksAndProcessors) {
  const auto allocation = allocation_in({{"SLURM_JOB_ID", "7"},
                                         {"SLURM_JOB_NUM_NODES", "3"},
                                         {"SLURM_TASKS_PER_NODE", "4(x2),1"},
                                         {"SLURM_CPUS_PER_TASK", "12"}});
  ASSERT_TRUE(allocation);
  EXPECT_EQ(allocation->nodes, 3);
  EXPECT_EQ(allocation->tasks_per_node, 4);
  EXPECT_EQ(allocation->threads_per_task(96), 12);
}

TEST(Allocation, WithoutProcessorsForATaskTheTasksOfANodeShareItsCores) {
  const auto allocation = allocation_in({{"SLURM_JOB_ID", "7"}, {"SLURM_TASKS_PER_NODE", "4"}});
  ASSERT_TRUE(allocation);
  EXPECT_EQ(allocation->nodes, 1);
  EXPECT_EQ(allocation->threads_per_task(96), 24);
  EXPECT_EQ(allocation->threads_per_task(2), 1);
}

}  // namespace
}  // namespace hedgerow::machine
