#include "worker/generate/generator.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/softmax_attention.hpp"
#include "storage/base/error.hpp"
#include "tests/support/tiny_student.hpp"

namespace hedgerow::worker {
namespace {

using Ids = std::vector<std::int64_t>;
using storage::WindowLayout;
using tests::make_tiny_student;
using tests::TinyOptions;
using tests::TinyStudent;

struct Recorder final : GenerationObserver {
  std::map<std::int64_t, Ids> rows;
  std::map<std::pair<std::int64_t, std::int64_t>, at::Tensor> logits;
  [[nodiscard]] bool wants_logits() const override { return true; }
  void on_logits(std::int64_t row, std::int64_t position, const at::Tensor& values) override {
    logits[{row, position}] = values.clone();
  }
  void on_row(std::int64_t row, const Ids& ids) override { rows[row] = ids; }
};

Ids prompt(std::int64_t length, std::uint32_t stream) {
  const at::Tensor values = (tests::uniform({length}, 30.0, stream) + 30.0).to(at::kLong);
  const auto* data = values.const_data_ptr<std::int64_t>();
  return {data, data + length};
}

Generator make_generator(const TinyStudent& tiny, bool with_student = true) {
  return {tiny.config,
          tiny.outer,
          tiny.layers,
          with_student ? std::optional(tiny.student) : std::nullopt};
}

GenerateOptions greedy(std::int64_t max_new_tokens) {
  GenerateOptions options;
  options.max_new_tokens = max_new_tokens;
  options.end_tokens = {-1};  // never
  return options;
}

// [T, V] of the whole sequence at once.
at::Tensor full_forward(const TinyStudent& tiny, bool with_student, const Ids& ids) {
  const auto length = static_cast<std::int64_t>(ids.size());
  const LayerContext context{
      tiny.config, make_rope_table(tiny.config, length, at::kCPU), at::kFloat};
  at::Tensor hidden = embed(at::tensor(ids, at::kLong).unsqueeze(0), tiny.outer.embed_tokens);
  for (std::size_t i = 0; i < tiny.layers.size(); ++i) {
    const Qkv x = layer_qkv(hidden, tiny.layers[i], context);
    const auto& parameters = tiny.student.layers[i];
    const at::Tensor y =
        with_student && parameters
            ? kernels::hybrid_attention_reference(x.q, x.k, x.v, *parameters, tiny.student.options)
            : kernels::softmax_attention_reference(x.q, x.k, x.v);
    hidden = layer_output(hidden, y, tiny.layers[i], context);
  }
  return logits(hidden.squeeze(0), tiny.outer, tiny.config);
}

void expect_scores_of_full_forward(const TinyStudent& tiny, bool with_student) {
  Generator generator = make_generator(tiny, with_student);
  const std::vector<ScoredText> texts{{prompt(40, 3), 1}, {prompt(7, 4), 6}, {prompt(33, 5), 20}};
  const auto scores = generator.score(texts);
  ASSERT_EQ(scores.size(), texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const at::Tensor expected = at::log_softmax(full_forward(tiny, with_student, texts[i].ids), -1);
    ASSERT_EQ(scores[i].size(), texts[i].ids.size() - static_cast<std::size_t>(texts[i].first));
    for (std::size_t t = 0; t < scores[i].size(); ++t) {
      const auto place = texts[i].first + static_cast<std::int64_t>(t);
      const auto token = texts[i].ids[static_cast<std::size_t>(place)];
      const at::Tensor row = expected[place - 1];
      EXPECT_NEAR(scores[i][t].log_probability, row[token].item<double>(), 2e-4);
      EXPECT_EQ(scores[i][t].is_likeliest, row.argmax().item<std::int64_t>() == token);
    }
  }
}

void expect_equals_full_forward(const TinyStudent& tiny,
                                bool with_student,
                                std::int64_t prompt_length) {
  Generator generator = make_generator(tiny, with_student);
  Recorder recorder;
  const Ids start = prompt(prompt_length, 3);
  generator.run({start}, greedy(30), recorder);
  Ids all = start;
  all.insert(all.end(), recorder.rows.at(0).begin(), recorder.rows.at(0).end());
  const at::Tensor expected = full_forward(tiny, with_student, all);
  for (std::int64_t t = prompt_length; t < static_cast<std::int64_t>(all.size()); ++t) {
    const at::Tensor row = expected[t - 1];
    const at::Tensor found = recorder.logits.at({0, t});
    EXPECT_LE((found - row).abs().max().item<double>(),
              2e-4 * (1.0 + row.abs().max().item<double>()))
        << "position " << t << ", prompt of " << prompt_length;
    EXPECT_EQ(row.argmax().item<std::int64_t>(), all[static_cast<std::size_t>(t)])
        << "position " << t;
  }
}

TEST(Generator, TokenByTokenEqualsTheFullForwardInEveryLayoutFromAnySplit) {
  for (const auto window : {WindowLayout::kTerraced, WindowLayout::kSliding, WindowLayout::kNone}) {
    for (const auto key_maps : {storage::KeyMaps::kKvHead, storage::KeyMaps::kQueryHead}) {
      const int sinks = key_maps == storage::KeyMaps::kKvHead ? 4 : 0;
      const TinyStudent tiny =
          make_tiny_student({.window = window, .num_sinks = sinks, .key_maps = key_maps});
      // Among the sinks, before the first border, at it, past it, and beyond two windows.
      for (const std::int64_t length : {1, 3, 7, 8, 9, 16, 21})
        expect_equals_full_forward(tiny, true, length);
    }
  }
}

TEST(Generator, AStateOfAKvHeadTakesItsShareOfTheBytes) {
  const auto bytes = [](const TinyOptions& options) {
    Generator generator = make_generator(make_tiny_student(options));
    Recorder recorder;
    generator.run({prompt(20, 3)}, greedy(2), recorder);
    return generator.cache_bytes();
  };
  const std::int64_t one_each = bytes({.num_sinks = 0, .key_maps = storage::KeyMaps::kQueryHead});
  const std::int64_t shared = bytes({.num_sinks = 0, .key_maps = storage::KeyMaps::kKvHead});
  // Three layers, two of four states [F, D + 1] less, F = D = 8.
  EXPECT_EQ(one_each - shared, 3 * 2 * 8 * 9 * 4);
  // Keys and values of the sinks: three layers, two kv heads.
  EXPECT_EQ(bytes({}) - shared, 3 * 2 * 2 * 4 * 8 * 4);
}

TEST(Generator, LayersThatKeepSoftmaxAndTheTeacherAloneEqualTheFullForward) {
  for (const TinyOptions& options :
       {TinyOptions{.qk_norm = storage::QkNorm::kHead, .biases = true, .softmax_layers = {0, 2}},
        TinyOptions{.qk_norm = storage::QkNorm::kWidth,
        .norm_place = storage::NormPlace::kAfter,
        .layers_without_rope = {0},
        .softmax_layers = {2}}}) {
    const TinyStudent tiny = make_tiny_student(options);
    for (const std::int64_t length : {1, 13}) {
      expect_equals_full_forward(tiny, true, length);
      expect_equals_full_forward(tiny, false, length);
    }
  }
}

TEST(Generator, ARaggedBatchGivesWhatItsPromptsGiveAloneAlsoWhenRowsEndEarly) {
  const TinyStudent tiny = make_tiny_student({.softmax_layers = {1}});
  Generator generator = make_generator(tiny);
  const std::vector<Ids> prompts = {prompt(5, 1), prompt(19, 2), prompt(1, 3), prompt(8, 4)};
  GenerateOptions options = greedy(24);
  for (std::int64_t token = 0; token < 16; ++token) options.end_tokens.push_back(token);
  Recorder together;
  generator.run(prompts, options, together);
  bool some_ended = false;
  for (std::size_t row = 0; row < prompts.size(); ++row) {
    Recorder alone;
    generator.run({prompts[row]}, options, alone);
    const auto key = static_cast<std::int64_t>(row);
    EXPECT_EQ(together.rows.at(key), alone.rows.at(0)) << "row " << row;
    for (const auto& [place, values] : alone.logits) {
      const at::Tensor other = together.logits.at({key, place.second});
      EXPECT_LE((values - other).abs().max().item<double>(), 1e-4)
          << "row " << row << ", position " << place.second;
    }
    some_ended |= alone.rows.at(0).size() < 24;
  }
  EXPECT_TRUE(some_ended) << "no row met an end token: the test shows less than it says";
}

TEST(Generator, ARowEndsWithItsFirstEndToken) {
  const TinyStudent tiny = make_tiny_student();
  Generator generator = make_generator(tiny);
  Recorder free;
  generator.run({prompt(6, 5)}, greedy(20), free);
  const Ids& all = free.rows.at(0);
  GenerateOptions options = greedy(20);
  options.end_tokens = {all[4]};
  Recorder ended;
  generator.run({prompt(6, 5)}, options, ended);
  const Ids& cut = ended.rows.at(0);
  EXPECT_EQ(cut.back(), all[4]);
  EXPECT_EQ(std::ranges::count(cut, all[4]), 1);
  EXPECT_LE(cut.size(), 5U);
}

TEST(Generator, MemoryIsConstantInTheLengthUnlessALayerKeepsSoftmax) {
  const auto bytes_after = [](const TinyStudent& tiny, std::int64_t tokens) {
    Generator generator = make_generator(tiny);
    Recorder recorder;
    generator.run({prompt(4, 6)}, greedy(tokens), recorder);
    return generator.cache_bytes();
  };
  const TinyStudent linear = make_tiny_student();
  EXPECT_EQ(bytes_after(linear, 10), bytes_after(linear, 120));
  const TinyStudent hybrid = make_tiny_student({.softmax_layers = {1}});
  EXPECT_LT(bytes_after(hybrid, 10), bytes_after(hybrid, 120));
}

TEST(Generator, SamplingDoesNotDependOnTheRestOfTheBatch) {
  const TinyStudent tiny = make_tiny_student();
  Generator generator = make_generator(tiny);
  GenerateOptions options = greedy(15);
  options.sampling = {.temperature = 0.8, .top_p = 0.9, .seed = 4};
  Recorder pair, single;
  generator.run({prompt(6, 7), prompt(9, 8)}, options, pair);
  generator.run({prompt(6, 7)}, options, single);
  EXPECT_EQ(pair.rows.at(0), single.rows.at(0));
}

TEST(Generator, PromptsThatCannotBeRunAreNamed) {
  Generator generator = make_generator(make_tiny_student());
  Recorder recorder;
  try {
    generator.run({{1}, {}}, greedy(1), recorder);
    FAIL() << "an empty prompt was run";
  } catch (const storage::Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("prompt 1 is empty"));
  }
  try {
    generator.run({{1, 61}}, greedy(1), recorder);
    FAIL() << "a token outside the vocabulary was run";
  } catch (const storage::Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("prompt 0: token id 61"));
  }
}

// Every id would be the same one for ever.
TEST(Generator, LogitsThatAreNotFiniteAreNamedWithTheirPosition) {
  TinyStudent tiny = make_tiny_student();
  tiny.outer.final_norm = at::full_like(tiny.outer.final_norm, NAN);
  Generator generator = make_generator(tiny);
  Recorder recorder;
  try {
    generator.run({{1, 2, 3}}, greedy(4), recorder);
    FAIL() << "NaN was sampled from";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_THAT(error.what(),
                testing::HasSubstr("logits of prompt 0 at position 3 are not finite; check the "
                                   "model's weights"));
  }
}

// The softmax that is computed would see more than the model's own.
TEST(Generator, ATeacherGoesNoFurtherThanItsOwnWindow) {
  TinyStudent tiny = make_tiny_student();
  tiny.config.sliding_window = 6;
  Recorder recorder;
  Generator teacher = make_generator(tiny, /*with_student=*/false);
  teacher.run({{1, 2, 3}}, greedy(4), recorder);
  EXPECT_EQ(recorder.rows.at(0).size(), 4U) << "the last one is not attended to";
  EXPECT_THROW(teacher.run({{1, 2, 3}}, greedy(5), recorder), storage::Error);
  make_generator(tiny).run({{1, 2, 3}}, greedy(5), recorder);  // no layer of softmax
}

TEST(Generate, ScoresAreThoseOfTheWholeForwardWhateverTextsStandBeside) {
  const TinyStudent tiny = make_tiny_student();
  expect_scores_of_full_forward(tiny, /*with_student=*/true);
  expect_scores_of_full_forward(tiny, /*with_student=*/false);
  Generator generator = make_generator(tiny);
  EXPECT_THROW(generator.score({{prompt(4, 3), 0}}), storage::Error) << "the first follows nothing";
}

}  // namespace
}  // namespace hedgerow::worker
