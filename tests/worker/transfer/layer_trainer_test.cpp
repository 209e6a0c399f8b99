#include "worker/transfer/layer_trainer.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "kernels/hybrid_attention.hpp"
#include "kernels/window_attention.hpp"
#include "storage/base/error.hpp"
#include "storage/history/columns.hpp"
#include "worker/model/block_runner.hpp"
#include "worker/model/linear_branch.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker {
namespace {

using TensorMap = std::map<std::string, storage::OwnedTensor>;

class Trainer : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    at::manual_seed(11);
    config_.num_attention_heads = 4;
    config_.num_key_value_heads = 2;
    config_.head_dim = 8;
    recipe_.attention.feature_dim = 8;
    recipe_.attention.window_size = 4;
    recipe_.attention.num_sinks = 1;  // with more, few steps stay behind the control
    recipe_.transfer.mse_factor = 1000;
    qkv_ = {at::randn({2, 4, 24, 8}), at::randn({2, 2, 24, 8}), at::randn({2, 2, 24, 8})};
  }

  void use_positive_random(bool trained, int redraw_every = 0) {
    recipe_.attention.feature_map = storage::FeatureMapKind::kPositiveRandom;
    recipe_.attention.negation = false;
    recipe_.attention.bias = false;
    recipe_.attention.start = storage::FeatureMapStart::kOrthogonalChi;
    recipe_.attention.key_maps = storage::KeyMaps::kQueryHead;
    recipe_.attention.train_feature_map = trained;
    recipe_.transfer.redraw_every = redraw_every;
  }

  // The Omega of layer 0, as the last checkpoint would have it.
  static at::Tensor omega(const LayerTrainer& trainer, const char* side) {
    TensorMap saved;
    trainer.save(saved);
    return tensor(saved, std::string("layers.0.feature_map_") + side + ".mlp.layer").clone();
  }

  LayerTrainer make(int layer, std::uint64_t seed = 3) const {
    return {layer, recipe_, config_, seed, at::kCPU};
  }

  static TensorMap maps(const LayerTrainer& trainer) {
    TensorMap tensors;
    trainer.export_best(tensors);
    return tensors;
  }
  static at::Tensor tensor(const TensorMap& tensors, const std::string& name) {
    return to_tensor(tensors.at(name));
  }

  // What the student with the trainer's best maps gives.
  at::Tensor output(const LayerTrainer& trainer) const {
    const TensorMap tensors = maps(trainer);
    const std::string prefix =
        "model.layers." + std::to_string(trainer.layer_idx()) + ".self_attn.";
    kernels::HybridParameters parameters;
    parameters.q.layer = tensor(tensors, prefix + "feature_map_q.mlp.layer");
    parameters.k.layer = tensor(tensors, prefix + "feature_map_k.mlp.layer");
    if (recipe_.attention.bias) {
      parameters.q.bias = tensor(tensors, prefix + "feature_map_q.mlp.bias");
      parameters.k.bias = tensor(tensors, prefix + "feature_map_k.mlp.bias");
    }
    parameters.window_factors = tensor(tensors, prefix + "window_factors").flatten();
    kernels::HybridOptions options = recipe_.attention;
    options.fp32_output = true;
    return kernels::hybrid_attention(qkv_.q, qkv_.k, qkv_.v, parameters, options);
  }

  // What its control gives.
  at::Tensor window_output() const {
    kernels::HybridOptions options = recipe_.attention;
    options.fp32_output = true;
    return kernels::window_attention(qkv_.q, qkv_.k, qkv_.v, options);
  }

  static void train(LayerTrainer& trainer, const Qkv& qkv, int steps) {
    for (int i = 0; i < steps; ++i) {
      trainer.accumulate(qkv, 1.0);
      trainer.step();
    }
  }

  storage::Recipe recipe_;
  storage::ModelConfig config_;
  Qkv qkv_;
};

TEST_F(Trainer, AKeyMapOfAKvHeadStartsAsThatOfItsFirstQueryHeadAndTheQuerysStartIsTheSame) {
  const std::string prefix = "model.layers.5.self_attn.feature_map_";
  const TensorMap shared = maps(make(5));
  recipe_.attention.key_maps = storage::KeyMaps::kQueryHead;
  const TensorMap own = maps(make(5));
  EXPECT_EQ(shared.at(prefix + "q.mlp.layer").bytes, own.at(prefix + "q.mlp.layer").bytes);
  EXPECT_EQ(shared.at(prefix + "k.mlp.bias").shape, (std::vector<std::int64_t>{2, 4}));
  EXPECT_TRUE(at::equal(tensor(shared, prefix + "k.mlp.layer"),
                        tensor(own, prefix + "q.mlp.layer").slice(0, 0, 4, 2)));
}

TEST_F(Trainer, StartsFromLayerAndSeedAloneWithEqualMaps) {
  recipe_.attention.key_maps = storage::KeyMaps::kQueryHead;
  const TensorMap first = maps(make(5)), again = maps(make(5)), other_layer = maps(make(6)),
                  other_seed = maps(make(5, 4));
  const std::string q = "model.layers.5.self_attn.feature_map_q.mlp.layer";
  EXPECT_EQ(first.at(q).bytes, again.at(q).bytes);
  EXPECT_EQ(first.at(q).bytes, first.at("model.layers.5.self_attn.feature_map_k.mlp.layer").bytes);
  EXPECT_NE(first.at(q).bytes,
            other_layer.at("model.layers.6.self_attn.feature_map_q.mlp.layer").bytes);
  EXPECT_NE(first.at(q).bytes, other_seed.at(q).bytes);
  EXPECT_EQ(first.at("model.layers.5.self_attn.window_factors").shape,
            (std::vector<std::int64_t>{1, 4, 1, 1}));
}

TEST_F(Trainer, LearnsItsTeacherWithSinksAndMapsOfKvHeadsAndWithoutEither) {
  const at::Tensor y_true = teacher_attention(qkv_);
  for (const bool is_lolcats : {false, true}) {
    if (is_lolcats) recipe_.attention.num_sinks = 0;
    if (is_lolcats) recipe_.attention.key_maps = storage::KeyMaps::kQueryHead;
    LayerTrainer trainer = make(0);
    trainer.validate(qkv_, y_true);
    const double before = trainer.finish_validation(0).mse;
    train(trainer, qkv_, 150);
    trainer.validate(qkv_, y_true);
    EXPECT_LT(trainer.finish_validation(150).mse, before / 5) << is_lolcats;
    EXPECT_GT(trainer.history().back().linear_share, 0);
  }
}

// What has no row is shown by nobody (storage/history/columns.hpp).
TEST_F(Trainer, TheTableOfColumnsHasARowForEveryNumberOfALayer) {
  const nlohmann::json metrics = LayerMetrics{};
  for (const auto& [name, value] : metrics.items()) {
    if (name == "layer" || name == "step") continue;
    EXPECT_NE(storage::find_column("layer", name), nullptr) << name;
  }
}

TEST_F(Trainer, ReportsMeanSquaredErrorOverAllElementsOfAValidation) {
  LayerTrainer trainer = make(0);
  const at::Tensor prediction = output(trainer);
  const at::Tensor y_true = at::randn_like(prediction);
  // In two parts of one sequence, as a streamed validation would.
  for (std::int64_t b = 0; b < 2; ++b) {
    const Qkv part{qkv_.q.narrow(0, b, 1), qkv_.k.narrow(0, b, 1), qkv_.v.narrow(0, b, 1)};
    trainer.validate(part, y_true.narrow(0, b, 1));
  }
  const LayerMetrics& metrics = trainer.finish_validation(0);
  const double expected = (prediction - y_true).square().mean().item<double>();
  EXPECT_NEAR(metrics.mse, expected, 1e-5 * expected);
  EXPECT_NEAR(metrics.relative_mse, expected / y_true.square().mean().item<double>(), 1e-5);
  EXPECT_NEAR(metrics.window_factor, 0.1, 1e-6);
}

TEST_F(Trainer, WhatStartsPerfectKeepsItsStartAndStopsAfterItsPatience) {
  recipe_.transfer.early_stop_patience = 2;
  LayerTrainer trainer = make(0);
  const TensorMap start = maps(trainer);
  const at::Tensor y_true = output(trainer);  // the start cannot be improved
  trainer.validate(qkv_, y_true);
  trainer.finish_validation(0);
  for (int validation = 1; validation <= 2; ++validation) {
    EXPECT_FALSE(trainer.stopped());
    train(trainer, qkv_, 1);
    trainer.validate(qkv_, y_true);
    trainer.finish_validation(validation);
  }
  EXPECT_TRUE(trainer.stopped());
  EXPECT_EQ(trainer.best_metrics().step, 0);
  for (const auto& [name, tensor] : maps(trainer))
    EXPECT_TRUE(tensor.bytes == start.at(name).bytes) << name;
}

TEST_F(Trainer, GradientOfTwoHalvesIsThatOfTheWhole) {
  const at::Tensor y_true = teacher_attention(qkv_);
  LayerTrainer whole = make(0), halves = make(0);
  train(whole, qkv_, 1);
  for (std::int64_t b = 0; b < 2; ++b) {
    const Qkv part{qkv_.q.narrow(0, b, 1), qkv_.k.narrow(0, b, 1), qkv_.v.narrow(0, b, 1)};
    halves.accumulate(part, 0.5);
  }
  halves.step();
  // The gradient norm is what differs if a share is wrong; AdamW's first step would hide a factor.
  for (LayerTrainer* trainer : {&whole, &halves}) {
    trainer->validate(qkv_, y_true);
    trainer->finish_validation(1);
  }
  const double norm = whole.history().back().gradient_norm;
  EXPECT_NEAR(halves.history().back().gradient_norm, norm, 1e-4 * norm);
}

TEST_F(Trainer, FixedWindowFactorsDoNotMoveButAreExported) {
  recipe_.attention.train_window_factor = false;
  LayerTrainer trainer = make(0);
  const at::Tensor y_true = teacher_attention(qkv_);
  train(trainer, qkv_, 3);
  trainer.validate(qkv_, y_true);
  trainer.finish_validation(3);
  const at::Tensor factors = tensor(maps(trainer), "model.layers.0.self_attn.window_factors");
  EXPECT_TRUE((factors == static_cast<float>(recipe_.attention.window_factor)).all().item<bool>());
}

TEST_F(Trainer, MapsThatAreNotTrainedStayAsTheyWereDrawn) {
  const at::Tensor y_true = teacher_attention(qkv_);
  for (const bool trained : {false, true}) {
    use_positive_random(trained);
    LayerTrainer trainer = make(0);
    const at::Tensor start = omega(trainer, "q");
    EXPECT_TRUE(at::equal(start, omega(trainer, "k")));
    train(trainer, qkv_, 3);
    EXPECT_EQ(at::equal(omega(trainer, "q"), start), !trained);
    EXPECT_EQ(at::equal(omega(trainer, "q"), omega(trainer, "k")), !trained);
  }
}

TEST_F(Trainer, DrawsPositiveRandomFeaturesAgainForBothMapsFromTheSeedAndTheNumberOfTheDraw) {
  use_positive_random(false, 2);
  const at::Tensor y_true = teacher_attention(qkv_);
  std::vector<at::Tensor> draws;
  LayerTrainer trainer = make(0), other_seed = make(0, 4);
  for (int step = 0; step <= 5; ++step) {
    draws.push_back(omega(trainer, "q"));
    EXPECT_TRUE(at::equal(draws.back(), omega(trainer, "k"))) << step << " steps";
    train(trainer, qkv_, 1);
    train(other_seed, qkv_, 1);
  }
  EXPECT_TRUE(at::equal(draws[0], draws[1]));
  EXPECT_FALSE(at::equal(draws[1], draws[2]));
  EXPECT_TRUE(at::equal(draws[2], draws[3]));
  EXPECT_FALSE(at::equal(draws[3], draws[4]));
  EXPECT_FALSE(at::equal(draws[0], draws[4]));
  EXPECT_FALSE(at::equal(omega(trainer, "q"), omega(other_seed, "q")));
  LayerTrainer again = make(0);
  train(again, qkv_, 6);
  EXPECT_TRUE(at::equal(omega(trainer, "q"), omega(again, "q")));
}

TEST_F(Trainer, RestoredBetweenTwoDrawsContinuesBitForBit) {
  use_positive_random(false, 2);
  const at::Tensor y_true = teacher_attention(qkv_);
  LayerTrainer straight = make(0);
  train(straight, qkv_, 3);
  TensorMap saved;
  const nlohmann::json state = straight.save(saved);
  LayerTrainer restored = make(0);
  restored.restore(saved, state);
  for (LayerTrainer* trainer : {&straight, &restored}) {
    train(*trainer, qkv_, 2);
  }
  TensorMap expected, found;
  straight.save(expected);
  restored.save(found);
  for (const auto& [name, value] : expected)
    EXPECT_TRUE(value.bytes == found.at(name).bytes) << name;
}

TEST_F(Trainer, WithTheTaylorSeriesLearnsItsWindowFactorsAlone) {
  recipe_.attention.feature_map = storage::FeatureMapKind::kTaylor;
  recipe_.attention.negation = false;
  recipe_.attention.bias = false;
  recipe_.attention.feature_dim = 45;
  LayerTrainer trainer = make(0);
  const at::Tensor y_true = teacher_attention(qkv_);
  trainer.validate(qkv_, y_true);
  const double before = trainer.finish_validation(0).mse;
  train(trainer, qkv_, 20);
  trainer.validate(qkv_, y_true);
  EXPECT_LT(trainer.finish_validation(20).mse, before);
  const TensorMap exported = maps(trainer);
  ASSERT_EQ(exported.size(), 1U);
  EXPECT_EQ(exported.begin()->first, "model.layers.0.self_attn.window_factors");
}

TEST_F(Trainer, RestoredTrainerContinuesBitForBit) {
  recipe_.transfer.schedule = "plateau";
  recipe_.transfer.plateau_patience = 0;
  recipe_.transfer.xent_factor = 1.0;
  const at::Tensor y_true = teacher_attention(qkv_);
  LayerTrainer straight = make(0);
  TensorMap saved;
  nlohmann::json state;
  for (int step = 1; step <= 6; ++step) {
    train(straight, qkv_, 1);
    straight.validate(qkv_, y_true);
    straight.finish_validation(step);
    if (step == 3) state = nlohmann::json::parse(straight.save(saved).dump());
  }
  LayerTrainer restored = make(0, 1234);
  restored.restore(saved, state);
  for (int step = 4; step <= 6; ++step) {
    train(restored, qkv_, 1);
    restored.validate(qkv_, y_true);
    restored.finish_validation(step);
  }
  TensorMap expected, found;
  EXPECT_EQ(straight.save(expected), restored.save(found));
  ASSERT_EQ(expected.size(), found.size());
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(tensor.bytes == found.at(name).bytes) << name;
  EXPECT_GT(restored.history().back().cross_entropy, 0.0);
}

TEST_F(Trainer, TiedMapsLearnAsOneAndAreExportedAsTwoAlike) {
  recipe_.attention.key_maps = storage::KeyMaps::kQueryHead;
  const at::Tensor y_true = teacher_attention(qkv_);
  const std::string q = "model.layers.0.self_attn.feature_map_q.mlp.layer";
  const std::string k = "model.layers.0.self_attn.feature_map_k.mlp.layer";
  for (const bool tied : {false, true}) {
    recipe_.transfer.tied_maps = tied;
    LayerTrainer trainer = make(0);
    trainer.validate(qkv_, y_true);
    const double before = trainer.finish_validation(0).mse;
    train(trainer, qkv_, 150);
    trainer.validate(qkv_, y_true);
    EXPECT_LT(trainer.finish_validation(150).mse, before / 3) << tied;
    const TensorMap found = maps(trainer);
    EXPECT_EQ(found.at(q).bytes == found.at(k).bytes, tied);
    TensorMap saved;
    const auto state = nlohmann::json::parse(trainer.save(saved).dump());
    LayerTrainer restored = make(0, 99);
    restored.restore(saved, state);
    for (LayerTrainer* each : {&trainer, &restored}) train(*each, qkv_, 2);
    TensorMap expected, again;
    trainer.save(expected);
    restored.save(again);
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(tensor.bytes == again.at(name).bytes) << name;
    EXPECT_EQ(expected.contains("layers.0.feature_map_k.mlp.layer"), !tied);
  }
  // The step of one map is by the gradients of both uses.
  LayerTrainer tied = make(0);
  train(tied, qkv_, 1);
  const at::Tensor with_both = tied.parameters().q.layer.detach().clone();
  recipe_.transfer.tied_maps = false;
  LayerTrainer two = make(0);
  train(two, qkv_, 1);
  EXPECT_FALSE(with_both.equal(two.parameters().q.layer));
}

TEST_F(Trainer, ReportsTheMseOfItsWindowAloneAsItsControlAtEveryValidation) {
  const at::Tensor y_true = teacher_attention(qkv_);
  const double expected = (window_output() - y_true).square().mean().item<double>();
  LayerTrainer trainer = make(0);
  for (int step = 0; step < 2; ++step) {
    trainer.validate(qkv_, y_true);
    EXPECT_NEAR(trainer.finish_validation(step).control_mse, expected, 1e-6 * expected);
    train(trainer, qkv_, 1);
  }
  recipe_.attention.window = storage::WindowLayout::kNone;
  recipe_.attention.num_sinks = 0;
  LayerTrainer without = make(0);
  without.validate(qkv_, y_true);
  EXPECT_EQ(without.finish_validation(0).control_mse, 0.0);
}

TEST_F(Trainer, ReportsTheSharesOfWindowAndSinksOfTheFirstSequenceHoweverItIsBatched) {
  const at::Tensor y_true = teacher_attention(qkv_);
  LayerTrainer whole = make(0), parts = make(0);
  whole.validate(qkv_, y_true);
  for (std::int64_t b = 0; b < 2; ++b) {
    const Qkv part{qkv_.q.narrow(0, b, 1), qkv_.k.narrow(0, b, 1), qkv_.v.narrow(0, b, 1)};
    parts.validate(part, y_true.narrow(0, b, 1));
  }
  const LayerMetrics found = whole.finish_validation(0);
  const LayerMetrics& again = parts.finish_validation(0);
  EXPECT_EQ(found.window_share, again.window_share);
  EXPECT_EQ(found.sink_share, again.sink_share);
  EXPECT_GT(found.window_share, 0.0);
  EXPECT_GT(found.sink_share, 0.0);
  // The whole sequence fits into the rows that are sampled.
  LayerTrainer alone = make(0);
  alone.validate({qkv_.q.narrow(0, 0, 1), qkv_.k.narrow(0, 0, 1), qkv_.v.narrow(0, 0, 1)},
                 y_true.narrow(0, 0, 1));
  const LayerMetrics& first = alone.finish_validation(0);
  EXPECT_NEAR(first.window_share + first.sink_share + first.linear_share, 1.0, 1e-5);
  const nlohmann::json result = alone.result();
  EXPECT_NEAR(result.at("window_share").get<double>() + result.at("sink_share").get<double>() +
                  result.at("linear_share").get<double>(),
              1.0,
              1e-5)
      << "also of a layer that is kept untrained";
}

TEST_F(Trainer, AttentionMapsAreThoseOfTheExportedParametersAndChangeNothing) {
  const at::Tensor y_true = teacher_attention(qkv_);
  LayerTrainer trainer = make(0);
  trainer.validate(qkv_, y_true);
  trainer.finish_validation(0);
  train(trainer, qkv_, 100);
  trainer.validate(qkv_, y_true);
  trainer.finish_validation(100);
  TensorMap before, after;
  const nlohmann::json state = trainer.save(before);
  const std::vector<nlohmann::json> maps = trainer.attention_maps(qkv_);
  EXPECT_EQ(trainer.save(after), state);
  for (const auto& [name, value] : before) EXPECT_TRUE(value.bytes == after.at(name).bytes) << name;
  ASSERT_EQ(maps.size(), 4U);
  for (const nlohmann::json& map : maps) {
    EXPECT_EQ(map.at("layer"), 0);
    EXPECT_EQ(map.at("step"), trainer.best_metrics().step);
    EXPECT_EQ(map.at("rows"), 24);
    EXPECT_EQ(map.at("columns"), 24);
    EXPECT_EQ(map.at("student").get<std::string>().size(), 24U * 24 / 3 * 4);
  }
  train(trainer, qkv_, 5);
  EXPECT_EQ(trainer.attention_maps(qkv_), maps) << "of the best copy, not of the last step";
}

// A teacher that attends as the control does cannot be learned in no step.
TEST_F(Trainer, ALayerThatEndsBehindItsControlIsItsControl) {
  const at::Tensor control = window_output();
  LayerTrainer trainer = make(0);
  const at::Tensor y_true = control + 0.01 * at::randn_like(control);
  trainer.validate(qkv_, y_true);
  const LayerMetrics metrics = trainer.finish_validation(0);
  ASSERT_GT(metrics.mse, metrics.control_mse);
  EXPECT_LT((output(trainer) - control).abs().max().item<double>(), 1e-5);
  const nlohmann::json result = trainer.result();
  EXPECT_EQ(result.at("kept_untrained"), true);
  EXPECT_EQ(result.at("trained_mse"), metrics.mse);
  EXPECT_EQ(result.at("mse"), metrics.control_mse) << "that of what is exported";
  EXPECT_NEAR(result.at("relative_mse").get<double>(),
              metrics.control_mse / y_true.square().mean().item<double>(),
              1e-6);
  EXPECT_EQ(result.at("linear_share"), 0.0);

  TensorMap saved;
  const nlohmann::json state = nlohmann::json::parse(trainer.save(saved).dump());
  LayerTrainer restored = make(0, 99);
  restored.restore(saved, state);
  EXPECT_EQ(restored.result(), result);
  for (const auto& [name, value] : maps(trainer))
    EXPECT_TRUE(value.bytes == maps(restored).at(name).bytes) << name;
}

TEST_F(Trainer, WithoutATransferTheStartIsExportedHoweverFarBehindItsControl) {
  recipe_.transfer.max_steps = 0;
  LayerTrainer trainer = make(0);
  const TensorMap start = maps(trainer);
  const at::Tensor control = window_output();
  trainer.validate(qkv_, control + 0.01 * at::randn_like(control));
  const LayerMetrics metrics = trainer.finish_validation(0);
  ASSERT_GT(metrics.mse, metrics.control_mse);
  EXPECT_EQ(maps(trainer).at("model.layers.0.self_attn.feature_map_q.mlp.layer").bytes,
            start.at("model.layers.0.self_attn.feature_map_q.mlp.layer").bytes);
  EXPECT_FALSE(trainer.result().contains("kept_untrained"));
}

TEST_F(Trainer, ALayerThatBeatsItsControlIsExportedAsItWasTrained) {
  const at::Tensor y_true = output(make(0));  // its start, which no control reaches
  LayerTrainer trainer = make(0);
  trainer.validate(qkv_, y_true);
  trainer.finish_validation(0);
  EXPECT_FALSE(trainer.result().contains("kept_untrained"));
  EXPECT_LT((output(trainer) - y_true).abs().max().item<double>(), 1e-6);
}

TEST_F(Trainer, WhereTheWindowHoldsTheSequenceNothingIsKeptUntrained) {
  recipe_.attention.window_size = 24;
  LayerTrainer trainer = make(0);
  trainer.validate(qkv_, teacher_attention(qkv_));
  trainer.finish_validation(0);
  EXPECT_FALSE(trainer.result().contains("kept_untrained")) << "the two differ by rounding alone";
}

TEST_F(Trainer, ACheckpointOfAnEarlierBuildHasItsControlMeasuredAgain) {
  const at::Tensor y_true = teacher_attention(qkv_);
  LayerTrainer trainer = make(0);
  trainer.validate(qkv_, y_true);
  const double control_mse = trainer.finish_validation(0).control_mse;
  TensorMap saved;
  nlohmann::json state = trainer.save(saved);
  state.erase("control_mse");
  for (nlohmann::json& metrics : state.at("history")) {
    for (const char* field : {"control_mse", "window_share", "sink_share"}) metrics.erase(field);
  }
  LayerTrainer restored = make(0);
  restored.restore(saved, state);
  EXPECT_EQ(restored.history().back().window_share, 0.0);
  restored.validate(qkv_, y_true);
  EXPECT_EQ(restored.finish_validation(1).control_mse, control_mse);
}

TEST_F(Trainer, EveryMapThatCanBeSwitchedOffGivesTheControl) {
  const at::Tensor control = window_output();
  for (const kernels::FeatureMapRow& row : kernels::kFeatureMaps) {
    if (!row.is_activation()) continue;
    for (const bool negation : {false, true}) {
      if (negation && !row.negation) continue;
      kernels::HybridOptions options = recipe_.attention;
      options.set_map({.feature_map = row.value, .negation = negation});
      options.fp32_output = true;
      kernels::HybridParameters parameters{.q = {at::randn({4, 8, 4}), at::randn({4, 4})},
                                           .k = {at::randn({4, 8, 4}), at::randn({4, 4})},
                                           .window_factors = at::randn({4})};
      EXPECT_FALSE(is_linear_branch_off(parameters));
      ASSERT_TRUE(switch_off_linear_branch(parameters, options));
      EXPECT_TRUE(is_linear_branch_off(parameters));
      const at::Tensor y = kernels::hybrid_attention(qkv_.q, qkv_.k, qkv_.v, parameters, options);
      EXPECT_LT((y - control).abs().max().item<double>(), 1e-5) << row.word;
    }
  }
}

TEST_F(Trainer, MapsThatCannotBeSwitchedOffStayAsTheyAre) {
  const auto refused = [](storage::FeatureMapKind kind, std::int64_t columns, bool bias) {
    kernels::HybridParameters parameters;
    for (kernels::FeatureMapWeights* map : {&parameters.q, &parameters.k}) {
      if (columns > 0) map->layer = at::ones({4, 8, columns});
      if (bias) map->bias = at::ones({4, std::max<std::int64_t>(columns, 1)});
    }
    parameters.window_factors = at::zeros({4});
    const bool done = switch_off_linear_branch(parameters, {.feature_map = kind});
    return !done && !parameters.window_factors.any().item<bool>();
  };
  using Kind = storage::FeatureMapKind;
  EXPECT_TRUE(refused(Kind::kHedgehogSoftmax, 3, true)) << "four columns are needed";
  EXPECT_TRUE(refused(Kind::kHedgehogSoftmax, 4, false));
  EXPECT_TRUE(refused(Kind::kEluPlusOne, 4, false));
  EXPECT_TRUE(refused(Kind::kRelu, 0, true)) << "there is no projection";
  EXPECT_TRUE(refused(Kind::kPositiveRandom, 8, false));
  EXPECT_TRUE(refused(Kind::kTaylor, 0, false));

  use_positive_random(true);
  LayerTrainer trainer = make(0);
  const TensorMap start = maps(trainer);
  const at::Tensor control = window_output();
  trainer.validate(qkv_, control + 0.01 * at::randn_like(control));
  trainer.finish_validation(0);
  EXPECT_EQ(trainer.result().at("kept_untrained"), false) << "a warning";
  for (const auto& [name, value] : maps(trainer))
    EXPECT_TRUE(value.bytes == start.at(name).bytes) << name;
}

TEST_F(Trainer, CheckpointOfOtherShapesIsRefused) {
  TensorMap saved;
  const nlohmann::json state = make(0).save(saved);
  recipe_.attention.feature_dim = 16;
  LayerTrainer wider = make(0);
  try {
    wider.restore(saved, state);
    FAIL() << "a narrower map was taken";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kCorrupt);
    EXPECT_NE(std::string(error.what()).find("layers.0."), std::string::npos) << error.what();
  }
}

TEST_F(Trainer, ACheckpointWithAKeyMapOfEachQueryHeadIsRefusedWithBothShapes) {
  recipe_.attention.key_maps = storage::KeyMaps::kQueryHead;
  TensorMap saved;
  const nlohmann::json state = make(0).save(saved);
  recipe_.attention.key_maps = storage::KeyMaps::kKvHead;
  LayerTrainer shared = make(0);
  try {
    shared.restore(saved, state);
    FAIL() << "a map of each query head was taken";
  } catch (const storage::Error& error) {
    EXPECT_STREQ(error.what(),
                 "checkpoint: tensor layers.0.feature_map_k.mlp.layer has another shape than the "
                 "recipe's attention: expected [2, 8, 4], found [4, 8, 4]");
  }
}

TEST_F(Trainer, TeachersInfinityIsCorruptAndOurOwnIsInternalAndBothNameTheLayer) {
  const auto kind_of = [&](const Qkv& qkv) {
    LayerTrainer trainer = make(17);
    try {
      trainer.accumulate(qkv, 1.0);
    } catch (const storage::Error& error) {
      EXPECT_NE(std::string(error.what()).find("layer 17"), std::string::npos) << error.what();
      return error.kind();
    }
    ADD_FAILURE() << "a loss that is not finite went through";
    return storage::ErrorKind::kUsage;
  };
  const Qkv huge{qkv_.q, qkv_.k, qkv_.v * 1e30};  // the difference's square is too large for fp32
  EXPECT_EQ(kind_of(huge), storage::ErrorKind::kInternal);
  Qkv infinite{qkv_.q, qkv_.k, qkv_.v.clone()};
  infinite.v[1][1][3][4] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(kind_of(infinite), storage::ErrorKind::kCorrupt);
}

}  // namespace
}  // namespace hedgerow::worker
