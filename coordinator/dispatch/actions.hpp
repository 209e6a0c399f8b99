// What the state asks the shell to do: idempotent intents, computed anew after every turn of the
// loop and once after a restart. Granting tasks to workers is not here: workers pull, and
// scheduler.hpp answers them.
#pragma once

#include <string>
#include <vector>

#include "coordinator/plan/plan.hpp"
#include "coordinator/state/state.hpp"
#include "coordinator/wire/task.hpp"

namespace hedgerow::coordinator {

enum class IntentKind {
  kAssemble,        // grant `assemble` to ourselves and do it
  kLaunchFinetune,  // drain the workers, grant `finetune`, start the MPI stage
  kDropBoundary,    // journal, then delete the files of `boundary`
  kDropLogits,      // the same of the teacher's logits
  kRecapture,       // `task`, dropped, is needed again
  kReseed,          // try `task`, a transfer, again with the next seed
  kQuarantine,      // give `task` up
  kFinish,          // done or partial: `phase`
};

struct Intent {
  IntentKind kind = IntentKind::kFinish;
  TaskId task;
  int boundary = 0;
  std::string reason;
  RunPhase phase = RunPhase::kDone;
};

// `retries_with_new_seed`: how often a transfer that would be given up starts again from another
// seed.
[[nodiscard]] std::vector<Intent> actions_for(const State& state,
                                              const KeepBoundaries& keep,
                                              int retries_with_new_seed = 0);

// The reaction to a task's failure: a switch over the kind and nothing else.
enum class Reaction {
  kRetry,       // counts towards quarantine
  kForget,      // the lease was lost: nothing happened
  kQuarantine,  // another try cannot mend what the user has to edit
  kCheckRoom,   // stop the run when the disk is full; otherwise it counts like kRetry
};
[[nodiscard]] Reaction reaction_to(storage::ErrorKind kind);

// Three failures in a row.
inline constexpr std::size_t kMaxFailures = 3;
// Six leases in a row that ran out with nothing committed in between. A task that kills workers
// shows nothing else where no launcher of this coordinator watches them and each comes back under a
// new name.
inline constexpr int kMaxExpiries = 6;
// How many distinct workers the failures in a row come from.
[[nodiscard]] std::size_t num_failed_workers(const TaskRecord& task);
// Three failures in a row on one worker only: it waits for a second worker before it is given up.
[[nodiscard]] bool wants_second_worker(const TaskRecord& task);
[[nodiscard]] std::string quarantine_reason(const TaskRecord& task);

// What is lost of a task whose holder reported this last; nullopt: nothing that is counted in
// steps.
[[nodiscard]] std::optional<LostSteps> lost_steps(const TaskRecord& task,
                                                  const wire::Progress* progress);

}  // namespace hedgerow::coordinator
