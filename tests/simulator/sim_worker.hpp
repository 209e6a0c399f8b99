// A worker process of the simulation: the production protocol
// (worker/client/coordinator_session.hpp) around tasks whose results are numbers that follow from
// their inputs, so that a wrong, stale or missing input shows in the artifacts at the end. It reads
// and writes the virtual disk as a real worker does: inputs verified, files complete before they
// are announced, checkpoints under its own attempt, older ones deleted once a newer one is
// committed.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/host/process.hpp"
#include "storage/files/run_layout.hpp"
#include "tests/simulator/random.hpp"
#include "tests/simulator/values.hpp"
#include "tests/simulator/virtual_disk.hpp"
#include "worker/client/coordinator_session.hpp"

namespace hedgerow::simulator {

using Time = worker::CoordinatorSession::Time;
using std::chrono::milliseconds;

// How long things take, and how much there is to do.
struct WorkLoad {
  milliseconds shard{3000}, step{1500}, evaluation{5000}, loading{1500};
  int transfer_steps = 8, finetune_steps = 8, checkpoint_every = 3;
};

// What chance does to a task, asked at each unit of work.
struct Mishaps {
  double fails = 0.0;      // the task fails, for some reason of its own
  double exhausted = 0.0;  // of these: out of memory or disk
  double hangs = 0.0;      // heartbeats go on, progress does not
  std::string poison;      // the task (as to_string says it) that kills whoever works on it
};

struct WorkerSetup {
  std::string uuid;
  std::uint64_t incarnation = 1;
  std::string host;
  std::string endpoint;
  std::uint64_t holds = 0;  // the MPI stage
  std::uint64_t memory_bytes = 0;
};

class SimWorker {
 public:
  SimWorker(WorkerSetup setup,
            const storage::RunLayout& layout,
            VirtualDisk& disk,
            const WorkLoad& load,
            const Mishaps& mishaps,
            Random& random,
            Time now);

  // Runs what is due. Frames to send, to `endpoint()`.
  std::vector<std::string> step(Time now);
  void deliver(std::string frame) { inbox_.push_back(std::move(frame)); }
  [[nodiscard]] Time next_due() const;

  void terminate() { session_.stop("SIGTERM"); }
  void kill(int signal) { exit_ = {.code = 0, .signal = signal, .known = true}; }
  [[nodiscard]] const std::optional<coordinator::ProcessExit>& exit() const { return exit_; }
  [[nodiscard]] const std::string& endpoint() const { return session_.endpoint(); }
  [[nodiscard]] const WorkerSetup& setup() const { return setup_; }
  [[nodiscard]] bool holds_a_task() const { return session_.token() != 0; }
  [[nodiscard]] bool is_hanging() const { return hangs_; }
  [[nodiscard]] std::string describe() const;  // for whoever looks into a broken seed
  // What coordinator.json says; null: there is none, or this host sees that its process is dead.
  std::function<const wire::CoordinatorFile*()> look;

 private:
  enum class Doing { kAsking, kPausing, kWorking, kSubmitting, kEnding };

  void advance(Time now);
  void ask(Time now);
  void take_answer(Time now);
  void begin(const wire::Task& task, Time now);
  void work(Time now);
  void capture_one(Time now);
  void train_one(Time now);
  void write_logits(Time now);
  void evaluate(Time now);
  void write_checkpoint(Time now);
  void delete_old_checkpoints();
  void submit(wire::Message message, const std::string& name, bool ends_task, Time now);
  void fail(storage::ErrorKind kind,
            const std::string& why,
            std::vector<std::string> damaged,
            Time now);
  void give_back(Time now);
  void drop_task(Time now);
  void leave(int code);
  // The input's value; fails the task if it is missing or damaged.
  std::optional<std::uint64_t> read_input(const storage::FileRecord& record,
                                          const std::string& kind,
                                          Time now);
  std::string write(const std::string& base_name, const std::string& text);
  void report(const std::string& phase);
  [[nodiscard]] std::string subject() const;

  WorkerSetup setup_;
  const storage::RunLayout& layout_;
  VirtualDisk& disk_;
  const WorkLoad& load_;
  const Mishaps& mishaps_;
  Random& random_;
  worker::CoordinatorSession session_;
  std::deque<std::string> inbox_;
  std::optional<coordinator::ProcessExit> exit_;

  Doing doing_ = Doing::kEnding;
  std::shared_ptr<worker::Submission> submission_;
  bool submission_ends_task_ = false;
  Time due_;  // of the next unit of work, or the end of a pause
  wire::Task task_;
  bool loaded_ = false, hangs_ = false;
  int unit_ = 0;  // shards written, steps done
  std::uint64_t value_ = 0;
  std::deque<std::pair<std::int64_t, std::string>> checkpoints_;  // step, path
};

}  // namespace hedgerow::simulator
