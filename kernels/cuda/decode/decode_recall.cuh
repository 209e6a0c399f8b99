// One choice of the recall cache before a step (kernels/problem/recall_cache.hpp has the
// definition): which keys of the cache and of a chunk of W tokens stay exact, the others into (S,
// z). fp32 throughout; what stays is copied as it is, bf16.
//
// A threadblock of 256 threads has one (row, kv head): grid (B G). Whether its row begins a chunk
// is read from the position on the device; where it does not, it returns at once. Else
//   scores   sum_u |v - phi S / phi z|^2 against the state as it is found; a warp scores 4
//            candidates at a time, under one key map of the kv head after the other
//   ranks    by counting: a greater score, or an equal one of an earlier row, goes first
//   fold     S += phi v^T, z += phi of what is dropped, by token: each sum in one order
//   keep     the cache's entries move up in place, the chunk's come from the ring
// Candidates are rows, by token: the cache's entries 0 .. N - 1 and behind them the chunk's tokens.
// No key map's features are kept from scores to fold: N + W rows of F floats do not fit.
//
// FLOPs a choice and key map: (N + W) (2 D f + 2 F D), and as much for the W that are dropped.
// Bytes: S once a group of candidates from the caches, once more read and written for 32 dropped.
// Shared memory: 68 KiB at D = 128.
#pragma once

#include "kernels/cuda/decode/decode_features.cuh"
#include "kernels/options/recall_mass.hpp"

namespace hedgerow::kernels::cuda {

template <int kHeadDim>
class DecodeRecall {
 public:
  static constexpr int kThreads = 256;
  static constexpr int kThreadblocks = 2;  // of a multiprocessor

 private:
  static constexpr int kMostRows = 2 * kMostRecallWindow;
  static_assert(kMostRows <= kThreads, "a thread ranks one candidate");
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kVectors = 4;                  // candidates of a warp at a time
  static constexpr int kTokens = kWarps * kVectors;   // of a tile
  static constexpr int kUnits = kHeadDim / kUnit;     // of a key
  static constexpr int kRowLanes = kHeadDim / 4;      // of a row of S
  static constexpr int kRowsOfWarp = 32 / kRowLanes;  // of S
  static constexpr int kRowsInFlight = 4;             // of S, a lane
  static constexpr int kUnitsOfThread = kTokens * 2 * kUnits / kThreads;
  static constexpr int kNone = -1;

 public:
  struct alignas(128) Shared {
    float x[kTokens * kHeadDim], values[kTokens * kHeadDim];
    float phi[kTokens * kMostDecodeFeatures];
    float scores[kMostRows];
    int tokens[kMostRows];        // of a candidate; kNone: the row is none
    int kept[kMostRecallWindow];  // rows, of each new entry; kNone: no key
    int dropped[kMostRows];       // rows that join (S, z)
    bool stays[kMostRows];
  };

  HEDGEROW_TILE DecodeRecall(const DecodeRecallArguments& arguments,
                             Shared& shared,
                             int threadblock)
      : a_(arguments),
        shared_(shared),
        kv_head_(threadblock % a_.batch.G),
        batch_(threadblock / a_.batch.G),
        entries_(a_.batch.recalled),
        rows_(a_.batch.recalled + a_.batch.window) {}

  HEDGEROW_TILE void run() {
    const int position = static_cast<int>(a_.batch.positions[batch_]);
    const int chunk = position / a_.batch.window - (slides() ? 1 : 2);
    if (position % a_.batch.window != 0 || chunk < 0) {
      return;
    }
    first_token_ = chunk * a_.batch.window;
    read_tokens();
    sync_threads();
    score_candidates();
    sync_threads();
    rank_candidates();
    sync_threads();
    const int dropped = place_candidates();
    HEDGEROW_NO_UNROLL
    for (int u = 0; u < a_.batch.key_heads(); ++u) {
      fold_dropped(kv_head_ * a_.batch.key_heads() + u, dropped);
    }
    sync_threads();
    keep_chosen();
  }

 private:
  HEDGEROW_TILE bool slides() const { return a_.batch.layout == Layout::kSliding; }

  // Address of a candidate: an entry of the cache, or behind those a slot of the ring.
  HEDGEROW_TILE const Bf16* row_of(const Bf16* recalled, const Bf16* ring, int row) const {
    const std::int64_t head = static_cast<std::int64_t>(batch_) * a_.batch.G + kv_head_;
    const int slot = (first_token_ + row - entries_) % a_.batch.slots;
    return row < entries_ ? recalled + (head * entries_ + row) * kHeadDim
                          : ring + (head * a_.batch.slots + slot) * kHeadDim;
  }
  HEDGEROW_TILE const Bf16* key_of(int row) const {
    return row_of(a_.batch.recall_k, a_.batch.ring_k, row);
  }
  HEDGEROW_TILE const Bf16* value_of(int row) const {
    return row_of(a_.batch.recall_v, a_.batch.ring_v, row);
  }

  // Sinks are exact for ever, and so no candidates.
  HEDGEROW_TILE void read_tokens() {
    const int row = thread();
    if (row >= rows_) {
      return;
    }
    const int token = row < entries_ ? a_.batch.recall_entry(batch_, kv_head_, row)
                                     : first_token_ + row - entries_;
    shared_.tokens[row] = token < a_.batch.sinks ? kNone : token;
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
  // A row's key and value into place `at` of the tile, by a warp; zeros for kNone.
  HEDGEROW_TILE void load_row(int at, int row) {
    HEDGEROW_UNROLL
    for (int i = lane(); i < 2 * kUnits; i += 32) {
      const bool is_key = i < kUnits;
      const int d = i % kUnits * kUnit;
      Unit unit{};
      if (row != kNone) {
        unit = *reinterpret_cast<const Unit*>((is_key ? key_of(row) : value_of(row)) + d);
      }
      widen((is_key ? shared_.x : shared_.values) + at * kHeadDim + d, unit);
    }
  }
  // phi of the warp's rows of the tile.
  HEDGEROW_TILE void make_features(int head) {
    const int at = warp() * kVectors;
    float* phi = shared_.phi + at * kMostDecodeFeatures;
    const float* x = shared_.x + at * kHeadDim;
    const DecodeMap& map = a_.map_k;
    if (map.columns <= kColumnsOfPass) {
      make_token_features<kHeadDim, kVectors, 1>(phi, kMostDecodeFeatures, map, head, x);
    } else if (map.columns <= 2 * kColumnsOfPass) {
      make_token_features<kHeadDim, kVectors, 2>(phi, kMostDecodeFeatures, map, head, x);
    } else {
      make_token_features<kHeadDim, kVectors, 4>(phi, kMostDecodeFeatures, map, head, x);
    }
  }
  HEDGEROW_TILE std::int64_t first_feature(int head) const {
    return (static_cast<std::int64_t>(batch_) * a_.batch.U + head) * a_.batch.F;
  }

  // Every warp its own rows: no barrier of the threadblock.
  HEDGEROW_TILE void score_candidates() {
    HEDGEROW_NO_UNROLL
    for (int first = warp() * kVectors; first < rows_; first += kTokens) {
      HEDGEROW_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const int row = first + i;
        const bool is_candidate = row < rows_ && shared_.tokens[row] != kNone;
        load_row(warp() * kVectors + i, is_candidate ? row : kNone);
      }
      sync_warp();
      float scores[kVectors] = {};
      HEDGEROW_NO_UNROLL
      for (int u = 0; u < a_.batch.key_heads(); ++u) {
        const int head = kv_head_ * a_.batch.key_heads() + u;
        make_features(head);
        sync_warp();
        add_residuals(scores, head);
        sync_warp();  // before the next features
      }
      HEDGEROW_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        if (lane() == 0 && first + i < rows_) {
          // A score that is no number is the largest: ranks stay an order.
          shared_.scores[first + i] = scores[i] == scores[i] ? scores[i] : -minus_infinity();
        }
      }
    }
  }

  // scores += |v - phi S / phi z|^2 of the warp's rows under one key map.
  HEDGEROW_TILE void add_residuals(float (&scores)[kVectors], int head) const {
    const float* phi = shared_.phi + warp() * kVectors * kMostDecodeFeatures;
    const float* z = a_.batch.k_state + first_feature(head);
    float masses[kVectors] = {};
    HEDGEROW_NO_UNROLL
    for (int f = lane(); f < a_.batch.F; f += 32) {
      const float sum = z[f];
      HEDGEROW_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        masses[i] += phi[i * kMostDecodeFeatures + f] * sum;
      }
    }
    const int column = lane() % kRowLanes * 4;
    Four recalled[kVectors] = {};
    recall_values(recalled, phi, a_.batch.kv_state + first_feature(head) * kHeadDim + column);
    HEDGEROW_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      constexpr auto kLeast = static_cast<float>(kLeastRecallMass);
      const float mass = sum_of_lanes(masses[i], 32);
      const float inverse = 1.0F / (mass < kLeast ? kLeast : mass);
      const Four value = load_four(shared_.values + (warp() * kVectors + i) * kHeadDim + column);
      float square = 0.0F;
      HEDGEROW_UNROLL
      for (int c = 0; c < 4; ++c) {
        const float missed = value.values[c] - recalled[i].values[c] * inverse;
        square += missed * missed;
      }
      scores[i] += sum_of_lanes(square, kRowLanes);
    }
  }

  // phi S of the warp's rows, four columns a lane.
  HEDGEROW_TILE void recall_values(Four (&recalled)[kVectors],
                                   const float* phi,
                                   const float* state) const {
    HEDGEROW_NO_UNROLL
    for (int first = lane() / kRowLanes; first < a_.batch.F; first += kRowsOfWarp * kRowsInFlight) {
      Four rows[kRowsInFlight];
      HEDGEROW_UNROLL
      for (int r = 0; r < kRowsInFlight; ++r) {
        const int f = first + r * kRowsOfWarp;
        // Beyond the last feature a row that is read anyway: a branch here would part the loads.
        rows[r] = load_four(state + (f < a_.batch.F ? f : first) * kHeadDim);
      }
      HEDGEROW_UNROLL
      for (int r = 0; r < kRowsInFlight; ++r) {
        const int f = first + r * kRowsOfWarp;
        HEDGEROW_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          const float weight = f < a_.batch.F ? phi[i * kMostDecodeFeatures + f] : 0.0F;
          HEDGEROW_UNROLL
          for (int c = 0; c < 4; ++c) {
            recalled[i].values[c] += weight * rows[r].values[c];
          }
        }
      }
    }
    if constexpr (kRowsOfWarp == 2) {
      HEDGEROW_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        HEDGEROW_UNROLL
        for (int c = 0; c < 4; ++c) {
          recalled[i].values[c] += shuffle_xor(recalled[i].values[c], kRowLanes);
        }
      }
    }
  }

  // The N worst recalled stay, of equal ones the earlier.
  HEDGEROW_TILE void rank_candidates() {
    const int row = thread();
    if (row >= rows_) {
      return;
    }
    const float score = shared_.scores[row];
    int rank = 0;
    for (int other = 0; other < rows_; ++other) {
      const float its = shared_.scores[other];
      const bool goes_first = its > score || (its == score && other < row);
      rank += shared_.tokens[other] != kNone && goes_first ? 1 : 0;
    }
    shared_.stays[row] = shared_.tokens[row] != kNone && rank < entries_;
  }

  HEDGEROW_TILE bool stays(int row) const { return shared_.stays[row]; }
  // A sliding window still holds the chunk's.
  HEDGEROW_TILE bool drops(int row) const {
    return shared_.tokens[row] != kNone && !stays(row) && (row < entries_ || !slides());
  }

  // Where each row goes: entries of no key first, the others by token. How many are dropped.
  HEDGEROW_TILE int place_candidates() {
    const int row = thread();
    int kept = 0, dropped = 0, kept_before = 0, dropped_before = 0;
    for (int other = 0; other < rows_; ++other) {
      if (other == row) {
        kept_before = kept;
        dropped_before = dropped;
      }
      kept += stays(other) ? 1 : 0;
      dropped += drops(other) ? 1 : 0;
    }
    if (row < entries_ - kept) {
      shared_.kept[row] = kNone;
    }
    if (row < rows_ && stays(row)) {
      shared_.kept[entries_ - kept + kept_before] = row;
    } else if (row < rows_ && drops(row)) {
      shared_.dropped[dropped_before] = row;
    }
    return dropped;
  }

  // (S, z) += phi [v, 1] under one key map.
  HEDGEROW_TILE void fold_dropped(int head, int dropped) {
    HEDGEROW_NO_UNROLL
    for (int begin = 0; begin < dropped; begin += kTokens) {
      const int count = dropped - begin < kTokens ? dropped - begin : kTokens;
      sync_threads();  // rows are placed, and the tile before has been read
      const int at = warp() * kVectors;
      if (at < count) {
        HEDGEROW_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          load_row(at + i, at + i < count ? shared_.dropped[begin + at + i] : kNone);
        }
        sync_warp();
        make_features(head);
      }
      sync_threads();
      add_tokens(head, count);
    }
  }

  // Four rows and columns of S a thread at a time.
  HEDGEROW_TILE void add_tokens(int head, int count) {
    const int items = a_.batch.F / 4 * kRowLanes;
    float* states = a_.batch.kv_state + first_feature(head) * kHeadDim;
    HEDGEROW_NO_UNROLL
    for (int item = thread(); item < items; item += kThreads) {
      const int row = item / kRowLanes * 4, column = item % kRowLanes * 4;
      float* state = states + row * kHeadDim + column;
      Four sums[4];
      HEDGEROW_UNROLL
      for (int r = 0; r < 4; ++r) {
        sums[r] = load_four(state + r * kHeadDim);
      }
      HEDGEROW_UNROLL_TWICE
      for (int j = 0; j < count; ++j) {
        const Four value = load_four(shared_.values + j * kHeadDim + column);
        const Four phi = load_four(shared_.phi + j * kMostDecodeFeatures + row);
        HEDGEROW_UNROLL
        for (int r = 0; r < 4; ++r) {
          HEDGEROW_UNROLL
          for (int c = 0; c < 4; ++c) {
            sums[r].values[c] += phi.values[r] * value.values[c];
          }
        }
      }
      HEDGEROW_UNROLL
      for (int r = 0; r < 4; ++r) {
        store_four(state + r * kHeadDim, sums[r]);
      }
    }
    if (thread() < a_.batch.F) {
      float* z = a_.batch.k_state + first_feature(head) + thread();
      float sum = *z;
      for (int j = 0; j < count; ++j) {
        sum += shared_.phi[j * kMostDecodeFeatures + thread()];
      }
      *z = sum;
    }
  }

  // The chosen rows into the cache's entries, in place. A choice never keeps fewer keys than the
  // one before, so a key moves to no later entry: what 32 entries overwrite, later ones do not
  // read.
  HEDGEROW_TILE void keep_chosen() {
    HEDGEROW_NO_UNROLL
    for (int first = 0; first < entries_; first += kTokens) {
      Unit units[kUnitsOfThread];
      const auto for_units = [&](const auto& visit) {
        HEDGEROW_UNROLL
        for (int i = 0; i < kUnitsOfThread; ++i) {
          const int at = thread() + i * kThreads, entry = first + at / (2 * kUnits);
          if (entry < entries_) {
            visit(units[i], entry, at / kUnits % 2 == 0, at % kUnits * kUnit);
          }
        }
      };
      for_units([&](Unit& unit, int entry, bool is_key, int d) {
        const int row = shared_.kept[entry];
        unit = row == kNone
                   ? Unit{}
                   : *reinterpret_cast<const Unit*>((is_key ? key_of(row) : value_of(row)) + d);
      });
      sync_threads();
      for_units([&](const Unit& unit, int entry, bool is_key, int d) {
        const std::int64_t head = static_cast<std::int64_t>(batch_) * a_.batch.G + kv_head_;
        Bf16* to = (is_key ? a_.batch.recall_k : a_.batch.recall_v);
        *reinterpret_cast<Unit*>(to + (head * entries_ + entry) * kHeadDim + d) = unit;
      });
    }
    if (thread() < entries_) {
      const std::int64_t head = static_cast<std::int64_t>(batch_) * a_.batch.G + kv_head_;
      const int row = shared_.kept[thread()];
      a_.batch.recall_positions[head * entries_ + thread()] =
          row == kNone ? kNone : shared_.tokens[row];
    }
  }

  const DecodeRecallArguments& a_;
  Shared& shared_;
  int kv_head_, batch_;
  int entries_, rows_;   // of the cache; and of the chunk behind them
  int first_token_ = 0;  // of the chunk
};

}  // namespace hedgerow::kernels::cuda
