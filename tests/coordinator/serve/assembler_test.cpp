#include "coordinator/serve/assembler.hpp"

#include <fstream>

#include "coordinator/dispatch/commit.hpp"
#include "storage/files/file.hpp"
#include "storage/tensors/safetensors.hpp"
#include "tests/coordinator/run_fixture.hpp"
#include "tests/coordinator/state_fixture.hpp"

namespace hedgerow::coordinator {
namespace {

class Assembler : public RunFixture {
 protected:
  Assembler() { must(state_, RunStarted{geometry_, "test"}); }

  void finish_block(int block, const Defect& defect = {}) {
    const std::uint64_t token = ++token_;
    grant(state_, TaskId::transfer(block), token);
    const auto artifact = write_artifact(block, token, defect);
    commit_file(layout_, token, artifact);
    must(state_, TaskDone{token, {artifact}, nlohmann::json::object()});
  }

  void finish_all() {
    for (int block = 0; block < geometry_.num_blocks(); ++block) finish_block(block);
  }

  void expect_damage(const std::string& words) {
    try {
      static_cast<void>(assemble_student(layout_, state_, assembly(), 100));
      FAIL() << "assembled";
    } catch (const DamagedArtifact& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
      EXPECT_EQ(error.name().rfind("blocks/", 0), 0U)
          << "as the journal calls it: " << error.name();
    }
  }

  State state_;
  std::uint64_t token_ = 0;
};

TEST_F(Assembler, EveryLayerIsCopiedByteForByte) {
  finish_all();
  const auto files = assemble_student(layout_, state_, assembly(), 100);
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].name, "student/t100/feature_maps.safetensors");
  for (const auto& file : files) commit_file(layout_, 100, file);
  const storage::SafetensorsFile student(layout_.resolve(files[0].name));
  std::size_t expected = 0;
  for (int layer = 0; layer < model_.num_hidden_layers; ++layer) {
    for (const auto& tensor : layer_map_tensors(recipe_.attention, model_, layer)) {
      ++expected;
      const auto& view = student.at(tensor.name);
      EXPECT_EQ(view.shape, tensor.shape);
      EXPECT_EQ(reinterpret_cast<const float*>(view.bytes.data())[0], static_cast<float>(layer))
          << tensor.name;
    }
  }
  EXPECT_EQ(student.tensors().size(), expected);
  const auto description =
      nlohmann::json::parse(storage::read_text(layout_.resolve(files[1].name)));
  EXPECT_EQ(description["format"], "student/1");
  EXPECT_EQ(description["teacher"]["fingerprint"], "fingerprint");
  EXPECT_EQ(description["compute_dtype"], recipe_.plan.compute_dtype);
  const auto provenance = nlohmann::json::parse(storage::read_text(layout_.resolve(files[2].name)));
  EXPECT_EQ(provenance["layers"].size(), 5U);
  EXPECT_EQ(provenance["layers"][4]["artifact"], "blocks/b0002/artifact.t3.safetensors");
}

TEST_F(Assembler, WhatAttemptsTheBlocksTookIsInTheProvenanceAlone) {
  const auto assembled = [this](std::uint64_t token) {
    finish_all();
    std::vector<std::string> contents;
    for (const auto& file : assemble_student(layout_, state_, assembly(), token))
      contents.push_back(
          storage::read_text(layout_.root() / storage::RunLayout::attempt_directory(token) /
                             std::filesystem::path(file.name).filename()));
    return contents;
  };
  const auto undisturbed = assembled(100);
  state_ = {};
  must(state_, RunStarted{geometry_, "test"});
  grant(state_, TaskId::transfer(0), ++token_, "a worker that dies");
  must(state_, LeaseRevoked{token_, "it died"});
  const auto killed = assembled(200);
  EXPECT_EQ(killed[0], undisturbed[0]);
  EXPECT_EQ(killed[1], undisturbed[1]);
  EXPECT_NE(killed[2], undisturbed[2]);
  EXPECT_EQ(nlohmann::json::parse(killed[2])["layers"][0]["attempts"], 2);
}

TEST_F(Assembler, LinksInTheAttemptDoNotMakeItWriteElsewhere) {
  finish_all();
  const tests::TemporaryDirectory outside;
  const auto attempt = layout_.root() / storage::RunLayout::attempt_directory(100);
  const auto expect_refused = [&] {
    EXPECT_THROW(static_cast<void>(assemble_student(layout_, state_, assembly(), 100)),
                 storage::Error);
    EXPECT_TRUE(std::filesystem::is_empty(outside.path()));
  };
  std::filesystem::create_symlink(outside.path(), attempt);
  expect_refused();
  std::filesystem::remove(attempt);
  std::filesystem::create_directories(attempt);
  std::filesystem::create_symlink(outside / "new", attempt / "feature_maps.safetensors");
  expect_refused();
}

TEST_F(Assembler, LayersThatStaySoftmaxHaveNoTensors) {
  recipe_.transfer.softmax_layers.layers = {4};
  geometry_.untrained_blocks = {2};
  state_ = {};
  must(state_, RunStarted{geometry_, "test"});
  finish_block(0);
  finish_block(1);
  const auto files = assemble_student(layout_, state_, assembly(), 100);
  const storage::SafetensorsFile student(layout_.root() / "attempts/t100/feature_maps.safetensors");
  EXPECT_FALSE(student.tensors().contains("model.layers.4.self_attn.window_factors"));
  EXPECT_TRUE(student.tensors().contains("model.layers.3.self_attn.window_factors"));
}

TEST_F(Assembler, AMissingTensorIsNamed) {
  finish_block(0);
  finish_block(1,
               {.except = "model.layers.3.self_attn.feature_map_k.mlp.layer",
                .surplus = "",
                .reshaped = ""});
  finish_block(2);
  expect_damage("tensor model.layers.3.self_attn.feature_map_k.mlp.layer is missing");
}

TEST_F(Assembler, ASurplusTensorIsNamed) {
  finish_block(0);
  finish_block(
      1, {.except = "", .surplus = "model.layers.4.self_attn.window_factors", .reshaped = ""});
  finish_block(2);
  expect_damage("tensor model.layers.4.self_attn.window_factors is surplus for block 1");
}

TEST_F(Assembler, AMisshapedTensorIsNamedWithBothShapes) {
  finish_block(
      0, {.except = "", .surplus = "", .reshaped = "model.layers.1.self_attn.window_factors"});
  finish_block(1);
  finish_block(2);
  expect_damage(
      "model.layers.1.self_attn.window_factors is F32 [1, 2, 1, 2], expected F32 [1, 2, 1, 1]");
}

TEST_F(Assembler, AKeyMapIsThatOfAKvHeadUnlessTheRecipeHasOneAQueryHead) {
  const auto first_dimension = [this](std::size_t tensor) {
    return layer_map_tensors(recipe_.attention, model_, 0).at(tensor).shape.front();
  };
  EXPECT_EQ(first_dimension(0), 2) << "of queries";
  EXPECT_EQ(first_dimension(2), 1) << "of keys";
  finish_all();
  recipe_.attention.key_maps = storage::KeyMaps::kQueryHead;
  EXPECT_EQ(first_dimension(2), 2);
  expect_damage("feature_map_k.mlp.layer is F32 [1, 4, 4], expected F32 [2, 4, 4]");
}

TEST_F(Assembler, AChangedArtifactIsStale) {
  finish_all();
  std::fstream file(layout_.resolve("blocks/b0001/artifact.t2.safetensors"),
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x7f');
  file.close();
  expect_damage("blocks/b0001/artifact.t2.safetensors: hash");
}

TEST_F(Assembler, AMissingArtifactIsNamed) {
  finish_all();
  std::filesystem::remove(layout_.resolve("blocks/b0000/artifact.t1.safetensors"));
  expect_damage("blocks/b0000/artifact.t1.safetensors: the file is missing");
}

TEST_F(Assembler, OneBlockThatIsNotDoneIsNotGuessed) {
  finish_block(0);
  finish_block(1);
  EXPECT_THROW(static_cast<void>(assemble_student(layout_, state_, assembly(), 100)),
               storage::Error);
}

}  // namespace
}  // namespace hedgerow::coordinator
