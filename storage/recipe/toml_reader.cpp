#include "storage/recipe/toml_reader.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include "storage/base/words.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::storage {
namespace {

constexpr std::uint64_t kMaxTomlBytes = 1 << 20;

struct DottedName {
  std::string section;  // "" or with its last dot
  std::string leaf;
};

DottedName split_name(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos) return {.section = "", .leaf = name};
  return {.section = name.substr(0, dot + 1), .leaf = name.substr(dot + 1)};
}

std::string type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number with a point";
    case toml::node_type::boolean:
      return "true or false";
    default:
      return "a date or time";
  }
}

// Where the string that begins at text[at] ends (behind its last quote, or at the end of the line
// that it must not leave), as TOML counts quotes.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool is_long = text.substr(at).starts_with(three);
  for (at += is_long ? 3 : 1; at < text.size(); ++at) {
    if (quote == '"' && text[at] == '\\') {
      ++at;
    } else if (is_long && text.substr(at).starts_with(three)) {
      for (at += 3; at < text.size() && text[at] == quote; ++at) {
      }
      return at;
    } else if (!is_long && (text[at] == quote || text[at] == '\n')) {
      return at + 1;
    }
  }
  return text.size();
}

// Whether a backslash that ends a line (or stands before spaces) has a letter beyond ASCII as the
// next thing behind it.
bool joins_beyond_ascii(std::string_view quoted) {
  std::size_t at = quoted.find('\\');
  while (at != std::string_view::npos) {
    const std::size_t next = quoted.find_first_not_of(" \t\r\n\v\f", at + 1);
    if (next == std::string_view::npos) return false;
    if (static_cast<unsigned char>(quoted[next]) >= 0x80) return true;
    at = quoted.find('\\', next == at + 1 ? next + 1 : next);  // what is escaped escapes nothing
  }
  return false;
}

// Where a = may stand: one in a line, or in a part of a table in braces.
class Equals {
 public:
  // A character outside strings and comments. False: a = stands behind another, or in a list.
  bool take(char c) {
    const bool in_table = !open_.empty() && open_.back() == '{';
    if (c == '=') return !std::exchange(seen_, true);
    if (c == '[' || c == '{') open_ += c;
    if ((c == ']' || c == '}') && !open_.empty()) open_.pop_back();
    if (c == '{' || (c == ',' && in_table) || (c == '\n' && open_.empty())) seen_ = false;
    if (c == '}') seen_ = true;  // that which the table is the value of
    return true;
  }

  [[nodiscard]] bool in_bracket() const { return !open_.empty(); }

 private:
  std::string open_;
  bool seen_ = false;
};

// What toml++ 3.3 cannot take. Letters beyond ASCII: TOML has them in strings and comments alone,
// and some of them it takes elsewhere for what cannot be; most often they are quotes or spaces of a
// word processor. The same letters where it looks for the spaces that a backslash joins. Quotes and
// brackets inside a word, and a = behind a value, because there it sees no string begin where we
// do. Keys of many parts: tables in tables, which it walks by recursion until the stack ends; its
// own limit counts brackets.
void refuse_what_breaks_the_parser(std::string_view text, const std::string& name) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  constexpr std::string_view kBetweenWords = " \t\r\n=,[]{}#\"'";
  constexpr int kMaxDots = 16;  // outside strings on a line; our longest key has 2
  int line = 1, dots = 0;
  bool in_word = false;
  Equals equals;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kUsage, name + ":" + std::to_string(line) + ": " + what);
  };
  std::size_t at = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  while (at < text.size()) {
    std::size_t next = at + 1;
    if (in_word && std::string_view("\"'[{").find(text[at]) != std::string_view::npos) {
      refuse(std::string("a ") + text[at] + " stands inside a word");
    } else if (text[at] == '"' || text[at] == '\'') {
      next = end_of_string(text, at);
      if (text[at] == '"' && joins_beyond_ascii(text.substr(at, next - at)))
        refuse(
            "a letter beyond ASCII follows a backslash that joins lines; put it on the same line");
    } else if (text[at] == '#') {
      next = std::min(text.find('\n', at), text.size());
    } else if (static_cast<unsigned char>(text[at]) >= 0x80) {
      refuse("a letter, a space or quotes beyond ASCII stand outside a string; write \"...\"");
    } else if (!equals.take(text[at])) {
      refuse(equals.in_bracket()
                 ? "a = inside a list or a table; is the bracket that ends it missing?"
                 : "a second = in one line; a text stands in quotes");
    } else if (text[at] == '.' && ++dots > kMaxDots) {
      refuse("more than " + std::to_string(kMaxDots) +
             " points on a line; no key has so many parts");
    }
    in_word = kBetweenWords.find(text[at]) == std::string_view::npos;
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at);
    const auto lines = std::count(begin, text.begin() + static_cast<std::ptrdiff_t>(next), '\n');
    if (lines > 0) {
      dots = 0;
      equals.take('\n');
    }
    line += static_cast<int>(lines);
    at = next;
  }
}

}  // namespace

void TomlReader::section(std::string_view name, std::string_view /*comment*/) {
  section_ = prefix_ + std::string(name) + ".";
  sections_.push_back(prefix_ + std::string(name));
  table_ = nullptr;
  const toml::node_view<const toml::node> view = root_.at_path(name);
  if (!view) return;
  table_ = view.as_table();
  if (table_ == nullptr)
    wrong_type(
        *view.node(), prefix_ + std::string(name), "a table, as [" + std::string(name) + "]");
}

const toml::node* TomlReader::take(std::string_view key, const std::string& name) {
  known_.push_back(name);
  const toml::node* node = table_ == nullptr ? nullptr : table_->get(key);
  if (node != nullptr) problems_.at_line(name, static_cast<int>(node->source().begin.line));
  return node;
}

void TomlReader::wrong_type(const toml::node& node,
                            const std::string& name,
                            const std::string& expected) {
  problems_.at_line(name, static_cast<int>(node.source().begin.line));
  problems_.add(name, "expected " + expected + ", found " + type_name(node));
}

void TomlReader::read(const toml::node& node, const std::string& name, bool& value) {
  if (!node.is_boolean()) return wrong_type(node, name, "true or false");
  value = **node.as_boolean();
}
void TomlReader::read(const toml::node& node, const std::string& name, AddBos& value) {
  if (node.is_string() && **node.as_string() == "auto") {
    value = AddBos::kAuto;
  } else if (node.is_boolean()) {
    value = **node.as_boolean() ? AddBos::kYes : AddBos::kNo;
  } else {
    wrong_type(node, name, "\"auto\", true or false");
  }
}
void TomlReader::read(const toml::node& node, const std::string& name, SoftmaxLayers& value) {
  const std::string_view word = node.is_string() ? std::string_view(**node.as_string()) : "";
  if (word == "all") {
    value.all = true;
  } else if (word.starts_with(SoftmaxLayers::kUniform)) {
    const std::string_view number = word.substr(SoftmaxLayers::kUniform.size());
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), value.uniform);
    if (error != std::errc() || end != number.data() + number.size() || value.uniform < 1)
      problems_.add(name, "= " + toml_text(word) + ": expected uniform:N, N layers from 1 on");
  } else if (node.is_array()) {
    read(node, name, value.layers);
  } else {
    wrong_type(node, name, "a list of layers, \"all\" or \"uniform:N\"");
  }
}
void TomlReader::read(const toml::node& node, const std::string& name, double& value) {
  if (!node.is_number()) return wrong_type(node, name, "a number");
  value = *node.value<double>();
}
void TomlReader::read(const toml::node& node, const std::string& name, int& value) {
  if (!node.is_integer()) return wrong_type(node, name, "an integer");
  const std::int64_t wide = **node.as_integer();
  if (!std::in_range<int>(wide))
    return problems_.add(name, "= " + std::to_string(wide) + " is too large");
  value = static_cast<int>(wide);
}
void TomlReader::read(const toml::node& node, const std::string& name, std::int64_t& value) {
  if (!node.is_integer()) return wrong_type(node, name, "an integer");
  value = **node.as_integer();
}
void TomlReader::read(const toml::node& node, const std::string& name, std::uint64_t& value) {
  if (!node.is_integer()) return wrong_type(node, name, "an integer");
  const std::int64_t wide = **node.as_integer();
  if (wide < 0) return problems_.add(name, "= " + std::to_string(wide) + ": expected at least 0");
  value = static_cast<std::uint64_t>(wide);
}
void TomlReader::read(const toml::node& node, const std::string& name, std::string& value) {
  if (!node.is_string()) return wrong_type(node, name, "a string");
  value = **node.as_string();
}

void TomlReader::report_unknown(const toml::table& table, const std::string& prefix) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const bool leads_to_section =
        std::any_of(sections_.begin(), sections_.end(), [&](const std::string& section) {
          return (section + ".").starts_with(name + ".");
        });
    if (!leads_to_section) {
      problems_.at_line(name, static_cast<int>(key.source().begin.line));
      problems_.add_sentence(name, name + " is not a known key" + suggestion(name));
    } else if (node.is_table()) {
      report_unknown(*node.as_table(), name + ".");
    } else if (std::find(sections_.begin(), sections_.end(), name) == sections_.end()) {
      wrong_type(node, name, "a table");
    }
  }
}

// The nearest key of the same section; else one that is called the same in another; else what the
// section has.
std::string TomlReader::suggestion(const std::string& name) const {
  const DottedName wanted = split_name(name);
  const std::size_t tolerance = edit_tolerance(wanted.leaf);
  std::string best;
  std::size_t best_distance = tolerance + 1;
  std::vector<std::string> siblings;
  std::vector<std::string> names = known_;
  names.insert(names.end(), sections_.begin(), sections_.end());
  for (const std::string& known : names) {
    const DottedName candidate = split_name(known);
    const bool same_section = candidate.section == wanted.section;
    std::size_t distance = edit_distance(candidate.leaf, wanted.leaf);
    // Short keys resemble each other by chance, and a key of another section must be the very
    // same word.
    if (same_section ? distance >= wanted.leaf.size() : distance > 0) distance = tolerance + 1;
    if (!same_section) distance += 1;
    if (distance < best_distance) {
      best = known;
      best_distance = distance;
    }
    if (!known.starts_with(wanted.section)) continue;
    const std::string rest = known.substr(wanted.section.size());
    const std::string sibling = rest.substr(0, rest.find('.'));  // a section of it, or its own key
    if (std::find(siblings.begin(), siblings.end(), sibling) == siblings.end())
      siblings.push_back(sibling);
  }
  if (!best.empty()) return "; did you mean " + best + "?";
  std::string listed;
  for (const std::string& sibling : siblings) listed += (listed.empty() ? "" : ", ") + sibling;
  return listed.empty() ? "" : "; known keys there: " + listed;
}

std::string read_toml(const std::filesystem::path& path) {
  try {
    return read_text(path, kMaxTomlBytes);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    throw Error(ErrorKind::kUsage,
                std::string(error.what()) + "; settings take no more, so name another file");
  }
}

toml::table parse_toml(const std::string& text, const std::string& name) {
  refuse_what_breaks_the_parser(text, name);
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorKind::kUsage,
                name + ":" + std::to_string(error.source().begin.line) + ": " +
                    std::string(error.description()));
  }
}

}  // namespace hedgerow::storage
