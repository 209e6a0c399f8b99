#include "storage/shape/mesh.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "storage/base/error.hpp"
#include "storage/shape/pipeline_order.hpp"

namespace hedgerow::storage {
namespace {

ModelConfig smollm2() {
  ModelConfig model;
  model.num_hidden_layers = 30;
  model.hidden_size = 576;
  model.intermediate_size = 1536;
  model.num_attention_heads = 9;
  model.num_key_value_heads = 3;
  model.head_dim = 64;
  model.vocab_size = 49152;
  return model;
}

std::vector<int> sizes(const std::vector<LayerRange>& ranges) {
  std::vector<int> all;
  for (const LayerRange& range : ranges) all.push_back(range.size());
  return all;
}

// Ranges of one length, whose passes together take 1 forward and 2 backward a stage.
std::vector<RangeCost> equal_costs(const Mesh& mesh) {
  return std::vector(static_cast<std::size_t>(mesh.num_ranges()),
                     RangeCost{1.0 / mesh.chunks, 2.0 / mesh.chunks});
}

TEST(Mesh, IsReadAndWrittenAsPipelinesTimesStages) {
  EXPECT_EQ(parse_mesh("2x4"), (Mesh{2, 4, 1}));
  EXPECT_EQ(parse_mesh("1x8x3"), (Mesh{1, 8, 3}));
  for (const char* text : {"", "2", "2x", "x4", "0x4", "2x-4", "2x4x", "2x4x1x1", "2 x 4", "2x1x3"})
    EXPECT_EQ(parse_mesh(text), std::nullopt) << text;
  for (const char* text : {"2x4", "1x8x3"}) EXPECT_EQ(mesh_text(*parse_mesh(text)), text);
}

TEST(Mesh, RanksOfAPipelineFollowEachOther) {
  const Mesh mesh{2, 3, 1};
  EXPECT_EQ(mesh.ranks(), 6);
  EXPECT_EQ(mesh.rank(1, 2), 5);
  EXPECT_EQ(mesh.data_index(4), 1);
  EXPECT_EQ(mesh.stage(4), 1);
}

TEST(Mesh, TheShortestPipelineGivesEachAMicroBatch) {
  EXPECT_EQ(shortest_mesh(4, 8), (Mesh{4, 1}));
  EXPECT_EQ(shortest_mesh(24, 8), (Mesh{8, 3}));
  EXPECT_EQ(shortest_mesh(7, 4), (Mesh{1, 7}));
}

TEST(SplitLayers, CountsTheHeadAsItsShareOfWeights) {
  EXPECT_NEAR(head_in_layers(smollm2()), 8.0, 0.01);
  EXPECT_EQ(sizes(split_layers(smollm2(), {1, 2})), (std::vector{19, 11}));
  EXPECT_EQ(sizes(split_layers(smollm2(), {1, 4})), (std::vector{9, 9, 10, 2}));
  EXPECT_EQ(sizes(split_layers(smollm2(), {1, 1})), (std::vector{30}));
  ModelConfig many = smollm2();
  many.vocab_size = 1000;
  EXPECT_EQ(sizes(split_layers(many, {1, 8})), (std::vector{3, 4, 4, 4, 4, 4, 4, 3}));
}

TEST(SplitLayers, CoversEveryLayerOnceInAnyMesh) {
  for (const int stages : {1, 2, 3, 7, 15, 30}) {
    const auto ranges = split_layers(smollm2(), {1, stages});
    int next = 0;
    for (const LayerRange& range : ranges) {
      EXPECT_EQ(range.begin, next);
      EXPECT_GT(range.size(), 0);
      next = range.end;
    }
    EXPECT_EQ(next, 30);
  }
}

TEST(SplitLayers, GivesAStageOneRangeOfEachChunk) {
  const Mesh mesh{1, 3, 2};
  const auto ranges = split_layers(smollm2(), mesh);
  ASSERT_EQ(ranges.size(), 6U);
  EXPECT_EQ(ranges_of_stage(ranges, mesh, 1), (std::vector{ranges[1], ranges[4]}));
}

TEST(SplitLayers, RefusesMoreRangesThanLayers) {
  try {
    static_cast<void>(split_layers(smollm2(), {1, 31}));
    FAIL() << "31 stages of 30 layers";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("30 layers"), std::string::npos) << error.what();
  }
}

TEST(PipelineOrder, OfOneRangeAStageIsOneForwardOneBackward) {
  const auto order = pipeline_order({1, 2}, 3, true);
  const auto words = [](const std::vector<PipelineOperation>& operations) {
    std::string text;
    for (const auto& operation : operations)
      text += (operation.is_forward ? "F" : "B") + std::to_string(operation.micro_batch);
    return text;
  };
  EXPECT_EQ(words(order[0]), "F0F1B0F2B1B2");
  EXPECT_EQ(words(order[1]), "F0B0F1B1F2B2");
}

TEST(PipelineOrder, OfOneRangeAStageTakesTheTimeAndTheBubbleOfTheFormula) {
  for (const int stages : {1, 2, 3, 4, 8, 12}) {
    for (const int micro_batches : {1, 2, 3, 8, 64}) {
      const Mesh mesh{1, stages};
      const auto order = pipeline_order(mesh, micro_batches, true);
      const auto times = pipeline_times(order, mesh, equal_costs(mesh));
      const double slots = micro_batches + stages - 1;
      EXPECT_DOUBLE_EQ(times.makespan, 3.0 * slots);
      EXPECT_NEAR(times.idle, (stages - 1) / slots, 1e-12);
      for (int stage = 0; stage < stages; ++stage) {
        EXPECT_LE(most_in_flight(order[static_cast<std::size_t>(stage)]), stages - stage);
      }
    }
  }
}

TEST(PipelineOrder, VisitsEveryRangeOfEveryMicroBatchInOrder) {
  for (const Mesh& mesh : {Mesh{1, 1}, Mesh{1, 3}, Mesh{1, 2, 2}, Mesh{1, 4, 3}}) {
    for (const int micro_batches : {1, 3, 8}) {
      for (const bool trains : {true, false}) {
        const auto order = pipeline_order(mesh, micro_batches, trains);
        for (const auto& operations : order) {
          ASSERT_EQ(std::ssize(operations), (trains ? 2 : 1) * mesh.chunks * micro_batches);
          std::vector<int> forwards(static_cast<std::size_t>(mesh.chunks)), backwards = forwards;
          for (const auto& operation : operations) {
            auto& next = operation.is_forward ? forwards : backwards;
            EXPECT_EQ(operation.micro_batch, next[static_cast<std::size_t>(operation.chunk)]++);
          }
        }
        // Throws if stages wait for each other.
        static_cast<void>(pipeline_times(order, mesh, equal_costs(mesh)));
      }
    }
  }
}

TEST(PipelineOrder, InterleavedStagesAreIdleForLessTimeWhereMicroBatchesAreFew) {
  const auto idle = [](const Mesh& mesh) {
    return pipeline_times(pipeline_order(mesh, 8, true), mesh, equal_costs(mesh)).idle;
  };
  EXPECT_LT(idle({1, 8, 4}), 0.6 * idle({1, 8}));
  EXPECT_LT(idle({1, 12, 4}), 0.8 * idle({1, 12}));
}

TEST(PipelineOrder, AMessageIsOnTheWayOncePerPassAndBorder) {
  const Mesh mesh{1, 3};
  const auto order = pipeline_order(mesh, 1, true);
  EXPECT_DOUBLE_EQ(pipeline_times(order, mesh, equal_costs(mesh), 0.5).makespan, 9.0 + 4 * 0.5);
}

}  // namespace
}  // namespace hedgerow::storage
