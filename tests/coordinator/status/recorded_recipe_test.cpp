// run.toml against the recipe in the journal: what check, run and status say of a damaged one, and
// how it comes back.
#include "coordinator/status/recorded_recipe.hpp"

#include <gmock/gmock.h>

#include "coordinator/cli/run/inspection.hpp"
#include "coordinator/state/fold.hpp"
#include "coordinator/status/status.hpp"
#include "storage/files/file.hpp"
#include "tests/coordinator/cli/fake_console.hpp"
#include "tests/coordinator/cli/small_run.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class RecordedRecipeTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string text() const { return storage::read_text(run_.layout.recipe()); }
  void write(const std::string& text) const { std::ofstream(run_.layout.recipe()) << text; }
  void edit(const std::string& from, const std::string& to) const {
    std::string changed = text();
    const std::size_t at = changed.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write(changed.replace(at, from.size(), to));
  }
  [[nodiscard]] State state() const { return fold(storage::replay_journal(run_.layout)).state; }
  // The recipe as a person keeps it, changed.
  [[nodiscard]] std::string recipe_with(const std::function<void(storage::Recipe&)>& change) const {
    storage::Recipe recipe = *recorded_recipe(run_.layout, state());
    change(recipe);
    std::ofstream(run_.scratch / "changed.toml") << recipe.to_toml();
    return run_.scratch / "changed.toml";
  }
  // As far as its tokens, which cannot be made here.
  [[nodiscard]] Answer run(std::vector<std::string> more = {}) const {
    std::ofstream(run_.scratch / "make_tokens.py") << "exit 1\n";
    FakeConsole console;
    console.variables["HEDGEROW_HUGGINGFACE"] = run_.scratch.path().string();
    console.variables["HEDGEROW_PYTHON"] = "/bin/sh";
    console.variables["HEDGEROW_WORKER"] = "/bin/true";
    std::vector<std::string> arguments{"run", "--run", run_.directory()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_line(std::move(arguments), console);
  }
  [[nodiscard]] Answer check(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"check", "--run", run_.directory()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_line(std::move(arguments));
  }

  SmallRun run_;
};

TEST_F(RecordedRecipeTest, AFlippedBitInAnyByteOfRunTomlIsFoundAndPutBack) {
  const std::string sound = text();
  const State recorded = state();
  ASSERT_EQ(recipe_problem(run_.layout, recorded), std::nullopt);
  for (std::size_t byte = 0; byte < sound.size(); ++byte) {
    std::string damaged = sound;
    damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << (byte * 3 % 8)));
    write(damaged);
    ASSERT_NE(recipe_problem(run_.layout, recorded), std::nullopt) << "byte " << byte;
    // A worker has no journal. Of the first line's own words, which say nothing, it may miss one.
    if (byte > sound.find('\n')) {
      ASSERT_THROW(static_cast<void>(storage::Recipe::load_of_run(run_.layout.recipe())),
                   storage::Error)
          << "byte " << byte;
    }
  }
  EXPECT_TRUE(put_back_recipe(run_.layout, recorded));
  EXPECT_EQ(text(), sound);
  EXPECT_FALSE(put_back_recipe(run_.layout, recorded));
}

TEST_F(RecordedRecipeTest, ARunTomlThatWasCutAnywhereIsRefusedAlsoWithoutTheJournal) {
  const std::string sound = text();
  for (std::size_t length = 0; length < sound.size(); length += 3) {
    write(sound.substr(0, length));
    ASSERT_THROW(static_cast<void>(storage::Recipe::load_of_run(run_.layout.recipe())),
                 storage::Error)
        << "cut at " << length;
  }
}

TEST_F(RecordedRecipeTest, CheckRunAndStatusNameTheFileTheFieldAndBothValues) {
  const std::string sound = text();
  for (const auto& [from, to, said] :
       {std::tuple("learning_rate = 0.01 ",
                   "learning_rate = 0.03 ",
                   "transfer.learning_rate: 0.01 -> 0.03"),
        std::tuple(
            "mse_factor = 1000.0", "mse_factor = 3000.0", "transfer.mse_factor: 1000.0 -> 3000.0"),
        std::tuple("alpha = 16.0", "alpha = 17.0", "finetune.alpha: 16.0 -> 17.0"),
        std::tuple("seed = 0", "seed = 1", "seed: 0 -> 1"),
        std::tuple("lease_s = 30", "lease_s = 31", "workers.lease_s: 30 -> 31"),
        std::tuple("learning_rate = 0.01 ", "learning_rate = 0,01 ", "cannot be read")}) {
    edit(from, to);
    for (const std::string command : {"check", "run", "status"}) {
      const Answer answer =
          command == "run" ? run() : run_line({command, "--run", run_.directory()});
      EXPECT_THAT(answer.out + answer.err, HasSubstr(run_.layout.recipe().string())) << command;
      EXPECT_THAT(answer.out + answer.err, HasSubstr(said)) << command;
      EXPECT_THAT(answer.out + answer.err, HasSubstr("check --repair")) << command;
      EXPECT_EQ(answer.code, command == "status" ? 0 : 1) << command;
    }
    EXPECT_EQ(check({"--repair"}).code, 0);
    EXPECT_EQ(text(), sound);
    EXPECT_EQ(check().code, 0);
  }
}

TEST_F(RecordedRecipeTest, AMissingRunTomlIsPutBackFromTheJournal) {
  const std::string sound = text();
  fs::remove(run_.layout.recipe());
  EXPECT_THAT(run().err, HasSubstr("check --repair"));
  EXPECT_EQ(check().code, 1);
  EXPECT_EQ(check({"--repair"}).code, 0);
  EXPECT_EQ(text(), sound);
}

TEST_F(RecordedRecipeTest, TheRecipeThatTheRunWasBegunWithIsNotBlamedForADamagedRunToml) {
  const std::string sound = text();
  edit("learning_rate = 0.01 ", "learning_rate = 0.03 ");
  const Answer answer = run({"--recipe", recipe_with([](auto&) {})});
  EXPECT_THAT(answer.err, HasSubstr("transfer.learning_rate: 0.01 -> 0.03"));
  EXPECT_THAT(answer.err, HasSubstr("it was put back"));
  EXPECT_EQ(text(), sound);
}

TEST_F(RecordedRecipeTest, ASafeChangeIsRecordedAndExplained) {
  static_cast<void>(run({"--recipe", recipe_with([](auto& r) { r.workers.lease_s = 40; })}));
  EXPECT_EQ(recipe_problem(run_.layout, state()), std::nullopt);
  EXPECT_EQ(storage::Recipe::load(run_.layout.recipe()).workers.lease_s, 40);
  EXPECT_EQ(recorded_recipe(run_.layout, state())->workers.lease_s, 40);
  EXPECT_THAT(run_line({"explain", "--all", "--run", run_.directory()}).out,
              HasSubstr("recipe changed: workers.lease_s: 30 -> 40"));
  // Its own run.toml is no other recipe.
  EXPECT_THAT(run({"--recipe", run_.layout.recipe()}).err, Not(HasSubstr("recipe changed")));
}

TEST_F(RecordedRecipeTest, AChangeOfWhichOnlyTheRecordWasWrittenIsWrittenToTheEnd) {
  const std::string before = text();
  storage::Recipe changed = *recorded_recipe(run_.layout, state());
  changed.workers.lease_s = 40;
  run_.append({RecipeRecorded{changed.to_run_toml(), {"workers.lease_s: 30 -> 40"}}});
  EXPECT_EQ(recipe_problem(run_.layout, state()), std::nullopt) << "killed, not damaged";
  EXPECT_EQ(recipe_of_run(run_.layout, state()).workers.lease_s, 40);
  run_.append({Noted{"another term"}});
  EXPECT_EQ(recipe_problem(run_.layout, state()), std::nullopt);
  EXPECT_TRUE(put_back_recipe(run_.layout, state()));
  EXPECT_EQ(text(), changed.to_run_toml());
}

TEST_F(RecordedRecipeTest, IfTheRecordOfTheTextIsDamagedTheHashOfLaterTermsStillKnowsTheFile) {
  run_.append({Noted{"another term"}});
  const std::string segment = fs::relative(run_.layout.journal_segment(1), run_.layout.root());
  run_.flip_byte(segment, storage::read_text(run_.layout.journal_segment(1)).find("learning_rate"));
  EXPECT_EQ(state().recipe.text, "");
  EXPECT_EQ(recipe_problem(run_.layout, state()), std::nullopt);
  const std::string sound = text(), kept = run_.scratch / "kept.toml";
  std::ofstream(kept) << sound;
  edit("alpha = 16.0", "alpha = 17.0");
  for (const bool is_there : {true, false}) {
    if (!is_there) fs::remove(run_.layout.recipe());
    EXPECT_THAT(*recipe_problem(run_.layout, state()), HasSubstr("run --recipe FILE"));
    const Answer repaired = check({"--repair"});
    EXPECT_EQ(repaired.code, 1) << "nobody has the text";
    EXPECT_THAT(repaired.out + repaired.err, HasSubstr("run --recipe FILE"));
    std::ofstream(run_.scratch / "other.toml")
        << std::string(sound).replace(sound.find("alpha = 16.0"), 12, "alpha = 18.0");
    EXPECT_THAT(run({"--recipe", run_.scratch / "other.toml"}).err, HasSubstr("another recipe"));
    EXPECT_THAT(run({"--recipe", kept}).err, HasSubstr("written again from " + kept));
    EXPECT_EQ(text(), sound);
    EXPECT_EQ(recipe_problem(run_.layout, state()), std::nullopt);
    edit("alpha = 16.0", "alpha = 17.0");
  }
}

TEST_F(RecordedRecipeTest, ARunTomlThatIsChangedBeforeTheFirstTermIsWrittenAgain) {
  const std::string sound = text(), kept = run_.scratch / "kept.toml";
  std::ofstream(kept) << sound;
  fs::remove_all(run_.layout.journal_directory());
  edit("alpha = 16.0", "alpha = 17.0");
  for (const Answer& answer : {check(), check({"--repair"}), run()}) {
    EXPECT_EQ(answer.code, 1);
    EXPECT_THAT(answer.err, HasSubstr("the run has computed nothing yet"));
    EXPECT_THAT(answer.err, HasSubstr("run --recipe FILE"));
  }
  EXPECT_THAT(run({"--recipe", kept}).err, HasSubstr("written again from " + kept));
  EXPECT_EQ(storage::Recipe::load_of_run(run_.layout.recipe()).finetune.alpha, 16.0);
}

// A snapshot stands for the records before it.
TEST_F(RecordedRecipeTest, ASnapshotKeepsTheRecipe) {
  State before = state();
  EXPECT_EQ(state_from_json(state_to_json(before)).recipe, before.recipe);
  EXPECT_FALSE(before.recipe.text.empty());
}

TEST_F(RecordedRecipeTest, CheckIsContentOnceATermHasGoneOnWithoutADamagedRecord) {
  const std::string segment = fs::relative(run_.layout.journal_segment(1), run_.layout.root());
  run_.flip_byte(segment,
                 storage::read_text(run_.layout.journal_segment(1)).find("shard_committed"));
  const Answer found = check();
  EXPECT_EQ(found.code, 1);
  EXPECT_THAT(found.out, HasSubstr("to be settled"));
  EXPECT_EQ(check({"--repair"}).code, 0);
  const Answer after = check();
  EXPECT_EQ(after.code, 0) << after.out;
  EXPECT_THAT(after.out, HasSubstr("settled by a later term"));
  EXPECT_THAT(read_status(run_.layout).warnings, ::testing::IsEmpty());
}

TEST_F(RecordedRecipeTest, ARunThatLostItsJournalSaysSoAndDoesNotBeginAgain) {
  fs::create_directories(run_.layout.root() / "attempts");
  fs::remove_all(run_.layout.journal_directory());
  const Answer answer = run();
  EXPECT_EQ(answer.code, 1);
  EXPECT_THAT(answer.err, HasSubstr("no journal/"));
  EXPECT_THAT(run_line({"status", "--run", run_.directory()}).out, HasSubstr("no journal/"));
}

// Everything is done, and what it came to is on disk.
class FinishedRunTest : public RecordedRecipeTest {
 protected:
  FinishedRunTest() {
    for (const auto stage : {storage::DataStage::kFinetune, storage::DataStage::kEvaluate})
      std::ofstream(run_.layout.resolve(storage::RunLayout::tokens(stage))) << "as they were";
    fs::create_directories(run_.layout.root() / "adapter/t5");
    std::ofstream(run_.layout.root() / adapter_) << "an adapter";
    run_.append({Granted{TaskId::finetune(), 5, "mpi", 1, "cpu"},
                 TaskDone{5,
                          {{adapter_, 10, storage::hash_file(run_.layout.root() / adapter_)}},
                          nlohmann::json::object()}});
  }
  const std::string adapter_ = "adapter/t5/adapter_model.safetensors";
};

TEST_F(FinishedRunTest, RunNamesADamagedOrMissingResultAndCheckRepairLetsItBeMadeAgain) {
  ASSERT_EQ(run().code, 0) << run().err;
  run_.flip_byte(adapter_, 3);
  for (const bool is_there : {true, false}) {
    if (!is_there) fs::remove(run_.layout.root() / adapter_);
    const Answer answer = run();
    EXPECT_EQ(answer.code, 1);
    EXPECT_THAT(answer.err, HasSubstr(adapter_));
    EXPECT_THAT(answer.err, HasSubstr("check --repair"));
    EXPECT_THAT(answer.err, Not(HasSubstr("everything is done already")));
  }
  EXPECT_EQ(check({"--repair"}).code, 0);
  EXPECT_EQ(read_status(run_.layout).state, "stopped");
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
