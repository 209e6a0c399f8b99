// What stages send each other, where a copy to the host is done later than the pass that it
// follows: on the CPU, with a copier whose host memory has its values only once it was asked often
// enough.
#include "worker/finetune/pipeline.hpp"
#include "tests/worker/comm/rank_threads.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace hedgerow::worker {
namespace {

constexpr double kNothing = -1.0;

class LateCopy final : public HostCopy {
 public:
  LateCopy(at::Tensor from, int looks)
      : HostCopy(at::full_like(from, kNothing)), from_(std::move(from)), looks_(looks) {}
  bool is_done() override {
    if (looks_-- > 0) return false;
    host().copy_(from_);
    return true;
  }

 private:
  at::Tensor from_;
  int looks_;
};

// Each copy is done after so many looks at it, the first ones after the most.
class LateCopier final : public HostCopier {
 public:
  explicit LateCopier(std::deque<int> looks) : looks_(std::move(looks)) {}
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) override {
    return at::full(sizes, kNothing, at::TensorOptions(dtype));
  }
  std::unique_ptr<HostCopy> begin(const at::Tensor& tensor) override {
    int looks = 1;
    if (!looks_.empty()) {
      looks = looks_.front();
      looks_.pop_front();
    }
    return std::make_unique<LateCopy>(tensor, looks);
  }
  at::Tensor to_device(const at::Tensor& host) override { return host; }

 private:
  std::deque<int> looks_;
};

StreamShape late_shape() {
  return {.sizes = {1, 2, 3}, .stream = at::kFloat, .compute = at::kFloat, .device = at::kCPU};
}

at::Tensor filled(double value) { return at::full({1, 2, 3}, value); }

// What each rank's passes are given, in their order: forward of micro-batch m through range r adds
// 1, and its gradient, 100 m at the last range, 10 in each.
struct Seen {
  std::vector<double> forward, backward;
};

std::vector<Seen> run_late(const storage::Mesh& mesh, int num_micro_batches, bool trains) {
  std::vector<Seen> seen(static_cast<std::size_t>(mesh.ranks()));
  run_on_threads(
      mesh.ranks(),
      [&](Communicator& ranks) {
        Seen& own = seen[static_cast<std::size_t>(ranks.rank())];
        const auto value_of = [](const at::Tensor& tensor) {
          EXPECT_TRUE(tensor.equal(at::full_like(tensor, tensor.view(-1)[0].item())));
          return tensor.view(-1)[0].item<double>();
        };
        Pipeline pipeline(mesh,
                          ranks,
                          late_shape(),
                          std::make_unique<LateCopier>(std::deque<int>{40, 0, 20, 0, 0, 5}));
        pipeline.run(num_micro_batches,
                     trains,
                     {.embed = [](int i) { return filled(1000.0 * i); },
                      .forward =
                          [&](int, int, const at::Tensor& hidden) {
                            own.forward.push_back(value_of(hidden));
                            return hidden + 1.0;
                          },
                      .compute_loss =
                          [&](int i, const at::Tensor&) {
                            return trains ? filled(100.0 * i) : at::Tensor();
                          },
                      .backward =
                          [&](int, int, const at::Tensor& gradient) {
                            own.backward.push_back(value_of(gradient));
                            return gradient + 10.0;
                          }});
      },
      std::chrono::seconds(10));
  return seen;
}

TEST(PipelineMessages, AMessageIsSentOnlyOnceItsTensorIsCompleteAndInItsOrder) {
  const auto seen = run_late({.pipeline = 2}, 6, false);
  EXPECT_EQ(seen[1].forward, (std::vector<double>{1, 1001, 2001, 3001, 4001, 5001}));
}

// Each stage waits for the other's message, and has one of its own to copy when it begins to.
TEST(PipelineMessages, AStageThatWaitsSendsFirstWhatItsPeerWaitsFor) {
  const auto seen = run_late({.pipeline = 3}, 4, true);
  EXPECT_EQ(seen[2].forward, (std::vector<double>{2, 1002, 2002, 3002}));
  EXPECT_EQ(seen[0].backward, (std::vector<double>{20, 120, 220, 320}));
}

TEST(PipelineMessages, StagesOfSeveralRangesGetEachOthersToo) {
  const auto seen = run_late({.pipeline = 2, .chunks = 2}, 2, true);
  EXPECT_EQ(seen[0].forward, (std::vector<double>{0, 1000, 2, 1002}));
  EXPECT_EQ(seen[1].backward, (std::vector<double>{0, 100, 20, 120}));
}

// On the CPU what a pass returns is what another one gets, in memory that nobody copied.
TEST(PipelineMessages, OnTheCpuAMessageGoesFromTheTensorsOwnMemory) {
  const auto copier = make_host_copier(at::kCPU);
  const at::Tensor tensor = filled(3.0);
  const auto copy = copier->begin(tensor);
  EXPECT_TRUE(copy->is_done());
  EXPECT_TRUE(copy->host().is_same(tensor));
  EXPECT_TRUE(copier->to_device(tensor).is_same(tensor));
}

}  // namespace
}  // namespace hedgerow::worker
