// What every operator of the hybrid takes beside its tensors, by name: the maps of both sides, the
// window factors and the options. The options are those of visit_options, so that a further one is
// an argument without a line here; that is why operators are registered as functions of a stack of
// values: each is a plain function `R f(const AttentionArguments&, own arguments ..)`, registered
// as `AttentionOp<&f>::call`. Included by the *_ops.cpp alone.
#pragma once

#include <ATen/core/stack.h>
#include <torch/library.h>

#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/hybrid_attention.hpp"

namespace hedgerow::kernels::ops {

struct AttentionArguments {
  std::optional<at::Tensor> layer_q, bias_q, layer_k, bias_k, window_factors;
  HybridOptions options;

  // Of the last values of an operator's stack. Throws c10::Error naming the known maps or windows
  // where it has another.
  explicit AttentionArguments(at::ArrayRef<c10::IValue> values);
  [[nodiscard]] static std::size_t count();
  [[nodiscard]] HybridParameters parameters() const;
};

// Defines "name(own arguments, <attention>) -> results"; `own` ends where <attention> begins.
void define(torch::Library& library, const std::string& own, const std::string& results);

template <auto function>
struct AttentionOp;

template <class R, class... Own, R (*function)(const AttentionArguments&, Own...)>
struct AttentionOp<function> {
  static void call(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
    const std::size_t tail = AttentionArguments::count(), all = sizeof...(Own) + tail;
    const at::ArrayRef<c10::IValue> values = torch::jit::last(*stack, all);
    R result = call_with(values, std::index_sequence_for<Own...>{});
    torch::jit::drop(*stack, all);
    push(*stack, std::move(result));
  }

 private:
  template <std::size_t... i>
  static R call_with(at::ArrayRef<c10::IValue> values, std::index_sequence<i...> /*own*/) {
    return function(AttentionArguments(values.slice(sizeof...(Own))),
                    values[i].template to<std::decay_t<Own>>()...);
  }
  template <class Result>
  static void push(torch::jit::Stack& stack, Result&& result) {
    torch::jit::push_one(stack, std::forward<Result>(result));
  }
  template <class... Each>
  static void push(torch::jit::Stack& stack, std::tuple<Each...>&& results) {
    std::apply([&](auto&&... each) { torch::jit::push(stack, std::move(each)...); },
               std::move(results));
  }
};

template <auto function>
torch::CppFunction boxed() {
  return torch::CppFunction::makeFromBoxedFunction<&AttentionOp<function>::call>();
}

}  // namespace hedgerow::kernels::ops
