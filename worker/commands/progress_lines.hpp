// How far a command is, for the program that started it and draws the bar: JSON lines on stdout,
// {"event":"progress","phase","progress":0..1,"note"}, before the answer. The same lines that the
// Python programs of deploy/huggingface write. Silent unless --progress was given. And print_line,
// by which every JSON answer of a command goes out.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace hedgerow::worker {

// One object a line, at once: the process that started this program reads along.
inline void print_line(const nlohmann::json& object) {
  std::printf("%s\n", object.dump().c_str());
  std::fflush(stdout);
}

class ProgressLines {
 public:
  explicit ProgressLines(bool is_wanted) : is_wanted_(is_wanted) {}

  void operator()(const char* phase, double share, const std::string& note = "") const {
    if (!is_wanted_) return;
    const nlohmann::json line = {
        {"event", "progress"}, {"phase", phase}, {"progress", share}, {"note", note}};
    print_line(line);
  }

 private:
  bool is_wanted_;
};

inline constexpr const char* kProgressHelp = "JSON lines on stdout that say how far it is";

}  // namespace hedgerow::worker
