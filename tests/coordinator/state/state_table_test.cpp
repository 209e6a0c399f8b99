// The table in coordinator/README.md is the specification of apply(); this walks every cell of it.
#include <fstream>
#include <map>
#include <sstream>

#include "tests/coordinator/state_fixture.hpp"

namespace hedgerow::coordinator {
namespace {

const TaskId kCapture = TaskId::capture(0, 0);
const TaskId kTransfer = TaskId::transfer(0);
constexpr std::uint64_t kToken = 5;

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream stream(line);
  for (std::string cell; std::getline(stream, cell, '|');) {
    const std::size_t first = cell.find_first_not_of(' ');
    if (first == std::string::npos) continue;
    cells.push_back(cell.substr(first, cell.find_last_not_of(' ') - first + 1));
  }
  return cells;
}

// event -> state -> outcome, as written.
std::map<std::string, std::map<std::string, std::string>> read_table() {
  std::ifstream file(std::string(HEDGEROW_SOURCE_DIR) + "/coordinator/README.md");
  std::map<std::string, std::map<std::string, std::string>> table;
  std::vector<std::string> states;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.find("state table: begin") != std::string::npos) inside = true;
    if (line.find("state table: end") != std::string::npos) inside = false;
    if (!inside || line.rfind("|", 0) != 0 || line.rfind("|-", 0) == 0) continue;
    const std::vector<std::string> cells = cells_of(line);
    if (states.empty()) {
      states = cells;
      continue;
    }
    for (std::size_t i = 1; i < cells.size(); ++i) table[cells[0]][states[i]] = cells[i];
  }
  return table;
}

// The task that an event is about in the walk: captures have shards and can be dropped, transfers
// have checkpoints.
TaskId subject(const std::string& event, const std::string& state) {
  if (event == "logits_dropped") return TaskId::logits(0);
  const bool of_captures = state == "dropped" || event == "shard_committed" || event == "dropped" ||
                           event == "recaptured" || event == "lost";
  return of_captures ? kCapture : kTransfer;
}

std::string lost_name(const State& state) {
  const ShardRecord& shard = state.shards[1][0];
  return shard.file.name.empty() ? "hidden/b0001/s00000.t5.h5" : shard.file.name;
}

// A state in which `id` is in the state `word`, and its shard is committed where it can be.
State state_with(const TaskId& id, const std::string& word, bool has_committed_file) {
  State state;
  const bool logits = id.stage == Stage::kLogits;
  must(state, logits ? run_with_logits() : small_run());
  const auto commit_shard = [&state](std::uint64_t token) {
    must(state,
         ShardCommitted{
             token, 0, file_named("hidden/b0001/s00000.t" + std::to_string(token) + ".h5")});
  };
  const bool capture = id.stage == Stage::kCapture;
  if (word == "pending") {
    if (capture && has_committed_file) {
      grant(state, id, kToken - 1);
      commit_shard(kToken - 1);
      must(state, TaskReleased{kToken - 1, "test"});
    }
  } else if (word == "granted") {
    grant(state, id, kToken);
    if (capture && has_committed_file) commit_shard(kToken);
  } else if (word == "done") {
    complete(state, id, kToken);
  } else if (word == "dropped") {
    complete(state, id, kToken);
    complete(state, logits ? TaskId::logits(1) : TaskId::capture(0, 1), kToken + 1);
    must(state, logits ? Event(LogitsDropped{}) : Event(BoundaryDropped{1}));
  } else if (word == "quarantined") {
    if (capture && has_committed_file) {
      grant(state, id, kToken - 1);
      commit_shard(kToken - 1);
      must(state, TaskReleased{kToken - 1, "test"});
    }
    must(state, Quarantined{id, "test"});
  }
  EXPECT_EQ(to_string(state.task(id).state), word);
  return state;
}

Event event_of(const std::string& type, const TaskId& id, const State& state) {
  if (type == "granted") return Granted{id, state.last_token + 1, "w1", 1, "cpu"};
  if (type == "shard_committed")
    return ShardCommitted{kToken, 0, file_named("hidden/b0001/s00000.t5.h5")};
  if (type == "checkpointed") return CheckpointCommitted{kToken, 10, file_named("attempts/t5/c")};
  if (type == "done") return TaskDone{kToken, {file_named("out.t5")}, nlohmann::json::object()};
  if (type == "failed") return TaskFailed{kToken, storage::ErrorKind::kUnavailable, "test"};
  if (type == "released") return TaskReleased{kToken, "test"};
  if (type == "revoked") return LeaseRevoked{kToken, "test"};
  if (type == "lost") return FileLost{lost_name(state), "test"};
  if (type == "dropped") return BoundaryDropped{1};
  if (type == "logits_dropped") return LogitsDropped{};
  if (type == "recaptured") return Recaptured{id, "test"};
  if (type == "quarantined") return Quarantined{id, "test"};
  if (type == "retried") return Retried{id, "test", std::nullopt};
  ADD_FAILURE() << "the table names an event that this test does not know: " << type;
  return Noted{""};
}

TEST(StateTable, EveryPairIsAcceptedOrRejectedAsTheReadmeSays) {
  const auto table = read_table();
  ASSERT_EQ(table.size(), std::variant_size_v<Event> - 4)
      << "all events but run_started, term_started, noted and recipe_recorded";
  for (const auto& [event_word, row] : table) {
    ASSERT_EQ(row.size(), 5U) << event_word;
    for (const auto& [state_word, expected] : row) {
      SCOPED_TRACE(event_word + " in " + state_word);
      const TaskId id = subject(event_word, state_word);
      State state = state_with(id, state_word, event_word == "lost");
      if (event_word == "dropped" && state_word != "dropped") {
        // The other captures of the boundary are done, so that this one alone decides.
        complete(state, TaskId::capture(0, 1), 100);
      }
      if (event_word == "logits_dropped" && state_word != "dropped")
        complete(state, TaskId::logits(1), 100);
      const nlohmann::json before = state_to_json(state);
      const auto rejection = coordinator::apply(state, event_of(event_word, id, state));
      std::string outcome(to_string(state.task(id).state));
      if (rejection) {
        outcome = rejection->kind == storage::ErrorKind::kFenced ? "fenced" : "rejected";
        EXPECT_EQ(state_to_json(state), before)
            << "a rejected event must leave the state as it was";
        EXPECT_FALSE(rejection->reason.empty());
      }
      EXPECT_EQ(outcome, expected);
    }
  }
}

}  // namespace
}  // namespace hedgerow::coordinator
