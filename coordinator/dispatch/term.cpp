#include "coordinator/dispatch/term.hpp"

#include <malloc.h>

#include <algorithm>

#include "coordinator/dispatch/commit.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {

using storage::Error;
using storage::ErrorKind;

// More than a run grants between two restarts.
constexpr std::uint64_t kSkippedAfterDamage = 1'000'000;

std::uint64_t token_floor(const storage::RunLayout& layout,
                          const storage::ReplayResult& replayed,
                          const storage::Disk& disk) {
  const std::uint64_t seen = largest_token_on_disk(layout, disk);
  const bool is_damaged = std::any_of(replayed.damage.begin(),
                                      replayed.damage.end(),
                                      [](const auto& damage) { return !damage.is_torn_tail; });
  return is_damaged ? std::max(seen, fold(replayed).state.last_token) + kSkippedAfterDamage : seen;
}

Term open_term(const storage::RunLayout& layout,
               const storage::ReplayResult& replayed,
               FoldedRun folded,
               const Clock& clock,
               storage::Disk& disk) {
  const std::string& recipe = folded.state.recipe.hash;
  storage::Journal journal =
      storage::Journal::start_term(layout, replayed, disk, clock.utc(), recipe);
  delete_dropped_shards(layout, folded.state, 0, disk);
  delete_dropped_logits(layout, folded.state, disk);
  // The journal wrote the term's first record itself; the state follows it as replay will.
  static_cast<void>(apply(folded.state, TermStarted{recipe}));
  folded.times.close(folded.last_at);  // or the time without a coordinator would count as work
  return {std::move(folded), std::move(journal)};
}

void release(storage::ReplayResult replayed) {
  replayed = {};
  ::malloc_trim(0);  // it was allocated in millions of pieces, which free() alone keeps
}

void check_same_shape(const Geometry& recorded, Geometry now) {
  now.shards_per_capture = recorded.shards_per_capture;
  if (now == recorded) return;
  const nlohmann::json before = storage::fields_to_json(recorded);
  const nlohmann::json after = storage::fields_to_json(now);
  std::string differences;
  for (const auto& [key, value] : after.items()) {
    if (value == before.at(key)) continue;
    differences += (differences.empty() ? "" : ", ") + key + " was " + before.at(key).dump() +
                   " and is " + value.dump();
  }
  throw Error(ErrorKind::kUsage,
              "the run was started with another shape: " + differences +
                  "; undo the change, or start a new run directory");
}

void begin_term(Dispatcher& dispatcher,
                const Geometry& geometry,
                const RunInputs& inputs,
                const std::string& build,
                const std::string& earlier_build,
                const std::string& recipe) {
  if (dispatcher.state().recipe.text.empty() && !recipe.empty())
    dispatcher.record(RecipeRecorded{recipe});
  if (!dispatcher.state().geometry) {
    dispatcher.record(RunStarted{geometry, build, inputs});
    return;
  }
  check_same_shape(*dispatcher.state().geometry, geometry);
  if (!earlier_build.empty() && earlier_build != build) {
    dispatcher.record(Noted{"resumed by build " + build + ", started by " + earlier_build +
                            ": equal bytes are no longer promised"});
  }
  std::vector<TaskId> quarantined;
  for (const auto& [id, task] : dispatcher.state().tasks) {
    if (task.state == TaskState::kQuarantined) quarantined.push_back(id);
  }
  for (const TaskId& id : quarantined)
    dispatcher.record(Retried{id, "the run was started again", std::nullopt});
}

}  // namespace hedgerow::coordinator
