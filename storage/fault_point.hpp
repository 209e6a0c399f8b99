// Named places where a process may die on request, so that crash tests hit the state they mean
// instead of a random moment. Production code calls fault_point("worker.checkpoint.written") at the
// seams of the commit protocol; nothing happens unless the environment names that place:
//
//   HEDGEROW_FAULT=worker.checkpoint.written:3     SIGKILL to this process at its third visit
//   HEDGEROW_FAULT_ONCE=/dir/killed                ... unless this file exists; it is made first,
//   so that of all the
//                                                  processes that inherit the environment only one
//                                                  dies, once
//
// The names are listed in tests/faults/README.md. Cost when unset: one load and one branch.
#pragma once

#include <string_view>

namespace hedgerow::storage {

// Any thread. Does not return when HEDGEROW_FAULT names `place` and this is the visit it counts to.
void fault_point(std::string_view place);

}  // namespace hedgerow::storage
