#include "coordinator/cli/run/gpu.hpp"

#include <algorithm>

#include "coordinator/machine/gpus.hpp"
#include "storage/base/build_info.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {

bool computes_on_gpus(const storage::Recipe& recipe, bool has_cuda, int num_gpus) {
  if (recipe.plan.device != "auto") return recipe.plan.device == "cuda";
  return has_cuda && (num_gpus > 0 || recipe.workers.local == 0);
}

void require_device(const storage::Recipe& recipe, bool has_cuda, int num_gpus) {
  if (recipe.plan.device != "cuda" || recipe.workers.local == 0) return;
  if (!has_cuda) {
    throw storage::Error(storage::ErrorKind::kUsage,
                         "plan.device is \"cuda\", but this build has no CUDA; build with 'cmake "
                         "--preset cuda', or set it to \"auto\" or \"cpu\"");
  }
  if (num_gpus == 0) {
    throw storage::Error(storage::ErrorKind::kUnavailable,
                         "plan.device is \"cuda\", but no GPU is visible here; look at nvidia-smi "
                         "and CUDA_VISIBLE_DEVICES, or set it to \"auto\" or \"cpu\"");
  }
}

MachineGpus gpus_of_this_machine() { return {storage::has_cuda(), machine::num_visible_gpus()}; }

storage::ProcessCounts processes_for(const storage::Recipe& recipe,
                                     std::optional<int> workers,
                                     const MachineGpus& machine) {
  storage::ProcessCounts counts;
  if (!machine.has_cuda || machine.num_gpus == 0 || recipe.plan.device == "cpu") return counts;
  counts.workers = machine.num_gpus;
  if (recipe.finetune.launch != "here" || recipe.finetune.mesh != "auto") return counts;
  const int local = workers.value_or(recipe.workers.local);
  counts.ranks = local > 0 ? std::min(local, machine.num_gpus) : machine.num_gpus;
  return counts;
}

storage::Recipe load_for_this_machine(const std::filesystem::path& path,
                                      const std::string& device,
                                      std::optional<int> workers,
                                      const MachineGpus& machine) {
  const auto on_device = [&device](storage::Recipe recipe) {
    if (!device.empty()) recipe.plan.device = device;
    return recipe;
  };
  storage::Recipe recipe = on_device(storage::Recipe::load(path));
  // A number that the file gives is the same in each reading.
  storage::ProcessCounts counts = processes_for(recipe, workers, machine);
  if (counts == storage::ProcessCounts{}) return recipe;
  counts.ranks = storage::ProcessCounts{}.ranks;
  recipe = on_device(storage::Recipe::load(path, counts));
  counts = processes_for(recipe, workers, machine);
  return on_device(storage::Recipe::load(path, counts));
}

std::string idle_gpus_warning(const storage::Recipe& recipe,
                              int local_workers,
                              const MachineGpus& machine) {
  if (!machine.has_cuda || recipe.plan.device == "cpu" || local_workers == 0 ||
      local_workers >= machine.num_gpus)
    return "";
  const std::string gpus = std::to_string(machine.num_gpus);
  return gpus + " GPUs are visible, but " + std::to_string(local_workers) + " local worker" +
         (local_workers == 1 ? " starts" : "s start") + ": the others stand idle; use --workers " +
         gpus + ", set workers.local = " + gpus +
         " in the recipe, or hide them with CUDA_VISIBLE_DEVICES";
}

}  // namespace hedgerow::coordinator::cli
