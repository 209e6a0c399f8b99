#include "coordinator/cli/export/model_card.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/task_scores.hpp"
#include "coordinator/cli/terminal/view.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/status/status.hpp"
#include "storage/base/build_info.hpp"
#include "storage/files/file.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using storage::Recipe;

std::string front_matter(const std::string& teacher) {
  // A JSON string is one of YAML too, whatever the name holds.
  return "---\nbase_model: " + json(teacher).dump() +
         "\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n"
         "- hedgerow\n- linear-attention\n---\n\n";
}

std::string attention_text(const fs::path& student) {
  const fs::path file = student / "hedgerow.json";
  const json description = json::parse(storage::read_text(file), nullptr, false);
  if (!description.is_object() || !description.contains("attention")) {
    throw storage::Error(storage::ErrorKind::kCorrupt,
                         file.string() + ": no description of a student's attention");
  }
  std::string text = "## Attention\n\n```toml\n";
  for (const auto& [key, value] : description["attention"].items())
    text += key + " = " + value.dump() + "\n";
  return text + "softmax_layers = " + description.value("softmax_layers", json::array()).dump() +
         "\n```\n\n";
}

std::string steps_text(const Recipe& recipe, const RunStatus& status, bool has_lora) {
  const auto steps = [](int count, int sequences, int seq_len) {
    return std::to_string(count) + " steps of " + std::to_string(sequences) + " x " +
           std::to_string(seq_len) + " tokens";
  };
  std::string text = "- attention transfer, each layer alone: " +
                     (recipe.transfer.max_steps == 0 ? "none"
                                                     : steps(recipe.transfer.max_steps,
                                                             recipe.transfer.sequences_per_step,
                                                             recipe.data_transfer.seq_len)) +
                     "\n";
  if (has_lora) {
    std::string trained;
    for (const std::string& part : recipe.finetune.trainable) {
      if (!trained.empty()) trained += ", ";
      if (part == "lora") {
        trained += "LoRA of rank " + std::to_string(recipe.finetune.rank) + ", merged";
      } else {
        trained += part == "window_factors" ? "window factors" : part;
      }
    }
    text += "- " + trained + ": " +
            steps(recipe.finetune.max_steps,
                  recipe.finetune.sequences_per_step,
                  recipe.data_finetune.seq_len);
    const TaskStatus* finetune = status.task("finetune");
    const std::string adapter = finetune == nullptr ? "" : adapter_text(*finetune);
    text += (adapter.empty() ? "" : "; " + adapter) + "\n";
  }
  return "## Training\n\n" + text + "\n";
}

// The errors that the transfer itself validated with, for runs that evaluate nothing.
json transfer_errors(const RunStatus& status) {
  double sum = 0.0, worst = 0.0;
  int count = 0;
  for (const TaskStatus& task : status.tasks) {
    if (task.stage != Stage::kTransfer || !task.result.is_object()) continue;
    for (const json& layer : task.result.value("layers", json::array())) {
      const double mse = layer.value("mse", 0.0);
      sum += mse;
      worst = std::max(worst, mse);
      ++count;
    }
  }
  return count == 0 ? json::object() : json{{"mse_mean", sum / count}, {"mse_worst", worst}};
}

// What costs nothing, beside the student: its own window untrained, and that of its bytes.
std::string untrained_rows(const json& result) {
  const json columns = result.value("columns", json::object());
  const json window = result.value("control", json::object());
  std::string rows;
  const auto add = [&](const char* column, int size, const std::string& what) {
    if (!columns.contains(column)) return;
    rows += "| a window of " + std::to_string(size) + " and " +
            counted(window.value("num_sinks", 0), "sink") + ", untrained" + what + " | " +
            number_text(number_or_nan(columns[column], "perplexity")) + " | | |\n";
  };
  add("control", window.value("window_size", 0), "");
  add("equal_window", window.value("equal_window", 0), ", which takes the student's bytes");
  return rows;
}

std::string quality_text(const RunStatus& status, bool has_lora) {
  const auto cell = [](const json& result, const char* key) {
    return " | " + number_text(number_or_nan(result, key));
  };
  std::vector<std::pair<Subject, const char*>> rows{{Subject::kTeacher, "the teacher"},
                                                    {Subject::kTransfer, "after the transfer"}};
  if (has_lora) rows.emplace_back(Subject::kLora, "after LoRA");
  std::string table, untrained;
  for (const auto& [subject, label] : rows) {
    const TaskStatus* task = status.task(to_string(TaskId::evaluate(subject)));
    json result = json::object();
    if (task != nullptr && task->result.is_object()) result = task->result;
    if (result.empty() && subject == Subject::kTransfer) result = transfer_errors(status);
    if (result.empty()) continue;
    table += std::string("| ") + label + cell(result, "perplexity") + cell(result, "mse_mean") +
             cell(result, "mse_worst") + " |\n";
    untrained = untrained_rows(result);  // the same in each
  }
  table += untrained;
  if (table.empty()) return "";
  return "## Quality\n\nOn held-out text of the run; MSE is that of a layer's attention output "
         "against the teacher's.\n\n"
         "| | perplexity | MSE, mean over layers | MSE, worst layer |\n| --- | --- | --- | --- "
         "|\n" +
         table + "\n";
}

std::string tasks_text(const json& scores) {
  const std::string table = task_score_markdown(scores);
  if (table.empty()) return "";
  return "## Tasks\n\nBy EleutherAI's lm-eval " + scores.value("lm_eval", "") +
         ", each with its standard error. Control: the teacher with the student's window and "
         "sinks, untrained; equal bytes: the same with a window that takes the student's "
         "bytes.\n\n" +
         table + "\n";
}

std::string loading_text(const std::string& name, const std::string& compute_dtype) {
  return "## Loading\n\n```python\n"
         "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
         "model = AutoModelForCausalLM.from_pretrained(" +
         json(name).dump() +
         ", trust_remote_code=True)\n"
         "tokenizer = AutoTokenizer.from_pretrained(" +
         json(name).dump() +
         ")\n```\n\n"
         "The model's code lies beside its weights; `trust_remote_code=True` lets it run. "
         "Generation takes constant memory, however long the text. Attention is computed in plain "
         "PyTorch, or by hedgerow's own kernels where `HEDGEROW_OPS=/path/to/libhedgerow_ops.so` "
         "names them (CMake target `hedgerow_ops`, built against the same PyTorch).\n" +
         (compute_dtype == "auto"
              ? ""
              : "\n`from_pretrained` takes the precision that `config.json` names, " +
                    compute_dtype +
                    ", in which the run itself evaluated the model; `dtype=` takes another.\n");
}

// The last part of the path, of "models/teacher/" too.
std::string own_name(const fs::path& directory) {
  const fs::path whole = fs::absolute(directory).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

}  // namespace

std::string teacher_name(const std::string& model) {
  if (storage::ModelDirectory::is_hub_name(model)) return model;
  // A cache holds models--org--name/snapshots/<commit>.
  constexpr std::string_view kCached = "models--";
  const fs::path directory = fs::absolute(model).lexically_normal();
  for (const fs::path& part : directory) {
    std::string name = part.string();
    if (!name.starts_with(kCached)) continue;
    name.erase(0, kCached.size());
    const std::size_t slash = name.find("--");
    if (slash != std::string::npos) return name.replace(slash, 2, "/");
  }
  return own_name(directory);
}

std::string model_card(const ModelChoice& choice, const fs::path& out) {
  const std::string name = own_name(out);
  const std::string teacher = teacher_name(choice.model);
  const bool has_lora = !choice.lora.empty();
  std::string text = front_matter(teacher) + "# " + name + "\n\n" + teacher +
                     " with linear attention in place of softmax attention, made by hedgerow " +
                     storage::version() + " with the LoLCATs method: attention transfer" +
                     (has_lora ? ", then LoRA" : "") +
                     ". The teacher's licence holds for these weights.\n\n" +
                     attention_text(choice.student);
  if (!choice.run.empty()) {
    const storage::RunLayout layout(choice.run);
    const RunStatus status = read_status(layout);
    text += steps_text(recipe_of_run(layout), status, has_lora) + quality_text(status, has_lora) +
            tasks_text(status.task_scores);
  }
  return text + loading_text(name, choice.compute_dtype);
}

}  // namespace hedgerow::coordinator::cli
