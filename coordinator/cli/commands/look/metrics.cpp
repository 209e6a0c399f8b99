#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/run/whole_job.hpp"
#include "coordinator/cli/terminal/history_lines.hpp"
#include "coordinator/cli/terminal/variants_table.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/status/status.hpp"
#include "coordinator/status/variants.hpp"
#include "coordinator/web/snapshot.hpp"
#include "storage/files/file.hpp"
#include "storage/history/columns.hpp"
#include "storage/history/history_file.hpp"
#include "storage/history/tensorboard.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::ExitCode;

struct MetricsOptions {
  std::string run, tensorboard, plot;
  int block = -1;
  bool csv = false, variants = false;
};

// What concerns one block alone.
storage::History of_block(const storage::History& history, const TaskStatus& transfer) {
  storage::History part;
  const auto is_of_block = [&](const std::pair<std::string, std::string>& label) {
    const int layer = label.first == "layer" ? std::atoi(label.second.c_str()) : -1;
    return layer >= transfer.first_layer && layer < transfer.first_layer + transfer.num_layers;
  };
  for (const auto& [name, series] : history.series)
    if (std::ranges::any_of(storage::series_key(name).labels, is_of_block))
      part.series.emplace(name, series);
  for (const auto& [token, attempt] : history.attempts)
    if (attempt.task == transfer.id) part.attempts.emplace(token, attempt);
  for (const storage::HistoryEvent& event : history.events)
    if (event.subject == transfer.id) part.events.push_back(event);
  for (const auto& [key, map] : history.attention)
    if (key.first >= transfer.first_layer && key.first < transfer.first_layer + transfer.num_layers)
      part.attention.emplace(key, map);
  return part;
}

void print_csv(const storage::History& history, Terminal& terminal) {
  terminal.print("series,step,unix_time,column,value");
  for (const auto& [name, series] : history.series)
    for (const storage::HistoryRow& row : series.rows)
      for (std::size_t i = 0; i < series.columns.size() && i < row.values.size(); ++i)
        if (std::isfinite(row.values[i]))
          terminal.print(name + "," + std::to_string(row.step) + "," +
                         std::to_string(static_cast<std::int64_t>(row.time)) + "," +
                         series.columns[i] + "," + number_text(row.values[i], 7));
}

void print_finetune(const storage::History& history, Terminal& terminal) {
  for (const char* name : {"finetune", "finetune/validation"}) {
    const auto found = history.series.find(name);
    if (found == history.series.end() || found->second.rows.empty()) continue;
    const storage::HistorySeries& series = found->second;
    std::string line = std::string(name) + ": step " + std::to_string(series.rows.back().step);
    for (const storage::HistoryColumn& column : storage::columns_of_tables(name)) {
      const std::size_t index = column_of(series, column.name);
      if (index < series.rows.back().values.size())
        line += ", " + std::string(column.name) + " " +
                number_text(series.rows.front().values[index]) + " -> " +
                number_text(series.rows.back().values[index]);
    }
    terminal.print(line);
  }
}

ExitCode print_variants(const storage::RunLayout& layout,
                        const std::string& plot,
                        Terminal& terminal) {
  const std::vector<VariantFigures> all = variants_of(read_status(layout));
  const storage::Recipe recipe = recipe_of_run(layout);
  require(!recipe.variants.empty(),
          layout.root().string() +
              ": its recipe has no [[variants]]; 'hedgerow init --study' "
              "writes a recipe with eight");
  if (all.empty()) terminal.say("no block of its transfer is done yet");
  VariantColumn hours{.title = "GPU-hours of all", .cells = {}},
      times{.title = "time of all", .cells = {}};
  nlohmann::json rows = to_json(all);
  for (nlohmann::json& row : rows) {
    const std::string name = row["variant"];
    if (const auto job = planned_whole_job(layout, recipe, name)) {
      times.cells[name] = duration_text(job->seconds);
      if (job->gpu_hours > 0.0) hours.cells[name] = number_text(job->gpu_hours, 3);
      row["whole_job"] = {
          {"seconds", job->seconds}, {"gpu_hours", job->gpu_hours}, {"cost", job->cost}};
    }
  }
  if (terminal.options().json) terminal.print_json({{"variants", rows}});
  const VariantColumn& whole = hours.cells.empty() ? times : hours;
  for (const std::string& line : variant_lines(all, terminal.answer_width(), whole))
    terminal.print(line);
  if (plot.empty()) return ExitCode::kOk;
  const std::filesystem::path file = plot + ".json";
  storage::write_atomically(file, nlohmann::json{{"variants", rows}}.dump(1) + "\n");
  const bool finished = run_python(
      terminal, "picture", "plot_variants.py", {"--rows", file, "--out", plot}, [](const auto&) {});
  if (!finished) return ExitCode::kInterrupted;
  terminal.say("wrote " + plot + " and, its figures, " + file.string());
  return ExitCode::kOk;
}

ExitCode run_metrics(const MetricsOptions& options, Terminal& terminal) {
  const storage::RunLayout layout(options.run);
  require(!options.csv || !terminal.options().json, "--csv and --json exclude each other");
  require_run(layout);
  require(options.plot.empty() || options.variants, "--plot is a picture of --variants");
  if (options.variants) return print_variants(layout, options.plot, terminal);
  storage::HistoryReader reader(layout);
  reader.read_all();
  storage::History history = reader.history();
  require(!history.series.empty() || !history.attempts.empty(),
          options.run +
              " has no history: nothing was measured in it yet, or it was made by a build "
              "that kept none");
  int first_layer = 0, num_layers = 0;
  if (options.block >= 0) {
    const RunStatus status = read_status(layout);
    const TaskStatus* transfer = nullptr;
    for (const TaskStatus& task : status.tasks)
      if (task.stage == Stage::kTransfer && task.block == options.block) transfer = &task;
    require(transfer != nullptr,
            "block " + std::to_string(options.block) +
                " does not exist: this run has blocks 0 to " +
                std::to_string(status.num_blocks - 1));
    history = of_block(history, *transfer);
    first_layer = transfer->first_layer;
    num_layers = transfer->num_layers;
  }
  if (!options.tensorboard.empty()) {
    storage::write_tensorboard(options.tensorboard, history);
    terminal.say("TensorBoard reads " + options.tensorboard + ": tensorboard --logdir " +
                 options.tensorboard);
  }
  if (options.csv) {
    print_csv(history, terminal);
    return ExitCode::kOk;
  }
  if (terminal.options().json) terminal.print_json(nlohmann::json::parse(history_json(history)));
  const int width = terminal.answer_width();
  const auto lines = options.block < 0 ? metrics_lines(history, width)
                                       : metrics_lines(history, first_layer, num_layers, width);
  for (const std::string& line : lines)
    terminal.print(terminal.has_colour() ? coloured_heat(line) : line);
  print_finetune(history, terminal);
  for (const storage::HistoryEvent& event : history.events)
    if (options.block >= 0) terminal.print(event.subject + ": " + one_line(event.text));
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_metrics(CLI::App& app) {
  const auto options = std::make_shared<MetricsOptions>();
  add_run(app, options->run);
  app.add_option("--block", options->block, "every validation of this block's layers")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber.description(""));
  app.add_flag("--variants",
               options->variants,
               "the students of the recipe's [[variants]], a row each, the smallest KL first");
  app.add_option("--plot",
                 options->plot,
                 "with --variants: KL against bytes and against planned hours as a PNG")
      ->type_name("FILE");
  app.add_flag("--csv", options->csv, "print series, step, time, column and value, a line each");
  app.add_option("--tensorboard", options->tensorboard, "write event files for TensorBoard there")
      ->type_name("DIR");
  return [options](Terminal& terminal) {
    options->run = run_or_here(options->run);
    return run_metrics(*options, terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
