// Which folders of the nodes an image of `hedgerow submit --slurm` needs, and an image that is not
// there.
#include "coordinator/cli/run/slurm_container.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "storage/base/error.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Binds : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(root() / "texts/more");
    write_model(root() / "models/m");
    recipe_.model.path = (root() / "models/m").string();
    for (auto* data : {&recipe_.data_transfer, &recipe_.data_finetune, &recipe_.data_evaluate})
      data->sources = {{.path = (root() / "texts/a.txt").string()}};
  }
  void write_model(const fs::path& folder) {
    fs::create_directories(folder);
    std::ofstream(folder / "config.json")
        << R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8,
               "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
               "num_key_value_heads": 1, "vocab_size": 32, "rms_norm_eps": 1e-5,
               "rope_theta": 10000.0, "max_position_embeddings": 64})";
    std::ofstream(folder / "tokenizer.json") << "{}";
  }
  [[nodiscard]] fs::path root() const { return fs::canonical(directory_.path()); }
  [[nodiscard]] std::string at(const std::string& name) const { return (root() / name).string(); }

  tests::TemporaryDirectory directory_;
  storage::Recipe recipe_;
};

TEST_F(Binds, TheRunTheModelAndTheTextsOnceEach) {
  EXPECT_THAT(folders_to_bind(root() / "runs/one", recipe_),
              ElementsAre(at("models/m"), at("runs/one"), at("texts")));
  recipe_.texts = {{.name = "b", .source = {.path = at("texts/more/b.txt")}},
                   {.name = "c", .source = {.path = at("elsewhere/c.txt")}}};
  EXPECT_THAT(folders_to_bind(root() / "runs/one", recipe_),
              ElementsAre(at("elsewhere"), at("models/m"), at("runs/one"), at("texts")));
}

TEST_F(Binds, WhatALinkLeadsToIsSeenToo) {
  fs::create_directories(root() / "big");
  std::ofstream(root() / "big/a.txt") << "text";
  fs::create_symlink(root() / "big/a.txt", root() / "texts/a.txt");
  EXPECT_THAT(folders_to_bind(root() / "run", recipe_),
              ElementsAre(at("big"), at("models/m"), at("run"), at("texts")));
}

TEST_F(Binds, OfAHuggingFaceCacheTheModelsWholeFolder) {
  write_model(root() / "hub/models--a--b/snapshots/1");
  recipe_.model.path = at("hub/models--a--b/snapshots/1");
  EXPECT_THAT(folders_to_bind(root() / "run", recipe_),
              ElementsAre(at("hub/models--a--b"), at("run"), at("texts")));
}

TEST_F(Binds, APathThatApptainerWouldReadOtherwiseIsRefused) {
  try {
    static_cast<void>(folders_to_bind(root() / "a:b", recipe_));
    FAIL() << "a colon in a path";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr(at("a:b") + ": Apptainer's --bind takes no path"));
  }
}

TEST_F(Binds, AMissingImageIsNamedWithWhatToDo) {
  std::ofstream(root() / "x.sif") << "image";
  EXPECT_NO_THROW(require_image(root() / "x.sif", "cluster.toml"));
  try {
    require_image(root() / "y.sif", "cluster.toml");
    FAIL() << "no image";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_THAT(error.what(),
                HasSubstr("slurm.container of cluster.toml: there is no image " + at("y.sif")));
    EXPECT_THAT(error.what(), HasSubstr("deploy/container/README.md"));
  }
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
