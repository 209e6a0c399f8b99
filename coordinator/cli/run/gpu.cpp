#include "coordinator/cli/run/gpu.hpp"

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

}  // namespace hedgerow::coordinator::cli
