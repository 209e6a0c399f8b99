// The tasks, schedules, verdicts, and a trial that is the same whenever it is run.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "storage/base/error.hpp"
#include "worker/laboratory/language_task.hpp"
#include "worker/laboratory/recall_task.hpp"
#include "worker/laboratory/study.hpp"

namespace hedgerow::worker::laboratory {
namespace {

// Catches: a question whose answer does not stand in the sequence.
TEST(RecallTask, EveryAskedKeyHasItsValueBefore) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const RecallBatch batch = draw_recall({}, 6, generator);
  ASSERT_EQ(batch.ids.size(1), 127);
  EXPECT_TRUE(batch.is_asked.select(1, 126).all().item<bool>());
  for (std::int64_t b = 0; b < 6; ++b) {
    for (std::int64_t t = 0; t < 127; ++t) {
      if (!batch.is_asked[b][t].item<bool>()) continue;
      ASSERT_EQ(t % 2, 0);
      bool found = false;
      for (std::int64_t s = 0; s < t; s += 2) {
        if (!batch.ids[b][s].eq(batch.ids[b][t]).item<bool>()) continue;
        found = true;
        ASSERT_TRUE(batch.ids[b][s + 1].eq(batch.targets[b][t]).item<bool>());
      }
      ASSERT_TRUE(found) << "sequence " << b << ", token " << t;
    }
  }
}

// Catches: bytes above 127 as negative ids, and a held-out end that is also trained on.
TEST(LanguageTask, BytesAreIdsAndTheEndIsHeldOut) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("hedgerow_language_" + std::to_string(getpid()) + ".txt");
  std::ofstream(path, std::ios::binary) << std::string(90, 'a') << std::string(10, '\xff');
  LanguageOptions options;
  options.length = 4;
  options.held_out = 0.1;
  const LanguageText text = read_language(path, options);
  EXPECT_TRUE(text.train.eq('a').all().item<bool>());
  EXPECT_EQ(text.train.numel(), 90);
  EXPECT_TRUE(text.held_out.eq(255).all().item<bool>());
  options.length = 128;
  EXPECT_THROW((void)read_language(path, options), storage::Error);
  std::filesystem::remove(path);
  EXPECT_THROW((void)read_language(path, options), storage::Error);
}

TEST(Training, SchedulesRiseAndFallWhereTheySay) {
  TrainingOptions options;
  options.steps = 100;
  options.warmup_steps = 10;
  options.learning_rate = 1;
  EXPECT_DOUBLE_EQ(options.learning_rate_at(0), 0.1);
  EXPECT_DOUBLE_EQ(options.learning_rate_at(99), 1);
  options.schedule = RateSchedule::kCosine;
  EXPECT_DOUBLE_EQ(options.learning_rate_at(10), 1);
  EXPECT_NEAR(options.learning_rate_at(100), 0.1, 1e-12);
  options.schedule = RateSchedule::kOneCycle;
  EXPECT_NEAR(options.learning_rate_at(0), 1.0 / 25, 1e-12);
  EXPECT_DOUBLE_EQ(options.learning_rate_at(25), 1);
  EXPECT_LT(options.learning_rate_at(99), 1e-2);
}

TEST(Training, ATrialIsTheSameWheneverItIsRun) {
  RecallOptions recall;
  recall.length = 16;
  recall.score_batch = 8;
  const auto run = [&] {
    TransformerOptions model;
    model.hidden_size = 16;
    model.num_heads = 2;
    const Transformer built(model);
    TrainingOptions training;
    training.steps = 4;
    training.batch_size = 4;
    training.score_every = 2;
    const Trial trial = train(built, recall_task(recall), training);
    return std::pair(trial.curve.back().score, built.parameters().front().detach().clone());
  };
  const auto first = run(), second = run();
  EXPECT_EQ(first.first, second.first);
  EXPECT_TRUE(at::equal(first.second, second.second));
}

TEST(Study, AVerdictIsThatOfAllSeedsOrUndecided) {
  EXPECT_EQ(verdict_of({true, true, true}), Verdict::kReproduced);
  EXPECT_EQ(verdict_of({false, false, false}), Verdict::kNot);
  EXPECT_EQ(verdict_of({true, false, true}), Verdict::kUndecided);
  EXPECT_EQ(verdict_of({}), Verdict::kUndecided);
  EXPECT_DOUBLE_EQ(rank_correlation({1, 2, 3, 4}, {9, 7, 3, 1}), -1);
}

TEST(Study, TheTableHasEightAndAllAreBuilt) {
  EXPECT_EQ(all_studies().size(), 8);
  for (const Study& study : all_studies()) {
    EXPECT_NE(study.run, nullptr) << study.name;
    EXPECT_FALSE(study.published().empty()) << study.name;
  }
  EXPECT_EQ(find_study("recall").paper, std::string("000"));
  try {
    (void)find_study("nothing");
    FAIL() << "an unknown study was found";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
  }
}

}  // namespace
}  // namespace hedgerow::worker::laboratory
