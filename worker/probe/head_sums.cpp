#include "worker/probe/head_sums.hpp"

#include <ATen/ATen.h>

#include <cmath>

namespace hedgerow::worker {
namespace {

// A number, or an array of the entries of a vector.
nlohmann::json finite_json(const at::Tensor& value) {
  if (value.dim() == 0) {
    const double number = value.item<double>();
    return std::isfinite(number) ? nlohmann::json(number) : nlohmann::json();
  }
  nlohmann::json array = nlohmann::json::array();
  for (std::int64_t i = 0; i < value.size(0); ++i) array.push_back(finite_json(value[i]));
  return array;
}

}  // namespace

void HeadSums::add(const std::string& group, const std::string& name, const at::Tensor& of_heads) {
  at::Tensor& sum = sums_[group][name];
  sum = sum.defined() ? sum + of_heads : of_heads.clone();
}

void HeadSums::least(const std::string& group,
                     const std::string& name,
                     const at::Tensor& of_heads) {
  at::Tensor& found = least_[group][name];
  found = found.defined() ? at::fmin(found, of_heads) : of_heads.clone();
}

void HeadSums::most(const std::string& group, const std::string& name, const at::Tensor& of_heads) {
  at::Tensor& found = most_[group][name];
  found = found.defined() ? at::fmax(found, of_heads) : of_heads.clone();
}

nlohmann::json HeadSums::heads(std::int64_t num_heads, double num_sequences) const {
  nlohmann::json heads = nlohmann::json::array();
  for (std::int64_t h = 0; h < num_heads; ++h) {
    nlohmann::json head = {{"head", h}};
    const auto put = [&](const Figures& groups, double divisor) {
      for (const auto& [group, figures] : groups) {
        nlohmann::json& of = head[nlohmann::json::json_pointer("/" + group)];
        for (const auto& [name, values] : figures) of[name] = finite_json(values[h] / divisor);
      }
    };
    put(sums_, num_sequences);
    put(least_, 1.0);
    put(most_, 1.0);
    heads.push_back(std::move(head));
  }
  return heads;
}

}  // namespace hedgerow::worker
