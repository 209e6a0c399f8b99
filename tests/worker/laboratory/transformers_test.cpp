// The laboratory's GPT-2 and BERT against transformers' own, with random weights that Python
// writes.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/tensors/safetensors.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/worker/laboratory/usage_error.hpp"
#include "worker/laboratory/bert.hpp"
#include "worker/laboratory/gpt2.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker::laboratory {
namespace {

namespace fs = std::filesystem;

constexpr double kOfTransformers = 1e-4;

fs::path venv_python() {
  const char* cache = std::getenv("HEDGEROW_CACHE");
  const char* home = std::getenv("HOME");
  const fs::path root = cache != nullptr
                            ? fs::path(cache)
                            : fs::path(home != nullptr ? home : "") / ".cache/hedgerow";
  return root / "venv/bin/python";
}

// What transformers_outputs.py writes; false: there is no Python for it.
bool write_model(const std::string& kind, const fs::path& folder) {
  const fs::path python = venv_python();
  if (!fs::exists(python)) return false;
  const std::string script =
      std::string(HEDGEROW_SOURCE_DIR) + "/tests/worker/laboratory/transformers_outputs.py";
  const std::string command =
      "'" + python.string() + "' '" + script + "' " + kind + " '" + folder.string() + "'";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return true;
}

void load_gpt2(const Transformer& model, const fs::path& path) {
  const storage::SafetensorsFile file(path);
  for (const Gpt2Name& name : gpt2_names(model.options().num_layers))
    model.assign(name.ours, to_tensor(file.at(name.theirs)));
}

// Catches: a bias that is left out, the exact GELU, another epsilon, q, k and v in another order.
TEST(Gpt2, LogitsEqualThoseOfTransformers) {
  const tests::TemporaryDirectory folder;
  if (!write_model("gpt2", folder.path()))
    GTEST_SKIP() << "no Python with transformers; deploy/setup --tests makes it";
  const Transformer model(gpt2_options(50, 32, 3, 4, 24));
  load_gpt2(model, folder.path() / "model.safetensors");
  const storage::SafetensorsFile expected(folder.path() / "expected.safetensors");
  const at::Tensor logits = model.logits(model.hidden(to_tensor(expected.at("ids"))));
  const at::Tensor theirs = to_tensor(expected.at("logits"));
  ASSERT_EQ(logits.sizes(), theirs.sizes());
  EXPECT_GT(theirs.abs().max().item<double>(), 1.0);
  EXPECT_LE((logits - theirs).abs().max().item<double>(), kOfTransformers);
  // Another shape is told by the parameter's name.
  const Transformer wider(gpt2_options(50, 64, 3, 4, 24));
  EXPECT_THAT(usage_error_of([&] { load_gpt2(wider, folder.path() / "model.safetensors"); }),
              ::testing::HasSubstr("embedding"));
}

// Catches: a norm at another place, a token type that is left out, the padding of the second
// sequence seen by its tokens.
TEST(Bert, HiddenStatesEqualThoseOfTransformers) {
  const tests::TemporaryDirectory folder;
  if (!write_model("bert", folder.path()))
    GTEST_SKIP() << "no Python with transformers; deploy/setup --tests makes it";
  const Transformer model(bert_options(folder.path()));
  load_bert(model, folder.path());
  const storage::SafetensorsFile expected(folder.path() / "expected.safetensors");
  const at::Tensor is_token = to_tensor(expected.at("is_token")).to(at::kBool);
  const at::Tensor hidden = model.hidden(to_tensor(expected.at("ids")), is_token);
  const at::Tensor theirs = to_tensor(expected.at("hidden"));
  ASSERT_EQ(hidden.sizes(), theirs.sizes());
  EXPECT_GT(theirs.abs().max().item<double>(), 1.0);
  const at::Tensor gap = (hidden - theirs).abs().amax(-1).masked_fill(is_token.logical_not(), 0);
  EXPECT_LE(gap.max().item<double>(), kOfTransformers);
}

TEST(Bert, AnotherShapeIsRefusedByItsField) {
  const tests::TemporaryDirectory folder;
  for (const auto& [config, field] :
       {std::pair{R"({"model_type": "roberta"})", "model_type"},
        std::pair{R"({"model_type": "bert", "hidden_act": "relu"})", "hidden_act"},
        std::pair{R"({"position_embedding_type": "relative_key"})", "position_embedding_type"},
        std::pair{R"({"is_decoder": true})", "is_decoder"},
        std::pair{R"({"num_attention_heads": "many"})", "num_attention_heads"}}) {
    storage::write_atomically(folder.path() / "config.json", config);
    EXPECT_THAT(usage_error_of([&] { (void)bert_options(folder.path()); }),
                ::testing::HasSubstr(field));
  }
}

}  // namespace
}  // namespace hedgerow::worker::laboratory
