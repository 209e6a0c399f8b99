// What run, plan, import and doctor refuse or say before anything computes.
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/cli/run/stop_request.hpp"
#include "coordinator/host/tokenize_stage.hpp"
#include "coordinator/serve/run_service.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/recipe.hpp"
#include "tests/coordinator/cli/fake_console.hpp"
#include "tests/coordinator/cli/small_run.hpp"
#include "tests/coordinator/cli/tiny_model.hpp"
#include "tests/support/forked_process.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;

class BeforeARun : public ::testing::Test {
 protected:
  // The small run's recipe, changed.
  std::string recipe_with(const std::function<void(storage::Recipe&)>& change) {
    storage::Recipe recipe = storage::Recipe::load(run_.layout.recipe());
    change(recipe);
    std::ofstream(run_.scratch / "changed.toml") << recipe.to_toml();
    return run_.scratch / "changed.toml";
  }

  Answer run_with_scripts(std::vector<std::string> arguments) {
    FakeConsole console;
    console.variables["HEDGEROW_HUGGINGFACE"] = run_.scratch.path().string();
    console.variables["HEDGEROW_PYTHON"] = "/bin/sh";
    console.variables["HEDGEROW_WORKER"] = (run_.scratch / "no-such-worker").string();
    return run_line(std::move(arguments), console);
  }

  SmallRun run_;
};

TEST_F(BeforeARun, NewRunNeedsARecipeAndAnEmptyDirectory) {
  const Answer without = run_line({"run", "--run", run_.scratch / "new"});
  EXPECT_EQ(without.code, 2);
  EXPECT_NE(without.err.find("--recipe"), std::string::npos) << without.err;
  EXPECT_FALSE(fs::exists(run_.scratch / "new")) << "made a directory for a run that cannot begin";
  const std::string recipe = recipe_with([](auto&) {});
  EXPECT_EQ(run_line({"run", "--run", run_.scratch / "model", "--recipe", recipe}).code, 2);
  const Answer file = run_line({"run", "--run", recipe, "--recipe", recipe});
  EXPECT_EQ(file.code, 2);
  EXPECT_NE(file.err.find("is a file; name a new directory"), std::string::npos) << file.err;
}

TEST_F(BeforeARun, ChangedRecipeIsRefusedNamingTheFieldAndNothingIsWritten) {
  const std::string before = storage::read_text(run_.layout.recipe());
  const Answer answer =
      run_with_scripts({"run", "--run", run_.directory(), "--recipe", recipe_with([](auto& r) {
                          r.transfer.learning_rate = 0.5;
                        })});
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.err.find("transfer.learning_rate: 0.01 -> 0.5"), std::string::npos)
      << answer.err;
  EXPECT_EQ(storage::read_text(run_.layout.recipe()), before);
}

TEST_F(BeforeARun, MoreStepsForAFinetuneThatIsDoneAreRefusedInsteadOfIgnored) {
  run_.append(
      {Granted{TaskId::finetune(), 5, "mpi", 1, "cpu"}, TaskDone{5, {}, nlohmann::json::object()}});
  const Answer answer =
      run_with_scripts({"run", "--run", run_.directory(), "--recipe", recipe_with([](auto& r) {
                          r.finetune.max_steps = 60;
                        })});
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.err.find("finetune is done, so a change comes too late: finetune.max_steps: "
                            "40 -> 60"),
            std::string::npos)
      << answer.err;
  EXPECT_EQ(storage::Recipe::load(run_.layout.recipe()).finetune.max_steps, 40);
}

TEST_F(BeforeARun, ARunThatIsDoneAsksForNoModel) {
  run_.append(
      {Granted{TaskId::finetune(), 5, "mpi", 1, "cpu"}, TaskDone{5, {}, nlohmann::json::object()}});
  fs::remove_all(storage::Recipe::load(run_.layout.recipe()).model.path);
  for (const auto stage : {storage::DataStage::kFinetune, storage::DataStage::kEvaluate})
    std::ofstream(run_.layout.resolve(storage::RunLayout::tokens(stage))) << "as they were";
  FakeConsole console;
  console.variables["HEDGEROW_WORKER"] = "/bin/true";
  const Answer answer = run_line({"run", "--run", run_.directory()}, console);
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_NE(answer.err.find("everything is done already"), std::string::npos) << answer.err;
}

TEST_F(BeforeARun, SafeChangeIsTakenOver) {
  std::ofstream(run_.scratch / "make_tokens.py") << "exit 1\n";
  const Answer answer =
      run_with_scripts({"run", "--run", run_.directory(), "--recipe", recipe_with([](auto& r) {
                          r.workers.local = 1;
                        })});
  EXPECT_NE(answer.err.find("recipe changed"), std::string::npos) << answer.err;
  EXPECT_EQ(storage::Recipe::load(run_.layout.recipe()).workers.local, 1);
}

TEST_F(BeforeARun, StopReachesARunThatStillMakesItsTokens) {
  std::optional<TokenizeStage> tokenize_stage(std::in_place, run_.layout);
  bool was_asked = false;
  FakeConsole console;
  console.on_wait = [&] {
    was_asked = fs::exists(run_.layout.stop_file());
    tokenize_stage.reset();  // as the run does when it hears of it
  };
  const Answer answer = run_line({"stop", "--run", run_.directory()}, console);
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_TRUE(was_asked);
  EXPECT_NE(answer.out.find("stopped; 'hedgerow run"), std::string::npos) << answer.out;
  EXPECT_NE(run_line({"stop", "--run", run_.directory()}).out.find("nothing runs here"),
            std::string::npos);
}

// Two `run`s of one new directory: the first one has said who it is, and writes its recipe.
TEST_F(BeforeARun, ARunThatAnotherProcessBeginsAtTheSameMomentIsRefusedByName) {
  const fs::path directory = run_.scratch / "new";
  fs::create_directories(directory);
  const storage::RunLayout layout(directory);
  const tests::ForkedProcess other([] { ::pause(); });
  wire::CoordinatorFile file{.host = wire::this_host(),
                             .process = *wire::process_with(other.pid()),
                             .endpoint = "",
                             .started_at = "2026-11-21T12:00:00Z",
                             .children = {}};
  wire::write_coordinator_file(layout.tokenize_stage_file(), file);
  std::ofstream(directory / ".run.toml.tmp-0") << "half of";
  const std::string recipe = recipe_with([](auto&) {});
  const Answer answer = run_with_scripts({"run", "--run", directory, "--recipe", recipe});
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.err.find("is being prepared by pid " + std::to_string(other.pid())),
            std::string::npos)
      << answer.err;
  EXPECT_FALSE(fs::exists(layout.recipe()));
  // What one that was killed there has left stands in nobody's way.
  fs::remove(directory / ".run.toml.tmp-0");
  file.process = {wire::this_process().pid, 1};
  wire::write_coordinator_file(layout.tokenize_stage_file(), file);
  EXPECT_NE(
      run_with_scripts({"run", "--run", directory, "--recipe", recipe}).err.find("new run in"),
      std::string::npos);
  EXPECT_TRUE(fs::exists(layout.recipe()));
}

// The other coordinator opens the term after this one has read the journal, which is when it says
// whom it takes over.
TEST_F(BeforeARun, WhoeverLosesASimultaneousStartIsToldWhoWon) {
  fs::remove_all(run_.layout.journal_directory());
  const auto tokens = [&](storage::DataStage stage) {
    return run_.layout.resolve(storage::RunLayout::tokens(stage));
  };
  fs::copy_file(tokens(storage::DataStage::kTransfer), tokens(storage::DataStage::kFinetune));
  const tests::ForkedProcess other([] { ::pause(); });
  const wire::ProcessId alive = *wire::process_with(other.pid());
  wire::CoordinatorFile file{.host = wire::this_host(),
                             .process = {wire::this_process().pid, 1},
                             .endpoint = "",
                             .started_at = "2026-11-21T12:00:00Z",
                             .children = {{"node-0", 1, 0, alive}}};
  wire::write_coordinator_file(run_.layout, file);
  RunOptions options;
  options.run_directory = run_.layout.root();
  options.worker_binary = "/bin/true";
  options.say = [&](const std::string& text) {
    if (!text.starts_with("taking over")) return;
    storage::os_disk().make_directories(run_.layout.journal_directory());
    storage::File::create_exclusive(run_.layout.journal_segment(1)).close();
    file.process = alive;
    file.term = 1;
    wire::write_coordinator_file(run_.layout, file);
  };
  class : public RunObserver {
    void on_status(const RunStatus& /*status*/) override {}
  } nobody;
  try {
    static_cast<void>(run(options, nobody));
    ADD_FAILURE() << "both ran";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    const std::string text = error.what();
    EXPECT_NE(text.find("another coordinator started at the same moment, and has term 1; the run "
                        "is coordinated by pid " +
                        std::to_string(other.pid()) + " on " + wire::this_host() + " (term 1,"),
              std::string::npos)
        << text;
  }
}

// The tokenizer itself looks whether it can be found.
TEST_F(BeforeARun, ARunCanBeFoundWhileItsTokensAreMade) {
  fs::remove_all(run_.layout.root() / "tokens");
  std::ofstream(run_.scratch / "make_tokens.py")
      << "cp " << run_.layout.tokenize_stage_file().string() << " "
      << (run_.scratch / "seen").string() << "; exit 2\n";
  EXPECT_EQ(run_with_scripts({"run", "--run", run_.directory()}).code, 2);
  EXPECT_TRUE(fs::exists(run_.scratch / "seen"));
  EXPECT_FALSE(fs::exists(run_.layout.tokenize_stage_file())) << "it goes with the run";
}

TEST_F(BeforeARun, MissingTokensAreMadeAndAFailureIsTheRuns) {
  std::ofstream(run_.scratch / "make_tokens.py")
      << "grep -o '\"stage\":\"[a-z]*\"' \"$2\" >> " << (run_.scratch / "made").string()
      << "; exit 2\n";
  const Answer answer = run_with_scripts({"run", "--run", run_.directory()});
  EXPECT_EQ(answer.code, 2);
  EXPECT_EQ(storage::read_text(run_.scratch / "made"), "\"stage\":\"finetune\"\n")
      << "the transfer tokens are there already";
}

TEST_F(BeforeARun, PlanRefusesWhatTheDiskCannotHoldAndSaysWhatWould) {
  const Answer fits =
      run_line({"plan", "--recipe", recipe_with([](auto&) {}), "--run", run_.scratch / "new"});
  EXPECT_EQ(fits.code, 0) << fits.err;
  EXPECT_NE(fits.out.find("blocks    1 of 3 layers"), std::string::npos) << fits.out;
  EXPECT_NE(fits.out.find("time      in all about "), std::string::npos) << fits.out;
  EXPECT_NE(fits.out.find("(assumed, not measured)"), std::string::npos) << fits.out;
  EXPECT_NE(fits.out.find("\ntransfer  "), std::string::npos) << fits.out;
  const std::string recipe = recipe_with([](auto& r) {
    r.transfer.max_steps = 1'000'000'000;
    r.plan.layers_per_block = 1;
    r.data_transfer.seq_len = 256;
  });
  const Answer answer =
      run_line({"plan", "--recipe", recipe, "--run", run_.scratch / "new", "--json"});
  EXPECT_EQ(answer.code, 2) << answer.out;
  ASSERT_EQ(answer.json.size(), 1U);
  EXPECT_EQ(answer.json[0]["fits"], false);
  ASSERT_FALSE(answer.json[0]["problems"].empty());
  EXPECT_FALSE(answer.json[0]["problems"][0]["remedy"].get<std::string>().empty());
  EXPECT_EQ(run_line({"run", "--run", run_.scratch / "new", "--recipe", recipe}).code, 2);
  EXPECT_FALSE(fs::exists(run_.scratch / "new")) << "began a run that does not fit";
}

TEST_F(BeforeARun, ImportDescribesTheStudentThatTheConverterWrote) {
  // $5 is the value of --out in: read --model DIR --out DIR --pt FILE.
  std::ofstream(run_.scratch / "convert_lolcats.py")
      << "mkdir -p \"$5\"; echo '{\"event\":\"done\",\"layers\":2,\"softmax_layers\":[1],"
         "\"feature_map\":{\"projected_dim\":4,\"bias\":false}}'\n";
  const std::string out = run_.scratch / "student";
  const Answer answer = run_with_scripts(
      {"import", run_.scratch / "model.pt", "--model", run_.scratch / "model", "--out", out});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const auto description =
      nlohmann::json::parse(storage::read_text(run_.scratch / "student/hedgerow.json"));
  EXPECT_EQ(description["format"], "student/1");
  EXPECT_EQ(description["attention"]["feature_dim"], 8) << "negation doubles the columns";
  EXPECT_EQ(description["attention"]["bias"], false);
  EXPECT_EQ(description["attention"]["num_sinks"], 0);
  EXPECT_EQ(description["attention"]["key_maps"], "query_head") << "as published";
  EXPECT_EQ(description["softmax_layers"], nlohmann::json::array({1}));
  EXPECT_EQ(description["teacher"]["fingerprint"],
            storage::ModelDirectory::open(run_.scratch / "model").fingerprint());
  EXPECT_EQ(
      run_with_scripts({"import", "x.pt", "--model", run_.scratch / "model", "--out", out}).code, 2)
      << "overwrites";
}

TEST_F(BeforeARun, DoctorGivesEachFindingALevelAndAFix) {
  const Answer answer = run_with_scripts({"doctor", "--dir", run_.scratch.path(), "--json"});
  EXPECT_EQ(answer.code, 5) << "there is no worker";
  ASSERT_EQ(answer.json.size(), 1U);
  EXPECT_EQ(answer.json[0]["worst"], "fail");
  bool saw_worker = false;
  for (const auto& check : answer.json[0]["checks"]) {
    EXPECT_EQ(check["fix"].get<std::string>().empty(), check["level"] == "ok") << check;
    saw_worker |= check["check"] == "hedgerow-worker" && check["level"] == "fail";
  }
  EXPECT_TRUE(saw_worker);
  EXPECT_EQ(run_with_scripts({"doctor", "--dir", "/proc/no-such-place"}).code, 5);
}

TEST_F(BeforeARun, DoctorLooksAtTheMachineAlsoWhereTheRunsModelIsNotThere) {
  const std::string recipe = recipe_with([](auto& r) { r.model.path = "/no-such-model"; });
  EXPECT_EQ(run_with_scripts({"doctor", "--recipe", recipe}).code, 2) << "a mistake of the caller";
  fs::copy_file(recipe, run_.layout.recipe(), fs::copy_options::overwrite_existing);
  const Answer answer = run_with_scripts({"doctor", "--dir", run_.directory()});
  EXPECT_NE(answer.out.find("warn  plan: "), std::string::npos) << answer.out << answer.err;
  EXPECT_NE(answer.out.find("/no-such-model"), std::string::npos) << answer.out;
  EXPECT_NE(answer.out.find("ok    rename: "), std::string::npos) << answer.out;
}

TEST_F(BeforeARun, ARunDirectoryThatCannotBeMadeIsTheEnvironmentsFaultAndIsNamed) {
  const Answer answer =
      run_line({"run", "--run", "/proc/x", "--recipe", recipe_with([](auto&) {})});
  EXPECT_EQ(answer.code, 5);
  EXPECT_EQ(std::count(answer.err.begin(), answer.err.end(), '\n'), 1) << answer.err;
  EXPECT_NE(answer.err.find("/proc/x cannot be made: "), std::string::npos) << answer.err;
}

TEST_F(BeforeARun, PlanSaysThatItHasNotReadTheText) {
  std::ofstream(run_.scratch / "text.txt") << std::string(4 * 4 * 100, 'x');
  const std::string recipe = recipe_with([](auto&) {});
  const Answer before = run_line({"plan", "--recipe", recipe, "--run", run_.scratch / "new"});
  EXPECT_NE(before.out.find("not read yet: roughly 100 sequences"), std::string::npos)
      << before.out;
  EXPECT_NE(before.out.find("it fits; the text was not read\n"), std::string::npos) << before.out;
  const Answer after = run_line({"plan", "--run", run_.directory()});
  EXPECT_TRUE(after.out.ends_with("\nit fits\n")) << "its tokens are there\n"
                                                  << after.out << after.err;
}

TEST_F(BeforeARun, PlanRefusesATextThatNoTokenizerMakesLongEnough) {
  const auto plan_with = [&](std::size_t bytes, const std::string& format) {
    std::ofstream(run_.scratch / "text.txt") << std::string(bytes, 'x');
    const std::string recipe = recipe_with([&](auto& r) {
      r.data_transfer.validation_sequences = 8;
      for (auto* data : {&r.data_transfer, &r.data_finetune, &r.data_evaluate})
        data->sources[0].format = format;
    });
    return run_line({"plan", "--recipe", recipe, "--run", run_.scratch / "new"});
  };
  const Answer refused = plan_with(5, "text");
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_NE(refused.out.find("it does not fit\n"), std::string::npos) << refused.out;
  std::string words = refused.out;  // the terminal's width breaks lines
  for (std::size_t at = 0; (at = words.find("\n          ")) != std::string::npos;)
    words.replace(at, 11, " ");
  EXPECT_NE(words.find("36 tokens of text; its sources hold 5 B, at most 7 tokens; add text, or "
                       "lower data.transfer.seq_len"),
            std::string::npos)
      << words;
  EXPECT_EQ(plan_with(33, "text").code, 2);
  EXPECT_EQ(plan_with(34, "text").code, 0) << "a token a byte, BOS and EOS: it may suffice";
  EXPECT_EQ(plan_with(5, "alpaca").code, 0) << "a template adds what the size hides";
}

// Catches: "it fits" for a text that is not there, as if its size were merely unknown.
TEST_F(BeforeARun, PlanAndRunRefuseASourceThatIsMissingOrEmptyOrNoFileOfWhateverStage) {
  const std::string none = run_.scratch / "none.txt";
  const auto refuses = [&](const std::string& recipe, const std::string& text) {
    for (const char* command : {"plan", "run"}) {
      const Answer answer = run_line({command, "--recipe", recipe, "--run", run_.scratch / "new"});
      EXPECT_EQ(answer.code, 2) << command << answer.out;
      EXPECT_NE(answer.err.find(text), std::string::npos) << answer.err;
      EXPECT_EQ(answer.out.find("it fits"), std::string::npos) << answer.out;
    }
  };
  refuses(recipe_with([&](auto& r) { r.data_transfer.sources[0].path = none; }),
          "data.transfer.sources: " + none + ": no such file; put it there");
  refuses(recipe_with([&](auto& r) { r.data_finetune.sources[0].path = none; }),
          "data.finetune.sources: " + none + ": no such file");
  std::ofstream(none).close();
  refuses(recipe_with([&](auto& r) { r.data_transfer.sources[0].path = none; }),
          "data.transfer.sources: " + none + ": is empty; give it some text");
  const std::string fifo = run_.scratch / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  refuses(recipe_with([&](auto& r) { r.data_evaluate.sources[0].path = fifo; }),
          "data.evaluate.sources: " + fifo + ": is a FIFO; name a regular file");
  refuses(recipe_with([&](auto& r) { r.data_transfer.sources[0].path = "/dev/zero"; }),
          "data.transfer.sources: /dev/zero: is a device; name a regular file");
  refuses(fifo, fifo + ": is a FIFO; name a regular file");
  EXPECT_FALSE(fs::exists(run_.scratch / "new")) << "began a run without its text";
}

// Catches: a model of 141 GB that must be downloaded to learn what it costs.
TEST_F(BeforeARun, PlanOfAConfigurationAloneSaysWhatItDidNotSeeAndRunRefusesIt) {
  const fs::path model = run_.scratch / "config-alone";
  fs::create_directories(model);
  std::ofstream(model / "config.json") << kTinyConfig;
  const std::string none = run_.scratch / "none.txt";
  const std::string recipe = recipe_with([&](auto& r) {
    r.data_transfer.sources[0].path = r.data_finetune.sources[0].path =
        r.data_evaluate.sources[0].path = none;
    r.workers.local = 4096;
  });
  const Answer answer = run_line({"plan", "--recipe", recipe, "--model", model, "--json"});
  ASSERT_EQ(answer.code, 0) << answer.out << answer.err;
  const std::string warnings = answer.json.at(0)["warnings"].dump();
  for (const std::string text : {"has no model.safetensors", "none.txt: not here"})
    EXPECT_NE(warnings.find(text), std::string::npos) << warnings;
  EXPECT_EQ(run_line({"plan", "--recipe", recipe, "--model", model, "--workers", "2"}).code, 0);
  const std::string same = recipe_with([&](auto& r) { r.model.path = model; });
  const Answer run = run_line({"run", "--recipe", same, "--run", run_.scratch / "new"});
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.err.find("neither model.safetensors nor"), std::string::npos) << run.err;
}

TEST_F(BeforeARun, PlanOfARunAsksOnlyForTheTextThatItHasYetToTokenize) {
  const std::string recipe =
      recipe_with([&](auto& r) { r.data_transfer.sources[0].path = run_.scratch / "none.txt"; });
  EXPECT_EQ(run_line({"plan", "--recipe", recipe, "--run", run_.directory()}).code, 0)
      << "its transfer tokens are there";
}

TEST_F(BeforeARun, TheMemoryOfThisMachineDoesNotLimitWorkersElsewhere) {
  const std::string recipe = recipe_with([](auto& r) {
    r.workers.local = 4096;
    r.plan.sequences_per_forward = r.transfer.sequences_per_step = 1 << 14;
  });
  const Answer here = run_line({"plan", "--recipe", recipe}, {});
  EXPECT_EQ(here.code, 2);
  EXPECT_NE(here.out.find("a worker has"), std::string::npos) << here.out << here.err;
  const Answer elsewhere = run_line({"plan", "--recipe", recipe, "--workers", "0"}, {});
  EXPECT_EQ(elsewhere.code, 0) << elsewhere.out << elsewhere.err;
  EXPECT_NE(elsewhere.out.find("each worker is asked"), std::string::npos) << elsewhere.out;
}

TEST_F(BeforeARun, PlanWarnsOfTheKeysWithoutWhichRunRefusesToListen) {
  const auto planned = [&](const std::string& bind) {
    const std::string recipe = recipe_with([&](auto& r) { r.workers.bind = bind; });
    return run_line({"plan", "--recipe", recipe, "--run", run_.scratch / "new", "--json"});
  };
  const Answer open = planned("*");
  EXPECT_EQ(open.code, 0) << "it fits, and the keys may come after the plan";
  EXPECT_NE(open.json[0]["warnings"].dump().find("hedgerow keygen --run"), std::string::npos);
  EXPECT_EQ(planned("127.0.0.1").json[0]["warnings"].dump().find("keygen"), std::string::npos);
  const std::string recipe = recipe_with([](auto& r) { r.workers.bind = "*"; });
  const Answer nowhere = run_line({"plan", "--recipe", recipe, "--json"});
  EXPECT_NE(nowhere.json[0]["warnings"].dump().find("keygen --run DIR'"), std::string::npos)
      << "keys in the current directory would be of no use\n"
      << nowhere.json[0]["warnings"];
}

TEST_F(BeforeARun, PlanOfOneBlockNeitherCapturesNorStoresABoundary) {
  const auto plan_with = [&](int layers) {
    const std::string recipe = recipe_with([&](auto& r) { r.plan.layers_per_block = layers; });
    return run_line({"plan", "--recipe", recipe, "--run", run_.scratch / "new"}).out;
  };
  const std::string one = plan_with(3);
  EXPECT_NE(one.find("one block stores no boundary"), std::string::npos) << one;
  for (const char* word : {"capture", "a boundary", "one boundary"})
    EXPECT_EQ(one.find(word), std::string::npos) << one;
  const std::string two = plan_with(2);
  EXPECT_NE(two.find("1 shard a boundary"), std::string::npos) << two;
  EXPECT_NE(two.find("one boundary "), std::string::npos) << two;
  EXPECT_NE(two.find("memory    capture "), std::string::npos) << two;
}

TEST_F(BeforeARun, AScriptThatRunsUsIsWhatGoesOn) {
  std::ofstream(run_.scratch / "make_tokens.py") << "kill -INT $PPID; sleep 5\n";
  FakeConsole console;
  console.variables["HEDGEROW_HUGGINGFACE"] = run_.scratch.path().string();
  console.variables["HEDGEROW_PYTHON"] = "/bin/sh";
  console.variables["HEDGEROW_RESUME_WITH"] = "deploy/quickstart";
  const Answer answer = run_line({"run", "--run", run_.directory()}, console);
  EXPECT_EQ(answer.code, 4);
  EXPECT_NE(answer.err.find("stopped; 'deploy/quickstart' goes on\n"), std::string::npos)
      << answer.err;
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
