#include "coordinator/plan/plan_times.hpp"

#include <algorithm>
#include <cmath>
#include <queue>

#include "coordinator/plan/plan_costs.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::Recipe;

// A capture task should take about a minute: long enough that its grant and the loading of a
// block's weights do not matter, short enough that a lost worker costs little.
constexpr double kCaptureTaskSeconds = 60.0;
constexpr double kUnknownFlops = 1e12;  // of a worker, for the size of such a task alone

// As SmolLM2's first four layers and a model of 0.2 M parameters took on two cores of an EPYC.
constexpr double kRankStartSeconds = 1.0;  // mpirun, LibTorch, MPI's own start
constexpr double kTaskSeconds = 0.05;      // grant, files, commit
constexpr double kTokenizerStartSeconds = 0.4;
constexpr double kTextBytesPerSecond = 1e6;
constexpr double kSecondsPerHour = 3600.0;

double divided(double count, double by) { return by > 0 ? count / by : 0.0; }

// Work that one worker does, and bytes that it reads meanwhile and before.
struct Job {
  Work work{};
  double read_ahead = 0.0;  // hidden through prefetching
  double loaded = 0.0;      // weights, before it begins
};

// What a stage took: wall seconds, and seconds of GPUs that were at work.
struct Taken {
  double seconds = 0.0, gpu_seconds = 0.0;
};

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
    const Job job{
        capture_work(layers, plan_.capture.num_sequences()), 0.0, layers * costs_.layer_bytes()};
    if (!plan_.captures) return {Stage::kCapture};
    const int pieces = pieces_of(plan_.capture.num_shards(), plan_.shards_per_capture);
    Taken taken = spread(job, pieces, plan_.capture_memory_bytes);
    const double disk =
        disk_seconds((2.0 * last - 1.0) * static_cast<double>(plan_.boundary_bytes));
    taken.seconds = start() + kTaskSeconds * last + std::max(taken.seconds, disk);
    StageEstimate estimate = told(Stage::kCapture, job.work, taken, plan_.capture_memory_bytes);
    estimate.disk_seconds = disk;
    return estimate;
  }

  // A block is one worker's: with fewer blocks than workers some have none.
  [[nodiscard]] StageEstimate transfer() const {
    std::vector<Job> jobs;
    Work all;
    double read = 0.0;
    for (const BlockPlan& block : plan_.blocks) {
      if (!block.trains) continue;
      jobs.push_back(transfer_job(block));
      all = all + jobs.back().work;
      read += jobs.back().read_ahead;
    }
    Taken taken = one_by_one(jobs, plan_.transfer_memory_bytes);
    taken.seconds = std::max(taken.seconds, disk_seconds(read)) + (plan_.captures ? 0.0 : start());
    StageEstimate estimate = told(Stage::kTransfer, all, taken, plan_.transfer_memory_bytes);
    estimate.disk_seconds = disk_seconds(read);
    return estimate;
  }

  [[nodiscard]] StageEstimate assemble() const {
    return told(Stage::kAssemble, {}, {kTaskSeconds, 0.0}, 0);
  }

  [[nodiscard]] StageEstimate logits() const {
    const Job job = logits_job(plan_.logits->sequences.num_sequences());
    const int busy = std::min(num_workers(), plan_.num_logit_pieces);
    const int rounds = pieces_of(plan_.num_logit_pieces, std::max(1, busy));
    Taken taken = spread(job, plan_.num_logit_pieces, plan_.logits_memory_bytes);
    taken.seconds += rounds * kTaskSeconds;
    return told(Stage::kLogits, job.work, taken, plan_.logits_memory_bytes);
  }

  // The workers end before it and start again after.
  [[nodiscard]] StageEstimate finetune() const {
    const storage::FinetuneSection& finetune = recipe_.finetune;
    const MeshPlan& mesh = plan_.mesh;
    const double seq_len = static_cast<double>(tokens_.finetune.seq_len);
    const double trained = 1.0 * finetune.max_steps * finetune.sequences_per_step;
    const auto validated =
        static_cast<double>(tokens_.finetune.num_sequences - tokens_.finetune.num_train);
    const Work all = seq_len * (trained * costs_.model_training(mesh.recomputes) +
                                validations() * validated * costs_.model_student());
    if (mesh.step_seconds == 0.0)
      return told(Stage::kFinetune, all, {}, plan_.finetune_memory_bytes);
    const WorkerKind& kind = limits_.workers[mesh.kind];
    Taken taken;
    taken.seconds = kRankStartSeconds + kind.worker_start_seconds +
                    static_cast<double>(mesh.read_bytes) / kind.disk_bytes_per_second +
                    finetune.max_steps * mesh.step_seconds +
                    validations() * mesh.validation_seconds;
    taken.gpu_seconds = kind.on_gpu ? finetune.ranks * taken.seconds : 0.0;
    return told(Stage::kFinetune, all, taken, plan_.finetune_memory_bytes);
  }

  // A piece of a subject is one worker's, all of them beside one another. (The teacher's may find a
  // worker idle before; the simulation tells.) Workers of a node read the model together.
  [[nodiscard]] StageEstimate evaluate() const {
    const std::vector<Job> jobs = evaluate_jobs(plan_.num_evaluate_pieces);
    Work all;
    double reads = 0.0;
    for (const Job& job : jobs) {
      all = all + job.work;
      reads = std::max(reads, job.loaded);
    }
    int nodes = 0;
    for (const WorkerKind& kind : limits_.workers) nodes += kind.nodes;
    Taken taken = one_by_one(jobs, plan_.evaluate_memory_bytes);
    const double disk =
        disk_seconds(std::min<double>(nodes, static_cast<double>(jobs.size())) * reads);
    taken.seconds = std::max(taken.seconds, disk);
    StageEstimate estimate = told(Stage::kEvaluate, all, taken, plan_.evaluate_memory_bytes);
    estimate.disk_seconds = disk;
    return estimate;
  }

  // The fewest pieces of each subject with which the evaluations end as early as can be, but for a
  // quarter: a piece reads the whole model.
  [[nodiscard]] int evaluate_pieces() const {
    constexpr int kMostPieces = 256;
    constexpr double kTie = 1.25;
    // With variants the transfer's is much the longest.
    const int subjects = !recipe_.variants.empty() ? 1 : plan_.finetunes ? 3 : 2;
    const int share = std::min({num_workers() / subjects, num_evaluated(), kMostPieces});
    if (share < 2) return 0;
    if (!plan_.knows_times()) {
      const int groups = static_cast<int>(costs_.evaluate_reads(num_evaluated(), on_gpu()));
      return std::min(share, groups) < 2 ? 0 : std::min(share, groups);
    }
    std::vector<double> seconds;
    for (int pieces = 1; pieces <= share; ++pieces)
      seconds.push_back(one_by_one(evaluate_jobs(pieces), plan_.evaluate_memory_bytes).seconds);
    const double least = *std::ranges::min_element(seconds);
    const auto first = std::ranges::find_if(seconds, [&](double of) { return of <= kTie * least; });
    const int pieces = static_cast<int>(first - seconds.begin()) + 1;
    return pieces < 2 ? 0 : pieces;
  }

  // Seconds of one task.
  [[nodiscard]] double task(const TaskId& id, const WorkerKind& kind) const {
    switch (id.stage) {
      case Stage::kCapture: {
        const std::int64_t sequences = sequences_of_piece(id.piece);
        const int layers = plan_.blocks[static_cast<std::size_t>(id.block)].num_layers;
        return job_seconds(
            kind,
            {capture_work(layers, sequences),
             static_cast<double>(sequences) * static_cast<double>(costs_.sequence_bytes()),
             layers * costs_.layer_bytes()});
      }
      case Stage::kTransfer:
        return job_seconds(kind, transfer_job(plan_.blocks[static_cast<std::size_t>(id.block)]));
      case Stage::kLogits:
        return job_seconds(
            kind,
            logits_job(plan_.logits->from_boundary ? sequences_of_piece(id.piece)
                                                   : plan_.logits->sequences.shard_size(id.piece)));
      case Stage::kEvaluate:
        if (plan_.num_evaluate_pieces > 0 && id.piece < 0) break;  // puts sums together
        return job_seconds(kind, evaluate_job(id.subject, plan_.num_evaluate_pieces));
      case Stage::kFinetune:
        return finetune().seconds;
      case Stage::kAssemble:
        break;
    }
    return kTaskSeconds;
  }

  [[nodiscard]] int num_workers() const {
    int count = 0;
    for (const WorkerKind& kind : limits_.workers) count += kind.workers();
    return std::max(1, count);
  }

  // Seconds of a worker: a GPU, or its threads.
  [[nodiscard]] double worker_seconds(const WorkerKind& kind, const Work& work) const {
    return work.seconds(kind.speed) / kind.units(recipe_.workers.threads, kind.workers_per_node);
  }

 private:
  [[nodiscard]] static int pieces_of(int count, int each) {
    return (count + each - 1) / std::max(1, each);
  }

  [[nodiscard]] std::int64_t sequences_of_piece(int piece) const {
    const int first = piece * plan_.shards_per_capture;
    const int end = std::min(first + plan_.shards_per_capture, plan_.capture.num_shards());
    std::int64_t sequences = 0;
    for (int shard = first; shard < end; ++shard) sequences += plan_.capture.shard_size(shard);
    return sequences;
  }

  [[nodiscard]] Work capture_work(int layers, std::int64_t sequences) const {
    const double tokens = static_cast<double>(sequences * tokens_.transfer.seq_len);
    return tokens * layers * costs_.layer_forward(tokens_.transfer.seq_len);
  }

  [[nodiscard]] Job transfer_job(const BlockPlan& block) const {
    const storage::TransferSection& transfer = recipe_.transfer;
    const double validations = transfer.max_steps / transfer.validate_every + 1.0;
    const std::int64_t seq_len = tokens_.transfer.seq_len;
    const double trained = 1.0 * transfer.max_steps * transfer.sequences_per_step;
    const double validated = validations * transfer.validation_sequences;
    const Work work = block.num_layers * static_cast<double>(seq_len) *
                      (trained * costs_.layer_transfer(seq_len) +
                       validated * (costs_.layer_forward(seq_len) +
                                    recipe_.num_students() * costs_.layer_student()));
    return {work,
            (trained + validated) * static_cast<double>(costs_.sequence_bytes()),
            block.num_layers * costs_.layer_bytes()};
  }

  [[nodiscard]] Job logits_job(std::int64_t sequences) const {
    const int first =
        plan_.logits->from_boundary
            ? plan_.blocks[static_cast<std::size_t>(plan_.last_boundary())].first_layer
            : 0;
    const int layers = plan_.num_layers - first;
    const double tokens = static_cast<double>(sequences * tokens_.finetune.seq_len);
    return {tokens * (layers * costs_.layer_forward(tokens_.finetune.seq_len) + costs_.head()),
            0.0,
            layers * costs_.layer_bytes()};
  }

  // Columns: the teacher stands in each, the two untrained windows too, beside a student with a
  // recall cache the one without, and with LoRA also the student with its linear branch off. Of the
  // student without LoRA each layer's error is measured too.
  [[nodiscard]] Job evaluate_job(Subject subject, int pieces) const {
    const bool has_control = recipe_.attention.window != storage::WindowLayout::kNone;
    double columns = has_control ? 3.0 : 1.0;
    if (subject != Subject::kTeacher) columns += recipe_.attention.recall_cache > 0 ? 2.0 : 1.0;
    if (subject == Subject::kLora && has_control) columns += 1.0;
    if (subject == Subject::kTransfer) columns += costs_.columns_of_variants();
    const double students = subject == Subject::kTransfer ? 2.0 * costs_.students()
                            : subject == Subject::kLora   ? 1.0
                                                          : 0.0;
    const double sequences = std::ceil(1.0 * num_evaluated() / std::max(1, pieces));
    const Work work = sequences * static_cast<double>(tokens_.evaluate.seq_len) *
                      (columns * costs_.model_forward(tokens_.evaluate.seq_len) +
                       students * plan_.num_layers * costs_.layer_student());
    return {work, 0.0, costs_.evaluate_reads(sequences, on_gpu()) * costs_.model_bytes()};
  }

  // Those of all pieces, in the order in which workers are offered them; 0 and 1 piece are whole
  // subjects.
  [[nodiscard]] std::vector<Job> evaluate_jobs(int pieces) const {
    std::vector<Job> jobs;
    for (int piece = 0; piece < std::max(1, pieces); ++piece) {
      if (plan_.finetunes) jobs.push_back(evaluate_job(Subject::kLora, pieces));
      jobs.push_back(evaluate_job(Subject::kTeacher, pieces));
      jobs.push_back(evaluate_job(Subject::kTransfer, pieces));
    }
    return jobs;
  }

  [[nodiscard]] int num_evaluated() const {
    return static_cast<int>(tokens_.evaluated(recipe_.evaluate.max_sequences));
  }

  [[nodiscard]] bool on_gpu() const {
    return std::ranges::any_of(limits_.workers, [](const auto& kind) { return kind.on_gpu; });
  }

  // Before the first step, at the end, and between.
  [[nodiscard]] double validations() const {
    const storage::FinetuneSection& finetune = recipe_.finetune;
    const int between =
        finetune.validate_every == 0 ? 0 : (finetune.max_steps - 1) / finetune.validate_every;
    return finetune.validate_every == 0 ? 1.0 : 2.0 + between;
  }

  [[nodiscard]] double job_seconds(const WorkerKind& kind, const Job& job) const {
    if (!kind.speed.is_known()) return 0.0;
    return kTaskSeconds + job.loaded / kind.disk_bytes_per_second +
           std::max(worker_seconds(kind, job.work), job.read_ahead / kind.disk_bytes_per_second);
  }

  // Those whose memory a task fits; all of them if it fits none, which is refused elsewhere.
  [[nodiscard]] std::vector<const WorkerKind*> able(std::uint64_t need) const {
    std::vector<const WorkerKind*> kinds, all;
    for (const WorkerKind& kind : limits_.workers) {
      all.push_back(&kind);
      const std::uint64_t has = kind.worker_memory_bytes();
      if (has == 0 || need <= has) kinds.push_back(&kind);
    }
    return kinds.empty() ? all : kinds;
  }

  // A job that is cut in `pieces`, of which any worker takes the next: all of them end together.
  [[nodiscard]] Taken spread(const Job& job, int pieces, std::uint64_t need) const {
    if (!plan_.knows_times()) return {};
    std::vector<const WorkerKind*> kinds = able(need);
    const Work unit = job.work;
    std::sort(kinds.begin(), kinds.end(), [&](const WorkerKind* a, const WorkerKind* b) {
      return worker_seconds(*a, unit) < worker_seconds(*b, unit);
    });
    double jobs_a_second = 0.0, gpus = 0.0, loading = 0.0;
    int left = pieces;
    for (const WorkerKind* kind : kinds) {
      const int busy = std::min(left, kind->workers());
      if (busy == 0) break;
      left -= busy;
      jobs_a_second += busy / std::max(1e-12, worker_seconds(*kind, unit));
      gpus += kind->on_gpu ? busy : 0;
      // Each loads all of them, at the same time.
      loading = std::max(loading, job.loaded / kind->disk_bytes_per_second);
    }
    const double seconds = loading + divided(1.0, jobs_a_second);
    return {seconds, gpus * seconds};
  }

  // Jobs of one worker each. In their order, each goes to the worker that would end it first.
  [[nodiscard]] Taken one_by_one(const std::vector<Job>& jobs, std::uint64_t need) const {
    if (!plan_.knows_times()) return {};
    std::vector<std::priority_queue<double, std::vector<double>, std::greater<>>> free;
    const std::vector<const WorkerKind*> kinds = able(need);
    for (const WorkerKind* kind : kinds) {
      const std::vector<double> zeros(
          static_cast<std::size_t>(std::min<int>(kind->workers(), static_cast<int>(jobs.size()))),
          0.0);
      free.emplace_back(std::greater<>(), zeros);
    }
    Taken taken;
    for (const Job& job : jobs) {
      std::size_t best = 0;
      double end = 0.0;
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        const double would_end = free[i].top() + job_seconds(*kinds[i], job);
        if (i > 0 && would_end >= end) continue;
        best = i;
        end = would_end;
      }
      taken.gpu_seconds += kinds[best]->on_gpu ? end - free[best].top() : 0.0;
      free[best].pop();
      free[best].push(end);
      taken.seconds = std::max(taken.seconds, end);
    }
    return taken;
  }

  [[nodiscard]] double disk_seconds(double bytes) const {
    return divided(bytes, limits_.disk_bytes_per_second);
  }
  [[nodiscard]] double start() const {
    double seconds = 0.0;
    for (const WorkerKind& kind : limits_.workers)
      seconds = std::max(seconds, kind.worker_start_seconds);
    return seconds;
  }

  [[nodiscard]] StageEstimate told(Stage stage,
                                   const Work& work,
                                   const Taken& taken,
                                   std::uint64_t memory_bytes) const {
    StageEstimate estimate{stage, work.flops()};
    estimate.memory_bytes = memory_bytes;
    if (!plan_.knows_times()) return estimate;
    estimate.seconds = taken.seconds;
    estimate.gpu_hours = taken.gpu_seconds / kSecondsPerHour;
    for (const WorkerKind& kind : limits_.workers)
      estimate.cost += kind.nodes * kind.price_per_hour * taken.seconds / kSecondsPerHour;
    return estimate;
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

double task_seconds(const Plan& plan,
                    const Costs& costs,
                    const Recipe& recipe,
                    const PlanTokens& tokens,
                    const PlanLimits& limits,
                    const TaskId& task,
                    std::size_t kind) {
  return Times(plan, costs, recipe, tokens, limits).task(task, limits.workers[kind]);
}

int shards_per_capture(const Plan& plan,
                       const Costs& costs,
                       const Recipe& recipe,
                       const PlanTokens& tokens,
                       const PlanLimits& limits) {
  const Times times(plan, costs, recipe, tokens, limits);
  const int shards = plan.capture.num_shards();
  const double layers_and_tokens =
      static_cast<double>(plan.capture.sequences_per_shard * tokens.transfer.seq_len) *
      plan.blocks.front().num_layers;
  const Work work = layers_and_tokens * costs.layer_forward(tokens.transfer.seq_len);
  double seconds = work.flops() / kUnknownFlops;
  if (plan.knows_times()) {
    seconds = 0.0;  // of the slowest
    for (const WorkerKind& kind : limits.workers)
      seconds = std::max(seconds, times.worker_seconds(kind, work));
  }
  const int by_time = static_cast<int>(std::clamp(kCaptureTaskSeconds / seconds, 1.0, 1e6));
  return std::clamp(std::min(by_time, shards / (2 * times.num_workers())), 1, std::max(1, shards));
}

int evaluate_pieces(const Plan& plan,
                    const Costs& costs,
                    const Recipe& recipe,
                    const PlanTokens& tokens,
                    const PlanLimits& limits) {
  return Times(plan, costs, recipe, tokens, limits).evaluate_pieces();
}

double tokenizing_seconds(std::uint64_t text_bytes) {
  return kTokenizerStartSeconds + static_cast<double>(text_bytes) / kTextBytesPerSecond;
}

}  // namespace hedgerow::coordinator
