#include "step_phases.hpp"

#include <ATen/record_function.h>

#include <chrono>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace hedgerow::bench {
namespace {

using Clock = std::chrono::steady_clock;

const std::map<std::string_view, std::string_view> kPhases = {
    {"hedgerow::frozen_product", "frozen products"},
    {"hedgerow::softmax_attention", "attention"},
    {"hedgerow::softmax_backward", "attention"},
    {"hedgerow::hybrid_forward", "attention"},
    {"hedgerow::hybrid_backward", "attention"},
    {"hedgerow::mean_square", "losses"},
    {"hedgerow::mean_square_gradient", "losses"},
    {"hedgerow::cross_entropy_of_weights", "losses"},
    {"hedgerow::cross_entropy_of_tokens", "losses"},
    {"hedgerow::lora", "LoRA"},
    {"hedgerow::rms_norm", "element-wise"},
    {"hedgerow::add_rms_norm", "element-wise"},
    {"hedgerow::add_round", "element-wise"},
    {"hedgerow::swiglu", "element-wise"},
    {"hedgerow::split_heads", "element-wise"},
    {"hedgerow::rms_norm_backward", "element-wise"},
    {"hedgerow::swiglu_backward", "element-wise"},
    {"hedgerow::split_heads_backward", "element-wise"},
    {"hedgerow::add_scaled", "element-wise"},
    {"hedgerow::clip_gradients", "optimizer"},
    {"hedgerow::adamw", "optimizer"},
    {"hedgerow::embed", "data"},
};

// The innermost open range owns the time that passes.
struct Ledger {
  std::vector<std::string> open = {"rest"};
  std::map<std::string, double> seconds;
  Clock::time_point since = Clock::now();

  void turn() {
    const auto now = Clock::now();
    seconds[open.back()] += std::chrono::duration<double>(now - since).count();
    since = now;
  }
  void begin(std::string_view name) {
    turn();
    const auto phase = kPhases.find(name);
    if (phase == kPhases.end()) throw std::logic_error("no phase has " + std::string(name));
    open.emplace_back(phase->second);
  }
  void end() {
    turn();
    open.pop_back();
  }
};

thread_local Ledger* ledger = nullptr;

bool is_ours(const at::RecordFunction& range) {
  return ledger != nullptr && std::string_view(range.name()).starts_with("hedgerow::");
}

}  // namespace

std::map<std::string, double> phases_of(const std::function<void()>& call) {
  Ledger here;
  ledger = &here;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& range) -> std::unique_ptr<at::ObserverContext> {
            if (is_ours(range)) ledger->begin(range.name());
            return nullptr;
          },
          [](const at::RecordFunction& range, at::ObserverContext* /*context*/) {
            if (is_ours(range)) ledger->end();
          })
          .scopes({at::RecordScope::USER_SCOPE}));
  here.since = Clock::now();
  call();
  here.turn();
  at::removeCallback(handle);
  ledger = nullptr;
  return here.seconds;
}

}  // namespace hedgerow::bench
