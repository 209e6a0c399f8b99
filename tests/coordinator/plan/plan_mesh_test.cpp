// The mesh of the finetune's ranks, held against arithmetic by hand. Shapes of 70B and 405B are
// those of the models' config.json.
#include "coordinator/plan/plan_mesh.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/plan/planner.hpp"
#include "storage/base/error.hpp"
#include "storage/shape/budgets.hpp"
#include "storage/shape/layer_shape.hpp"
#include "storage/shape/pipeline_order.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::Mesh;
using ::testing::HasSubstr;

class PlanMesh : public ::testing::Test {
 protected:
  PlanMesh() {
    model_.num_hidden_layers = 80;
    model_.hidden_size = 8192;
    model_.intermediate_size = 28672;
    model_.num_attention_heads = 64;
    model_.num_key_value_heads = 8;
    model_.head_dim = 128;
    model_.vocab_size = 128256;
    model_.max_position_embeddings = 131072;
    model_.tie_word_embeddings = false;
    recipe_.attention.feature_dim = 128;
    recipe_.plan.compute_dtype = "bf16";
    recipe_.plan.sequences_per_forward = 1;
    recipe_.finetune.sequences_per_step = 8;
    recipe_.finetune.max_steps = 100;
    recipe_.finetune.ranks = 8;
    tokens_ = {{800, 816, 1024}, {800, 816, 1024}, {}};
    limits_.inside_bytes_per_second = 450e9;
    limits_.between_bytes_per_second = 50e9;
  }

  void become_405b() {
    model_.num_hidden_layers = 126;
    model_.hidden_size = 16384;
    model_.intermediate_size = 53248;
    model_.num_attention_heads = 128;
  }

  static WorkerKind gpus(int nodes, std::uint64_t gigabytes, ComputeSpeed speed = {400e12, 13e12}) {
    return {.name = "gpus",
            .nodes = nodes,
            .workers_per_node = 8,
            .on_gpu = true,
            .gpu_memory_bytes = gigabytes * 1'000'000'000ULL,
            .host_memory_bytes = 1'000'000'000'000ULL,
            .cores = 96,
            .speed = speed};
  }

  MeshPlanner planner() const { return {recipe_, model_, tokens_, limits_}; }
  MeshPlan chosen() const { return planner().plan(); }
  Plan plan() const { return make_plan(recipe_, model_, tokens_, limits_); }
  std::string problem() const {
    const Plan made = plan();
    EXPECT_EQ(made.problems.size(), 1U);
    return made.problems.empty() ? "" : made.problems[0].message + "; " + made.problems[0].remedy;
  }
  double gigabytes(const Mesh& mesh, int stage) const {
    return static_cast<double>(
               planner().stage_memory(mesh, {.on_gpu = true})[static_cast<std::size_t>(stage)]) /
           1e9;
  }

  storage::Recipe recipe_;
  storage::ModelConfig model_;
  PlanTokens tokens_;
  PlanLimits limits_;
};

// A layer of 70B has 0.856 x 10^9 parameters in two bytes: 1.71 GB; an embedding 2.10 GB; a layer's
// maps 72 x 128 x 64 x 4 bytes = 2.4 MB. CUDA is counted with 1.07 GB, NCCL with 0.54. What a layer
// computes of 1024 tokens: 1024 x (2 x (4 x 8192 + 144 x 128 + 3 x 28672) + 4 x 64 x 384) = 0.38
// GB, so its layers' inputs alone are kept (16.8 MB a layer and pass), two layers' activations and
// the 0.44 GB that the training of one's attention takes.
// 10 layers of 70B a stage, 8 micro-batches of 1,024 tokens in flight: about 16 GB beside 18 of weights.
TEST_F(PlanMesh, AGpuKeepsActivationsWhereTheyFitAndElseComputesThemAgain) {
  recipe_.finetune.mesh = "1x8";
  limits_.workers = {gpus(1, 80)};
  const MeshPlan roomy = chosen();
  EXPECT_FALSE(roomy.recomputes);
  EXPECT_TRUE(planner().fits(roomy, limits_.workers[0]));
  limits_.workers = {gpus(1, 32)};
  EXPECT_TRUE(chosen().recomputes);
  EXPECT_GT(chosen().step_seconds, 1.1 * roomy.step_seconds);
  limits_.workers = {gpus(1, 0)};
  EXPECT_TRUE(chosen().recomputes) << "a GPU whose memory is not known";
}

// The trainer's rule (worker/finetune/trainer.cpp), from the numbers that a rank has: a plan that
// decides otherwise tells another memory and another time than the run takes.
TEST_F(PlanMesh, WhetherActivationsAreKeptIsDecidedAsTheTrainerDoes) {
  struct Shape {
    int layers, hidden, intermediate, heads, kv_heads, head_dim;
  };
  int kept = 0, recomputed = 0;
  recipe_.finetune.sequences_per_micro_batch = 1;
  limits_.workers = {{.name = "cpus", .nodes = 1, .workers_per_node = 8, .cores = 96}};
  for (const Shape& shape : {Shape{30, 576, 1536, 9, 3, 64},
                             {32, 4096, 14336, 32, 8, 128},
                             {80, 8192, 28672, 64, 8, 128},
                             {126, 16384, 53248, 128, 8, 128}}) {
    model_.num_hidden_layers = shape.layers;
    model_.hidden_size = shape.hidden;
    model_.intermediate_size = shape.intermediate;
    model_.num_attention_heads = shape.heads;
    model_.num_key_value_heads = shape.kv_heads;
    model_.head_dim = shape.head_dim;
    for (const Mesh mesh : {Mesh{1, 1}, {2, 1}, {1, 4}, {2, 4}, {1, 4, 3}, {1, 8}}) {
      for (const int seq_len : {64, 128, 512, 2048}) {
        tokens_ = {{800, 816, seq_len}, {800, 816, seq_len}, {}};
        recipe_.finetune.mesh = storage::mesh_text(mesh);
        recipe_.finetune.ranks = mesh.ranks();
        const int passes = recipe_.finetune.sequences_per_step / mesh.data;
        const auto ranges = storage::split_layers(model_, mesh);
        const auto order = storage::pipeline_order(mesh, passes, true);
        const std::int64_t of_token = storage::kept_activation_bytes(
            model_, 2, recipe_.finetune.target_modules, recipe_.finetune.rank);
        bool recomputes = false;
        for (int stage = 0; stage < mesh.pipeline; ++stage) {
          std::int64_t layers = 0;
          for (const auto& range : storage::ranges_of_stage(ranges, mesh, stage))
            layers += range.size();
          const int in_flight =
              storage::most_in_flight(order[static_cast<std::size_t>(stage)]);
          recomputes |= !storage::keeps_activations(layers * seq_len * of_token,
                                                    in_flight,
                                                    mesh.chunks,
                                                    storage::kHostActivationBytes);
        }
        EXPECT_EQ(chosen().recomputes, recomputes)
            << shape.hidden << ", " << storage::mesh_text(mesh) << ", " << seq_len;
        ++(recomputes ? recomputed : kept);
      }
    }
  }
  EXPECT_GT(kept, 10);
  EXPECT_GT(recomputed, 10);
}

TEST_F(PlanMesh, AStageHoldsItsLayersItsEndOfTheModelAndWhatIsInFlight) {
  const double others = 1.07 + 0.54 + 2 * 0.38 + 0.44;
  const double logits = 4 * 1024 * 128256 * 4 / 1e9 - 0.26;  // of 1,024 rows, less what others has
  // 1x8: the head is 1.2 layers, so the first stages have 11 layers; 8 passes are in flight there.
  const auto ranges = storage::split_layers(model_, {1, 8});
  const double first = ranges.front().size(), last = ranges.back().size();
  EXPECT_NEAR(gigabytes({1, 8}, 0), first * (1.71 + 8 * 0.0168) + 2.10 + others, 0.5);
  EXPECT_NEAR(gigabytes({1, 8}, 7), last * (1.71 + 1 * 0.0168) + 2.10 + logits + others, 0.6);
  EXPECT_NEAR(gigabytes({1, 8}, 3), ranges[3].size() * (1.71 + 5 * 0.0168) + others, 0.5);
  // With as many pipelines as micro-batches one pass is in flight anywhere.
  EXPECT_NEAR(gigabytes({8, 1}, 0), 80 * (1.71 + 0.0168) + 2 * 2.10 + logits + others, 1.5);
}

// 141.1 GB of weights: not in one rank of 80 GB, but in four and eight.
TEST_F(PlanMesh, SeventyBillionFitEightCardsOf80GbAs1x8And2x4) {
  const WorkerKind node = gpus(1, 80);
  EXPECT_FALSE(planner().fits(Mesh{8, 1}, node));
  EXPECT_TRUE(planner().fits(Mesh{2, 4}, node));
  EXPECT_TRUE(planner().fits(Mesh{1, 8}, node));
  limits_.workers = {node};
  const MeshPlan mesh = chosen();
  EXPECT_TRUE(planner().fits(mesh.mesh, node)) << storage::mesh_text(mesh.mesh);
  EXPECT_GT(mesh.mesh.pipeline, 1);
  EXPECT_TRUE(plan().fits());
}

// 8 micro-batches through one pipeline of P equal stages are idle for (P - 1) / (8 + P - 1) of the
// time: of those that fit, more pipelines are faster where their gradients cost little.
TEST_F(PlanMesh, TheShortestPredictedStepIsChosen) {
  limits_.workers = {gpus(1, 80)};
  const MeshPlan mesh = chosen();
  for (const char* other : {"1x8", "2x4", "1x8x2", "2x4x2"}) {
    recipe_.finetune.mesh = other;
    EXPECT_GE(chosen().step_seconds, mesh.step_seconds) << other;
  }
  recipe_.finetune.mesh = "1x8";
  EXPECT_NEAR(chosen().idle, 7.0 / 15.0, 0.05);
}

TEST_F(PlanMesh, WithoutSpeedsTheFewestStagesThatFitAreChosen) {
  limits_.workers = {gpus(1, 50, {})};
  EXPECT_EQ(chosen().mesh, (Mesh{2, 4})) << "4x2 has 40 layers of 1.71 GB";
  limits_.workers = {gpus(1, 200, {})};
  EXPECT_EQ(chosen().mesh, (Mesh{8, 1}));
}

TEST_F(PlanMesh, WithoutMemoryEachPipelineHasAMicroBatchAndAsFewStagesAsCanBe) {
  EXPECT_EQ(chosen().mesh, (Mesh{8, 1})) << "nothing is known of the workers";
  recipe_.finetune.ranks = 24;
  EXPECT_EQ(chosen().mesh, (Mesh{8, 3}));
  limits_.workers = {gpus(3, 0)};
  EXPECT_EQ(chosen().mesh, (Mesh{8, 3}));
}

// One micro-batch of 1024 tokens between two stages: 1024 x 8192 x 2 bytes each way, 33.6 MB; 8 of
// them over 3 borders in each of two pipelines of 4 stages, that is 8 x 3 in all.
TEST_F(PlanMesh, BytesOfAStepAreOfEveryBorderAndEveryPipeline) {
  limits_.workers = {gpus(1, 80)};
  recipe_.finetune.mesh = "2x4";
  const MeshPlan two = chosen();
  EXPECT_EQ(two.bytes_per_step, 8ULL * 3 * 2 * 1024 * 8192 * 2);
  // LoRA of rank 8 on q, k, v and o: 80 x 8 x (4 x 8192 + 2 x 8192 + 2 x 1024) parameters.
  EXPECT_EQ(two.gradient_bytes_per_step, 2ULL * 80 * 8 * (6 * 8192 + 2 * 1024) * 4);
  recipe_.finetune.mesh = "1x8";
  EXPECT_EQ(chosen().gradient_bytes_per_step, 0U);
  recipe_.finetune.mesh = "8x1";
  EXPECT_EQ(chosen().bytes_per_step, 0U);
}

TEST_F(PlanMesh, AStageThatDoesNotFitIsNamedWithItsLayersAndWhatWouldFit) {
  limits_.workers = {gpus(1, 80)};
  recipe_.finetune.mesh = "8x1";
  EXPECT_THAT(problem(), HasSubstr("stage 1 of 1 (the embedding, layers 0 to 79 and the head)"));
  EXPECT_THAT(problem(), HasSubstr("are missing"));
  EXPECT_THAT(problem(), HasSubstr("finetune.ranks = 8 fits, as finetune.mesh = \"4x2\""));
  become_405b();
  recipe_.finetune.mesh = "auto";
  EXPECT_THAT(problem(), HasSubstr("of finetune.mesh = \"1x8\""));
  EXPECT_THAT(problem(), HasSubstr("no other number of ranks fits there"));
  limits_.workers = {gpus(3, 80)};
  EXPECT_THAT(problem(), HasSubstr("finetune.ranks = 16 fits, as finetune.mesh = \"1x16\""));
  recipe_.finetune.ranks = 16;
  EXPECT_TRUE(plan().fits());
}

TEST_F(PlanMesh, ASmallerDtypeOrMicroBatchIsNamedWhereNoRanksFit) {
  model_.num_hidden_layers = 8;  // 1.71 GB each, in fp32 3.4
  recipe_.finetune.ranks = 8;
  limits_.workers = {gpus(1, 9)};
  recipe_.plan.compute_dtype = "fp32";
  recipe_.finetune.enabled = true;
  EXPECT_THAT(planner().stage_text({1, 8}, 7), HasSubstr("(layer 7 and the head)"));
  ASSERT_FALSE(planner().fits_somewhere());
  const Plan made = plan();
  std::string text;
  for (const PlanProblem& found : made.problems) text += found.message + "; " + found.remedy + "\n";
  EXPECT_THAT(text, HasSubstr("it fits with plan.compute_dtype = \"bf16\""));
}

TEST_F(PlanMesh, MoreStagesThanLayersAreAUsageError) {
  const auto refused = [this] {
    try {
      static_cast<void>(plan());
    } catch (const storage::Error& error) {
      EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
      return std::string(error.what());
    }
    return std::string("planned");
  };
  recipe_.finetune.ranks = 96;
  recipe_.finetune.mesh = "1x96";
  EXPECT_THAT(refused(), HasSubstr("finetune.mesh = \"1x96\" has 96 ranges of layers"));
  EXPECT_THAT(refused(), HasSubstr("the model has 80 layers"));
  recipe_.finetune.ranks = 83;  // a prime
  recipe_.finetune.mesh = "auto";
  EXPECT_THAT(refused(), HasSubstr("at least 83 stages"));
  EXPECT_THAT(refused(), HasSubstr("finetune.ranks = 82 is the largest"));
}

TEST_F(PlanMesh, RanksThatAskForTheStageGetAMeshOfTheirNumber) {
  EXPECT_EQ(mesh_of_ranks(recipe_, model_, tokens_, limits_, 24), "8x3");
  EXPECT_EQ(mesh_of_ranks(recipe_, model_, tokens_, limits_, 1), "1x1");
  recipe_.finetune.mesh = "2x4";
  EXPECT_EQ(mesh_of_ranks(recipe_, model_, tokens_, limits_, 8), "2x4");
  try {
    static_cast<void>(mesh_of_ranks(recipe_, model_, tokens_, limits_, 4));
    FAIL() << "4 ranks of a mesh of 8";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("has 8 ranks, but 4 ask for the stage"));
  }
}

// As a worker of one stage: what the whole model takes on the CPU stays as it was fitted.
TEST_F(PlanMesh, EachRankReadsItsStageAlone) {
  limits_.workers = {gpus(1, 80)};
  recipe_.finetune.mesh = "2x4";
  const MeshPlan mesh = chosen();
  const auto ranges = storage::split_layers(model_, mesh.mesh);
  EXPECT_EQ(mesh.most_layers, ranges[2].size());
  // The first stage has a layer less, and the embedding.
  EXPECT_NEAR(static_cast<double>(mesh.read_bytes) / 1e9, ranges[0].size() * 1.71 + 2.10, 0.2);
}

}  // namespace
}  // namespace hedgerow::coordinator
