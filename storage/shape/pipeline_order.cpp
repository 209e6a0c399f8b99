#include "storage/shape/pipeline_order.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "storage/base/error.hpp"

namespace hedgerow::storage {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// When passes of micro-batches over ranges have ended.
class Passes {
 public:
  Passes(const Mesh& mesh, int num_micro_batches, std::vector<RangeCost> costs, double message)
      : mesh_(mesh),
        costs_(std::move(costs)),
        message_(message),
        forward_(costs_.size(), std::vector(static_cast<std::size_t>(num_micro_batches), kNever)),
        backward_(forward_) {}

  // When its input is there; kNever: not known yet.
  [[nodiscard]] double ready(int stage, const PipelineOperation& operation) const {
    const std::size_t range = range_of(stage, operation.chunk);
    const auto batch = static_cast<std::size_t>(operation.micro_batch);
    if (operation.is_forward) return range == 0 ? 0.0 : arrived(forward_[range - 1][batch]);
    const bool is_last = range + 1 == costs_.size();
    return is_last ? forward_[range][batch] : arrived(backward_[range + 1][batch]);
  }
  // Its end.
  double run(int stage, const PipelineOperation& operation, double begin) {
    const std::size_t range = range_of(stage, operation.chunk);
    const auto batch = static_cast<std::size_t>(operation.micro_batch);
    const double end =
        begin + (operation.is_forward ? costs_[range].forward : costs_[range].backward);
    (operation.is_forward ? forward_ : backward_)[range][batch] = end;
    return end;
  }

 private:
  [[nodiscard]] std::size_t range_of(int stage, int chunk) const {
    return static_cast<std::size_t>(chunk * mesh_.pipeline + stage);
  }
  [[nodiscard]] double arrived(double end) const {
    return mesh_.pipeline == 1 ? end : end + message_;
  }

  const Mesh& mesh_;
  std::vector<RangeCost> costs_;
  double message_;
  std::vector<std::vector<double>> forward_, backward_;  // [range][micro-batch]
};

// A stage while the order is made.
struct Stage {
  int index = 0;
  double free_at = 0.0;
  std::vector<int> forwards, backwards;  // done, of each chunk

  [[nodiscard]] int in_flight() const {
    int count = 0;
    for (std::size_t chunk = 0; chunk < forwards.size(); ++chunk)
      count += forwards[chunk] - backwards[chunk];
    return count;
  }
};

// Passes that a stage may begin before its first backward pass: as many as the pipeline needs to
// reach its end and come back.
int most_begun(const Mesh& mesh, int stage) {
  const int behind = mesh.pipeline - stage - 1;
  return mesh.chunks == 1 ? behind + 1 : 2 * behind + (mesh.chunks - 1) * mesh.pipeline + 1;
}

// What the stage may do next, best first.
std::vector<PipelineOperation> candidates(const Mesh& mesh,
                                          const Stage& stage,
                                          int num_micro_batches,
                                          bool trains) {
  std::vector<PipelineOperation> list;
  for (int chunk = mesh.chunks - 1; trains && chunk >= 0; --chunk) {
    const auto c = static_cast<std::size_t>(chunk);
    if (stage.backwards[c] < stage.forwards[c]) list.push_back({false, chunk, stage.backwards[c]});
  }
  // The deepest first: a micro-batch that is under way goes on before another begins.
  for (int chunk = mesh.chunks - 1; chunk >= 0; --chunk) {
    const int next = stage.forwards[static_cast<std::size_t>(chunk)];
    const bool is_full = trains && chunk == 0 && stage.in_flight() >= most_begun(mesh, stage.index);
    if (next < num_micro_batches && !is_full) list.push_back({true, chunk, next});
  }
  return list;
}

}  // namespace

PipelineOrder pipeline_order(const Mesh& mesh, int num_micro_batches, bool trains) {
  const auto chunks = static_cast<std::size_t>(mesh.chunks);
  Passes passes(mesh,
                num_micro_batches,
                std::vector<RangeCost>(static_cast<std::size_t>(mesh.num_ranges())),
                0.0);
  std::vector<Stage> stages;
  for (int stage = 0; stage < mesh.pipeline; ++stage)
    stages.push_back({stage, 0.0, std::vector<int>(chunks), std::vector<int>(chunks)});
  PipelineOrder order(stages.size());
  struct Choice {
    double begin;
    int stage;
    PipelineOperation operation;
  };
  while (true) {
    std::optional<Choice> next;
    for (const Stage& stage : stages) {
      // The best of those that can begin first.
      for (const auto& operation : candidates(mesh, stage, num_micro_batches, trains)) {
        const double begin = std::max(stage.free_at, passes.ready(stage.index, operation));
        if (begin != kNever && (!next || begin < next->begin))
          next = Choice{begin, stage.index, operation};
      }
    }
    if (!next) break;
    Stage& stage = stages[static_cast<std::size_t>(next->stage)];
    stage.free_at = passes.run(next->stage, next->operation, next->begin);
    auto& done = next->operation.is_forward ? stage.forwards : stage.backwards;
    ++done[static_cast<std::size_t>(next->operation.chunk)];
    order[static_cast<std::size_t>(next->stage)].push_back(next->operation);
  }
  return order;
}

int most_in_flight(const std::vector<PipelineOperation>& operations) {
  int now = 0, most = 0;
  for (const PipelineOperation& operation : operations) {
    now += operation.is_forward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

PipelineTimes pipeline_times(const PipelineOrder& order,
                             const Mesh& mesh,
                             const std::vector<RangeCost>& costs,
                             double message) {
  int num_micro_batches = 0;
  for (const PipelineOperation& operation : order.front())
    num_micro_batches = std::max(num_micro_batches, operation.micro_batch + 1);
  Passes passes(mesh, num_micro_batches, costs, message);
  std::vector<std::size_t> next(order.size());
  std::vector<double> free_at(order.size());
  double busy = 0.0;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t stage = 0; stage < order.size(); ++stage) {
      while (next[stage] < order[stage].size()) {
        const PipelineOperation& operation = order[stage][next[stage]];
        const double ready = passes.ready(static_cast<int>(stage), operation);
        if (ready == kNever) break;
        const double begin = std::max(ready, free_at[stage]);
        free_at[stage] = passes.run(static_cast<int>(stage), operation, begin);
        busy += free_at[stage] - begin;
        ++next[stage];
        moved = true;
      }
    }
  }
  for (std::size_t stage = 0; stage < order.size(); ++stage) {
    if (next[stage] != order[stage].size())
      throw Error(ErrorKind::kInternal, "pipeline: an order in which stages wait for each other");
  }
  PipelineTimes times;
  times.makespan = *std::ranges::max_element(free_at);
  const double held = times.makespan * static_cast<double>(order.size());
  times.idle = held > 0.0 ? 1.0 - busy / held : 0.0;
  return times;
}

}  // namespace hedgerow::storage
