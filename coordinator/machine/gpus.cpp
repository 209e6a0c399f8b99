#include "coordinator/machine/gpus.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace hedgerow::machine {
namespace {

// "nvidia3"; not "nvidiactl", "nvidia-uvm".
bool is_gpu(std::string_view name) {
  constexpr std::string_view kPrefix = "nvidia";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         name.find_first_not_of("0123456789", kPrefix.size()) == std::string_view::npos;
}

}  // namespace

int num_visible_gpus(const std::filesystem::path& dev, const char* visible) {
  // Not counted up from 0: a container with one GPU may have nvidia3 alone.
  int present = 0;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(dev, unreadable))
    present += is_gpu(entry.path().filename().string()) ? 1 : 0;
  if (visible == nullptr) return present;
  const std::string_view list(visible);
  if (list.empty() || list.starts_with("-1")) return 0;
  return std::min(present, static_cast<int>(std::ranges::count(list, ',')) + 1);
}

int num_visible_gpus() { return num_visible_gpus("/dev", std::getenv("CUDA_VISIBLE_DEVICES")); }

}  // namespace hedgerow::machine
