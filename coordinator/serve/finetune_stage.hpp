// One launch of the finetune stage, from the wait for its ranks to their end: ranks that mpirun
// starts here, or that a user or script starts (finetune.launch = "elsewhere"). Who holds which
// lease is the caller's; this only starts, watches and ends ranks. Called by the coordinator's
// loop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/host/clock.hpp"
#include "coordinator/host/launcher.hpp"
#include "coordinator/state/state.hpp"
#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator {

// What the caller knows of the stage's lease.
struct StageLease {
  bool is_held = false;
  bool was_given_back = false;  // by a rank that was told to stop and has checkpointed
};

struct StageEnd {
  bool is_interrupted = false;  // it was told to stop, and did
  std::string how;              // why its task failed, if its lease is still held
  storage::ErrorKind kind = storage::ErrorKind::kUnavailable;  // in which way
};

class FinetuneStage {
 public:
  virtual ~FinetuneStage() = default;

  // Whether start() may be called now. While this is false, wants() says what people have to do.
  [[nodiscard]] virtual bool is_ready(TimePoint now) = 0;
  [[nodiscard]] virtual std::string wants() const = 0;  // empty: nothing
  // The lease must be on disk. Returns a line for the log; empty: nothing to say.
  virtual std::string start(std::uint64_t token,
                            const std::string& student,
                            const std::string& endpoint) = 0;
  // The token of the ranks that were started; nullopt: none were yet.
  [[nodiscard]] virtual std::optional<std::uint64_t> token() const = 0;
  // Their end, once.
  [[nodiscard]] virtual std::optional<StageEnd> poll(TimePoint now, const StageLease& lease) = 0;
  virtual void signal(int number) = 0;  // SIGTERM: checkpoint and end
  // The process of this host; nullopt: the ranks are not ours to look at.
  [[nodiscard]] virtual std::optional<wire::ChildRecord> child() const = 0;
};

// With mpirun, on this host or on the nodes that a batch system gave it.
[[nodiscard]] std::unique_ptr<FinetuneStage> make_mpirun_stage(const LauncherConfig& config);
// Its fencing token goes to the launch that asks for it through the run directory
// (wire/stage_start.hpp).
[[nodiscard]] std::unique_ptr<FinetuneStage> make_external_stage(const LauncherConfig& config,
                                                                 const storage::RunLayout& layout);

// The stage that an earlier coordinator began and that goes on, and so does its lease; null: none.
// `children`: those of a coordinator of this host. `is_external`: see make_external_stage().
[[nodiscard]] std::unique_ptr<FinetuneStage> adopt_stage(
    const LauncherConfig& config,
    const storage::RunLayout& layout,
    const State& state,
    const std::vector<wire::ChildRecord>& children,
    bool is_external);

}  // namespace hedgerow::coordinator
