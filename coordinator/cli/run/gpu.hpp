// What a run's recipe, its build and the GPUs of this machine come to. What is computed where in
// the end is the worker's choice (worker/device/device.hpp).
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {

// Whether the run's workers will compute on GPUs, as far as it can be told here: local workers
// follow this machine, workers elsewhere are taken to have what the build is for.
[[nodiscard]] bool computes_on_gpus(const storage::Recipe& recipe, bool has_cuda, int num_gpus);

// Throws kUsage if local workers are to compute on GPUs that this build cannot use, kUnavailable if
// none is visible.
void require_device(const storage::Recipe& recipe, bool has_cuda, int num_gpus);

// What this machine gives local workers to compute on: the GPUs that its build can use.
struct MachineGpus {
  bool has_cuda = false;
  int num_gpus = 0;
};
[[nodiscard]] MachineGpus gpus_of_this_machine();

// How many workers and ranks a recipe without numbers of its own means: one a GPU where it computes
// on GPUs of this machine, else the recipe's defaults. Ranks are no more than the workers, whose
// GPUs they take over; where others start them, or finetune.mesh counts them, they stay as they
// are. `workers`: in place of the recipe's.
[[nodiscard]] storage::ProcessCounts processes_for(const storage::Recipe& recipe,
                                                   std::optional<int> workers,
                                                   const MachineGpus& machine);

// The recipe of a file whose workers will be this machine's, on this device in place of plan.device
// (empty: as it says), with processes_for() where it leaves their numbers out. Throws as
// Recipe::load.
[[nodiscard]] storage::Recipe load_for_this_machine(
    const std::filesystem::path& path,
    const std::string& device,
    std::optional<int> workers,
    const MachineGpus& machine = gpus_of_this_machine());

// A warning of GPUs that no local worker will use; empty: none stands idle.
[[nodiscard]] std::string idle_gpus_warning(const storage::Recipe& recipe,
                                            int local_workers,
                                            const MachineGpus& machine);

}  // namespace hedgerow::coordinator::cli
