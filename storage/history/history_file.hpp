// A run's history on disk: history/000007.history, one segment a term, appended by that term's
// coordinator alone and read by other processes while it grows. A segment is a sequence of frames;
// one that is not whole (the writer died, or is still writing) ends it, and a next term begins a
// segment of its own, so nothing is ever cut or rewritten. Not synced: after a crash of the machine
// the last seconds may be missing, and a next term reads metrics.jsonl again from where the history
// ends. The format: storage/README.md "History".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/files/file.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/history/history.hpp"

namespace hedgerow::storage {

// What was added, in the form in which it is kept.
struct HistoryNews {
  std::map<std::string, std::vector<HistoryRow>> rows;  // by series
  std::vector<std::uint64_t> attempts;                  // begun or changed
  std::vector<HistoryEvent> events;
  std::set<std::pair<int, int>> attention;

  [[nodiscard]] bool empty() const {
    return rows.empty() && attempts.empty() && events.empty() && attention.empty();
  }
};

// One thread.
class HistoryReader {
 public:
  explicit HistoryReader(RunLayout layout) : layout_(std::move(layout)) {}

  // Reads what is there since the last call. A run without a history: nothing. Throws what File
  // throws but for a file that is not there.
  HistoryNews poll();
  // The same without the news: several times as fast.
  void read_all();
  // The same, but never throws for a disk: what cannot be read is left out.
  void read_what_it_can();
  [[nodiscard]] const History& history() const { return history_; }
  [[nodiscard]] std::uint64_t num_bytes() const { return num_bytes_; }  // of what was read

 private:
  struct Segment {
    std::uint64_t read = 0;  // bytes of whole frames
    // By their number in this segment.
    std::vector<std::pair<const std::string, HistorySeries>*> series;
  };
  void read_segments(HistoryNews* news);
  void read(const std::filesystem::path& path, Segment& segment, HistoryNews* news);
  void apply(std::uint32_t kind, std::string_view payload, Segment& segment, HistoryNews* news);

  RunLayout layout_;
  History history_;
  std::map<std::string, Segment> segments_;  // by file name: in the order of their terms
  std::uint64_t num_bytes_ = 0;
};

// One thread. Buffers until flush().
class HistoryWriter {
 public:
  // Goes on from what `layout`'s history holds, in a segment of its own.
  HistoryWriter(const RunLayout& layout, std::uint64_t term);

  // Rows of one series, offered: a long series takes every so many-th of them, and hold_back()
  // keeps the newest that it did not take. `columns` are the same at each call for a series, or
  // its rows change with them (HistorySeries::change_columns).
  void offer(const std::string& series, const std::vector<std::string>& columns, HistoryRow row);
  // Writes what offer() held back of a series: its attempt has ended, and this is its last row.
  void take_last(const std::string& series);
  void append(const HistoryAttempt& attempt);
  void append(const HistoryEvent& event);
  void append(const HistoryAttention& attention);
  // `bytes` of the attempt's metrics.jsonl are in what was given since the last flush() or before.
  void note_metrics_read(std::uint64_t token, std::uint64_t bytes);

  // One write; nothing if there is nothing. Throws kExhausted, kUnavailable.
  void flush();

  [[nodiscard]] const History& history() const { return history_; }

 private:
  void append_row(const std::string& name, HistoryRow row);
  void append_frame(std::uint8_t kind, std::string_view payload);
  [[nodiscard]] bool has_room() const;

  RunLayout layout_;
  std::uint64_t term_;
  History history_;
  std::uint64_t num_bytes_ = 0;  // of all segments
  std::optional<File> file_;     // opened by the first flush()
  std::string buffer_;
  std::map<std::string, std::uint32_t> numbers_;  // of series, in this segment
  std::uint32_t num_series_ = 0;
  std::map<std::string, HistoryRow> held_back_;
};

}  // namespace hedgerow::storage
