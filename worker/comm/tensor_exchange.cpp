#include "worker/comm/tensor_exchange.hpp"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>
#include <string_view>
#include <type_traits>
#include <vector>

#include "storage/base/error.hpp"
#include "worker/comm/nccl_exchange.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

constexpr int kExchangeTag = 100;

using Text = decltype(RankPlace::host);

Text text_of(std::string_view words) {
  Text text{};
  std::ranges::copy(words.substr(0, text.size() - 1), text.begin());
  return text;
}

std::string_view view(const Text& text) { return text.data(); }

void send(Communicator& communicator, const at::Tensor& own, int peer) {
  const at::Tensor sent = own.to(at::kCPU);  // itself on the CPU
  communicator.send(
      {static_cast<const std::byte*>(sent.const_data_ptr()), sent.nbytes()}, peer, kExchangeTag);
}

void receive(Communicator& communicator, const at::Tensor& other, int peer) {
  const at::Tensor received =
      other.is_cpu() ? other : at::empty(other.sizes(), at::TensorOptions(at::kFloat));
  communicator.receive({static_cast<std::byte*>(received.mutable_data_ptr()), received.nbytes()},
                       peer,
                       kExchangeTag);
  if (!received.is_same(other)) other.copy_(received);
}

class HostExchange final : public TensorExchange {
 public:
  explicit HostExchange(Communicator& communicator) : communicator_(communicator) {}

  void exchange(const at::Tensor& own, const at::Tensor& other, int peer) override {
    check_exchanged(own, other);
    // Lower rank first: two sends that wait for their receives would wait for each other.
    const bool sends_first = communicator_.rank() < peer;
    if (own.defined() && sends_first) send(communicator_, own, peer);
    if (other.defined()) receive(communicator_, other, peer);
    if (own.defined() && !sends_first) send(communicator_, own, peer);
  }
  [[nodiscard]] std::string name() const override { return "MPI"; }

 private:
  Communicator& communicator_;
};

bool share_a_gpu(const RankPlace& a, const RankPlace& b) {
  // NCCL takes parts of one card for the same one too: they have a slot in common.
  return a.gpu_uuid == b.gpu_uuid || (a.host == b.host && a.gpu_slot == b.gpu_slot);
}

// Why NCCL cannot be; empty: it can.
std::string obstacle(std::span<const RankPlace> ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::string rank = "rank " + std::to_string(i);
    if (ranks[i].is_on_gpu == 0) return rank + " does not compute on a GPU";
    if (ranks[i].nccl_version == 0) return rank + " is of a build without NCCL";
    if (ranks[i].nccl_version != ranks[0].nccl_version) {
      return rank + " has NCCL " + nccl_version_text(ranks[i].nccl_version) + " and rank 0 " +
             nccl_version_text(ranks[0].nccl_version);
    }
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (std::size_t j = i + 1; j < ranks.size(); ++j) {
      if (!share_a_gpu(ranks[i], ranks[j])) continue;
      return c10::str("ranks ",
                      i,
                      " and ",
                      j,
                      " share the GPU ",
                      view(ranks[i].gpu_slot),
                      " of ",
                      view(ranks[i].host),
                      ", which NCCL forbids");
    }
  }
  return "";
}

RankPlace place_of(const at::Device& device) {
  RankPlace place;
  place.is_on_gpu = device.is_cuda() ? 1 : 0;
  place.nccl_version = nccl::version();
  ::gethostname(place.host.data(), place.host.size() - 1);
  if (place.is_on_gpu == 0 || place.nccl_version == 0) return place;
  const nccl::Gpu gpu = nccl::gpu_of(device);
  place.gpu_uuid = text_of(gpu.uuid);
  place.gpu_slot = text_of(gpu.slot);
  place.num_visible_gpus = gpu.num_visible;
  return place;
}

std::vector<RankPlace> gather_places(Communicator& communicator, const RankPlace& own) {
  static_assert(std::is_trivially_copyable_v<RankPlace>);
  const auto bytes = communicator.all_gather(std::as_bytes(std::span(&own, 1)));
  std::vector<RankPlace> places(static_cast<std::size_t>(communicator.world_size()));
  std::memcpy(places.data(), bytes.data(), bytes.size());
  return places;
}

}  // namespace

void check_exchanged(const at::Tensor& sent, const at::Tensor& received) {
  const at::Tensor& own = sent.defined() ? sent : received;
  const at::Tensor& other = received.defined() ? received : sent;
  const auto fits = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
  };
  if (fits(own) && fits(other) && own.sizes() == other.sizes() && own.device() == other.device())
    return;
  throw Error(ErrorKind::kInternal,
              c10::str("exchange of tensors: expected two contiguous fp32 tensors of one shape and "
                       "device, found ",
                       own.toString(),
                       " ",
                       own.sizes(),
                       " on ",
                       own.device(),
                       " and ",
                       other.toString(),
                       " ",
                       other.sizes(),
                       " on ",
                       other.device()));
}

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

ExchangeChoice choose_exchange(const std::string& setting, std::span<const RankPlace> ranks) {
  if (setting == "mpi") return {false, "finetune.exchange = \"mpi\""};
  const std::string problem = obstacle(ranks);
  if (setting == "nccl") {
    if (problem.empty()) return {true, "finetune.exchange = \"nccl\""};
    throw Error(ErrorKind::kUsage,
                "finetune.exchange = \"nccl\", but " + problem + "; set it to \"auto\" or \"mpi\"");
  }
  if (!problem.empty()) return {false, problem};
  if (ranks.size() == 1) return {false, "one rank has nothing to exchange"};
  return {true, "every rank has a GPU of its own"};
}

void refuse_needless_sharing(std::span<const RankPlace> ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const RankPlace& place = ranks[i];
    std::set<std::string_view> taken;
    std::int32_t visible = 0;
    std::size_t other = i;
    for (std::size_t j = 0; j < ranks.size(); ++j) {
      if (ranks[j].host != place.host || ranks[j].num_visible_gpus == 0) continue;
      taken.insert(view(ranks[j].gpu_slot));
      visible = std::max(visible, ranks[j].num_visible_gpus);
      if (j > i && other == i && share_a_gpu(place, ranks[j])) other = j;
    }
    if (other == i || taken.size() >= static_cast<std::size_t>(visible)) continue;
    throw Error(ErrorKind::kUsage,
                c10::str("ranks ",
                         i,
                         " and ",
                         other,
                         " compute on one GPU, ",
                         view(place.gpu_slot),
                         " of ",
                         view(place.host),
                         ", where ",
                         visible,
                         " are visible and ",
                         taken.size(),
                         taken.size() == 1 ? " is" : " are",
                         " in use: the ranks do not know their numbers on the host; start them "
                         "with mpirun or srun, or set SLURM_LOCALID or CUDA_VISIBLE_DEVICES of "
                         "each to a number of its own"));
  }
}

std::unique_ptr<TensorExchange> make_host_exchange(Communicator& communicator) {
  return std::make_unique<HostExchange>(communicator);
}

std::unique_ptr<TensorExchange> make_tensor_exchange(Communicator& communicator,
                                                     const at::Device& device,
                                                     const std::string& setting,
                                                     bool tells) {
  const auto places = gather_places(communicator, place_of(device));
  refuse_needless_sharing(places);
  const ExchangeChoice choice = choose_exchange(setting, places);
  auto exchange =
      choice.is_nccl ? nccl::connect(communicator, device) : make_host_exchange(communicator);
  if (tells && (choice.is_nccl || places.size() > 1)) {
    std::fprintf(stderr,
                 "hedgerow-worker: gradients of %d ranks meet through %s: %s\n",
                 communicator.world_size(),
                 exchange->name().c_str(),
                 choice.reason.c_str());
  }
  return exchange;
}

}  // namespace hedgerow::worker
