// Pairs of ranks that send each other fp32 tensors, on the device where they lie: all that the tree
// of a step (worker/comm/tree_reduce.hpp) needs of its peers. Two ways, which move the same bytes,
// so that the choice never shows in a result:
//   mpi   through the Communicator; a tensor of a GPU is staged through the host
//   nccl  from GPU to GPU (worker/comm/nccl_exchange.hpp), where every rank has one of its own
// The ranks choose together, from what each of them tells about itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "worker/comm/communicator.hpp"

namespace hedgerow::worker {

class TensorExchange {
 public:
  virtual ~TensorExchange() = default;
  // Sends `own` to the peer and fills `other` with what the peer sends in its own call: fp32,
  // contiguous, of one shape on both sides and of one device here. An undefined one of the two (the
  // peer's counterpart is then undefined too): nothing goes that way. What was computed in the
  // current stream goes into it; when it returns, both may be used. Waits for the peer up to the
  // communicator's deadline. Throws storage::Error kUnavailable naming the peer, after which every
  // later call throws; kInternal for tensors that do not fit.
  virtual void exchange(const at::Tensor& own, const at::Tensor& other, int peer) = 0;
  [[nodiscard]] virtual std::string name() const = 0;
};

// What a rank tells the others about itself: the same bytes on all ranks give the same choice on
// all ranks.
struct RankPlace {
  std::int32_t is_on_gpu = 0;
  std::int32_t nccl_version = 0;      // 22809 is 2.28.9; 0: a build without
  std::int32_t num_visible_gpus = 0;  // that CUDA gives this rank to choose from; 0: not known
  // Texts, closed by zeros; of a GPU: its UUID and its place on the bus, empty without NCCL.
  std::array<char, 64> host{}, gpu_uuid{}, gpu_slot{};
};

// "2.28.9" of 22809.
[[nodiscard]] std::string nccl_version_text(int version);

struct ExchangeChoice {
  bool is_nccl = false;
  std::string reason;
};
// `setting` is finetune.exchange: "auto", "mpi" or "nccl". One rank has nothing to exchange; "nccl"
// gives it a communicator of its own all the same, which shows that NCCL starts here. Throws kUsage
// when "nccl" is asked for and cannot be.
[[nodiscard]] ExchangeChoice choose_exchange(const std::string& setting,
                                             std::span<const RankPlace> ranks);

// Throws kUsage where two ranks of a host compute on one GPU while it has others that no rank took:
// they do not know their numbers on the host.
void refuse_needless_sharing(std::span<const RankPlace> ranks);

// Collective: chooses for tensors of this device, and connects. A rank that `tells` says on stderr
// which way it is and why, where there is anything to say. The communicator must outlive the
// result, whose destructor is collective too. Throws as choose_exchange and
// refuse_needless_sharing; kUnavailable when ranks do not connect within kCommDeadline.
[[nodiscard]] std::unique_ptr<TensorExchange> make_tensor_exchange(Communicator& communicator,
                                                                   const at::Device& device,
                                                                   const std::string& setting,
                                                                   bool tells = true);
// Through the communicator, of any device.
[[nodiscard]] std::unique_ptr<TensorExchange> make_host_exchange(Communicator& communicator);

// Throws kInternal unless they are as exchange() takes them; one at least is defined. For
// implementations.
void check_exchanged(const at::Tensor& sent, const at::Tensor& received);

}  // namespace hedgerow::worker
