// Sequences of a boundary on their way to a device: pread by the reader's threads into pinned
// memory, copied from there on a stream of its own while the device computes on the sequence
// before. Only the computation on a sequence waits for its copy, and it waits on the device. The
// host waits only before it lets a buffer be overwritten whose copy was begun two sequences ago.
// The CopyEngine is the device's part of it: CUDA's in worker/device/cuda_copy_engine.cpp, a
// recorded one in tests. One thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "storage/shards/boundary_reader.hpp"

namespace hedgerow::worker {

// Copies are numbered by the caller's slots, of which there are kNumSlots; a slot is used again
// only behind wait().
class CopyEngine {
 public:
  static constexpr int kNumSlots = 2;

  virtual ~CopyEngine() = default;
  // Host memory that copies need no detour from. Any thread. Throws c10::Error.
  virtual std::shared_ptr<std::byte[]> host_buffer(std::size_t bytes) = 0;
  // Begins the copy of a CPU tensor behind those begun before, beside what is computed. The result
  // may be used behind let_compute_wait() alone; `host` must stand until wait().
  virtual at::Tensor begin_copy(const at::Tensor& host, int slot) = 0;
  // What the current stream is given from now on runs behind the slot's copy; returns at once.
  virtual void let_compute_wait(const at::Tensor& on_device, int slot) = 0;
  // Returns when the slot's last copy is over, or if there was none.
  virtual void wait(int slot) = 0;
};

// Null where copies are better made when they are needed: on the CPU, and in builds without CUDA.
[[nodiscard]] std::unique_ptr<CopyEngine> make_copy_engine(const at::Device& device);

class Uploader {
 public:
  // Both must outlive it, and the engine the reader, whose buffers it makes.
  Uploader(storage::BoundaryReader& reader, CopyEngine& engine)
      : reader_(reader), engine_(engine) {}
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // As BoundaryReader::plan.
  void plan(std::vector<std::int64_t> sequences);
  // The next planned sequence, [1, T, M] in the shard's dtype, on the device; computing on it in
  // the current stream waits for it. Begins the copy of the one after, if the disk has delivered
  // it. Throws as BoundaryReader::next, for that one too.
  at::Tensor next();

 private:
  struct Flight {
    at::Tensor on_device;
    int slot = 0;
  };
  [[nodiscard]] Flight begin();
  void drain();

  storage::BoundaryReader& reader_;
  CopyEngine& engine_;
  std::optional<Flight> ahead_;
  std::int64_t num_begun_ = 0;
};

}  // namespace hedgerow::worker
