#include "worker/logits/top_logits.hpp"

#include <ATen/ATen.h>

#include <cstring>
#include <limits>

#include "storage/base/error.hpp"
#include "storage/recipe/capture_plan.hpp"
#include "worker/logits/top_logits_cpu.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

TopLogits plain_top_logits(const at::Tensor& logits, int top_k) {
  const at::Tensor log_p = at::log_softmax(logits, -1);
  const auto [values, ids] = log_p.topk(top_k, -1);
  const at::Tensor rest =
      log_p.scatter(1, ids, -std::numeric_limits<double>::infinity()).logsumexp(-1);
  return {ids.to(at::kInt), values, rest};
}

}  // namespace

TopLogits top_logits(const at::Tensor& logits, int top_k) {
  // A NaN has no order: selecting among them would go astray. Both ends carry it on, and unlike a
  // sum in double they need no copy.
  const auto [least, most] = at::aminmax(logits);
  if (!at::isfinite(least).item<bool>() || !at::isfinite(most).item<bool>()) {
    throw Error(ErrorKind::kCorrupt,
                "the teacher's logits are not finite; check the model's weights");
  }
  return logits.is_cpu() ? cpu::top_logits(logits.contiguous(), top_k)
                         : plain_top_logits(logits, top_k);
}

std::vector<std::byte> encode(const TopLogits& top) {
  const at::Tensor parts[] = {top.ids.cpu().contiguous(),
                              top.log_rest.cpu().contiguous(),
                              top.log_probabilities.cpu().to(at::kHalf).contiguous()};
  std::vector<std::byte> bytes;
  for (const at::Tensor& part : parts) {
    const auto* begin = static_cast<const std::byte*>(part.const_data_ptr());
    bytes.insert(bytes.end(), begin, begin + part.nbytes());
  }
  return bytes;
}

TopLogits decode(std::span<const std::byte> bytes,
                 std::int64_t seq_len,
                 std::int64_t vocab_size,
                 const std::string& name) {
  const std::int64_t top_k = (static_cast<std::int64_t>(bytes.size()) / seq_len - 4) / 6;
  if (top_k < 1 || seq_len * storage::logits_bytes(static_cast<int>(top_k)) !=
                       static_cast<std::int64_t>(bytes.size())) {
    throw Error(ErrorKind::kCorrupt,
                name + ": " + std::to_string(bytes.size()) + " bytes are not the logits of " +
                    std::to_string(seq_len) + " positions");
  }
  TopLogits top{at::empty({seq_len, top_k}, at::kInt), {}, at::empty({seq_len}, at::kFloat)};
  at::Tensor halves = at::empty({seq_len, top_k}, at::kHalf);
  const std::byte* from = bytes.data();
  for (const at::Tensor* part : {&top.ids, &top.log_rest, &halves}) {
    std::memcpy(part->data_ptr(), from, part->nbytes());
    from += part->nbytes();
  }
  const std::int64_t largest = top.ids.max().item<std::int32_t>();
  if (largest >= vocab_size || top.ids.min().item<std::int32_t>() < 0) {
    throw Error(ErrorKind::kUsage,
                name + ": names token " + std::to_string(largest) +
                    ", the model's vocabulary has " + std::to_string(vocab_size) +
                    ": the logits are of another teacher; begin a run with this one, or set "
                    "finetune.objective = \"ce\"");
  }
  const at::Tensor values = halves.to(at::kFloat);
  const at::Tensor sum = at::cat({values, top.log_rest.unsqueeze(1)}, 1).logsumexp(1);
  top.log_probabilities = values - sum.unsqueeze(1);
  top.log_rest = top.log_rest - sum;
  return top;
}

}  // namespace hedgerow::worker
