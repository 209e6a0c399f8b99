#include "coordinator/simulate/simulation.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <queue>
#include <set>
#include <unordered_map>
#include <utility>

#include "coordinator/dispatch/actions.hpp"
#include "coordinator/dispatch/unschedulable_tasks.hpp"
#include "coordinator/state/state.hpp"
#include "storage/base/error.hpp"
#include "storage/base/philox.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::Error;
using storage::ErrorKind;
using storage::PhiloxStream;

// How far a checkpoint is, as its step: in parts of its task, because workers differ in speed.
constexpr double kPartsOfATask = 1e9;
constexpr std::uint32_t kFailureStream = 1;  // of PhiloxStream
// A run that sees more of them does not get ahead.
constexpr int kMostNodeFailures = 100'000;

// Exponential with mean 1, by comparisons alone (von Neumann 1951): logarithms differ in their last
// bit from library to library.
double exponential(PhiloxStream& random) {
  for (double whole = 0.0;; whole += 1.0) {
    const double first = random.uniform();
    bool run_is_odd = true;  // the length of the falling run that begins with `first`
    double last = first;
    for (double next = random.uniform(); next < last; next = random.uniform()) {
      last = next;
      run_is_odd = !run_is_odd;
    }
    if (run_is_odd) return whole + first;
  }
}

double checked_seconds(double value, const std::string& of) {
  if (std::isfinite(value) && value >= 0.0) return value;
  throw Error(ErrorKind::kUsage,
              "simulation: " + of + " is " + std::to_string(value) +
                  " s, expected a finite time of 0 or more");
}

void check_count(int count, int least, const std::string& field) {
  if (count >= least) return;
  throw Error(ErrorKind::kUsage,
              "simulation: " + field + " is " + std::to_string(count) + ", expected " +
                  std::to_string(least) + " or more");
}

void check_input(const SimulationInput& input) {
  check_count(input.geometry.num_layers, 1, "geometry.num_layers");
  check_count(input.geometry.layers_per_block, 1, "geometry.layers_per_block");
  check_count(input.geometry.num_shards, 1, "geometry.num_shards");
  check_count(input.geometry.shards_per_capture, 1, "geometry.shards_per_capture");
  if (input.workers.empty())
    throw Error(ErrorKind::kUsage, "simulation: there are no workers; name at least one kind");
  for (std::size_t i = 0; i < input.workers.size(); ++i) {
    const SimulatedWorkers& kind = input.workers[i];
    const std::string field = "workers[" + std::to_string(i) + "].";
    check_count(kind.nodes, 1, field + "nodes");
    check_count(kind.workers_per_node, 1, field + "workers_per_node");
    check_count(kind.gpus_per_worker, 0, field + "gpus_per_worker");
    checked_seconds(kind.mean_seconds_between_failures, field + "mean_seconds_between_failures");
  }
  checked_seconds(input.checkpoint_seconds, "checkpoint_seconds");
  checked_seconds(input.lease_seconds, "lease_seconds");
  checked_seconds(input.restart_seconds, "restart_seconds");
  check_count(input.finetune_nodes, 1, "finetune_nodes");
  check_count(input.finetune_gpus, 0, "finetune_gpus");
}

struct Node {
  std::size_t kind = 0;
  std::size_t first_worker = 0;
  PhiloxStream failures;
  bool is_up = true;
};

struct Worker {
  std::size_t node = 0;
  std::uint64_t token = 0;  // of what it works on; 0: of nothing
};

struct Attempt {
  TaskId id;
  std::vector<std::size_t> workers;
  double began = 0.0;
  double whole_seconds = 0.0;  // of all of the task
  double gpus = 0.0;
  bool is_dead = false;  // though its lease still runs
};

enum class MomentKind { kTaskEnds, kLeaseEnds, kNodeFails, kNodeIsBack };

struct Moment {
  double time = 0.0;
  std::uint64_t order = 0;  // of those at one time
  MomentKind kind = MomentKind::kTaskEnds;
  std::uint64_t subject = 0;  // token or node
  bool operator>(const Moment& other) const {
    return std::pair(time, order) > std::pair(other.time, other.order);
  }
};

class Simulator {
 public:
  explicit Simulator(const SimulationInput& input) : input_(input) {
    for (std::size_t kind = 0; kind < input.workers.size(); ++kind) {
      for (int i = 0; i < input.workers[kind].nodes; ++i) add_node(kind);
    }
    record(RunStarted{input.geometry, "simulation"});
  }

  Simulation run() {
    while (true) {
      if (has_news_) settle();
      if (is_over_) return result();
      offer();
      if (moments_.empty())
        throw Error(ErrorKind::kInternal, "simulation: nothing happens any more");
      for (std::size_t i = 0; i < stages_.size(); ++i) {
        if (state_.index.count(static_cast<Stage>(i), TaskState::kGranted) > 0)
          stages_[i].granted_seconds += moments_.top().time - now_;
      }
      now_ = moments_.top().time;
      while (!moments_.empty() && moments_.top().time == now_) {
        const Moment moment = moments_.top();
        moments_.pop();
        happen(moment);
      }
    }
  }

 private:
  [[nodiscard]] const SimulatedWorkers& kind_of(const Node& node) const {
    return input_.workers[node.kind];
  }

  void add_node(std::size_t kind) {
    const std::size_t number = nodes_.size();
    nodes_.push_back(
        {kind,
         workers_.size(),
         PhiloxStream(input_.seed, kFailureStream, static_cast<std::uint32_t>(number), 0)});
    const SimulatedWorkers& workers = input_.workers[kind];
    for (int i = 0; i < workers.workers_per_node; ++i) {
      idle_.insert(workers_.size());
      workers_.push_back({number});
      views_.push_back({workers.name + "-" + std::to_string(number) + "-" + std::to_string(i),
                        workers.memory_bytes});
    }
    await_failure(number);
  }

  void schedule(double after, MomentKind kind, std::uint64_t subject) {
    moments_.push({now_ + after, next_order_++, kind, subject});
  }

  void await_failure(std::size_t number) {
    Node& node = nodes_[number];
    const double mean = kind_of(node).mean_seconds_between_failures;
    if (mean > 0.0) schedule(mean * exponential(node.failures), MomentKind::kNodeFails, number);
  }

  void record(const Event& event) {
    if (const auto rejection = apply(state_, event))
      throw Error(ErrorKind::kInternal,
                  "simulation: " + std::string(type_of(event)) + " rejected: " + rejection->reason);
  }

  void happen(const Moment& moment) {
    switch (moment.kind) {
      case MomentKind::kTaskEnds:
        return finish(moment.subject);
      case MomentKind::kLeaseEnds:
        return end_lease(moment.subject);
      case MomentKind::kNodeFails:
        return fail_node(moment.subject);
      case MomentKind::kNodeIsBack:
        return restart_node(moment.subject);
    }
  }

  // As Coordinator::act, until there is nothing more to do now.
  void settle() {
    has_news_ = false;
    for (bool acted = true; acted && !is_over_;) {
      acted = false;
      for (const Misfit& misfit : misfits(state_, views_, input_.needs)) {
        record(Quarantined{misfit.task, describe(misfit)});
      }
      for (const Intent& intent : actions_for(state_, input_.keep)) acted |= act(intent);
    }
  }

  // False: it has to wait.
  bool act(const Intent& intent) {
    switch (intent.kind) {
      case IntentKind::kAssemble: {
        const std::uint64_t token = begin(intent.task, "coordinator", {}, 0.0);
        finish(token);
        return true;
      }
      case IntentKind::kLaunchFinetune:
        return launch_finetune();
      case IntentKind::kDropBoundary:
        record(BoundaryDropped{intent.boundary});
        return true;
      case IntentKind::kDropLogits:
        record(LogitsDropped{});
        return true;
      case IntentKind::kRecapture:
        record(Recaptured{intent.task, intent.reason});
        return true;
      case IntentKind::kReseed:  // nothing fails for its seed here
      case IntentKind::kQuarantine:
        record(Quarantined{intent.task, intent.reason});
        return true;
      case IntentKind::kFinish:
        is_over_ = true;
        is_done_ = intent.phase == RunPhase::kDone;
        return true;
    }
    return false;
  }

  // On the first nodes that are up; it needs the machine to itself.
  bool launch_finetune() {
    const auto wanted = static_cast<std::size_t>(input_.finetune_nodes);
    if (wanted > nodes_.size()) {
      record(Quarantined{TaskId::finetune(),
                         "it wants " + std::to_string(wanted) + " nodes, the cluster has " +
                             std::to_string(nodes_.size())});
      return true;
    }
    std::vector<std::size_t> workers;
    std::size_t num_nodes = 0;
    for (std::size_t i = 0; i < workers_.size() && num_nodes < wanted; ++i) {
      const Node& node = nodes_[workers_[i].node];
      if (!node.is_up) continue;
      workers.push_back(i);
      const auto last =
          node.first_worker + static_cast<std::size_t>(kind_of(node).workers_per_node) - 1;
      if (i == last) ++num_nodes;
    }
    if (num_nodes < wanted || !state_.grants.empty()) return false;
    begin(TaskId::finetune(), kMpiHolder, std::move(workers), input_.finetune_gpus);
    return true;
  }

  // Tasks for idle workers, as they would ask for them.
  void offer() {
    const TaskId finetune = TaskId::finetune();
    if (state_.index.ready.contains(finetune) || state_.index.tokens_of.contains(kMpiHolder))
      return;
    std::vector<bool> has_none(input_.workers.size());  // by kind
    for (auto next = idle_.begin(); next != idle_.end();) {
      const std::size_t index = *next++;  // begin() takes it out of idle_
      const Node& node = nodes_[workers_[index].node];
      if (has_none[node.kind]) continue;
      const auto id = choose_task(state_, views_[index], views_, input_.needs, input_.keep);
      if (id) {
        begin(*id, views_[index].uuid, {index}, kind_of(node).gpus_per_worker);
      } else {
        // Equal workers get equal answers: what they hold only decides between tasks.
        has_none[node.kind] = true;
      }
    }
  }

  [[nodiscard]] SimulatedStage& stage_of(const TaskId& id) {
    return stages_[static_cast<std::size_t>(id.stage)];
  }

  // The share of the task that no earlier attempt left done.
  [[nodiscard]] double open_share(const TaskId& id) const {
    if (id.stage != Stage::kCapture)
      return std::max(0.0, 1.0 - static_cast<double>(first_step(state_.task(id))) / kPartsOfATask);
    const auto boundary = static_cast<std::size_t>(id.block) + 1;
    const auto piece = static_cast<std::size_t>(id.piece);
    return static_cast<double>(state_.index.boundaries[boundary].missing_of_piece[piece]) /
           shards_of_piece(*state_.geometry, id.piece).count;
  }

  std::uint64_t begin(const TaskId& id,
                      const std::string& holder,
                      std::vector<std::size_t> workers,
                      double gpus) {
    const std::uint64_t token = state_.last_token + 1;
    const double whole =
        workers.empty()
            ? 0.0
            : checked_seconds(input_.task_seconds(id, nodes_[workers_[workers.front()].node].kind),
                              "task_seconds of " + to_string(id));
    const bool holds = input_.load_seconds && !workers.empty() && id.block >= 0 &&
                       views_[workers.front()].held_block == id.block;
    const double loaded =
        holds
            ? checked_seconds(input_.load_seconds(id, nodes_[workers_[workers.front()].node].kind),
                              "load_seconds of " + to_string(id))
            : 0.0;
    record(Granted{id, token, holder, 1, ""});
    for (const std::size_t worker : workers) {
      workers_[worker].token = token;
      idle_.erase(worker);
    }
    SimulatedStage& stage = stage_of(id);
    if (!has_begun_[static_cast<std::size_t>(id.stage)]) stage.first_start = now_;
    has_begun_[static_cast<std::size_t>(id.stage)] = true;
    if (!workers.empty())
      schedule(std::max(0.0, whole - loaded) * open_share(id), MomentKind::kTaskEnds, token);
    attempts_[token] = {id, std::move(workers), now_, whole, gpus};
    return token;
  }

  void commit_shards(const Attempt& attempt, std::uint64_t token, int at_most) {
    const ShardRange range = shards_of_piece(*state_.geometry, attempt.id.piece);
    const int boundary = attempt.id.block + 1;
    for (int shard = range.first; shard < range.first + range.count && at_most > 0; ++shard) {
      const auto& records = state_.shards[static_cast<std::size_t>(boundary)];
      if (records[static_cast<std::size_t>(shard)].state == ShardState::kCommitted) continue;
      record(ShardCommitted{token, shard, {}, attempt.id});
      --at_most;
    }
  }

  // What the attempt took until now: `kept` seconds of it led somewhere.
  void account(const Attempt& attempt, double kept) {
    const double lost = std::max(0.0, now_ - attempt.began - kept);
    const auto workers = static_cast<double>(attempt.workers.size());
    stage_of(attempt.id).busy_worker_seconds += kept * workers;
    stage_of(attempt.id).busy_gpu_seconds += kept * attempt.gpus;
    stage_of(attempt.id).lost_worker_seconds += lost * workers;
    gpu_seconds_useful_ += kept * attempt.gpus;
    gpu_seconds_lost_ += lost * attempt.gpus;
  }

  void finish(std::uint64_t token) {
    const auto found = attempts_.find(token);
    if (found == attempts_.end() || found->second.is_dead) return;
    const Attempt attempt = std::move(found->second);
    attempts_.erase(found);
    const TaskId& id = attempt.id;
    if (id.stage == Stage::kCapture) commit_shards(attempt, token, std::numeric_limits<int>::max());
    record(TaskDone{token, {}, nullptr, id});
    account(attempt, now_ - attempt.began);
    stage_of(id).last_end = now_;
    ++stage_of(id).tasks;
    set_idle(attempt.workers, id.block);
    has_news_ = has_news_ || !is_one_of_many(id) || state_.grants.empty();
  }

  // The intents walk all boundaries, and follow from the last piece of a boundary or of a kind that
  // is dropped.
  [[nodiscard]] bool is_one_of_many(const TaskId& id) const {
    if (id.stage == Stage::kCapture) return !boundary_complete(state_, id.block + 1);
    return wire::read_by(id.stage) &&
           state_.index.count(id.stage, TaskState::kDone) < state_.index.total(id.stage);
  }

  void set_idle(const std::vector<std::size_t>& workers, int held_block) {
    for (const std::size_t worker : workers) {
      if (!nodes_[workers_[worker].node].is_up) continue;
      workers_[worker].token = 0;
      views_[worker].held_block = held_block;
      idle_.insert(worker);
    }
  }

  // Leaves what the attempt had committed; the coordinator does not know of its end yet.
  void kill(Attempt& attempt, std::uint64_t token) {
    attempt.is_dead = true;
    const double elapsed = now_ - attempt.began;
    double kept = 0.0;
    if (attempt.id.stage == Stage::kCapture) {
      const double of_one =
          attempt.whole_seconds / shards_of_piece(*state_.geometry, attempt.id.piece).count;
      const double shards = of_one > 0.0 ? std::floor(elapsed / of_one) : 0.0;
      kept = shards * of_one;
      commit_shards(attempt, token, static_cast<int>(shards));
    } else if (wire::has_checkpoints(attempt.id.stage)) {
      const double every = input_.checkpoint_seconds;
      kept = every > 0.0 ? std::floor(elapsed / every) * every : elapsed;
      if (kept > 0.0) {
        const auto parts = std::llround(kept / attempt.whole_seconds * kPartsOfATask);
        record(CheckpointCommitted{
            token, first_step(state_.task(attempt.id)) + parts, {}, attempt.id});
      }
    }
    account(attempt, kept);
    // Sooner if its worker is back and says hello.
    const double noticed = std::min(input_.lease_seconds, input_.restart_seconds);
    schedule(noticed, MomentKind::kLeaseEnds, token);
  }

  void fail_node(std::size_t number) {
    Node& node = nodes_[number];
    node.is_up = false;
    ++failures_;
    for_each_worker(node, [this](std::size_t index) {
      const std::uint64_t token = std::exchange(workers_[index].token, 0);
      idle_.erase(index);
      const auto attempt = attempts_.find(token);
      if (attempt != attempts_.end() && !attempt->second.is_dead) kill(attempt->second, token);
    });
    if (failures_ >= kMostNodeFailures) is_over_ = true;
    schedule(input_.restart_seconds, MomentKind::kNodeIsBack, number);
  }

  void end_lease(std::uint64_t token) {
    const auto attempt = attempts_.find(token);
    if (attempt->second.id.stage == Stage::kFinetune) {
      record(TaskFailed{token, ErrorKind::kUnavailable, "a node of its ranks died"});
    } else {
      record(LeaseRevoked{token, "no heartbeat", /*expired=*/true});
    }
    set_idle(attempt->second.workers, -1);
    attempts_.erase(attempt);
    has_news_ = true;
  }

  void restart_node(std::size_t number) {
    Node& node = nodes_[number];
    node.is_up = true;
    for_each_worker(node, [this](std::size_t index) { set_idle({index}, -1); });
    has_news_ = has_news_ || state_.index.ready.contains(TaskId::finetune());  // waits for nodes
    await_failure(number);
  }

  template <typename F>
  void for_each_worker(const Node& node, const F& f) {
    const auto count = static_cast<std::size_t>(kind_of(node).workers_per_node);
    for (std::size_t i = 0; i < count; ++i) f(node.first_worker + i);
  }

  // The first task in its order that kept the run from its end.
  [[nodiscard]] std::string problem() const {
    const bool is_endless = failures_ >= kMostNodeFailures;
    const TaskRecord* first = nullptr;
    int count = 0;
    for (const auto& [id, task] : state_.tasks) {
      const bool is_open = task.state == TaskState::kPending || task.state == TaskState::kGranted;
      if (task.state != TaskState::kQuarantined && !(is_endless && is_open)) continue;
      if (count++ == 0) first = &task;
    }
    if (first == nullptr)
      throw Error(ErrorKind::kInternal, "simulation: the run is partial, and no task was given up");
    const std::string why =
        is_endless ? "is not done after " + std::to_string(failures_) + " failures of nodes"
                   : "is given up: " + first->reason;
    return to_string(first->id) + " " + why +
           (count > 1 ? " (and " + std::to_string(count - 1) + " tasks more)" : "");
  }

  [[nodiscard]] Simulation result() const {
    constexpr double kSecondsAnHour = 3600.0;
    Simulation out;
    out.makespan_seconds = now_;
    out.failures = failures_;
    out.finished = is_done_;
    if (!is_done_) out.problem = problem();
    double busy = 0.0, gpus = 0.0;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const auto& counts = state_.index.counts[i];
      if (std::all_of(counts.begin(), counts.end(), [](int count) { return count == 0; })) continue;
      out.stages.push_back(stages_[i]);
      out.stages.back().stage = static_cast<Stage>(i);
      busy += stages_[i].busy_worker_seconds;
    }
    for (const Worker& worker : workers_) gpus += kind_of(nodes_[worker.node]).gpus_per_worker;
    if (now_ > 0.0) out.utilization = busy / (static_cast<double>(workers_.size()) * now_);
    out.gpu_hours_held = gpus * now_ / kSecondsAnHour;
    out.gpu_hours_useful = gpu_seconds_useful_ / kSecondsAnHour;
    out.gpu_hours_lost = gpu_seconds_lost_ / kSecondsAnHour;
    return out;
  }

  const SimulationInput& input_;
  State state_;
  std::vector<Node> nodes_;
  std::vector<Worker> workers_;
  std::vector<WorkerView> views_;  // as workers_; dead ones too, until they are back
  std::set<std::size_t> idle_;     // of workers_; none of a node that is down
  std::unordered_map<std::uint64_t, Attempt> attempts_;  // by token, until their lease ends
  std::priority_queue<Moment, std::vector<Moment>, std::greater<>> moments_;
  std::uint64_t next_order_ = 0;
  double now_ = 0.0;
  int failures_ = 0;
  bool has_news_ = true;  // that the intents may follow from
  bool is_over_ = false, is_done_ = false;
  std::array<SimulatedStage, kNumStages> stages_;
  std::array<bool, kNumStages> has_begun_{};
  double gpu_seconds_useful_ = 0.0, gpu_seconds_lost_ = 0.0;
};

}  // namespace

Simulation simulate(const SimulationInput& input) {
  check_input(input);
  return Simulator(input).run();
}

}  // namespace hedgerow::coordinator
