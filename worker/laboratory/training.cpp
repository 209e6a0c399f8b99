#include "worker/laboratory/training.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>

#include "worker/optim/adamw.hpp"

namespace hedgerow::worker::laboratory {
namespace {

// One-cycle begins at a 25th of the peak and ends at a 25e4th, as torch's defaults.
constexpr double kOneCycleStart = 1.0 / 25, kOneCycleEnd = 1.0 / 25e4, kOneCycleRise = 0.25;
constexpr double kCosineEnd = 0.1;  // of the peak
constexpr std::int64_t kStepsBetweenQuestions = 20;

// From `from` to `to` as `done` goes from 0 to 1.
double along_cosine(double from, double to, double done) {
  return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, done)));
}

}  // namespace

double TrainingOptions::learning_rate_at(std::int64_t step) const {
  const auto at = static_cast<double>(step), all = static_cast<double>(steps);
  if (schedule == RateSchedule::kOneCycle) {
    const double rise = std::max(1.0, kOneCycleRise * all);
    if (at < rise) return learning_rate * along_cosine(kOneCycleStart, 1, at / rise);
    return learning_rate * along_cosine(1, kOneCycleEnd, (at - rise) / (all - rise));
  }
  if (step < warmup_steps) return learning_rate * (at + 1) / static_cast<double>(warmup_steps);
  if (schedule == RateSchedule::kConstant) return learning_rate;
  const auto warmup = static_cast<double>(warmup_steps);
  return learning_rate * along_cosine(1, kCosineEnd, (at - warmup) / std::max(1.0, all - warmup));
}

Trial train(const Transformer& model,
            const TrainingTask& task,
            const TrainingOptions& options,
            const std::function<bool(double)>& keep_on) {
  const auto begin = std::chrono::steady_clock::now();
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  AdamW optimizer(task.parameters ? task.parameters(model) : model.parameters(),
                  {.weight_decay = options.weight_decay});
  Trial trial;
  const auto score = [&](std::int64_t step) {
    const c10::NoGradGuard no_grad;
    trial.curve.push_back({step, task.score(model)});
    return options.stop_at > 0 && trial.curve.back().score >= options.stop_at;
  };
  bool is_over = score(0);
  for (std::int64_t step = 0; step < options.steps && !is_over; ++step) {
    const at::Tensor loss = task.loss(model, step, options.batch_size, generator);
    trial.is_finite = std::isfinite(loss.item<double>());
    if (!trial.is_finite) break;
    loss.backward();
    optimizer.clip_gradients(options.clip);
    optimizer.step(options.learning_rate_at(step));
    trial.steps = step + 1;
    if (trial.steps % options.score_every == 0 || trial.steps == options.steps)
      is_over = score(trial.steps);
    if (keep_on && trial.steps % kStepsBetweenQuestions == 0)
      is_over = !keep_on(static_cast<double>(trial.steps) / static_cast<double>(options.steps)) ||
                is_over;
  }
  trial.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return trial;
}

}  // namespace hedgerow::worker::laboratory
