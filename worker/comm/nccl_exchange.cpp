// worker/comm/nccl_exchange.hpp on NCCL. The communicator is a non-blocking one: every call returns
// at once and is then asked for until it is complete, so that a lost peer meets a deadline. What
// has no such form (abort, destroy) is watched.
#include "worker/comm/nccl_exchange.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>

#include "storage/base/error.hpp"
#include "worker/comm/await.hpp"
#include "worker/comm/watchdog.hpp"

namespace hedgerow::worker::nccl {
namespace {

using storage::Error;
using storage::ErrorKind;

// The caller has waited for its deadline already.
constexpr std::chrono::seconds kAbortDeadline{10};
constexpr const char* kOtherWay =
    "; where NCCL does not work, finetune.exchange = \"mpi\" does without it";

class NcclExchange final : public TensorExchange {
 public:
  NcclExchange(Communicator& communicator, const at::Device& device)
      : communicator_(communicator), device_(device) {
    const c10::cuda::CUDAGuard guard(device_);
    ncclUniqueId id{};
    if (communicator.rank() == 0) started(ncclGetUniqueId(&id), "ncclGetUniqueId");
    communicator.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    constexpr const char* kCall = "ncclCommInitRankConfig";
    started(
        ncclCommInitRankConfig(&comm_, communicator.world_size(), id, communicator.rank(), &config),
        kCall);
    // All ranks are here: none is still loading a model, whatever the communicator's timeout.
    try {
      settle(kCall, std::min<std::chrono::milliseconds>(communicator.deadline(), kCommDeadline));
    } catch (const Error& error) {
      throw Error(error.kind(), error.what() + std::string(kOtherWay));
    }
  }

  ~NcclExchange() override {
    if (comm_ == nullptr) return;
    if (std::uncaught_exceptions() > exceptions_before_) {
      abort(who() + "an error");
    } else {
      close();
    }
  }

  NcclExchange(const NcclExchange&) = delete;
  NcclExchange& operator=(const NcclExchange&) = delete;

  void exchange(const at::Tensor& own, const at::Tensor& other, int peer) override {
    check_exchanged(own, other);
    const std::string call = "ncclSend and ncclRecv with rank " + std::to_string(peer);
    if (comm_ == nullptr)
      throw Error(ErrorKind::kUnavailable, who() + call + ": an earlier call failed");
    const c10::cuda::CUDAGuard guard(device_);
    const auto stream = c10::cuda::getCurrentCUDAStream(device_.index());
    // The time that this rank still computes is none that its peer is late.
    stream.synchronize();
    const auto send = [&] {
      const auto count = static_cast<std::size_t>(own.numel());
      return ncclSend(own.const_data_ptr(), count, ncclFloat, peer, comm_, stream);
    };
    const auto receive = [&] {
      const auto count = static_cast<std::size_t>(other.numel());
      return ncclRecv(other.mutable_data_ptr(), count, ncclFloat, peer, comm_, stream);
    };
    started(ncclGroupStart(), "ncclGroupStart");
    // The group is closed whatever becomes of its calls.
    const std::array results = {own.defined() ? send() : ncclSuccess,
                                other.defined() ? receive() : ncclSuccess,
                                ncclGroupEnd()};
    for (const ncclResult_t result : results) started(result, call);
    // Its kernel is in the stream only once the state is a success.
    settle(call, communicator_.deadline(), [&] { return stream.query(); });
  }

  [[nodiscard]] std::string name() const override { return "NCCL " + nccl_version_text(version()); }

 private:
  [[nodiscard]] std::string who() const {
    return "rank " + std::to_string(communicator_.rank()) + " of " +
           std::to_string(communicator_.world_size()) + ": ";
  }

  [[nodiscard]] std::string text_of(ncclResult_t result) const {
    std::string text = ncclGetErrorString(result);
    const char* last = ncclGetLastError(comm_);
    if (last != nullptr && *last != '\0') text += std::string(" (") + last + ")";
    return text;
  }

  // A call that went wrong at once; one in progress is settled.
  void started(ncclResult_t result, const std::string& call) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    const std::string message = who() + call + " failed: " + text_of(result) + kOtherWay;
    abort(message);
    throw Error(ErrorKind::kUnavailable, message);
  }

  [[nodiscard]] ncclResult_t state() const {
    ncclResult_t found = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &found);
    return asked == ncclSuccess ? found : asked;
  }

  // Waits until the communicator's calls are complete, and then for the rest.
  void settle(const std::string& call,
              std::chrono::milliseconds deadline,
              const std::function<bool()>& rest = {}) {
    ncclResult_t now = ncclInProgress;
    const auto failure = [&] {
      now = state();
      return now == ncclSuccess || now == ncclInProgress ? std::string() : text_of(now);
    };
    const auto is_done = [&] { return now == ncclSuccess && (!rest || rest()); };
    await_completion(who() + call,
                     {.is_done = is_done,
                      .failure = failure,
                      .interrupt = [this] { communicator_.check_interrupt(); },
                      .give_up = [this](const std::string& why) { abort(why); }},
                     deadline);
  }

  // Everybody is here before the calls that all must make, and rank 0 may still write the adapter.
  void close() noexcept {
    try {
      {
        const DeadlineScope timeout(communicator_);
        communicator_.barrier();
      }
      const c10::cuda::CUDAGuard guard(device_);
      started(ncclCommFinalize(comm_), "ncclCommFinalize");
      settle("ncclCommFinalize", kCommDeadline);
      const Watchdog watchdog(who() + "ncclCommDestroy", kCommDeadline);
      static_cast<void>(ncclCommDestroy(comm_));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "hedgerow-worker: %s\n", error.what());
      abort(error.what());
    }
  }

  // Ends what is under way on the device, and the communicator. If even that hangs, the process
  // ends, and says why.
  void abort(const std::string& why) {
    if (comm_ == nullptr) return;
    const Watchdog watchdog(why + "; ncclCommAbort", kAbortDeadline);
    static_cast<void>(ncclCommAbort(comm_));
    comm_ = nullptr;
  }

  Communicator& communicator_;
  const at::Device device_;
  ncclComm_t comm_ = nullptr;
  const int exceptions_before_ = std::uncaught_exceptions();
};

}  // namespace

int version() {
  int found = 0;
  return ncclGetVersion(&found) == ncclSuccess ? found : 0;
}

int built_version() { return NCCL_VERSION_CODE; }

Gpu gpu_of(const at::Device& device) {
  const cudaDeviceProp* properties = at::cuda::getDeviceProperties(device.index());
  Gpu gpu;
  std::array<char, 32> text{};
  for (const char byte : properties->uuid.bytes) {
    std::snprintf(text.data(), text.size(), "%02x", static_cast<unsigned char>(byte));
    gpu.uuid += text.data();
  }
  std::snprintf(text.data(),
                text.size(),
                "%04x:%02x:%02x",
                static_cast<unsigned>(properties->pciDomainID),
                static_cast<unsigned>(properties->pciBusID),
                static_cast<unsigned>(properties->pciDeviceID));
  gpu.slot = text.data();
  gpu.num_visible = c10::cuda::device_count();
  return gpu;
}

std::unique_ptr<TensorExchange> connect(Communicator& communicator, const at::Device& device) {
  return std::make_unique<NcclExchange>(communicator, device);
}

}  // namespace hedgerow::worker::nccl
