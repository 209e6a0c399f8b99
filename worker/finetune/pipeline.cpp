#include "worker/finetune/pipeline.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

#include "worker/task/stopwatch.hpp"

namespace hedgerow::worker {
namespace {

using storage::PipelineOperation;

// Apart by the chunk that receives.
constexpr int kForwardTag = 1000;
constexpr int kBackwardTag = 2000;

// So many operations to come have their receives under way: the next one's input arrives while
// this one computes.
constexpr std::size_t kAhead = 2;

// So many copies to the host wait for the device at most: it has a pass to compute meanwhile, and
// pinned memory is not given back.
constexpr std::size_t kMaxLeaving = 2;

}  // namespace

Pipeline::Pipeline(const storage::Mesh& mesh, Communicator& ranks, StreamShape shape)
    : Pipeline(mesh, ranks, shape, make_host_copier(shape.device)) {}

Pipeline::Pipeline(const storage::Mesh& mesh,
                   Communicator& ranks,
                   StreamShape shape,
                   std::unique_ptr<HostCopier> copier)
    : mesh_(mesh), ranks_(ranks), shape_(std::move(shape)), copier_(std::move(copier)) {}

Pipeline::~Pipeline() = default;

bool Pipeline::receives(const PipelineOperation& operation) const {
  if (mesh_.pipeline == 1) return false;
  return operation.is_forward ? !has_first_range(operation.chunk)
                              : !has_last_range(operation.chunk);
}

at::ScalarType Pipeline::wire_dtype(bool is_forward) const {
  const bool is_narrower = c10::elementSize(shape_.stream) < c10::elementSize(shape_.compute);
  return is_forward && is_narrower ? shape_.stream : shape_.compute;
}

Pipeline::Incoming Pipeline::expect(const PipelineOperation& operation) {
  const bool is_forward = operation.is_forward;
  const auto host =
      std::make_shared<const at::Tensor>(copier_->empty(shape_.sizes, wire_dtype(is_forward)));
  const std::span<std::byte> bytes(static_cast<std::byte*>(host->mutable_data_ptr()),
                                   host->nbytes());
  const int tag = (is_forward ? kForwardTag : kBackwardTag) + operation.chunk;
  return {*host, ranks_.start_receive(bytes, host, peer(is_forward ? -1 : 1), tag)};
}

at::Tensor Pipeline::received(Incoming& incoming) {
  // The peer may itself wait for a message of this rank that is still being copied.
  await_copies([&] { return incoming.message->is_done(); });
  const Stopwatch clock;
  incoming.message->wait();
  seconds_waited_ += clock.seconds();
  incoming.message.reset();
  // The copy to the device may be under way when `host` is let go; the copier sees to that.
  const at::Tensor host = std::exchange(incoming.host, at::Tensor());
  return copier_->to_device(host).to(shape_.compute);
}

void Pipeline::send(const at::Tensor& tensor, const PipelineOperation& operation) {
  // The range after the last of a round of stages is the next chunk's.
  const bool wraps = operation.is_forward ? stage() == mesh_.pipeline - 1 : stage() == 0;
  const int chunk = operation.chunk + (!wraps ? 0 : operation.is_forward ? 1 : -1);
  await_copies([&] { return leaving_.size() < kMaxLeaving; });
  auto copy = copier_->begin(tensor.to(wire_dtype(operation.is_forward)));
  bytes_sent_ += static_cast<std::int64_t>(copy->host().nbytes());
  leaving_.push_back({std::move(copy),
                      peer(operation.is_forward ? 1 : -1),
                      (operation.is_forward ? kForwardTag : kBackwardTag) + chunk});
  start_sends();
}

// In their order, also to different peers: copies are done in the order in which they were begun.
void Pipeline::start_sends() {
  while (!leaving_.empty() && leaving_.front().copy->is_done()) {
    const Leaving& leaving = leaving_.front();
    const auto host = std::make_shared<const at::Tensor>(leaving.copy->host());
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(host->const_data_ptr()),
                                           host->nbytes());
    outgoing_.push_back(ranks_.start_send(bytes, host, leaving.peer, leaving.tag));
    leaving_.pop_front();
  }
}

void Pipeline::await_copies(const std::function<bool()>& until) {
  // The device's time, which has no deadline; messages that were started move on meanwhile.
  constexpr std::chrono::microseconds kNap{50};
  for (progress(); !leaving_.empty() && !until(); progress()) std::this_thread::sleep_for(kNap);
}

void Pipeline::progress() {
  start_sends();
  std::erase_if(outgoing_, [](const auto& message) { return message->is_done(); });
  for (const Incoming& incoming : incoming_) {
    if (incoming.message) static_cast<void>(incoming.message->is_done());
  }
}

void Pipeline::run(int num_micro_batches, bool trains, const PipelinePasses& passes) {
  const auto operations = storage::pipeline_order(mesh_, num_micro_batches, trains)
                              .at(static_cast<std::size_t>(stage()));
  incoming_.clear();
  incoming_.resize(operations.size());
  std::size_t num_expected = 0;
  // Losses of the last range, from the end of its forward pass.
  std::vector<at::Tensor> losses(static_cast<std::size_t>(num_micro_batches));
  for (std::size_t i = 0; i < operations.size(); ++i) {
    for (; num_expected < std::min(i + kAhead, operations.size()); ++num_expected) {
      if (receives(operations[num_expected]))
        incoming_[num_expected] = expect(operations[num_expected]);
    }
    const auto& [is_forward, chunk, micro_batch] = operations[i];
    const auto batch = static_cast<std::size_t>(micro_batch);
    at::Tensor input;
    if (incoming_[i].message) {
      input = received(incoming_[i]);
    } else {
      input = is_forward ? passes.embed(micro_batch) : std::move(losses[batch]);
    }
    const at::Tensor output = is_forward ? passes.forward(chunk, micro_batch, input)
                                         : passes.backward(chunk, micro_batch, input);
    if (is_forward && has_last_range(chunk)) {
      // The loss is asked of the device, which first ends the pass that was just launched:
      // gradients of the pass before would lie ready for that long.
      await_copies([] { return false; });
      losses[batch] = passes.compute_loss(micro_batch, output);
    } else if (is_forward || !has_first_range(chunk)) {
      send(output, operations[i]);
    }
    progress();
  }
  await_copies([] { return false; });
  const Stopwatch clock;
  for (const auto& message : outgoing_) message->wait();
  seconds_waited_ += clock.seconds();
  outgoing_.clear();
}

}  // namespace hedgerow::worker
