// Collective and point-to-point exchange of bytes between the ranks of the finetune stage: over
// MPI, or between threads of one process (unit tests). Tensors of GPUs may go another way
// (worker/comm/tensor_exchange.hpp), which begins here. Every call has a deadline: a lost peer is
// an error within it, never a hang. Byte order of reductions is the caller's
// (worker/comm/tree_reduce.hpp): allreduce is deliberately not offered, because its order is the
// library's own.
//
// One thread of a rank calls a communicator at a time. After an error the communicator is lost:
// every later call throws.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hedgerow::worker {

// A message on its way, sent from or received into the memory that it was started with. It has the
// communicator's deadline from wait() on, and may be dropped: the communicator then keeps the
// memory's owner until it is through. The communicator outlives it.
class Message {
 public:
  virtual ~Message() = default;
  // Whether the memory is the caller's again, which wait() waits for. Moves the message on: a
  // library computes nothing between calls, so a caller that computes meanwhile asks now and then.
  // Throws as send and receive.
  virtual bool is_done() = 0;
  virtual void wait() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  // Blocking, matched by (peer, tag) in order; tag in 0..kMaxTag; both sides must name the same
  // size. A send may wait for its receive, so two ranks that exchange take turns. Throw
  // storage::Error kUnavailable naming the peer when the deadline passes or the peer is lost,
  // kInternal for a wrong peer, tag or size.
  virtual void send(std::span<const std::byte> bytes, int destination, int tag) = 0;
  virtual void receive(std::span<std::byte> bytes, int source, int tag) = 0;
  // The same without waiting and without a copy: of one (peer, tag), messages are matched in the
  // order in which they were started. Until the message is done, `bytes` of a send are not written
  // to and `bytes` of a receive are not read. They live as long as `owner`, which the communicator
  // holds until the message is through, even when the caller's own part ends by an exception; it
  // may be given up on another rank's thread.
  virtual std::unique_ptr<Message> start_send(std::span<const std::byte> bytes,
                                              std::shared_ptr<const void> owner,
                                              int destination,
                                              int tag) = 0;
  virtual std::unique_ptr<Message> start_receive(std::span<std::byte> bytes,
                                                 std::shared_ptr<const void> owner,
                                                 int source,
                                                 int tag) = 0;
  // Collectives: every rank calls them in the same order with the same sizes.
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  // All ranks' bytes in rank order, on every rank; bytes.size() equal on all.
  virtual std::vector<std::byte> all_gather(std::span<const std::byte> bytes) = 0;
  virtual void barrier() = 0;
  // The deadline of each call of this rank.
  [[nodiscard]] virtual std::chrono::milliseconds deadline() const = 0;
  // From now on, for this rank's own calls; returns the deadline before.
  virtual std::chrono::milliseconds set_deadline(std::chrono::milliseconds deadline) = 0;
  // Gives the other ranks up: from now on every call of this rank throws at once, and its
  // destructor waits for no rank. They find this rank lost.
  virtual void abandon() = 0;

  // Called now and then while a call of this rank waits for a peer; what it throws ends the wait,
  // and the communicator is abandoned. Empty: nothing is called.
  void set_interrupt(std::function<void()> check) { interrupt_ = std::move(check); }
  // What a wait for a peer calls, also one that goes another way than through these calls. Passes
  // on what set_interrupt()'s function throws, once the communicator is abandoned.
  void check_interrupt() {
    if (!interrupt_) return;
    try {
      interrupt_();
    } catch (...) {
      abandon();
      throw;
    }
  }

 private:
  std::function<void()> interrupt_;
};

// set_interrupt() for as long as what it refers to lives, however that ends.
class InterruptScope {
 public:
  InterruptScope(Communicator& communicator, std::function<void()> check)
      : communicator_(communicator) {
    communicator_.set_interrupt(std::move(check));
  }
  ~InterruptScope() { communicator_.set_interrupt({}); }
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  Communicator& communicator_;
};

inline constexpr std::chrono::seconds kCommDeadline{60};
// While ranks read a model from a shared file system, or rank 0 looks for its coordinator.
inline constexpr std::chrono::minutes kLoadDeadline{30};

// A longer deadline for as long as it lives.
class DeadlineScope {
 public:
  explicit DeadlineScope(Communicator& communicator,
                         std::chrono::milliseconds deadline = kLoadDeadline)
      : communicator_(communicator), before_(communicator.set_deadline(deadline)) {}
  ~DeadlineScope() { communicator_.set_deadline(before_); }
  DeadlineScope(const DeadlineScope&) = delete;
  DeadlineScope& operator=(const DeadlineScope&) = delete;

 private:
  Communicator& communicator_;
  const std::chrono::milliseconds before_;
};

inline constexpr int kMaxTag = 9999;
// The tag of groups' collectives; no other message has it.
inline constexpr int kFirstGroupTag = kMaxTag - 1;

// Initialises MPI (MPI_THREAD_MULTIPLE) on first use; finalises in the destructor of the last one,
// after a barrier, unless a peer was lost: MPI_Finalize would wait for it, so the process exits
// without and mpirun ends the others. The destructor is collective and has the deadline too. Throws
// kUsage when hedgerow was built without MPI.
std::unique_ptr<Communicator> make_mpi_communicator(
    std::chrono::milliseconds deadline = kCommDeadline);
std::unique_ptr<Communicator> make_single_communicator();
// Some of a communicator's ranks, of which this one is one, in their order. Its calls are calls of
// `whole`, with its deadline and its interrupt, and count among them where messages are matched in
// order. Not collective. `whole` outlives it.
std::unique_ptr<Communicator> make_group(Communicator& whole, std::vector<int> ranks);
// What this was compiled with and what the process has loaded: "Open MPI v4.1.4". Both empty in a
// build without MPI. Does not initialise MPI.
struct MpiVersions {
  std::string built, found;
};
[[nodiscard]] MpiVersions mpi_versions();
// True under mpirun (or an equal launcher): a program that may run alone asks before MPI is
// initialised.
[[nodiscard]] bool launched_by_mpi();

}  // namespace hedgerow::worker
