#include "worker/laboratory/language_task.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "storage/base/error.hpp"

namespace hedgerow::worker::laboratory {
namespace {

using storage::Error;
using storage::ErrorKind;

constexpr std::int64_t kUnknown = 0;

bool is_letter(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return std::isalnum(byte) != 0 || byte >= 0x80;  // bytes of UTF-8 stay in their word
}

std::vector<std::string> words_of(const std::filesystem::path& path, std::int64_t max_words) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorKind::kUsage, "--text: " + path.string() + " cannot be read");
  std::vector<std::string> words;
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) words.push_back(std::exchange(word, {}));
  };
  for (char c = 0; static_cast<std::int64_t>(words.size()) < max_words && file.get(c);) {
    if (is_letter(c)) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    end_word();
    if (std::isspace(static_cast<unsigned char>(c)) == 0) words.emplace_back(1, c);
  }
  end_word();
  return words;
}

// The most frequent words, ties in the order of the alphabet, from id 1.
std::unordered_map<std::string, std::int64_t> vocabulary_of(const std::vector<std::string>& words,
                                                            std::int64_t size) {
  std::unordered_map<std::string, std::int64_t> counts;
  for (const std::string& word : words) ++counts[word];
  std::vector<std::pair<std::string, std::int64_t>> sorted(counts.begin(), counts.end());
  std::ranges::sort(sorted, [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  std::unordered_map<std::string, std::int64_t> ids;
  for (const auto& [word, count] : sorted) {
    if (static_cast<std::int64_t>(ids.size()) + 1 >= size) break;
    ids.emplace(word, static_cast<std::int64_t>(ids.size()) + 1);
  }
  return ids;
}

// [B, length + 1] from each beginning on.
at::Tensor sequences_at(const at::Tensor& text, const at::Tensor& begins, std::int64_t length) {
  return text.index({begins.unsqueeze(1) + at::arange(length + 1, begins.options())});
}

// Mean over the known targets.
at::Tensor loss_of(const Transformer& model, const at::Tensor& sequences) {
  const std::int64_t T = sequences.size(1) - 1;
  const at::Tensor hidden = model.hidden(sequences.narrow(1, 0, T));
  return at::cross_entropy_loss(model.logits(hidden.flatten(0, 1)),
                                sequences.narrow(1, 1, T).flatten(),
                                /*weight=*/{},
                                at::Reduction::Mean,
                                /*ignore_index=*/kUnknown);
}

void check_layout(const Transformer& model, const LanguageOptions& options) {
  if (!model.options().attention.causal && !options.is_demonstration)
    throw Error(ErrorKind::kUsage,
                "attention '" + model.options().attention.name +
                    "', causal: a bidirectional layout sees the next word that it is asked for; "
                    "only a demonstration may train it");
}

}  // namespace

LanguageText read_language(const std::filesystem::path& path, const LanguageOptions& options) {
  if (path.empty())
    throw Error(ErrorKind::kUsage,
                "--text: this study trains a language model; name a text file of at least some "
                "hundred thousand words");
  const std::vector<std::string> words = words_of(path, options.max_words);
  const auto ids = vocabulary_of(words, options.vocab_size);
  at::Tensor all = at::zeros({static_cast<std::int64_t>(words.size())}, at::kLong);
  auto* const id_of = all.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto found = ids.find(words[i]);
    id_of[i] = found == ids.end() ? kUnknown : found->second;
  }
  const auto held = static_cast<std::int64_t>(static_cast<double>(all.numel()) * options.held_out);
  if (held < 2 * (options.length + 1))
    throw Error(ErrorKind::kUsage,
                "--text: " + path.string() + " has " + std::to_string(words.size()) +
                    " words, of which too few are left to hold out; give a longer text");
  return {.train = all.narrow(0, 0, all.numel() - held),
          .held_out = all.narrow(0, all.numel() - held, held)};
}

TrainingTask language_task(const LanguageText& text, const LanguageOptions& options) {
  const auto loss =
      [=](const Transformer& model, std::int64_t batch_size, at::Generator& generator) {
        check_layout(model, options);
        const at::Tensor begins = at::randint(0,
                                              text.train.numel() - options.length,
                                              {batch_size},
                                              generator,
                                              at::TensorOptions(at::kLong));
        return loss_of(model, sequences_at(text.train, begins, options.length));
      };
  const auto score = [=](const Transformer& model) {
    check_layout(model, options);
    const std::int64_t room = text.held_out.numel() - options.length - 1;
    const std::int64_t count = std::min(options.score_sequences, room + 1);
    const at::Tensor begins =
        at::arange(count, at::kLong).mul(std::max<std::int64_t>(1, room / count));
    const double value =
        loss_of(model, sequences_at(text.held_out, begins, options.length)).item<double>();
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
