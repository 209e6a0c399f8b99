// What the decode kernels are given: plain pointers and sizes; decode_cuda.cpp fills them in.
// Strides are in elements; rows of bf16, maps and the state are aligned to 16 bytes. Positions are
// read on the device, so that no launch depends on them: a step can be captured in a CUDA graph.
#pragma once

#include "kernels/cuda/tile/hybrid_arguments.hpp"

namespace hedgerow::kernels::cuda {

inline constexpr int kMostDecodeFeatures = 256;

// A map in fp32, of a multiple of 4 columns.
struct DecodeMap {
  MapKind kind = MapKind::kHedgehogSoftmax;
  bool negation = false;
  int columns = 0;
  const float* layer = nullptr;  // [H, D, f]; null: x itself, f = D
  const float* bias = nullptr;   // [H, f]; null: none
};

// A batch of rows, each at its own position, and their state (kernels/decode.hpp).
struct DecodeBatch {
  int B = 0, H = 0, G = 0, D = 0, F = 0;
  Layout layout = Layout::kNone;
  int window = 0, slots = 0;          // slots of the ring; token t lies at slot t mod slots
  std::int64_t* positions = nullptr;  // [B]: tokens that each row has seen
  float* kv_state = nullptr;          // [B, H, F, D]
  float* k_state = nullptr;           // [B, H, F]
  std::uint16_t *ring_k = nullptr, *ring_v = nullptr;  // [B, G, slots, D]

  [[nodiscard]] HEDGEROW_BOTH int group() const { return H / G; }
  // Tokens in (S, z) once a row has seen `tokens` of them: those before its last token's window.
  [[nodiscard]] HEDGEROW_BOTH int begin_after(int tokens) const {
    return tokens == 0 ? 0 : window_begin(layout, window, tokens - 1);
  }
};

// (S, z) += phi_k [v, 1] of tokens that leave the window together: all that a prompt leaves behind
// (`prompt`), or the chunk that a terraced window flushes before this step.
struct DecodeStateArguments {
  DecodeBatch batch;
  DecodeMap map_k;
  bool prompt = false;
  Rows k, v;       // [B, G, rows, D]: the prompt, or the ring
  int rows = 0;    // token t lies in row t mod rows
  int slices = 1;  // parts (64 columns of one query head's S) that a threadblock walks
};

// One token a row.
struct DecodeStepArguments {
  DecodeBatch batch;
  DecodeMap map_q, map_k;
  Rows q, k, v;                    // the new token's
  const float* factors = nullptr;  // [H] logits of the window's gate; null with kNone
  std::uint16_t* y = nullptr;      // [B, H, D]
  int heads = 1;                   // query heads of a kv head that a threadblock walks: 1, 2 or 4
};

// Tokens that stay in the window into the ring: a prompt's last ones, or a step's new one, after
// which positions advance.
struct DecodeRingArguments {
  DecodeBatch batch;
  bool prompt = false;
  Rows k, v;         // [B, G, T or 1, D]
  int kv_heads = 1;  // that a threadblock copies: all of a row's in a step, which advances it
};

}  // namespace hedgerow::kernels::cuda
