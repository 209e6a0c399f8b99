#include <unistd.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "coordinator/cli/doctor/doctor.hpp"
#include "coordinator/cli/programs/child.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "storage/base/build_info.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {
namespace {

constexpr const char* kPackages = "import numpy, h5py, tokenizers, xxhash, jinja2, gguf";
// A cold shared file system brings libraries slowly.
constexpr std::chrono::seconds kProbeTimeout{60};

struct Probe {
  std::string check, fix;
  std::function<ChildCommand()> command;
  std::function<std::string(const std::string& out)> judge;  // what was found; empty: not right
};

Finding unexpected(const Probe& probe, const std::string& out) {
  return {probe.check, Level::kFail, "unexpected answer: " + one_line(out), probe.fix};
}

// Runs it; whatever goes wrong is a failure.
Finding run_probe(Terminal& terminal, const Probe& probe) {
  std::string out;
  try {
    ChildCommand command = probe.command();
    command.limit = kProbeTimeout;
    const ChildResult result = run_child(
        command, terminal, [&](std::string_view line) { out += std::string(line) + "\n"; });
    if (!result.ok())
      return {probe.check, Level::kFail, child_error(probe.check, result).what(), probe.fix};
    const std::string found = probe.judge(out);
    if (found.empty()) return unexpected(probe, out);
    return {probe.check, Level::kOk, found, ""};
  } catch (const nlohmann::json::exception&) {  // JSON of other types than ours
    return unexpected(probe, out);
  } catch (const std::exception& error) {
    return {probe.check, Level::kFail, error.what(), probe.fix};
  }
}

// hedgerow-worker, and what it was linked with against what it loads here.
std::vector<Finding> examine_worker(Terminal& terminal) {
  std::vector<Finding> libraries;
  std::string git_hash;
  const Probe probe{
      .check = "hedgerow-worker",
      .fix = "build it, and run deploy/setup for LibTorch",
      .command =
          [&terminal] {
            return ChildCommand{.arguments = {worker_binary(terminal.console()), "probe"}};
          },
      .judge = [&](const std::string& out) -> std::string {
        const auto answer = nlohmann::json::parse(out, nullptr, /*allow_exceptions=*/false);
        if (!answer.is_object()) return "";
        libraries = {judge_mpi_library(answer), judge_nccl(answer)};
        git_hash = answer.value("git_hash", "?");
        return answer.value("version", "?") + " (" + git_hash + "), LibTorch " +
               answer.value("libtorch", "?");
      }};
  Finding worker = run_probe(terminal, probe);
  if (worker.level != Level::kOk) return {worker};
  if (git_hash != storage::git_hash()) {
    worker.level = Level::kWarn;
    worker.found += ", and hedgerow is " + storage::build();
    worker.fix = "build both from one commit; HEDGEROW_WORKER names another one";
  }
  libraries.insert(libraries.begin(), std::move(worker));
  return libraries;
}

}  // namespace

std::vector<Finding> examine_programs(Terminal& terminal) {
  const Console& console = terminal.console();
  std::vector<Finding> findings = examine_worker(terminal);
  findings.push_back(run_probe(
      terminal,
      {.check = "Python packages",
       .fix = "run deploy/setup",
       .command =
           [&console] {
             return ChildCommand{
                 .arguments = {
                     python_interpreter(console),
                     "-c",
                     std::string(kPackages) +
                         "; print('numpy', numpy.__version__, 'h5py', h5py.__version__)"}};
           },
       .judge = [](const std::string& out) { return out.substr(0, out.find('\n')); }}));
  findings.push_back(run_probe(
      terminal,
      {.check = "Python scripts",
       .fix = "set HEDGEROW_HUGGINGFACE to deploy/huggingface",
       .command =
           [&console] {
             return ChildCommand{
                 .arguments = {"test", "-f", huggingface_directory(console) / "make_tokens.py"}};
           },
       .judge =
           [&console](const std::string&) { return huggingface_directory(console).string(); }}));
  return findings;
}

}  // namespace hedgerow::coordinator::cli
