#include "worker/device/upload.hpp"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <span>
#include <utility>

#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker {

Uploader::~Uploader() {
  try {
    drain();
  } catch (const c10::Error&) {
    // The device is lost, and its copies with it; who uses it next is told.
  }
}

void Uploader::plan(std::vector<std::int64_t> sequences) {
  drain();  // the reader is about to give up its buffers
  reader_.plan(
      std::move(sequences),
      {.held = CopyEngine::kNumSlots, .make_buffer = [engine = &engine_](std::size_t bytes) {
         return engine->host_buffer(bytes);
       }});
}

at::Tensor Uploader::next() {
  const Flight flight = ahead_ ? *std::exchange(ahead_, std::nullopt) : begin();
  engine_.let_compute_wait(flight.on_device, flight.slot);
  // A disk that is behind must not keep the device from what it could compute now.
  if (reader_.is_ready()) ahead_ = begin();
  return flight.on_device;
}

Uploader::Flight Uploader::begin() {
  const int slot = static_cast<int>(num_begun_++ % CopyEngine::kNumSlots);
  engine_.wait(slot);  // next() frees the buffer of the copy that had this slot
  const std::span<const std::byte> bytes = reader_.next();
  const storage::ShardInfo& info = reader_.info();
  const at::Tensor host = at::from_blob(const_cast<std::byte*>(bytes.data()),
                                        {1, info.seq_len, info.hidden_size},
                                        at::TensorOptions(scalar_type(info.dtype)));
  return {engine_.begin_copy(host, slot), slot};
}

void Uploader::drain() {
  ahead_.reset();
  for (int slot = 0; slot < CopyEngine::kNumSlots; ++slot) engine_.wait(slot);
}

}  // namespace hedgerow::worker
