// What an evaluation adds up: sums of each sequence, which are put together in the order of the
// sequences whatever process evaluated which of them. So an evaluation in parts, on several GPUs,
// has the bytes of one in one process.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/model/model_config.hpp"
#include "worker/evaluate/figures.hpp"

namespace hedgerow::worker {

struct LayerSums {
  int layer = 0;
  double squared_error = 0.0, energy = 0.0;
  std::int64_t elements = 0;
};

// Of one sequence, over its counted positions.
struct SequenceSums {
  std::size_t text = 0;  // 0: the first, else one of EvaluateOptions::texts
  std::array<ColumnFigures, kNumColumns> columns = {};  // sums, not means
  std::vector<LayerSums> layers = {};                   // of a student, in their order
};

// Some of an evaluation's sequences, in their order.
struct EvaluationPart {
  std::string compute_dtype;  // "bf16"; of parts put together all of them, "bf16, fp32"
  std::vector<int> untrained_layers = {};  // whose linear branch is off
  double seconds = 0.0;                    // of the worker
  std::vector<SequenceSums> sequences = {};
  std::vector<EvaluationPart> others =
      {};  // of EvaluateOptions::others; their seconds are in these
};
[[nodiscard]] nlohmann::json to_json(const EvaluationPart& part);
// Throws kCorrupt.
[[nodiscard]] EvaluationPart part_from_json(const nlohmann::json& json);
// In the order of the parts.
[[nodiscard]] EvaluationPart put_together(std::span<const EvaluationPart> parts);

// What is computed of an evaluation, whatever its sequences.
struct EvaluationShape {
  Column subject = Column::kTeacher;
  std::vector<Column> columns;  // those that are computed, the teacher first
  std::optional<Control> control = {};
  std::int64_t beyond = 0;       // Evaluation::beyond
  int equal_window = 0;          // Evaluation::equal_window
};
struct EvaluationSubject {
  bool has_student = false, has_adapter = false, recalls = false;
};
[[nodiscard]] EvaluationShape shape_of(const EvaluationSubject& subject,
                                       std::optional<Control> control,
                                       const storage::ModelConfig& model);

// A text as its result names it.
struct TextShape {
  std::string name;  // empty: the first
  bool in_domain = false;
  std::int64_t seq_len = 0;
};
[[nodiscard]] Evaluation evaluation_of(const EvaluationShape& shape,
                                       const std::vector<TextShape>& texts,
                                       const EvaluationPart& part,
                                       const storage::ModelConfig& model);

}  // namespace hedgerow::worker
