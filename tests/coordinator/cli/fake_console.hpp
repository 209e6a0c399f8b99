// A console of strings: the tests run whole commands in-process against it.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "coordinator/cli/app.hpp"
#include "coordinator/cli/terminal/console.hpp"

namespace hedgerow::coordinator::cli {

class FakeConsole final : public Console {
 public:
  void write_out(std::string_view bytes) override { out += bytes; }
  void write_err(std::string_view bytes) override { err += bytes; }
  bool out_is_tty() const override { return is_tty; }
  bool err_is_tty() const override { return is_tty; }
  bool in_is_tty() const override { return is_tty; }
  int width() const override { return columns; }
  int height() const override { return lines; }
  std::optional<std::string> read_line() override {
    if (typed.empty()) return std::nullopt;
    std::string line = typed.front();
    typed.pop_front();
    return line;
  }
  std::optional<char> wait_for_key(std::chrono::milliseconds timeout) override {
    time += timeout;
    on_wait();
    if (keys.empty()) return std::nullopt;
    const char key = keys.front();
    keys.pop_front();
    return key == ' ' ? std::nullopt : std::optional<char>(key);  // a blank: nothing pressed yet
  }
  std::optional<std::string> environment(const std::string& name) const override {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  }
  std::chrono::steady_clock::time_point now() const override { return time += tick; }

  // The answer as lines, or each as JSON (the test fails on a line that is none).
  [[nodiscard]] std::vector<std::string> out_lines() const {
    std::istringstream stream(out);
    std::vector<std::string> all;
    for (std::string line; std::getline(stream, line);) all.push_back(line);
    return all;
  }
  [[nodiscard]] std::vector<nlohmann::json> out_json() const {
    std::vector<nlohmann::json> all;
    for (const std::string& line : out_lines()) {
      all.push_back(nlohmann::json::parse(line, nullptr, false));
      EXPECT_FALSE(all.back().is_discarded()) << "not JSON: " << line;
    }
    return all;
  }

  std::string out, err;
  bool is_tty = false;
  int columns = 80, lines = 24;
  std::deque<std::string> typed;
  std::deque<char> keys;
  std::function<void()> on_wait = [] {};  // what happens meanwhile
  std::map<std::string, std::string> variables;
  mutable std::chrono::steady_clock::time_point time{};
  std::chrono::milliseconds tick{0};  // how long everything between two looks at the clock takes
};

struct Answer {
  int code = 0;
  std::string out, err;
  std::vector<nlohmann::json> json;  // of stdout, when --json was asked for
};

// Runs one command line on a console that is no terminal.
inline Answer run_line(std::vector<std::string> arguments, FakeConsole console = {}) {
  Answer answer;
  const bool wants_json = std::count(arguments.begin(), arguments.end(), "--json") > 0;
  answer.code = static_cast<int>(run(std::move(arguments), console));
  answer.out = console.out;
  answer.err = console.err;
  if (wants_json) answer.json = console.out_json();
  return answer;
}

}  // namespace hedgerow::coordinator::cli
