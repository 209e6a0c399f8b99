#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "coordinator/cli/doctor/doctor.hpp"
#include "coordinator/cli/doctor/doctor_files.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/machine/gpus.hpp"

namespace hedgerow::coordinator::cli {
namespace {

// CUDA 13.0, which LibTorch and this build are made with, needs a driver of branch 580.
constexpr int kNeededDriver = 580;
constexpr int kNeededCuda = 13000;

// "580.65.06" of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ...".
std::string driver_version(const std::string& text) {
  std::istringstream words(text.substr(0, text.find('\n')));
  for (std::string word; words >> word;) {
    const bool is_number = word.find_first_not_of("0123456789.") == std::string::npos;
    if (is_number && word.find('.') != std::string::npos) return word;
  }
  return "";
}

std::string cuda_text(int api) {
  return std::to_string(api / 1000) + "." + std::to_string(api % 1000 / 10);
}

Finding check_driver(const MachineFacts& facts, const std::string& version) {
  const std::string found =
      (version.empty() ? std::string("of an unknown version") : version) +
      (facts.cuda_driver_api > 0 ? ", offers CUDA " + cuda_text(facts.cuda_driver_api)
                                 : ", and libcuda.so.1 cannot be loaded");
  const std::string wanted = std::to_string(kNeededDriver);
  const bool is_new = facts.cuda_driver_api >= kNeededCuda ||
                      (facts.cuda_driver_api == 0 && std::atoi(version.c_str()) >= kNeededDriver);
  if (facts.cuda_driver_api == 0) {
    return {"GPU driver",
            facts.has_cuda ? Level::kFail : Level::kWarn,
            found,
            std::string("give the container the driver's libraries (--nv, --gpus all), or install "
                        "them on the host") +
                (is_new ? "" : "; CUDA 13.0 needs driver " + wanted + " or newer")};
  }
  if (is_new) return {"GPU driver", Level::kOk, found, ""};
  return {"GPU driver",
          facts.has_cuda ? Level::kFail : Level::kWarn,
          found + "; CUDA 13.0 is needed",
          "install driver " + wanted +
              " or newer, or the package cuda-compat-13-0 on a data "
              "center's card"};
}

Finding check_devices(const MachineFacts& facts, int num_devices) {
  const std::string found = std::to_string(num_devices) + " device(s)";
  if (facts.has_cuda) return {"GPU", Level::kOk, found, ""};
  return {"GPU",
          Level::kWarn,
          found + ", but this build has no CUDA and computes on the CPU",
          "deploy/setup --cuda && cmake --preset cuda && cmake --build --preset cuda"};
}

// The first two numbers of "2.28.9" or "Open MPI v4.1.4".
std::pair<int, int> major_minor(const std::string& text) {
  const std::size_t at = text.find_first_of("0123456789");
  if (at == std::string::npos) return {0, 0};
  const std::size_t dot = text.find('.', at);
  return {std::atoi(text.c_str() + at),
          dot == std::string::npos ? 0 : std::atoi(text.c_str() + dot + 1)};
}

std::pair<std::string, std::string> versions(const nlohmann::json& probe, const char* library) {
  const nlohmann::json both = probe.value(library, nlohmann::json::object());
  return {both.value("built", ""), both.value("found", "")};
}

}  // namespace

std::vector<Finding> examine_gpus(const MachineFacts& facts) {
  const std::string driver = file_text(facts.root / "proc/driver/nvidia/version");
  const auto visible = facts.variable("CUDA_VISIBLE_DEVICES");
  const int num_devices =
      wire::num_visible_gpus(facts.root / "dev", visible ? visible->c_str() : nullptr);
  if (num_devices == 0 && driver.empty()) return {{"GPU", Level::kOk, "none: runs on the CPU", ""}};
  if (num_devices > 0 && !driver.empty())
    return {check_devices(facts, num_devices), check_driver(facts, driver_version(driver))};
  if (num_devices == 0 && visible && !driver.empty()) {
    return {{"GPU",
             Level::kWarn,
             "CUDA_VISIBLE_DEVICES=\"" + one_line(*visible) + "\" hides all",
             "ask the scheduler for GPUs, or unset it"}};
  }
  return {{"GPU",
           Level::kWarn,
           driver.empty() ? "devices without a driver" : "a driver without devices",
           "start the container with its GPUs (--gpus all, --nv), or reload the driver"}};
}

Finding judge_nccl(const nlohmann::json& probe) {
  const auto [built, found] = versions(probe, "nccl");
  if (built.empty()) {
    return {
        "NCCL", Level::kOk, "none in this build: GPUs would exchange gradients through MPI", ""};
  }
  if (found.empty()) {
    return {"NCCL",
            Level::kFail,
            "compiled with " + built + ", and libnccl.so.2 does not answer",
            "run deploy/setup --cuda, or set finetune.exchange = \"mpi\""};
  }
  if (major_minor(found) < major_minor(built)) {
    return {"NCCL",
            Level::kFail,
            found + " is loaded, compiled with " + built,
            "an older library lacks what the program calls: take its folder out of "
            "LD_LIBRARY_PATH, or load a module with " +
                built + " or newer"};
  }
  return {"NCCL", Level::kOk, found + ", compiled with " + built, ""};
}

Finding judge_mpi_library(const nlohmann::json& probe) {
  const auto [built, found] = versions(probe, "mpi");
  if (built.empty()) {
    return {"MPI library",
            Level::kWarn,
            "none in this build: the finetune stage has one rank",
            "install libopenmpi-dev and build again, or set finetune.ranks = 1"};
  }
  const std::string text = found + ", compiled with " + built;
  // Open MPI keeps its interface within a major version.
  if (major_minor(found).first == major_minor(built).first)
    return {"MPI library", Level::kOk, text, ""};
  return {"MPI library",
          Level::kFail,
          text,
          "load a module with the same major version, or build against the one that is loaded"};
}

}  // namespace hedgerow::coordinator::cli
