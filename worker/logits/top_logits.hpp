// What finetune learns of the teacher: at each position its K likeliest next tokens with their
// log-probabilities, and the log of what the other tokens have together. Computed by the logits
// task, stored as one chunk a sequence (storage/README.md "Logits"), read back by finetune.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hedgerow::worker {

struct TopLogits {
  at::Tensor ids;                // int32 [n, K], by falling probability
  at::Tensor log_probabilities;  // fp32 [n, K]
  at::Tensor log_rest;           // fp32 [n]; -inf where K is the whole vocabulary
};

// The K largest of logits [n, V] fp32, K in 1..V. Equal logits: the lower id first. On the CPU a
// threshold from the maxima of groups of logits leaves few to sort.
[[nodiscard]] TopLogits top_logits(const at::Tensor& logits, int top_k);

// [T, K] as the bytes of one chunk: ids, log_rest, then log_probabilities in fp16.
[[nodiscard]] std::vector<std::byte> encode(const TopLogits& top);
// Back, on the CPU, with probabilities that sum to 1 again. `name` says of which file. Throws
// kCorrupt for another number of bytes, kUsage for an id beyond the vocabulary.
[[nodiscard]] TopLogits decode(std::span<const std::byte> bytes,
                               std::int64_t seq_len,
                               std::int64_t vocab_size,
                               const std::string& name);

}  // namespace hedgerow::worker
