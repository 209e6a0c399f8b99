// What `hedgerow submit --slurm` knows of a cluster: a TOML file that people write once
// (deploy/slurm/cluster.example.toml), read as strictly as a recipe. Plain data: the job scripts
// are made of it in coordinator/cli/run/slurm_scripts. Nothing in it has a say in what a run
// computes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hedgerow::storage {

// [slurm]: of every job. Empty or 0: what the cluster takes by itself.
struct SlurmSection {
  std::string partition{}, account{}, qos{};
  std::string time = "24:00:00";        // of one round; the run goes on in the next
  int signal_seconds = 180;             // before the time is over, for checkpoints
  int max_requeues = 100;               // rounds that one submission may add to its first
  std::vector<std::string> modules{};   // `module load` of each
  std::vector<std::string> prologue{};  // lines of shell before anything of ours, in each script
  std::vector<std::string> sbatch{};    // further options of sbatch, as "--exclusive"
  std::string hedgerow{};  // the program as the nodes see it; empty: the one that submits
  std::string bind{};      // address or interface of the coordinator's node; empty: all of them
  bool operator==(const SlurmSection&) const = default;
};

// [workers]: the allocation of a run, or one task of the array; [finetune] and [coordinator]: those
// of their own, where they have one.
struct SlurmShape {
  int nodes = 0;
  int tasks_per_node = 0;  // workers, or ranks
  int gpus_per_task = 0;
  int cpus_per_task = 0;
  std::string gres{};                      // of a node, in place of gpus_per_task: "gpu:a100:4"
  std::string memory{};                    // of a node: "200G"; "0": all of it
  std::string partition{}, qos{}, time{};  // in place of [slurm]'s
  std::vector<std::string> sbatch{};       // after [slurm]'s
  std::vector<std::string> srun{};         // options of the workers' srun
  bool operator==(const SlurmShape&) const = default;
};

struct Cluster {
  SlurmSection slurm;
  SlurmShape workers{.nodes = 1, .tasks_per_node = 1};
  SlurmShape coordinator{.nodes = 1, .tasks_per_node = 1};  // with --array
  SlurmShape finetune;                                      // what it leaves out is [workers]'s
  std::string finetune_allocation = "auto";                 // auto | same | own
  bool operator==(const Cluster&) const = default;

  // Throws kUsage, one line a problem with its place and key, as Recipe::parse.
  static Cluster parse(const std::string& toml, const std::string& name);
  // parse() of a file; throws kUsage if there is none.
  static Cluster load(const std::filesystem::path& path);
};

}  // namespace hedgerow::storage
