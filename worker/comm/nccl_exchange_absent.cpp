// Builds without NCCL: its version says so, and the rest is never called.
#include "storage/base/error.hpp"
#include "worker/comm/nccl_exchange.hpp"

namespace hedgerow::worker::nccl {
namespace {

[[noreturn]] void fail() {
  throw storage::Error(storage::ErrorKind::kInternal, "NCCL in a build without it");
}

}  // namespace

int version() { return 0; }
int built_version() { return 0; }
Gpu gpu_of(const at::Device& /*device*/) { fail(); }
std::unique_ptr<TensorExchange> connect(Communicator& /*communicator*/,
                                        const at::Device& /*device*/) {
  fail();
}

}  // namespace hedgerow::worker::nccl
