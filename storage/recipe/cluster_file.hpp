// What people know of a cluster: a TOML file that they write once (deploy/clusters, and
// deploy/slurm/cluster.example.toml), read as strictly as a recipe. Its machines are what a plan is
// held against (coordinator/plan); the job scripts of `hedgerow submit --slurm` are made of the
// rest (coordinator/cli/run/slurm_scripts). Of what a run computes it decides one thing, the dtype
// that plan.compute_dtype = "auto" comes to.
#pragma once

#include <filesystem>
#include <optional>
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
  // An image of Apptainer, in which all of ours runs; `hedgerow` is then a path inside it. Empty:
  // none.
  std::string container{};
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

// [[nodes]]: equal machines. Gigabytes are 10^9 bytes.
struct NodeKind {
  std::string name{};
  int count = 1;
  int gpus = 0;                // of a node; 0: its workers compute on its cores
  double gpu_memory_gb = 0.0;  // of one GPU
  double memory_gb = 0.0;      // of the host
  int cores = 1;
  double local_disk_gb = 0.0;   // 0: not told
  double price_per_hour = 0.0;  // of a node, in any currency; 0: not told
  double mtbf_hours = 0.0;      // mean time between failures of a node; 0: not told
  double product_tflops = 0.0;  // in products with a model's weights: of a GPU, or of a core where
                                // there is none; 0: assumed
  double other_tflops = 0.0;    // in all else, attention above all
  double disk_gb_s = 0.0;       // that one process reads of the run's file system; 0: assumed
  double worker_start_s = 0.0;  // until a worker asks for its first task; 0: assumed
  std::string measured{};       // when and on what; empty: these figures were not measured
  bool operator==(const NodeKind&) const = default;
};

// [shared]: the file system that all nodes see. 0: not told.
struct SharedDisk {
  double capacity_gb = 0.0;
  double bandwidth_gb_s = 0.0;  // of all nodes together
  bool operator==(const SharedDisk&) const = default;
};

// [network], by GPU or worker and direction. 0: not told.
struct Network {
  double inside_gb_s = 0.0;  // a node
  double between_gb_s = 0.0;
  bool operator==(const Network&) const = default;
};

struct Cluster {
  std::vector<NodeKind> nodes{};  // none: the file is of Slurm alone
  SharedDisk shared;
  Network network;
  SlurmSection slurm;
  SlurmShape workers{.nodes = 1, .tasks_per_node = 1};
  SlurmShape coordinator{.nodes = 1, .tasks_per_node = 1};  // with --array
  SlurmShape finetune;                                      // what it leaves out is [workers]'s
  std::string finetune_allocation = "auto";                 // auto | same | own
  bool operator==(const Cluster&) const = default;

  // Whether workers of it compute on GPUs; nullopt: the file does not say.
  [[nodiscard]] std::optional<bool> has_gpus() const;

  // Throws kUsage, one line a problem with its place and key, as Recipe::parse.
  static Cluster parse(const std::string& toml, const std::string& name);
  // parse() of a file, with slurm.container absolute: it is relative to the file's folder. Throws
  // kUsage if there is none.
  static Cluster load(const std::filesystem::path& path);
};

}  // namespace hedgerow::storage
