#include "storage/history/history_file.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "storage/base/error.hpp"
#include "storage/faults/fault_point.hpp"
#include "storage/files/hash.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "a history is read as it lies there");

constexpr std::string_view kMagic = "hedgerow history 1\n";
enum Kind : std::uint8_t { kSeries = 1, kRow, kAttempt, kEvent, kAttention, kMetricsRead };

struct FrameHeader {
  std::uint32_t size = 0;  // of the payload
  std::uint32_t kind = 0;
  std::uint64_t hash = 0;  // of the payload, seeded by the two before
};
static_assert(sizeof(FrameHeader) == 16);
struct RowHeader {
  std::int64_t step = 0;
  double time = 0.0;
  std::uint32_t series = 0, num_values = 0;
};
static_assert(sizeof(RowHeader) == 24);

constexpr std::uint32_t kMaxPayloadBytes = 1U << 20;
// Beyond this, rows of numbers alone are appended: what is thinned cannot grow much further.
constexpr std::uint64_t kMaxBytes = 32U << 20;

std::uint64_t hash_of(std::uint32_t kind, std::string_view payload) {
  return hash64(std::as_bytes(std::span(payload)),
                (static_cast<std::uint64_t>(kind) << 32) | payload.size());
}

// Names come from other hosts.
std::string text_of(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

template <typename T>
T value_at(std::string_view bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace

HistoryNews HistoryReader::poll() {
  HistoryNews news;
  read_segments(&news);
  return news;
}

void HistoryReader::read_all() { read_segments(nullptr); }

void HistoryReader::read_what_it_can() {
  try {
    read_all();
  } catch (const Error&) {
  } catch (const fs::filesystem_error&) {
  }
}

void HistoryReader::read_segments(HistoryNews* news) {
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(layout_.history_directory(), none))
    if (entry.path().extension() == ".history" && entry.is_regular_file(none))
      segments_.try_emplace(entry.path().filename().string());
  for (auto& [name, segment] : segments_) read(layout_.history_directory() / name, segment, news);
}

// One frame's content into the history. Throws what nlohmann-json throws for text of another form.
void HistoryReader::apply(std::uint32_t kind,
                          std::string_view payload,
                          Segment& segment,
                          HistoryNews* news) {
  switch (kind) {
    case kSeries: {
      const nlohmann::json json = nlohmann::json::parse(payload);
      auto columns = json.at("columns").get<std::vector<std::string>>();
      auto& named = *history_.series.try_emplace(json.at("name").get<std::string>()).first;
      segment.series.push_back(&named);
      named.second.change_columns(std::move(columns));
      return;
    }
    case kRow: {
      if (payload.size() < sizeof(RowHeader)) return;
      const auto header = value_at<RowHeader>(payload);
      payload.remove_prefix(sizeof(RowHeader));
      if (header.series >= segment.series.size() ||
          payload.size() != header.num_values * sizeof(float))
        return;
      HistoryRow row{header.step, header.time, std::vector<float>(header.num_values)};
      std::memcpy(row.values.data(), payload.data(), payload.size());
      auto& [name, series] = *segment.series[header.series];
      if (news != nullptr) news->rows[name].push_back(row);
      series.append(std::move(row));
      return;
    }
    case kAttempt: {
      auto attempt = nlohmann::json::parse(payload).get<HistoryAttempt>();
      if (news != nullptr) news->attempts.push_back(attempt.token);
      history_.attempts[attempt.token] = std::move(attempt);
      return;
    }
    case kEvent:
      history_.events.push_back(nlohmann::json::parse(payload).get<HistoryEvent>());
      if (news != nullptr) news->events.push_back(history_.events.back());
      return;
    case kAttention: {
      auto map = nlohmann::json::parse(payload).get<HistoryAttention>();
      const std::pair key(map.layer, map.head);
      if (news != nullptr) news->attention.insert(key);
      history_.attention[key] = std::move(map);
      return;
    }
    case kMetricsRead:
      if (payload.size() == 2 * sizeof(std::uint64_t))
        history_.metrics_read[value_at<std::uint64_t>(payload)] =
            value_at<std::uint64_t>(payload.substr(sizeof(std::uint64_t)));
      return;
    default:
      return;  // of a later build
  }
}

void HistoryReader::read(const fs::path& path, Segment& segment, HistoryNews* news) {
  std::error_code gone;
  const std::uint64_t size = fs::file_size(path, gone);
  if (gone || size <= segment.read) return;
  const File file = File::open_read(path);
  std::string bytes(size - segment.read, '\0');
  bytes.resize(file.read_some(std::as_writable_bytes(std::span(bytes)), segment.read));
  std::string_view rest = bytes;
  if (segment.read == 0) {
    if (!rest.starts_with(kMagic)) return;
    rest.remove_prefix(kMagic.size());
  }
  while (rest.size() >= sizeof(FrameHeader)) {
    const auto header = value_at<FrameHeader>(rest);
    if (header.size > kMaxPayloadBytes || rest.size() < sizeof(FrameHeader) + header.size) break;
    const std::string_view payload = rest.substr(sizeof(FrameHeader), header.size);
    if (hash_of(header.kind, payload) != header.hash) break;
    try {
      apply(header.kind, payload, segment, news);
    } catch (const nlohmann::json::exception&) {
      // Whole, and of another form: what a later build wrote.
    }
    rest.remove_prefix(sizeof(FrameHeader) + header.size);
  }
  const std::uint64_t read = bytes.size() - rest.size();
  segment.read += read;
  num_bytes_ += read;
}

HistoryWriter::HistoryWriter(const RunLayout& layout, std::uint64_t term)
    : layout_(layout), term_(term) {
  HistoryReader reader(layout);
  reader.read_all();
  history_ = reader.history();
  num_bytes_ = reader.num_bytes();
}

bool HistoryWriter::has_room() const { return num_bytes_ + buffer_.size() < kMaxBytes; }

void HistoryWriter::append_frame(std::uint8_t kind, std::string_view payload) {
  const FrameHeader header{
      static_cast<std::uint32_t>(payload.size()), kind, hash_of(kind, payload)};
  buffer_ += bytes_of(header);
  buffer_ += payload;
}

void HistoryWriter::append_row(const std::string& name, HistoryRow row) {
  HistorySeries& series = history_.series[name];
  auto number = numbers_.find(name);
  if (number == numbers_.end()) {
    number = numbers_.emplace(name, num_series_++).first;
    append_frame(kSeries, text_of({{"name", name}, {"columns", series.columns}}));
  }
  std::string payload(bytes_of(RowHeader{
      row.step, row.time, number->second, static_cast<std::uint32_t>(row.values.size())}));
  payload.append(reinterpret_cast<const char*>(row.values.data()),
                 row.values.size() * sizeof(float));
  append_frame(kRow, payload);
  series.append(std::move(row));
}

void HistoryWriter::offer(const std::string& name,
                          const std::vector<std::string>& columns,
                          HistoryRow row) {
  HistorySeries& series = history_.series[name];
  if (series.columns != columns) {
    take_last(name);  // it has the columns of before
    series.change_columns(columns);
    numbers_.erase(name);
  }
  const auto held = held_back_.find(name);
  if (held != held_back_.end() && held->second.step >= row.step) held_back_.erase(held);
  if (series.num_offered++ % series.stride != 0) {
    held_back_.insert_or_assign(name, std::move(row));
    return;
  }
  held_back_.erase(name);
  append_row(name, std::move(row));
}

void HistoryWriter::take_last(const std::string& name) {
  const auto held = held_back_.extract(name);
  if (!held.empty()) append_row(name, std::move(held.mapped()));
}

void HistoryWriter::append(const HistoryAttempt& attempt) {
  if (!has_room()) return;
  append_frame(kAttempt, text_of(attempt));
  history_.attempts[attempt.token] = attempt;
}

void HistoryWriter::append(const HistoryEvent& event) {
  if (!has_room()) return;
  append_frame(kEvent, text_of(event));
  history_.events.push_back(event);
}

void HistoryWriter::append(const HistoryAttention& attention) {
  if (!has_room()) return;
  append_frame(kAttention, text_of(attention));
  history_.attention[{attention.layer, attention.head}] = attention;
}

void HistoryWriter::note_metrics_read(std::uint64_t token, std::uint64_t bytes) {
  std::uint64_t& noted = history_.metrics_read[token];
  if (noted == bytes) return;
  noted = bytes;
  std::string payload(bytes_of(token));
  payload += bytes_of(bytes);
  append_frame(kMetricsRead, payload);
}

void HistoryWriter::flush() {
  if (buffer_.empty()) return;
  if (!file_) {
    fs::create_directories(layout_.history_directory());
    int part = 1;
    while (fs::exists(layout_.history_segment(term_, part))) ++part;
    file_ = File::create_exclusive(layout_.history_segment(term_, part));
    buffer_.insert(0, kMagic);
  }
  fault_point("coordinator.history.write");
  file_->write_all(std::as_bytes(std::span(buffer_)));
  fault_point("coordinator.history.written");
  num_bytes_ += buffer_.size();
  buffer_.clear();
}

}  // namespace hedgerow::storage
