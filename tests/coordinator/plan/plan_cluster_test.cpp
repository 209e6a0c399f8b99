// Plans of real models for the shipped clusters, held against arithmetic by hand. The shapes are
// those of the models' config.json; a parameter is two bytes (bf16), a GB is 10^9 bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/plan/plan.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

using ::testing::HasSubstr;

struct Model {
  const char* name;
  storage::ModelConfig config;
  int layers_per_block;
};

storage::ModelConfig llama3(int layers, int hidden, int intermediate, int heads) {
  storage::ModelConfig config;
  config.num_hidden_layers = layers;
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.num_attention_heads = heads;
  config.num_key_value_heads = 8;
  config.head_dim = 128;
  config.vocab_size = 128256;
  config.max_position_embeddings = 131072;
  config.tie_word_embeddings = false;
  return config;
}

// k as published: 5 of 70B, 9 of 405B.
Model model_8b() { return {"8B", llama3(32, 4096, 14336, 32), 5}; }
Model model_70b() { return {"70B", llama3(80, 8192, 28672, 64), 5}; }
Model model_405b() { return {"405B", llama3(126, 16384, 53248, 128), 9}; }

// 20 M tokens a stage in sequences of 1024, as published.
storage::Recipe recipe_of(const Model& model) {
  storage::Recipe recipe;
  recipe.data_transfer.seq_len = 1024;
  recipe.attention.feature_dim = 128;
  recipe.plan.compute_dtype = "bf16";
  recipe.plan.layers_per_block = model.layers_per_block;
  recipe.plan.sequences_per_forward = 1;
  recipe.plan.shard_mib = 1024;
  recipe.transfer.max_steps = 2441;
  recipe.transfer.sequences_per_step = 8;
  recipe.finetune.max_steps = 2441;
  recipe.finetune.sequences_per_step = 8;
  return recipe;
}

PlanTokens tokens_of_20m() { return {{19528, 19544, 1024}, {19528, 19544, 1024}, {0, 8, 1024}}; }

PlanLimits cluster_limits(const std::string& name) {
  PlanLimits limits;
  hold_against(storage::Cluster::load(HEDGEROW_SOURCE_DIR "/deploy/clusters/" + name + ".toml"),
               limits);
  return limits;
}

std::string problems_of(const Plan& plan) {
  std::string text;
  for (const PlanProblem& problem : plan.problems)
    text += problem.message + "; " + problem.remedy + "\n";
  return text;
}

// By hand. A layer has 2 h^2 + 2 h kv + 3 h i parameters (kv = 8 x 128 = 1024):
//   8B    2 x 4096^2  + 2 x 4096 x 1024  + 3 x 4096 x 14336  = 0.218 x 10^9 ->  0.44 GB
//   70B   2 x 8192^2  + 2 x 8192 x 1024  + 3 x 8192 x 28672  = 0.856 x 10^9 ->  1.71 GB
//   405B  2 x 16384^2 + 2 x 16384 x 1024 + 3 x 16384 x 53248 = 3.188 x 10^9 ->  6.38 GB
// so a block of k = 5, 5, 9 is 2.2, 8.6 and 57.4 GB, and fits each worker. All layers and two
// embeddings (1.05, 2.1, 4.2 GB each) are 16.1, 141.1 and 811 GB, on the CPU, where each layer's
// matrices lie twice, 30, 276 and 1615 GB and more. The ranks of finetune share the layers:
//   8B    2 ranks as 2x1: all of it, 16.1 of 80 GB; 30 of a node's 512
//   70B   8 ranks as 1x8: 10 layers and an embedding, 17.1 + 2.1 GB of 80; as 2x4 20 layers, 34.2 +
//         2.1. Four ranks a CPU node as 1x8: 34.2 + 2 x 2.1 GB of 128
//   405B  16 ranks as 1x16: 8 layers and an embedding, 51.0 + 4.2 GB of 80. One node of 8 GPUs has
//         640 GB, as 1x8 16 layers would be 102 GB. Two CPU nodes have 1024 GB of 1615
// Boundaries of 20 M tokens are 19,544 x 1024 x h x 2 bytes: 0.16, 0.33 and 0.66 TB, stored
// 6, 15 and 13 times: 1.0, 4.9 and 8.5 TB, of 15, 50, 50 and 20 TB.
TEST(PlanForCluster, IsAcceptedWhereArithmeticByHandSays) {
  struct Case {
    Model model;
    const char* cluster;
    int ranks;
    bool finetune_fits;
  };
  const Case cases[] = {
      {model_8b(), "1x8x80gb", 2, true},
      {model_8b(), "3x8x80gb", 2, true},
      {model_8b(), "16x141gb", 2, true},
      {model_8b(), "2x_cpu", 2, true},
      {model_70b(), "1x8x80gb", 8, true},
      {model_70b(), "3x8x80gb", 8, true},
      {model_70b(), "16x141gb", 8, true},
      {model_70b(), "2x_cpu", 8, true},
      {model_405b(), "1x8x80gb", 16, false},
      {model_405b(), "1x8x80gb", 8, false},
      {model_405b(), "3x8x80gb", 16, true},
      {model_405b(), "16x141gb", 16, true},
      {model_405b(), "2x_cpu", 16, false},
  };
  for (const Case& tried : cases) {
    SCOPED_TRACE(std::string(tried.model.name) + " on " + tried.cluster);
    storage::Recipe recipe = recipe_of(tried.model);
    recipe.finetune.ranks = tried.ranks;
    const PlanLimits limits = cluster_limits(tried.cluster);
    Plan plan = make_plan(recipe, tried.model.config, tokens_of_20m(), limits);
    EXPECT_EQ(plan.fits(), tried.finetune_fits) << problems_of(plan);
    if (!plan.fits()) {
      EXPECT_EQ(plan.problems.size(), 1U) << problems_of(plan);
      EXPECT_THAT(problems_of(plan), HasSubstr("finetune"));
      EXPECT_THAT(problems_of(plan), HasSubstr("finetune.enabled = false"));
    }
    recipe.finetune.enabled = false;
    plan = make_plan(recipe, tried.model.config, tokens_of_20m(), limits);
    EXPECT_TRUE(plan.fits()) << problems_of(plan);
  }
}

// The paper: blocks of at most 9 layers of 405B on one 80 GB card. 9 x 6.38 = 57.4 GB of weights;
// with 12 it would be 76.5 GB, and 4.2 GB of embedding do not fit beside them.
TEST(PlanForCluster, NineLayersOf405BFitACardOf80GbAndTwelveDoNot) {
  const Model model = model_405b();
  storage::Recipe recipe = recipe_of(model);
  recipe.finetune.enabled = false;
  const PlanLimits limits = cluster_limits("1x8x80gb");
  Plan plan = make_plan(recipe, model.config, tokens_of_20m(), limits);
  EXPECT_TRUE(plan.fits()) << problems_of(plan);
  EXPECT_NEAR(static_cast<double>(plan.transfer_memory_bytes) / 1e9, 57.4 + 8.0, 3.0);
  recipe.plan.layers_per_block = 12;
  plan = make_plan(recipe, model.config, tokens_of_20m(), limits);
  ASSERT_FALSE(plan.fits());
  EXPECT_THAT(plan.problems[0].message, HasSubstr("a block of 12 layers needs"));
  EXPECT_THAT(plan.problems[0].remedy, HasSubstr("the largest plan.layers_per_block that fits is"));
}

// The paper's 206 TB are 126 x 50 M tokens x 16384 x 2 bytes; ours are one less, because boundary 0
// is the embeddings, which nobody stores.
TEST(PlanForCluster, SingleLayersOf405BWith50MTokensStoreThePapers206Terabytes) {
  const Model model = model_405b();
  storage::Recipe recipe = recipe_of(model);
  recipe.plan.layers_per_block = 1;
  recipe.finetune.enabled = false;
  recipe.transfer.max_steps = 6104;  // x 8 x 1024 = 50.0 M
  const PlanTokens tokens{{48832, 48836, 1024}, {}, {}};
  const Plan plan = make_plan(recipe, model.config, tokens, {});
  EXPECT_EQ(plan.last_boundary(), 125);
  EXPECT_NEAR(126.0 * static_cast<double>(plan.boundary_bytes) / 1e12, 206.4, 0.5);
  EXPECT_NEAR(static_cast<double>(plan.peak_disk_bytes) / 1e12, 125.0 / 126.0 * 206.4, 0.5);
}

double gpu_hours_of(const Plan& plan, const std::string& stage) {
  for (const StageEstimate& estimate : plan.estimates) {
    if (word_of(estimate.stage) == stage) return estimate.gpu_hours;
  }
  ADD_FAILURE() << "the plan has no " << stage;
  return 0.0;
}

// What the paper's GPUs did a second, by its own account: a block of 9 layers took 5 h, 20 M tokens
// went through LoRA in 16 h on 24 GPUs. Of a token a block's step has 9 x 2 x 3.188 x 10^9 FLOPs
// of products, LoRA 6 x 405.9 x 10^9 (two of the forward, two of its repetition, two of the input's
// gradient): 64 and 35 x 10^12 a second. At those the plan must come to 14 x 5 and 16 x 24 hours.
TEST(PlanForCluster, ThePapersRatesGiveIts454GpuHours) {
  const Model model = model_405b();
  storage::Recipe recipe = recipe_of(model);
  recipe.transfer.max_steps = recipe.finetune.max_steps = 814;
  recipe.transfer.sequences_per_step = recipe.finetune.sequences_per_step = 24;
  recipe.transfer.validate_every = recipe.finetune.validate_every = 1000;
  recipe.finetune.ranks = 24;
  recipe.finetune.mesh = "24x1";  // what their ranks waited is in their rate; memory is not asked
  const PlanTokens tokens{{19536, 19540, 1024}, {19536, 19540, 1024}, {}};
  PlanLimits limits = cluster_limits("3x8x80gb");
  const auto plan_at = [&](double flops) {
    limits.workers.front().speed = {flops, 1e18};
    return make_plan(recipe, model.config, tokens, limits);
  };
  const double token_count = 814.0 * 24 * 1024;
  const double block_rate = token_count * 9 * 2 * 3.188e9 / (5 * 3600.0);
  const double lora_rate = token_count * 6 * 405.9e9 / (16 * 3600.0 * 24);
  EXPECT_NEAR(block_rate / 1e12, 64.0, 1.0);
  EXPECT_NEAR(lora_rate / 1e12, 35.0, 1.0);
  const double blocks = gpu_hours_of(plan_at(block_rate), "transfer");
  const double lora = gpu_hours_of(plan_at(lora_rate), "finetune");
  EXPECT_NEAR(blocks, 70.0, 2.0);
  EXPECT_NEAR(lora, 384.0, 12.0);
  EXPECT_NEAR(blocks + lora, 454.0, 14.0);
}

// Beside the 384 GPU-hours of the test above, what LoRA of 405B is planned to take on 128 GPUs at
// the speeds that are assumed of an H100. Of 153 steps of 128 x 1024 tokens, 20.05 M, by hand:
//   products   6 x 405.9 x 10^9 FLOPs a token at 400 x 10^12 a second: 33.9 GPU-hours
//   attention  a layer's maps 2 x 136 x 64 x 129 = 2.2, its linear part 2 x 136 x 128 x 128 = 4.5,
//              its window 4 x 128 x 128 x 128 = 8.4 x 10^6 FLOPs a token and pass, of which there
//              are four (the forward twice, the backward counts as two): 126 x 4 x 15.1 x 10^6 at
//              13 x 10^12: 3.3
//   of both a fourth part or a third is the forward computed again, where activations do not fit:
//              not on the last stages, which have few passes in flight
//   the bubble 8 pipelines of 16 stages have 16 micro-batches each: with one range a stage they
//              wait for 15 of 31 slots; with four for less (Narayanan et al.: a fourth as long)
//   weights    every rank reads its 8 layers, 51 GB at 1 GB/s: 128 x 51 s are 1.8
TEST(PlanForCluster, LoraOf405BOn128GpusIsPlannedBelowThePapers384GpuHours) {
  const Model model = model_405b();
  storage::Recipe recipe = recipe_of(model);
  recipe.finetune.ranks = 128;
  recipe.finetune.max_steps = 153;
  recipe.finetune.sequences_per_step = 128;
  recipe.finetune.validate_every = 0;
  const PlanTokens tokens{{19584, 19588, 1024}, {19584, 19588, 1024}, {}};
  PlanLimits limits = cluster_limits("16x8x80gb");
  const double products = 6 * 405.9e9 * 153 * 128 * 1024 / 400e12 / 3600;
  EXPECT_NEAR(products, 33.9, 0.1);
  EXPECT_NEAR(6 * 405e9 * 20e6 / 400e12 / 3600, 33.75, 0.01) << "of 20 M tokens exactly";
  recipe.finetune.mesh = "8x16";
  const Plan plain = make_plan(recipe, model.config, tokens, limits);
  EXPECT_TRUE(plain.fits()) << problems_of(plain);
  EXPECT_NEAR(plain.mesh.idle, 15.0 / 31.0, 0.05);
  const auto expect_between = [](double hours, double idle) {
    EXPECT_LT(hours, (33.9 + 3.3) / (1 - idle) + 1.8 + 0.5) << "all of it computed again";
    EXPECT_GT(hours, (33.9 * 2 / 3 + 3.3 * 3 / 4) / (1 - idle) + 1.8) << "nothing";
  };
  expect_between(gpu_hours_of(plain, "finetune"), plain.mesh.idle);
  recipe.finetune.mesh = "auto";
  const Plan plan = make_plan(recipe, model.config, tokens, limits);
  EXPECT_TRUE(plan.fits()) << problems_of(plan);
  EXPECT_GE(plan.mesh.mesh.pipeline, 16) << "126 layers of 6.38 GB in 80 GB";
  EXPECT_LT(plan.mesh.idle, plain.mesh.idle);
  const double hours = gpu_hours_of(plan, "finetune");
  expect_between(hours, plan.mesh.idle);
  EXPECT_GT(hours, products);
  EXPECT_LT(hours, 384.0);
}

TEST(PlanForCluster, MoneyIsOfAllNodesForTheTimeOfTheStages) {
  const Model model = model_8b();
  PlanLimits limits = cluster_limits("3x8x80gb");
  EXPECT_EQ(make_plan(recipe_of(model), model.config, tokens_of_20m(), limits).cost(), 0.0);
  limits.workers.front().price_per_hour = 30.0;
  const Plan plan = make_plan(recipe_of(model), model.config, tokens_of_20m(), limits);
  EXPECT_NEAR(plan.cost(), 3 * 30.0 * plan.seconds() / 3600.0, 1e-6);
  EXPECT_LE(plan.gpu_hours(), 24 * plan.seconds() / 3600.0);
}

TEST(PlanForCluster, KIsTheFastestThatFitsAndOfEquallyFastOnesTheLargest) {
  const Model model = model_405b();
  storage::Recipe recipe = recipe_of(model);
  recipe.plan.layers_per_block = 0;
  recipe.plan.keep_boundaries = "auto";
  recipe.finetune.enabled = false;
  const PlanLimits limits = cluster_limits("3x8x80gb");
  choose(recipe, model.config, tokens_of_20m(), limits);
  const std::vector<KChoice> choices = compare_k(recipe, model.config, tokens_of_20m(), limits);
  const int k = recipe.plan.layers_per_block;
  double chosen = 0.0;
  for (const KChoice& choice : choices) {
    if (choice.layers_per_block == k) chosen = choice.seconds;
  }
  ASSERT_GT(chosen, 0.0) << k;
  for (const KChoice& choice : choices) {
    if (choice.num_problems == 0) {
      EXPECT_GE(choice.seconds * 1.02, chosen) << choice.layers_per_block;
    }
  }
  EXPECT_GT(choices.back().num_problems, 0) << "the list ends with the first that does not fit";
  EXPECT_TRUE(make_plan(recipe, model.config, tokens_of_20m(), limits).fits());
}

TEST(PlanForCluster, BoundariesAreKeptAsTheDiskHasRoom) {
  const Model model = model_405b();
  const auto kept_with = [&](std::uint64_t terabytes) {
    storage::Recipe recipe = recipe_of(model);
    recipe.plan.keep_boundaries = "auto";
    recipe.finetune.enabled = false;
    PlanLimits limits = cluster_limits("3x8x80gb");
    limits.free_disk_bytes = terabytes * 1'000'000'000'000ULL;
    choose(recipe, model.config, tokens_of_20m(), limits);
    return recipe.plan.keep_boundaries;
  };
  EXPECT_EQ(kept_with(50), "all");
  EXPECT_EQ(kept_with(4), "last");
  EXPECT_EQ(kept_with(1), "none") << "whatever is kept, it does not fit";
}

TEST(PlanForCluster, AKindOfNodeThatNoStageFitsIsNamed) {
  const Model model = model_405b();
  storage::Recipe recipe = recipe_of(model);
  recipe.finetune.enabled = false;
  PlanLimits limits = cluster_limits("1x8x80gb");
  limits.workers.push_back({.name = "small",
                            .workers_per_node = 8,
                            .on_gpu = true,
                            .gpu_memory_bytes = 8'000'000'000ULL,
                            .speed = {100e12, 5e12}});
  const Plan plan = make_plan(recipe, model.config, tokens_of_20m(), limits);
  ASSERT_EQ(plan.problems.size(), 1U) << problems_of(plan);
  EXPECT_THAT(plan.problems[0].message,
              HasSubstr("no stage fits a worker on nodes \"small\", which has 8.0 GB"));
}

TEST(PlanForCluster, TheHostOfAGpuNeedsMemoryToo) {
  const Model model = model_8b();
  PlanLimits limits = cluster_limits("1x8x80gb");
  limits.workers.front().host_memory_bytes = 16'000'000'000ULL;
  const Plan plan = make_plan(recipe_of(model), model.config, tokens_of_20m(), limits);
  ASSERT_EQ(plan.problems.size(), 1U) << problems_of(plan);
  EXPECT_THAT(plan.problems[0].message, HasSubstr("of its host's memory"));
}

TEST(PlanForCluster, MoreRanksThanGpusAreRefused) {
  const Model model = model_8b();
  storage::Recipe recipe = recipe_of(model);
  recipe.finetune.ranks = 16;
  const Plan plan = make_plan(recipe, model.config, tokens_of_20m(), cluster_limits("1x8x80gb"));
  ASSERT_EQ(plan.problems.size(), 1U) << problems_of(plan);
  EXPECT_THAT(plan.problems[0].message, HasSubstr("finetune.ranks = 16"));
  EXPECT_THAT(plan.problems[0].remedy, HasSubstr("finetune.ranks = 8 fits"));
}

TEST(PlanForCluster, AWorkerUnlikeTheFileIsNamedWithBothNumbers) {
  const PlanLimits limits = cluster_limits("1x8x80gb");
  wire::Hello hello;
  hello.device = "NVIDIA A100-SXM4-40GB";
  hello.on_gpu = true;
  hello.memory_bytes = 42'300'000'000ULL;
  EXPECT_THAT(contradiction(hello, limits.workers), HasSubstr("42.3 GB of GPU memory"));
  EXPECT_THAT(contradiction(hello, limits.workers), HasSubstr("80.0 GB of GPU memory"));
  EXPECT_THAT(contradiction(hello, limits.workers), HasSubstr("believed"));
  hello.memory_bytes = 85'520'000'000ULL;  // 79.6 GiB, as a card of "80 GB" says
  EXPECT_EQ(contradiction(hello, limits.workers), "");
  hello.on_gpu = false;
  EXPECT_THAT(contradiction(hello, limits.workers), HasSubstr("no nodes without GPUs"));
  hello.memory_bytes = 0;
  EXPECT_EQ(contradiction(hello, limits.workers), "");
}

TEST(PlanForCluster, WorkersThatSaidHelloShareTheirHostsMemory) {
  wire::Hello hello;
  hello.host = "n1";
  hello.device = "EPYC";
  hello.memory_bytes = 64'000'000'000ULL;
  hello.threads = 4;
  std::vector<wire::Hello> hellos{hello, hello, hello};
  hellos[2].host = "n2";
  const std::vector<WorkerKind> kinds = workers_of(hellos);
  ASSERT_EQ(kinds.size(), 2U);
  EXPECT_EQ(kinds[0].workers_per_node, 2);
  EXPECT_EQ(kinds[0].worker_memory_bytes(), 32'000'000'000ULL);
  EXPECT_EQ(kinds[0].cores, 8);
  EXPECT_EQ(kinds[1].worker_memory_bytes(), 64'000'000'000ULL);
}

}  // namespace
}  // namespace hedgerow::coordinator
