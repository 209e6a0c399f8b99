// Generation over the ranks of a pipeline, from files: a student with LoRA and trained parts.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <map>
#include <mutex>

#include "storage/base/error.hpp"
#include "tests/worker/comm/rank_threads.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/tiny_model.hpp"
#include "tests/support/tiny_run.hpp"
#include "tests/support/tiny_student.hpp"
#include "worker/generate/generator.hpp"

namespace hedgerow::worker {
namespace {

using Ids = std::vector<std::int64_t>;
using storage::WindowLayout;

struct Text {
  std::map<std::int64_t, Ids> rows;                                    // of rank 0
  std::map<std::pair<std::int64_t, std::int64_t>, at::Tensor> logits;  // of the last rank
};

struct RankRecorder final : GenerationObserver {
  std::map<std::int64_t, Ids> rows, tokens;
  std::map<std::pair<std::int64_t, std::int64_t>, at::Tensor> logits;
  double prefilled = 0.0;
  [[nodiscard]] bool wants_logits() const override { return true; }
  void on_logits(std::int64_t row, std::int64_t position, const at::Tensor& values) override {
    logits[{row, position}] = values.clone();
  }
  void on_token(std::int64_t row, std::int64_t /*position*/, std::int64_t token) override {
    tokens[row].push_back(token);
  }
  void on_prefill(double share) override { prefilled = share; }
  void on_row(std::int64_t row, const Ids& ids) override { rows[row] = ids; }
};

// A model of four layers, its student (layer 2 keeps softmax), an adapter with everything trained.
class GeneratorRanks : public testing::Test {
 protected:
  void write(WindowLayout window, bool tied) {
    tests::write_tiny_model(directory_ / "model", {.tied = tied});
    storage::Recipe recipe = tests::tiny_recipe(directory_ / "model");
    recipe.attention.window = window;
    tests::write_tiny_run(directory_ / "run", recipe, 2);
    const RunContext run(directory_ / "run", at::kCPU);
    tests::write_tiny_student(run, "student");
    storage::FinetuneSection finetune;
    finetune.rank = 3;
    finetune.target_modules = {"q_proj", "v_proj", "o_proj", "down_proj"};
    LoraAdapter adapter = start_adapter(run.config(), finetune, 5);
    std::uint32_t stream = 0;
    for (auto& layer : adapter.layers) {
      for (auto& [module, pair] : layer)
        pair.b = tests::uniform(pair.b.sizes().vec(), 0.3, ++stream);
    }
    std::filesystem::create_directories(adapter_directory());
    save_adapter(adapter_directory(), adapter, "teacher");
    save_trained(adapter_directory(), draw_parts(run.model()));
  }

  [[nodiscard]] TrainedTensors draw_parts(const storage::ModelDirectory& model) const {
    TrainedTensors drawn;
    std::uint32_t stream = 500;
    const auto draw = [&](const std::vector<TrainedPart>& parts) {
      for (const TrainedPart& part : parts)
        drawn[part.name] = 0.8 + tests::uniform(part.shape, 0.2, ++stream);
    };
    Student student = load_student(student_directory(), model, at::kCPU);
    for (int i = 0; i < model.config().num_hidden_layers; ++i) {
      auto& parameters = student.layers[static_cast<std::size_t>(i)];
      if (parameters) draw(parts_of(*parameters, i));
      LayerWeights layer = load_layer(model, i, at::kFloat, at::kCPU);
      draw(parts_of(layer, model.config(), i));
    }
    OuterWeights outer = load_outer(model, at::kFloat, at::kCPU);
    draw(parts_of(outer));
    return drawn;
  }

  // As the command loads it.
  [[nodiscard]] Generator load(Communicator& ranks, bool with_student, at::ScalarType dtype) const {
    const auto model = storage::ModelDirectory::open(directory_ / "model");
    const PipelinePlace place = place_among(&ranks, model.config());
    const auto is_held = [&place](int layer) { return place.layers.contains(layer); };
    std::optional<Student> student;
    std::optional<LoraAdapter> adapter;
    if (with_student) {
      student = load_student(student_directory(), model, at::kCPU, is_held);
      adapter = load_adapter(adapter_directory(), model.config(), is_held);
      put_in_place(*student, adapter->trained);
    }
    return Generator::load(
        model, std::move(student), adapter ? &*adapter : nullptr, at::kCPU, dtype, {}, place);
  }

  [[nodiscard]] Text generate(int num_ranks,
                              bool with_student = true,
                              at::ScalarType dtype = at::kFloat,
                              const GenerateOptions& options = some_options()) const {
    std::vector<RankRecorder> recorders(static_cast<std::size_t>(num_ranks));
    run_on_threads(num_ranks, [&](Communicator& ranks) {
      load(ranks, with_student, dtype)
          .run({{5, 9, 11}, {7, 100, 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2}, {1}},
               options,
               recorders[static_cast<std::size_t>(ranks.rank())]);
    });
    for (const RankRecorder& recorder : recorders) {
      EXPECT_EQ(recorder.rows, recorders.front().rows);
      EXPECT_EQ(recorder.tokens, recorder.rows);
      EXPECT_EQ(recorder.prefilled, 1.0);
      EXPECT_EQ(recorder.logits.empty(), &recorder != &recorders.back());
    }
    return {recorders.front().rows, recorders.back().logits};
  }

  static GenerateOptions some_options() {
    GenerateOptions options;
    options.max_new_tokens = 20;
    options.end_tokens = {-1};  // never
    return options;
  }

  [[nodiscard]] std::filesystem::path student_directory() const {
    return directory_ / "run/student";
  }
  [[nodiscard]] std::filesystem::path adapter_directory() const { return directory_ / "adapter"; }

  tests::TemporaryDirectory directory_;
};

void expect_same(const Text& found, const Text& expected, int num_ranks) {
  EXPECT_EQ(found.rows, expected.rows) << num_ranks << " ranks";
  ASSERT_EQ(found.logits.size(), expected.logits.size());
  for (const auto& [place, values] : expected.logits) {
    EXPECT_TRUE(at::equal(found.logits.at(place), values))
        << num_ranks << " ranks, row " << place.first << ", position " << place.second;
  }
}

TEST_F(GeneratorRanks, AnyNumberOfThemGivesTheTokensAndTheBytesOfLogitsThatOneGives) {
  for (const auto window : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      write(window, /*tied=*/dtype == at::kFloat);
      for (const bool with_student : {true, false}) {
        const Text one = generate(1, with_student, dtype);
        ASSERT_EQ(one.rows.size(), 3U);
        for (const int num_ranks : {2, 3, 4})
          expect_same(generate(num_ranks, with_student, dtype), one, num_ranks);
      }
    }
  }
}

TEST_F(GeneratorRanks, RowsThatEndEarlyLeaveTheBatchOnEveryRank) {
  write(WindowLayout::kTerraced, true);
  GenerateOptions options = some_options();
  options.sampling = {.temperature = 0.9, .top_p = 0.95, .seed = 3};
  for (std::int64_t token = 0; token < 20; ++token) options.end_tokens.push_back(token);
  const Text one = generate(1, true, at::kFloat, options);
  bool some_ended = false;
  for (const auto& [row, ids] : one.rows) some_ended |= std::ssize(ids) < options.max_new_tokens;
  EXPECT_TRUE(some_ended) << "no row met an end token: the test shows less than it says";
  for (const int num_ranks : {2, 3})
    expect_same(generate(num_ranks, true, at::kFloat, options), one, num_ranks);
}

TEST_F(GeneratorRanks, ARankKeepsNothingOfTheLayersOfOthers) {
  write(WindowLayout::kTerraced, true);
  const auto model = storage::ModelDirectory::open(directory_ / "model");
  const auto is_held = [](int layer) { return layer == 1; };
  const Student student = load_student(student_directory(), model, at::kCPU, is_held);
  const LoraAdapter adapter = load_adapter(adapter_directory(), model.config(), is_held);
  ASSERT_EQ(student.layers.size(), 4U);
  EXPECT_FALSE(student.layers[2]) << "keeps softmax, whoever has it";
  for (std::size_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(adapter.layers[layer].empty(), layer != 1);
    if (!student.layers[layer]) continue;
    EXPECT_EQ(student.layers[layer]->q.layer.defined(), layer == 1) << "layer " << layer;
  }
  for (const auto& [name, tensor] : adapter.trained)
    EXPECT_TRUE(name.starts_with("model.layers.1.") || name == "model.norm.weight") << name;
  EXPECT_GT(adapter.trained.size(), 3U);
}

TEST_F(GeneratorRanks, MoreOfThemThanLayersAreRefused) {
  write(WindowLayout::kTerraced, true);
  try {
    static_cast<void>(generate(5));
    FAIL() << "a rank without a layer was run";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_THAT(error.what(), testing::HasSubstr("4 layers"));
  }
}

// Rank 1 hangs between two tokens: the others wait for it, for each other, or for the tokens.
TEST_F(GeneratorRanks, TheOneThatHangsIsNamedByWhoeverWaitsForItself) {
  write(WindowLayout::kTerraced, true);
  constexpr int kNumRanks = 4, kHangs = 1;
  std::latch others(kNumRanks - 1);
  struct Hanging final : GenerationObserver {
    explicit Hanging(std::latch& latch) : until(latch) {}
    void on_token(std::int64_t row, std::int64_t /*position*/, std::int64_t /*token*/) override {
      if (row == 1) until.wait();
    }
    void on_row(std::int64_t /*row*/, const Ids& /*ids*/) override {}
    std::latch& until;
  } hanging(others);
  std::mutex mutex;
  std::vector<std::string> said;  // in the order of time
  const auto body = [&](Communicator& ranks) {
    RankRecorder recorder;
    Generator generator = load(ranks, true, at::kFloat);
    const bool hangs = ranks.rank() == kHangs;
    try {
      generator.run({{5, 9, 11}, {7}},
                    some_options(),
                    hangs ? static_cast<GenerationObserver&>(hanging) : recorder);
    } catch (const storage::Error& error) {
      if (hangs) throw;
      const std::lock_guard lock(mutex);
      said.emplace_back(error.what());
      others.count_down();
      throw;
    }
  };
  EXPECT_THROW(run_on_threads(kNumRanks, body, std::chrono::seconds(3)), storage::Error);
  ASSERT_EQ(said.size(), 3U);
  EXPECT_THAT(said.front(), testing::HasSubstr("rank 2: no message from rank 1 within"));
}

}  // namespace
}  // namespace hedgerow::worker
