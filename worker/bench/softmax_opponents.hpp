// What the hybrid is measured against: LibTorch's scaled_dot_product_attention, by every backend
// that this device has, in bf16 and in fp32. At each size all that can run are tried briefly and
// the fastest is the opponent, by its name. A backend that refuses, does not fit, or was far
// behind at a shorter length is left out, with its reason. One thread.
#pragma once

#include <ATen/SDPBackend.h>

#include <exception>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "worker/bench/alternate.hpp"
#include "worker/bench/attention_problem.hpp"

namespace hedgerow::worker::bench {

struct SoftmaxBackend {
  at::SDPBackend id = at::SDPBackend::math;
  std::string name;
};

// On the CPU flash and math; on CUDA efficient and cudnn too.
[[nodiscard]] std::vector<SoftmaxBackend> softmax_backends(const at::Device& device);

// scaled_dot_product_attention by that backend and no other. k and v may have fewer heads than q;
// `expands_heads` repeats them before, for backends that know no groups. Throws c10::Error saying
// why the backend does not take them.
at::Tensor softmax_by(const SoftmaxBackend& backend,
                      bool expands_heads,
                      const at::Tensor& q,
                      const at::Tensor& k,
                      const at::Tensor& v,
                      bool is_causal);

// An error's sentence, without what LibTorch puts behind it. A launch that fails on CUDA is no
// c10::Error.
[[nodiscard]] std::string sentence_of(const std::exception& error);

struct SoftmaxOpponent {
  std::string name;  // "flash, bf16", "math, fp32", "efficient, fp32, heads expanded"
  Contender contender;
  Cost cost;
  double need_bytes = 0;  // its own, as long as its contender lives
};

struct LeftOut {
  std::string name, reason;
};

class SoftmaxOpponents {
 public:
  SoftmaxOpponents(const at::Device& device, std::uint64_t memory_bytes)
      : device_(device), memory_bytes_(memory_bytes) {}

  // The fastest at this size; nullopt if none can run. Give lengths in growing order. Who was left
  // out is added to `left_out`.
  [[nodiscard]] std::optional<SoftmaxOpponent> fastest(const AttentionSize& size,
                                                       BenchDirection direction,
                                                       CastInputs& inputs,
                                                       std::vector<LeftOut>& left_out);

 private:
  // What was tried; its inputs and graph are gone again, so that one at a time needs memory.
  struct Trial {
    SoftmaxBackend backend;
    BenchDtype dtype = BenchDtype::kFloat32;
    bool expands_heads = false;
    double need_bytes = 0;
    double milliseconds = 0;
    [[nodiscard]] std::string kind() const;  // "flash, bf16"
    [[nodiscard]] std::string name() const;  // and whether its heads are expanded
  };
  // These two give "", or the reason why it is left out. The first: it was far behind before, or
  // does not fit. The second times it, by expanded heads where it takes no groups.
  [[nodiscard]] std::string why_not_tried(Trial& trial,
                                          const AttentionSize& size,
                                          BenchDirection direction,
                                          const std::string& group) const;
  [[nodiscard]] std::string time(Trial& trial,
                                 const AttentionSize& size,
                                 BenchDirection direction,
                                 CastInputs& inputs) const;
  static SoftmaxOpponent opponent_of(const Trial& trial,
                                     const AttentionSize& size,
                                     BenchDirection direction,
                                     const AttentionInputs& cast);
  void drop_those_far_behind(const std::vector<Trial>& trials,
                             const Trial& best,
                             std::int64_t length,
                             const std::string& group);

  at::Device device_;
  std::uint64_t memory_bytes_;
  std::map<std::string, std::string> dropped_;  // (direction, heads, kind) -> reason
};

}  // namespace hedgerow::worker::bench
