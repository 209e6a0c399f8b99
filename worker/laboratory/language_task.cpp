#include "worker/laboratory/language_task.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "storage/base/error.hpp"

namespace hedgerow::worker::laboratory {
namespace {

using storage::Error;
using storage::ErrorKind;

constexpr std::int64_t kScoreRows = 64;  // at once, of T x T weights a head

// [B, length + 1] from each beginning on.
at::Tensor sequences_at(const at::Tensor& text, const at::Tensor& begins, std::int64_t length) {
  return text.index({begins.unsqueeze(1) + at::arange(length + 1, begins.options())});
}

at::Tensor loss_of(const Transformer& model, const at::Tensor& sequences) {
  const std::int64_t T = sequences.size(1) - 1;
  const at::Tensor hidden = model.hidden(sequences.narrow(1, 0, T));
  return at::cross_entropy_loss(model.logits(hidden.flatten(0, 1)),
                                sequences.narrow(1, 1, T).flatten());
}

at::Tensor random_begins(const at::Tensor& text,
                         std::int64_t count,
                         std::int64_t length,
                         at::Generator& generator) {
  return at::randint(0, text.numel() - length, {count}, generator, at::TensorOptions(at::kLong));
}

// At even distances.
at::Tensor score_begins(const at::Tensor& text, const LanguageOptions& options) {
  const std::int64_t room = text.numel() - options.length - 1;
  const std::int64_t count = std::min(options.score_sequences, room + 1);
  return at::arange(count, at::kLong).mul(std::max<std::int64_t>(1, room / count));
}

void check_layout(const Transformer& model, const LanguageOptions& options) {
  if (!model.options().attention.causal && !options.is_demonstration)
    throw Error(ErrorKind::kUsage,
                "attention '" + model.options().attention.name +
                    "', causal: a bidirectional layout sees the next byte that it is asked for; "
                    "only a demonstration may train it");
}

}  // namespace

LanguageText read_language(const std::filesystem::path& path, const LanguageOptions& options) {
  if (path.empty())
    throw Error(ErrorKind::kUsage,
                "--text: this study trains a language model; name a text file of at least some "
                "megabytes");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorKind::kUsage, "--text: " + path.string() + " cannot be read");
  std::string text(static_cast<std::size_t>(options.max_bytes), '\0');
  file.read(text.data(), options.max_bytes);
  text.resize(static_cast<std::size_t>(file.gcount()));
  at::Tensor all = at::empty({static_cast<std::int64_t>(text.size())}, at::kLong);
  std::ranges::transform(text, all.mutable_data_ptr<std::int64_t>(), [](char byte) {
    return static_cast<std::int64_t>(static_cast<unsigned char>(byte));
  });
  const auto held = static_cast<std::int64_t>(static_cast<double>(all.numel()) * options.held_out);
  if (held < 2 * (options.length + 1))
    throw Error(ErrorKind::kUsage,
                "--text: " + path.string() + " has " + std::to_string(text.size()) +
                    " bytes, of which too few are left to hold out; give a longer text");
  return {.train = all.narrow(0, 0, all.numel() - held),
          .held_out = all.narrow(0, all.numel() - held, held)};
}

at::Tensor draw_bytes(const at::Tensor& text,
                      std::int64_t batch_size,
                      const LanguageOptions& options,
                      at::Generator& generator) {
  const at::Tensor begins = random_begins(text, batch_size, options.length, generator);
  return sequences_at(text, begins, options.length).narrow(1, 0, options.length);
}

at::Tensor even_bytes(const at::Tensor& text, const LanguageOptions& options) {
  return sequences_at(text, score_begins(text, options), options.length)
      .narrow(1, 0, options.length);
}

TrainingTask language_task(const LanguageText& text, const LanguageOptions& options) {
  const auto loss = [=](const Transformer& model,
                        std::int64_t,
                        std::int64_t batch_size,
                        at::Generator& generator) {
    check_layout(model, options);
    const at::Tensor begins = random_begins(text.train, batch_size, options.length, generator);
    return loss_of(model, sequences_at(text.train, begins, options.length));
  };
  const auto score = [=](const Transformer& model) {
    check_layout(model, options);
    const at::Tensor begins = score_begins(text.held_out, options);
    const std::int64_t count = begins.numel();
    double value = 0;
    for (std::int64_t b = 0; b < count; b += kScoreRows) {
      const at::Tensor rows = begins.narrow(0, b, std::min(kScoreRows, count - b));
      const at::Tensor mean = loss_of(model, sequences_at(text.held_out, rows, options.length));
      value += mean.item<double>() * static_cast<double>(rows.size(0)) / static_cast<double>(count);
    }
    if (std::exp(value) < kLowestPerplexity && !options.is_demonstration)
      throw Error(ErrorKind::kUsage,
                  "attention '" + model.options().attention.name + "': held-out perplexity " +
                      std::to_string(std::exp(value)) +
                      " on a text, where 2 is already too low: the model sees its target");
    return value;
  };
  return {.loss = loss, .score = score};
}

}  // namespace hedgerow::worker::laboratory
