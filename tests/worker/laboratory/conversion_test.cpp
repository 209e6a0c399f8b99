// What the conversions rest on (maps that are distilled, weights that are copied, sentences with
// padding), the verdict of an order, and the leak that is refused.
#include "worker/laboratory/studies/conversion.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>

#include <functional>
#include <string>

#include "storage/base/error.hpp"
#include "tests/worker/laboratory/usage_error.hpp"
#include "worker/laboratory/sentence_task.hpp"

namespace hedgerow::worker::laboratory {
namespace {

using ::testing::HasSubstr;

TransformerOptions tiny(const ScoreSpec& attention) {
  TransformerOptions options;
  options.vocab_size = kNumBytes;
  options.hidden_size = 16;
  options.num_heads = 2;
  options.attention = attention;
  return options;
}

at::Tensor ids_of(std::uint64_t seed, std::int64_t rows, std::int64_t length) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randint(0, kNumBytes, {rows, length}, generator, at::TensorOptions(at::kLong));
}

LanguageText text_of(const at::Tensor& bytes) {
  const std::int64_t held = bytes.numel() / 4;
  return {.train = bytes.narrow(0, 0, bytes.numel() - held),
          .held_out = bytes.narrow(0, bytes.numel() - held, held)};
}

// Catches: a parameter that is not copied, and one that is drawn from what the map has drawn
// before.
TEST(Conversion, ACopyOfTheTeacherHasItsLogits) {
  const Transformer teacher(tiny({}));
  TransformerOptions options = tiny({});
  options.seed = 5;
  const Transformer student(options);
  const at::Tensor ids = ids_of(1, 2, 9);
  EXPECT_FALSE(at::equal(student.logits(student.hidden(ids)), teacher.logits(teacher.hidden(ids))));
  student.copy_from(teacher);
  EXPECT_TRUE(at::equal(student.logits(student.hidden(ids)), teacher.logits(teacher.hidden(ids))));
  EXPECT_THAT(usage_error_of([&] { student.assign("layer.9.qkv", ids); }),
              HasSubstr("layer.9.qkv"));
}

// Catches: a distillation that trains the teacher's weights, or whose loss does not reach the maps.
TEST(Conversion, DistillationTrainsTheMapsAlone) {
  for (const bool causal : {true, false}) {
    for (const Conversion& conversion : paper_conversions(causal)) {
      if (!conversion.is_distilled) continue;
      const Transformer model(tiny(conversion.attention));
      at::Tensor is_token = at::ones({3, 12}, at::kBool);
      is_token.select(0, 1).narrow(0, 7, 5).fill_(false);
      const at::Tensor ids = ids_of(2, 3, 12);
      const at::Tensor mask = causal ? at::Tensor() : is_token;
      model.map_loss(ids, mask).backward();
      for (const at::Tensor& map : model.map_parameters())
        EXPECT_GT(map.grad().abs().sum().item<double>(), 0) << conversion.attention.name;
      std::size_t num_with_gradient = 0;
      for (const Transformer::Named& parameter : model.named())
        num_with_gradient += parameter.tensor.grad().defined() ? 1U : 0U;
      EXPECT_EQ(num_with_gradient, model.map_parameters().size());
      TrainingTask task;
      task.loss = [&](const Transformer& m, std::int64_t, std::int64_t, at::Generator&) {
        return m.map_loss(ids, mask);
      };
      task.score = [&](const Transformer& m) { return m.map_loss(ids, mask).item<double>(); };
      task.parameters = [](const Transformer& m) { return m.map_parameters(); };
      const Trial trial =
          train(model, task, {.steps = 20, .learning_rate = 1e-2, .warmup_steps = 1});
      EXPECT_LT(trial.final_score(), trial.curve.front().score) << conversion.attention.name;
    }
  }
}

// Catches: distilled weights that do not become the softmax they are shown, where they can.
TEST(Conversion, TheMapLossOfSoftmaxsOwnWeightsIsTheirEntropy) {
  ScoreSpec taylor;  // softmax itself, for scores as small as these
  taylor.score = Score::kProduct;
  taylor.map = Map::kTaylor;
  taylor.order = 4;
  const Transformer student(tiny(taylor)), teacher(tiny({}));
  student.copy_from(teacher);
  for (const Transformer::Named& parameter : student.named()) {
    if (parameter.name.ends_with("qkv")) parameter.tensor.detach().mul_(0.1);
  }
  teacher.copy_from(student);
  const at::Tensor ids = ids_of(3, 2, 10);
  EXPECT_NEAR(student.map_loss(ids).item<double>(), teacher.entropy(ids), 1e-3);
}

TEST(SentenceTask, PiecesFollowOneAnotherAndPaddingChangesNothing) {
  SentenceOptions options;
  options.least = 3;
  options.most = 7;
  options.score_pairs = 4;
  options.score_group = 2;
  const at::Tensor bytes = at::arange(200, at::kLong);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(4);
  const SentenceBatch batch = draw_sentences(bytes, 5, options, generator);
  for (std::int64_t pair = 0; pair < 5; ++pair) {
    const auto length = batch.is_token.select(0, 2 * pair).sum().item<std::int64_t>();
    EXPECT_EQ(batch.ids[2 * pair + 1][0].item<std::int64_t>(),
              batch.ids[2 * pair][length - 1].item<std::int64_t>() + 1);
  }
  SentenceOptions with_ends = options;
  with_ends.begin_token = 301;
  with_ends.end_token = 302;
  auto again = at::make_generator<at::CPUGeneratorImpl>(4);
  const SentenceBatch ended = draw_sentences(bytes, 5, with_ends, again);
  for (std::int64_t row = 0; row < 10; ++row) {
    const auto length = batch.is_token.select(0, row).sum().item<std::int64_t>();
    EXPECT_EQ(ended.is_token[row].sum().item<std::int64_t>(), length + 2);
    EXPECT_EQ(ended.ids[row][0].item<std::int64_t>(), 301);
    EXPECT_EQ(ended.ids[row][length + 1].item<std::int64_t>(), 302);
    EXPECT_TRUE(
        at::equal(ended.ids[row].narrow(0, 1, length), batch.ids[row].narrow(0, 0, length)));
    EXPECT_TRUE(ended.is_token[row].narrow(0, 0, length + 2).all().item<bool>());
  }
  ScoreSpec both_ways;
  both_ways.causal = false;
  const Transformer model(tiny(both_ways));
  SentenceBatch changed = batch;
  changed.ids = batch.ids.masked_fill(batch.is_token.logical_not(), 77);
  EXPECT_TRUE(at::allclose(embed_sentences(model, batch), embed_sentences(model, changed)));
  changed.is_token = batch.is_token.flip(1);
  EXPECT_THAT(usage_error_of([&] { (void)embed_sentences(model, changed); }), HasSubstr("padding"));
  options.score_group = 3;
  EXPECT_THAT(usage_error_of([&] { (void)sentence_task(text_of(bytes), options); }),
              HasSubstr("score_group"));
  const auto kept = similarity_kept(model, model, batch);
  EXPECT_NEAR(kept.at("rank").get<double>(), 1, 1e-12);
  EXPECT_EQ(kept.at("same_nearest").get<double>(), 1);
}

TEST(LanguageTask, ALayoutThatSeesItsTargetIsRefusedUnlessADemonstration) {
  ScoreSpec both_ways;
  both_ways.causal = false;
  const Transformer model(tiny(both_ways));
  LanguageOptions options;
  options.length = 8;
  const LanguageText text = text_of(ids_of(5, 1, 400).flatten());
  auto generator = at::make_generator<at::CPUGeneratorImpl>(6);
  const TrainingTask honest = language_task(text, options);
  EXPECT_THAT(usage_error_of([&] { (void)honest.score(model); }), HasSubstr("causal"));
  EXPECT_THAT(usage_error_of([&] { (void)honest.loss(model, 0, 2, generator); }),
              HasSubstr("causal"));
  options.is_demonstration = true;
  EXPECT_EQ(usage_error_of([&] { (void)language_task(text, options).score(model); }), "");
}

// A text of one byte stands for any model that knows its target.
TEST(LanguageTask, APerplexityUnderTwoIsRefusedUnlessADemonstration) {
  LanguageOptions options;
  options.length = 8;
  const LanguageText text = text_of(at::full({400}, 97, at::kLong));
  const TrainingOptions training{
      .steps = 40, .batch_size = 4, .learning_rate = 1e-2, .warmup_steps = 1};
  EXPECT_THAT(usage_error_of([&] {
                (void)train(Transformer(tiny({})), language_task(text, options), training);
              }),
              HasSubstr("sees its target"));
  options.is_demonstration = true;
  const Trial trial = train(Transformer(tiny({})), language_task(text, options), training);
  EXPECT_LT(trial.final_score(), 0.69);
}

TEST(Study, AnOrderIsUndecidedWhereRangesOverlapOrThereIsOneSeed) {
  const auto verdict = [](const std::vector<double>& lower, const std::vector<double>& higher) {
    return order_claim("", "", "", lower, higher).verdict;
  };
  EXPECT_EQ(verdict({1, 2}, {3, 4}), Verdict::kReproduced);
  EXPECT_EQ(verdict({3, 4}, {1, 3}), Verdict::kNot);
  EXPECT_EQ(verdict({1, 3}, {2, 4}), Verdict::kUndecided);
  EXPECT_EQ(verdict({1}, {2}), Verdict::kUndecided);
  EXPECT_EQ(verdict({}, {2, 4}), Verdict::kUndecided);
}

}  // namespace
}  // namespace hedgerow::worker::laboratory
