// The stages of a job on another device than the CPU, in fp32 against the CPU's: what the tasks
// compute must not depend on where. Built twice: for a GPU, and for the foreign device, which runs
// everywhere. The kernels have their own tests; whole jobs run on the GPU in e2e wherever one is.
#include "tests/support/other_device.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/worker/comm/rank_threads.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/tiny_model.hpp"
#include "tests/support/tiny_run.hpp"
#include "tests/support/tiny_student.hpp"
#include "worker/evaluate/evaluate_task.hpp"
#include "worker/finetune/finetune.hpp"
#include "worker/finetune/trainer.hpp"
#include "worker/generate/generator.hpp"

namespace hedgerow::worker {
namespace {

class OtherDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!tests::why_no_other_device().empty()) GTEST_SKIP() << tests::why_no_other_device();
    other_ = tests::other_device();
    tests::write_tiny_model(model());
  }

  [[nodiscard]] std::filesystem::path model() const { return directory_ / "model"; }

  // A run of 4 layers in blocks of k, computing in fp32.
  [[nodiscard]] tests::PipelineResult pipeline(const at::Device& device, int layers_per_block) {
    const auto root = directory_ / ("run" + std::to_string(num_runs_++));
    storage::Recipe recipe = tests::tiny_recipe(model());
    recipe.plan.compute_dtype = "fp32";
    recipe.plan.layers_per_block = layers_per_block;
    tests::write_tiny_run(root, recipe, 14);
    return tests::run_pipeline(root, device);
  }

  tests::TemporaryDirectory directory_;
  at::Device other_ = at::kCPU;
  int num_runs_ = 0;
};

// The validation MSE of every layer.
std::map<int, double> errors_of(const tests::PipelineResult& result) {
  std::map<int, double> errors;
  for (const auto& block : result.results) {
    for (const auto& layer : block.at("layers"))
      errors[layer.at("layer").get<int>()] = layer.at("mse").get<double>();
  }
  return errors;
}

TEST_F(OtherDevice, ATransferReachesTheCpusErrors) {
  const auto expected = errors_of(pipeline(at::kCPU, 2));
  const auto found = errors_of(pipeline(other_, 2));
  ASSERT_EQ(found.size(), 4U);
  for (const auto& [layer, mse] : expected)
    EXPECT_NEAR(found.at(layer), mse, 0.02 * mse) << "layer " << layer;
}

TEST_F(OtherDevice, NeitherARepetitionNorLayersPerBlockChangesAByteOfTheMaps) {
  const auto expected = pipeline(other_, 2).maps;
  EXPECT_EQ(pipeline(other_, 2).maps, expected) << "the same run again";
  for (const int k : {1, 3, 4}) EXPECT_EQ(pipeline(other_, k).maps, expected) << "k = " << k;
}

// As a GPU's job is: bf16, F = 128, a head_dim of the fused kernels, sinks and a key map a kv head.
TEST_F(OtherDevice, LayersPerBlockChangeNoByteOfBfloat16MapsOfHeadDims64And128) {
  for (const int head_dim : {64, 128}) {
    const auto model = directory_ / ("model" + std::to_string(head_dim));
    tests::write_tiny_model(model, {.num_layers = 2, .hidden_size = 128, .head_dim = head_dim});
    const auto maps = [&](int layers_per_block) {
      const auto root = directory_ / ("run" + std::to_string(num_runs_++));
      storage::Recipe recipe = tests::tiny_recipe(model);
      recipe.plan.compute_dtype = "bf16";
      recipe.plan.layers_per_block = layers_per_block;
      recipe.attention.feature_dim = 128;
      recipe.attention.num_sinks = 4;
      tests::write_tiny_run(root, recipe, 14);
      return tests::run_pipeline(root, other_).maps;
    };
    const auto expected = maps(1);
    EXPECT_EQ(maps(1), expected) << head_dim << ": the same run again";
    EXPECT_EQ(maps(2), expected) << head_dim << ": k = 2";
  }
}

TEST_F(OtherDevice, AnEvaluationGivesTheCpusLoss) {
  const auto teacher = storage::ModelDirectory::open(model());
  const auto tokens = tests::make_tiny_tokens(4, 3, 40, teacher.config().vocab_size);
  const auto loss = [&](const at::Device& device) {
    EvaluateOptions options;
    options.device = device;
    return evaluate(teacher, tokens, evaluation_sequences(tokens, 0), options).figures().loss;
  };
  EXPECT_NEAR(loss(other_), loss(at::kCPU), 1e-5);
}

TEST_F(OtherDevice, GreedyTextIsTheCpus) {
  struct Rows final : GenerationObserver {
    std::map<std::int64_t, std::vector<std::int64_t>> ids;
    void on_row(std::int64_t row, const std::vector<std::int64_t>& generated) override {
      ids[row] = generated;
    }
  };
  const tests::TinyStudent tiny = tests::make_tiny_student({.softmax_layers = {1}});
  const auto text = [&](const at::Device& device) {
    const tests::TinyStudent there = tests::on_device(tiny, device);
    Generator generator(there.config, there.outer, there.layers, there.student);
    GenerateOptions options;
    options.max_new_tokens = 30;
    options.end_tokens = {-1};
    Rows rows;
    generator.run(
        {{5, 9, 11}, {7}, {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2}}, options, rows);
    return rows.ids;
  };
  EXPECT_EQ(text(other_), text(at::kCPU));
}

// Chosen on the device: by temperature alone, and among the likeliest.
TEST_F(OtherDevice, SampledTextIsTheCpus) {
  const at::Tensor logits = tests::uniform({6, 3000}, 9.0, 5);
  const std::vector<std::int64_t> rows{0, 1, 2, 3, 4, 5}, positions{9, 9, 7, 7, 30, 2};
  for (const SamplingOptions& options : {SamplingOptions{},
                                         SamplingOptions{.temperature = 0.7, .seed = 3},
                                         SamplingOptions{.temperature = 1.0, .top_p = 0.9, .seed = 3},
                                         // Flat: more tokens than are looked at first.
                                         SamplingOptions{.temperature = 50.0, .top_p = 0.95}}) {
    EXPECT_EQ(sample_rows(logits.to(other_), options, rows, positions),
              sample_rows(logits, options, rows, positions))
        << options.temperature << ", " << options.top_p;
  }
  logits[2][17] = std::nan("");
  logits[4][3] = -HUGE_VAL;
  for (const double temperature : {0.0, 1.0}) {
    const auto chosen =
        sample_rows(logits.to(other_), {.temperature = temperature}, rows, positions);
    EXPECT_EQ(chosen, sample_rows(logits, {.temperature = temperature}, rows, positions));
    EXPECT_EQ(chosen[2], -1);
    EXPECT_EQ(chosen[4], -1);
  }
}

TEST_F(OtherDevice, GreedyTextOfTwoRanksIsThatOfOne) {
  struct Rows final : GenerationObserver {
    std::map<std::int64_t, std::vector<std::int64_t>> ids;
    void on_row(std::int64_t row, const std::vector<std::int64_t>& generated) override {
      ids[row] = generated;
    }
  };
  const auto teacher = storage::ModelDirectory::open(model());
  const auto text = [&](int num_ranks) {
    std::vector<Rows> rows(static_cast<std::size_t>(num_ranks));
    run_on_threads(num_ranks, [&](Communicator& ranks) {
      GenerateOptions options;
      options.max_new_tokens = 12;
      options.end_tokens = {-1};
      Generator::load(teacher,
                      std::nullopt,
                      nullptr,
                      other_,
                      at::kFloat,
                      {},
                      place_among(&ranks, teacher.config()))
          .run({{5, 9, 11}, {7}}, options, rows[static_cast<std::size_t>(ranks.rank())]);
    });
    return rows.front().ids;
  };
  EXPECT_EQ(text(2), text(1));
}

TEST_F(OtherDevice, FinetuneStepsFollowTheCpus) {
  const tests::TinyStudent tiny = tests::make_tiny_student({.softmax_layers = {2}});
  const auto tokens = tests::make_tiny_tokens(40, 3, 21, tiny.config.vocab_size);
  const auto losses = [&](const at::Device& device) {
    const tests::TinyStudent there = tests::on_device(tiny, device);
    TrainerOptions options;
    options.finetune.sequences_per_step = 8;
    options.finetune.learning_rate = 1e-2;
    options.finetune.trainable = {"lora", "maps", "window_factors", "norms"};
    options.seed = 11;
    options.stream = at::kFloat;
    options.device = device;
    const auto alone = make_single_communicator();
    FinetuneTrainer trainer(
        there.config,
        there.student,
        there.outer,
        [&](int layer) { return there.layers[static_cast<std::size_t>(layer)]; },
        tokens,
        std::move(options),
        *alone);
    std::vector<double> all;
    for (int step = 0; step < 5; ++step) all.push_back(trainer.step().loss);
    all.push_back(trainer.validate().loss);
    return all;
  };
  const auto expected = losses(at::kCPU), found = losses(other_);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-3 * expected[i]) << "step " << i;
}

// The sum of the ranks' gradients is made on the device, exchanged, and made ready there; between
// stages the residual stream and its gradient leave the device and come to another's.
TEST_F(OtherDevice, EveryMeshLeavesTheTrainedParametersOfOneRank) {
  const tests::TinyStudent tiny = tests::make_tiny_student({.softmax_layers = {2}});
  const auto tokens = tests::make_tiny_tokens(40, 3, 21, tiny.config.vocab_size);
  std::map<std::string, std::vector<std::byte>> expected;
  for (const storage::Mesh& mesh : {storage::Mesh{1, 1}, {2, 1}, {4, 1}, {1, 2}, {2, 2}, {1, 3}}) {
    run_on_threads(mesh.ranks(), [&](Communicator& communicator) {
      at::set_num_threads(1);
      const tests::TinyStudent own = tests::on_device(tiny, other_);
      TrainerOptions options;
      options.finetune.sequences_per_step = 8;
      options.finetune.trainable = {"lora", "maps", "window_factors", "norms"};
      options.seed = 11;
      options.stream = at::kFloat;
      options.device = other_;
      options.mesh = mesh;
      FinetuneTrainer trainer(
          own.config,
          own.student,
          own.outer,
          [&](int layer) { return own.layers[static_cast<std::size_t>(layer)]; },
          tokens,
          std::move(options),
          communicator);
      for (int step = 0; step < 2; ++step) trainer.step();
      const auto found = trainer.parameters().checkpoint().tensors;
      EXPECT_FALSE(found.empty());
      for (const auto& [name, tensor] : found) {
        if (mesh.ranks() == 1) expected[name] = tensor.bytes;
        EXPECT_EQ(tensor.bytes, expected.at(name))
            << name << " of " << storage::mesh_text(mesh) << ", rank " << communicator.rank();
      }
    });
  }
}

// Through the files: what lies on the device must come back whole.
TEST_F(OtherDevice, AResumedLoraTaskLeavesTheAdapterOfAnUndisturbedOneWithTheCpusLosses) {
  const auto losses = [&](const at::Device& device) {
    const auto root = directory_ / ("run" + std::to_string(num_runs_++));
    storage::Recipe recipe = tests::tiny_recipe(model());
    recipe.finetune.rank = 4;
    recipe.finetune.learning_rate = 1e-2;
    recipe.finetune.trainable = {"lora", "maps", "window_factors", "norms"};
    recipe.finetune.max_steps = 4;
    recipe.finetune.validate_every = 0;  // else step 0, on random tokens the best, is published
    recipe.finetune.sequences_per_step = 4;
    tests::write_tiny_run(root, recipe, 12);
    RunContext run(root, device);
    tests::write_tiny_student(run, "student/t5");
    const auto alone = make_single_communicator();
    const auto finetune = [&](tests::LocalTaskContext& context, const wire::Task& task) {
      const TaskResult result = run_finetune(run, context, task, {}, *alone);
      for (const auto& file : result.files) context.commit(file);
      return result;
    };
    tests::LocalTaskContext undisturbed(run.layout(), 1), stopped(run.layout(), 2),
        resumed(run.layout(), 3);
    const auto result = finetune(undisturbed, tests::finetune_task(1, "student/t5")).result;
    stopped.stop_when = [](const tests::LocalTaskContext& context) {
      return context.reports.back().phase == "training" && context.reports.back().step >= 2;
    };
    EXPECT_FALSE(finetune(stopped, tests::finetune_task(2, "student/t5")).finished);
    wire::Task again = tests::finetune_task(3, "student/t5");
    again.resume = stopped.checkpoints.at(2);
    EXPECT_TRUE(finetune(resumed, again).finished);
    EXPECT_EQ(tests::tensor_hashes(root / "adapter/t3/adapter_model.safetensors"),
              tests::tensor_hashes(root / "adapter/t1/adapter_model.safetensors"));

    std::vector<double> all = {result.at("loss"), result.at("validation_loss")};
    wire::Task evaluation = again;
    evaluation.kind = wire::TaskKind::kEvaluate;
    evaluation.inputs.emplace_back().name = "adapter/t3/adapter_config.json";
    for (const char* subject : {"transfer", "lora"}) {
      evaluation.subject = subject;
      all.push_back(run_evaluate(run, resumed, evaluation).result.at("loss"));
    }
    return all;
  };
  const auto expected = losses(at::kCPU), found = losses(other_);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-3 * expected[i]) << "loss " << i;
}

}  // namespace
}  // namespace hedgerow::worker
