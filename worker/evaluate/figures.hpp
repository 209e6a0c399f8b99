// What an evaluation finds: figures of the teacher, of the student and of what costs nothing beside
// them, by column and text, and the transfer error of each layer.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "storage/history/columns.hpp"
#include "storage/model/attention_spec.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/recipe.hpp"
#include "worker/model/student.hpp"

namespace hedgerow::worker {

// Softmax over window and sinks alone, but for the layers that keep their softmax attention.
struct Control {
  storage::AttentionSpec attention;  // the student's
  std::set<int> softmax_layers{};
};
// The control of a recipe's student; nullopt: it has no window.
[[nodiscard]] std::optional<Control> control_of(const storage::Recipe& recipe);
[[nodiscard]] std::optional<Control> control_of(const Student& student);

// The control as a student that generates (untrained_student), its window of the student's size
// ("own"), of the student's bytes ("equal") or of so many tokens. Throws kUsage for another word.
[[nodiscard]] Student control_student(const Control& control,
                                      const std::string& window,
                                      const storage::ModelConfig& model,
                                      const at::Device& device);
// Bytes that a sequence keeps in all linear layers, as storage/shape/state_bytes.hpp counts them;
// an untrained window has no sums.
[[nodiscard]] std::int64_t state_bytes(const Student& student,
                                       const storage::ModelConfig& model,
                                       bool is_untrained);

struct LayerError {
  int layer = 0;
  double mse = 0.0;             // student's output against the teacher's, on the teacher's own path
  double relative_mse = 0.0;    // over the mean square of the teacher's output
  bool kept_untrained = false;  // its linear branch is off (worker/model/linear_branch.hpp)
};

// Whose hidden states an evaluation carries. The teacher and the untrained windows have the
// teacher's weights, the others the student's, LoRA included: recall_off is a student with a recall
// cache without it, linear_off the student with its linear branch off (and with it the cache).
// In the order of storage::kEvaluateColumns.
enum class Column { kTeacher, kControl, kEqualWindow, kRecallOff, kStudent, kLinearOff };
inline constexpr std::size_t kNumColumns = storage::kEvaluateColumns.size();

// Means over positions, which are those of the targets.
struct Figures {
  double loss = 0.0;  // cross-entropy of the next token, nats
  double kl = 0.0;    // KL(teacher || column) of the next token's distribution, nats
  double top1 = 0.0;  // how often its most likely token is the teacher's
  std::int64_t targets = 0;
  [[nodiscard]] double perplexity() const;
};
struct ColumnFigures {
  Figures all;     // of the counted positions
  Figures beyond;  // of those at Evaluation::beyond or after; 0 targets: there are none
};

struct Evaluation {
  bool finished = false;
  std::string compute_dtype;          // "bf16", "fp32"
  Column subject = Column::kTeacher;  // or kStudent
  std::array<std::optional<ColumnFigures>, kNumColumns> columns = {};
  std::optional<Control> control = {};
  std::int64_t beyond = 0;       // position in its sequence, 2 W; 0: without a control
  int equal_window = 0;          // storage::equal_window(); 0: without a control
  std::int64_t state_bytes = 0;  // of the student at the sequences' length; 0: without a control
  std::vector<LayerError> layers = {};  // of a student; kept softmax layers are absent
  struct Text;
  std::vector<Text> texts;  // in the order of EvaluateOptions::texts
  [[nodiscard]] const std::optional<ColumnFigures>& column(Column which) const {
    return columns[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] const Figures& figures() const { return column(subject)->all; }  // the subject's
  // (control - student) / (control - teacher) of the loss beyond 2 W: 1 is the teacher, below 0 is
  // worse than the control. Nullopt without a student, without such positions, or where the control
  // is no worse than the teacher.
  [[nodiscard]] std::optional<double> gap_closed() const;
};
struct Evaluation::Text {
  std::string name;
  bool in_domain = false;
  Evaluation evaluation;
};

// coordinator/README.md "Results".
nlohmann::json to_json(const Evaluation& evaluation, const std::string& subject);

}  // namespace hedgerow::worker
