#include "storage/files/run_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "storage/base/error.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;

TEST(RunLayout, NamesAreThoseOfTheDesign) {
  const RunLayout layout("/runs/a");
  EXPECT_EQ(layout.journal_segment(7), fs::path("/runs/a/journal/000007.jsonl"));
  EXPECT_EQ(layout.snapshot(7), fs::path("/runs/a/journal/000007.snapshot.json"));
  EXPECT_EQ(RunLayout::tokens(DataStage::kFinetune), "tokens/finetune.h5");
  EXPECT_EQ(RunLayout::tokens({DataStage::kEvaluate, "wiki-2"}), "tokens/evaluate-wiki-2.h5");
  EXPECT_EQ(RunLayout::hidden_shard(3, 12, 41), "hidden/b0003/s00012.t41.h5");
  EXPECT_EQ(RunLayout::block_artifact(3, 41), "blocks/b0003/artifact.t41.safetensors");
  EXPECT_EQ(RunLayout::attempt_directory(41), "attempts/t41");
  EXPECT_EQ(RunLayout::student_directory(41), "student/t41");
  EXPECT_EQ(RunLayout::adapter_directory(41), "adapter/t41");
  EXPECT_EQ(RunLayout::evaluation("teacher", 41), "evaluate/teacher.t41.json");
  EXPECT_EQ(RunLayout::evaluation_piece("lora", 3, 41), "evaluate/lora.p03.t41.json");
  EXPECT_EQ(RunLayout::token_in_name("evaluate/lora.p03.t41.json"), 41U);
}

TEST(RunLayout, EveryNameGivesItsFencingTokenBack) {
  constexpr FencingToken kToken = 123'456'789'012'345;
  for (const std::string& name : {RunLayout::hidden_shard(3, 12, kToken),
                                  RunLayout::block_artifact(3, kToken),
                                  RunLayout::attempt_directory(kToken),
                                  RunLayout::attempt_directory(kToken) + "/metrics.jsonl",
                                  RunLayout::student_directory(kToken) + "/hedgerow.json",
                                  RunLayout::adapter_directory(kToken),
                                  RunLayout::evaluation("lora", kToken)}) {
    EXPECT_EQ(RunLayout::token_in_name(name), kToken) << name;
  }
}

TEST(RunLayout, OtherNamesHaveNoToken) {
  for (const char* name : {"tokens/transfer.h5",
                           "run.toml",
                           "a.t",
                           "x/t4x",
                           "x.t12y/z",
                           "t41",
                           "x.t99999999999999999999999.h5",
                           ""}) {
    EXPECT_EQ(RunLayout::token_in_name(name), 0U) << name;
  }
}

class ResolveTest : public ::testing::Test {
 protected:
  void expect_refused(const std::string& name) {
    try {
      (void)layout_.resolve(name);
      ADD_FAILURE() << "accepted " << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    }
  }
  void SetUp() override { fs::create_directories(layout_.root() / "hidden"); }
  tests::TemporaryDirectory directory_;
  RunLayout layout_{directory_ / "run"};
};

TEST_F(ResolveTest, NamesInsideResolveAlsoBeforeTheFileExists) {
  EXPECT_EQ(layout_.resolve("hidden/b0001/s00000.t1.h5"),
            layout_.root() / "hidden/b0001/s00000.t1.h5");
}

TEST_F(ResolveTest, RefusesNamesThatLeaveTheRunDirectory) {
  fs::create_directory_symlink(directory_.path(), layout_.root() / "link");
  fs::create_directories(directory_ / "run-other");  // shares the root's name as a prefix
  fs::create_directory_symlink(directory_ / "run-other", layout_.root() / "sibling");
  for (const char* name :
       {"", "/etc/passwd", "../x", "hidden/../../x", "hidden/..", "link/x", "sibling/x"}) {
    expect_refused(name);
  }
}

TEST_F(ResolveTest, RefusesNamesThatMeanTheDirectoryItselfOrAreNotPlain) {
  for (const char* name : {".", "./x", "hidden/./x", "hidden/", "hidden/.", "/"})
    expect_refused(name);
  expect_refused(std::string("hidden/x\0../../y", 16));  // the system would stop at the zero
  expect_refused("hidden/x\n");
  expect_refused("hidden/\x1b[2J");
}

TEST_F(ResolveTest, NamesThatNoFileCanHaveAreRefusedAndNotThrownAsSomethingElse) {
  expect_refused("hidden/" + std::string(5000, 'a'));
  expect_refused(std::string(300, 'a') + "/x");
  fs::create_symlink("circle", layout_.root() / "circle");
  expect_refused("circle/x");
}

TEST_F(ResolveTest, WhatARefusalShowsOfANameIsShortAndPrintable) {
  try {
    (void)layout_.resolve("\x1b]0;gone\x07" + std::string(100'000, 'a'));
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_LT(text.size(), 1000U);
    EXPECT_TRUE(std::ranges::none_of(text, [](char c) { return c >= 0 && c < ' '; })) << text;
  }
}

TEST_F(ResolveTest, RefusesALinkInAnyPlaceThatLeadsOutAlsoToAFileAndThroughAnotherLink) {
  std::ofstream(directory_ / "secret") << "s";
  fs::create_symlink(directory_ / "secret", layout_.root() / "hidden/s00000.t1.h5");
  expect_refused("hidden/s00000.t1.h5");
  fs::create_symlink(directory_ / "yet-to-come", layout_.root() / "hidden/s00001.t1.h5");
  expect_refused("hidden/s00001.t1.h5");
  fs::create_directory_symlink("..", layout_.root() / "hidden/up");
  EXPECT_NO_THROW((void)layout_.resolve("hidden/up/x")) << "still inside";
  fs::create_directory_symlink("hidden/up/..", layout_.root() / "around");
  expect_refused("around/x");
}

TEST_F(ResolveTest, ARunDirectoryReachedThroughALinkStillResolves) {
  fs::create_directory_symlink(layout_.root(), directory_ / "alias");
  const RunLayout alias(directory_ / "alias");
  EXPECT_EQ(alias.resolve("hidden/x"), directory_ / "alias" / "hidden/x");
}

TEST(RunLayout, KnowsItsOwnDirectoriesFromThoseOfOthers) {
  for (const char* own : {"hidden/b0003", "blocks/b12345"})
    EXPECT_TRUE(RunLayout::is_own_directory(own)) << own;
  for (const char* other :
       {"hidden", "hidden/b", "hidden/b0003x", "hidden/notes", "student/t4", "x/b0003"})
    EXPECT_FALSE(RunLayout::is_own_directory(other)) << other;
}

TEST(RunLayout, TokensFilesThatAreThereAreNamedWithThoseOfTextsLast) {
  const tests::TemporaryDirectory root;
  std::filesystem::create_directories(root / "tokens");
  for (const char* name :
       {"evaluate-b.h5", "evaluate.h5", "evaluate-a.h5", "transfer.h5", "evaluate-a.h5.partial"})
    std::ofstream(root / "tokens" / name) << "x";
  EXPECT_EQ(RunLayout(root.path()).existing_tokens(),
            (std::vector<std::string>{"tokens/transfer.h5",
                                      "tokens/evaluate.h5",
                                      "tokens/evaluate-a.h5",
                                      "tokens/evaluate-b.h5"}));
  EXPECT_TRUE(RunLayout(root / "elsewhere").existing_tokens().empty());
}

}  // namespace
}  // namespace hedgerow::storage
