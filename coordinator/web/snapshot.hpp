// A run as its page and its report read it: JSON of what status and history say. The form is in
// coordinator/web/README.md. Text and not nlohmann's value: a run of 126 layers has a third of a
// million numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "coordinator/status/status.hpp"
#include "storage/history/columns.hpp"
#include "storage/history/history_file.hpp"

namespace hedgerow::coordinator {

// Rows a series; of a longer one, evenly spread, the first and the last among them.
inline constexpr std::size_t kMaxShownRows = 256;
// Attempts and events: the newest.
inline constexpr std::size_t kMaxShownAttempts = 5000, kMaxShownEvents = 1000;

struct Snapshot {
  const RunStatus& status;
  const storage::History& history;
  const std::string& recipe;         // text of run.toml
  const nlohmann::json& provenance;  // provenance_of()
  bool is_live = false;              // a coordinator is at work
  std::uint64_t id = 0;              // of the last message that it includes
  std::span<const storage::HistoryColumn> columns = storage::history_columns();
};

// By name: this build, the teacher's fingerprint and the hashes of the tokens that the run began
// with. Reads the journal.
[[nodiscard]] nlohmann::json provenance_of(const storage::RunLayout& layout);

[[nodiscard]] std::string snapshot_json(const Snapshot& snapshot);
[[nodiscard]] std::string history_json(const storage::History& history,
                                       std::size_t max_rows = kMaxShownRows);
// What came last, in the same form; a series of which it has rows has its columns.
[[nodiscard]] std::string news_json(const storage::History& history,
                                    const storage::HistoryNews& news);

}  // namespace hedgerow::coordinator
