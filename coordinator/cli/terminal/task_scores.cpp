#include "coordinator/cli/terminal/task_scores.hpp"

#include <algorithm>
#include <cmath>

#include "coordinator/cli/terminal/format.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using nlohmann::json;

// Metrics of which less is better; of the others more is.
bool is_loss(const std::string& metric) {
  return metric.find("perplexity") != std::string::npos ||
         metric.find("bits_per_byte") != std::string::npos || metric == "repetition";
}

// An empty object where there is none.
const json& member(const json& object, const char* key) {
  static const json kNone = json::object();
  if (!object.is_object()) return kNone;
  const auto found = object.find(key);
  return found != object.end() ? *found : kNone;
}
const json& member(const json& object, const std::string& key) {
  return member(object, key.c_str());
}

std::string score_text(const json& figure) {
  const double value = number_or_nan(figure, "value"), error = number_or_nan(figure, "stderr");
  if (!std::isfinite(value)) return "-";
  return number_text(value, 3) + (std::isfinite(error) ? " +-" + number_text(error, 2) : "");
}

// Of all tasks, in the order of kTaskSubjects; an export or another one behind.
std::vector<std::string> subjects_of(const json& scores) {
  std::vector<std::string> found;
  for (const auto& [name, task] : member(scores, "tasks").items()) {
    for (const auto& [subject, own] : member(task, "subjects").items()) {
      if (std::ranges::find(found, subject) == found.end()) found.push_back(subject);
    }
  }
  const auto place = [](const std::string& subject) {
    return std::ranges::find(kTaskSubjects, subject) - kTaskSubjects.begin();
  };
  std::ranges::stable_sort(found, {}, place);
  return found;
}

std::string label_of(const std::string& subject) {
  return subject == "equal_window" ? "equal bytes" : subject;
}

// The metrics of a task, by any of its subjects.
std::vector<std::string> metrics_of(const json& task) {
  std::vector<std::string> metrics;
  for (const auto& [subject, own] : member(task, "subjects").items()) {
    for (const auto& [metric, figure] : member(own, "metrics").items()) {
      if (std::ranges::find(metrics, metric) == metrics.end()) metrics.push_back(metric);
    }
  }
  return metrics;
}

}  // namespace

std::vector<std::string> task_score_lines(const json& scores, int width) {
  const std::vector<std::string> subjects = subjects_of(scores);
  if (subjects.empty()) return {};
  Table table;
  table.column("task", 9).column("metric", 8).column("n", 2, true);
  for (std::size_t i = 0; i < subjects.size(); ++i) table.column(label_of(subjects[i]), 7, true);
  for (const auto& [name, task] : member(scores, "tasks").items()) {
    for (const std::string& metric : metrics_of(task)) {
      std::vector<std::string> cells{name, metric, std::to_string(task.value("samples", 0))};
      for (const std::string& subject : subjects) {
        cells.push_back(score_text(
            member(member(member(member(task, "subjects"), subject), "metrics"), metric)));
      }
      table.row(std::move(cells));
    }
  }
  return table.render(width);
}

std::string task_score_markdown(const json& scores) {
  const std::vector<std::string> subjects = subjects_of(scores);
  if (subjects.empty()) return "";
  std::string head = "| task | metric | questions | shots |", rule = "| --- | --- | --- | --- |",
              rows;
  for (const std::string& subject : subjects) {
    head += " " + label_of(subject) + " |";
    rule += " --- |";
  }
  for (const auto& [name, task] : member(scores, "tasks").items()) {
    for (const std::string& metric : metrics_of(task)) {
      rows += "| " + name + " | " + metric + " | " + std::to_string(task.value("samples", 0)) +
              " | " + member(task, "shots").dump() + " |";
      for (const std::string& subject : subjects) {
        rows += " " +
                score_text(
                    member(member(member(member(task, "subjects"), subject), "metrics"), metric)) +
                " |";
      }
      rows += "\n";
    }
  }
  return head + "\n" + rule + "\n" + rows;
}

std::vector<std::string> task_verdicts(const json& scores) {
  std::vector<std::string> lines;
  for (const auto& [name, task] : member(scores, "tasks").items()) {
    const json& subjects = member(task, "subjects");
    const char* student = subjects.contains("lora") ? "lora" : "transfer";
    for (const std::string& metric : metrics_of(task)) {
      const auto value = [&](const char* subject) {
        return number_or_nan(member(member(member(subjects, subject), "metrics"), metric), "value");
      };
      const double own = value(student), window = value("equal_window");
      if (!std::isfinite(own) || !std::isfinite(window)) continue;
      const bool is_behind = is_loss(metric) ? own > window : own < window;
      if (!is_behind && own != window) continue;
      lines.push_back(name + ", " + metric + ": the student (" + number_text(own, 3) + ") is " +
                      (is_behind ? "under" : "no better than") +
                      " the untrained window of its bytes (" + number_text(window, 3) + ")");
    }
  }
  return lines;
}

}  // namespace hedgerow::coordinator::cli
