#include "coordinator/cli/tasks/evaluate_tasks.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/cli/terminal/task_scores.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/status/task_scores.hpp"
#include "storage/files/file.hpp"
#include "storage/model/model_config.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using storage::Error;
using storage::ErrorKind;
using storage::ExitCode;

// A directory that `hedgerow export` made: transformers runs it by its own code.
bool is_export(const fs::path& directory) {
  const fs::path path = directory / "config.json";
  if (!fs::exists(path)) return false;
  const json config = json::parse(storage::read_text(path), nullptr, /*allow_exceptions=*/false);
  return config.is_object() && config.contains("auto_map") &&
         fs::exists(directory / "modeling_hedgerow.py");
}

// {"name", "arguments"}: what deploy/huggingface/tasks starts `hedgerow-worker answer` with.
json subjects_of(const ModelChoice& choice) {
  json subjects = json::array();
  const auto add =
      [&](const char* name, const ModelChoice& own, const std::vector<std::string>& more = {}) {
        std::vector<std::string> arguments = own.worker_arguments();
        arguments.insert(arguments.end(), {"--device", own.device});
        arguments.insert(arguments.end(), more.begin(), more.end());
        subjects.push_back({{"name", name}, {"arguments", arguments}});
      };
  add("teacher", choice.teacher());
  if (choice.student.empty()) return subjects;
  ModelChoice untrained = choice.without_lora();
  untrained.recall_cache.reset();
  add("control", untrained, {"--window", "own"});
  add("equal_window", untrained, {"--window", "equal"});
  add("transfer", choice.without_lora());
  if (!choice.lora.empty()) add("lora", choice);
  return subjects;
}

json chosen_subjects(json all, const std::vector<std::string>& wanted) {
  if (wanted.empty()) return all;
  json chosen = json::array();
  for (const std::string& name : wanted) {
    const auto found =
        std::ranges::find_if(all, [&](const json& one) { return one.at("name") == name; });
    std::string known;
    for (const json& one : all)
      known += (known.empty() ? "" : ", ") + one.at("name").get<std::string>();
    require(found != all.end(), "--subjects " + name + ": not there; it has " + known);
    chosen.push_back(*found);
  }
  return chosen;
}

}  // namespace

void add_task_options(CLI::App& app, TaskOptions& options) {
  app.add_option("--tasks",
                 options.tasks,
                 "tasks in place of perplexities: passkey, kv_recall, multi_query_recall, "
                 "phone_book, long_generation, lm-eval's by name or as a YAML file")
      ->type_name("NAMES")
      ->delimiter(',');
  app.add_option(
         "--subjects",
         options.subjects,
         "with --tasks: of teacher, control, equal_window, transfer and lora; all that there "
         "are unless told")
      ->type_name("NAMES")
      ->delimiter(',');
  app.add_option(
         "--limit",
         options.limit,
         "with --tasks: at most so many questions of a task; of a generated one 20 unless told")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20).description(""));
  app.add_option("--shots", options.shots, "with --tasks: examples before each question")
      ->type_name("N")
      ->check(CLI::Range(0, 100).description(""));
  app.add_flag("--chat", options.chat, "with --tasks: in the model's chat template");
  app.add_option(
         "--data", options.data, "with --tasks: folder of the tasks' own files; no hub is asked")
      ->type_name("DIR");
  app.add_option("--lengths",
                 options.lengths,
                 "with --tasks: tokens of a generated question; 1024 unless told")
      ->type_name("N,N")
      ->delimiter(',')
      ->check(CLI::Range(64, 1 << 20).description(""));
  app.add_option(
         "--new-tokens", options.new_tokens, "with --tasks long_generation: 2048 unless told")
      ->type_name("N")
      ->check(CLI::Range(8, 1 << 20).description(""));
  app.add_option("--task-seed", options.seed, "with --tasks: of generated questions and examples")
      ->type_name("N");
  app.add_flag("--print-subjects", options.prints_subjects, "")->group("");
}

ExitCode evaluate_tasks(ModelOptions& model, const TaskOptions& options, Terminal& terminal) {
  json job = {{"worker", worker_binary(terminal.console())},
              {"tasks", options.tasks},
              {"chat", options.chat},
              {"seed", options.seed},
              {"new_tokens", options.new_tokens},
              {"data", options.data}};
  if (options.limit > 0) job["limit"] = options.limit;
  if (options.shots >= 0) job["shots"] = options.shots;
  if (!options.lengths.empty()) job["lengths"] = options.lengths;
  std::string run;
  if (model.run.empty() && !model.model.empty() && is_export(model.model)) {
    job["model"] = model.model;
    job["subjects"] = json::array({{{"name", "export"}, {"export", model.model}}});
  } else {
    const ModelChoice choice = choose_model(model);
    run = choice.run;
    job["model"] = storage::ModelDirectory::open(choice.model).path().string();
    job["subjects"] = chosen_subjects(subjects_of(choice), options.subjects);
  }
  if (options.prints_subjects) {
    terminal.print_json(job);
    return ExitCode::kOk;
  }
  const InterruptScope interrupts;
  terminal.status("evaluating tasks ...");
  json found;
  if (!run_python(
          terminal,
          "evaluating",
          "tasks/run_tasks.py",
          {},
          [&](const json& object) { found = object; },
          job.dump()))
    return ExitCode::kInterrupted;
  if (!found.contains("tasks")) throw Error(ErrorKind::kInternal, "run_tasks.py gave no result");
  for (const std::string& line : task_score_lines(found, terminal.answer_width()))
    terminal.print(line);
  for (const std::string& line : task_verdicts(found)) terminal.print(line);
  if (!run.empty()) record_task_scores(storage::RunLayout(run), found);
  terminal.print_json(found);
  return ExitCode::kOk;
}

}  // namespace hedgerow::coordinator::cli
