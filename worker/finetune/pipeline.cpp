#include "worker/finetune/pipeline.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

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

std::vector<std::byte> bytes_of(const at::Tensor& tensor) {
  const at::Tensor on_host = tensor.to(at::kCPU).contiguous();
  std::vector<std::byte> bytes(on_host.nbytes());
  std::memcpy(bytes.data(), on_host.const_data_ptr(), bytes.size());
  return bytes;
}

}  // namespace

Pipeline::Pipeline(const storage::Mesh& mesh, Communicator& ranks, StreamShape shape)
    : mesh_(mesh), ranks_(ranks), shape_(std::move(shape)) {}

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

std::unique_ptr<Message> Pipeline::expect(const PipelineOperation& operation) {
  std::size_t size = c10::elementSize(wire_dtype(operation.is_forward));
  for (const auto length : shape_.sizes) size *= static_cast<std::size_t>(length);
  return operation.is_forward ? ranks_.start_receive(size, peer(-1), kForwardTag + operation.chunk)
                              : ranks_.start_receive(size, peer(1), kBackwardTag + operation.chunk);
}

at::Tensor Pipeline::received(Message& message, bool is_forward) {
  const Stopwatch clock;
  const std::vector<std::byte> bytes = message.wait();
  seconds_waited_ += clock.seconds();
  const at::Tensor tensor = at::empty(shape_.sizes, at::TensorOptions(wire_dtype(is_forward)));
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor.to(shape_.device, shape_.compute);
}

void Pipeline::send(const at::Tensor& tensor, const PipelineOperation& operation) {
  // The range after the last of a round of stages is the next chunk's.
  const bool wraps = operation.is_forward ? stage() == mesh_.pipeline - 1 : stage() == 0;
  const int chunk = operation.chunk + (!wraps ? 0 : operation.is_forward ? 1 : -1);
  std::vector<std::byte> bytes = bytes_of(tensor.to(wire_dtype(operation.is_forward)));
  bytes_sent_ += std::ssize(bytes);
  outgoing_.push_back(operation.is_forward
                          ? ranks_.start_send(std::move(bytes), peer(1), kForwardTag + chunk)
                          : ranks_.start_send(std::move(bytes), peer(-1), kBackwardTag + chunk));
}

void Pipeline::progress() {
  std::erase_if(outgoing_, [](const auto& message) { return message->is_done(); });
  for (const auto& message : incoming_) {
    if (message) static_cast<void>(message->is_done());
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
    if (incoming_[i]) {
      input = received(*incoming_[i], is_forward);
      incoming_[i].reset();
    } else {
      input = is_forward ? passes.embed(micro_batch) : std::move(losses[batch]);
    }
    const at::Tensor output = is_forward ? passes.forward(chunk, micro_batch, input)
                                         : passes.backward(chunk, micro_batch, input);
    if (is_forward && has_last_range(chunk)) {
      losses[batch] = passes.compute_loss(micro_batch, output);
    } else if (is_forward || !has_first_range(chunk)) {
      send(output, operations[i]);
    }
    progress();
  }
  const Stopwatch clock;
  for (const auto& message : outgoing_) message->wait();
  seconds_waited_ += clock.seconds();
  outgoing_.clear();
}

}  // namespace hedgerow::worker
