// Keeps a run's history (storage/history/history_file.hpp) while its coordinator lives: follows
// metrics.jsonl of every attempt that is under way, and notes attempts, events and how many work.
// Nothing here may end a run: what cannot be recorded is said once. Called by the coordinator's
// loop.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "coordinator/dispatch/dispatcher.hpp"
#include "storage/history/history_file.hpp"

namespace hedgerow::coordinator {

class HistoryRecorder {
 public:
  HistoryRecorder(storage::RunLayout layout, std::uint64_t term);

  void note_start(std::uint64_t term, const std::string& host, double now);
  // One that is on disk; `now`: UTC, seconds.
  void on_event(const RecordedEvent& recorded, double now);
  // Reads what attempts have written since the last call, and writes the history's file. About
  // once a second. Returns what went wrong, once; empty: nothing.
  std::string update(const Dispatcher& dispatcher, double now);
  // Takes up what attempts had written that are over, and that a coordinator which was killed did
  // not record. update() begins with it; alone it is for a run that is done.
  std::string catch_up(const State& state, double now);

 private:
  struct Open {
    TaskId task;
    storage::HistoryAttempt attempt;
    bool is_written = false;      // its beginning is in the history
    std::int64_t seen_step = -1;  // when metrics.jsonl was read last
    std::string seen_phase;
    std::string outcome, reason;  // of its end, by an event
    std::set<std::string> series;
  };
  static Open opened(const TaskId& task);
  void open_attempts(const Dispatcher& dispatcher, double now);
  void look_back(const State& state, double now);
  // False: there was nothing new.
  bool follow(std::uint64_t token, Open& open, double now);
  void take_line(const std::string& line, Open& open, double now);
  void close(std::uint64_t token, Open& open, const State& state, double now);
  template <typename Work>
  std::string guarded(const Work& work);
  void record_run(const Dispatcher& dispatcher, double now);

  storage::RunLayout layout_;
  std::optional<storage::HistoryWriter> writer_;  // nullopt: it failed
  std::map<std::uint64_t, Open> open_;
  bool has_looked_back_ = false;
  double next_run_row_ = 0.0;
  std::string problem_;
};

}  // namespace hedgerow::coordinator
