// What tells one training of a model from another, and a layer that nobody can compute with.
// Catches: two teachers taken for one, a value that is not finite in a corner that no vector loop
// looks at, a hash that depends on how a tensor is cut, a damaged record taken for another teacher.
#include "storage/model/weight_hashes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <thread>

#include "storage/files/file.hpp"
#include "storage/tensors/safetensors.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using tests::refusal;

constexpr const char* kConfig = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "torch_dtype": "float32", "vocab_size": 40, "hidden_size": 8, "intermediate_size": 16,
  "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
  "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "tie_word_embeddings": true})";
constexpr const char* kTensor = "model.layers.1.mlp.up_proj.weight";

class WeightHashesTest : public ::testing::Test {
 protected:
  WeightHashesTest() {
    fs::create_directories(root());
    std::ofstream(root() / "config.json") << kConfig;
    const ModelConfig config = ModelConfig::parse(kConfig, "config.json");
    for (int layer = kOuterWeights; layer < 2; ++layer) {
      for (const TensorShape& tensor :
           layer == kOuterWeights ? outer_tensors(config) : layer_tensors(config, layer)) {
        std::size_t size = 1;
        for (const auto length : tensor.shape) size *= static_cast<std::size_t>(length);
        shapes_.emplace(tensor.name, tensor.shape);
        auto& values = values_[tensor.name];
        for (std::size_t i = 0; i < size; ++i) values.push_back(static_cast<float>(i) - 3.5F);
      }
    }
    write();
  }

  fs::path root() const { return directory_ / "model"; }
  void write(DType dtype = DType::kF32) {
    std::map<std::string, TensorView> views;
    std::map<std::string, std::vector<std::byte>> bytes;
    for (const auto& [name, values] : values_) {
      auto& out = bytes[name];
      for (const float value : values) {
        std::array<std::byte, 8> element{};
        if (dtype == DType::kF64) {
          const double wide = value;
          std::memcpy(element.data(), &wide, sizeof(wide));
        } else if (dtype == DType::kBF16) {
          std::memcpy(element.data(), reinterpret_cast<const char*>(&value) + 2, 2);
        } else {
          std::memcpy(element.data(), &value, sizeof(value));
        }
        out.insert(out.end(),
                   element.begin(),
                   element.begin() + static_cast<std::ptrdiff_t>(size_of(dtype)));
      }
      views[name] = {dtype, shapes_.at(name), out};
    }
    write_safetensors(root() / "model.safetensors", views);
  }
  static Hash128 hash_of(const ModelDirectory& model, const std::string& name) {
    const ModelConfig& config = model.config();
    for (const TensorShape& tensor : layer_tensors(config, 1)) {
      if (tensor.name != name) continue;
      TensorChunks chunks(model, tensor);
      for (std::int64_t i = chunks.count(); i-- > 0;) chunks.read(i);
      return chunks.digest();
    }
    throw std::runtime_error(name);
  }
  RunLayout layout() const { return RunLayout(directory_ / "run"); }

  tests::TemporaryDirectory directory_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
  std::map<std::string, std::vector<float>> values_;
};

TEST_F(WeightHashesTest, EveryValueOfATensorChangesItsHash) {
  const Hash128 before = hash_of(ModelDirectory::open(root()), kTensor);
  EXPECT_EQ(hash_of(ModelDirectory::open(root()), kTensor), before);
  for (const std::size_t i : {std::size_t{0}, std::size_t{77}, values_[kTensor].size() - 1}) {
    values_[kTensor][i] *= -1;
    write();
    EXPECT_NE(hash_of(ModelDirectory::open(root()), kTensor), before) << i;
    values_[kTensor][i] *= -1;
  }
}

TEST_F(WeightHashesTest, AValueThatIsNotFiniteIsFoundAtEveryPlaceAndInEveryFloat) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const float bad : {NAN, -INFINITY}) {
      for (std::size_t i = 0; i < values_[kTensor].size(); ++i) {
        const float before = std::exchange(values_[kTensor][i], bad);
        write(dtype);
        const ModelDirectory model = ModelDirectory::open(root());
        const std::string said = refusal([&] { verify_weights(model, {}, ""); }, ErrorKind::kUsage);
        EXPECT_THAT(said,
                    HasSubstr("file model.safetensors: tensor 'model.layers.1.mlp.up_proj.weight' "
                              "has a value that is not finite in row " +
                              std::to_string(i / 8)));
        values_[kTensor][i] = before;
      }
    }
  }
  // The largest finite ones.
  values_[kTensor][5] = 3.3e38F;
  values_[kTensor][6] = -1e-45F;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    write(dtype);
    EXPECT_NO_THROW(verify_weights(ModelDirectory::open(root()), {}, ""));
  }
}

TEST_F(WeightHashesTest, ARunRecordsALayerOnceAndRefusesAnother) {
  const ModelDirectory model = ModelDirectory::open(root());
  const Hash128 first{1, 2}, other{3, 4};
  EXPECT_TRUE(recorded_weights(layout(), 2).empty());
  record_or_require_weights(layout(), model, 1, first);
  record_or_require_weights(layout(), model, 1, first);
  record_or_require_weights(layout(), model, kOuterWeights, other);
  EXPECT_EQ(recorded_weights(layout(), 2), (WeightHashes{{1, first}, {kOuterWeights, other}}));
  const std::string said =
      refusal([&] { record_or_require_weights(layout(), model, 1, other); }, ErrorKind::kUsage);
  EXPECT_THAT(said, HasSubstr("the weights of layer 1 in " + root().string()));
  EXPECT_THAT(said, HasSubstr("the run " + layout().root().string() + " began with"));
  EXPECT_THAT(said, HasSubstr("hash " + first.hex() + " then, " + other.hex() + " now"));
  EXPECT_THAT(said, HasSubstr("put the old weights back"));
}

TEST_F(WeightHashesTest, OfSeveralThatLoadALayerAtOnceOneTeacherWins) {
  const ModelDirectory model = ModelDirectory::open(root());
  constexpr std::size_t kThreads = 8;
  std::array<int, kThreads> is_refused{};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      try {
        record_or_require_weights(layout(), model, 0, {i % 2, 0});
      } catch (const Error&) {
        is_refused[i] = 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto winner = recorded_weights(layout(), 2).at(0).high;
  for (std::size_t i = 0; i < kThreads; ++i) EXPECT_EQ(is_refused[i] == 0, i % 2 == winner) << i;
}

TEST_F(WeightHashesTest, AFlippedBitInARecordIsDamageAndNoOtherTeacher) {
  const ModelDirectory model = ModelDirectory::open(root());
  const Hash128 hash{1, 2};
  record_or_require_weights(layout(), model, 1, hash);
  const fs::path path = layout().root() / RunLayout::weight_hash(1);
  const std::string sound = read_text(path);
  for (std::size_t byte = 0; byte < sound.size(); ++byte) {
    std::string damaged = sound;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 1);
    std::ofstream(path) << damaged;
    const std::string said =
        refusal([&] { record_or_require_weights(layout(), model, 1, hash); }, ErrorKind::kCorrupt);
    EXPECT_THAT(said, HasSubstr("l0001.hash: damaged"));
    EXPECT_THAT(said, HasSubstr("remove the file"));
  }
}

TEST_F(WeightHashesTest, AStudentKeepsThemAsJson) {
  const WeightHashes hashes{{kOuterWeights, {1, 2}}, {0, {3, 4}}, {11, {5, 6}}};
  EXPECT_EQ(weight_hashes_from_json({{"weights", weight_hashes_to_json(hashes)}}), hashes);
  EXPECT_TRUE(weight_hashes_from_json({{"path", "of an older build"}}).empty());
  EXPECT_THROW(static_cast<void>(weight_hashes_from_json({{"weights", {{"1x", "00"}}}})), Error);
}

}  // namespace
}  // namespace hedgerow::storage
