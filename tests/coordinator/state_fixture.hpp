// A small run for tests of the pure core: 3 blocks, 2 shards a boundary, one shard a capture task.
#pragma once

#include <gtest/gtest.h>

#include "coordinator/plan/plan.hpp"
#include "coordinator/state/state.hpp"
#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator {

inline const KeepBoundaries kKeepAll{KeepBoundaries::Kind::kAll, 1};
inline const KeepBoundaries kKeepNone{KeepBoundaries::Kind::kNone, 1};

inline Geometry small_geometry() {
  Geometry geometry;
  geometry.num_layers = 5;  // blocks of 2, 2 and 1
  geometry.layers_per_block = 2;
  geometry.num_shards = 2;
  geometry.shards_per_capture = 1;
  geometry.sequences_per_shard = 4;
  geometry.seed = 7;
  geometry.finetunes = true;
  geometry.evaluates = {Subject::kTeacher, Subject::kTransfer, Subject::kLora};
  return geometry;
}

inline void must(State& state, const Event& event) {
  const auto rejection = coordinator::apply(state, event);
  ASSERT_FALSE(rejection) << type_of(event) << ": " << rejection->reason;
}

inline RunStarted small_run() {
  return {small_geometry(), "test", {"f00d", {{"tokens/transfer.h5", 10, {1, 2}}}}};
}

// The same, whose finetune learns from the teacher's logits, computed from boundary 2.
inline RunStarted run_with_logits() {
  RunStarted run = small_run();
  run.geometry.num_logit_pieces = 2;
  run.geometry.logits_from_boundary = true;
  return run;
}

inline State started_state() {
  State state;
  must(state, small_run());
  return state;
}

inline storage::FileRecord file_named(const std::string& name) { return {name, 10, {1, 2}}; }

inline void grant(State& state,
                  const TaskId& id,
                  std::uint64_t token,
                  const std::string& worker = "w1") {
  must(state, Granted{id, token, worker, 1, "cpu"});
}

// Grants, commits what must be committed, done. Files are called after the token.
inline void complete(State& state,
                     const TaskId& id,
                     std::uint64_t token,
                     const std::string& worker = "w1") {
  grant(state, id, token, worker);
  if (id.stage == Stage::kCapture) {
    const ShardRange range = shards_of_piece(*state.geometry, id.piece);
    for (int shard = range.first; shard < range.first + range.count; ++shard) {
      must(
          state,
          ShardCommitted{token,
                         shard,
                         file_named(storage::RunLayout::hidden_shard(id.block + 1, shard, token))});
    }
    must(state, TaskDone{token, {}, nlohmann::json::object()});
  } else {
    must(state,
         TaskDone{token, {file_named("out.t" + std::to_string(token))}, nlohmann::json::object()});
  }
}

}  // namespace hedgerow::coordinator
