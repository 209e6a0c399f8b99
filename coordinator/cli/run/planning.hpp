// A recipe, its model and its data brought together: what `plan`, `doctor` and `run` share before a
// run starts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "coordinator/plan/planner.hpp"
#include "coordinator/simulate/simulation.hpp"
#include "storage/recipe/cluster_file.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {

// What a recipe is planned for, and where.
struct PlanFor {
  std::filesystem::path directory;            // of the run, which need not exist yet
  std::optional<storage::Cluster> cluster{};  // what it says of nodes stands for this machine
  int local_workers = 0;  // without a cluster; 0: nothing is known of the others
  // Its directory is where the run will lie, also for the machines of a cluster file.
  bool is_there = false;
  bool in_allocation = false;  // without either: workers like this node, as many as
                               // the batch system gave
  // What is planned before it is downloaded: weights may be missing, then texts too, and the plan
  // says which were. Without the weights this machine is not taken for the one that will compute.
  bool before_download = false;
};
// PlanFor of recipe.workers.local, or `workers` in their place.
[[nodiscard]] PlanFor plan_for(const storage::Recipe& recipe,
                               const std::filesystem::path& directory,
                               const std::string& cluster_file = "",
                               std::optional<int> workers = {});

// Whether all weight files of the recipe's model are here. Throws as ModelDirectory::open() does.
[[nodiscard]] bool has_weights(const storage::Recipe& recipe);

// What "auto" and 0 mean for those who will compute is decided once and written into the run,
// because results depend on it (plan.compute_dtype, the threads of workers and ranks that run here)
// or because the run is cut by it (plan.layers_per_block, plan.keep_boundaries). Where nothing is
// known of the workers, dtype and cut stay open for them (coordinator/serve/workers_awaited.hpp).
void resolve(storage::Recipe& recipe, const PlanFor& planned);

// Throws kUsage or kUnavailable for a device that the local workers cannot have, and kUsage naming
// a source that is missing or empty and whose tokens the run does not have yet. Where tokens files
// are missing, the number of sequences is what the recipe's step budget visits. What the run has
// stored there already is room that it need not find. What resolve() left open is taken as this
// machine would have it.
[[nodiscard]] Plan plan_of(const storage::Recipe& recipe, const PlanFor& planned);
// The same for other k; the recipe's own among them.
[[nodiscard]] std::vector<KChoice> choices_of(const storage::Recipe& recipe,
                                              const PlanFor& planned);

// The run as the scheduler would drive it on those workers, with failures at the rate that the
// cluster file gives, drawn from `seed`. Throws kUsage where no time is known.
[[nodiscard]] Simulation simulated(const storage::Recipe& recipe,
                                   const PlanFor& planned,
                                   std::uint64_t seed);

// The transfer's text before it is tokenized: a plan then rests on its size.
struct UnreadText {
  std::uint64_t bytes = 0;
  std::int64_t rough_sequences = 0;  // at four bytes a token
  // No more than a token a byte; none where a template or compression adds what the size hides.
  std::optional<std::int64_t> most_tokens;
};
// None once the run at `directory` has its tokens, or if they come as tokens files.
[[nodiscard]] std::optional<UnreadText> unread_text(const storage::Recipe& recipe,
                                                    const std::filesystem::path& directory);

// What the transfer lacks with a text that cannot even give its validation part and one sequence to
// train on, however it is tokenized.
[[nodiscard]] std::optional<PlanProblem> text_problem(const UnreadText& text,
                                                      const storage::DataSection& data);

}  // namespace hedgerow::coordinator::cli
