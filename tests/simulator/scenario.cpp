#include "tests/simulator/scenario.hpp"

#include <algorithm>

namespace hedgerow::simulator {
namespace {

using coordinator::KeepBoundaries;
using coordinator::Subject;

void draw_chaos(Scenario& scenario, Random& random) {
  const auto some = [&random](double most) { return random.chance(0.5) ? 0.0 : most; };
  scenario.lost = some(0.08);
  scenario.doubled = some(0.08);
  scenario.delayed = random.chance(0.1) ? 0.2 : some(0.03);
  scenario.mishaps.fails = random.chance(0.1) ? 0.3 : some(0.02);
  scenario.mishaps.exhausted = 0.3;
  scenario.mishaps.hangs = some(0.01);
  scenario.faults = random.next() | random.next();  // three kinds of four
  if (random.chance(0.2)) {
    // Tasks are given up while late messages of their attempts are still on the way.
    scenario.mishaps.fails = 0.25;
    scenario.delayed = 0.3;
    for (const Fault fault : {kTerminateWorker, kPauseWorker}) scenario.faults |= 1ULL << fault;
    for (const Fault fault : {kDamageJournal, kStopRun, kDiskFull})
      scenario.faults &= ~(1ULL << fault);
  }
}

}  // namespace

Scenario small_scenario(std::uint64_t seed) {
  Random random(seed);
  Scenario scenario;
  scenario.seed = seed;
  coordinator::Geometry& geometry = scenario.geometry;
  geometry.num_layers = static_cast<int>(random.between(5, 8));
  geometry.layers_per_block = static_cast<int>(random.between(1, 2));
  geometry.num_shards = static_cast<int>(random.between(3, 5));
  geometry.shards_per_capture = static_cast<int>(random.between(1, 2));
  geometry.sequences_per_shard = 4;
  geometry.seed = random.below(1000);
  geometry.finetunes = random.chance(0.8) || geometry.num_blocks() < 4;
  if (random.chance(0.2) && geometry.num_blocks() > 3) geometry.untrained_blocks = {0};
  if (random.chance(0.6)) geometry.evaluates = {Subject::kTeacher, Subject::kTransfer};
  if (!geometry.evaluates.empty() && geometry.finetunes)
    geometry.evaluates.push_back(Subject::kLora);
  const auto kind = static_cast<KeepBoundaries::Kind>(random.below(4));
  scenario.keep = {.kind = kind, .every = 2};
  scenario.local_workers = static_cast<int>(random.between(0, 4));
  scenario.elastic_workers =
      static_cast<int>(random.between(scenario.local_workers < 3 ? 1 : 0, 4));
  scenario.load.transfer_steps = static_cast<int>(random.between(5, 9));
  scenario.load.finetune_steps = static_cast<int>(random.between(2, 8));
  scenario.load.checkpoint_every = static_cast<int>(random.between(1, 4));
  scenario.load.step = random.duration(milliseconds(500), milliseconds(9000));
  scenario.load.shard = random.duration(milliseconds(500), milliseconds(9000));
  draw_chaos(scenario, random);
  if (random.chance(0.1)) {
    scenario.mishaps.poison = to_string(coordinator::TaskId::transfer(geometry.num_blocks() - 1));
  }
  scenario.reseeds = static_cast<int>(random.below(3));
  // Which seed made an artifact could not be told from a journal that lost a record.
  if (scenario.reseeds > 0) scenario.faults &= ~(std::uint64_t{1} << kDamageJournal);
  scenario.between_faults = random.duration(milliseconds(1500), milliseconds(15'000));
  scenario.chaos_ends = random.duration(milliseconds(30'000), milliseconds(200'000));
  if (geometry.finetunes && random.chance(0.5)) {
    geometry.logits_from_boundary = random.chance(0.6);
    geometry.num_logit_pieces = geometry.logits_from_boundary
                                    ? geometry.num_pieces()
                                    : static_cast<int>(random.between(1, 4));
    geometry.sequences_per_logit_piece = 4;
  }
  if (!geometry.evaluates.empty() && random.chance(0.5))
    geometry.num_evaluate_pieces = static_cast<int>(random.between(1, 3));
  return scenario;
}

Scenario large_scenario(std::uint64_t seed, int workers) {
  Random random(seed);
  Scenario scenario;
  scenario.seed = seed;
  coordinator::Geometry& geometry = scenario.geometry;
  geometry.num_layers = 4;
  geometry.layers_per_block = 1;
  geometry.num_shards = workers;
  geometry.shards_per_capture = 2;
  geometry.sequences_per_shard = 4;
  geometry.seed = 1;
  geometry.finetunes = true;
  geometry.evaluates = {Subject::kTeacher, Subject::kTransfer, Subject::kLora};
  scenario.keep = {.kind = KeepBoundaries::Kind::kLast, .every = 1};
  scenario.local_workers = 8;
  scenario.elastic_workers = workers - scenario.local_workers;
  scenario.load.shard = milliseconds(10'000);
  draw_chaos(scenario, random);
  // As rare, counted by worker, as hardware makes them and a hundred times more.
  for (double* rate : {&scenario.lost, &scenario.doubled, &scenario.delayed}) *rate /= 10.0;
  for (double* rate : {&scenario.mishaps.fails, &scenario.mishaps.hangs}) *rate /= 20.0;
  scenario.between_faults = milliseconds(3000);
  scenario.chaos_ends = milliseconds(150'000);
  scenario.turns_per_comparison = 2000;
  return scenario;
}

}  // namespace hedgerow::simulator
