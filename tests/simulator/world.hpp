// One simulated run: hosts with processes, a network, a disk, workers, and coordinators that are
// the production loop itself. One thread, one seed, no real clock: the same seed gives the same
// trace. run() returns when the run is done and every file is what it must be; it throws
// BrokenPromise, with the moment, otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "coordinator/serve/coordinator.hpp"
#include "tests/simulator/coverage.hpp"
#include "tests/simulator/oracle.hpp"
#include "tests/simulator/scenario.hpp"
#include "tests/simulator/sim_worker.hpp"
#include "tests/simulator/virtual_disk.hpp"

namespace hedgerow::simulator {

class VirtualClock final : public coordinator::Clock {
 public:
  [[nodiscard]] Time now() const override { return now_; }
  [[nodiscard]] std::string utc() const override;
  void set(Time now) { now_ = now; }
  void jump(std::chrono::seconds by) { wall_offset_ += by; }

 private:
  Time now_{std::chrono::hours(1)};
  std::chrono::seconds wall_offset_{0};
};

class World {
 public:
  explicit World(const Scenario& scenario);
  ~World();

  // One line for each durable record, fault (but of messages) and end of a coordinator.
  void log_to(std::FILE* stream);
  void run();
  [[nodiscard]] const Coverage& coverage() const { return coverage_; }
  // Hash of everything that happened, in order: equal for equal seeds.
  [[nodiscard]] std::uint64_t trace_hash() const { return trace_; }

 private:
  static constexpr milliseconds kBusyTurn{1};  // until a coordinator that has work looks again

  class Mailbox;
  class Host;
  struct Member;  // a worker process
  struct Post;    // a coordinator process
  enum class Kind { kToPost, kToMember, kMember, kTurn, kStart, kJoin, kFault, kResume, kRestore };
  struct Happening {
    Time at;
    std::uint64_t order = 0;
    Kind kind = Kind::kFault;
    std::size_t who = 0;
    std::string peer, frame;
    bool operator>(const Happening& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  // The network, the passing of time.
  void later(milliseconds delay,
             Kind kind,
             std::size_t who,
             std::string peer = "",
             std::string frame = "");
  void happen(Happening happening);
  void send_to_post(std::size_t member, const std::string& endpoint, const std::string& frame);
  void send_to_member(const std::string& endpoint, const std::string& peer, std::string_view frame);
  void carry(const Happening& happening, bool is_cut);

  // Processes.
  std::size_t add_member(WorkerSetup setup, std::size_t host, bool is_elastic);
  void step_member(std::size_t index);
  void schedule_member(std::size_t index);
  void end_member(std::size_t index);
  void start_coordinator(std::size_t host);
  void open_post(std::size_t host);
  [[nodiscard]] coordinator::DispatcherConfig dispatcher_config(
      std::size_t host, const storage::ReplayResult& replayed);
  void turn(std::size_t index);
  void end_post(std::size_t index, const std::string& how);
  void schedule_turn(std::size_t index, milliseconds delay);
  [[nodiscard]] Post* serving();
  // As it lies on the disk. Thousands look at it each second, and it names all children: it is
  // parsed when it is another.
  [[nodiscard]] const std::optional<wire::CoordinatorFile>& coordinator_file();
  [[nodiscard]] std::vector<storage::FileRecord> assemble(const coordinator::State& state,
                                                          std::uint64_t token);

  // Chance.
  void fault();
  void note_fault(const std::string& name);
  void strike(int kind);
  void strike_coordinator(int kind);
  void strike_file(bool corrupts);
  void check_run();
  void lose_power();
  [[nodiscard]] std::optional<std::size_t> any_member();
  [[nodiscard]] bool is_calm() const { return clock_.now() >= chaos_ends_; }
  void calm_down();

  void check_end() const;
  void check_file(const storage::FileRecord& record,
                  const std::string& kind,
                  std::uint64_t value) const;
  void log(const std::string& text);
  [[nodiscard]] std::string describe() const;
  void trace(std::uint64_t value) { trace_ = mix(trace_, value); }

  Scenario scenario_;
  Random random_;
  VirtualClock clock_;
  VirtualDisk disk_;
  Coverage coverage_;
  storage::RunLayout layout_;
  Oracle oracle_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<Member>> members_;
  int last_guest_ = 0;  // no two elastic workers have one name, as production draws them
  std::vector<std::size_t> alive_;  // members, in no order that matters
  std::vector<std::unique_ptr<Post>> posts_;
  std::map<std::string, std::size_t> post_at_;  // by endpoint
  std::string known_text_;                      // of coordinator.json
  std::optional<wire::CoordinatorFile> known_file_;
  std::priority_queue<Happening, std::vector<Happening>, std::greater<>> queue_;
  std::uint64_t order_ = 0, trace_ = 0, turns_ = 0;
  std::uint64_t steps_until_crash_ = 0, steps_until_error_ = 0;  // of the disk; 0: none is planned
  int next_pid_ = 100, starts_ = 0;
  Time begin_, chaos_ends_;
  bool is_done_ = false, is_start_planned_ = false;
  std::string fault_of_disk_;
  std::set<std::string> struck_;  // committed files that were lost or rotten once
  std::FILE* log_ = nullptr;
};

}  // namespace hedgerow::simulator
