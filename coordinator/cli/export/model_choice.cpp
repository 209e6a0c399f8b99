#include "coordinator/cli/export/model_choice.hpp"

#include <CLI/CLI.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "coordinator/dispatch/term.hpp"
#include "coordinator/state/fold.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/status/status.hpp"
#include "storage/base/error.hpp"
#include "storage/check.hpp"
#include "storage/files/file.hpp"
#include "storage/journal/journal.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/recipe.hpp"
#include "storage/shards/tokens_file.hpp"
#include "storage/tensors/safetensors.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::RunLayout;

bool is_done(const RunStatus& status, const std::string& id) {
  const TaskStatus* task = status.task(id);
  return task != nullptr && task->state == "done";
}

// What the choice stands on has the bytes that the journal recorded, or it throws.
void verify_outputs(const RunLayout& layout, const State& state, const TaskId& id) {
  for (const storage::FileRecord& file : state.task(id).files) {
    try {
      storage::verify_file(layout.resolve(file.name), file);
    } catch (const storage::Error& error) {
      throw storage::Error(error.kind(),
                           std::string(error.what()) +
                               "; 'hedgerow check --repair' marks what is damaged as lost, and "
                               "'hedgerow run' makes it again");
    }
  }
}

// What the student was trained and evaluated in, if its description says so; what else is wrong
// with that file, its reader says.
std::string recorded_compute_dtype(const fs::path& student) {
  const fs::path file = student / "hedgerow.json";
  if (student.empty() || !fs::exists(file)) return "auto";
  const auto description = nlohmann::json::parse(storage::read_text(file), nullptr, false);
  if (!description.is_object() || !description.contains("compute_dtype")) return "auto";
  const nlohmann::json& word = description["compute_dtype"];
  require(word == "auto" || word == "bf16" || word == "fp32",
          file.string() + ": compute_dtype: expected bf16 or fp32, found " + word.dump());
  return word;
}

ModelChoice choose_from_run(const ModelOptions& options) {
  require(options.student.empty() && options.lora.empty(),
          "--student and --lora belong to --model, not to --run");
  const RunLayout layout(options.run);
  const RunStatus status = read_status(layout);
  const storage::Recipe recipe = recipe_of_run(layout);
  ModelChoice choice;
  choice.run = options.run;
  choice.model = recipe.model.path;
  choice.device = recipe.plan.device;
  choice.compute_dtype = recipe.plan.compute_dtype;
  const Subject last = is_done(status, "finetune") ? Subject::kLora : Subject::kTransfer;
  const Subject subject = subject_from_string(options.subject).value_or(last);
  if (subject == Subject::kTeacher) return choice;
  require(is_done(status, "assemble"),
          options.run + " has no student yet (assemble is not done); 'hedgerow status --run " +
              options.run + "' says how far it is" +
              (options.takes_teacher ? ", --subject teacher takes the model it began with" : ""));
  choice.student = layout.resolve(RunLayout::student_directory(status.task("assemble")->token));
  const FoldedRun folded = fold(storage::replay_journal(layout));
  verify_outputs(layout, folded.state, TaskId::assemble());
  if (subject == Subject::kTransfer) return choice;
  require(is_done(status, "finetune"),
          options.run +
              " has no LoRA adapter (finetune is not done); --subject transfer takes the student "
              "without it");
  verify_outputs(layout, folded.state, TaskId::finetune());
  choice.lora = layout.resolve(RunLayout::adapter_directory(status.task("finetune")->token));
  return choice;
}

ModelChoice choose_directories(const ModelOptions& options) {
  require(options.subject.empty(), "--subject belongs to --run");
  require(options.lora.empty() || !options.student.empty(),
          "--lora needs --student: it was trained on one");
  ModelChoice choice;
  choice.model = options.model;
  choice.student = options.student;
  choice.lora = options.lora;
  choice.compute_dtype = recorded_compute_dtype(options.student);
  for (const fs::path& directory : {choice.student, choice.lora}) {
    require(directory.empty() || fs::is_directory(directory),
            directory.string() + ": no such directory");
  }
  return choice;
}

nlohmann::json read_object(const fs::path& path) {
  const auto object =
      nlohmann::json::parse(storage::read_text(path), nullptr, /*allow_exceptions=*/false);
  require(object.is_object(), path.string() + ": not a JSON object; get or write the file again");
  return object;
}

// By its description, and before anything is loaded, or copied into an export that no model fits.
void require_made_from(const storage::ModelDirectory& model, const fs::path& student) {
  std::ignore = storage::SafetensorsFile(student / "feature_maps.safetensors");
  const fs::path path = student / "hedgerow.json";
  const nlohmann::json description = read_object(path);
  const auto teacher = description.find("teacher");
  if (teacher == description.end() || !teacher->is_object()) return;  // its reader says more
  const std::string made_from = teacher->value("fingerprint", model.fingerprint());
  require(made_from == model.fingerprint(),
          path.string() + ": the student was made from a teacher with fingerprint " + made_from +
              ", but " + model.path().string() + " has " + model.fingerprint() +
              "; name the right model");
}

// Each A has as many columns, and each B as many rows, as the matrix that they are added to.
void require_made_for(const storage::ModelDirectory& model, const fs::path& lora) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (int layer = 0; layer < model.config().num_hidden_layers; ++layer) {
    for (const storage::TensorShape& tensor : storage::layer_tensors(model.config(), layer))
      shapes[tensor.name] = tensor.shape;
  }
  std::ignore = read_object(lora / "adapter_config.json");
  const fs::path path = lora / "adapter_model.safetensors";
  const storage::SafetensorsFile file(path);
  for (const auto& [name, view] : file.tensors()) {
    constexpr std::string_view kPrefix = "base_model.model.";
    const std::size_t end = name.find(".lora_");
    if (!name.starts_with(kPrefix) || end == std::string::npos || view.shape.size() != 2) continue;
    const std::string module = name.substr(kPrefix.size(), end - kPrefix.size());
    require(module.starts_with("model.layers."),
            path.string() + ": " + name + ": LoRA of " + module +
                " is not supported; it is computed in the projections of attention and MLP of the "
                "decoder layers");
    const auto matrix = shapes.find(module + ".weight");
    const std::size_t side = name.substr(end).starts_with(".lora_A") ? 1 : 0;
    const bool fits = matrix != shapes.end() && matrix->second.at(side) == view.shape[side];
    require(fits,
            path.string() + ": " + name + " fits no matrix of " + model.path().string() +
                ", so the adapter was made for another model; name the right one");
  }
}

void require_fit(const ModelChoice& choice) {
  require(!choice.recall_cache || !choice.student.empty(),
          "--recall-cache is a student's; the teacher has none");
  if (choice.student.empty()) return;
  const auto model = storage::ModelDirectory::open(choice.model);
  storage::read_given([&] {
    require_made_from(model, choice.student);
    // A run's own was made on its student.
    if (choice.run.empty() && !choice.lora.empty()) require_made_for(model, choice.lora);
  });
}

}  // namespace

void add_model_options(CLI::App& app, ModelOptions& options) {
  add_run(app, options.run);
  std::vector<std::string> subjects{"transfer", "lora"};
  if (options.takes_teacher) subjects.insert(subjects.begin(), "teacher");
  one_of(app.add_option(
             "--subject", options.subject, "which stage of the run; the last one unless told"),
         subjects);
  app.add_option("--model", options.model, "in place of a run: the teacher")->type_name("DIR");
  app.add_option("--student", options.student, "with --model: the student's feature maps")
      ->type_name("DIR");
  app.add_option("--lora", options.lora, "with --student: a PEFT adapter")->type_name("DIR");
  app.add_option("--recall-cache",
                 options.recall_cache,
                 "keys a kv head that stay exact behind the window, in place of the student's "
                 "attention.recall_cache; also for a student that was made without")
      ->type_name("N")
      ->check(CLI::Range(0, 65536).description(""));
}

void add_device_option(CLI::App& app, ModelOptions& options) {
  one_of(app.add_option(
             "--device", options.device, "where to compute; as the run's recipe says, or auto"),
         {"auto", "cpu", "cuda"});
}

std::string ModelChoice::subject() const {
  const Subject last = lora.empty() ? Subject::kTransfer : Subject::kLora;
  return std::string(to_string(student.empty() ? Subject::kTeacher : last));
}

std::vector<std::string> ModelChoice::worker_arguments() const {
  std::vector<std::string> arguments{"--model", model};
  if (!student.empty()) arguments.insert(arguments.end(), {"--student", student.string()});
  if (!lora.empty()) arguments.insert(arguments.end(), {"--adapter", lora.string()});
  if (recall_cache)
    arguments.insert(arguments.end(), {"--recall-cache", std::to_string(*recall_cache)});
  arguments.insert(arguments.end(), {"--compute-dtype", compute_dtype});
  return arguments;
}

ModelChoice ModelChoice::without_lora() const {
  ModelChoice less = *this;
  less.lora.clear();
  return less;
}

ModelChoice ModelChoice::teacher() const {
  ModelChoice less = without_lora();
  less.student.clear();
  less.recall_cache.reset();
  return less;
}

void verify_evaluations(const std::string& run) {
  const RunLayout layout(run);
  const State state = fold(storage::replay_journal(layout)).state;
  for (const auto& [id, task] : state.tasks) {
    if (id.stage == Stage::kEvaluate) verify_outputs(layout, state, id);
  }
}

std::string evaluated_tokens(const std::string& run, const storage::Recipe& recipe) {
  const storage::RunLayout layout(run);
  const auto recorded = fold(replay_if_any(layout)).state.inputs.tokens;
  std::vector<storage::TokensOf> files{storage::DataStage::kEvaluate};
  for (const storage::NamedText& text : recipe.texts)
    files.emplace_back(storage::DataStage::kEvaluate, text.name);
  for (const storage::TokensOf& of : files) {
    const std::string name = storage::RunLayout::tokens(of);
    const std::filesystem::path path = layout.root() / name;
    require(std::filesystem::exists(path),
            path.string() + ": no such tokens file; 'hedgerow run --run " + run +
                "' makes it where the recipe has data.evaluate, and --tokens names another");
    for (const storage::FileRecord& file : recorded) {
      if (file.name == name) storage::verify_tokens(path, file);
    }
  }
  return layout.root() / storage::RunLayout::tokens(storage::DataStage::kEvaluate);
}

ModelChoice choose_model(ModelOptions& options) {
  if (options.model.empty() && options.run.empty() && fs::exists("run.toml")) options.run = ".";
  require(options.run.empty() != options.model.empty(),
          "say which model: --run DIR, or --model DIR (with --student and --lora)");
  ModelChoice choice = options.run.empty() ? choose_directories(options) : choose_from_run(options);
  if (!options.device.empty()) choice.device = options.device;
  choice.recall_cache = options.recall_cache;
  require_fit(choice);
  return choice;
}

}  // namespace hedgerow::coordinator::cli
