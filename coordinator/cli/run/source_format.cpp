#include "coordinator/cli/run/source_format.hpp"

#include <zlib.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "storage/base/file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using nlohmann::json;

constexpr unsigned kHeadBytes = 1U << 20;  // a record is seldom longer
constexpr unsigned kMostBytes = 1U << 28;  // where the first one is
constexpr std::size_t kRecords = 8;
constexpr std::string_view kSpace = " \t\r\n";

// The file's beginning without a byte order mark. gzread gives files that are not packed as they
// are.
std::string head_of(const std::filesystem::path& path, unsigned bytes) {
  if (!storage::why_not_a_file(path).empty()) return {};
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) return {};
  std::string head(bytes, '\0');
  head.resize(static_cast<std::size_t>(std::max(0, gzread(file.get(), head.data(), bytes))));
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  if (head.starts_with(kMark)) head.erase(0, kMark.size());
  return head;
}

// The object that begins at `text`, by its braces outside strings; empty if it does not end.
std::string_view object_at(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return text.substr(0, i + 1);
    }
  }
  return {};
}

// The first objects of an array or of lines, as reading.py takes them; `is_split`: one lies on
// several lines of a file that is no array.
std::vector<json> first_records(std::string_view head, bool& is_split) {
  std::vector<json> records;
  std::size_t at = head.find_first_not_of(kSpace);
  const bool is_array = at != head.npos && head[at] == '[';
  if (is_array) at = head.find_first_not_of(kSpace, at + 1);
  while (at != head.npos && head[at] == '{' && records.size() < kRecords) {
    const std::string_view text = object_at(head.substr(at));
    json record = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object()) break;
    records.push_back(std::move(record));
    is_split |= !is_array && text.find('\n') != text.npos;
    at = head.find_first_not_of(is_array ? " \t\r\n," : kSpace, at + text.size());
  }
  return records;
}

// Whether the first record is longer than the `bytes` that were read.
bool is_cut_in_a_record(const std::string& head, unsigned bytes) {
  constexpr unsigned kLongestMark = 3;
  std::size_t at = head.find_first_not_of(kSpace);
  if (at != head.npos && head[at] == '[') at = head.find_first_not_of(kSpace, at + 1);
  return head.size() + kLongestMark >= bytes && at != head.npos && head[at] == '{' &&
         object_at(std::string_view(head).substr(at)).empty();
}

// Whether it is one JSON value, or the beginning of one that was cut off.
bool begins_a_value(const std::string& head) {
  const std::size_t first = head.find_first_not_of(kSpace);
  if (first == head.npos || (head[first] != '[' && head[first] != '{')) return false;
  try {
    return json::parse(head).is_structured();
  } catch (const json::parse_error& error) {
    return error.byte >= head.size();
  }
}

bool begins_strings(const std::string& head) {
  const std::size_t first = head.find_first_not_of(kSpace);
  if (first == head.npos || head[first] != '[') return false;
  const std::size_t next = head.find_first_not_of(kSpace, first + 1);
  return next != head.npos && head[next] == '"' && begins_a_value(head);
}

bool has_text(const json& record, const char* key) {
  return record.contains(key) && record[key].is_string();
}

bool has_turns(const json& record, const char* list, const char* who, const char* said) {
  const auto turns = record.find(list);
  return turns != record.end() && turns->is_array() && !turns->empty() &&
         std::all_of(turns->begin(), turns->end(), [&](const json& turn) {
           return turn.is_object() && has_text(turn, who) && has_text(turn, said);
         });
}

struct KnownRecord {
  const char* format;
  const char* what;
  bool (*fits)(const json& record);
};

// Records of Alpaca often carry their prompt and answer as a "text" too, so it comes last.
constexpr KnownRecord kKnown[] = {
    {"chat",
     "chat messages",
     [](const json& r) { return has_turns(r, "messages", "role", "content"); }},
    {"chat",
     "ShareGPT conversations",
     [](const json& r) { return has_turns(r, "conversations", "from", "value"); }},
    {"alpaca",
     "Alpaca records",
     [](const json& r) { return has_text(r, "instruction") && has_text(r, "output"); }},
    {"jsonl", "JSON records with a \"text\"", [](const json& r) { return has_text(r, "text"); }},
};

}  // namespace

SourceFormat look_at_source(const std::filesystem::path& path) {
  bool is_split = false;
  std::string head;
  std::vector<json> records;
  unsigned bytes = kHeadBytes;
  do {
    head = head_of(path, bytes);
    records = first_records(head, is_split);
    bytes *= 16;
  } while (records.empty() && bytes <= kMostBytes && is_cut_in_a_record(head, bytes / 16));
  if (records.empty() && begins_strings(head)) {
    return {"",
            "a list of strings",
            {},
            "no format takes it; write each string as a record, {\"text\": \"...\"} a line"};
  }
  if (records.empty())
    return begins_a_value(head) ? SourceFormat{"", "JSON that is no list of records"}
                                : SourceFormat{"text", "plain text"};
  std::vector<std::string> fields;
  for (const auto& [key, value] : records.front().items()) fields.push_back(key);
  if (is_split) return {"", "JSON whose records are neither an array nor a line each", fields};
  for (const KnownRecord& known : kKnown) {
    if (std::all_of(records.begin(), records.end(), known.fits))
      return {known.format, known.what, fields};
  }
  return {"", "JSON records", fields};
}

std::vector<std::string> json_read_as_text(const storage::Recipe& recipe,
                                           const std::vector<storage::TokensOf>& files) {
  std::vector<std::string> found;
  std::set<std::string> seen;
  for (const storage::TokensOf& of : files) {
    const storage::Recipe::Sources sources = recipe.sources(of);
    for (const storage::DataSource& source : sources.list) {
      if (source.format != "text" || !seen.insert(source.path).second) continue;
      const SourceFormat looks = look_at_source(source.path);
      if (looks.format == "text") continue;
      found.push_back(sources.field + ": " + source.path + ": holds " + looks.what +
                      ", but its format is \"text\", so keys and " +
                      "braces are learned like prose; set " +
                      (looks.format.empty() ? "the format that fits, for jsonl with a template"
                                            : "format = \"" + looks.format + "\""));
    }
  }
  return found;
}

}  // namespace hedgerow::coordinator::cli
