// Training of one model of the laboratory: a task gives batches and scores, this walks the steps
// with AdamW. The seed decides everything, so that a trial is the same on the same machine with as
// many threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "worker/laboratory/transformer.hpp"

namespace hedgerow::worker::laboratory {

enum class RateSchedule { kConstant, kCosine, kOneCycle };

struct TrainingOptions {
  std::int64_t steps = 1000;
  std::int64_t batch_size = 32;
  double learning_rate = 3e-3;
  double weight_decay = 0.01;
  std::int64_t warmup_steps = 100;  // of kConstant and kCosine; kOneCycle rises over a quarter
  RateSchedule schedule = RateSchedule::kConstant;
  double clip = 1.0;               // of the joint norm of the gradients; 0: none
  std::int64_t score_every = 100;  // steps between two scores
  double stop_at = 0;              // a score of at least this ends the training; 0: never
  std::uint64_t seed = 0;          // of the batches
  double learning_rate_at(std::int64_t step) const;
};

// One point of a curve. `score` is the task's: accuracy, or loss in nats.
struct CurvePoint {
  std::int64_t step = 0;
  double score = 0;
};

struct Trial {
  std::vector<CurvePoint> curve;
  bool is_finite = true;  // false: the loss was not, and training ended there
  std::int64_t steps = 0;
  double seconds = 0;
  [[nodiscard]] double final_score() const { return curve.empty() ? 0 : curve.back().score; }
};

// What a task is to the trainer.
struct TrainingTask {
  // The mean loss of the batch of this step, from 0, whose generator is seeded by
  // TrainingOptions::seed.
  std::function<at::Tensor(
      const Transformer&, std::int64_t step, std::int64_t batch_size, at::Generator&)>
      loss;
  // Without autograd, on data held out.
  std::function<double(const Transformer&)> score;
  // What is trained; empty: all parameters.
  std::function<std::vector<at::Tensor>(const Transformer&)> parameters = {};
};

// `keep_on` is asked every few steps with the share done; false ends the trial. A loss that is not
// finite ends it too and is told, never an exception: it is a finding.
[[nodiscard]] Trial train(const Transformer& model,
                          const TrainingTask& task,
                          const TrainingOptions& options,
                          const std::function<bool(double)>& keep_on = {});

}  // namespace hedgerow::worker::laboratory
