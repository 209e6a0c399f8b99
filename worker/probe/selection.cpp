#include "worker/probe/selection.hpp"

#include <algorithm>
#include <vector>

#include "storage/files/file.hpp"
#include "storage/files/scoped_file.hpp"

namespace hedgerow::worker {

nlohmann::json furthest_looking(const nlohmann::json& by_sequence, std::int64_t count) {
  auto ranked = by_sequence.get<std::vector<nlohmann::json>>();
  std::ranges::sort(ranked, [](const nlohmann::json& a, const nlohmann::json& b) {
    const double of_a = a.at("look_back"), of_b = b.at("look_back");
    if (of_a != of_b) return of_a > of_b;
    return a.at("sequence").get<std::int64_t>() < b.at("sequence").get<std::int64_t>();
  });
  ranked.resize(std::min(ranked.size(), static_cast<std::size_t>(count)));
  return ranked;
}

void write_selection(const std::filesystem::path& path,
                     const storage::TokenSequences& tokens,
                     const nlohmann::json& selected) {
  storage::TokenSequences chosen;
  chosen.num_sequences = chosen.num_train = static_cast<std::int64_t>(selected.size());
  chosen.seq_len = tokens.seq_len;
  chosen.vocab_size = tokens.vocab_size;
  chosen.tokenizer_hash = tokens.tokenizer_hash;
  chosen.sources = tokens.sources;
  for (const nlohmann::json& entry : selected) {
    const std::int64_t begin = entry.at("sequence").get<std::int64_t>() * tokens.seq_len;
    const auto append = [&](auto& to, const auto& from) {
      to.insert(to.end(), from.begin() + begin, from.begin() + begin + tokens.seq_len);
    };
    append(chosen.input_ids, tokens.input_ids);
    append(chosen.loss_mask, tokens.loss_mask);
    append(chosen.document_starts, tokens.document_starts);
  }
  std::filesystem::path partial = path;
  partial += ".partial";
  storage::ScopedFile goes_again(partial);
  storage::write_tokens(partial, chosen);
  storage::publish(partial, path);
  goes_again.keep();
}

}  // namespace hedgerow::worker
