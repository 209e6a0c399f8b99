// Collective and point-to-point exchange between the ranks of the finetune stage. Three backends: MPI (CPU tensors, also
// bootstrap for NCCL), NCCL (later), threads in one process (unit tests). Every call has a deadline: a lost peer is an
// error within it, never a hang. Byte order of reductions is the caller's: allreduce is deliberately not offered, because
// its order is the library's own (design.md section 6).
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace hedgerow::worker {

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  // Blocking, tag-matched. Throw storage::Error kUnavailable naming the peer when the deadline passes or the peer is lost.
  virtual void send(std::span<const std::byte> bytes, int destination, int tag) = 0;
  virtual void receive(std::span<std::byte> bytes, int source, int tag) = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  // All ranks' bytes in rank order, on every rank; bytes.size() equal on all.
  virtual std::vector<std::byte> all_gather(std::span<const std::byte> bytes) = 0;
  virtual void barrier() = 0;
};

inline constexpr std::chrono::seconds kCommDeadline{60};

// Initialises MPI (MPI_THREAD_MULTIPLE) on first use; finalises in the destructor of the last one.
std::unique_ptr<Communicator> make_mpi_communicator(std::chrono::seconds deadline = kCommDeadline);
std::unique_ptr<Communicator> make_single_communicator();
// Runs body(communicator) on world_size threads; rethrows the first exception after all have ended.
void run_on_threads(int world_size, const std::function<void(Communicator&)>& body, std::chrono::seconds deadline = kCommDeadline);

}  // namespace hedgerow::worker
