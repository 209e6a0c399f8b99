// Keys and values into the ring: a prompt's last ones (those of the next token's window), or a
// step's new one, after which the row's position advances; and into the sinks' place those of the
// first tokens. Grid (B G / kv_heads), 128 threads;
// every byte is read and written once.
#pragma once

#include "kernels/cuda/decode/decode_arguments.hpp"
#include "kernels/cuda/tile/tiles.cuh"

namespace hedgerow::kernels::cuda {

inline constexpr int kRingThreads = 128;

HEDGEROW_TILE void copy_to_ring(const DecodeRingArguments& a, int threadblock) {
  const DecodeBatch& batch = a.batch;
  const int of_row = batch.G / a.kv_heads;
  const int row = threadblock / of_row, first_head = threadblock % of_row * a.kv_heads;
  const int position = static_cast<int>(batch.positions[row]);
  const int last = a.prompt ? position : position + 1, units = batch.D / kUnit;
  // Tokens first .. end - 1 of all heads; token t goes to row t mod rows.
  const auto copy_tokens = [&](int first, int end, Bf16* to_k, Bf16* to_v, int rows) {
    const int of_head = (end - first) * units;
    for (int i = thread(); i < a.kv_heads * of_head; i += kRingThreads) {
      const int head = first_head + i / of_head, token = first + i % of_head / units;
      const int d = i % units * kUnit;
      const auto copy = [&](const Rows& from, Bf16* to) {
        const Bf16* source =
            from.data + row * from.batch + head * from.head + (a.prompt ? token : 0) * from.token;
        Bf16* target =
            to +
            ((static_cast<std::int64_t>(row) * batch.G + head) * rows + token % rows) * batch.D;
        *reinterpret_cast<Unit*>(target + d) = *reinterpret_cast<const Unit*>(source + d);
      };
      copy(a.k, to_k);
      copy(a.v, to_v);
    }
  };
  copy_tokens(a.prompt ? batch.begin_after(position) : position,
              last,
              batch.ring_k,
              batch.ring_v,
              batch.slots);
  copy_tokens(a.prompt ? 0 : position,
              last < batch.sinks ? last : batch.sinks,
              batch.sink_k,
              batch.sink_v,
              batch.sinks);
  if (!a.prompt) {
    sync_threads();
    if (thread() == 0) {
      batch.positions[row] = position + 1;
    }
  }
}

}  // namespace hedgerow::kernels::cuda
