#include "step_phases.hpp"

#include <ATen/record_function.h>

#include <chrono>
#include <memory>
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

constexpr std::string_view kRest = "rest";

bool is_ours(const at::RecordFunction& range) {
  return std::string_view(range.name()).starts_with("hedgerow::");
}

// Hears the ranges of this thread while it lives; the innermost open one owns the time that passes.
class Ledger {
 public:
  Ledger() {
    current_ = this;
    callback_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::USER_SCOPE}));
    since_ = Clock::now();
  }
  ~Ledger() {
    at::removeCallback(callback_);
    current_ = nullptr;
  }
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Up to now.
  std::map<std::string, double> seconds() {
    turn();
    if (unknown_.empty()) return seconds_;
    throw std::logic_error(
        "the range '" + unknown_ +
        "' belongs to no phase; add it to kPhases of tests/bench/step_phases.cpp");
  }

 private:
  void turn() {
    const auto now = Clock::now();
    seconds_[std::string(open_.back())] += std::chrono::duration<double>(now - since_).count();
    since_ = now;
  }

  // LibTorch swallows what a callback throws, so an unknown range is remembered.
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& range) {
    if (!is_ours(range)) return nullptr;
    // Autograd runs a device's backward on a thread of its own, while ours waits: its time is that of
    // the range that is open here.
    if (current_ == nullptr) return nullptr;
    const auto phase = kPhases.find(range.name());
    if (phase == kPhases.end()) current_->unknown_ = range.name();
    current_->turn();
    current_->open_.push_back(phase == kPhases.end() ? kRest : phase->second);
    return nullptr;
  }

  static void end(const at::RecordFunction& range, at::ObserverContext* /*context*/) {
    if (!is_ours(range) || current_ == nullptr) return;
    current_->turn();
    current_->open_.pop_back();
  }

  static thread_local Ledger* current_;
  at::CallbackHandle callback_ = 0;
  std::vector<std::string_view> open_ = {kRest};
  std::map<std::string, double> seconds_;
  std::string unknown_;
  Clock::time_point since_;
};

thread_local Ledger* Ledger::current_ = nullptr;

}  // namespace

std::map<std::string, double> phases_of(const std::function<void()>& call) {
  Ledger ledger;
  call();
  return ledger.seconds();
}

}  // namespace hedgerow::bench
