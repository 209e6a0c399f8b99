// What a run's page shows, read from the run directory alone: logs/status.json, the journal where
// no coordinator is, and the history. So the page of a live run and that of a finished one come
// from the same code, and no viewer ever makes a coordinator wait. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/status/status.hpp"
#include "storage/history/history_file.hpp"

namespace hedgerow::coordinator {

class RunFeed {
 public:
  // A server-sent event, as it goes over the wire.
  struct Message {
    std::uint64_t id = 0;
    std::shared_ptr<const std::string> text;
  };

  // `first_id`: greater than any that an earlier feed of this run has given: its viewers come back
  // with those.
  RunFeed(storage::RunLayout layout, std::uint64_t first_id);

  // Reads what is new. Returns the messages that say so.
  std::vector<Message> poll();
  // The whole of it, JSON (snapshot.hpp).
  [[nodiscard]] std::string snapshot() const;
  // What a viewer has missed that saw `id` last: a reset if it can no longer be told.
  [[nodiscard]] std::vector<Message> since(std::uint64_t id) const;

  [[nodiscard]] const RunStatus& status() const { return status_; }
  [[nodiscard]] const storage::History& history() const { return history_.history(); }

 private:
  Message message(const char* event, const std::string& data);

  storage::RunLayout layout_;
  std::uint64_t last_id_;
  storage::HistoryReader history_;
  RunStatus status_;
  nlohmann::json provenance_;
  std::string status_text_;
  std::filesystem::file_time_type status_time_{};
  int polls_since_status_ = 0;
  std::uint64_t forgotten_id_;    // up to this one, messages of the history are gone
  std::deque<Message> messages_;  // of the history
  std::size_t num_bytes_ = 0;     // of those
  Message latest_status_;
};

}  // namespace hedgerow::coordinator
