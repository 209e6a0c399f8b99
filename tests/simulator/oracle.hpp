// Judges a simulation after each event, from what is on the disk and on the wire alone: it folds
// the journal's bytes as they become durable and holds every promise against that.
//
//   one lease a task                a task's grants never overlap, and every grant has its lease
//   fencing                         every commit carries the token that is current
//   state = fold(journal)           of the living coordinator, after each of its turns
//   no step is done again           an attempt ends at the newest whole checkpoint that it left
//   nothing is undone               done and committed end by `lost` or a planned deletion alone
//   nobody is told too early        what a worker hears of is in the durable journal
//   one name, one content           no two attempts write the same final file
//
// A broken promise is an exception that names it.
#pragma once

#include <map>
#include <set>
#include <stdexcept>
#include <string>

#include "coordinator/dispatch/leases.hpp"
#include "coordinator/state/fold.hpp"
#include "coordinator/wire/messages.hpp"
#include "storage/journal/journal.hpp"
#include "tests/simulator/coverage.hpp"
#include "tests/simulator/virtual_disk.hpp"

namespace hedgerow::simulator {

struct BrokenPromise : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Oracle {
 public:
  Oracle(const storage::RunLayout& layout, VirtualDisk& disk, Coverage& coverage)
      : layout_(layout), disk_(disk), coverage_(coverage) {}
  // Hears of each durable record.
  std::function<void(const std::string& text)> log;

  // A coordinator has read the journal to begin a term: it must have found all that was durable,
  // and may have found records that were written and not synced, if it syncs them.
  void on_replay(const storage::ReplayResult& replayed);
  // Bytes of a segment are durable. Those of an earlier term than the newest do not count.
  void on_synced(const std::string& path, std::string_view bytes);
  void on_sent_to_worker(const wire::Message& message) const;
  void on_received(const wire::Message& message);
  // `whole`: compares every task, not the counts alone.
  void on_turn(std::uint64_t term,
               const coordinator::State& live,
               const coordinator::Leases& leases,
               bool whole) const;
  // The journal was damaged on purpose: what it lost may be done again.
  void forgive_losses() { forgives_ = true; }

  // What the durable journal says.
  [[nodiscard]] const coordinator::State& state() const { return state_; }
  [[nodiscard]] std::uint64_t term() const { return term_; }

 private:
  void take(const nlohmann::json& record, bool is_found);
  void count(const coordinator::Event& event);
  void remember(const coordinator::Event& event);
  void check_resume_point(const coordinator::Event& event) const;
  void know_what_is_there();

  storage::RunLayout layout_;
  VirtualDisk& disk_;
  Coverage& coverage_;
  coordinator::State state_;
  std::uint64_t term_ = 0, last_seq_ = 0;
  // What the last replay found beyond what was known to be durable, or, after a loss that was
  // forgiven, at all. It counts once the term that acts on it has begun.
  std::vector<nlohmann::json> survivors_;
  std::optional<coordinator::State> found_;
  bool forgives_ = false;
  std::map<std::uint64_t, coordinator::TaskId> task_of_;  // every token ever granted
  std::set<std::string> committed_;                       // every name ever committed
};

}  // namespace hedgerow::simulator
