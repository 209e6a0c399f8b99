// Figures by head, gathered over sequences: sums, which become means, and the largest and smallest
// of all sequences. One object a layer, one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace hedgerow::worker {

// A group is the path of a JSON object in a head's ("softmax", "maps/relu"). of_heads is [H], or
// [H, N] for an array of N numbers. fp64 on the CPU. A NaN in one sequence makes a mean NaN, and is
// left out of largest and smallest.
class HeadSums {
 public:
  void add(const std::string& group, const std::string& name, const at::Tensor& of_heads);
  void least(const std::string& group, const std::string& name, const at::Tensor& of_heads);
  void most(const std::string& group, const std::string& name, const at::Tensor& of_heads);

  // [{"head", GROUP: {NAME: number}}]; null for what is not finite.
  [[nodiscard]] nlohmann::json heads(std::int64_t num_heads, double num_sequences) const;

 private:
  using Figures = std::map<std::string, std::map<std::string, at::Tensor>>;
  Figures sums_, least_, most_;
};

}  // namespace hedgerow::worker
