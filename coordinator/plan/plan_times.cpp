#include "coordinator/plan/plan_times.hpp"

#include <algorithm>

#include "coordinator/plan/plan_costs.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::Recipe;

// A capture task should take about a minute: long enough that its grant and the loading of a
// block's weights do not matter, short enough that a lost worker costs little.
constexpr double kCaptureTaskSeconds = 60.0;
constexpr double kUnknownFlops = 1e12;  // of a worker, for the size of such a task alone

// As SmolLM2's first four layers and a model of 0.2 M parameters took on two cores of an EPYC.
constexpr double kWorkerStartSeconds = 0.4;  // LibTorch, connection, first grant
constexpr double kRankStartSeconds = 1.0;    // mpirun, LibTorch, MPI's own start
constexpr double kTaskSeconds = 0.05;        // grant, files, commit
constexpr double kTokenizerStartSeconds = 0.4;
constexpr double kTextBytesPerSecond = 1e6;
constexpr double kWeightBytesPerSecond = 1e9;  // read and packed by one process

int threads_of(int wanted, int processes, const PlanLimits& limits) {
  return wanted > 0 ? wanted : std::max(1, limits.cores / std::max(1, processes));
}

double divided(double count, double by) { return by > 0 ? count / by : 0.0; }

class Times {
 public:
  Times(const Plan& plan,
        const Costs& costs,
        const Recipe& recipe,
        const PlanTokens& tokens,
        const PlanLimits& limits)
      : plan_(plan), costs_(costs), recipe_(recipe), tokens_(tokens), limits_(limits) {}

  [[nodiscard]] StageEstimate capture() const {
    int layers = 0;
    const int last = plan_.last_boundary();
    for (const BlockPlan& block : plan_.blocks) layers += block.block < last ? block.num_layers : 0;
    const double tokens =
        static_cast<double>(plan_.capture.num_sequences() * tokens_.transfer.seq_len);
    const Work work = tokens * layers * costs_.layer_forward(tokens_.transfer.seq_len);
    const int pieces = (plan_.capture.num_shards() + plan_.shards_per_capture - 1) /
                       std::max(1, plan_.shards_per_capture);
    const int busy = std::min(workers(), pieces);
    if (!plan_.captures) return {"capture"};
    const double start = kWorkerStartSeconds + kTaskSeconds * last;
    return timed("capture", work, cores_of(busy), start + loading(layers * costs_.layer_bytes()));
  }

  // A block is one worker's: with fewer blocks than workers some have none.
  [[nodiscard]] StageEstimate transfer() const {
    int blocks = 0, layers = 0;
    for (const BlockPlan& block : plan_.blocks) {
      blocks += block.trains ? 1 : 0;
      layers += block.trains ? block.num_layers : 0;
    }
    const storage::TransferSection& transfer = recipe_.transfer;
    const double validations = transfer.max_steps / transfer.validate_every + 1.0;
    const double seq_len = static_cast<double>(tokens_.transfer.seq_len);
    const Work work =
        layers * seq_len *
        (1.0 * transfer.max_steps * transfer.sequences_per_step *
             costs_.layer_transfer(tokens_.transfer.seq_len) +
         validations * transfer.validation_sequences *
             (costs_.layer_forward(tokens_.transfer.seq_len) + costs_.layer_student()));
    const int rounds = (blocks + workers() - 1) / workers();
    const double start = plan_.captures ? 0.0 : kWorkerStartSeconds;
    const double busy = divided(blocks, rounds);  // on the average
    return timed(
        "transfer",
        work,
        cores_of(busy),
        start + rounds * kTaskSeconds + divided(loading(layers * costs_.layer_bytes()), busy));
  }

  [[nodiscard]] StageEstimate assemble() const { return timed("assemble", {}, 1.0, kTaskSeconds); }

  [[nodiscard]] StageEstimate logits() const {
    const storage::CapturePlan& sequences = plan_.logits->sequences;
    const int first =
        plan_.logits->from_boundary
            ? plan_.blocks[static_cast<std::size_t>(plan_.last_boundary())].first_layer
            : 0;
    const int layers = plan_.num_layers - first;
    const Work work = static_cast<double>(sequences.num_sequences() * tokens_.finetune.seq_len) *
                      (layers * costs_.layer_forward(tokens_.finetune.seq_len) + costs_.head());
    const int busy = std::min(workers(), plan_.num_logit_pieces);
    const int rounds = (plan_.num_logit_pieces + busy - 1) / busy;
    return timed("logits",
                 work,
                 cores_of(busy),
                 rounds * (kTaskSeconds + loading(layers * costs_.layer_bytes())));
  }

  // Each rank holds the whole base; the workers end before it and start again after.
  [[nodiscard]] StageEstimate finetune() const {
    const storage::FinetuneSection& finetune = recipe_.finetune;
    // At the end, before the first step, and between.
    const double validations =
        finetune.validate_every == 0
            ? 1.0
            : 2.0 + (finetune.max_steps - 1) / finetune.validate_every;  // whole ones
    const auto validation = tokens_.finetune.num_sequences - tokens_.finetune.num_train;
    const double seq_len = static_cast<double>(tokens_.finetune.seq_len);
    const Work work =
        seq_len *
        (1.0 * finetune.max_steps * finetune.sequences_per_step * costs_.model_training() +
         validations * static_cast<double>(validation) * costs_.model_student());
    const int threads = threads_of(finetune.threads, finetune.ranks, limits_);
    return timed("finetune",
                 work,
                 std::min<double>(finetune.ranks * threads, limits_.cores),
                 kRankStartSeconds + kWorkerStartSeconds + loading(costs_.model_bytes()));
  }

  // Teacher, student, and student with LoRA, one after the other, each by one worker. Of the
  // student without LoRA each layer's error is measured too.
  [[nodiscard]] StageEstimate evaluate() const {
    const std::int64_t sequences = tokens_.evaluated(recipe_.evaluate.max_sequences);
    const double students = plan_.finetunes ? 2.0 : 1.0;
    const bool has_control = recipe_.attention.window != storage::WindowLayout::kNone;
    // Columns of the three: the teacher stands in each, the control too, and with LoRA also the
    // student with its linear branch off.
    const double columns = plan_.finetunes ? (has_control ? 2.0 + 3.0 + 4.0 : 1.0 + 2.0 + 2.0)
                                           : (has_control ? 2.0 + 3.0 : 1.0 + 2.0);
    const Work work = static_cast<double>(sequences * tokens_.evaluate.seq_len) *
                      (columns * costs_.model_forward(tokens_.evaluate.seq_len) +
                       (1.0 + students) * plan_.num_layers * costs_.layer_student());
    return timed("evaluate",
                 work,
                 cores_of(1),
                 (1.0 + students) * (kTaskSeconds + loading(costs_.model_bytes())));
  }

 private:
  [[nodiscard]] int workers() const { return std::max(1, limits_.local_workers); }
  // Of workers that are at work at once.
  [[nodiscard]] double cores_of(double busy) const {
    return std::min<double>(busy * threads_of(recipe_.workers.threads, workers(), limits_),
                            limits_.cores);
  }
  [[nodiscard]] static double loading(double bytes) { return bytes / kWeightBytesPerSecond; }

  [[nodiscard]] StageEstimate timed(const char* stage,
                                    const Work& work,
                                    double cores,
                                    double start) const {
    if (!limits_.core.is_known()) return {stage, work.flops(), 0.0};
    return {stage, work.flops(), start + divided(work.seconds(limits_.core), cores)};
  }

  const Plan& plan_;
  const Costs& costs_;
  const Recipe& recipe_;
  const PlanTokens& tokens_;
  const PlanLimits& limits_;
};

}  // namespace

std::vector<StageEstimate> estimate_times(const Plan& plan,
                                          const Costs& costs,
                                          const Recipe& recipe,
                                          const PlanTokens& tokens,
                                          const PlanLimits& limits) {
  const Times times(plan, costs, recipe, tokens, limits);
  std::vector<StageEstimate> estimates{times.capture(), times.transfer(), times.assemble()};
  if (plan.logits) estimates.push_back(times.logits());
  if (plan.finetunes) estimates.push_back(times.finetune());
  if (plan.evaluates) estimates.push_back(times.evaluate());
  return estimates;
}

int shards_per_capture(const Plan& plan,
                       const Costs& costs,
                       const Recipe& recipe,
                       const PlanTokens& tokens,
                       const PlanLimits& limits) {
  const int shards = plan.capture.num_shards(), workers = std::max(1, limits.local_workers);
  const double layers_and_tokens =
      static_cast<double>(plan.capture.sequences_per_shard * tokens.transfer.seq_len) *
      plan.blocks.front().num_layers;
  const Work work = layers_and_tokens * costs.layer_forward(tokens.transfer.seq_len);
  const int threads = threads_of(recipe.workers.threads, workers, limits);
  const double seconds =
      limits.core.is_known() ? work.seconds(limits.core) / threads : work.flops() / kUnknownFlops;
  const int by_time = static_cast<int>(std::clamp(kCaptureTaskSeconds / seconds, 1.0, 1e6));
  return std::clamp(std::min(by_time, shards / (2 * workers)), 1, std::max(1, shards));
}

double tokenizing_seconds(std::uint64_t text_bytes) {
  return kTokenizerStartSeconds + static_cast<double>(text_bytes) / kTextBytesPerSecond;
}

}  // namespace hedgerow::coordinator
