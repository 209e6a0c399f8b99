#include "coordinator/cli/tasks/bench_generate.hpp"

#include <CLI/CLI.hpp>

#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "storage/model/model_config.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using nlohmann::json;
using storage::ExitCode;

std::string bytes_cell(const json& row, const char* key) {
  return row.contains(key) ? bytes_text(row[key].get<std::uint64_t>()) : "-";
}

}  // namespace

void add_generate_bench(CLI::App& app, GenerateBench& bench) {
  add_model_options(app, bench.model);
  const auto numbers = [&](const char* name, std::vector<int>& values, const char* description) {
    app.add_option(name, values, description)
        ->type_name("N,N")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 20).description(""))
        ->capture_default_str();
  };
  numbers("--batch", bench.batches, "generate: rows that step together");
  numbers("--prompt", bench.prompts, "generate: tokens of each prompt");
  numbers("--new", bench.new_tokens, "generate: tokens that follow each, at least 5");
  app.add_option("--plot", bench.plot, "generate: a picture of the rates, by matplotlib")
      ->type_name("FILE");
  app.add_flag("--alone",
               bench.alone,
               "generate: the student without the teacher and transformers, which a long context "
               "would take too long");
}

ExitCode bench_generate(GenerateBench& bench,
                        const std::string& device,
                        int threads,
                        Terminal& terminal) {
  for (const int count : bench.new_tokens)
    require(count >= 5, "--new " + std::to_string(count) + ": a rate needs at least 5 tokens");
  const ModelChoice choice = choose_model(bench.model);
  json subjects = json::array();
  if (!choice.student.empty()) subjects.push_back(worker_subject("student", choice, device));
  if (!bench.alone) subjects.push_back(worker_subject("teacher", choice.teacher(), device));
  require(!subjects.empty(), "--alone: the teacher has no student to be measured without it");
  const json job = {{"worker", worker_binary(terminal.console())},
                    {"model", storage::ModelDirectory::open(choice.model).path().string()},
                    {"subjects", subjects},
                    {"batches", bench.batches},
                    {"prompts", bench.prompts},
                    {"new", bench.new_tokens},
                    {"threads", threads},
                    {"opponent", !bench.alone},
                    {"plot", bench.plot}};
  const InterruptScope interrupts;
  terminal.status("measuring ...");
  Table table;
  table.column("by", 9)
      .column("batch", 8, true)
      .column("context", 7, true)
      .column("new", 3, true)
      .column("tokens/s", 9, true)
      .column("first token", 4, true)
      .column("last quarter", 2, true)
      .column("caches", 6, true)
      .column("memory", 5, true)
      .column("dtype", 1);
  const auto take = [&](const json& row) {
    if (row.value("event", "") != "measured") return;
    table.row({row.value("name", ""),
               std::to_string(row.value("batch", 0)),
               std::to_string(row.value("prompt", 0)),
               std::to_string(row.value("new", 0)),
               number_text(number_or_nan(row, "tokens_per_second")),
               duration_text(number_or_nan(row, "first_token_seconds")),
               number_text(number_or_nan(row, "slowing"), 3) + " x",
               bytes_cell(row, "cache_bytes"),
               bytes_cell(row, "peak_bytes"),
               row.value("dtype", "")});
    terminal.print_json(row);
  };
  const bool is_complete =
      run_python(terminal, "generating", "tasks/bench_generate.py", {}, take, job.dump());
  for (const std::string& line : table.render(terminal.answer_width())) terminal.print(line);
  return is_complete ? ExitCode::kOk : ExitCode::kInterrupted;
}

}  // namespace hedgerow::coordinator::cli
