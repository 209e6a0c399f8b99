#include "coordinator/web/snapshot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <ranges>
#include <span>

#include "coordinator/state/fold.hpp"
#include "storage/base/build_info.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

using Out = std::back_insert_iterator<std::string>;

// Names come from other hosts: what is no UTF-8 is replaced.
std::string text_of(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void append_row(std::string& text, const storage::HistoryRow& row) {
  fmt::format_to(Out(text), "[{},{:.1f}", row.step, row.time);
  for (const float value : row.values) {
    if (std::isfinite(value)) {
      fmt::format_to(Out(text), ",{:.6g}", value);
    } else {
      text += ",null";
    }
  }
  text += ']';
}

// Puts `separator` before all but the first.
class Separator {
 public:
  void put(std::string& text) {
    if (!is_first_) text += ',';
    is_first_ = false;
  }

 private:
  bool is_first_ = true;
};

void append_series(std::string& text,
                   const storage::HistorySeries& series,
                   std::span<const storage::HistoryRow> rows,
                   std::size_t max_rows) {
  text += "{\"columns\":" + text_of(series.columns) + ",\"rows\":[";
  const std::size_t stride = rows.size() <= max_rows ? 1 : (rows.size() + max_rows - 1) / max_rows;
  Separator separator;
  for (std::size_t i = 0; i < rows.size(); i += stride) {
    // The last row takes the place of the one before it that stride would choose.
    const std::size_t shown = i + stride >= rows.size() ? rows.size() - 1 : i;
    separator.put(text);
    append_row(text, rows[shown]);
  }
  text += "]}";
}

template <typename Values>
auto newest(const Values& values, std::size_t count) {
  const auto skipped = static_cast<std::ptrdiff_t>(values.size() - std::min(values.size(), count));
  return std::ranges::subrange(std::next(values.begin(), skipped), values.end());
}

template <typename Values, typename Visit>
void append_list(std::string& text, const Values& values, const Visit& value_of) {
  text += '[';
  Separator separator;
  for (const auto& value : values) {
    separator.put(text);
    text += text_of(value_of(value));
  }
  text += ']';
}

}  // namespace

std::string history_json(const storage::History& history, std::size_t max_rows) {
  std::string text = "{\"series\":{";
  Separator separator;
  for (const auto& [name, series] : history.series) {
    separator.put(text);
    text += text_of(name) + ':';
    append_series(text, series, series.rows, max_rows);
  }
  text += "},\"attempts\":";
  append_list(text, newest(history.attempts, kMaxShownAttempts), [](const auto& entry) {
    return nlohmann::json(entry.second);
  });
  text += ",\"events\":";
  append_list(text, newest(history.events, kMaxShownEvents), [](const auto& event) {
    return nlohmann::json(event);
  });
  text += ",\"attention\":";
  append_list(
      text, history.attention, [](const auto& entry) { return nlohmann::json(entry.second); });
  return text + "}";
}

std::string news_json(const storage::History& history, const storage::HistoryNews& news) {
  std::string text = "{\"series\":{";
  Separator separator;
  for (const auto& [name, rows] : news.rows) {
    separator.put(text);
    text += text_of(name) + ':';
    append_series(text, history.series.at(name), rows, rows.size());
  }
  text += "},\"attempts\":";
  append_list(text, news.attempts, [&](std::uint64_t token) {
    return nlohmann::json(history.attempts.at(token));
  });
  text += ",\"events\":";
  append_list(text, news.events, [](const auto& event) { return nlohmann::json(event); });
  text += ",\"attention\":";
  append_list(text, news.attention, [&](const auto& key) {
    return nlohmann::json(history.attention.at(key));
  });
  return text + "}";
}

nlohmann::json provenance_of(const storage::RunLayout& layout) {
  nlohmann::json provenance = {{"hedgerow", storage::build()}};
  try {
    const State state = fold(replay_if_any(layout)).state;
    if (!state.build.empty()) provenance["begun by"] = state.build;
    if (!state.inputs.teacher.empty()) provenance["teacher"] = state.inputs.teacher;
    for (const storage::FileRecord& tokens : state.inputs.tokens)
      provenance[tokens.name] = tokens.root_hash.hex();
  } catch (const storage::Error&) {
    // A journal that cannot be read is what status says; the rest is shown all the same.
  }
  return provenance;
}

std::string snapshot_json(const Snapshot& snapshot) {
  return fmt::format(
      "{{\"version\":{},\"live\":{},\"id\":{},\"recipe\":{},\"provenance\":{},\"columns\":{},"
      "\"status\":{},\"history\":{}}}",
      text_of(storage::build()),
      snapshot.is_live,
      snapshot.id,
      text_of(snapshot.recipe),
      text_of(snapshot.provenance),
      text_of(storage::columns_json(snapshot.columns)),
      text_of(snapshot.status),
      history_json(snapshot.history));
}

}  // namespace hedgerow::coordinator
