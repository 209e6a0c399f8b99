// A run's history: what is appended is what is read, however its writer ended.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "storage/history/history_file.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kColumns = {"mse", "linear_share"};

HistoryRow row(std::int64_t step, float mse) {
  return {step, 100.0 + static_cast<double>(step), {mse, 0.5F}};
}

class HistoryFile : public testing::Test {
 protected:
  History read() const {
    HistoryReader reader(layout_);
    static_cast<void>(reader.poll());
    return reader.history();
  }
  static std::vector<std::int64_t> steps(const HistorySeries& series) {
    std::vector<std::int64_t> steps;
    for (const HistoryRow& row : series.rows) steps.push_back(row.step);
    return steps;
  }

  tests::TemporaryDirectory directory_;
  RunLayout layout_{directory_.path()};
};

TEST_F(HistoryFile, ARunWithoutOneHasNothing) {
  EXPECT_TRUE(read().series.empty());
  HistoryWriter(layout_, 1).flush();
  EXPECT_FALSE(fs::exists(layout_.history_directory())) << "nothing to write makes no file";
}

TEST_F(HistoryFile, WhatIsAppendedIsReadWhileItGrows) {
  HistoryWriter writer(layout_, 1);
  HistoryReader reader(layout_);
  writer.offer("layer/0", kColumns, row(0, 2.0F));
  EXPECT_TRUE(reader.poll().empty()) << "before the flush";
  writer.append(
      HistoryAttempt{.token = 7, .task = "transfer/b0000", .worker = "w\xff", .host = "h"});
  writer.append(HistoryEvent{5.0, "run", "noted", "text"});
  writer.append(
      HistoryAttention{.layer = 3, .head = 1, .rows = 1, .columns = 1, .softmax = "AA=="});
  writer.note_metrics_read(7, 99);
  writer.flush();
  const HistoryNews news = reader.poll();
  EXPECT_EQ(news.rows.at("layer/0").front().values.front(), 2.0F);
  EXPECT_EQ(news.attempts, std::vector<std::uint64_t>{7});
  EXPECT_EQ(news.events.front().text, "text");
  EXPECT_EQ(reader.history().attempts.at(7).worker, "w\xEF\xBF\xBD")
      << "what is no UTF-8 is replaced";
  EXPECT_EQ(reader.history().attention.at({3, 1}).softmax, "AA==");
  EXPECT_EQ(reader.history().metrics_read.at(7), 99U);
  writer.offer("layer/0", kColumns, {1, 101.0, {NAN, 0.25F}});
  writer.flush();
  EXPECT_TRUE(std::isnan(reader.poll().rows.at("layer/0").front().values.front()));
  EXPECT_EQ(steps(reader.history().series.at("layer/0")), (std::vector<std::int64_t>{0, 1}));
}

TEST_F(HistoryFile, ANextTermGoesOn) {
  HistoryWriter first(layout_, 1);
  first.offer("layer/0", kColumns, row(0, 2.0F));
  first.offer("layer/0", kColumns, row(20, 1.0F));
  first.flush();
  HistoryWriter second(layout_, 2);
  EXPECT_EQ(second.history().series.at("layer/0").rows.size(), 2U);
  second.offer("layer/0", kColumns, row(40, 0.5F));
  second.flush();
  EXPECT_EQ(steps(read().series.at("layer/0")), (std::vector<std::int64_t>{0, 20, 40}));
  HistoryWriter third(layout_, 2);  // a run that is done has no new term
  third.offer("layer/0", kColumns, row(60, 0.5F));
  third.flush();
  EXPECT_EQ(steps(read().series.at("layer/0")), (std::vector<std::int64_t>{0, 20, 40, 60}))
      << "a segment has one writer, and they are read in their order";
}

TEST_F(HistoryFile, AnAttemptThatGoesOnFromACheckpointReplacesWhatCameAfterIt) {
  HistoryWriter writer(layout_, 1);
  for (const int step : {0, 20, 40, 60}) writer.offer("layer/0", kColumns, row(step, 1.0F));
  writer.offer("layer/0", kColumns, row(40, 9.0F));
  writer.flush();
  const History history = read();
  EXPECT_EQ(steps(history.series.at("layer/0")), (std::vector<std::int64_t>{0, 20, 40}));
  EXPECT_EQ(history.series.at("layer/0").rows.back().values.front(), 9.0F);
}

TEST_F(HistoryFile, OtherColumnsBeginASeriesAgain) {
  HistoryWriter writer(layout_, 1);
  writer.offer("finetune", kColumns, row(1, 1.0F));
  writer.offer("other", kColumns, row(1, 1.0F));
  writer.offer("finetune", {"loss"}, {2, 0.0, {3.0F}});
  writer.offer("other", kColumns, row(2, 4.0F));
  writer.flush();
  const History history = read();
  EXPECT_EQ(history.series.at("finetune").columns, std::vector<std::string>{"loss"});
  EXPECT_EQ(history.series.at("finetune").rows.size(), 1U);
  EXPECT_EQ(history.series.at("other").rows.back().values.front(), 4.0F);
}

TEST_F(HistoryFile, AColumnThatComesLaterLeavesTheRowsBeforeItAsTheyAre) {
  {
    HistoryWriter writer(layout_, 1);
    writer.offer("layer/0", kColumns, {0, 1.0, {2.0F, 0.5F}});
    writer.flush();
  }
  HistoryWriter writer(layout_, 2);
  writer.offer("layer/0", {"linear_share", "entropy", "mse"}, {20, 2.0, {0.4F, 3.0F, 1.0F}});
  writer.flush();
  for (const History& history : {writer.history(), read()}) {
    const HistorySeries& series = history.series.at("layer/0");
    EXPECT_EQ(series.columns, (std::vector<std::string>{"linear_share", "entropy", "mse"}));
    ASSERT_EQ(series.rows.size(), 2U);
    EXPECT_EQ(series.rows[0].values[0], 0.5F);
    EXPECT_TRUE(std::isnan(series.rows[0].values[1]));
    EXPECT_EQ(series.rows[0].values[2], 2.0F);
    EXPECT_EQ(series.rows[1].values, (std::vector<float>{0.4F, 3.0F, 1.0F}));
  }
}

TEST_F(HistoryFile, ALongSeriesIsThinnedEvenlyAndKeepsItsFirstAndItsLastRow) {
  constexpr int kSteps = 100'000;
  {
    HistoryWriter writer(layout_, 1);
    for (int step = 0; step <= kSteps; ++step) {
      writer.offer("layer/0", kColumns, row(step, 1.0F));
      if (step % 100 == 0) writer.flush();
    }
    writer.take_last("layer/0");
    writer.flush();
  }
  const HistorySeries series = read().series.at("layer/0");
  EXPECT_LE(series.rows.size(), 2 * HistorySeries::kMaxRows);
  EXPECT_GE(series.rows.size(), HistorySeries::kMaxRows);
  EXPECT_EQ(series.rows.front().step, 0);
  EXPECT_EQ(series.rows.back().step, kSteps);
  for (std::size_t i = 2; i + 1 < series.rows.size(); ++i)
    ASSERT_EQ(series.rows[i].step - series.rows[i - 1].step,
              series.rows[1].step - series.rows[0].step);
  // kMaxRows more for each doubling.
  EXPECT_LT(fs::file_size(layout_.history_segment(1)), 10 * HistorySeries::kMaxRows * 48U);
}

// What a writer that was killed at any moment leaves, and a file system that lost the end.
TEST_F(HistoryFile, ASegmentThatIsCutAnywhereLosesNoWholeFrame) {
  HistoryWriter writer(layout_, 1);
  std::vector<std::uintmax_t> ends;
  for (const int step : {0, 1, 2, 3}) {
    writer.offer("layer/0", kColumns, row(step, 1.0F));
    writer.flush();
    ends.push_back(fs::file_size(layout_.history_segment(1)));
  }
  const fs::path path = layout_.history_segment(1);
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  for (std::size_t size = whole.size(); size-- > 0;) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    const History history = read();
    const auto found = history.series.find("layer/0");
    const std::size_t rows = found == history.series.end() ? 0 : found->second.rows.size();
    const auto expected = static_cast<std::size_t>(
        std::count_if(ends.begin(), ends.end(), [&](std::uintmax_t end) { return end <= size; }));
    ASSERT_EQ(rows, expected) << "cut to " << size << " bytes";
  }
}

TEST_F(HistoryFile, AFlippedByteEndsItsSegmentAndNoOther) {
  for (const std::uint64_t term : {1U, 2U}) {
    HistoryWriter writer(layout_, term);
    for (int i = 0; i < 3; ++i)
      writer.offer("layer/0", kColumns, row(static_cast<std::int64_t>(term) * 10 + i, 1.0F));
    writer.flush();
  }
  std::fstream file(layout_.history_segment(1), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-3, std::ios::end);
  file.put('\x55');
  file.close();
  EXPECT_EQ(steps(read().series.at("layer/0")), (std::vector<std::int64_t>{10, 11, 20, 21, 22}));
}

}  // namespace
}  // namespace hedgerow::storage
