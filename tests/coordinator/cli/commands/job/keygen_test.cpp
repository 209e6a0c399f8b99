// keygen as people use it, and what run says about keys before anything computes.
#include "coordinator/wire/coordinator_file.hpp"
#include "coordinator/wire/run_keys.hpp"
#include "storage/recipe/recipe.hpp"
#include "tests/coordinator/cli/fake_console.hpp"
#include "tests/coordinator/cli/small_run.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;

class Keygen : public ::testing::Test {
 protected:
  [[nodiscard]] std::string run() const { return directory_ / "run"; }
  [[nodiscard]] storage::RunLayout layout() const { return storage::RunLayout(run()); }

  tests::TemporaryDirectory directory_;
};

TEST_F(Keygen, MakesTheKeysOfARunThatIsYetToComeAndShowsPublicOnesAlone) {
  const Answer answer = run_line({"keygen", "--run", run(), "--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  ASSERT_EQ(answer.json.size(), 1U);
  EXPECT_EQ(answer.json[0]["directory"], layout().keys_directory().string());
  EXPECT_EQ(answer.json[0]["public_keys"].size(), 2U);
  EXPECT_EQ(answer.json[0]["written"].size(), 6U);
  const Answer text = run_line({"keygen", "--run", run(), "--rotate", "-v"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("public key of worker: "), std::string::npos) << text.out;
  for (const auto& secret : {wire::secret_key_file(layout(), "coordinator"),
                             wire::secret_key_file(layout(), "worker"),
                             wire::http_secret_file(layout())}) {
    const std::string now = wire::read_secret_file(secret);
    for (const std::string& shown : {answer.out, answer.err, text.out, text.err})
      EXPECT_EQ(shown.find(now), std::string::npos) << secret;
  }
}

TEST_F(Keygen, KeysThatAreThereAreKeptUnlessRotateSaysOtherwise) {
  ASSERT_EQ(run_line({"keygen", "--run", run()}).code, 0);
  const auto before = wire::read_worker_keys(layout());
  const Answer again = run_line({"keygen", "--run", run()});
  EXPECT_EQ(again.code, 2);
  EXPECT_NE(again.err.find("has these keys already; add a pair with --worker NAME, or put new ones "
                           "in their place with --rotate"),
            std::string::npos)
      << again.err;
  const Answer added = run_line({"keygen", "--run", run(), "--worker", "a", "--worker", "b"});
  EXPECT_EQ(added.code, 0) << added.err;
  EXPECT_EQ(wire::read_worker_keys(layout()), before);
  EXPECT_EQ(wire::read_allowed_keys(layout()).size(), 3U);
  EXPECT_EQ(run_line({"keygen", "--run", run(), "--rotate"}).code, 0);
  EXPECT_NE(wire::read_worker_keys(layout()), before);
  EXPECT_EQ(wire::read_allowed_keys(layout()).size(), 3U) << "all three pairs, and no old key";
  EXPECT_EQ(run_line({"keygen", "--run", run(), "--worker", "../x"}).code, 2);
}

// Workers that come while the coordinator has other keys, or none, would turn away from it.
TEST_F(Keygen, TheCoordinatorsOwnKeysDoNotChangeUnderARunThatLives) {
  const SmallRun small;
  wire::CoordinatorFile file{.host = wire::this_host(),
                             .process = *wire::process_with(::getppid()),
                             .term = 3,
                             .endpoint = "tcp://127.0.0.1:1",
                             .started_at = "2026-11-21T12:00:00.000Z",
                             .children = {}};
  wire::write_coordinator_file(small.layout, file);
  const Answer held = run_line({"keygen", "--run", small.directory()});
  EXPECT_EQ(held.code, 2);
  EXPECT_NE(held.err.find("'hedgerow stop' ends it"), std::string::npos) << held.err;
  EXPECT_FALSE(wire::has_keys(small.layout));
  fs::remove(small.layout.coordinator_file());
  ASSERT_EQ(run_line({"keygen", "--run", small.directory()}).code, 0);
  file.public_key = std::string(40, 'k');
  wire::write_coordinator_file(small.layout, file);
  EXPECT_EQ(run_line({"keygen", "--run", small.directory(), "--rotate"}).code, 2);
  const Answer worker =
      run_line({"keygen", "--run", small.directory(), "--worker", "worker", "--rotate"});
  EXPECT_EQ(worker.code, 0) << worker.err;
  EXPECT_NE(worker.err.find("SIGHUP: 'kill -HUP " + std::to_string(file.process.pid) + "'"),
            std::string::npos)
      << worker.err;
}

class RunWithKeysCommand : public ::testing::Test {
 protected:
  std::string recipe_bound_to(const std::string& bind) {
    storage::Recipe recipe = storage::Recipe::load(small_.layout.recipe());
    recipe.workers.bind = bind;
    std::ofstream(small_.scratch / "bound.toml") << recipe.to_toml();
    return small_.scratch / "bound.toml";
  }

  SmallRun small_;
};

TEST_F(RunWithKeysCommand, AnAddressThatOthersReachIsRefusedInOneSentenceBeforeAnythingIsWritten) {
  const std::string fresh = small_.scratch / "fresh";
  const Answer answer = run_line({"run", "--run", fresh, "--recipe", recipe_bound_to("0.0.0.0")});
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.err.find("workers.bind = \"0.0.0.0\" lets other hosts connect, and " + fresh +
                            " has no keys to tell its workers from strangers; make them with "
                            "'hedgerow keygen --run " +
                            fresh + "', or bind 127.0.0.1"),
            std::string::npos)
      << answer.err;
  EXPECT_FALSE(fs::exists(fresh));
  const std::string before = storage::read_text(small_.layout.recipe());
  EXPECT_EQ(
      run_line({"run", "--run", small_.directory(), "--recipe", recipe_bound_to("0.0.0.0")}).code,
      2);
  EXPECT_EQ(storage::read_text(small_.layout.recipe()), before);
}

TEST_F(RunWithKeysCommand, ARunBeginsInADirectoryThatHoldsNothingButKeys) {
  const std::string fresh = small_.scratch / "fresh";
  ASSERT_EQ(run_line({"keygen", "--run", fresh}).code, 0);
  FakeConsole console;  // without a tokenizer it gets no further
  console.variables["HEDGEROW_HUGGINGFACE"] = (small_.scratch / "absent").string();
  const Answer answer =
      run_line({"run", "--run", fresh, "--recipe", recipe_bound_to("*")}, console);
  EXPECT_TRUE(fs::exists(fs::path(fresh) / "run.toml")) << answer.err;
  EXPECT_EQ(storage::Recipe::load(fs::path(fresh) / "run.toml").workers.bind, "*");
  fs::remove(fs::path(fresh) / "run.toml");
  std::ofstream(fs::path(fresh) / "notes") << "mine";
  const Answer other = run_line({"run", "--run", fresh, "--recipe", recipe_bound_to("*")}, console);
  EXPECT_NE(other.err.find("holds other files"), std::string::npos) << other.err;
}

TEST_F(RunWithKeysCommand, AKeyThatItsOwnWorkersLackIsSaidOnceBeforeOneIsStarted) {
  ASSERT_EQ(run_line({"keygen", "--run", small_.directory()}).code, 0);
  fs::remove(wire::secret_key_file(small_.layout, "worker"));
  const Answer answer = run_line({"run", "--run", small_.directory()});
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.err.find("worker.secret: no such file; 'hedgerow keygen --run"),
            std::string::npos)
      << answer.err;
}

TEST_F(RunWithKeysCommand, KeysThatOthersMayReadKeepARunFromStarting) {
  ASSERT_EQ(run_line({"keygen", "--run", small_.directory()}).code, 0);
  fs::permissions(wire::secret_key_file(small_.layout, "coordinator"), fs::perms(0644));
  const Answer answer = run_line({"run", "--run", small_.directory()});
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.err.find("'chmod 600 "), std::string::npos) << answer.err;
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
