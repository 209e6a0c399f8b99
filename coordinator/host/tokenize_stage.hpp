// While `run` makes what a coordinator needs (tokens, which can take an hour), there is none to be
// found; this says who is at it: preparing.json, of the format of coordinator.json with term 0. So
// `stop` and `status` find it on any node, and a second `run` is refused, also one that begins at
// the same moment. The file goes with the object.
#pragma once

#include <optional>
#include <thread>

#include "coordinator/host/run_ownership.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "storage/files/scoped_file.hpp"

namespace hedgerow::coordinator {

class TokenizeStage {
 public:
  // `known`: as refuse_if_held() gave it. Throws kUsage, naming the process that was faster.
  explicit TokenizeStage(const storage::RunLayout& layout, const Leftovers& known = {});
  TokenizeStage(const TokenizeStage&) = delete;
  TokenizeStage& operator=(const TokenizeStage&) = delete;

 private:
  storage::ScopedFile file_;
  std::jthread
      heartbeats_;  // every wire::kHeartbeatInterval: how another host tells that this one lives
};

// Who prepares the run now; on another host by the age of the last beat.
[[nodiscard]] std::optional<wire::CoordinatorFile> running_tokenize_stage(
    const storage::RunLayout& layout);

}  // namespace hedgerow::coordinator
