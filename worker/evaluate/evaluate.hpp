// The figures of the teacher, of the student after transfer or with LoRA, and beside them of what
// costs nothing: its control, the student's window and sinks with nothing trained
// (kernels::window_attention), and the untrained window of the student's bytes
// (storage/shape/state_bytes.hpp). One streamed pass: one layer's weights at a time, through which
// the hidden states of all columns go side by side; then the cross-entropy and the distance to the
// teacher over chunks of rows. Each layer's transfer error too.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "storage/model/model_config.hpp"
#include "storage/shards/tokens_file.hpp"
#include "worker/evaluate/figures.hpp"
#include "worker/evaluate/sums.hpp"
#include "worker/model/lora.hpp"
#include "worker/model/student.hpp"

namespace hedgerow::worker {

// One more text of an evaluation. `tokens` outlives it.
struct EvaluationText {
  std::string name;
  bool in_domain = false;
  const storage::TokenSequences* tokens = nullptr;
  std::vector<std::int64_t> sequences;  // indices into `tokens`
};

// A student beside the first one; with a layer, one whose attention there is the teacher's again.
struct OtherStudent {
  const Student* student = nullptr;
  int softmax_layer = -1;  // -1: none
  int softmax_head =
      -1;  // of that layer this key/value head alone, with the queries that it serves
};

struct EvaluateOptions {
  at::Device device = at::kCPU;               // the student and the adapter may lie elsewhere
  at::ScalarType compute_dtype = at::kFloat;  // between layers too: nothing is stored here
  const Student* student = nullptr;           // none: the teacher
  const LoraAdapter* adapter = nullptr;       // merged into the student's weights alone
  // Further students beside the first, which then has no adapter. What columns have in common is
  // computed once: the teacher of all, an untrained window of each size. Of these students' own
  // columns there is one, with the recall cache where they have it. Their sums:
  // EvaluationPart::others.
  std::vector<OtherStudent> others = {};
  std::optional<Control> control = {};        // of the teacher; a student has its own
  // Evaluated beside the first one, in the same pass over the layers.
  std::vector<EvaluationText> texts = {};
  // Of all sequences, in the order of their texts, only part `piece` of `num_pieces`: equal ones,
  // but for a sequence.
  int piece = 0, num_pieces = 1;
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

// Evaluates the given sequences (indices into `tokens`) and those of options.texts: figures of each
// text, and one pass over the layers for all that fit memory together. A target counts where its
// loss mask is 1. Throws kUsage naming a loss that is not finite, or sequences beyond the teacher's
// own window.
Evaluation evaluate(const storage::ModelDirectory& model,
                    const storage::TokenSequences& tokens,
                    const std::vector<std::int64_t>& sequences,
                    const EvaluateOptions& options);

// The sums alone of options.piece; nullopt: told to stop. `seconds` is the caller's to set.
std::optional<EvaluationPart> evaluate_part(const storage::ModelDirectory& model,
                                            const storage::TokenSequences& tokens,
                                            const std::vector<std::int64_t>& sequences,
                                            const EvaluateOptions& options);
// The figures of part.others[i], in the shape that EvaluateOptions::others has.
[[nodiscard]] Evaluation evaluation_of_other(const storage::ModelDirectory& model,
                                             const std::vector<TextShape>& texts,
                                             const EvaluationPart& part,
                                             const OtherStudent& other);
// Of such parts put together. `seq_len` is that of the first text.
[[nodiscard]] std::vector<TextShape> text_shapes(std::int64_t seq_len,
                                                 const std::vector<EvaluationText>& texts);

}  // namespace hedgerow::worker
