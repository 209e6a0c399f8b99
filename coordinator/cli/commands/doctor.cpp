#include "coordinator/cli/doctor.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/format.hpp"
#include "coordinator/cli/planning.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::ExitCode;

struct DoctorOptions {
  std::string directory = ".", recipe;
};

const char* to_string(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarn:
      return "warn";
    case Level::kFail:
      break;
  }
  return "fail";
}

const char* colour_of(Level level) {
  switch (level) {
    case Level::kOk:
      return "32";
    case Level::kWarn:
      return "33";
    case Level::kFail:
      break;
  }
  return "31";
}

void show(const Finding& finding, Terminal& terminal) {
  constexpr int kLevelWidth = 6;
  std::string level = to_string(finding.level);
  level.resize(kLevelWidth, ' ');
  terminal.print(terminal.coloured(level, colour_of(finding.level)) +
                 wrap(finding.check + ": " + one_line(finding.found),
                      terminal.width() - kLevelWidth,
                      kLevelWidth));
  if (!finding.fix.empty()) {
    terminal.print("      " +
                   wrap("fix: " + finding.fix, terminal.width() - kLevelWidth, kLevelWidth));
  }
}

ExitCode run_doctor(const DoctorOptions& options, Terminal& terminal) {
  std::optional<std::uint64_t> needed;
  if (!options.recipe.empty())
    needed = plan_of(storage::Recipe::load(options.recipe), options.directory).peak_disk_bytes;
  Level worst = Level::kOk;
  nlohmann::json checks = nlohmann::json::array();
  const auto take = [&](const std::vector<Finding>& findings) {
    for (const Finding& finding : findings) {
      worst = std::max(worst, finding.level);
      show(finding, terminal);
      checks.push_back({{"check", finding.check},
                        {"level", to_string(finding.level)},
                        {"found", finding.found},
                        {"fix", finding.fix}});
    }
  };
  take(examine_machine());
  take(examine_directory(options.directory, needed));
  take(examine_programs(terminal));
  terminal.print_json({{"worst", to_string(worst)}, {"checks", checks}});
  return worst == Level::kFail ? ExitCode::kEnvironment : ExitCode::kOk;
}

}  // namespace

RunCommand declare_doctor(CLI::App& app) {
  const auto options = std::make_shared<DoctorOptions>();
  app.add_option("--dir", options->directory, "where the run will lie")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--recipe", options->recipe, "hold the free space against this recipe's plan")
      ->type_name("FILE");
  return [options](Terminal& terminal) { return run_doctor(*options, terminal); };
}

}  // namespace hedgerow::coordinator::cli
