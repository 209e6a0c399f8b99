// What takes launchers to find out. Does the launch of the finetune stage work here? The launchers
// start two ranks of `hedgerow-worker mpi-probe`, on two nodes where the allocation has them,
// exactly as the stage would be started.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "coordinator/cli/doctor/doctor.hpp"
#include "coordinator/cli/programs/child.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/host/launcher.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {
namespace {

constexpr std::chrono::seconds kLauncherTimeout{60};  // a launcher that is kept from a node hangs
constexpr std::chrono::seconds kPeersTimeout{150};
constexpr const char* kWithoutMpi = "or set finetune.ranks = 1 in the recipe";

std::vector<std::string> mpirun_command(const std::string& worker) {
  std::vector<std::string> command = mpirun_words();  // as the stage is started
  command.insert(command.end(), {"--map-by", "node", "-n", "2", worker, "mpi-probe"});
  return command;
}

std::vector<std::string> srun_command(const std::string& worker, const Console& console) {
  const std::string nodes = console.environment("SLURM_JOB_NUM_NODES").value_or("1");
  return {"srun",
          "--mpi=pmix",
          "--overlap",
          "-N",
          nodes == "1" ? "1" : "2",
          "-n",
          "2",
          worker,
          "mpi-probe"};
}

Finding launch(Terminal& terminal,
               const std::string& check,
               const std::vector<std::string>& words) {
  try {
    std::vector<std::string> lines;
    const ChildResult result = run_child({.arguments = words, .limit = kLauncherTimeout},
                                         terminal,
                                         [&](std::string_view line) { lines.emplace_back(line); });
    if (result.ok()) return judge_ranks(check, lines);
    return {check, Level::kFail, child_error(words[0], result).what(), kWithoutMpi};
  } catch (const std::exception& error) {
    return {check, Level::kFail, error.what(), kWithoutMpi};
  }
}

}  // namespace

Finding judge_ranks(const std::string& check, const std::vector<std::string>& lines) {
  int num_alone = 0;
  for (const std::string& line : lines) {
    const auto answer = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!answer.is_object() || !answer.contains("ranks")) continue;
    if (answer.value("ranks", 0) == 1) ++num_alone;
    if (answer.value("ranks", 0) != 2) continue;
    std::string hosts;
    for (const auto& host : answer.value("hosts", nlohmann::json::array()))
      hosts += (hosts.empty() ? "" : ", ") + host.get<std::string>();
    return {check,
            Level::kOk,
            "on " + hosts + ", exchanged a megabyte in " +
                number_text(answer.value("exchange_seconds", 0.0) * 1000.0) + " ms (" +
                answer.value("library", "") + ")",
            ""};
  }
  const std::string found =
      num_alone > 0 ? "each rank came up alone: this launcher is not one of this MPI"
                    : "no rank answered" + (lines.empty() ? "" : ": " + one_line(lines.front()));
  return {check, Level::kFail, found, kWithoutMpi};
}

std::vector<Finding> weigh_launchers(Finding mpirun, std::optional<Finding> srun) {
  const auto works = [](const Finding& finding) { return finding.level == Level::kOk; };
  if (srun && works(mpirun) && !works(*srun)) {
    srun->level = Level::kOk;
    srun->found = "does not start MPI ranks here (" + srun->found + "); mpirun does, and is used";
    srun->fix.clear();
  } else if (srun && works(*srun) && !works(mpirun)) {
    mpirun.level = Level::kWarn;
    mpirun.fix =
        "srun starts them: set finetune.launch = \"elsewhere\" and launch 'srun --mpi=pmix "
        "hedgerow-worker finetune --run DIR'";
  } else if (!works(mpirun)) {
    mpirun.fix = std::string(
                     "install openmpi-bin or load its module, let the nodes reach each "
                     "other, ") +
                 kWithoutMpi;
  }
  std::vector<Finding> findings = {std::move(mpirun)};
  if (srun) findings.push_back(*std::move(srun));
  return findings;
}

std::vector<Finding> worst_of_each(const std::vector<std::string>& reports) {
  std::vector<Finding> worst;
  for (const std::string& line : reports) {
    const auto report = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!report.is_object() || !report.contains("checks")) continue;
    for (const auto& check : report["checks"]) {
      const std::string level = check.value("level", "fail");
      Finding finding{check.value("check", "?"),
                      level == "ok"     ? Level::kOk
                      : level == "warn" ? Level::kWarn
                                        : Level::kFail,
                      check.value("found", ""),
                      check.value("fix", "")};
      const auto same = std::ranges::find(worst, finding.check, &Finding::check);
      if (same == worst.end()) {
        worst.push_back(std::move(finding));
      } else if (finding.level > same->level) {
        *same = std::move(finding);
      }
    }
  }
  return worst;
}

std::vector<Finding> examine_nodes(Terminal& terminal, const std::filesystem::path& directory) {
  const std::string nodes = terminal.console().environment("SLURM_JOB_NUM_NODES").value_or("1");
  if (nodes == "1" || !terminal.console().environment("SLURM_JOB_ID")) return {};
  const std::string check = "visibility between nodes";
  const std::string fix =
      "try it by hand: srun -N " + nodes + " --ntasks-per-node=1 hedgerow doctor --peers " + nodes;
  try {
    std::vector<std::string> reports;
    const ChildResult result =
        run_child({.arguments = {"srun",
                                 "--overlap",
                                 "-N",
                                 nodes,
                                 "-n",
                                 nodes,
                                 "--ntasks-per-node=1",
                                 own_binary(),
                                 "doctor",
                                 "--peers",
                                 nodes,
                                 "--dir",
                                 std::filesystem::absolute(directory),
                                 "--json"},
                   .limit = kPeersTimeout},
                  terminal,
                  [&](std::string_view line) { reports.emplace_back(line); });
    std::vector<Finding> findings = worst_of_each(reports);
    if (!findings.empty()) return findings;
    return {{check, Level::kFail, child_error("srun", result).what(), fix}};
  } catch (const std::exception& error) {
    return {{check, Level::kFail, error.what(), fix}};
  }
}

std::vector<Finding> examine_mpi_launch(Terminal& terminal) {
  std::string worker;
  try {
    worker = worker_binary(terminal.console());
  } catch (const std::exception& error) {
    return {{"mpirun, two ranks", Level::kFail, error.what(), "build hedgerow-worker first"}};
  }
  std::optional<Finding> srun;
  if (terminal.console().environment("SLURM_JOB_ID"))
    srun = launch(terminal, "srun, two ranks", srun_command(worker, terminal.console()));
  return weigh_launchers(launch(terminal, "mpirun, two ranks", mpirun_command(worker)),
                         std::move(srun));
}

}  // namespace hedgerow::coordinator::cli
