// One token a row (LoLCATs eq. 3 and 6): window softmax over sinks, ring and the new key, linear
// branch through (S, z), one denominator. fp32 throughout; q, k, v, the ring and y are bf16.
//
// A threadblock of 256 threads walks up to four query heads of one (row, kv head), so that the
// ring's keys are read once for them; grid (B G ceil(group / heads)). What is heavy is S: read once
// (F D floats a query head, 16 bytes a lane), and written once where a key joins it, in the same
// pass: y += phi_q (S + phi_k v). A sliding window's oldest key joins as it leaves, and without a
// window the new one; what a terraced window flushes has joined before (decode_state.cuh), so that
// most of its steps only read. So does what joins an S that the query heads of a kv head share: it
// is read once for those of a threadblock, and written by none of them. A row is computed alike
// whatever the batch and `heads` are.
//
// With a recall cache (kRecalls, a kernel of its own, so that other steps do not pay for it) its
// keys before the window stand between sinks and window, and a token that it holds does not join.
//
// The ring is not written here: the new key's slot may be the leaving one's, which other
// threadblocks of the row still read. decode_ring.cuh writes it afterwards, and advances.
//
// Bytes a step: 8 F D (4 F D without a joining key) a query head, 4 D w a kv head. FLOPs a query
// head: 4 D (w + F + f). Shared memory: 28 KiB at D = 128.
#pragma once

#include "kernels/cuda/decode/decode_features.cuh"

namespace hedgerow::kernels::cuda {

template <int kHeadDim, bool kRecalls>
class DecodeStep {
 public:
  static constexpr int kThreads = 256;
  static constexpr int kThreadblocks = 3;  // of a multiprocessor: while one computes, others stream
  static constexpr int kHeads = 4;

 private:
  static constexpr int kWarps = kThreads / 32;
  static_assert(kWarps == 2 * kHeads, "a warp makes the features of one head's query or key");
  static constexpr int kColumns = kHeadDim / 32;  // of a key, a lane
  static constexpr int kKeysOfTurn = 4;           // of a warp, in flight together
  static constexpr int kRowLanes = kHeadDim / 4;  // of a row of S
  static constexpr int kRowsOfWarp = 32 / kRowLanes;
  static constexpr int kRowsInFlight = 8;  // of S, a lane
  static constexpr int kItems = kHeads * kHeadDim / kThreads;

 public:
  struct alignas(128) Shared {
    float q[kHeads * kHeadDim];
    float key[kHeadDim], value[kHeadDim];  // of the token that joins (S, z)
    float phi_q[kHeads * kMostDecodeFeatures], phi_k[kHeads * kMostDecodeFeatures];
    float y[kWarps][kHeads * kHeadDim];  // of a warp: its keys' share, then its rows of S
    float maxima[kWarps][kHeads], sums[kWarps][kHeads];
    float masses[kHeads];
  };

  HEDGEROW_TILE DecodeStep(const DecodeStepArguments& arguments, Shared& shared, int threadblock)
      : a_(arguments), shared_(shared) {
    const int group = a_.batch.group(), parts = (group + a_.heads - 1) / a_.heads;
    const int part = threadblock % parts;
    kv_head_ = threadblock / parts % a_.batch.G;
    batch_ = threadblock / parts / a_.batch.G;
    first_head_ = kv_head_ * group + part * a_.heads;
    heads_ = group - part * a_.heads < a_.heads ? group - part * a_.heads : a_.heads;
    position_ = static_cast<int>(a_.batch.positions[batch_]);
    begin_ = a_.batch.begin_after(position_ + 1);
    const int before = a_.batch.begin_after(position_);
    joins_ = a_.batch.layout != Layout::kTerraced && !a_.batch.shares_states() && before < begin_ &&
             before >= a_.batch.sinks;
    joining_ = before;
    if constexpr (kRecalls) {
      first_recalled_ = a_.batch.recalled_before(batch_, kv_head_, 0);
      recalled_ = a_.batch.recalled_before(batch_, kv_head_, begin_) - first_recalled_;
      joins_ = joins_ && !a_.batch.recalls(batch_, kv_head_, joining_);
    }
  }

  HEDGEROW_TILE void run() {
    load_inputs();
    sync_threads();
    if (a_.batch.layout != Layout::kNone) {
      attend_window();
    }
    if (has_state()) {
      make_features();
    }
    sync_threads();
    Items items;
    join_window(items);
    if (has_state()) {
      add_masses();
    }
    sync_threads();
    if (has_state()) {
      if (a_.batch.shares_states()) {
        read_shared_state();
      } else if (joins_) {
        read_states<true>();
      } else {
        read_states<false>();
      }
    }
    sync_threads();
    store(items);
  }

 private:
  // The window's numerator and denominator, in the columns of y that a thread ends up with.
  struct Items {
    float values[kItems] = {}, sums[kItems] = {};
  };
  struct alignas(4 * kColumns / 2) KeyWords {
    Word words[kColumns / 2];
  };

  // Sinks before the window; whether (S, z) holds other tokens.
  HEDGEROW_TILE int far_sinks() const { return begin_ < a_.batch.sinks ? begin_ : a_.batch.sinks; }
  HEDGEROW_TILE bool has_state() const { return begin_ > a_.batch.sinks; }
  // Keys before the window's, those of the recall cache behind the sinks.
  HEDGEROW_TILE int far_keys() const { return kRecalls ? far_sinks() + recalled_ : far_sinks(); }

  HEDGEROW_TILE const Bf16* new_row(const Rows& x, int head) const {
    return x.data + batch_ * x.batch + head * x.head;
  }
  // Address of a row of the ring, of the sinks or of the recall cache, `rows` rows a kv head.
  HEDGEROW_TILE const Bf16* kept_row(const Bf16* kept, int rows, int row) const {
    return kept +
           ((static_cast<std::int64_t>(batch_) * a_.batch.G + kv_head_) * rows + row) * kHeadDim;
  }
  HEDGEROW_TILE const Bf16* ring_row(const Bf16* ring, int slot) const {
    return kept_row(ring, a_.batch.slots, slot);
  }

  HEDGEROW_TILE static void widen_pair(float* to, const Bf16* from) {
    const Word pair = *reinterpret_cast<const Word*>(from);
    to[0] = unpack(static_cast<Bf16>(pair));
    to[1] = unpack(static_cast<Bf16>(pair >> 16));
  }
  HEDGEROW_TILE void load_inputs() {
    for (int i = 2 * thread(); i < heads_ * kHeadDim; i += 2 * kThreads) {
      const int head = first_head_ + i / kHeadDim;
      widen_pair(shared_.q + i, new_row(a_.q, head) + i % kHeadDim);
    }
    if (joins_ && thread() < kHeadDim) {
      const bool is_new = joining_ == position_;
      const int slot = joining_ % a_.batch.slots, d = thread() / 2 * 2;
      if (thread() % 2 == 0) {
        widen_pair(shared_.key + d,
                   (is_new ? new_row(a_.k, kv_head_) : ring_row(a_.batch.ring_k, slot)) + d);
      } else {
        widen_pair(shared_.value + d,
                   (is_new ? new_row(a_.v, kv_head_) : ring_row(a_.batch.ring_v, slot)) + d);
      }
    }
  }

  // Columns d .. of key and value number i of far sinks, recall cache and window, each oldest
  // first; zeros beyond the last.
  HEDGEROW_TILE void load_token(KeyWords& key, KeyWords& value, int i, int d) const {
    key = KeyWords{};
    value = KeyWords{};
    const int token = begin_ + i - far_keys();
    if (i < far_sinks()) {
      key = *reinterpret_cast<const KeyWords*>(kept_row(a_.batch.sink_k, a_.batch.sinks, i) + d);
      value = *reinterpret_cast<const KeyWords*>(kept_row(a_.batch.sink_v, a_.batch.sinks, i) + d);
    } else if (kRecalls && i < far_keys()) {
      const int entry = first_recalled_ + i - far_sinks(), entries = a_.batch.recalled;
      key = *reinterpret_cast<const KeyWords*>(kept_row(a_.batch.recall_k, entries, entry) + d);
      value = *reinterpret_cast<const KeyWords*>(kept_row(a_.batch.recall_v, entries, entry) + d);
    } else if (token <= position_) {
      const bool is_new = token == position_;
      const int slot = token % a_.batch.slots;
      key = *reinterpret_cast<const KeyWords*>(
          (is_new ? new_row(a_.k, kv_head_) : ring_row(a_.batch.ring_k, slot)) + d);
      value = *reinterpret_cast<const KeyWords*>(
          (is_new ? new_row(a_.v, kv_head_) : ring_row(a_.batch.ring_v, slot)) + d);
    }
  }
  HEDGEROW_TILE static float column_of(const KeyWords& row, int c) {
    return unpack(static_cast<Bf16>(row.words[c / 2] >> (16 * (c % 2))));
  }

  // One query head's share of a warp's keys so far: sum e^(s - m) v and sum e^(s - m), with the
  // warp's own m.
  struct Share {
    float y[kColumns] = {}, maximum = minus_infinity(), sum = 0.0F;

    // Adds keys with scores log2(e) s; -infinity for a key that is not there; at least one is.
    HEDGEROW_TILE void add(const float (&scores)[kKeysOfTurn],
                           const KeyWords (&values)[kKeysOfTurn]) {
      float largest = maximum;
      HEDGEROW_UNROLL
      for (int i = 0; i < kKeysOfTurn; ++i) {
        largest = scores[i] > largest ? scores[i] : largest;
      }
      const float before = power_of_two(maximum - largest);
      maximum = largest;
      sum *= before;
      HEDGEROW_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        y[c] *= before;
      }
      HEDGEROW_UNROLL
      for (int i = 0; i < kKeysOfTurn; ++i) {
        const float p = power_of_two(scores[i] - largest);
        sum += p;
        HEDGEROW_UNROLL
        for (int c = 0; c < kColumns; ++c) {
          y[c] += p * column_of(values[i], c);
        }
      }
    }
  };

  // log2(e) s of one query and a key: powers of two are what the hardware has.
  HEDGEROW_TILE static float score(const float* q, const KeyWords& key) {
    constexpr float kScale = kLog2E * (kHeadDim == 64 ? 0.125F : 0.0883883476483184F);
    float dot = 0.0F;
    HEDGEROW_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      dot += q[c] * column_of(key, c);
    }
    return kScale * sum_of_lanes(dot, 32);
  }

  // Every warp meets every eighth key of the window, four at a time, for all of the query heads.
  HEDGEROW_TILE void attend_window() {
    const int column = lane() * kColumns, keys = far_keys() + position_ + 1 - begin_;
    Share shares[kHeads];
    HEDGEROW_NO_UNROLL
    for (int first = warp(); first < keys; first += kWarps * kKeysOfTurn) {
      KeyWords key[kKeysOfTurn], value[kKeysOfTurn];
      HEDGEROW_UNROLL
      for (int i = 0; i < kKeysOfTurn; ++i) {
        load_token(key[i], value[i], first + i * kWarps, column);
      }
      HEDGEROW_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        if (h < heads_) {
          float scores[kKeysOfTurn];
          HEDGEROW_UNROLL
          for (int i = 0; i < kKeysOfTurn; ++i) {
            const float s = score(shared_.q + h * kHeadDim + column, key[i]);
            scores[i] = first + i * kWarps < keys ? s : minus_infinity();
          }
          shares[h].add(scores, value);
        }
      }
    }
    HEDGEROW_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      HEDGEROW_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        shared_.y[warp()][h * kHeadDim + column + c] = shares[h].y[c];
      }
      if (column == 0) {
        shared_.maxima[warp()][h] = shares[h].maximum;
        shared_.sums[warp()][h] = shares[h].sum;
      }
    }
  }

  // Warps 0 .. 3: phi_q of a head; warps 4 .. 7: phi_k of the joining key under a head's map.
  HEDGEROW_TILE void make_features() {
    const int h = warp() % kHeads;
    const bool is_key = warp() >= kHeads;
    if (h >= heads_ || (is_key && !joins_)) {
      return;
    }
    const DecodeMap& map = is_key ? a_.map_k : a_.map_q;
    float* phi = (is_key ? shared_.phi_k : shared_.phi_q) + h * kMostDecodeFeatures;
    const float* x = is_key ? shared_.key : shared_.q + h * kHeadDim;
    if (map.columns <= kColumnsOfPass) {
      make_token_features<kHeadDim, 1, 1>(phi, kMostDecodeFeatures, map, first_head_ + h, x);
    } else if (map.columns <= 2 * kColumnsOfPass) {
      make_token_features<kHeadDim, 1, 2>(phi, kMostDecodeFeatures, map, first_head_ + h, x);
    } else {
      make_token_features<kHeadDim, 1, 4>(phi, kMostDecodeFeatures, map, first_head_ + h, x);
    }
  }

  // The warps' shares of the window, brought to one maximum. A warp without a key has the maximum
  // -infinity and weighs nothing.
  HEDGEROW_TILE void join_window(Items& items) {
    if (a_.batch.layout == Layout::kNone) {
      return;
    }
    HEDGEROW_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const int item = thread() + i * kThreads, h = item / kHeadDim;
      if (h < heads_) {
        float largest = shared_.maxima[0][h];
        for (int w = 1; w < kWarps; ++w) {
          largest = shared_.maxima[w][h] > largest ? shared_.maxima[w][h] : largest;
        }
        for (int w = 0; w < kWarps; ++w) {
          const float factor = power_of_two(shared_.maxima[w][h] - largest);
          items.values[i] += factor * shared_.y[w][item];
          items.sums[i] += factor * shared_.sums[w][h];
        }
      }
    }
  }

  HEDGEROW_TILE std::int64_t first_feature(int h) const {
    const int key_head = a_.batch.shares_states() ? kv_head_ : first_head_ + h;
    return (static_cast<std::int64_t>(batch_) * a_.batch.U + key_head) * a_.batch.F;
  }

  // z += phi_k; phi_q.z. A warp a head.
  HEDGEROW_TILE void add_masses() {
    const int h = warp();
    if (h >= heads_) {
      return;
    }
    float* z = a_.batch.k_state + first_feature(h);
    float mass = 0.0F;
    for (int f = lane(); f < a_.batch.F; f += 32) {
      float sum = z[f];
      if (joins_) {
        sum += shared_.phi_k[h * kMostDecodeFeatures + f];
        z[f] = sum;
      }
      mass += shared_.phi_q[h * kMostDecodeFeatures + f] * sum;
    }
    mass = sum_of_lanes(mass, 32);
    if (lane() == 0) {
      shared_.masses[h] = mass;
    }
  }

  // S += phi_k v where a key joins, and phi_q S: one walk over the heads' states, a row of S the
  // 16-byte loads of half a warp or a warp.
  template <bool kJoins>
  HEDGEROW_TILE void read_states() {
    const int row = (warp() * 32 + lane()) / kRowLanes, column = lane() % kRowLanes * 4;
    Four value{};
    if constexpr (kJoins) {
      value = load_four(shared_.value + column);
    }
    HEDGEROW_NO_UNROLL
    for (int h = 0; h < heads_; ++h) {
      float* state = a_.batch.kv_state + first_feature(h) * kHeadDim + column;
      Four y{};
      HEDGEROW_NO_UNROLL
      for (int first = row; first < a_.batch.F; first += kWarps * kRowsOfWarp * kRowsInFlight) {
        read_rows<kJoins>(y, state, value, h * kMostDecodeFeatures, first);
      }
      store_share(y, h, column);
    }
  }
  // A warp's sum over its rows of S, for head h.
  HEDGEROW_TILE void store_share(Four& y, int h, int column) {
    if constexpr (kRowsOfWarp == 2) {
      HEDGEROW_UNROLL
      for (int c = 0; c < 4; ++c) {
        y.values[c] += shuffle_xor(y.values[c], kRowLanes);
      }
    }
    if (lane() < kRowLanes) {
      store_four(shared_.y[warp()] + h * kHeadDim + column, y);
    }
  }

  // phi_q S of the heads, which share S: each of its rows is read once.
  HEDGEROW_TILE void read_shared_state() {
    const int row = (warp() * 32 + lane()) / kRowLanes, column = lane() % kRowLanes * 4;
    const float* state = a_.batch.kv_state + first_feature(0) * kHeadDim + column;
    Four y[kHeads] = {};
    HEDGEROW_NO_UNROLL
    for (int first = row; first < a_.batch.F; first += kWarps * kRowsOfWarp * kRowsInFlight) {
      Four rows[kRowsInFlight];
      HEDGEROW_UNROLL
      for (int i = 0; i < kRowsInFlight; ++i) {
        const int f = first + i * kWarps * kRowsOfWarp;
        rows[i] = load_once(state + (f < a_.batch.F ? f : first) * kHeadDim);
      }
      HEDGEROW_UNROLL
      for (int i = 0; i < kRowsInFlight; ++i) {
        const int f = first + i * kWarps * kRowsOfWarp;
        HEDGEROW_UNROLL
        for (int h = 0; h < kHeads; ++h) {
          if (f < a_.batch.F && h < heads_) {
            const float phi_q = shared_.phi_q[h * kMostDecodeFeatures + f];
            HEDGEROW_UNROLL
            for (int c = 0; c < 4; ++c) {
              y[h].values[c] += phi_q * rows[i].values[c];
            }
          }
        }
      }
    }
    HEDGEROW_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      if (h < heads_) {
        store_share(y[h], h, column);
      }
    }
  }
  template <bool kJoins>
  HEDGEROW_TILE void read_rows(Four& y, float* state, const Four& value, int features, int first) {
    Four rows[kRowsInFlight];
    HEDGEROW_UNROLL
    for (int i = 0; i < kRowsInFlight; ++i) {
      const int f = first + i * kWarps * kRowsOfWarp;
      // Beyond the last feature a row that is read anyway: a branch here would part the loads.
      rows[i] = load_once(state + (f < a_.batch.F ? f : first) * kHeadDim);
    }
    HEDGEROW_UNROLL
    for (int i = 0; i < kRowsInFlight; ++i) {
      const int f = first + i * kWarps * kRowsOfWarp;
      if (f < a_.batch.F) {
        const float phi_q = shared_.phi_q[features + f];
        if constexpr (kJoins) {
          const float phi_k = shared_.phi_k[features + f];
          HEDGEROW_UNROLL
          for (int c = 0; c < 4; ++c) {
            rows[i].values[c] += phi_k * value.values[c];
          }
          store_once(state + f * kHeadDim, rows[i]);
        }
        HEDGEROW_UNROLL
        for (int c = 0; c < 4; ++c) {
          y.values[c] += phi_q * rows[i].values[c];
        }
      }
    }
  }

  HEDGEROW_TILE void store(const Items& items) {
    HEDGEROW_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const int item = thread() + i * kThreads, h = item / kHeadDim;
      if (h >= heads_) {
        continue;
      }
      float y = 0.0F, sum = kEpsilon;
      if (a_.batch.layout != Layout::kNone) {
        const float gate = a_.batch.gain(begin_ - a_.batch.sinks) /
                           (1.0F + exponential(-a_.factors[first_head_ + h]));
        y = gate * items.values[i];
        sum = gate * items.sums[i];
      }
      if (has_state()) {
        float linear = 0.0F;
        for (int w = 0; w < kWarps; ++w) {
          linear += shared_.y[w][item];
        }
        y += linear;
        sum += shared_.masses[h];
      }
      const std::int64_t head = static_cast<std::int64_t>(batch_) * a_.batch.H + first_head_ + h;
      a_.y[head * kHeadDim + item % kHeadDim] = static_cast<Bf16>(pack(y / sum, 0.0F));
    }
  }

  const DecodeStepArguments& a_;
  Shared& shared_;
  int kv_head_, batch_, first_head_, heads_, position_;
  int begin_;    // first token of the new token's window: (S, z) holds those before it, but sinks
  bool joins_;   // whether a token joins (S, z) here
  int joining_;  // which
  int first_recalled_ = 0, recalled_ = 0;  // entries of the recall cache before the window
};

}  // namespace hedgerow::kernels::cuda
