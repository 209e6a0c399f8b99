#include "coordinator/status/variants.hpp"

#include <algorithm>
#include <cmath>

#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator {
namespace {

// Values by student: "" is the recipe's own, else Recipe::student_name().
using Values = std::map<std::string, std::vector<double>>;

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return {.median = (values[(n - 1) / 2] + values[n / 2]) / 2,
          .least = values.front(),
          .most = values.back(),
          .count = static_cast<int>(n)};
}

double mean_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

struct Trained {
  Values errors;        // relative, of a student's layers
  Values step_seconds;  // by task
  std::map<std::string, int> kept_untrained;
};

Trained trained_students(const RunStatus& status) {
  Trained found;
  for (const TaskStatus& task : status.tasks) {
    if (task.stage != Stage::kTransfer || task.state != "done") continue;
    if (!task.result.contains("variants")) continue;
    const auto add_seconds = [&](const std::string& student, const nlohmann::json& of) {
      if (const auto seconds = of.find("seconds_per_step"); seconds != of.end())
        found.step_seconds[student].push_back(seconds->get<double>());
    };
    const auto add_layer =
        [&](const std::string& student, const nlohmann::json& error, bool is_untrained) {
          std::vector<double>& errors = found.errors[student];
          if (error.is_number()) errors.push_back(error.get<double>());
          if (is_untrained) ++found.kept_untrained[student];
        };
    for (const nlohmann::json& layer : task.result.value("layers", nlohmann::json::array()))
      add_layer(
          "", layer.value("relative_mse", nlohmann::json()), layer.value("kept_untrained", false));
    add_seconds("", task.result);
    for (const nlohmann::json& variant : task.result["variants"]) {
      const std::string student = variant.at("student").get<std::string>();
      const nlohmann::json& errors = variant.at("relative_mse");
      const auto untrained = variant.value("kept_untrained", std::vector<bool>(errors.size()));
      for (std::size_t i = 0; i < errors.size(); ++i)
        add_layer(student, errors[i], untrained.at(i));
      add_seconds(student, variant);
    }
  }
  return found;
}

// What an evaluation says of a student, by text, the validation split's under kValidation.
std::vector<std::pair<std::string, nlohmann::json>> texts_of(const nlohmann::json& evaluation) {
  std::vector<std::pair<std::string, nlohmann::json>> texts{{storage::kValidation, evaluation}};
  if (const auto found = evaluation.find("texts"); found != evaluation.end()) {
    for (const auto& [name, text] : found->items()) texts.emplace_back(name, text);
  }
  return texts;
}

std::optional<double> kl_of(const nlohmann::json& text) {
  const nlohmann::json::json_pointer at("/columns/student/beyond/kl");
  return text.contains(at) && text[at].is_number() ? std::optional(text[at].get<double>())
                                                   : std::nullopt;
}

// A variant's figures from the evaluations of its seeds.
void add_evaluations(const std::vector<nlohmann::json>& seeds, VariantFigures& figures) {
  std::vector<std::string> names;
  std::map<std::string, std::vector<double>> gaps, divergences;
  std::vector<double> means;
  // All seeds have the same.
  const auto untrained = [](const nlohmann::json& of, const char* column) {
    return of.contains(column) ? std::optional(of[column].get<double>()) : std::nullopt;
  };
  for (const nlohmann::json& evaluation : seeds) {
    for (const auto& [name, text] : texts_of(evaluation)) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
      if (const double gap = text.value("gap_closed", NAN); std::isfinite(gap)) {
        gaps[name].push_back(gap);
      }
      if (const auto kl = kl_of(text)) {
        divergences[name].push_back(*kl);
      }
    }
    if (const auto kl = evaluation.find("kl"); kl != evaluation.end()) {
      if (kl->contains("student")) means.push_back((*kl)["student"].get<double>());
      figures.control_kl = untrained(*kl, "control");
      figures.window_kl = untrained(*kl, "equal_window");
    }
    if (evaluation.contains("control"))
      figures.state_bytes = evaluation["control"].value("state_bytes", std::int64_t{0});
  }
  for (const std::string& name : names) {
    figures.gap_closed.emplace_back(name, spread_of(gaps[name]));
    figures.kl.emplace_back(name, spread_of(divergences[name]));
  }
  figures.mean_kl = spread_of(means);
}

void mark_front(std::vector<VariantFigures>& all) {
  for (VariantFigures& one : all) {
    one.is_on_front =
        one.mean_kl.count > 0 && std::ranges::none_of(all, [&](const VariantFigures& other) {
          const double gain = one.mean_kl.median - other.mean_kl.median;
          return other.mean_kl.count > 0 && gain >= 0.0 && other.state_bytes <= one.state_bytes &&
                 (gain > 0.0 || other.state_bytes < one.state_bytes);
        });
  }
}

nlohmann::json to_json(const Spread& spread) {
  if (spread.count == 0) return nullptr;
  return {{"median", spread.median}, {"least", spread.least}, {"most", spread.most}};
}

}  // namespace

std::vector<VariantFigures> variants_of(const RunStatus& status) {
  const Trained trained = trained_students(status);
  if (trained.errors.empty()) return {};
  std::map<std::string, nlohmann::json> evaluations;
  if (const TaskStatus* task = status.task("evaluate/transfer");
      task != nullptr && task->state == "done" && task->result.contains("variants")) {
    evaluations[""] = task->result;
    for (const nlohmann::json& variant : task->result["variants"])
      evaluations[variant.at("student").get<std::string>()] = variant;
  }
  std::vector<VariantFigures> all;
  const auto add = [&](const std::string& name, const std::vector<std::string>& students) {
    VariantFigures figures;
    figures.name = name;
    figures.seeds = static_cast<int>(students.size());
    std::vector<double> means, seconds;
    std::vector<nlohmann::json> evaluated;
    for (const std::string& student : students) {
      if (const auto found = trained.errors.find(student);
          found != trained.errors.end() && !found->second.empty()) {
        means.push_back(mean_of(found->second));
        figures.layers += static_cast<int>(found->second.size());
      }
      if (const auto found = trained.kept_untrained.find(student);
          found != trained.kept_untrained.end())
        figures.kept_untrained += found->second;
      if (const auto found = trained.step_seconds.find(student);
          found != trained.step_seconds.end())
        seconds.push_back(mean_of(found->second));
      if (const auto found = evaluations.find(student); found != evaluations.end())
        evaluated.push_back(found->second);
    }
    figures.relative_mse = spread_of(means);
    figures.seconds_per_step = spread_of(seconds);
    add_evaluations(evaluated, figures);
    all.push_back(std::move(figures));
  };
  std::map<std::string, std::vector<std::string>> students;  // by variant
  for (const auto& [student, errors] : trained.errors)
    students[student.empty() ? storage::kOwnStudent : storage::Recipe::variant_of(student)]
        .push_back(student);
  for (const auto& [variant, own] : students) add(variant, own);
  mark_front(all);
  std::ranges::stable_sort(all, [](const VariantFigures& a, const VariantFigures& b) {
    const bool a_known = a.mean_kl.count > 0, b_known = b.mean_kl.count > 0;
    if (a_known != b_known) return a_known;
    return a_known ? a.mean_kl.median < b.mean_kl.median
                   : a.relative_mse.median < b.relative_mse.median;
  });
  return all;
}

nlohmann::json to_json(const std::vector<VariantFigures>& variants) {
  nlohmann::json rows = nlohmann::json::array();
  for (const VariantFigures& figures : variants) {
    nlohmann::json row = {{"variant", figures.name},
                          {"seeds", figures.seeds},
                          {"relative_mse", to_json(figures.relative_mse)},
                          {"kept_untrained", figures.kept_untrained},
                          {"layers", figures.layers},
                          {"kl", to_json(figures.mean_kl)},
                          {"seconds_per_step", to_json(figures.seconds_per_step)},
                          {"state_bytes", figures.state_bytes},
                          {"on_front", figures.is_on_front}};
    if (figures.control_kl) row["control_kl"] = *figures.control_kl;
    if (figures.window_kl) row["window_kl"] = *figures.window_kl;
    for (const auto& [name, spread] : figures.gap_closed)
      row["texts"][name]["gap_closed"] = to_json(spread);
    for (const auto& [name, spread] : figures.kl) row["texts"][name]["kl"] = to_json(spread);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace hedgerow::coordinator
