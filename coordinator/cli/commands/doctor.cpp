#include "coordinator/cli/doctor/doctor.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/run/planning.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::ExitCode;

namespace fs = std::filesystem;

constexpr int kMostPeers = 4096;

struct DoctorOptions {
  std::string directory = ".", recipe;
  int peers = 0;
};

constexpr std::array kLevels{"ok", "warn", "fail"}, kColours{"32", "33", "31"};

std::string to_string(Level level) { return kLevels[static_cast<std::size_t>(level)]; }

void show(const Finding& finding, Terminal& terminal) {
  constexpr int kLevelWidth = 6;
  std::string level = to_string(finding.level);
  level.resize(kLevelWidth, ' ');
  terminal.print(terminal.coloured(level, kColours[static_cast<std::size_t>(finding.level)]) +
                 wrap(finding.check + ": " + one_line(finding.found),
                      terminal.width() - kLevelWidth,
                      kLevelWidth));
  if (!finding.fix.empty()) {
    terminal.print("      " +
                   wrap("fix: " + finding.fix, terminal.width() - kLevelWidth, kLevelWidth));
  }
}

// A report that grows finding by finding.
class Report {
 public:
  explicit Report(Terminal& terminal) : terminal_(terminal) {}

  void take(const std::vector<Finding>& findings) {
    terminal_.clear_status();
    for (const Finding& finding : findings) {
      ++counts_[static_cast<std::size_t>(finding.level)];
      worst_ = std::max(worst_, finding.level);
      show(finding, terminal_);
      checks_.push_back({{"check", finding.check},
                         {"level", to_string(finding.level)},
                         {"found", finding.found},
                         {"fix", finding.fix}});
    }
  }

  // For what may take a minute.
  void begin(const std::string& what) { terminal_.status("looking at " + what + " ..."); }

  ExitCode end() {
    const auto [ok, warn, fail] = counts_;
    terminal_.clear_status();
    terminal_.print(std::to_string(ok) + " ok, " + std::to_string(warn) + " warn, " +
                    std::to_string(fail) + " fail" + (fail > 0 ? "; mend what fails first" : ""));
    terminal_.print_json({{"worst", to_string(worst_)}, {"checks", std::move(checks_)}});
    return worst_ == Level::kFail ? ExitCode::kEnvironment : ExitCode::kOk;
  }

 private:
  Terminal& terminal_;
  Level worst_ = Level::kOk;
  std::array<int, 3> counts_{};  // by level
  nlohmann::json checks_ = nlohmann::json::array();
};

// The recipe that is given, else that of the run that lies in the directory.
std::optional<storage::Recipe> recipe_of(const DoctorOptions& options) {
  if (!options.recipe.empty()) return storage::Recipe::load(options.recipe);
  const storage::RunLayout run(options.directory);
  if (fs::exists(run.recipe())) return recipe_of_run(run);
  return std::nullopt;
}

NetworkFacts network_for(const std::optional<storage::Recipe>& recipe, const fs::path& directory) {
  NetworkFacts network = network_of_this_machine();
  if (!recipe) return network;
  network.bind = recipe->workers.bind;
  network.port = recipe->workers.port;
  if (!recipe->workers.advertise.empty()) network.host = recipe->workers.advertise;
  // The port is not free while the coordinator of that very run has it.
  const auto holder = wire::read_coordinator_file(storage::RunLayout(directory));
  if (holder && holder->host == wire::this_host() && wire::is_alive(holder->process))
    network.port = 0;
  return network;
}

// Where other nodes would reach this one; empty if nobody could.
std::string outer_address(const NetworkFacts& network) {
  for (const std::string& address : network.addresses_of(network.host)) {
    if (!address.starts_with("127.") && address != "::1") return address;
  }
  return "";
}

// What the plan needs; a run whose model or text is not here now is no reason to look at nothing.
std::optional<std::uint64_t> needed_bytes(const DoctorOptions& options,
                                          const std::optional<storage::Recipe>& recipe,
                                          Report& report) {
  if (!recipe) return std::nullopt;
  try {
    return plan_of(*recipe, plan_for(*recipe, options.directory)).peak_disk_bytes;
  } catch (const storage::Error& error) {
    if (!options.recipe.empty()) throw;
    report.take({{"plan",
                  Level::kWarn,
                  error.what(),
                  "until then free space is not held against what this run needs"}});
    return std::nullopt;
  }
}

ExitCode run_doctor(const DoctorOptions& options, Terminal& terminal) {
  Report report(terminal);
  const auto recipe = recipe_of(options);
  const NetworkFacts network = network_for(recipe, options.directory);
  if (options.peers > 0) {
    report.begin("the other " + std::to_string(options.peers - 1));
    report.take(meet_peers(
        options.directory,
        {.num_processes = options.peers, .host = network.host, .address = outer_address(network)}));
    return report.end();
  }
  const auto needed = needed_bytes(options, recipe, report);
  const MachineFacts facts = facts_of_this_machine(terminal.console());
  report.take(examine_machine(facts));
  report.begin("the directory");
  report.take(examine_directory(options.directory, facts, needed));
  report.begin("the network");
  report.take(examine_network(network, options.directory));
  report.begin("the programs");
  report.take(examine_programs(terminal));
  report.begin("the launch of MPI ranks");
  report.take(examine_mpi_launch(terminal));
  report.begin("the other nodes");
  report.take(examine_nodes(terminal, options.directory));
  return report.end();
}

}  // namespace

RunCommand declare_doctor(CLI::App& app) {
  const auto options = std::make_shared<DoctorOptions>();
  app.add_option("--dir", options->directory, "where the run will lie")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--recipe",
                 options->recipe,
                 "hold the free space against this recipe's plan; else the run's in DIR")
      ->type_name("FILE");
  app.add_option("--peers",
                 options->peers,
                 "only what nodes see of each other: N processes run this at once, one a node")
      ->type_name("N")
      ->check(CLI::Range(2, kMostPeers).description(""));
  return [options](Terminal& terminal) { return run_doctor(*options, terminal); };
}

}  // namespace hedgerow::coordinator::cli
