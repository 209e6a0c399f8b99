// The job scripts of `hedgerow submit --slurm`, as text: what Slurm is asked for, what runs in the
// batch step, and what a round's end leads to. Pure; the command writes and submits them.
//
//   one allocation          --array                     finetune apart, after the first ended well
//     run.sbatch              coordinator.sbatch          finetune.sbatch
//       hedgerow run            hedgerow run                hedgerow run
//       workers.sh: srun      worker.sbatch, N tasks        finetune-workers.sh: srun
//       mpirun                  srun hedgerow worker        mpirun
//
// With slurm.container each of ours runs in an image by `apptainer exec`, and srun and mpirun stay
// outside, where no coordinator in an image reaches them: the batch step starts workers.sh, and
// ranks.sh when the run says that its stage waits (finetune.launch = "elsewhere").
//
// Invariant: a job goes back to the queue only where the run was interrupted by Slurm and can go
// on: after a signal, with exit code 4. `hedgerow stop`, scancel and errors end it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "storage/recipe/cluster_file.hpp"

namespace hedgerow::coordinator::cli {

// `text` as one word of a shell or of a #SBATCH line. No line breaks.
[[nodiscard]] std::string shell_word(std::string_view text);

struct SlurmJob {
  std::string run;       // the run directory, absolute
  std::string name;      // of the job, as people see it
  std::string hedgerow;  // the program as the nodes see it, or as it is called in the image
  storage::Cluster cluster;
  std::vector<std::string> binds{};  // with an image: folders that are seen in it too
  int array_tasks = 0;           // 0: one allocation
  bool finetunes_apart = false;  // in an allocation of its own
  int ranks = 1;                 // of the finetune stage
};

enum class SlurmRole { kRun, kCoordinator, kWorker, kFinetune, kLauncher };
[[nodiscard]] std::string_view to_string(SlurmRole role);

struct SlurmScript {
  SlurmRole role = SlurmRole::kRun;
  std::string file;  // its name in the run's folder slurm/
  std::string text;
};

// In the order in which they are submitted; launchers are not. Throws kUsage if the ranks do not
// fit the allocation that they would have.
[[nodiscard]] std::vector<SlurmScript> slurm_scripts(const SlurmJob& job);

// Names in the folder slurm/ of a run that the scripts themselves know.
inline constexpr const char* kSlurmRecipe = "recipe.toml";
inline constexpr const char* kSlurmCluster = "cluster.toml";  // where it tells of [[nodes]]
inline constexpr const char* kCoordinatorJob = "coordinator.job";  // the number of that job

}  // namespace hedgerow::coordinator::cli
