// The commands that read a run directory: status, watch, explain, logs, check, clean, stop, worker.
#include <csignal>
#include <fstream>

#include "coordinator/cli/run/inspection.hpp"
#include "coordinator/host/process.hpp"
#include "coordinator/host/tokenize_stage.hpp"
#include "coordinator/status/status.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "storage/tensors/checkpoint.hpp"
#include "tests/coordinator/cli/fake_console.hpp"
#include "tests/coordinator/cli/shell_program.hpp"
#include "tests/coordinator/cli/small_run.hpp"
#include "tests/coordinator/state_fixture.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;

constexpr wire::ProcessId kDead{.pid = 1 << 30, .start_ticks = 1};

class RunDirectory : public ::testing::Test {
 protected:
  Answer run_here(std::vector<std::string> arguments, const FakeConsole& console = {}) {
    arguments.insert(arguments.end(), {"--run", run_.directory()});
    return run_line(std::move(arguments), console);
  }
  [[nodiscard]] std::string state_of(const std::string& task) const {
    const RunStatus status = read_status(run_.layout);
    return status.task(task) == nullptr ? "no such task" : status.task(task)->state;
  }
  void write_coordinator_file(wire::ProcessId process,
                              std::uint64_t term,
                              std::vector<wire::ChildRecord> children = {}) {
    wire::write_coordinator_file(run_.layout,
                                 {.host = wire::this_host(),
                                  .process = process,
                                  .term = term,
                                  .endpoint = "tcp://127.0.0.1:1",
                                  .started_at = "",
                                  .heartbeat_count = 0,
                                  .children = std::move(children)});
  }
  SmallRun run_;
};

TEST_F(RunDirectory, StatusIsTheSameInTextAndJson) {
  const Answer text = run_here({"status"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("0.015"), std::string::npos) << "block 0's mean MSE\n" << text.out;
  const Answer json = run_here({"status", "--json"});
  ASSERT_EQ(json.json.size(), 1U);
  EXPECT_EQ(json.json[0]["num_blocks"], 2);
  EXPECT_EQ(json.json[0]["state"], "stopped");
}

TEST_F(RunDirectory, CommandsNameADirectoryThatIsNoRunInTheSameWords) {
  const std::string elsewhere = run_.scratch / "model";
  const std::vector<std::vector<std::string>> lines{{"status"},
                                                    {"watch"},
                                                    {"explain"},
                                                    {"logs"},
                                                    {"check"},
                                                    {"check", "--repair"},
                                                    {"clean"},
                                                    {"stop"},
                                                    {"worker"},
                                                    {"worker", "--connect", "tcp://127.0.0.1:1"},
                                                    {"generate"},
                                                    {"export", "--out", run_.scratch / "out"}};
  for (std::vector<std::string> line : lines) {
    const std::string command = line[0];
    line.insert(line.end(), {"--run", elsewhere, "--json"});
    const Answer answer = run_line(line);
    EXPECT_EQ(answer.code, 2) << command;
    EXPECT_EQ(answer.err,
              "hedgerow " + command + ": " + elsewhere +
                  " is no run directory (it has no run.toml); name one with --run\n");
    ASSERT_EQ(answer.json.size(), 1U) << command;
    EXPECT_TRUE(answer.json[0].contains("error")) << command;
  }
}

TEST_F(RunDirectory, AWorkerIsToldWhatAnAddressLooksLike) {
  for (const std::string address :
       {"tcp://localhost", "localhost:7400", "tcp://h:0", "http://h:1"}) {
    const Answer answer = run_here({"worker", "--connect", address});
    EXPECT_EQ(answer.code, 2) << address;
    EXPECT_NE(answer.err.find("--connect " + address + ": no address"), std::string::npos)
        << answer.err;
  }
}

TEST_F(RunDirectory, ARunThatLostItsRecipeIsNotToBeGivenUp) {
  fs::remove(fs::path(run_.directory()) / "run.toml");
  const Answer answer = run_line({"run", "--run", run_.directory()});
  EXPECT_EQ(answer.code, 1);
  EXPECT_NE(answer.err.find("run.toml is missing; 'hedgerow check --repair"), std::string::npos)
      << answer.err;
}

TEST_F(RunDirectory, WithoutANameItIsTheCurrentDirectoryIfThatIsARun) {
  const fs::path before = fs::current_path();
  fs::current_path(run_.directory());
  for (const char* command : {"status", "explain", "check", "clean", "plan"})
    EXPECT_EQ(run_line({command}).code, 0) << command << ": " << run_line({command}).err;
  const Answer evaluated = run_line({"evaluate", "--tokens", "no-such-tokens"});
  EXPECT_NE(evaluated.err.find("no such tokens file"), std::string::npos) << evaluated.err;
  fs::current_path(run_.scratch.path());
  for (const char* command :
       {"status", "watch", "explain", "logs", "check", "clean", "stop", "worker", "run", "plan"}) {
    const Answer answer = run_line({command});
    EXPECT_EQ(answer.code, 2) << command;
    EXPECT_NE(answer.err.find("missing: --run DIR"), std::string::npos) << answer.err;
    const bool names_recipe = answer.err.find("or --recipe FILE") != std::string::npos;
    EXPECT_EQ(names_recipe, std::string(command) == "plan") << answer.err;
  }
  fs::current_path(before);
}

TEST_F(RunDirectory, AnInterruptedFinetuneShowsTheStepsOfItsCheckpoint) {
  std::ofstream(run_.layout.root() / "checkpoint") << "x";
  run_.append({Granted{TaskId::finetune(), 5, "mpi", 1, "cpu"},
               CheckpointCommitted{5, 10, {"checkpoint", 1, {}}},
               TaskReleased{5, "interrupted"}});
  const Answer answer = run_here({"status"});
  EXPECT_NE(answer.out.find("finetune [####------------] 25% step 10/40"), std::string::npos)
      << answer.out;
  const RunStatus status = read_status(run_.layout);
  EXPECT_EQ(status.task("finetune")->steps().done, 10);
  EXPECT_EQ(nlohmann::json(status).get<RunStatus>().task("finetune")->steps().all, 40)
      << "lost on the way through JSON";
}

TEST_F(RunDirectory, WatchLeavesAtQAndPutsTheScreenBack) {
  FakeConsole console;
  console.is_tty = true;
  console.variables["TERM"] = "xterm";
  console.keys = {' ', ' ', 'q'};
  const Answer answer = run_here({"watch"}, console);
  EXPECT_EQ(answer.code, 0);
  EXPECT_TRUE(answer.err.starts_with("\x1b[?1049h")) << "takes the second screen";
  EXPECT_TRUE(answer.err.ends_with("\x1b[?1049l")) << "and gives it back";
  EXPECT_NE(answer.out.find("MSE of each layer"), std::string::npos) << "the last view stays";
}

TEST_F(RunDirectory, ExplainSaysWhoHadABlockAndWhatBecameOfIt) {
  const Answer answer = run_here({"explain", "0"});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_NE(answer.out.find("block 0 (layer"), std::string::npos) << answer.out;
  EXPECT_EQ(answer.out.find("\n    "), std::string::npos) << "no terminal, so nothing is wrapped";
  EXPECT_NE(answer.out.find("node-0"), std::string::npos) << answer.out;
  EXPECT_EQ(run_here({"explain", "--block", "0"}).out, answer.out);
  const Answer beyond = run_here({"explain", "7"});
  EXPECT_EQ(beyond.code, 2);
  EXPECT_NE(beyond.err.find("blocks 0 to 1"), std::string::npos) << beyond.err;
}

TEST_F(RunDirectory, ExplainOfAWholeRunLeavesOutWhatWentWellUnlessAsked) {
  const std::string brief = run_here({"explain"}).out;
  EXPECT_EQ(brief.find(": granted to"), std::string::npos) << brief;
  EXPECT_EQ(brief.find(": committed"), std::string::npos) << brief;
  EXPECT_EQ(brief.find(": done\n"), std::string::npos) << brief;
  EXPECT_NE(run_here({"explain", "--all"}).out.find(": granted to"), std::string::npos);
}

TEST_F(RunDirectory, WatchSaysHowManyRowsTheWindowDoesNotShow) {
  FakeConsole console;
  console.is_tty = true;
  console.lines = 6;
  console.variables["TERM"] = "xterm";
  console.keys = {'q'};
  const Answer answer = run_here({"watch"}, console);
  EXPECT_NE(answer.err.find(" more rows | q leaves"), std::string::npos) << answer.err;
}

TEST_F(RunDirectory, LogsOfABlockAreTheLinesAboutIt) {
  fs::create_directories(run_.layout.logs());
  std::ofstream(run_.layout.logs() / "worker-node-0.log")
      << "transfer block 0, token 2: begins\ntransfer block 5, token 22: begins\nhalf a li";
  std::ofstream(run_.layout.logs() / "worker-node-1.log") << "transfer block 1, token 3: begins\n";
  EXPECT_EQ(run_here({"logs", "--block", "0"}).out, "transfer block 0, token 2: begins\n");
  EXPECT_EQ(run_here({"logs", "node-1"}).out, "transfer block 1, token 3: begins\n");
  EXPECT_EQ(run_here({"logs", "-n", "1"}).out,
            "worker-node-0: transfer block 5, token 22: begins\n"
            "worker-node-1: transfer block 1, token 3: begins\n");
  const Answer mistyped = run_here({"logs", "nod-1"});
  EXPECT_EQ(mistyped.code, 2);
  EXPECT_NE(mistyped.err.find(", did you mean 'node-1'?; there are node-0, node-1\n"),
            std::string::npos)
      << mistyped.err;
  fs::remove(run_.layout.logs() / "worker-node-0.log");
  const std::string lost = run_here({"logs", "--block", "0"}).err;
  EXPECT_NE(lost.find("no log of 'node-0' in "), std::string::npos) << lost;
}

TEST_F(RunDirectory, CheckOfASoundRunReadsEverything) {
  const Answer answer = run_here({"check", "--json"});
  ASSERT_EQ(answer.json.size(), 1U) << answer.err;
  EXPECT_EQ(answer.code, 0) << answer.out;
  EXPECT_EQ(answer.json[0]["problems"].size(), 0U) << answer.out;
  EXPECT_EQ(answer.json[0]["files"], 8)
      << "run.toml, one tokens file, one shard, two artifacts, three files of the student";
}

TEST_F(RunDirectory, CheckNamesFileAndSequenceOfAFlippedBitAndRepairMarksItLost) {
  const auto size = fs::file_size(run_.layout.root() / SmallRun::shard());
  const std::string bytes = storage::read_text(run_.layout.root() / SmallRun::shard());
  const std::size_t chunk = bytes.find(std::string(64, '\x08'));  // sequence 1 holds eights
  ASSERT_LT(chunk, size);
  run_.flip_byte(SmallRun::shard(), chunk + 5);
  const Answer found = run_here({"check"});
  EXPECT_EQ(found.code, 1);
  EXPECT_NE(found.out.find(SmallRun::shard() + ", sequence 1"), std::string::npos) << found.out;
  const Answer repaired = run_here({"check", "--repair", "--json"});
  EXPECT_EQ(repaired.code, 0);
  ASSERT_EQ(repaired.json.size(), 1U);
  EXPECT_EQ(repaired.json[0]["repaired"], 1);
  EXPECT_EQ(run_here({"check"}).code, 0) << "a lost file is no longer committed";
}

TEST_F(RunDirectory, CheckFindsAMissingArtifactAndADamagedTokensFile) {
  fs::remove(run_.layout.root() / storage::RunLayout::block_artifact(1, 3));
  const std::string tokens = storage::RunLayout::tokens(storage::DataStage::kTransfer);
  const std::string bytes = storage::read_text(run_.layout.root() / tokens);
  run_.flip_byte(tokens, bytes.find(std::string("\3\0\0\0\3\0\0\0", 8)));
  const Answer answer = run_here({"check", "--json"});
  EXPECT_EQ(answer.code, 1);
  ASSERT_EQ(answer.json.size(), 1U);
  EXPECT_EQ(answer.json[0]["problems"].size(), 2U) << answer.out;
  EXPECT_EQ(run_here({"check", "--repair"}).code, 0);
  EXPECT_NE(state_of("transfer/b0001"), "done");
  EXPECT_FALSE(fs::exists(run_.layout.root() / tokens)) << "the next run tokenizes again";
}

TEST_F(RunDirectory, CleanAsksShowsBytesAndDropsBoundaryBeforeItsFiles) {
  fs::create_directories(run_.layout.root() / "attempts/t2");
  std::ofstream(run_.layout.root() / "attempts/t2/metrics.jsonl") << "1234567\n";
  const Answer asked = run_here({"clean"});
  EXPECT_EQ(asked.code, 0);
  EXPECT_TRUE(fs::exists(run_.layout.root() / SmallRun::shard()))
      << "removed without being told to";
  EXPECT_NE(asked.out.find("8 B  attempts/t2"), std::string::npos) << asked.out;
  const Answer answer = run_here({"clean", "--yes", "--json"});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.json.at(0)["removed"], true);
  EXPECT_FALSE(fs::exists(run_.layout.root() / SmallRun::shard()));
  EXPECT_FALSE(fs::exists(run_.layout.root() / "attempts/t2"));
  for (const fs::path& file : {run_.layout.plan(), run_.layout.cluster()})
    std::ofstream(file) << "\n";
  EXPECT_EQ(run_here({"check"}).code, 0) << "a dropped boundary is not missing";
  EXPECT_EQ(run_here({"clean"}).out, "nothing to remove\n") << "the plan's files belong to the run";
}

// The journal would reject its drop, and its files would be gone all the same.
TEST_F(RunDirectory, CleanLeavesABoundaryOfWhichAShardIsToBeMadeAgain) {
  State state = started_state();
  std::uint64_t token = 0;
  for (const int block : {0, 1}) {
    for (const int piece : {0, 1}) complete(state, TaskId::capture(block, piece), ++token);
  }
  complete(state, TaskId::transfer(1), ++token);
  const std::optional<Event> record = find_surplus(run_.layout, state).front().record;
  ASSERT_TRUE(record) << "nothing reads it any more";
  EXPECT_EQ(std::get<BoundaryDropped>(*record).boundary, 1);
  must(state, FileLost{storage::RunLayout::hidden_shard(1, 0, 1), "damaged"});
  for (const Surplus& surplus : find_surplus(run_.layout, state)) {
    EXPECT_FALSE(surplus.record) << surplus.path;
  }
}

TEST_F(RunDirectory, StopEndsWhatADeadCoordinatorLeftBehindAndStatusSaysThatItIsThere) {
  ChildProcess orphan = ChildProcess::start({"sleep", "1000"}, run_.scratch / "log");
  write_coordinator_file(kDead, 1, {{"mpi", 0, 5, orphan.id()}});
  EXPECT_NE(run_here({"status"}).out.find("1 of its processes there goes on"), std::string::npos)
      << run_here({"status"}).out;
  FakeConsole console;
  console.on_wait = [&] { std::ignore = orphan.poll(); };  // reaps it
  const Answer stopped = run_here({"stop"}, console);
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_NE(stopped.out.find("stopped; 'hedgerow run"), std::string::npos) << stopped.out;
  EXPECT_EQ(orphan.poll()->signal, SIGUSR1);
  EXPECT_NE(run_here({"stop"}).out.find("nothing runs here"), std::string::npos);
  EXPECT_EQ(run_here({"status"}).out.find("of its processes"), std::string::npos);
}

TEST_F(RunDirectory, StatusSaysThatACoordinatorDiedWithWorkInHandAlsoWhenNothingGoesOn) {
  write_coordinator_file(kDead, 1);
  EXPECT_EQ(run_here({"status"}).out.find("is gone"), std::string::npos) << "it ended in order";
  run_.append({Granted{TaskId::finetune(), 5, "mpi", 1, "cpu"}});
  const std::string out = run_here({"status"}).out;
  EXPECT_NE(out.find("is gone: 'hedgerow run --run"), std::string::npos) << out;
}

TEST_F(RunDirectory, AProcessThatDiedBehindItsCoordinatorIsShownToWorkOnNothing) {
  run_.append({FileLost{SmallRun::shard(), "damaged"},
               Granted{TaskId::capture(0, 0), 5, "w1", 1, "cpu"},
               Granted{TaskId::finetune(), 6, "mpi", 1, "cpu"}});
  write_coordinator_file(kDead, 1, {{"w1", 1, 0, wire::this_process()}, {"mpi", 0, 6, kDead}});
  EXPECT_EQ(read_status(run_.layout).task("capture/b0000/p00")->state, "running") << "it lives";
  write_coordinator_file(kDead, 1, {{"w1", 1, 0, kDead}, {"mpi", 0, 6, kDead}});
  {
    const TokenizeStage next(run_.layout);  // `run` says what it goes on with before it coordinates
    EXPECT_EQ(read_status(run_.layout).task("capture/b0000/p00")->state, "ready");
  }
  const RunStatus status = read_status(run_.layout);
  EXPECT_EQ(status.task("capture/b0000/p00")->state, "ready");
  EXPECT_EQ(status.task("finetune")->state, "ready");
  EXPECT_EQ(status.task("finetune")->reason,
            "lease revoked: its process died while no coordinator ran");
}

class WaitingWorker : public RunDirectory {
 protected:
  void publish(const std::string& state, bool has_room = true) {
    RunStatus status = read_status(run_.layout);
    status.state = state;
    status.term = 7;
    status.endpoint = "tcp://127.0.0.1:1";
    status.has_room = has_room;
    fs::create_directories(run_.layout.logs());
    nlohmann::json json = status;
    storage::write_atomically(run_.layout.logs() / "status.json", json.dump());
  }
  void coordinate() { write_coordinator_file(wire::this_process(), 7); }
  // Waits two minutes by the console's clock; `news` comes while it waits for the third time.
  Answer wait(const std::function<void()>& news) {
    FakeConsole console;
    int looks = 0;
    console.on_wait = [&, looks]() mutable {
      if (++looks == 3) news();
    };
    console.variables["HEDGEROW_WORKER"] = (run_.scratch / "no-such-worker").string();
    return run_here({"worker", "--wait", "120"}, console);
  }
};

TEST_F(WaitingWorker, JoinsOnceACoordinatorHasRoomAndNotWhileTheFinetuneStageHasTheNodes) {
  EXPECT_EQ(find_opening(run_.layout).kind, Opening::Kind::kNobody);
  publish("running", /*has_room=*/false);
  EXPECT_EQ(find_opening(run_.layout).kind, Opening::Kind::kNobody) << "nobody coordinates";
  coordinate();
  EXPECT_EQ(find_opening(run_.layout).kind, Opening::Kind::kBusy);
  const Answer answer = wait([&] { publish("running"); });
  EXPECT_EQ(find_opening(run_.layout).kind, Opening::Kind::kWelcome);
  EXPECT_NE(answer.err.find("no-such-worker"), std::string::npos) << "it came to starting one\n"
                                                                  << answer.err;
}

TEST_F(WaitingWorker, ThatStaysComesAgainUntilTheRunIsOverOrSomebodyStopsIt) {
  coordinate();
  publish("running");
  FakeConsole console;
  console.variables["HEDGEROW_WORKER"] = (run_.scratch / "worker").string();
  const fs::path notes = run_.scratch / "notes";
  const std::string note = "echo joined >> " + notes.string() + "; ";
  const std::vector<std::string> line{"worker", "--wait", "120", "--stay"};
  write_program(run_.scratch / "worker",
                note + "[ $(wc -l < " + notes.string() + ") -lt 3 ] && exit 4; exit 0");
  EXPECT_EQ(run_here(line, console).code, 0);
  EXPECT_EQ(text_of(notes), "joined\njoined\njoined\n");

  fs::remove(notes);
  write_program(run_.scratch / "worker", note + "kill -TERM $PPID; exec sleep 100");
  EXPECT_EQ(run_here(line, console).code, 4);
  write_program(run_.scratch / "worker", note + "exit 2");
  EXPECT_EQ(run_here(line, console).code, 2) << "the same again would end the same";
  EXPECT_EQ(text_of(notes), "joined\njoined\n");
  EXPECT_EQ(run_here({"worker", "--stay"}, console).code, 2) << "for how long?";
}

TEST_F(WaitingWorker, EndsWellWhenTheRunIsOverAndSaysWhenNobodyCame) {
  const Answer over = wait([&] { publish("done"); });
  EXPECT_EQ(over.code, 0);
  EXPECT_NE(over.err.find("no worker is wanted"), std::string::npos) << over.err;
  fs::remove(run_.layout.logs() / "status.json");
  const Answer nobody = wait([] {});
  EXPECT_EQ(nobody.code, 5);
  EXPECT_NE(nobody.err.find("had room for a worker within 120 s"), std::string::npos) << nobody.err;
}

TEST_F(RunDirectory, StopAndWorkerSayThatNothingRuns) {
  EXPECT_NE(run_here({"stop"}).out.find("nothing runs here"), std::string::npos);
  const Answer worker = run_here({"worker"});
  EXPECT_EQ(worker.code, 2);
  EXPECT_NE(worker.err.find("hedgerow run --run"), std::string::npos) << worker.err;
}

TEST_F(RunDirectory, AWorkerThatWaitsInVainBlamesTheEnvironmentAlsoWithoutARun) {
  const std::string nowhere = run_.scratch / "not-yet";
  for (const std::string& directory : {run_.directory(), nowhere}) {
    const Answer worker = run_line({"worker", "--run", directory, "--wait", "1"});
    EXPECT_EQ(worker.code, 5) << worker.err;
    EXPECT_NE(worker.err.find("waiting for a coordinator"), std::string::npos) << worker.err;
    EXPECT_NE(worker.err.find("hedgerow run --run"), std::string::npos) << worker.err;
  }
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
