// What every operator of the hybrid takes beside its tensors, by name: the maps of both sides, the
// window factors and what the attention is. The dispatcher wants functions of flat arguments; here
// one struct stands for the flat tail, so that each operator's kernel, shape rule and autograd glue
// is a plain function `R f(const AttentionArguments&, own arguments ..)`, and
// `AttentionOp<&f>::call` is what is registered. Included by the *_ops.cpp alone.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/hybrid_attention.hpp"

namespace hedgerow::kernels::ops {

// The tail of their schemas. Names of maps and windows are those of an export's config.json.
#define HEDGEROW_ATTENTION_SCHEMA                                                           \
  "Tensor? layer_q=None, Tensor? bias_q=None, Tensor? layer_k=None, Tensor? bias_k=None, "  \
  "Tensor? window_factors=None, str feature_map=\"hedgehog_softmax\", bool negation=True, " \
  "int order=2, str window=\"terraced\", int window_size=64, int num_sinks=0, int "         \
  "recall_cache=0, float temperature=1.0, int linear_cap=0"

struct AttentionArguments {
  std::optional<at::Tensor> layer_q, bias_q, layer_k, bias_k, window_factors;
  std::string feature_map;
  bool negation = true;
  std::int64_t order = 2;
  std::string window;
  std::int64_t window_size = 64;
  std::int64_t num_sinks = 0;
  std::int64_t recall_cache = 0;
  double temperature = 1.0;
  std::int64_t linear_cap = 0;

  [[nodiscard]] HybridParameters parameters() const;
  // Throws c10::Error naming the known maps or windows where it has another.
  [[nodiscard]] HybridOptions options() const;
  [[nodiscard]] bool windowed() const { return window != "none"; }
};

// Throws c10::Error naming the known maps.
[[nodiscard]] FeatureMapOptions feature_map_options(std::string_view feature_map,
                                                    bool negation,
                                                    std::int64_t order,
                                                    double temperature);

// The operator that `kernel` is registered as, through the dispatcher.
template <auto kernel>
const auto& operator_of(const char* name) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow(name, "")
                             .template typed<std::remove_pointer_t<decltype(kernel)>>();
  return op;
}

template <auto function>
struct AttentionOp;

template <class R, class... Own, R (*function)(const AttentionArguments&, Own...)>
struct AttentionOp<function> {
  static R call(Own... own,
                const std::optional<at::Tensor>& layer_q,
                const std::optional<at::Tensor>& bias_q,
                const std::optional<at::Tensor>& layer_k,
                const std::optional<at::Tensor>& bias_k,
                const std::optional<at::Tensor>& window_factors,
                std::string_view feature_map,
                bool negation,
                std::int64_t order,
                std::string_view window,
                std::int64_t window_size,
                std::int64_t num_sinks,
                std::int64_t recall_cache,
                double temperature,
                std::int64_t linear_cap) {
    return function({layer_q,
                     bias_q,
                     layer_k,
                     bias_k,
                     window_factors,
                     std::string(feature_map),
                     negation,
                     order,
                     std::string(window),
                     window_size,
                     num_sinks,
                     recall_cache,
                     temperature,
                     linear_cap},
                    own...);
  }

  // operator_of, called.
  static R dispatch(const char* name, const AttentionArguments& a, Own... own) {
    return operator_of<&call>(name).call(own...,
                                         a.layer_q,
                                         a.bias_q,
                                         a.layer_k,
                                         a.bias_k,
                                         a.window_factors,
                                         a.feature_map,
                                         a.negation,
                                         a.order,
                                         a.window,
                                         a.window_size,
                                         a.num_sinks,
                                         a.recall_cache,
                                         a.temperature,
                                         a.linear_cap);
  }
};

}  // namespace hedgerow::kernels::ops
