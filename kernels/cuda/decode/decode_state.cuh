// (S, z) += phi_k [v, 1] over a run of tokens (LoLCATs eq. 3): what a prompt leaves before the
// window, the chunk that a terraced window flushes, and a token that joins a shared S. fp32
// throughout, so that a state is the same whether its tokens came by prefill or step by step, up to
// the order of sums; a row's sums never depend on other rows, nor on how many parts a threadblock
// walks.
//
// One part is 64 columns of the S of one (row, key head): in registers, 4 columns and kRows
// features a thread, from where the run begins to where it ends. Grid (parts / slices), 256
// threads. Which tokens is read from the row's position on the device: a part without any returns
// at once.
//
// Shared memory: a tile of 32 keys [32, D], their values [32, 64] and features [32, 16 kRows],
// fp32. FLOPs a token and part: 2 D f + 128 F; W from the L1 cache, once for 4 tokens.
#pragma once

#include "kernels/cuda/decode/decode_features.cuh"

namespace hedgerow::kernels::cuda {

template <int kHeadDim, int kRows>
class DecodeStateWalk {
 public:
  static constexpr int kThreads = 256;
  static constexpr int kThreadblocks = kRows <= 8 ? 2 : 1;  // of a multiprocessor
  static constexpr int kColumns = 64;                       // of D, a part
  static constexpr int kSlices = kHeadDim / kColumns;
  static constexpr int kFeatures = 16 * kRows;  // at most
  static constexpr int kTokens = 32;            // of a tile

  struct alignas(128) Shared {
    float x[kTokens * kHeadDim];
    float values[kTokens * kColumns];
    float phi[kTokens * kFeatures];
  };

  HEDGEROW_TILE DecodeStateWalk(const DecodeStateArguments& arguments, Shared& shared)
      : a_(arguments), shared_(shared) {}

  HEDGEROW_TILE void run(int threadblock) {
    HEDGEROW_NO_UNROLL
    for (int i = 0; i < a_.slices; ++i) {
      walk(threadblock * a_.slices + i);
    }
  }

 private:
  static constexpr int kVectors = kTokens / (kThreads / 32);  // tokens whose features a warp makes
  static constexpr int kPasses = kFeatures / kColumnsOfPass;
  static constexpr int kUnitsOfKey = kHeadDim / kUnit, kUnitsOfValue = kColumns / kUnit;
  static constexpr int kUnitsOfThread = kTokens * kUnitsOfKey / kThreads;
  static_assert(kTokens * kUnitsOfValue == kThreads, "one unit of values a thread");

  HEDGEROW_TILE void walk(int part) {
    const int slice = part % kSlices;
    head_ = part / kSlices % a_.batch.U;
    batch_ = part / kSlices / a_.batch.U;
    column_ = slice * kColumns;
    const int tokens = static_cast<int>(a_.batch.positions[batch_]);
    const int first = a_.batch.behind_sinks(a_.prompt ? 0 : a_.batch.begin_after(tokens));
    const int last = a_.batch.begin_after(a_.prompt ? tokens : tokens + 1);
    if (first >= last || is_recalled(first)) {
      return;
    }
    load_state();
    fetch(first, last);
    HEDGEROW_NO_UNROLL
    for (int begin = first; begin < last; begin += kTokens) {
      const int count = last - begin < kTokens ? last - begin : kTokens;
      sync_threads();  // the tile before has been read
      place();
      sync_threads();
      const int token = warp() * kVectors;
      if (token < count) {
        make_token_features<kHeadDim, kVectors, kPasses>(shared_.phi + token * kFeatures,
                                                         kFeatures,
                                                         a_.map_k,
                                                         head_,
                                                         shared_.x + token * kHeadDim);
      }
      sync_threads();
      fetch(begin + kTokens, last);  // under way while this tile is added
      add_tokens(count);
    }
    store_state();
  }

  // Whether the recall cache holds the token that would join (S, z).
  HEDGEROW_TILE bool is_recalled(int token) const {
    return a_.batch.recalled > 0 && a_.batch.recalls(batch_, head_ / a_.batch.key_heads(), token);
  }

  HEDGEROW_TILE const Bf16* row_of(const Rows& x, int token) const {
    return x.data + batch_ * x.batch + head_ / a_.batch.key_heads() * x.head +
           token % a_.rows * x.token;
  }

  // This thread's part of a tile on its way from global memory; zeros beyond the last token.
  HEDGEROW_TILE void fetch(int begin, int last) {
    HEDGEROW_UNROLL
    for (int i = 0; i < kUnitsOfThread; ++i) {
      const int at = thread() + i * kThreads, token = begin + at / kUnitsOfKey;
      keys_[i] =
          token < last
              ? *reinterpret_cast<const Unit*>(row_of(a_.k, token) + at % kUnitsOfKey * kUnit)
              : Unit{};
    }
    const int token = begin + thread() / kUnitsOfValue;
    value_ = token < last ? *reinterpret_cast<const Unit*>(row_of(a_.v, token) + column_ +
                                                           thread() % kUnitsOfValue * kUnit)
                          : Unit{};
  }

  HEDGEROW_TILE static void widen(float* to, const Unit& from) {
    HEDGEROW_UNROLL
    for (int half = 0; half < 2; ++half) {
      Four four;
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        four.values[i] = unpack(static_cast<Bf16>(from.words[2 * half + i / 2] >> (16 * (i % 2))));
      }
      store_four(to + 4 * half, four);
    }
  }
  HEDGEROW_TILE void place() {
    HEDGEROW_UNROLL
    for (int i = 0; i < kUnitsOfThread; ++i) {
      widen(shared_.x + (thread() + i * kThreads) * kUnit, keys_[i]);
    }
    widen(shared_.values + thread() * kUnit, value_);
  }

  HEDGEROW_TILE void add_tokens(int count) {
    const int column = thread() % 16 * 4, row = thread() / 16 * kRows;
    HEDGEROW_UNROLL_TWICE
    for (int j = 0; j < count; ++j) {
      const Four value = load_four(shared_.values + j * kColumns + column);
      HEDGEROW_UNROLL
      for (int i = 0; i < kRows; i += 4) {
        const Four phi = load_four(shared_.phi + j * kFeatures + row + i);
        HEDGEROW_UNROLL
        for (int r = 0; r < 4; ++r) {
          HEDGEROW_UNROLL
          for (int c = 0; c < 4; ++c) {
            state_[i + r].values[c] += phi.values[r] * value.values[c];
          }
        }
      }
    }
    if (owns_sum()) {
      for (int j = 0; j < count; ++j) {
        sum_ += shared_.phi[j * kFeatures + thread()];
      }
    }
  }

  // z belongs to the first part of a head, a feature a thread.
  HEDGEROW_TILE bool owns_sum() const { return column_ == 0 && thread() < a_.batch.F; }
  HEDGEROW_TILE std::int64_t first_feature() const {
    return (static_cast<std::int64_t>(batch_) * a_.batch.U + head_) * a_.batch.F;
  }
  template <typename Visit>
  HEDGEROW_TILE void for_state(const Visit& visit) {
    const int row = thread() / 16 * kRows;
    float* state = a_.batch.kv_state + first_feature() * kHeadDim + column_ + thread() % 16 * 4;
    HEDGEROW_UNROLL
    for (int i = 0; i < kRows; ++i) {
      if (row + i < a_.batch.F) {
        visit(state_[i], state + (row + i) * kHeadDim);
      }
    }
  }
  HEDGEROW_TILE void load_state() {
    for_state([](Four& four, const float* state) { four = load_four(state); });
    sum_ = owns_sum() ? a_.batch.k_state[first_feature() + thread()] : 0.0F;
  }
  HEDGEROW_TILE void store_state() {
    for_state([](const Four& four, float* state) { store_four(state, four); });
    if (owns_sum()) {
      a_.batch.k_state[first_feature() + thread()] = sum_;
    }
  }

  const DecodeStateArguments& a_;
  Shared& shared_;
  int head_ = 0, batch_ = 0, column_ = 0;
  Four state_[kRows] = {};
  float sum_ = 0.0F;
  Unit keys_[kUnitsOfThread] = {}, value_ = {};
};

}  // namespace hedgerow::kernels::cuda
