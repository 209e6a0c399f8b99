// What an exception means at the edge of the process: one message, one exit code. For main() and
// for a rank of an MPI job, which must end before the stack unwinds into MPI_Finalize.
#pragma once

#include <string>

#include "storage/error.hpp"

namespace hedgerow::worker {

struct Failure {
  std::string message;
  storage::ExitCode code;
};

// Of the exception being handled: call it inside a catch block. Any thread.
[[nodiscard]] Failure current_failure();

}  // namespace hedgerow::worker
