#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "coordinator/cli/doctor/doctor.hpp"
#include "coordinator/cli/programs/child.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/host/launcher.hpp"
#include "storage/base/build_info.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

constexpr const char* kPackages =
    "import numpy, h5py, tokenizers, transformers, xxhash, jinja2, gguf; print('numpy', "
    "numpy.__version__)";
// A cold shared file system brings libraries slowly, a launcher that is kept from a node hangs.
constexpr std::chrono::seconds kLimit{60}, kPeersLimit{150};
constexpr const char* kWithoutMpi = "or set finetune.ranks = 1 in the recipe";

// What a program says on its stdout, line by line; throws if it fails.
Words lines_of(Terminal& terminal, const Words& words, std::chrono::seconds limit = kLimit) {
  Words lines;
  const ChildResult result = run_child({.arguments = words, .limit = limit},
                                       terminal,
                                       [&](std::string_view line) { lines.emplace_back(line); });
  if (!result.ok()) throw child_error(words[0], result);
  return lines;
}

// JSON of other types than ours throws on its way.
template <typename Judge>
Outcome judged(const std::string& answer, const Judge& judge) {
  try {
    return judge(json::parse(answer));
  } catch (const json::exception&) {
    return {Level::kFail, "unexpected answer: " + one_line(answer)};
  }
}

// The first two numbers of "2.28.9" or "Open MPI v4.1.4".
std::pair<int, int> major_minor(const std::string& text) {
  const std::size_t at = text.find_first_of("0123456789");
  if (at == std::string::npos) return {0, 0};
  const std::size_t dot = text.find('.', at);
  return {std::atoi(text.c_str() + at),
          dot == std::string::npos ? 0 : std::atoi(text.c_str() + dot + 1)};
}

std::pair<std::string, std::string> versions(const json& probe, const char* library) {
  const json both = probe.value(library, json::object());
  return {both.value("built", ""), both.value("found", "")};
}

Outcome judge_worker(const json& probe) {
  const std::string git_hash = probe.value("git_hash", "?");
  const std::string found =
      probe.value("version", "?") + " (" + git_hash + "), LibTorch " + probe.value("libtorch", "?");
  if (git_hash == storage::git_hash()) return {Level::kOk, found};
  return {Level::kWarn,
          found + ", and hedgerow is " + storage::build(),
          "build both from one commit; HEDGEROW_WORKER names another one"};
}

Words srun(const std::string& nodes, const Words& words) {
  Words command = {"srun", "--overlap", "-N", nodes};
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

}  // namespace

Outcome judge_nccl(const json& probe) {
  const auto [built, found] = versions(probe, "nccl");
  if (built.empty())
    return {Level::kOk, "none in this build: GPUs would exchange gradients through MPI"};
  const bool is_older = major_minor(found) < major_minor(built);
  return {is_older ? Level::kFail : Level::kOk,
          (found.empty() ? "nothing" : found) + " is loaded, compiled with " + built};
}

Outcome judge_mpi_library(const json& probe) {
  const auto [built, found] = versions(probe, "mpi");
  if (built.empty()) {
    return {Level::kWarn,
            "none in this build: the finetune stage has one rank",
            "install libopenmpi-dev and build again, or set finetune.ranks = 1"};
  }
  // Open MPI keeps its interface within a major version.
  const bool is_same = major_minor(found).first == major_minor(built).first;
  return {is_same ? Level::kOk : Level::kFail, found + ", compiled with " + built};
}

std::vector<Finding> examine_programs(Terminal& terminal) {
  const Console& console = terminal.console();
  std::string probe;
  std::vector<Finding> findings = run_checks(
      {{"hedgerow-worker", "build it, and run deploy/setup for LibTorch", [&] {
          for (const std::string& line : lines_of(terminal, {worker_binary(console), "probe"}))
            probe += line;
          // All of the answer, so that one line tells of what is wrong with it.
          return judged(probe, [](const json& answer) {
            static_cast<void>(judge_nccl(answer));
            static_cast<void>(judge_mpi_library(answer));
            return judge_worker(answer);
          });
        }}});
  std::vector<Check> checks;
  if (findings.front().level != Level::kFail) {
    checks = {{"MPI library",
               "load a module with the same major version, or build against the one that is loaded",
               [&] { return judged(probe, judge_mpi_library); }},
              {"NCCL",
               "run deploy/setup --cuda, or set finetune.exchange = \"mpi\"; an older one may come "
               "from LD_LIBRARY_PATH",
               [&] { return judged(probe, judge_nccl); }}};
  }
  checks.push_back({"Python packages", "run deploy/setup", [&]() -> Outcome {
                      Words words = python_words(console);
                      words.insert(words.end(), {"-c", kPackages});
                      const Words lines = lines_of(terminal, words);
                      return {Level::kOk, lines.empty() ? "" : lines[0]};
                    }});
  checks.push_back(
      {"Python scripts", "set HEDGEROW_HUGGINGFACE to deploy/huggingface", [&]() -> Outcome {
         const fs::path folder = huggingface_directory(console);
         return {fs::exists(folder / "make_tokens.py") ? Level::kOk : Level::kFail, folder};
       }});
  for (const Finding& finding : run_checks(checks)) findings.push_back(finding);
  return findings;
}

Outcome judge_ranks(const Words& lines) {
  int num_alone = 0;
  for (const std::string& line : lines) {
    const json answer = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!answer.is_object() || !answer.contains("ranks")) continue;
    if (answer.value("ranks", 0) == 1) ++num_alone;
    if (answer.value("ranks", 0) != 2) continue;
    std::string hosts;
    for (const auto& host : answer.value("hosts", json::array()))
      hosts += (hosts.empty() ? "" : ", ") + host.get<std::string>();
    return {Level::kOk,
            "on " + hosts + ", exchanged a megabyte in " +
                number_text(answer.value("exchange_seconds", 0.0) * 1000.0) + " ms (" +
                answer.value("library", "") + ")"};
  }
  if (num_alone > 0)
    return {Level::kFail, "each rank came up alone: this launcher is not one of this MPI"};
  return {Level::kFail, "no rank answered" + (lines.empty() ? "" : ": " + one_line(lines[0]))};
}

std::vector<Finding> weigh_launchers(Finding mpirun, std::optional<Finding> srun) {
  const bool mpirun_works = mpirun.level == Level::kOk;
  const bool srun_works = srun && srun->level == Level::kOk;
  if (mpirun_works && srun && !srun_works) {
    *srun = {srun->check,
             Level::kOk,
             "does not start MPI ranks here (" + srun->found + "); mpirun does, and is used",
             ""};
  } else if (srun_works && !mpirun_works) {
    mpirun.level = Level::kWarn;
    mpirun.fix =
        "srun starts them: set finetune.launch = \"elsewhere\" and launch 'srun --mpi=pmix "
        "hedgerow-worker finetune --run DIR'";
  }
  std::vector<Finding> findings = {std::move(mpirun)};
  if (srun) findings.push_back(*std::move(srun));
  return findings;
}

// Two ranks of `hedgerow-worker mpi-probe`, on two nodes where the allocation has them, exactly as
// the finetune stage would be started.
std::vector<Finding> examine_mpi_launch(Terminal& terminal) {
  const Console& console = terminal.console();
  const auto start = [&](const char* check, Words words, const Words& ranks) {
    return run_checks(
        {{check,
          std::string("install openmpi-bin or load its module, let the nodes reach each other, ") +
              kWithoutMpi,
          [&] {
            words.insert(words.end(), ranks.begin(), ranks.end());
            words.insert(words.end(), {worker_binary(console), "mpi-probe"});
            return judge_ranks(lines_of(terminal, words));
          }}})[0];
  };
  std::optional<Finding> by_srun;
  if (console.environment("SLURM_JOB_ID")) {
    const bool is_alone = console.environment("SLURM_JOB_NUM_NODES").value_or("1") == "1";
    by_srun = start("srun, two ranks", srun(is_alone ? "1" : "2", {"--mpi=pmix", "-n", "2"}), {});
  }
  return weigh_launchers(start("mpirun, two ranks",
                               mpirun_words(/*in_allocation=*/false),
                               {"--map-by", "node", "-n", "2"}),
                         by_srun);
}

std::vector<Finding> worst_of_each(const Words& reports) {
  std::vector<Finding> worst;
  for (const std::string& line : reports) {
    const json report = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!report.is_object() || !report.contains("checks")) continue;
    for (const auto& check : report["checks"]) {
      const std::string level = check.value("level", "fail");
      const Finding finding{check.value("check", "?"),
                            level == "ok"     ? Level::kOk
                            : level == "warn" ? Level::kWarn
                                              : Level::kFail,
                            check.value("found", ""),
                            check.value("fix", "")};
      const auto same = std::ranges::find(worst, finding.check, &Finding::check);
      if (same == worst.end()) {
        worst.push_back(finding);
      } else if (finding.level > same->level) {
        *same = finding;
      }
    }
  }
  return worst;
}

std::vector<Finding> examine_nodes(Terminal& terminal, const fs::path& directory) {
  const std::string nodes = terminal.console().environment("SLURM_JOB_NUM_NODES").value_or("1");
  if (nodes == "1" || !terminal.console().environment("SLURM_JOB_ID")) return {};
  try {
    Words reports;
    const ChildResult result =
        run_child({.arguments = srun(nodes,
                                     {"-n",
                                      nodes,
                                      "--ntasks-per-node=1",
                                      own_binary(),
                                      "doctor",
                                      "--peers",
                                      nodes,
                                      "--dir",
                                      fs::absolute(directory),
                                      "--json"}),
                   .limit = kPeersLimit},
                  terminal,
                  [&](std::string_view line) { reports.emplace_back(line); });
    std::vector<Finding> findings = worst_of_each(reports);
    if (!findings.empty()) return findings;
    throw child_error("srun", result);
  } catch (const std::exception& error) {
    return {{"visibility between nodes",
             Level::kFail,
             error.what(),
             "try it by hand: srun -N " + nodes + " --ntasks-per-node=1 hedgerow doctor --peers " +
                 nodes}};
  }
}

}  // namespace hedgerow::coordinator::cli
