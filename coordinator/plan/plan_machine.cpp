#include <algorithm>
#include <thread>

#include "coordinator/machine/memory.hpp"
#include "coordinator/machine/processor.hpp"
#include "coordinator/plan/planner.hpp"
#include "storage/files/file.hpp"
#include "storage/shards/tokens_file.hpp"

namespace hedgerow::coordinator {
namespace {

// Assumed: what a core of this kind of processor sustains, in the dtype that "auto" takes there.
// Only estimates of time rest on it. AVX512_BF16 as measured on an EPYC (Zen 5), the others in
// proportion.
ComputeSpeed core_speed(machine::MatrixUnits units) {
  switch (units) {
    case machine::MatrixUnits::kAmx:
    case machine::MatrixUnits::kAvx512Bfloat:
      return {0.3e12, 0.06e12};
    case machine::MatrixUnits::kAvx512:
      return {0.1e12, 0.06e12};
    case machine::MatrixUnits::kNone:
      break;
  }
  return {0.04e12, 0.03e12};
}

TokensInfo info_of(const storage::RunLayout& layout, const storage::TokensOf& of, int vocab_size) {
  const std::filesystem::path path = layout.resolve(storage::RunLayout::tokens(of));
  if (!std::filesystem::exists(path)) return {};
  const storage::TokenSequences tokens = storage::load_tokens(path, vocab_size);
  return {tokens.num_train, tokens.num_sequences, tokens.seq_len};
}

}  // namespace

PlanTokens read_plan_tokens(const storage::RunLayout& layout,
                            const storage::Recipe& recipe,
                            int vocab_size) {
  PlanTokens tokens{info_of(layout, storage::DataStage::kTransfer, vocab_size),
                    info_of(layout, storage::DataStage::kFinetune, vocab_size),
                    info_of(layout, storage::DataStage::kEvaluate, vocab_size)};
  for (const storage::NamedText& text : recipe.texts)
    tokens.texts.push_back(info_of(layout, {storage::DataStage::kEvaluate, text.name}, vocab_size));
  return tokens;
}

std::vector<WorkerKind> workers_of_this_machine(int local_workers, bool on_gpus) {
  if (local_workers == 0) return {};
  WorkerKind kind;
  kind.name = "this machine";
  kind.workers_per_node = local_workers;
  kind.on_gpu = on_gpus;
  kind.host_memory_bytes = machine::usable_memory_bytes();
  kind.cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  // Nothing is known of a GPU without its driver; each worker says what it has when it joins.
  if (!on_gpus) kind.speed = core_speed(machine::matrix_units());
  return {kind};
}

PlanLimits limits_of_this_machine(const std::filesystem::path& directory) {
  PlanLimits limits;
  std::filesystem::path existing = std::filesystem::absolute(directory);
  while (!std::filesystem::exists(existing) && existing.has_relative_path())
    existing = existing.parent_path();
  limits.free_disk_bytes = storage::free_bytes(existing);
  limits.compute_bytes = machine::multiplies_bfloat16_faster(machine::matrix_units()) ? 2 : 4;
  return limits;
}

}  // namespace hedgerow::coordinator
