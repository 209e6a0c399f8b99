// The worker's half of the protocol, as a state machine: frames and the passing of time in, frames
// out. No socket, no thread, no clock of its own, so that CoordinatorClient runs it on a real
// socket and the simulator on a network that loses, doubles and delays.
//
// It survives a vanished coordinator: the task goes on, the session asks for coordinator.json to be
// looked at, greets the coordinator that it names with a backoff of 1 to 32 s, and keeps the lease
// if no other worker was granted it. A submission is repeated until it is answered, one at a time
// and in order; the coordinator answers a repeated one as it did the first. The caller locks.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/wire/messages.hpp"

namespace hedgerow::worker {

struct SessionOptions {
  wire::Hello hello;     // who we are; held is the session's own business
  std::string endpoint;  // where the coordinator was said to be
  std::chrono::milliseconds orphan_timeout{std::chrono::minutes(10)};
  // At most; a coordinator with short leases asks for more of them.
  std::chrono::milliseconds heartbeat{std::chrono::seconds(5)};
  // How long a submission or a hello stays unanswered before it is repeated and the coordinator
  // looked for anew.
  std::chrono::milliseconds reply_timeout{std::chrono::seconds(10)};
  // Once told to stop: a coordinator that is silent for so long is not waited for any more.
  std::chrono::milliseconds stop_timeout{std::chrono::seconds(20)};
  // The MPI stage: the fencing token that it holds from the start.
  std::uint64_t holds = 0;
};

// A message that wants an answer, and the answer.
struct Submission {
  wire::Message message;
  std::string name;  // what Committed will name
  bool answered = false;
  std::optional<wire::Message> answer;
};

class CoordinatorSession {
 public:
  using Time = std::chrono::steady_clock::time_point;

  CoordinatorSession(SessionOptions options, Time now);

  void receive(std::string_view frame, Time now);
  // What is to be sent now, in order, to endpoint().
  [[nodiscard]] std::vector<std::string> tick(Time now);
  // Unless something is received or submitted, no tick and no look before this does anything.
  [[nodiscard]] Time next_due() const;
  [[nodiscard]] const std::string& endpoint() const { return options_.endpoint; }
  // True at most once a second, while no coordinator answers: look at coordinator.json and tell
  // found().
  [[nodiscard]] bool wants_look(Time now);
  void found(std::uint64_t term, const std::string& endpoint, Time now);
  // The connection was lost and is there again: the peer may be the next coordinator.
  void reconnected(Time now);
  // The address cannot be used: as good as out of reach.
  void unreachable(Time now);
  // Something on our side has changed, as the keys: says hello anew, also if it was refused.
  void greet_again(Time now);
  void refuse(const std::string& sentence);  // no coordinator lets us in; the first reason stands

  std::shared_ptr<Submission> submit(wire::Message message, std::string name, Time now);
  void withdraw(const std::shared_ptr<Submission>& submission);
  // Replaces a checkpoint that is still unanswered.
  void checkpointed(const storage::FileRecord& file, std::int64_t step, Time now);
  // No answer will come any more: orphaned, or told to stop while the coordinator is silent.
  [[nodiscard]] bool is_abandoned(Time now) const;

  void begin_task(const wire::Task& granted);
  void end_task();
  void set_progress(const wire::Progress& progress) { progress_ = progress; }
  void set_held_block(int block) { held_block_ = block; }
  void stop(const std::string& reason);  // the first reason stands

  [[nodiscard]] std::uint64_t token() const { return task_ ? task_->fencing_token : 0; }
  [[nodiscard]] bool lease_lost() const { return lost_; }
  [[nodiscard]] std::int64_t committed_step() const { return committed_step_; }
  [[nodiscard]] const std::string& stop_reason() const { return stop_reason_; }
  [[nodiscard]] bool run_is_over() const { return run_is_over_; }        // the coordinator said so
  [[nodiscard]] const std::string& refusal() const { return refusal_; }  // a sentence
  [[nodiscard]] bool is_welcomed() const { return welcomed_; }
  [[nodiscard]] bool was_welcomed() const { return was_welcomed_; }  // ever
  [[nodiscard]] const wire::WorkerId& worker() const { return options_.hello.worker; }

 private:
  struct Receiver;
  [[nodiscard]] bool asks_for_task() const;
  void answer(const wire::Message& message, Time now);
  [[nodiscard]] std::string hello(Time now);

  SessionOptions options_;
  std::deque<std::shared_ptr<Submission>> queue_;
  std::optional<wire::Task> task_;
  wire::Progress progress_;
  int held_block_ = -1;
  bool lost_ = false;  // the current task's lease
  std::int64_t committed_step_ = -1;
  std::string stop_reason_, refusal_;
  bool run_is_over_ = false;
  bool welcomed_ = false, was_welcomed_ = false;
  std::chrono::milliseconds backoff_;
  std::uint64_t seen_term_ = 0;
  std::chrono::milliseconds heartbeat_;
  Time last_heard_, next_look_, next_hello_, next_heartbeat_, next_send_;
};

}  // namespace hedgerow::worker
