// The numbers of memory that the plan and the programs which allocate must have in common: how many
// rows of logits exist at a time, and what is kept. A program that takes another number makes the
// plan false.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hedgerow::storage {

// Rows of logits at a time, [rows, V] fp32: 128 of SmolLM2 are 25 MB. A GPU wants more of them in a
// product, and waits for the host once a chunk.
inline constexpr std::int64_t kLossRows = 128, kLossRowsOnGpu = 1024;  // the finetune's head
inline constexpr std::int64_t kLogitRows = 256;                        // logits stage, evaluation

// The residual streams of one group of sequences, in all columns of an evaluation, stay in memory
// while all layers pass over them. A GPU holds more of them: each further group reads the model
// once more.
inline constexpr std::int64_t kEvaluateGroupBytes = std::int64_t{1} << 30U,
                              kEvaluateGroupBytesOnGpu = std::int64_t{8} << 30U;
inline constexpr int kMostEvaluateColumns = 6;
// At least one. `bytes_of_stream` is one sequence between two layers.
[[nodiscard]] constexpr std::int64_t sequences_of_evaluate_group(std::int64_t bytes_of_stream,
                                                                 int columns,
                                                                 bool on_gpu) {
  const std::int64_t budget = on_gpu ? kEvaluateGroupBytesOnGpu : kEvaluateGroupBytes;
  return std::max<std::int64_t>(1, budget / std::max<std::int64_t>(1, columns * bytes_of_stream));
}

// The sequences of one of `pieces` equal parts of an evaluation, but for a sequence.
struct PieceRange {
  std::int64_t first = 0, count = 0;
};
[[nodiscard]] constexpr PieceRange sequences_of_piece(std::int64_t sequences,
                                                      int piece,
                                                      int pieces) {
  const std::int64_t first = sequences * piece / pieces;
  return {first, sequences * (piece + 1) / pieces - first};
}

// Bytes of activations that a rank keeps for its backward passes at most; beyond them each layer is
// computed again from its input, for a third more work and the same bytes of results. On the CPU a
// GiB, since the memory is everybody's. Of a GPU what is free once a rank has loaded, less a tenth
// of the GPU, at least 4 GiB: for what one layer's backward pass and some rows of logits take for a
// moment. `gpu_bytes` and `free_bytes` are a rank's share.
inline constexpr std::int64_t kHostActivationBytes = std::int64_t{1} << 30U;
[[nodiscard]] constexpr std::int64_t gpu_activation_bytes(std::int64_t gpu_bytes,
                                                          std::int64_t free_bytes) {
  constexpr std::int64_t kLeast = std::int64_t{4} << 30U, kTenth = 10;
  return std::max<std::int64_t>(0, free_bytes - std::max(gpu_bytes / kTenth, kLeast));
}

// Whether a rank of the finetune keeps what its layers computed until their backward passes: passes
// in flight are of one of its `chunks` ranges of layers (storage/shape/pipeline_order.hpp).
[[nodiscard]] constexpr bool keeps_activations(std::int64_t bytes_of_layers,
                                               int in_flight,
                                               int chunks,
                                               std::int64_t budget) {
  return bytes_of_layers * in_flight / chunks <= budget;
}

}  // namespace hedgerow::storage
