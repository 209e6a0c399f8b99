#include "worker/task/failure.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string_view>

#include "coordinator/machine/memory.hpp"
#include "storage/files/filesystem_error.hpp"
#include "worker/device/cuda_device.hpp"

namespace hedgerow::worker {
namespace {

using storage::ErrorKind;

// LibTorch has a type for its own CUDA allocator's failure alone. cuBLAS's workspace, a kernel's
// stack, the CUDA context and the CPU's allocator say it in words.
constexpr std::array<std::string_view, 4> kWordsOfExhaustion = {
    "CUDA error: out of memory",  // LibTorch's words and those of kernels/cuda/tile/launch.cuh
    "CUBLAS_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate",
    "DefaultCPUAllocator: not enough"};

bool says_out_of_memory(const std::string& text) {
  return std::any_of(kWordsOfExhaustion.begin(),
                     kWordsOfExhaustion.end(),
                     [&text](std::string_view words) { return text.find(words) != text.npos; });
}

std::string gib(std::uint64_t bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(),
                text.size(),
                "%.2f GiB",
                static_cast<double>(bytes) / static_cast<double>(1U << 30));
  return text.data();
}

// "2.00 GiB" of "... Tried to allocate 2.00 GiB. GPU 0 has ...": a number and its unit.
std::string asked_in(const std::string& text) {
  constexpr std::string_view kBefore = "ried to allocate ";
  const std::size_t found = text.find(kBefore);
  if (found == text.npos) return "";
  const std::size_t begin = found + kBefore.size();
  const std::size_t unit = text.find(' ', begin);
  if (unit == text.npos) return "";
  const std::size_t end =
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", unit + 1);
  return text.substr(begin, end == text.npos ? text.npos : end - begin);
}

Room host_room() {
  Room room{.name = "this process", .total_bytes = machine::usable_memory_bytes()};
  room.held_bytes = machine::resident_memory().now;
  room.free_bytes = room.total_bytes - std::min(room.total_bytes, room.held_bytes);
  return room;
}

Room room_of(const std::string& text) {
  const bool on_gpu = text.find("CUDA") != text.npos || text.find("CUBLAS") != text.npos;
  if (!on_gpu || cuda::num_devices() == 0) return host_room();
  try {
    const at::Device device = cuda::current_device();
    const cuda::Memory memory = cuda::memory(device);
    return {"the GPU (" + cuda::model(device) + ")", memory.total, memory.reserved, memory.free};
  } catch (const c10::Error&) {
    return {};  // not even its context had room
  }
}

Failure exhausted(const Work& work, const std::string& text) {
  return {ErrorKind::kExhausted, out_of_memory_text(work, asked_in(text), room_of(text))};
}

}  // namespace

Work work_of(const wire::Task& task) {
  const wire::TaskKindRow& kind = wire::row_of(task.kind);
  Work work{.name = std::string(kind.word),
            .planned_bytes = task.memory_bytes,
            .smaller = std::string(kind.smaller)};
  const std::string last = std::to_string(task.first_layer + task.num_layers - 1);
  if (!task.subject.empty()) {
    work.name += " of " + task.subject;
  } else if (task.piece >= 0) {
    work.name += " of piece " + std::to_string(task.piece);
  } else if (task.block >= 0) {
    work.name +=
        " of block " + std::to_string(task.block) +
        (task.num_layers == 1 ? " (layer " + last + ")"
                              : " (layers " + std::to_string(task.first_layer) + "-" + last + ")");
  }
  return work;
}

std::string out_of_memory_text(const Work& work, const std::string& asked, const Room& room) {
  std::string text = work.name + " ran out of memory";
  const char* next = ": ";
  const auto add = [&](const std::string& clause) {
    text += next + clause;
    next = ", ";
  };
  if (!asked.empty()) add("it asked for " + asked + " more");
  if (work.planned_bytes > 0) add("the plan counts " + gib(work.planned_bytes) + " for it");
  if (room.total_bytes > 0) {
    const std::uint64_t known = room.held_bytes + room.free_bytes;
    const std::uint64_t others = room.total_bytes - std::min(room.total_bytes, known);
    add(room.name + " has " + gib(room.total_bytes) + ", of which this work holds " +
        gib(room.held_bytes) + (others > 0 ? ", other processes and contexts " + gib(others) : "") +
        " and " + gib(room.free_bytes) + " are free");
  }
  return text + "; " + work.smaller + ", or use another " +
         (room.name.starts_with("the GPU") ? "GPU that has more and nobody else's work"
                                           : "machine that has more");
}

Failure current_failure(const Work& work) {
  try {
    throw;
  } catch (const storage::Error& error) {
    return {error.kind(), error.what()};
  } catch (const c10::OutOfMemoryError& error) {
    return exhausted(work, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (says_out_of_memory(text)) return exhausted(work, text);
    return {ErrorKind::kInternal, text};
  } catch (const std::bad_alloc&) {
    return exhausted(work, "");
  } catch (const std::filesystem::filesystem_error& error) {
    const storage::Error known = storage::system_error(error);
    return {known.kind(), known.what()};
  } catch (const std::exception& error) {
    if (says_out_of_memory(error.what())) return exhausted(work, error.what());
    return {ErrorKind::kInternal, error.what()};
  } catch (...) {
    return {ErrorKind::kInternal, "an exception of unknown type"};
  }
}

}  // namespace hedgerow::worker
