// The state as a snapshot keeps it; state_test.cpp folds through one.
#include "tests/coordinator/state_fixture.hpp"

namespace hedgerow::coordinator {
namespace {

// A result is kept packed, and must come out as the worker said it.
TEST(Snapshot, OfATaskWithACheckpointAndAResultReadsBackTheSame) {
  const nlohmann::json result = {
      {"layers", {{{"layer", 3}, {"mse", 0.1}, {"share", nullptr}}, {{"mse", 1e-300}}}},
      {"steps", -7},
      {"host_bytes", 68'719'476'736},
      {"text", "\u00e9 \n"}};
  State state = started_state();
  complete(state, TaskId::capture(0, 0), 1);
  complete(state, TaskId::capture(0, 1), 2);
  must(state, Granted{TaskId::transfer(0), 3, "w1", 1, "cpu"});
  must(state, TaskDone{3, {file_named("artifacts/b0000.safetensors")}, result});
  must(state, Granted{TaskId::transfer(1), 4, "w1", 1, "cpu"});
  must(state, CheckpointCommitted{4, 17, file_named("checkpoint")});
  const State read = state_from_json(state_to_json(state));
  EXPECT_EQ(read, state);
  EXPECT_EQ(result_of(read.task(TaskId::transfer(0))), result);
  EXPECT_EQ(first_step(read.task(TaskId::transfer(1))), 17);
}

// As earlier builds wrote it: every field, no build.
TEST(Snapshot, OfTheFormatBeforeIsStillRead) {
  State state = started_state();
  must(state, Granted{TaskId::capture(0, 0), 1, "w1", 1, "cpu"});
  nlohmann::json older = state_to_json(state);
  older["format"] = "state/1";
  older.erase("build");
  const auto none = nlohmann::json::array();
  const nlohmann::json empty = {{"token", 0},
                                {"worker", ""},
                                {"incarnation", 0},
                                {"attempts", 0},
                                {"failures", none},
                                {"checkpoint_step", 0},
                                {"files", none},
                                {"result", nullptr},
                                {"seed", 0},
                                {"devices", none},
                                {"reason", ""}};
  for (nlohmann::json& task : older["tasks"]) {
    const nlohmann::json said = task;
    task.update(empty);
    task.update(said);
  }
  State read = state_from_json(older);
  read.build = state.build;
  EXPECT_EQ(read, state);
}

}  // namespace
}  // namespace hedgerow::coordinator
