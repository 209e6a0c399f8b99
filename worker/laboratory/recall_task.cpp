#include "worker/laboratory/recall_task.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <string>

#include "storage/base/error.hpp"

namespace hedgerow::worker::laboratory {
namespace {

constexpr std::int64_t kRecallRows = 50;  // at once, of T x T weights a head

}  // namespace

void RecallOptions::validate() const {
  if (vocab_size < 4 || vocab_size % 2 != 0)
    throw storage::Error(
        storage::ErrorKind::kUsage,
        "recall, vocab_size: expected an even number from 4, found " + std::to_string(vocab_size));
  if (length < 4 || length % 2 != 0)
    throw storage::Error(
        storage::ErrorKind::kUsage,
        "recall, length: expected an even number from 4, found " + std::to_string(length));
}

RecallBatch draw_recall(const RecallOptions& options,
                        std::int64_t batch_size,
                        at::Generator& generator) {
  options.validate();
  const std::int64_t num_keys = options.vocab_size / 2, num_pairs = options.length / 2;
  const auto ints = at::TensorOptions().dtype(at::kLong);
  const at::Tensor value_of =
      at::randint(num_keys, options.vocab_size, {batch_size, num_keys}, generator, ints);
  at::Tensor keys = at::randint(0, num_keys, {batch_size, num_pairs}, generator, ints);
  const at::Tensor asked = at::randint(0, num_pairs - 1, {batch_size, 1}, generator, ints);
  keys.narrow(1, num_pairs - 1, 1).copy_(keys.gather(1, asked));
  const at::Tensor all =
      at::stack({keys, value_of.gather(1, keys)}, -1).view({batch_size, options.length});
  const at::Tensor was_seen = keys.unsqueeze(2).eq(keys.unsqueeze(1)).tril(-1).any(-1);
  at::Tensor is_asked = at::zeros({batch_size, options.length}, at::kBool);
  is_asked.slice(1, 0, options.length, 2).copy_(was_seen);
  return {.ids = all.narrow(1, 0, options.length - 1),
          .targets = all.narrow(1, 1, options.length - 1),
          .is_asked = is_asked.narrow(1, 0, options.length - 1)};
}

TrainingTask recall_task(const RecallOptions& options) {
  options.validate();
  const auto loss = [options](const Transformer& model,
                              std::int64_t step,
                              std::int64_t batch_size,
                              at::Generator& generator) {
    RecallOptions drawn = options;
    if (step < options.short_steps) drawn.length = options.short_length;
    const RecallBatch batch =
        draw_recall(drawn, batch_size * options.length / drawn.length, generator);
    return at::cross_entropy_loss(model.logits(model.hidden(batch.ids).index({batch.is_asked})),
                                  batch.targets.index({batch.is_asked}));
  };
  const auto score = [options](const Transformer& model) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(options.score_seed);
    const RecallBatch batch = draw_recall(options, options.score_batch, generator);
    double right = 0;
    for (std::int64_t b = 0; b < options.score_batch; b += kRecallRows) {
      const std::int64_t count = std::min(kRecallRows, options.score_batch - b);
      const at::Tensor hidden = model.hidden(batch.ids.narrow(0, b, count)).select(1, -1);
      const at::Tensor answer = batch.targets.narrow(0, b, count).select(1, -1);
      right += model.logits(hidden).argmax(-1).eq(answer).sum().item<double>();
    }
    return right / static_cast<double>(options.score_batch);
  };
  return {.loss = loss, .score = score};
}

}  // namespace hedgerow::worker::laboratory
