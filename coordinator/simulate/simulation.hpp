// What a run would take on a cluster whose nodes fail: makespan, utilization and GPU-hours, for
// `hedgerow plan --simulate`. The scheduler, the state and the intents are those of a real run;
// time is virtual, and how long a task takes is the caller's to say. No clock, socket, file or
// thread: the same input gives the same answer. What is counted and what is left out stands in
// coordinator/README.md "What a simulation counts".
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/dispatch/scheduler.hpp"
#include "coordinator/plan/plan.hpp"
#include "coordinator/state/geometry.hpp"

namespace hedgerow::coordinator {

// Equal workers on equal nodes.
struct SimulatedWorkers {
  std::string name;
  int nodes = 1, workers_per_node = 1;
  int gpus_per_worker = 0;                     // 0: on CPUs
  std::uint64_t memory_bytes = 0;              // of a worker; 0: everything fits
  double mean_seconds_between_failures = 0.0;  // of a node, whose workers die together; 0: never
};

struct SimulationInput {
  Geometry geometry;
  MemoryNeeds needs;
  KeepBoundaries keep;
  std::vector<SimulatedWorkers> workers;
  // Seconds that a worker of workers[kind] takes for all of a pulled task; for finetune: the whole
  // stage over all its ranks, where `kind` is that of its first node.
  std::function<double(const TaskId& task, std::size_t kind)> task_seconds;
  // The part of it that a worker that holds the block of its last task does not spend again. Null:
  // nothing.
  std::function<double(const TaskId& task, std::size_t kind)> load_seconds{};
  double checkpoint_seconds = 60.0;  // between two of a transfer or of finetune; 0: nothing is lost
  double lease_seconds = 30.0;       // until the death of a worker is noticed
  double restart_seconds = 120.0;    // until a node's workers are back
  int finetune_nodes = 1;            // that finetune holds; the death of one ends its attempt
  int finetune_gpus = 0;             // that finetune's ranks use, all together
  std::uint64_t seed = 0;            // of the failures
};

struct SimulatedStage {
  Stage stage = Stage::kCapture;
  double first_start = 0.0, last_end = 0.0;  // 0 if none began, if none was done
  double granted_seconds = 0.0;              // in which one of its tasks was granted
  double busy_worker_seconds = 0.0;          // whose result was kept
  double busy_gpu_seconds = 0.0;             // of those, on GPUs
  double lost_worker_seconds = 0.0;          // whose result died with a node
  int tasks = 0;                             // done
};

struct Simulation {
  double makespan_seconds = 0.0;
  double utilization = 0.0;     // busy worker seconds / (workers x makespan)
  double gpu_hours_held = 0.0;  // all GPUs for the makespan
  double gpu_hours_useful = 0.0, gpu_hours_lost = 0.0;  // the rest was idle, or down
  int failures = 0;                                     // of nodes, within the makespan
  bool finished = false;               // false: a task was given up, or can never run
  std::string problem;                 // which, and why; empty when finished
  std::vector<SimulatedStage> stages;  // that the run has, in their order
};

// Assemble takes no time. Throws kUsage for input without workers, with negative or infinite times
// or counts out of range, naming the field; and when task_seconds gives such a time, naming the
// task.
[[nodiscard]] Simulation simulate(const SimulationInput& input);

}  // namespace hedgerow::coordinator
