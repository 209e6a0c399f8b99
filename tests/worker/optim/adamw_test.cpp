#include "worker/optim/adamw.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "worker/optim/schedule.hpp"

namespace hedgerow::worker {
namespace {

at::Tensor leaf(std::vector<float> values) { return at::tensor(values).set_requires_grad(true); }

void set_gradient(at::Tensor& parameter, std::vector<float> values) {
  parameter.mutable_grad() = at::tensor(values);
}

// Two steps by hand: g = 2, then g = -1, lr 0.1. After one step m / (1 - b1) = g and sqrt(v / (1 -
// b2)) = |g|, so the first update is lr * sign(g); the second is lr * mhat / sqrt(vhat) with mhat =
// (0.9 * 0.2 - 0.1) / 0.19 and vhat = (0.999 * 0.004 + 0.001) / 0.001999.
TEST(AdamW, FollowsTorchsFormula) {
  at::Tensor x = leaf({1.0F});
  AdamW optimizer({x});
  set_gradient(x, {2.0F});
  optimizer.step(0.1);
  EXPECT_NEAR(x.item<double>(), 0.9, 1e-6);
  EXPECT_FALSE(x.grad().defined());
  set_gradient(x, {-1.0F});
  optimizer.step(0.1);
  const double mhat = (0.9 * 0.2 - 0.1) / 0.19, vhat = (0.999 * 0.004 + 0.001) / 0.001999;
  EXPECT_NEAR(x.item<double>(), 0.9 - 0.1 * mhat / std::sqrt(vhat), 1e-6);
}

TEST(AdamW, WeightDecayIsDecoupledFromTheGradient) {
  at::Tensor x = leaf({1.0F});
  AdamW optimizer({x}, {.weight_decay = 0.5});
  set_gradient(x, {0.0F});
  optimizer.step(0.1);
  EXPECT_NEAR(x.item<double>(), 0.95, 1e-6);
}

TEST(AdamW, ClipScalesAllGradientsByTheirJointNorm) {
  at::Tensor x = leaf({0.0F}), y = leaf({0.0F});
  AdamW optimizer({x, y});
  set_gradient(x, {3.0F});
  set_gradient(y, {4.0F});
  EXPECT_NEAR(optimizer.clip_gradients(1.0), 5.0, 1e-9);
  EXPECT_NEAR(x.grad().item<double>(), 0.6, 1e-5);
  EXPECT_NEAR(y.grad().item<double>(), 0.8, 1e-5);
  EXPECT_NEAR(optimizer.clip_gradients(10.0), 1.0, 1e-5);
  EXPECT_NEAR(x.grad().item<double>(), 0.6, 1e-5);
}

TEST(Plateau, DropsTheRateOnlyAfterMoreThanPatienceBadValidations) {
  storage::TransferSection transfer;
  transfer.plateau_patience = 2;
  transfer.plateau_factor = 0.1;
  transfer.min_learning_rate = 5e-4;
  const RateSettings settings(transfer);
  Plateau plateau;
  double rate = plateau.update(1.0, 1e-2, settings);
  for (int i = 0; i < 2; ++i) rate = plateau.update(1.0, rate, settings);
  EXPECT_DOUBLE_EQ(rate, 1e-2);
  rate = plateau.update(1.0, rate, settings);
  EXPECT_DOUBLE_EQ(rate, 1e-3);
  for (int i = 0; i < 3; ++i) rate = plateau.update(1.0, rate, settings);
  EXPECT_DOUBLE_EQ(rate, 5e-4) << "not below min_learning_rate";
}

TEST(Schedule, TheRateRisesOverTheWarmupAndThenFallsOverTheStepsThatAreLeft) {
  storage::FinetuneSection finetune;
  finetune.learning_rate = 0.8;
  finetune.min_learning_rate = 0.2;
  finetune.max_steps = 12;
  finetune.warmup_steps = 4;
  const auto rates = [&finetune](const std::string& schedule, double plateau_rate) {
    finetune.schedule = schedule;
    const RateSettings settings(finetune);
    std::vector<double> at;
    for (const int step : {0, 3, 4, 6, 8, 12, 20})
      at.push_back(rate_after(step, plateau_rate, settings));
    return at;
  };
  const auto expect_near = [](const std::vector<double>& found, std::vector<double> expected) {
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12);
  };
  expect_near(rates("linear", 9.0), {0.2, 0.8, 0.8, 0.65, 0.5, 0.2, 0.2});
  const double quarter = 0.2 + 0.6 * 0.5 * (1.0 + std::sqrt(0.5));
  expect_near(rates("cosine", 9.0), {0.2, 0.8, 0.8, quarter, 0.5, 0.2, 0.2});
  expect_near(rates("constant", 0.8), {0.2, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8});
  expect_near(rates("plateau", 0.4), {0.1, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4});
  finetune.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(rates("linear", 9.0)[0], 0.8);
}

TEST(Stopper, CountsValidationsWithoutImprovementInARow) {
  Stopper stopper;
  EXPECT_TRUE(stopper.update(1.0, 10));
  EXPECT_FALSE(stopper.update(1.0, 20));
  EXPECT_TRUE(stopper.update(0.5, 30));
  EXPECT_FALSE(stopper.update(0.6, 40));
  EXPECT_FALSE(stopper.should_stop(2));
  EXPECT_FALSE(stopper.update(0.6, 50));
  EXPECT_TRUE(stopper.should_stop(2));
  EXPECT_FALSE(stopper.should_stop(0)) << "0 means never";
  EXPECT_EQ(stopper.best_step, 30);
}

}  // namespace
}  // namespace hedgerow::worker
