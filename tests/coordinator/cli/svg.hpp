// What tests ask of an SVG and of other text.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace hedgerow::coordinator::cli {

// An opening tag is closed in its order, quotes and references are whole.
inline std::string xml_fault(const std::string& text) {
  std::vector<std::string> open;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (static_cast<unsigned char>(text[i]) > 0x7e) return "not ASCII at " + std::to_string(i);
    if (text[i] == '&') {
      const std::size_t end = text.find(';', i);
      const std::string name = text.substr(i + 1, end - i - 1);
      if (name != "amp" && name != "lt" && name != "gt" && name != "quot") return "&" + name;
    }
    if (text[i] != '<') continue;
    const std::size_t end = text.find('>', i);
    if (end == std::string::npos) return "a tag without its end";
    const std::string tag = text.substr(i + 1, end - i - 1);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "quotes of <" + tag;
    if (tag.find('<') != std::string::npos) return "< in <" + tag;
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "<" + tag + "> closes nothing";
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    i = end;
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

inline std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

}  // namespace hedgerow::coordinator::cli
