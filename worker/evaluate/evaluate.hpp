// The figures of the teacher, of the student after transfer or with LoRA, and beside them of what
// costs nothing: its control, the student's window and sinks with nothing trained
// (kernels::window_attention), and the untrained window of the student's bytes
// (storage/shape/state_bytes.hpp). One streamed pass: one layer's
// weights at a time, through which the hidden states of all columns go side by side; then the
// cross-entropy and the distance to the teacher over chunks of rows. Each layer's transfer error
// too.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/wire/messages.hpp"
#include "storage/history/columns.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/recipe.hpp"
#include "storage/shards/tokens_file.hpp"
#include "worker/model/lora.hpp"
#include "worker/model/student.hpp"
#include "worker/task/run_context.hpp"
#include "worker/task/task_context.hpp"

namespace hedgerow::worker {

// Softmax over window and sinks alone, but for the layers that keep their softmax attention.
struct Control {
  storage::AttentionSpec attention;  // the student's
  std::set<int> softmax_layers{};
};
// Of a recipe's student; nullopt: it has no window.
[[nodiscard]] std::optional<Control> control_of(const storage::Recipe& recipe);

// One more text of an evaluation. `tokens` outlives it.
struct EvaluationText {
  std::string name;
  bool in_domain = false;
  const storage::TokenSequences* tokens = nullptr;
  std::vector<std::int64_t> sequences;  // indices into `tokens`
};

struct EvaluateOptions {
  at::Device device = at::kCPU;               // the student and the adapter may lie elsewhere
  at::ScalarType compute_dtype = at::kFloat;  // between layers too: nothing is stored here
  const Student* student = nullptr;           // none: the teacher
  const LoraAdapter* adapter = nullptr;       // merged into the student's weights alone
  std::optional<Control> control = {};        // of the teacher; a student has its own
  // Evaluated beside the first one, in the same pass over the layers.
  std::vector<EvaluationText> texts = {};
  // Called with (layers done, layers in all, mean loss so far or 0); false: stop, and the result is
  // not finished.
  std::function<bool(std::int64_t, std::int64_t, double)> progress = {};
  // Called before each sequence's pass through a layer, each chunk of its logits and each tensor
  // that is loaded; what it throws ends the evaluation.
  std::function<void()> check_cancelled = [] {};
  // LoadHooks::check_hash, besides the student's own.
  std::function<void(int, const storage::Hash128&)> check_hash = {};
  // Gets the subject's logits [rows, V] fp32 of each chunk of the first text on the device, in
  // order: sequence, first position.
  std::function<void(std::int64_t, std::int64_t, const at::Tensor&)> logits = {};
};

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
  at::ScalarType compute_dtype = at::kFloat;
  Column subject = Column::kTeacher;  // or kStudent
  std::array<std::optional<ColumnFigures>, kNumColumns> columns = {};
  std::optional<Control> control = {};
  std::int64_t beyond = 0;  // position in its sequence, 2 W; 0: without a control
  int equal_window = 0;          // storage::equal_window(); 0: without a control
  std::int64_t state_bytes = 0;  // of the student at the sequences' length; 0: without a control
  std::vector<LayerError> layers =
      {};  // of a student without adapter; kept softmax layers are absent
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

// Evaluates the given sequences (indices into `tokens`) and those of options.texts: figures of each
// text, and one pass over the layers for all that fit memory together. A target counts where its
// loss mask is 1. Throws kUsage naming a loss that is not finite, or sequences beyond the teacher's
// own window.
Evaluation evaluate(const storage::ModelDirectory& model,
                    const storage::TokenSequences& tokens,
                    const std::vector<std::int64_t>& sequences,
                    const EvaluateOptions& options);

// The sequences that an evaluation takes from a file: its validation split, or all when it has
// none; at most `limit` (0: all).
std::vector<std::int64_t> evaluation_sequences(const storage::TokenSequences& tokens,
                                               std::int64_t limit);

// Tokens of an evaluation, its texts' included.
std::int64_t tokens_in(const storage::TokenSequences& tokens,
                       const std::vector<std::int64_t>& sequences,
                       const std::vector<EvaluationText>& texts);

// The texts of a recipe, `limit` sequences of each, whose tokens `load` gives by name.
std::vector<EvaluationText> texts_of(
    const storage::Recipe& recipe,
    std::int64_t limit,
    const std::function<const storage::TokenSequences&(const std::string& name)>& load);

// task.subject: teacher | transfer | lora, task.inputs the student's and the adapter's files.
// Writes evaluate/<subject>.tN.json under attempts/t<token>/.
TaskResult run_evaluate(RunContext& run, TaskContext& context, const wire::Task& task);

// coordinator/README.md "Results".
nlohmann::json to_json(const Evaluation& evaluation, const std::string& subject);

}  // namespace hedgerow::worker
