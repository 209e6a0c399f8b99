#include "storage/recipe/cluster_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "storage/base/error.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const std::string& toml) {
  try {
    (void)Cluster::parse(toml, "cluster.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "accepted";
}

TEST(Cluster, AnEmptyFileIsOneNodeOfWhateverTheClusterTakesByItself) {
  const Cluster cluster = Cluster::parse("", "cluster.toml");
  EXPECT_EQ(cluster, Cluster{});
  EXPECT_EQ(cluster.workers.nodes, 1);
  EXPECT_EQ(cluster.slurm.signal_seconds, 180);
}

TEST(Cluster, EveryKeyIsRead) {
  const Cluster cluster = Cluster::parse(R"([slurm]
partition = "a"
account = "b"
qos = "c"
time = "1-00:00:00"
signal_seconds = 20
max_requeues = 3
modules = ["m1", "m2"]
prologue = ["export A=1"]
sbatch = ["--exclusive"]
hedgerow = "/shared/hedgerow"
bind = "ib0"
container = "hedgerow.sif"
[workers]
nodes = 2
tasks_per_node = 3
gpus_per_task = 4
cpus_per_task = 5
memory = "6G"
partition = "d"
qos = "e"
time = "30"
sbatch = ["--nice"]
srun = ["--cpu-bind=cores"]
[coordinator]
gres = "gpu:1"
[finetune]
allocation = "own"
nodes = 7
)",
                                         "cluster.toml");
  Cluster expected;
  expected.slurm = {.partition = "a",
                    .account = "b",
                    .qos = "c",
                    .time = "1-00:00:00",
                    .signal_seconds = 20,
                    .max_requeues = 3,
                    .modules = {"m1", "m2"},
                    .prologue = {"export A=1"},
                    .sbatch = {"--exclusive"},
                    .hedgerow = "/shared/hedgerow",
                    .bind = "ib0",
                    .container = "hedgerow.sif"};
  expected.workers = {.nodes = 2,
                      .tasks_per_node = 3,
                      .gpus_per_task = 4,
                      .cpus_per_task = 5,
                      .gres = "",
                      .memory = "6G",
                      .partition = "d",
                      .qos = "e",
                      .time = "30",
                      .sbatch = {"--nice"},
                      .srun = {"--cpu-bind=cores"}};
  expected.coordinator.gres = "gpu:1";
  expected.finetune.nodes = 7;
  expected.finetune_allocation = "own";
  EXPECT_EQ(cluster, expected);
}

TEST(Cluster, AMisspeltKeyIsNamedWithItsLineAndTheLikelyKey) {
  EXPECT_THAT(refusal("[slurm]\npartiton = \"gpu\"\n"),
              HasSubstr("cluster.toml:2: slurm.partiton is not a known key; did you mean "
                        "slurm.partition?"));
  EXPECT_THAT(refusal("[slurm]\ngpus_per_task = 1\n"),
              HasSubstr("cluster.toml:2: slurm.gpus_per_task is not a known key; did you mean "
                        "workers.gpus_per_task?"));
}

TEST(Cluster, AllProblemsAreReportedAtOnce) {
  const std::string text = refusal(R"([slurm]
time = "one day"
signal_seconds = 5
sbatch = ["exclusive"]
partition = "a\nb"
[workers]
nodes = "two"
gres = "gpu:4"
gpus_per_task = 1
[finetune]
allocation = "mine"
)");
  for (const char* part :
       {"cluster.toml:2: slurm.time = \"one day\": expected minutes, HH:MM:SS or D-HH:MM:SS",
        "cluster.toml:3: slurm.signal_seconds = 5: expected at least 10",
        "cluster.toml:4: slurm.sbatch = \"exclusive\": expected an option",
        "cluster.toml:5: slurm.partition has a line break",
        "cluster.toml:7: workers.nodes expected an integer, found a string",
        "cluster.toml:8: workers.gres = \"gpu:4\" and workers.gpus_per_task = 1 both ask for GPUs",
        "cluster.toml:11: finetune.allocation = \"mine\": expected one of auto, same, own"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(Cluster, TimesAreThoseThatSlurmTakes) {
  for (const char* time :
       {"30", "90:00", "24:00:00", "2-12", "2-12:30", "2-12:30:00", "UNLIMITED"}) {
    EXPECT_EQ(refusal(std::string("[slurm]\ntime = \"") + time + "\"\n"), "accepted") << time;
  }
  for (const char* time : {"1d", "1:2:3:4", "-5", "5-", "1-2-3", "12:00-1", "::"}) {
    EXPECT_THAT(refusal(std::string("[slurm]\ntime = \"") + time + "\"\n"), HasSubstr("slurm.time"))
        << time;
  }
}

TEST(Cluster, TheShippedExampleIsValid) {
  const Cluster cluster = Cluster::load(HEDGEROW_SOURCE_DIR "/deploy/slurm/cluster.example.toml");
  EXPECT_EQ(cluster.workers.tasks_per_node, 4);
  EXPECT_THAT(cluster.slurm.modules, ElementsAre("openmpi/4.1"));
  EXPECT_EQ(cluster.finetune_allocation, "auto");
}

TEST(Cluster, AnImageIsRelativeToTheFileThatNamesIt) {
  const tests::TemporaryDirectory directory;
  for (const auto& [written, read] :
       {std::pair<std::string, std::string>("images/x.sif", (directory / "images/x.sif").string()),
        {"/shared/x.sif", "/shared/x.sif"}}) {
    std::ofstream(directory / "cluster.toml") << "[slurm]\ncontainer = \"" << written << "\"\n";
    EXPECT_EQ(Cluster::load(directory / "cluster.toml").slurm.container, read);
  }
}

TEST(Cluster, NodesAreReadWithTheirDiskAndNetwork) {
  const Cluster cluster = Cluster::parse(R"([[nodes]]
name = "big"
count = 3
gpus = 8
gpu_memory_gb = 80
memory_gb = 1000
cores = 96
local_disk_gb = 5
price_per_hour = 31.5
mtbf_hours = 6250
product_tflops = 400
other_tflops = 13.5
disk_gb_s = 2
worker_start_s = 0.5
measured = "then"
[[nodes]]
name = "small"
memory_gb = 64
[shared]
capacity_gb = 1
bandwidth_gb_s = 2
[network]
inside_gb_s = 3
between_gb_s = 4
)",
                                         "cluster.toml");
  ASSERT_EQ(cluster.nodes.size(), 2U);
  const NodeKind expected{.name = "big",
                          .count = 3,
                          .gpus = 8,
                          .gpu_memory_gb = 80,
                          .memory_gb = 1000,
                          .cores = 96,
                          .local_disk_gb = 5,
                          .price_per_hour = 31.5,
                          .mtbf_hours = 6250,
                          .product_tflops = 400,
                          .other_tflops = 13.5,
                          .disk_gb_s = 2,
                          .worker_start_s = 0.5,
                          .measured = "then"};
  EXPECT_EQ(cluster.nodes[0], expected);
  EXPECT_EQ(cluster.nodes[1], (NodeKind{.name = "small", .memory_gb = 64}));
  EXPECT_EQ(cluster.shared, (SharedDisk{1, 2}));
  EXPECT_EQ(cluster.network, (Network{3, 4}));
  EXPECT_EQ(cluster.has_gpus(), true);
  EXPECT_EQ(Cluster::parse("", "cluster.toml").has_gpus(), std::nullopt);
  EXPECT_EQ(Cluster::parse("[workers]\ngpus_per_task = 1\n", "cluster.toml").has_gpus(), true);
}

TEST(Cluster, NodesThatCannotBeAreRefusedWithTheirKeys) {
  const std::string text = refusal(R"([[nodes]]
name = "a"
gpus = 8
memory_gb = 100
price_per_hour = -1
mtbf_hours = -2
[[nodes]]
name = "a"
gpu_memory_gb = 80
product_tflops = 1
gpu = 2
)");
  for (const char* part :
       {"cluster.toml:5: nodes[0].price_per_hour = -1: expected at least 0",
        "cluster.toml:6: nodes[0].mtbf_hours = -2: expected at least 0",
        "nodes[0].gpu_memory_gb is missing: the memory of one of its GPUs",
        "nodes[1].memory_gb is missing",
        "cluster.toml:9: nodes[1].gpu_memory_gb is given, but gpus is 0",
        "cluster.toml:10: nodes[1].product_tflops and other_tflops go together",
        "cluster.toml:8: nodes[1].name = \"a\" is named twice",
        "cluster.toml:11: nodes[1].gpu is not a known key; did you mean nodes[1].gpus?"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(refusal("[[node]]\nname = \"a\"\n"),
              HasSubstr("node is not a known key; did you mean nodes?"));
}

TEST(Cluster, TheShippedClustersAreValid) {
  const auto load = [](const char* name) {
    return Cluster::load(std::string(HEDGEROW_SOURCE_DIR "/deploy/clusters/") + name);
  };
  EXPECT_EQ(load("1x8x80gb.toml").nodes.front().gpus, 8);
  EXPECT_EQ(load("3x8x80gb.toml").nodes.front().count, 3);
  EXPECT_EQ(load("16x141gb.toml").nodes.front().gpu_memory_gb, 141);
  EXPECT_EQ(load("3x8xb200.toml").nodes.front().gpu_memory_gb, 180);
  EXPECT_EQ(load("gb300_nvl72.toml").nodes.front().count, 18);
  EXPECT_EQ(load("2x_cpu.toml").nodes.front().gpus, 0);
}

TEST(Cluster, AMissingFileSaysWhereAnExampleIs) {
  try {
    (void)Cluster::load("/no/such/cluster.toml");
    FAIL() << "read";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("cluster.example.toml"));
  }
}

}  // namespace
}  // namespace hedgerow::storage
