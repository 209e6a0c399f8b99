// The laboratory's GPT-2 against transformers' own, with random weights that Python writes.
#include "worker/laboratory/gpt2.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "storage/base/error.hpp"
#include "storage/tensors/safetensors.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker::laboratory {
namespace {

namespace fs = std::filesystem;

constexpr double kLogitTolerance = 1e-4;

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("hedgerow_gpt2_" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

fs::path venv_python() {
  const char* cache = std::getenv("HEDGEROW_CACHE");
  const char* home = std::getenv("HOME");
  const fs::path root = cache != nullptr
                            ? fs::path(cache)
                            : fs::path(home != nullptr ? home : "") / ".cache/hedgerow";
  return root / "venv/bin/python";
}

void load_gpt2(const Transformer& model, const fs::path& path) {
  const storage::SafetensorsFile file(path);
  for (const Gpt2Name& name : gpt2_names(model.options().num_layers))
    model.assign(name.ours, to_tensor(file.at(name.theirs)));
}

// Catches: a bias that is left out, the exact GELU, another epsilon, q, k and v in another order.
TEST(Gpt2, LogitsEqualThoseOfTransformers) {
  const fs::path python = venv_python();
  if (!fs::exists(python))
    GTEST_SKIP() << "no Python with transformers at " << python
                 << "; deploy/setup --tests makes it";
  const Folder folder;
  const std::string script =
      std::string(HEDGEROW_SOURCE_DIR) + "/tests/worker/laboratory/gpt2_logits.py";
  const std::string command =
      "'" + python.string() + "' '" + script + "' '" + folder.path().string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const Transformer model(gpt2_options(50, 32, 3, 4, 24));
  load_gpt2(model, folder.path() / "model.safetensors");
  const storage::SafetensorsFile expected(folder.path() / "expected.safetensors");
  const at::Tensor logits = model.logits(model.hidden(to_tensor(expected.at("ids"))));
  const at::Tensor theirs = to_tensor(expected.at("logits"));
  ASSERT_EQ(logits.sizes(), theirs.sizes());
  EXPECT_GT(theirs.abs().max().item<double>(), 1.0);
  EXPECT_LE((logits - theirs).abs().max().item<double>(), kLogitTolerance);
  // Another shape is told by the parameter's name.
  const Transformer wider(gpt2_options(50, 64, 3, 4, 24));
  try {
    load_gpt2(wider, folder.path() / "model.safetensors");
    FAIL() << "weights of another width were accepted";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("embedding"));
  }
}

}  // namespace
}  // namespace hedgerow::worker::laboratory
