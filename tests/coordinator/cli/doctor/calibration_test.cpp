// What calibration writes into cluster files and makes of seconds.
#include "coordinator/cli/doctor/calibration.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::Cluster;
using storage::NodeKind;
using ::testing::AllOf;
using ::testing::HasSubstr;

NodeKind measured_node() {
  return {.memory_gb = 1006.4,
          .cores = 96,
          .product_tflops = 0.34567,
          .other_tflops = 0.0512,
          .disk_gb_s = 1.25,
          .worker_start_s = 0.5,
          .measured = "2026-01-31, \"A\" CPU, 96 cores"};
}

std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

constexpr const char* kTwoKinds = R"(# Ours.

[[nodes]]   # the old ones
name = "old" # since 2019
memory_gb = 64
cores = 8

  [[nodes]]
  name = "new # not a comment"
  count = 3
  memory_gb = 512              # DDR5
  cores = 64
  # a remark
  product_tflops = 0.3         # of a core, assumed: as one of an EPYC
  other_tflops = 0.06          # assumed
  mtbf_hours = 9000

[shared]
capacity_gb = 20000 # cores = 3
)";

TEST(Calibration, AFileKeepsItsCommentsItsOtherEntriesAndItsOtherKeys) {
  EXPECT_EQ(with_figures(kTwoKinds, 1, measured_node(), "c.toml"), R"(# Ours.

[[nodes]]   # the old ones
name = "old" # since 2019
memory_gb = 64
cores = 8

  [[nodes]]
  name = "new # not a comment"
  count = 3
  memory_gb = 1006             # DDR5
  cores = 96
  # a remark
  product_tflops = 0.346       # of a core
  other_tflops = 0.0512
disk_gb_s = 1.25
worker_start_s = 0.5
measured = "2026-01-31, \"A\" CPU, 96 cores"
  mtbf_hours = 9000

[shared]
capacity_gb = 20000 # cores = 3
)");
}

TEST(Calibration, AFileThatIsCalibratedTwiceHasEachFigureOnce) {
  const std::string once = with_figures(kTwoKinds, 0, measured_node(), "c.toml");
  EXPECT_EQ(with_figures(once, 0, measured_node(), "c.toml"), once);
  const NodeKind node = Cluster::parse(once, "c.toml").nodes[0];
  EXPECT_EQ(node.product_tflops, 0.346);
  EXPECT_EQ(node.measured, measured_node().measured);
  EXPECT_EQ(Cluster::parse(once, "c.toml").nodes[1], Cluster::parse(kTwoKinds, "c.toml").nodes[1]);
}

TEST(Calibration, AFileWithoutNodesGetsAnEntryBehindWhatItSays) {
  for (const std::string before : {"", "[slurm]\npartition = \"p\"", "[slurm]\n"}) {
    NodeKind node = measured_node();
    node.name = "host";
    node.gpus = 8;
    node.gpu_memory_gb = 85.2;
    const std::string text = with_figures(with_new_entry(before, node), 0, node, "c.toml");
    EXPECT_TRUE(text.starts_with(before));
    const NodeKind made = Cluster::parse(text, "c.toml").nodes.at(0);
    EXPECT_EQ(made.name, "host");
    EXPECT_EQ(made.gpus, 8);
    EXPECT_EQ(made.gpu_memory_gb, 85.2);
    EXPECT_EQ(made.memory_gb, 1006);
    EXPECT_EQ(made.measured, node.measured);
  }
}

TEST(Calibration, AFileThatLinesCannotChangeIsRefused) {
  for (const char* text : {"nodes = [{ name = \"a\", memory_gb = 64 }]\n",
                           "[slurm]\nprologue = [\"\"\"\n[[nodes]]\n\"\"\"]\n"
                           "[[nodes]]\nname = \"a\"\nmemory_gb = 64\n"}) {
    EXPECT_THAT(failure_of([&] { (void)with_figures(text, 0, measured_node(), "c.toml"); }),
                AllOf(HasSubstr("c.toml: "), HasSubstr("put them in by hand")));
  }
}

TEST(Calibration, TheEntryOfAMachineIsTheOneAlikeOrTheOneThatIsNamed) {
  const Cluster two = Cluster::parse(kTwoKinds, "c.toml");
  EXPECT_EQ(entry_of(two, "old", false, "c.toml"), 0U);
  EXPECT_THAT(failure_of([&] { (void)entry_of(two, "", false, "c.toml"); }),
              AllOf(HasSubstr("\"old\", \"new # not a comment\""), HasSubstr("--node NAME")));
  EXPECT_THAT(failure_of([&] { (void)entry_of(two, "olds", false, "c.toml"); }),
              HasSubstr("did you mean 'old'?"));
  EXPECT_THAT(failure_of([&] { (void)entry_of(two, "", true, "c.toml"); }),
              HasSubstr("this machine computes on GPUs"));
  EXPECT_THAT(failure_of([&] { (void)entry_of(two, "old", true, "c.toml"); }),
              HasSubstr("have 0 GPUs"));
  Cluster mixed = two;
  mixed.nodes[0].gpus = 8;
  EXPECT_EQ(entry_of(mixed, "", true, "c.toml"), 0U);
  EXPECT_EQ(entry_of(mixed, "", false, "c.toml"), 1U);
}

TEST(Calibration, SpeedsAreThoseAtWhichThePlanSaysTheSecondsThatWereMeasured) {
  const Work capture{8e9, 1e9}, transfer{8e9, 4e9};
  const ComputeSpeed expected{.product_flops = 2e9, .other_flops = 5e8};
  const ComputeSpeed speed = speed_of({.products = capture.products / expected.product_flops,
                                       .capture = capture.seconds(expected),
                                       .transfer = transfer.seconds(expected)},
                                      capture,
                                      transfer);
  EXPECT_DOUBLE_EQ(speed.product_flops, expected.product_flops);
  EXPECT_DOUBLE_EQ(speed.other_flops, expected.other_flops);
  // A kernel of softmax that outruns the student's: both stages together are still told right.
  const measure::LayerSeconds uneven{.products = 4.0, .capture = 4.1, .transfer = 13.9};
  const ComputeSpeed shared = speed_of(uneven, capture, transfer);
  EXPECT_DOUBLE_EQ(capture.seconds(shared) + transfer.seconds(shared), 18.0);
}

TEST(Calibration, SecondsThatContradictEachOtherAreNoSpeed) {
  for (const measure::LayerSeconds& seconds :
       {measure::LayerSeconds{1.0, 0.9, 1.0}, measure::LayerSeconds{0.0, 1.0, 2.0}}) {
    try {
      (void)speed_of(seconds, {1e9, 1e9}, {1e9, 4e9});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const storage::Error& error) {
      EXPECT_EQ(error.kind(), storage::ErrorKind::kUnavailable);
    }
  }
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
