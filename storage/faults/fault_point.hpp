// Named places where a process may die on request, so that crash tests hit the state they mean
// instead of a random moment. Production code calls fault_point("worker.checkpoint.written") at the
// seams of the commit protocol; nothing happens unless the environment names that place:
//
//   HEDGEROW_FAULT=worker.checkpoint.written:3   SIGKILL to this process at its third visit
//   HEDGEROW_FAULT=worker.transfer.step@1:2      ... at its second visit for block 1
//   HEDGEROW_FAULT_ONCE=/dir/killed              ... unless this file exists; it is made first, so
//                                                that of all processes that inherit the
//                                                environment only one dies, once
//   HEDGEROW_FAULT_ACTION=stop                   SIGSTOP instead: all of the process, until SIGCONT
//   HEDGEROW_FAULT_ACTION=hang                   this thread alone, for ever; heartbeats go on
//
//   HEDGEROW_STORM=/dir                          a file there shows at which place the process is,
//                                                also when it is dead, and makes it die where that
//                                                file asks for it (fault_beacon.hpp)
//
// The names are listed in tests/faults/README.md. Cost when unset: two guarded statics are looked
// at, which is nothing beside the writes and steps between which the points stand.
#pragma once

#include <cstdint>
#include <string_view>

namespace hedgerow::storage {

// Any thread. Does not return when HEDGEROW_FAULT names `place` (and `block`, if it names one) and
// this is the visit it counts to, unless the action is `stop`.
// `place` is a literal.
void fault_point(std::string_view place, int block = -1);

// A stretch of work: its begin is a visit of `place`, and until its end the process is shown there,
// or at the points inside that it passes. For the one thread of a process that does its work.
class FaultScope {
 public:
  explicit FaultScope(std::string_view place);
  ~FaultScope();
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;

 private:
  std::string_view outer_;
};

// How many whole steps of its task the process has done, resumed ones included.
void fault_step(std::int64_t step);

}  // namespace hedgerow::storage
