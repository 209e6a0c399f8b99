#include "worker/bench/softmax_opponents.hpp"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>

namespace hedgerow::worker::bench {
namespace {

constexpr double kFarBehind = 4;  // times the fastest: it will not lead at a greater length

// The one backend that scaled_dot_product_attention may choose, while this lives.
class OnlyBackend {
 public:
  explicit OnlyBackend(at::SDPBackend id) { set(id, false); }
  ~OnlyBackend() { set(at::SDPBackend::error, true); }
  OnlyBackend(const OnlyBackend&) = delete;
  OnlyBackend& operator=(const OnlyBackend&) = delete;

 private:
  static void set(at::SDPBackend id, bool all) {
    at::Context& context = at::globalContext();
    context.setSDPUseFlash(all || id == at::SDPBackend::flash_attention);
    context.setSDPUseMemEfficient(all || id == at::SDPBackend::efficient_attention);
    context.setSDPUseCuDNN(all || id == at::SDPBackend::cudnn_attention);
    context.setSDPUseMath(all || id == at::SDPBackend::math);
  }
};

// LibTorch says as warnings why a backend does not take a problem.
class WarningCollector final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    // Headings that announce a reason: "Flash attention kernel not used because:".
    if (!warning.msg().empty() && warning.msg().back() == ':') return;
    if (text_.find(warning.msg()) == std::string::npos)
      text_ += (text_.empty() ? "" : " ") + warning.msg();
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// The least of a few looks, each long enough for the clock: a busy machine must not choose the
// opponent. What takes long needs no second look.
double trial_milliseconds(const std::function<void()>& call, const at::Device& device) {
  constexpr double kLong = 200, kLook = 2;
  constexpr int kLooks = 3;
  double best = milliseconds(call, 1, device);
  for (int i = 0; i < kLooks && best < kLong; ++i) {
    const int calls = static_cast<int>(std::clamp(kLook / std::max(best, 1e-3), 1.0, 100.0));
    best = std::min(best, milliseconds(call, calls, device) / calls);
  }
  return best;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::function<void()> softmax_call(const SoftmaxBackend& backend,
                                   bool expands_heads,
                                   const AttentionInputs& inputs,
                                   BenchDirection direction) {
  const bool is_causal = direction != BenchDirection::kDecode;
  const auto attention = [=](const auto& q, const auto& k, const auto& v) {
    return softmax_by(backend, expands_heads, q, k, v, is_causal);
  };
  return attention_call(
      inputs,
      attention,
      {},
      direction == BenchDirection::kDecode ? BenchDirection::kForward : direction);
}

}  // namespace

std::string sentence_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  return first_line(ours == nullptr ? error.what() : ours->what_without_backtrace());
}

std::vector<SoftmaxBackend> softmax_backends(const at::Device& device) {
  std::vector<SoftmaxBackend> backends = {{at::SDPBackend::flash_attention, "flash"}};
  if (device.is_cuda()) {
    backends.push_back({at::SDPBackend::cudnn_attention, "cudnn"});
    backends.push_back({at::SDPBackend::efficient_attention, "efficient"});
  }
  backends.push_back({at::SDPBackend::math, "math"});
  return backends;
}

at::Tensor softmax_by(const SoftmaxBackend& backend,
                      bool expands_heads,
                      const at::Tensor& q,
                      const at::Tensor& k,
                      const at::Tensor& v,
                      bool is_causal) {
  const OnlyBackend only(backend.id);
  const std::int64_t group = q.size(1) / k.size(1);
  const bool expand = expands_heads && group > 1;
  return at::scaled_dot_product_attention(q,
                                          expand ? k.repeat_interleave(group, 1) : k,
                                          expand ? v.repeat_interleave(group, 1) : v,
                                          {},
                                          0.0,
                                          is_causal,
                                          {},
                                          /*enable_gqa=*/group > 1 && !expand);
}

std::string SoftmaxOpponents::Trial::kind() const {
  return backend.name + ", " + std::string(measure::to_string(dtype));
}

std::string SoftmaxOpponents::Trial::name() const {
  return kind() + (expands_heads ? ", heads expanded" : "");
}

std::string SoftmaxOpponents::why_not_tried(Trial& trial,
                                            const AttentionSize& size,
                                            BenchDirection direction,
                                            const std::string& group) const {
  if (const auto known = dropped_.find(group + trial.kind()); known != dropped_.end())
    return known->second;
  const bool is_quadratic = trial.backend.id == at::SDPBackend::math;
  trial.need_bytes = softmax_need(size, direction, is_quadratic);
  MemoryNeed need = shared_need(size, direction);
  need.add(is_quadratic ? "its T x T weights" : "its own", trial.need_bytes);
  return need.fits(memory_bytes_) ? "" : need.against(memory_bytes_);
}

std::string SoftmaxOpponents::time(Trial& trial,
                                   const AttentionSize& size,
                                   BenchDirection direction,
                                   CastInputs& inputs) const {
  WarningCollector warnings;
  const c10::WarningUtils::WarningHandlerGuard collect(&warnings);
  const auto look = [&] {
    trial.milliseconds = trial_milliseconds(
        softmax_call(trial.backend, trial.expands_heads, inputs.in(trial.dtype), direction),
        device_);
  };
  try {
    try {
      look();
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error&) {
      if (size.H == size.G) throw;
      trial.expands_heads = true;
      look();
    }
  } catch (const std::exception& error) {
    return warnings.text().empty() ? sentence_of(error) : first_line(warnings.text());
  }
  return "";
}

SoftmaxOpponent SoftmaxOpponents::opponent_of(const Trial& trial,
                                              const AttentionSize& size,
                                              BenchDirection direction,
                                              const AttentionInputs& cast) {
  return {trial.name(),
          {softmax_call(trial.backend, trial.expands_heads, cast, direction)},
          softmax_cost(size.in(trial.dtype), direction),
          trial.need_bytes};
}

void SoftmaxOpponents::drop_those_far_behind(const std::vector<Trial>& trials,
                                             const Trial& best,
                                             std::int64_t length,
                                             const std::string& group) {
  for (const Trial& trial : trials) {
    const double times = trial.milliseconds / best.milliseconds;
    if (times <= kFarBehind) continue;
    char reason[160];
    std::snprintf(reason,
                  sizeof reason,
                  "at T = %lld it took %.1f times as long as %s",
                  static_cast<long long>(length),
                  times,
                  best.name().c_str());
    dropped_.emplace(group + trial.kind(), reason);
  }
}

std::optional<SoftmaxOpponent> SoftmaxOpponents::fastest(const AttentionSize& size,
                                                         BenchDirection direction,
                                                         CastInputs& inputs,
                                                         std::vector<LeftOut>& left_out) {
  const std::string group = std::string(measure::to_string(direction)) + " " +
                            measure::to_string(measure::HeadCounts{size.H, size.G}) + " ";
  std::vector<Trial> trials;
  for (const SoftmaxBackend& backend : softmax_backends(device_)) {
    for (const BenchDtype dtype : measure::kBenchDtypes) {
      Trial trial{.backend = backend, .dtype = dtype};
      std::string reason = why_not_tried(trial, size, direction, group);
      if (reason.empty()) reason = time(trial, size, direction, inputs);
      if (reason.empty()) {
        trials.push_back(trial);
      } else {
        left_out.push_back({trial.kind(), reason});
      }
    }
  }
  if (trials.empty()) return std::nullopt;
  const auto best =
      std::min_element(trials.begin(), trials.end(), [](const auto& a, const auto& b) {
        return a.milliseconds < b.milliseconds;
      });
  drop_those_far_behind(trials, *best, size.T, group);
  try {
    return opponent_of(*best, size, direction, inputs.in(best->dtype));
  } catch (const std::exception& error) {  // its graph once more
    left_out.push_back({best->name(), sentence_of(error)});
    return std::nullopt;
  }
}

}  // namespace hedgerow::worker::bench
