// What calibration writes into cluster files and makes of seconds.
#include "coordinator/cli/doctor/calibration.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/plan/measured_nodes.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "tests/support/temporary_directory.hpp"

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

TEST(Calibration, AFileWithoutNodesGetsAnEntryBehindWhatItSays) {
  for (const std::string before : {"", "[slurm]\npartition = \"p\"", "[slurm]\n"}) {
    NodeKind node = measured_node();
    node.name = "host";
    node.gpus = 8;
    node.gpu_memory_gb = 85.2;
    const std::string text = with_entry(before, node);
    EXPECT_TRUE(text.starts_with(before));
    const NodeKind made = Cluster::parse(text, "c.toml").nodes.at(0);
    EXPECT_EQ(made.name, "host");
    EXPECT_EQ(made.gpus, 8);
    EXPECT_EQ(made.gpu_memory_gb, 85.2);
    EXPECT_EQ(made.memory_gb, 1006);
    EXPECT_EQ(made.product_tflops, 0.346);
    EXPECT_EQ(made.measured, node.measured);
  }
}

// Catches: figures of one kind of nodes that go when another is measured, and a plan by what the
// cluster file assumes.
TEST(Calibration, FiguresBesideAClusterFileStandInPlaceOfItsOwnByTheNameOfTheNodes) {
  const tests::TemporaryDirectory folder;
  const std::filesystem::path file = folder / "c.toml", copy = folder / "copy.toml";
  storage::write_atomically(file, kTwoKinds);
  NodeKind node = measured_node();
  node.name = "new # not a comment";
  std::string text = measured_text({}, node);
  node.name = "old";
  text = measured_text(Cluster::parse(text, "m").nodes, node);
  node.cores = 48;
  text = measured_text(Cluster::parse(text, "m").nodes, node);
  node.name = "another";
  text = measured_text(Cluster::parse(text, "m").nodes, node);
  EXPECT_EQ(load_cluster(file), Cluster::parse(kTwoKinds, "c.toml"));
  storage::write_atomically(folder / "c.measured.toml", text);
  copy_cluster(file, copy);
  EXPECT_EQ(storage::read_text(file), kTwoKinds);
  for (const std::filesystem::path& path : {file, copy}) {
    Cluster expected = Cluster::parse(kTwoKinds, "c.toml");
    for (NodeKind& kind : expected.nodes) {
      kind.memory_gb = 1006;
      kind.cores = kind.name == "old" ? 48 : 96;
      kind.product_tflops = 0.346;
      kind.other_tflops = 0.0512;
      kind.disk_gb_s = 1.25;
      kind.worker_start_s = 0.5;
      kind.measured = node.measured;
    }
    EXPECT_EQ(load_cluster(path), expected);
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
