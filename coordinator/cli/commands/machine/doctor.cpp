#include "coordinator/cli/doctor/doctor.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>

#include "coordinator/cli/command.hpp"
#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/doctor/calibration.hpp"
#include "coordinator/cli/doctor/machine_speed.hpp"
#include "coordinator/cli/run/gpu.hpp"
#include "coordinator/cli/run/planning.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/plan/measured_nodes.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/cluster_file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::ExitCode;

namespace fs = std::filesystem;

constexpr int kMostPeers = 4096;

struct DoctorOptions {
  std::string directory = ".", recipe, calibrate, node;
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
  if (!options.recipe.empty()) return load_for_this_machine(options.recipe, "", std::nullopt);
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

// The address at which other nodes would reach this one; empty if there is none.
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

// What figures are measured for, and where they go: beside the cluster file, or into it, as a first
// entry.
struct Calibration {
  fs::path file{};
  std::string name{};                         // of the nodes
  std::string text{};                         // of a file that gets its first entry
  std::vector<storage::NodeKind> measured{};  // before
  bool is_new = false;
};

// What is wrong with the files or --node is said before anything is measured.
Calibration calibration_of(const DoctorOptions& options) {
  const fs::path path = fs::absolute(options.calibrate);
  require(fs::is_directory(path.parent_path()),
          options.calibrate + ": there is no folder " + path.parent_path().string() +
              "; make it, or name a file elsewhere");
  storage::require_file(path);
  Calibration found{.file = options.calibrate};
  if (fs::exists(path)) found.text = storage::read_text(path);
  const auto cluster = storage::Cluster::parse(found.text, options.calibrate);
  found.is_new = cluster.nodes.empty();
  found.name = options.node.empty() ? wire::this_host() : options.node;
  if (found.is_new) return found;
  found.name =
      cluster.nodes[entry_of(cluster, options.node, has_usable_gpus(), options.calibrate)].name;
  found.file = measured_beside(options.calibrate);
  if (fs::exists(found.file)) found.measured = storage::Cluster::load(found.file).nodes;
  return found;
}

void show(const MeasuredMachine& machine, const std::string& file, Terminal& terminal) {
  const storage::NodeKind& node = machine.node;
  const auto figure = [&](const std::string& name, double value, const std::string& what) {
    constexpr std::size_t kNameWidth = 16, kValueWidth = 8;
    std::string line = name;
    line.resize(kNameWidth, ' ');
    const std::string text = number_text(value, 3);
    line += std::string(kValueWidth - std::min(kValueWidth, text.size()), ' ') + text;
    terminal.print(line + "  " + what);
  };
  const measure::LayerProbe& probe = machine.probe;
  const std::string one = node.gpus > 0 ? "of a GPU" : "of a core";
  figure("memory_gb", node.memory_gb, "that a process may use");
  if (node.gpus > 0) figure("gpu_memory_gb", node.gpu_memory_gb, "of a GPU");
  figure("cores", node.cores, "that a process may use");
  figure("product_tflops",
         node.product_tflops,
         one + ", " + machine.device.compute_dtype + ", in products with a model's weights");
  figure("other_tflops", node.other_tflops, one + ", in attention and all else");
  figure("disk_gb_s", node.disk_gb_s, "that one process reads of the run's file system");
  figure("worker_start_s", node.worker_start_s, "until a worker computes");
  terminal.say("a layer of hidden size " + std::to_string(probe.hidden_size) + " over " +
               std::to_string(probe.sequences) + " x " + std::to_string(probe.seq_len) +
               " tokens took " + number_text(1e3 * machine.seconds.capture, 3) +
               " ms in capture, " + number_text(1e3 * machine.seconds.transfer, 3) +
               " ms in a step of transfer; " + std::to_string(machine.processes) +
               " at once, each on " + counted(probe.threads, "thread"));
  terminal.print(file + ": nodes \"" + node.name + "\" measured " + node.measured);
}

ExitCode run_calibration(const DoctorOptions& options, Terminal& terminal) {
  const Calibration calibration = calibration_of(options);
  const std::string file = calibration.file.string();
  std::optional<storage::Recipe> recipe;
  std::optional<storage::ModelConfig> model;
  if (!options.recipe.empty()) {
    recipe = storage::Recipe::load(options.recipe);
    model = storage::ModelDirectory::open(recipe->model.path).config();
  }
  const InterruptScope interrupts;
  auto machine = measure_machine(recipe, model, options.directory, terminal);
  if (!machine) {
    terminal.warn("interrupted; " + file + " is as it was");
    return ExitCode::kInterrupted;
  }
  storage::NodeKind& node = machine->node;
  node.name = calibration.name;
  storage::write_atomically(calibration.file,
                            calibration.is_new ? with_entry(calibration.text, node)
                                               : measured_text(calibration.measured, node));
  show(*machine, file, terminal);
  terminal.print_json({{"file", file},
                       {"node", node.name},
                       {"memory_gb", node.memory_gb},
                       {"gpu_memory_gb", node.gpu_memory_gb},
                       {"cores", node.cores},
                       {"product_tflops", node.product_tflops},
                       {"other_tflops", node.other_tflops},
                       {"disk_gb_s", node.disk_gb_s},
                       {"worker_start_s", node.worker_start_s},
                       {"measured", node.measured},
                       {"compute_dtype", machine->device.compute_dtype},
                       {"processes", machine->processes},
                       {"layer", machine->probe},
                       {"seconds", machine->seconds}});
  return ExitCode::kOk;
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
  CLI::Option* peers =
      app.add_option("--peers",
                     options->peers,
                     "only what nodes see of each other: N processes run this at once, one a node")
          ->type_name("N")
          ->check(CLI::Range(2, kMostPeers).description(""));
  CLI::Option* calibrate =
      app.add_option("--calibrate",
                     options->calibrate,
                     "only measure this machine, at --recipe's shapes if given, and write its "
                     "figures beside this cluster file, or into it if it has no nodes yet")
          ->type_name("FILE")
          ->excludes(peers);
  app.add_option("--node", options->node, "with --calibrate: the [[nodes]] that this machine is of")
      ->type_name("NAME")
      ->needs(calibrate);
  return [options](Terminal& terminal) {
    return options->calibrate.empty() ? run_doctor(*options, terminal)
                                      : run_calibration(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
