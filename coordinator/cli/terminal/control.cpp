#include "coordinator/cli/terminal/control.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "coordinator/cli/terminal/format.hpp"
#include "storage/history/columns.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kMostLayers = 8;  // lines: a run in which all stay untrained has hundreds
constexpr const char* kOwnSplit = "validation";  // as recipes call that of [data.evaluate]

// result[a][b] ..., an object; an empty one where something is absent.
json member(json object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (!object.is_object() || !object.contains(key)) return json::object();
    object = json(object[key]);
  }
  return object.is_object() ? object : json::object();
}

std::string share_text(double share) {
  if (!std::isfinite(share)) return "-";
  std::ostringstream text;
  text.setf(std::ios::fixed);
  text.precision(1);
  text << 100.0 * share << "%";
  return text.str();
}

// An evaluation by text: the section's own split, which stands at its top, and the named ones.
std::vector<std::pair<std::string, json>> texts_of(const json& evaluation) {
  std::vector<std::pair<std::string, json>> texts{{kOwnSplit, evaluation}};
  const json named = member(evaluation, {"texts"});
  for (const auto& [name, text] : named.items()) texts.emplace_back(name, text);
  return texts;
}

std::string domain_text(const json& text) {
  if (!text.is_object() || !text.contains("in_domain")) return "-";
  return text.value("in_domain", false) ? "in domain" : "not in domain";
}

// The evaluation of the first of these subjects that has one; else empty.
json last_evaluation(const RunStatus& status, std::initializer_list<const char*> subjects) {
  for (const char* subject : subjects) {
    const TaskStatus* task = status.task(std::string("evaluate/") + subject);
    if (task != nullptr && task->result.is_object() && !task->result.empty()) return task->result;
  }
  return json::object();
}

std::string untrained_text(const json& layer) {
  const std::string name = "layer " + std::to_string(layer.value("layer", -1));
  const std::string mse = number_text(number_or_nan(layer, "trained_mse"));
  const std::string control = number_text(number_or_nan(layer, "control_mse"));
  const std::string text = "MSE " + mse + " is above its control's " + control;
  if (layer.value("kept_untrained", false)) return name + ": kept untrained: " + text;
  return "warning: " + name + ": " + text +
         ", and this feature map cannot be switched off; the trained one is kept";
}

}  // namespace

int equal_window_of(const json& evaluation) {
  return member(evaluation, {"control"}).value("equal_window", 0);
}

std::string gap_text(const json& evaluation) {
  return share_text(number_or_nan(evaluation, "gap_closed"));
}

std::vector<std::string> column_lines(const json& evaluation, int width) {
  const json columns = member(evaluation, {"columns"});
  if (columns.empty()) return {};
  Table table;
  table.column("column", 9).column("perplexity", 8, true);
  const bool has_control = columns.contains("control");
  if (has_control) table.column("beyond " + std::to_string(evaluation.value("beyond", 0)), 7, true);
  table.column("KL", 4, true).column("top-1", 3, true);
  const bool has_gap = evaluation.contains("gap_closed");
  if (has_gap) table.column("gap closed", 5, true);
  for (const auto& [name, label] : storage::kEvaluateColumns) {
    const auto found = columns.find(name);
    if (found == columns.end()) continue;
    const json& column = *found;
    const bool is_student = name == "student";
    std::string shown = is_student ? evaluation.value("subject", "student") : std::string(label);
    if (name == "equal_window") shown += " " + std::to_string(equal_window_of(evaluation));
    std::vector<std::string> cells{std::move(shown),
                                   number_text(number_or_nan(column, "perplexity"))};
    if (has_control)
      cells.push_back(number_text(number_or_nan(member(column, {"beyond"}), "perplexity")));
    cells.push_back(number_text(number_or_nan(column, "kl")));
    cells.push_back(share_text(number_or_nan(column, "top1")));
    if (has_gap) cells.push_back(is_student ? gap_text(evaluation) : "");
    table.row(std::move(cells));
  }
  return table.render(width);
}

std::vector<std::string> text_lines(const json& evaluation, int width) {
  const auto texts = texts_of(evaluation);
  if (texts.size() < 2) return {};
  const std::string subject = evaluation.value("subject", "");
  const bool has_student = member(evaluation, {"columns"}).contains("student");
  Table table;
  table.column("text", 9).column("domain", 8).column("teacher", 6, true);
  table.column("control", 5, true);
  const int equal = equal_window_of(evaluation);
  if (equal > 0) table.column("window of " + std::to_string(equal), 5, true);
  if (has_student) table.column(subject, 7, true).column("gap closed", 4, true);
  for (const auto& [name, text] : texts) {
    const auto perplexity = [&text = text](const char* column) {
      return number_text(number_or_nan(member(text, {"columns", column}), "perplexity"));
    };
    std::vector<std::string> cells{
        name, domain_text(text), perplexity("teacher"), perplexity("control")};
    if (equal > 0) cells.push_back(perplexity("equal_window"));
    if (has_student) cells.insert(cells.end(), {perplexity("student"), gap_text(text)});
    table.row(std::move(cells));
  }
  return table.render(width);
}

std::vector<std::string> text_lines(const RunStatus& status, int width) {
  return text_lines(last_evaluation(status, {"lora", "transfer", "teacher"}), width);
}

std::string control_verdict(const json& evaluation) {
  const auto texts = texts_of(evaluation);
  std::string behind;
  for (const auto& [name, text] : texts) {
    const double student =
        number_or_nan(member(text, {"columns", "student", "beyond"}), "perplexity");
    const double control =
        number_or_nan(member(text, {"columns", "control", "beyond"}), "perplexity");
    if (!std::isfinite(control) || !std::isfinite(student) || student < control) continue;
    behind +=
        (behind.empty() ? "" : ", ") + number_text(student) + " against " + number_text(control);
    if (texts.size() > 1) behind += " on " + name + " (" + domain_text(text) + ")";
  }
  if (behind.empty()) return "";
  const json window = member(evaluation, {"control"});
  const int sinks = window.value("num_sinks", 0);
  return "the student does not beat its control (window of " +
         std::to_string(window.value("window_size", 0)) +
         (sinks > 0 ? " and " + counted(sinks, "sink") : "") + ", untrained): perplexity beyond " +
         std::to_string(evaluation.value("beyond", 0)) + " tokens " + behind +
         "; more steps (transfer.max_steps) help most, then attention.feature_dim";
}

std::string control_verdict(const RunStatus& status) {
  return control_verdict(last_evaluation(status, {"lora", "transfer"}));
}

std::vector<std::string> untrained_lines(const RunStatus& status, int width) {
  std::vector<std::string> texts;
  for (const TaskStatus& task : status.tasks) {
    if (task.stage != Stage::kTransfer || !task.result.is_object() ||
        !task.result.contains("layers"))
      continue;
    for (const json& layer : task.result["layers"]) {
      if (layer.is_object() && layer.contains("trained_mse"))
        texts.push_back(untrained_text(layer));
    }
  }
  if (texts.size() > kMostLayers) {
    const std::size_t more = texts.size() - kMostLayers;
    texts.resize(kMostLayers);
    texts.push_back("... and " + counted(static_cast<std::int64_t>(more), "more layer"));
  }
  std::vector<std::string> lines;
  for (const std::string& text : texts) {
    std::istringstream wrapped(wrap(text, width, /*indent=*/4));
    for (std::string line; std::getline(wrapped, line);) lines.push_back(fit(line, width));
  }
  return lines;
}

}  // namespace hedgerow::coordinator::cli
