// The state as a snapshot keeps it; state_test.cpp folds through one.
#include "state_fixture.hpp"

namespace hedgerow::coordinator {
namespace {

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
