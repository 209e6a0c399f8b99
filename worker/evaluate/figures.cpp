#include "worker/evaluate/figures.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "storage/base/error.hpp"
#include "storage/shape/state_bytes.hpp"

namespace hedgerow::worker {
namespace {

nlohmann::json figures_json(const ColumnFigures& figures) {
  nlohmann::json json = {{"perplexity", figures.all.perplexity()},
                         {"loss", figures.all.loss},
                         {"kl", figures.all.kl},
                         {"top1", figures.all.top1}};
  if (figures.beyond.targets == 0) return json;
  json["beyond"] = {{"perplexity", figures.beyond.perplexity()},
                    {"loss", figures.beyond.loss},
                    {"kl", figures.beyond.kl},
                    {"top1", figures.beyond.top1},
                    {"targets", figures.beyond.targets}};
  return json;
}

// Over the texts, the validation split one of them; nullopt: no such column, or nothing beyond.
std::optional<double> mean_kl(const Evaluation& evaluation, Column which) {
  const auto& own = evaluation.column(which);
  if (!own || own->beyond.targets == 0) return std::nullopt;
  double sum = own->beyond.kl;
  for (const Evaluation::Text& text : evaluation.texts) {
    const auto& there = text.evaluation.column(which);
    if (!there || there->beyond.targets == 0) return std::nullopt;
    sum += there->beyond.kl;
  }
  return sum / static_cast<double>(1 + evaluation.texts.size());
}

}  // namespace

double Figures::perplexity() const { return std::exp(loss); }

std::optional<double> Evaluation::gap_closed() const {
  const auto& student = column(Column::kStudent);
  const auto& untrained = column(Column::kControl);
  if (!untrained || !student || untrained->beyond.targets == 0) return std::nullopt;
  const double gap = untrained->beyond.loss - column(Column::kTeacher)->beyond.loss;
  if (!(gap > 0.0)) return std::nullopt;
  return (untrained->beyond.loss - student->beyond.loss) / gap;
}

std::optional<Control> control_of(const storage::Recipe& recipe) {
  if (recipe.attention.window == storage::WindowLayout::kNone) return std::nullopt;
  const auto& kept = recipe.transfer.softmax_layers.layers;
  return Control{recipe.attention, {kept.begin(), kept.end()}};
}

std::optional<Control> control_of(const Student& student) {
  if (student.options.window == kernels::WindowLayout::kNone) return std::nullopt;
  Control control{student.attention};
  for (std::size_t layer = 0; layer < student.layers.size(); ++layer) {
    if (!student.layers[layer]) control.softmax_layers.insert(static_cast<int>(layer));
  }
  return control;
}

Student control_student(const Control& control,
                        const std::string& window,
                        const storage::ModelConfig& model,
                        const at::Device& device) {
  storage::AttentionSpec attention = control.attention;
  if (window == "equal") {
    attention.window_size = storage::equal_window(attention, model);
  } else if (window != "own") {
    const char* const end = window.data() + window.size();
    const auto [rest, error] = std::from_chars(window.data(), end, attention.window_size);
    if (error != std::errc() || rest != end) {
      throw storage::Error(storage::ErrorKind::kUsage,
                           "expected own, equal or a number of tokens as a window, found '" +
                               window.substr(0, 40) + "'");
    }
  }
  return untrained_student(attention, control.softmax_layers, model, device);
}

std::int64_t state_bytes(const Student& student,
                         const storage::ModelConfig& model,
                         bool is_untrained) {
  const storage::LayerState layer = storage::layer_state(student.attention, model);
  const auto linear =
      std::ranges::count_if(student.layers, [](const auto& maps) { return maps.has_value(); });
  return linear * (is_untrained ? layer.sinks + layer.ring : layer.total());
}

nlohmann::json to_json(const Evaluation& evaluation, const std::string& subject) {
  const Figures& figures = evaluation.figures();
  nlohmann::json json = {{"subject", subject},
                         {"compute_dtype", evaluation.compute_dtype},
                         {"perplexity", figures.perplexity()},
                         {"loss", figures.loss},
                         {"targets", figures.targets}};
  for (std::size_t i = 0; i < kNumColumns; ++i) {
    if (evaluation.columns[i])
      json["columns"][storage::kEvaluateColumns[i].name] = figures_json(*evaluation.columns[i]);
  }
  if (evaluation.control) {
    const storage::AttentionSpec& attention = evaluation.control->attention;
    json["control"] = {{"window_size", attention.window_size},
                       {"num_sinks", attention.num_sinks},
                       {"equal_window", evaluation.equal_window},
                       {"state_bytes", evaluation.state_bytes}};
    if (attention.recall_cache > 0) json["control"]["recall_cache"] = attention.recall_cache;
    json["beyond"] = evaluation.beyond;
  }
  if (const auto closed = evaluation.gap_closed()) json["gap_closed"] = *closed;
  for (const Evaluation::Text& text : evaluation.texts) {
    nlohmann::json own = to_json(text.evaluation, subject);
    // The same for every text, or as long as the rest together.
    for (const char* key : {"subject", "compute_dtype", "control", "layers", "kl"}) own.erase(key);
    own["in_domain"] = text.in_domain;
    json["texts"][text.name] = std::move(own);
  }
  for (const Column which : {Column::kControl, Column::kEqualWindow, Column::kStudent}) {
    if (const auto kl = mean_kl(evaluation, which))
      json["kl"][storage::kEvaluateColumns[static_cast<std::size_t>(which)].name] = *kl;
  }
  if (evaluation.layers.empty()) return json;
  double sum = 0.0, worst = 0.0;
  for (const LayerError& error : evaluation.layers) {
    nlohmann::json layer = {
        {"layer", error.layer}, {"mse", error.mse}, {"relative_mse", error.relative_mse}};
    if (error.kept_untrained) layer["kept_untrained"] = true;
    json["layers"].push_back(std::move(layer));
    sum += error.mse;
    worst = std::max(worst, error.mse);
  }
  json["mse_mean"] = sum / static_cast<double>(evaluation.layers.size());
  json["mse_worst"] = worst;
  return json;
}

}  // namespace hedgerow::worker
