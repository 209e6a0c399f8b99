// One pipeline of the mesh: the ranks whose ranges of layers a micro-batch passes, forward and
// backward. Runs this rank's passes in the order of storage/shape/pipeline_order.hpp; what leaves
// a range goes to the rank of the next one while this one computes on: from a GPU by a copy that
// the host does not wait for, so it launches the next pass meanwhile. A message is raw bytes of a
// tensor [B, T, M], the residual stream in the narrower of the stream's and the compute dtype
// (which it was rounded to anyway) and its gradient in the compute dtype, so where layers lie never
// shows in a result. Called on the computing thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "storage/shape/pipeline_order.hpp"
#include "worker/comm/communicator.hpp"
#include "worker/device/host_copy.hpp"

namespace hedgerow::worker {

// What a rank computes of a micro-batch; `chunk` is one of its ranges. Without layers that a
// function is for (the first range, the last), it is not called. On the CPU what forward and
// backward return is sent from its own memory, which is not written to afterwards. No function
// waits for another rank: messages start in progress() and between the calls alone, and that rank
// may wait for one of them.
struct PipelinePasses {
  std::function<at::Tensor(int micro_batch)> embed;
  std::function<at::Tensor(int chunk, int micro_batch, const at::Tensor& hidden)> forward;
  // The loss of the last range's output. Returns its gradient, undefined without a backward pass.
  std::function<at::Tensor(int micro_batch, const at::Tensor& hidden)> compute_loss;
  // Returns the gradient of the range's input; that of the first range is not needed.
  std::function<at::Tensor(int chunk, int micro_batch, const at::Tensor& gradient)> backward;
};

// What the tensors between ranges are.
struct StreamShape {
  std::vector<std::int64_t> sizes;  // [B, T, M]
  at::ScalarType stream = at::kBFloat16, compute = at::kBFloat16;
  at::Device device = at::kCPU;
};

class Pipeline {
 public:
  // `ranks` are those of this pipeline, whose rank is the stage. Mesh and ranks outlive it.
  Pipeline(const storage::Mesh& mesh, Communicator& ranks, StreamShape shape);
  // As with the other, whose `copier` is make_host_copier's of the shape's device.
  Pipeline(const storage::Mesh& mesh,
           Communicator& ranks,
           StreamShape shape,
           std::unique_ptr<HostCopier> copier);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  [[nodiscard]] bool has_first_range(int chunk) const { return chunk == 0 && stage() == 0; }
  [[nodiscard]] bool has_last_range(int chunk) const {
    return chunk == mesh_.chunks - 1 && stage() == mesh_.pipeline - 1;
  }
  // Collective over the pipeline's ranks. Throws as Communicator::send and receive, and what the
  // passes throw.
  void run(int num_micro_batches, bool trains, const PipelinePasses& passes);
  // Sends what the device has copied and moves messages on; for callers that compute in between.
  void progress();

  // Since the construction.
  [[nodiscard]] std::int64_t bytes_sent() const { return bytes_sent_; }
  // For other ranks, while every message of this one is on its way.
  [[nodiscard]] double seconds_waited() const { return seconds_waited_; }

 private:
  struct Incoming {
    at::Tensor host;
    std::unique_ptr<Message> message;
  };
  struct Leaving {
    std::unique_ptr<HostCopy> copy;
    int peer = 0, tag = 0;
  };

  [[nodiscard]] int stage() const { return ranks_.rank(); }
  [[nodiscard]] int peer(int offset) const {
    return (stage() + offset + mesh_.pipeline) % mesh_.pipeline;
  }
  // Whether an operation's input comes from another range.
  [[nodiscard]] bool receives(const storage::PipelineOperation& operation) const;
  [[nodiscard]] at::ScalarType wire_dtype(bool is_forward) const;
  [[nodiscard]] Incoming expect(const storage::PipelineOperation& operation);
  [[nodiscard]] at::Tensor received(Incoming& incoming);
  void send(const at::Tensor& tensor, const storage::PipelineOperation& operation);
  void start_sends();
  // Returns once every message to send was started, or `until` is true.
  void await_copies(const std::function<bool()>& until);

  const storage::Mesh& mesh_;
  Communicator& ranks_;
  StreamShape shape_;
  std::unique_ptr<HostCopier> copier_;
  std::vector<Incoming> incoming_;
  std::deque<Leaving> leaving_;  // not started yet, in their order
  std::vector<std::unique_ptr<Message>> outgoing_;
  std::int64_t bytes_sent_ = 0;
  double seconds_waited_ = 0.0;
};

}  // namespace hedgerow::worker
