// What one seed stands for: the size of the run, how long its work takes, and how hard chance hits.
// Each seed leaves some kinds of faults out, because faults hide each other.
#pragma once

#include <cstdint>

#include "coordinator/plan/plan.hpp"
#include "coordinator/state/state.hpp"
#include "tests/simulator/sim_worker.hpp"

namespace hedgerow::simulator {

// One bit of Scenario::faults each.
enum Fault : std::uint8_t {
  kKillWorker,
  kPauseWorker,
  kTerminateWorker,
  kCutBothWays,
  kCutToCoordinator,
  kCutFromCoordinator,
  kKillCoordinator,
  kKillAtDiskStep,
  kPowerAtDiskStep,
  kPauseCoordinator,
  kUsurpCoordinator,
  kDiskError,
  kDiskFull,
  kLoseFile,
  kCorruptFile,
  kDamageJournal,
  kStopRun,
  kClockJump,
  kHostPower,
  kCheck,
  kNumFaults
};

struct Scenario {
  std::uint64_t seed = 0;
  coordinator::Geometry geometry;
  coordinator::KeepBoundaries keep;
  WorkLoad load;
  Mishaps mishaps;
  int reseeds = 0;          // retries_with_new_seed
  int local_workers = 2;    // that the coordinator starts on its own host
  int elastic_workers = 0;  // that come and go by themselves
  // Probabilities of a message.
  double lost = 0.0, doubled = 0.0, delayed = 0.0;
  // Faults of everything else: one every so often until `chaos_ends`, of the kinds in `faults`.
  // Then
  // the world is kind, and the run must end in time.
  milliseconds between_faults{20'000}, chaos_ends{0}, must_end_within{4 * 3600 * 1000};
  std::uint64_t faults = ~std::uint64_t{0};
  // How many turns pass between two comparisons of every task with the journal's.
  std::uint64_t turns_per_comparison = 1;
};

// Up to 8 workers, a few blocks: many seeds.
[[nodiscard]] Scenario small_scenario(std::uint64_t seed);
// Thousands of workers over thousands of tasks: few seeds.
[[nodiscard]] Scenario large_scenario(std::uint64_t seed, int workers);

}  // namespace hedgerow::simulator
