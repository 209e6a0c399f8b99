#include <fstream>
#include <sstream>
#include <thread>

#include "coordinator/plan.hpp"
#include "coordinator/wire/memory.hpp"
#include "storage/file.hpp"
#include "storage/tokens_file.hpp"

namespace hedgerow::coordinator {
namespace {

// Assumed: what a core sustains in the products of this kind of processor (bf16 with AMX; fp32 with
// AVX-512, which is the worker's choice there, and without). Only estimates of time rest on them.
constexpr double kFlopsPerCoreAmx = 0.3e12;
constexpr double kFlopsPerCoreAvx512 = 0.1e12;
constexpr double kFlopsPerCoreFloat = 0.04e12;

std::string processor_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) == 0) return line + " ";
  }
  return "";
}

TokensInfo info_of(const storage::RunLayout& layout, storage::DataStage stage, int vocab_size) {
  const std::filesystem::path path = layout.root() / storage::RunLayout::tokens(stage);
  if (!std::filesystem::exists(path)) return {};
  const storage::TokenSequences tokens = storage::load_tokens(path, vocab_size);
  return {tokens.num_train, tokens.num_sequences, tokens.seq_len};
}

}  // namespace

PlanTokens read_plan_tokens(const storage::RunLayout& layout, int vocab_size) {
  return {info_of(layout, storage::DataStage::kTransfer, vocab_size),
          info_of(layout, storage::DataStage::kFinetune, vocab_size),
          info_of(layout, storage::DataStage::kEvaluate, vocab_size)};
}

PlanLimits limits_of_this_machine(const std::filesystem::path& directory, int local_workers) {
  PlanLimits limits;
  std::filesystem::path existing = std::filesystem::absolute(directory);
  while (!std::filesystem::exists(existing) && existing.has_relative_path())
    existing = existing.parent_path();
  limits.free_disk_bytes = storage::free_bytes(existing);
  limits.memory_bytes = wire::usable_memory_bytes();
  limits.local_workers = local_workers;
  const std::string flags = processor_flags();
  const bool amx = flags.find(" amx_bf16 ") != std::string::npos;
  const bool avx512 = flags.find(" avx512f ") != std::string::npos;
  limits.compute_bytes = amx ? 2 : 4;  // as the worker resolves plan.compute_dtype = "auto"
  const double per_core = amx      ? kFlopsPerCoreAmx
                          : avx512 ? kFlopsPerCoreAvx512
                                   : kFlopsPerCoreFloat;
  const double cores = std::max(1U, std::thread::hardware_concurrency());
  limits.flops_per_second = per_core * cores / std::max(1, local_workers);
  return limits;
}

}  // namespace hedgerow::coordinator
