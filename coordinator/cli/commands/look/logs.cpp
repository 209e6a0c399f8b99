#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/state/events.hpp"
#include "coordinator/status/status.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/journal/journal.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::ExitCode;

constexpr std::chrono::milliseconds kLookForLinesEvery{250};

struct LogsOptions {
  std::string run, worker;
  int block = -1, lines = 50;
  bool follow = false;
};

// Which lines are wanted, and in whose logs. Empty sets: all.
struct Filter {
  std::set<std::string> workers;
  std::vector<std::string> words;
  [[nodiscard]] bool wants(const std::string& line) const {
    return words.empty() || std::any_of(words.begin(), words.end(), [&](const std::string& word) {
             return line.find(word) != std::string::npos;
           });
  }
};

// The workers that were ever granted a task of this block, and how their logs call those attempts.
Filter filter_of_block(const storage::RunLayout& layout, int block) {
  Filter filter;
  for (const storage::JournalRecord& record : storage::replay_history(layout).records) {
    if (record.event.value("type", "") != "granted") continue;
    const auto granted = std::get<Granted>(event_from_json(record.event));
    if (granted.task.block != block) continue;
    filter.workers.insert(granted.worker);
    filter.words.push_back("token " + std::to_string(granted.token) + ":");
  }
  require(!filter.workers.empty(), "no worker was granted block " + std::to_string(block) + " yet");
  return filter;
}

std::string worker_of(const fs::path& log) {
  const std::string stem = log.stem().string();
  return stem.starts_with("worker-") ? stem.substr(7) : stem;
}

std::vector<fs::path> log_files(const storage::RunLayout& layout,
                                const std::set<std::string>& names) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(layout.logs(), ignored)) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() != ".log") continue;
    if (names.empty() || names.contains(worker_of(entry.path())) || names.contains(stem))
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Why there is nothing to show, with the names that would have shown something.
std::string no_log(const storage::RunLayout& layout, const std::set<std::string>& workers) {
  std::vector<std::string> names;
  std::string all;
  for (const fs::path& file : log_files(layout, {})) {
    names.push_back(worker_of(file));
    all += (all.empty() ? "" : ", ") + names.back();
  }
  if (names.empty())
    return "no logs in " + layout.logs().string() + " yet; workers write them once a run begins";
  std::string wanted, meant;
  for (const std::string& worker : workers) {
    wanted += (wanted.empty() ? "'" : ", '") + worker + "'";
    if (meant.empty()) meant = did_you_mean(worker, names);
  }
  return "no log of " + wanted + " in " + layout.logs().string() + meant + "; there are " + all;
}

class Tail {
 public:
  Tail(fs::path file, bool is_one_of_many)
      : file_(std::move(file)), is_one_of_many_(is_one_of_many) {}

  // Whole lines that were written since the last call.
  std::vector<std::string> new_lines() {
    std::ifstream stream(file_);
    stream.seekg(offset_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) {
      if (stream.eof()) break;  // no newline yet: it may still be growing
      offset_ += static_cast<std::streamoff>(line.size() + 1);
      lines.push_back(std::move(line));
    }
    return lines;
  }

  void show(const std::string& line, Terminal& terminal) const {
    const std::string name = file_.stem().string();
    terminal.print((is_one_of_many_ ? name + ": " : "") + one_line(line));
    terminal.print_json({{"log", name}, {"line", line}});
  }

 private:
  fs::path file_;
  bool is_one_of_many_;
  std::streamoff offset_ = 0;
};

ExitCode run_logs(const LogsOptions& options, Terminal& terminal) {
  require(options.worker.empty() || options.block < 0, "give a worker or --block, not both");
  const storage::RunLayout layout(options.run);
  require_run(layout);
  Filter filter;
  if (options.block >= 0) filter = filter_of_block(layout, options.block);
  if (!options.worker.empty()) filter.workers = {options.worker};
  const std::vector<fs::path> files = log_files(layout, filter.workers);
  if (files.empty()) {
    using storage::ErrorKind;
    const bool is_mistyped = !options.worker.empty() && !log_files(layout, {}).empty();
    throw storage::Error(is_mistyped ? ErrorKind::kUsage : ErrorKind::kNotFound,
                         no_log(layout, filter.workers));
  }
  std::vector<Tail> tails;
  for (const fs::path& file : files) tails.emplace_back(file, files.size() > 1);
  for (Tail& tail : tails) {
    std::deque<std::string> last;
    for (std::string& line : tail.new_lines()) {
      if (!filter.wants(line)) continue;
      last.push_back(std::move(line));
      if (last.size() > static_cast<std::size_t>(options.lines)) last.pop_front();
    }
    for (const std::string& line : last) tail.show(line, terminal);
  }
  const InterruptScope interrupts;
  while (options.follow && !is_interrupted()) {
    for (Tail& tail : tails) {
      for (const std::string& line : tail.new_lines()) {
        if (filter.wants(line)) tail.show(line, terminal);
      }
    }
    const auto key = terminal.console().wait_for_key(kLookForLinesEvery);
    if (key && (*key == 'q' || *key == 'Q')) break;
  }
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_logs(CLI::App& app) {
  const auto options = std::make_shared<LogsOptions>();
  app.add_option("worker", options->worker, "only this worker's log, or: finetune")
      ->type_name("NAME");
  add_run(app, options->run);
  app.add_option("--block", options->block, "only lines about this block")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber.description(""));
  app.add_option("-n,--lines", options->lines, "the last N lines of each log")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber.description(""))
      ->capture_default_str();
  app.add_flag("-f,--follow", options->follow, "go on as they grow; q or Ctrl-C leaves");
  return [options](Terminal& terminal) {
    options->run = run_or_here(options->run);
    return run_logs(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
