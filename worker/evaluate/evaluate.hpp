// Perplexity of the teacher, of the student after transfer, or of the student with LoRA, and each
// layer's transfer error, streamed: one layer's weights at a time over a group of sequences, the
// cross-entropy over chunks of rows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/wire/messages.hpp"
#include "storage/model/model_config.hpp"
#include "storage/shards/tokens_file.hpp"
#include "worker/model/lora.hpp"
#include "worker/model/student.hpp"
#include "worker/task/run_context.hpp"
#include "worker/task/task_context.hpp"

namespace hedgerow::worker {

struct EvaluateOptions {
  at::Device device = at::kCPU;               // the student's too
  at::ScalarType compute_dtype = at::kFloat;  // between layers too: nothing is stored here
  const Student* student = nullptr;           // none: the teacher
  const LoraAdapter* adapter = nullptr;       // merged into the weights as they are loaded
  // Called with (layers done, layers in all, mean loss so far or 0); false: stop, and the result is
  // not finished.
  std::function<bool(std::int64_t, std::int64_t, double)> progress = {};
  // Called before each sequence's pass through a layer, each chunk of its logits and each tensor
  // that is loaded; what it throws ends the evaluation.
  std::function<void()> check_cancelled = [] {};
  // LoadHooks::check_hash, besides the student's own.
  std::function<void(int, const storage::Hash128&)> check_hash = {};
  // Gets the logits [rows, V] fp32 of each chunk on the device, in order: sequence, first position.
  std::function<void(std::int64_t, std::int64_t, const at::Tensor&)> logits = {};
};

struct LayerError {
  int layer = 0;
  double mse = 0.0;           // student's output against the teacher's, on the teacher's own path
  double relative_mse = 0.0;  // over the mean square of the teacher's output
};

struct Evaluation {
  bool finished = false;
  at::ScalarType compute_dtype = at::kFloat;
  double loss = 0.0;  // mean cross-entropy of the next token, over counted positions
  std::int64_t num_targets = 0;
  std::vector<LayerError> layers =
      {};  // of a student without adapter; kept softmax layers are absent
  [[nodiscard]] double perplexity() const;
};

// Evaluates the given sequences (indices into `tokens`). A target counts where its loss mask is 1.
// Throws kUsage naming a loss that is not finite, or sequences beyond the window of a softmax
// layer.
Evaluation evaluate(const storage::ModelDirectory& model,
                    const storage::TokenSequences& tokens,
                    const std::vector<std::int64_t>& sequences,
                    const EvaluateOptions& options);

// The sequences that an evaluation takes from a file: its validation split, or all when it has
// none; at most `limit` (0: all).
std::vector<std::int64_t> evaluation_sequences(const storage::TokenSequences& tokens,
                                               std::int64_t limit);

// task.subject: teacher | transfer | lora, task.inputs the student's and the adapter's files.
// Writes evaluate/<subject>.tN.json under attempts/t<token>/.
TaskResult run_evaluate(RunContext& run, TaskContext& context, const wire::Task& task);

// {"subject", "compute_dtype", "perplexity", "loss", "targets", "mse_mean", "mse_worst", "layers"}
nlohmann::json to_json(const Evaluation& evaluation, const std::string& subject);

}  // namespace hedgerow::worker
