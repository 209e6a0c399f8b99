#include "storage/json/strict_json.hpp"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "storage/base/error.hpp"

namespace hedgerow::storage {

bool is_nested_deeper(std::string_view text, std::size_t max_depth) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) return true;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return false;
}

nlohmann::json parse_strict_json(const std::string& text,
                                 const std::string& name,
                                 std::size_t max_depth) {
  std::vector<std::set<std::string>> keys;  // of the open objects, outermost first
  const auto check = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    if (static_cast<std::size_t>(depth) > max_depth) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("{}: JSON nested deeper than {} levels", name, max_depth));
    }
    if (event == nlohmann::json::parse_event_t::object_start) keys.emplace_back();
    if (event == nlohmann::json::parse_event_t::object_end) keys.pop_back();
    if (event == nlohmann::json::parse_event_t::key &&
        !keys.back().insert(parsed.get<std::string>()).second) {
      throw Error(
          ErrorKind::kCorrupt,
          fmt::format("{}: the key {} stands twice; parsers would disagree which one counts",
                      name,
                      parsed.dump(-1, ' ', true)));
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, check);
  } catch (const nlohmann::json::parse_error& error) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("{}: not valid JSON at byte {} of {}; get or write the file again",
                            name,
                            error.byte,
                            text.size()));
  } catch (const nlohmann::json::out_of_range&) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("{}: a number in it is too large for any type; write another", name));
  }
}

}  // namespace hedgerow::storage
