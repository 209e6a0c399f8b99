// What an exception means at the worker's edges, as one kind and one sentence: where a task ends
// (serve.cpp), where a rank must leave before the stack unwinds into MPI_Finalize, and in main().
// Memory that runs out is kExhausted there, whichever library found it out, and its sentence names
// the work, what it asked for, what the plan counts for it and what there is.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "coordinator/wire/task.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::worker {

struct Failure {
  storage::ErrorKind kind = storage::ErrorKind::kInternal;
  std::string message;
};

// What was at work, for errors that cannot know.
struct Work {
  std::string name = "this command";  // "transfer of block 3 (layers 15-19)"
  std::uint64_t planned_bytes = 0;    // what the plan counts for it; 0: there is no plan
  std::string smaller =               // how to ask for less
      "give it a smaller problem";
};
[[nodiscard]] Work work_of(const wire::Task& task);

// The failure of the exception being handled: call it inside a catch block. Any thread; where
// CUDA's memory ran out, one whose current device it was.
[[nodiscard]] Failure current_failure(const Work& work = {});

// A place where memory ran out.
struct Room {
  std::string name;               // "the GPU (NVIDIA H100)", "this process"
  std::uint64_t total_bytes = 0;  // what it has in all
  std::uint64_t held_bytes = 0;   // by this process
  std::uint64_t free_bytes = 0;
};
// "transfer of block 3 (layers 15-19) ran out of memory: it asked for 2.00 GiB more, ...". `asked`
// is empty where it is not known.
[[nodiscard]] std::string out_of_memory_text(const Work& work,
                                             const std::string& asked,
                                             const Room& room);

}  // namespace hedgerow::worker
