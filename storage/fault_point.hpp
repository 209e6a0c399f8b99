// Named places where a process may die on request, so that crash tests hit the state they mean
// instead of a random moment. Production code calls fault_point("worker.checkpoint.written") at the
// seams of the commit protocol; nothing happens unless the environment names that place:
//
//   HEDGEROW_FAULT=worker.checkpoint.written:3     SIGKILL to this process at the third visit
//
// The names are listed in tests/faults/README.md. Cost when unset: one load and one branch.
#pragma once

#include <string_view>

namespace hedgerow::storage {

// Any thread. Does not return when HEDGEROW_FAULT names `place` and this is the visit it counts to.
void fault_point(std::string_view place);

}  // namespace hedgerow::storage
