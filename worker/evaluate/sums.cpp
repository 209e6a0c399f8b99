#include "worker/evaluate/sums.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "storage/base/error.hpp"
#include "storage/shape/state_bytes.hpp"

namespace hedgerow::worker {
namespace {

constexpr std::size_t at_column(Column column) { return static_cast<std::size_t>(column); }

nlohmann::json sums_json(const Figures& sums) {
  return {sums.loss, sums.kl, sums.top1, sums.targets};
}

Figures sums_from(const nlohmann::json& json) {
  return {json.at(0).get<double>(),
          json.at(1).get<double>(),
          json.at(2).get<double>(),
          json.at(3).get<std::int64_t>()};
}

void add(Figures& sums, const Figures& more) {
  sums.loss += more.loss;
  sums.kl += more.kl;
  sums.top1 += more.top1;
  sums.targets += more.targets;
}

Figures mean_of(Figures sums) {
  const auto count = static_cast<double>(std::max<std::int64_t>(1, sums.targets));
  sums.loss /= count;
  sums.kl /= count;
  sums.top1 /= count;
  return sums;
}

Evaluation result_of(const EvaluationShape& shape,
                     std::size_t text,
                     std::int64_t seq_len,
                     const EvaluationPart& part,
                     const storage::ModelConfig& model) {
  Evaluation evaluation{.finished = true,
                        .compute_dtype = part.compute_dtype,
                        .subject = shape.subject,
                        .control = shape.control,
                        .beyond = shape.beyond,
                        .equal_window = shape.equal_window,
                        .texts = {}};
  if (shape.control) {
    const auto num_softmax = static_cast<int>(shape.control->softmax_layers.size());
    evaluation.state_bytes =
        storage::state_bytes(shape.control->attention, model, num_softmax, seq_len);
  }
  std::array<ColumnFigures, kNumColumns> columns;
  std::map<int, LayerSums> layers;
  for (const SequenceSums& sequence : part.sequences) {
    if (sequence.text != text) continue;
    for (std::size_t i = 0; i < kNumColumns; ++i) {
      add(columns[i].all, sequence.columns[i].all);
      add(columns[i].beyond, sequence.columns[i].beyond);
    }
    for (const LayerSums& layer : sequence.layers) {
      LayerSums& sums = layers[layer.layer];
      sums.squared_error += layer.squared_error;
      sums.energy += layer.energy;
      sums.elements += layer.elements;
    }
  }
  for (const Column column : shape.columns) {
    const ColumnFigures& sums = columns[at_column(column)];
    evaluation.columns[at_column(column)] = {mean_of(sums.all), mean_of(sums.beyond)};
  }
  // Without an adapter it is the control.
  if (shape.subject == Column::kStudent && !evaluation.column(Column::kLinearOff))
    evaluation.columns[at_column(Column::kLinearOff)] = evaluation.column(Column::kControl);
  for (const auto& [layer, sums] : layers) {
    evaluation.layers.push_back(
        {layer,
         sums.squared_error / static_cast<double>(sums.elements),
         sums.squared_error / sums.energy,
         std::ranges::find(part.untrained_layers, layer) != part.untrained_layers.end()});
  }
  return evaluation;
}

}  // namespace

nlohmann::json to_json(const EvaluationPart& part) {
  nlohmann::json json = {{"compute_dtype", part.compute_dtype},
                         {"untrained_layers", part.untrained_layers},
                         {"seconds", part.seconds},
                         {"sequences", nlohmann::json::array()}};
  for (const SequenceSums& sequence : part.sequences) {
    nlohmann::json own = {{"text", sequence.text},
                          {"columns", nlohmann::json::array()},
                          {"layers", nlohmann::json::array()}};
    for (const ColumnFigures& column : sequence.columns)
      own["columns"].push_back({sums_json(column.all), sums_json(column.beyond)});
    for (const LayerSums& layer : sequence.layers) {
      own["layers"].push_back({layer.layer, layer.squared_error, layer.energy, layer.elements});
    }
    json["sequences"].push_back(std::move(own));
  }
  for (const EvaluationPart& other : part.others) json["others"].push_back(to_json(other));
  return json;
}

EvaluationPart part_from_json(const nlohmann::json& json) {
  try {
    EvaluationPart part{.compute_dtype = json.at("compute_dtype"),
                        .untrained_layers = json.at("untrained_layers"),
                        .seconds = json.at("seconds")};
    for (const nlohmann::json& own : json.at("sequences")) {
      SequenceSums sequence{.text = own.at("text").get<std::size_t>()};
      for (std::size_t i = 0; i < kNumColumns; ++i) {
        const nlohmann::json& column = own.at("columns").at(i);
        sequence.columns[i] = {sums_from(column.at(0)), sums_from(column.at(1))};
      }
      for (const nlohmann::json& layer : own.at("layers")) {
        sequence.layers.push_back({layer.at(0).get<int>(),
                                   layer.at(1).get<double>(),
                                   layer.at(2).get<double>(),
                                   layer.at(3).get<std::int64_t>()});
      }
      part.sequences.push_back(std::move(sequence));
    }
    if (const auto found = json.find("others"); found != json.end()) {
      for (const nlohmann::json& other : *found) part.others.push_back(part_from_json(other));
    }
    return part;
  } catch (const nlohmann::json::exception& error) {
    throw storage::Error(storage::ErrorKind::kCorrupt,
                         std::string("the sums of an evaluation: ") + error.what());
  }
}

EvaluationPart put_together(std::span<const EvaluationPart> parts) {
  EvaluationPart whole;
  std::vector<std::string> dtypes;
  for (const EvaluationPart& part : parts) {
    if (std::ranges::find(dtypes, part.compute_dtype) == dtypes.end())
      dtypes.push_back(part.compute_dtype);
    whole.untrained_layers = part.untrained_layers;
    whole.seconds += part.seconds;
    whole.sequences.insert(whole.sequences.end(), part.sequences.begin(), part.sequences.end());
  }
  std::ranges::sort(dtypes);
  for (const std::string& dtype : dtypes)
    whole.compute_dtype += (whole.compute_dtype.empty() ? "" : ", ") + dtype;
  const std::size_t num_others = parts.empty() ? 0 : parts.front().others.size();
  for (std::size_t i = 0; i < num_others; ++i) {
    std::vector<EvaluationPart> of_other;
    for (const EvaluationPart& part : parts) {
      if (part.others.size() != num_others)
        throw storage::Error(storage::ErrorKind::kCorrupt,
                             "the parts of an evaluation are of " + std::to_string(num_others + 1) +
                                 " and of " + std::to_string(part.others.size() + 1) + " students");
      of_other.push_back(part.others[i]);
    }
    whole.others.push_back(put_together(of_other));
  }
  return whole;
}

EvaluationShape shape_of(const EvaluationSubject& subject,
                         std::optional<Control> control,
                         const storage::ModelConfig& model) {
  EvaluationShape shape{.subject = subject.has_student ? Column::kStudent : Column::kTeacher,
                        .columns = {Column::kTeacher},
                        .control = std::move(control)};
  if (shape.control) {
    shape.columns.push_back(Column::kControl);
    shape.columns.push_back(Column::kEqualWindow);
    shape.equal_window = static_cast<int>(storage::equal_window(shape.control->attention, model));
    shape.beyond = 2 * shape.control->attention.window_size;
  }
  if (subject.has_student) shape.columns.push_back(Column::kStudent);
  if (subject.has_student && subject.recalls) shape.columns.push_back(Column::kRecallOff);
  if (shape.control && subject.has_adapter) shape.columns.push_back(Column::kLinearOff);
  return shape;
}

Evaluation evaluation_of(const EvaluationShape& shape,
                         const std::vector<TextShape>& texts,
                         const EvaluationPart& part,
                         const storage::ModelConfig& model) {
  Evaluation evaluation = result_of(shape, 0, texts.front().seq_len, part, model);
  for (std::size_t i = 1; i < texts.size(); ++i) {
    evaluation.texts.push_back(
        {texts[i].name, texts[i].in_domain, result_of(shape, i, texts[i].seq_len, part, model)});
  }
  return evaluation;
}

}  // namespace hedgerow::worker
