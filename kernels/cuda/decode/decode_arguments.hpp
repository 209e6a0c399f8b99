// What the decode kernels are given: plain pointers and sizes; decode_cuda.cpp fills them in.
// Strides are in elements; rows of bf16, maps and the state are aligned to 16 bytes. Positions are
// read on the device, so that no launch depends on them: a step can be captured in a CUDA graph.
#pragma once

#include "kernels/cuda/tile/hybrid_arguments.hpp"

namespace hedgerow::kernels::cuda {

inline constexpr int kMostDecodeFeatures = 256;
// The longest window with a recall cache, and so the most entries of its cache: a thread ranks one
// candidate.
inline constexpr int kMostRecallWindow = 128;

// A map in fp32, of a multiple of 4 columns.
struct DecodeMap {
  MapFunction function;
  bool negation = false;
  int columns = 0;
  const float* layer = nullptr;  // [H or U, D, f]; null: x itself, f = D
  const float* bias = nullptr;   // [H or U, f]; null: none
};

// A batch of rows, each at its own position, and their state (kernels/decode.hpp).
struct DecodeBatch : WindowArguments {
  int B = 0, H = 0, G = 0, D = 0, F = 0;
  int U = 0;                          // key heads, of map_k and the state: H or G
  int slots = 0;                      // of the ring; token t lies at slot t mod slots
  std::int64_t* positions = nullptr;  // [B]: tokens that each row has seen
  float* kv_state = nullptr;          // [B, U, F, D]
  float* k_state = nullptr;           // [B, U, F]
  std::uint16_t *ring_k = nullptr, *ring_v = nullptr;  // [B, G, slots, D]
  std::uint16_t *sink_k = nullptr, *sink_v = nullptr;  // [B, G, sinks, D]; null without sinks
  int recalled = 0;  // entries of the recall cache, <= window; 0: none, and what follows is null
  std::int64_t* recall_positions = nullptr;                // [B, G, recalled] ascending, from -1 on
  std::uint16_t *recall_k = nullptr, *recall_v = nullptr;  // [B, G, recalled, D]

  [[nodiscard]] HEDGEROW_BOTH int group() const { return H / G; }
  // Key heads of a kv head.
  [[nodiscard]] HEDGEROW_BOTH int key_heads() const { return U / G; }
  // Whether several query heads read one state. A step's kernel then writes none: tokens join in a
  // launch before it.
  [[nodiscard]] HEDGEROW_BOTH bool shares_states() const { return U < H; }
  // Once a row has seen `tokens` tokens, those before this one are in (S, z), but for sinks: they
  // lie before its last token's window.
  [[nodiscard]] HEDGEROW_BOTH int begin_after(int tokens) const {
    return tokens == 0 ? 0 : begin(tokens - 1);
  }
  // The first of tokens first, first + 1, .. that can join (S, z).
  [[nodiscard]] HEDGEROW_BOTH int behind_sinks(int first) const {
    return first > sinks ? first : sinks;
  }
  // How many entries of a row's recall cache lie before `token`; those of no key do.
  [[nodiscard]] HEDGEROW_BOTH int recalled_before(int row, int kv_head, int token) const {
    int first = 0, last = recalled;
    while (first < last) {
      const int middle = (first + last) / 2;
      if (recall_entry(row, kv_head, middle) < token) {
        first = middle + 1;
      } else {
        last = middle;
      }
    }
    return first;
  }
  [[nodiscard]] HEDGEROW_BOTH bool recalls(int row, int kv_head, int token) const {
    const int entry = recalled_before(row, kv_head, token);
    return entry < recalled && recall_entry(row, kv_head, entry) == token;
  }
  // The token of an entry; -1: none.
  [[nodiscard]] HEDGEROW_BOTH int recall_entry(int row, int kv_head, int entry) const {
    return static_cast<int>(
        recall_positions[(static_cast<std::int64_t>(row) * G + kv_head) * recalled + entry]);
  }
};

// (S, z) += phi_k [v, 1] of tokens that leave the window together: all that a prompt leaves behind
// (`prompt`), or before a step the chunk that a terraced window flushes; where states are shared,
// also the one token that joins in another layout, unless the recall cache holds it. A terraced
// window with a recall cache flushes nothing: DecodeRecallArguments.
struct DecodeStateArguments {
  DecodeBatch batch;
  DecodeMap map_k;
  bool prompt = false;
  Rows k, v;       // [B, G, rows, D]: the prompt, the ring or, without a window, the new token
  int rows = 0;    // token t lies in row t mod rows
  int slices = 1;  // parts (64 columns of one key head's S) that a threadblock walks
};

// The choice of the recall cache (kernels/problem/recall_cache.hpp) in the rows that begin a chunk,
// before the step's token is written: what is dropped joins (S, z), but for a sliding window's own
// tokens.
struct DecodeRecallArguments {
  DecodeBatch batch;
  DecodeMap map_k;
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
// which positions advance. Those of them that are sinks, and a prompt's first ones, likewise into
// sink_k and sink_v.
struct DecodeRingArguments {
  DecodeBatch batch;
  bool prompt = false;
  Rows k, v;         // [B, G, T or 1, D]
  int kv_heads = 1;  // that a threadblock copies: all of a row's in a step, which advances it
};

}  // namespace hedgerow::kernels::cuda
