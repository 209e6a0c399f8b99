// What a decoder layer does between its matrix products (worker/model/layer), and its gradients:
// every value in fp32, rounded once. Each kernel reads and writes its tensors once, 16 bytes a
// thread and access: bound by memory. A row's bytes depend on that row alone: sums over a row are
// those of a threadblock, in a fixed order.
#pragma once

#include "kernels/cuda/elementwise/elementwise_arguments.hpp"
#include "kernels/cuda/tile/tiles.cuh"
#include "kernels/cuda/tile/vectors.cuh"

namespace hedgerow::kernels::cuda {

inline constexpr int kRowThreads = 256;
inline constexpr int kRowWarps = kRowThreads / 32;

struct alignas(16) EightBf16 {
  Word words[4];
};
struct EightFloats {
  float values[kUnit];
};

HEDGEROW_TILE EightFloats load_eight(const Bf16* from) {
  const EightBf16 bits = *reinterpret_cast<const EightBf16*>(from);
  EightFloats x;
  HEDGEROW_UNROLL
  for (int i = 0; i < 4; ++i) {
    x.values[2 * i] = unpack(static_cast<Bf16>(bits.words[i]));
    x.values[2 * i + 1] = unpack(static_cast<Bf16>(bits.words[i] >> 16));
  }
  return x;
}
HEDGEROW_TILE EightFloats load_eight(const float* from) {
  EightFloats x;
  HEDGEROW_UNROLL
  for (int half = 0; half < 2; ++half) {
    const Four four = load_four(from + 4 * half);
    HEDGEROW_UNROLL
    for (int i = 0; i < 4; ++i) {
      x.values[4 * half + i] = four.values[i];
    }
  }
  return x;
}
HEDGEROW_TILE void store_eight(Bf16* to, const EightFloats& x) {
  EightBf16 bits;
  HEDGEROW_UNROLL
  for (int i = 0; i < 4; ++i) {
    bits.words[i] = pack(x.values[2 * i], x.values[2 * i + 1]);
  }
  *reinterpret_cast<EightBf16*>(to) = bits;
}

struct RowSums {
  float of_warp[2][kRowWarps];
};

// Sums over the threadblock; every thread has them.
HEDGEROW_TILE void sum_of_threads(float& first, float& second, RowSums& shared) {
  first = sum_of_lanes(first, 32);
  second = sum_of_lanes(second, 32);
  if (lane() == 0) {
    shared.of_warp[0][warp()] = first;
    shared.of_warp[1][warp()] = second;
  }
  sync_threads();
  first = 0.0F;
  second = 0.0F;
  HEDGEROW_UNROLL
  for (int i = 0; i < kRowWarps; ++i) {
    first += shared.of_warp[0][i];
    second += shared.of_warp[1][i];
  }
}

HEDGEROW_TILE float inverse_root(float x) { return 1.0F / sqrtf(x); }

HEDGEROW_TILE void norm_row(const NormArguments& a, RowSums& shared, int row) {
  const std::int64_t begin = static_cast<std::int64_t>(row) * a.columns;
  const Bf16* x = a.x + begin;
  float squares = 0.0F, none = 0.0F;
  for (int i = thread() * kUnit; i < a.columns; i += kRowThreads * kUnit) {
    EightFloats values = load_eight(x + i);
    if (a.update != nullptr) {
      const EightFloats update = load_eight(a.update + begin + i);
      HEDGEROW_UNROLL
      for (int j = 0; j < kUnit; ++j) {
        values.values[j] += update.values[j];
      }
      store_eight(a.sum + begin + i, values);
      values = load_eight(a.sum + begin + i);  // rounded
    }
    HEDGEROW_UNROLL
    for (int j = 0; j < kUnit; ++j) {
      squares += values.values[j] * values.values[j];
    }
  }
  sum_of_threads(squares, none, shared);
  const float scale = inverse_root(squares / static_cast<float>(a.columns) + a.eps);
  // This thread reads again only places that it has read or written itself.
  const Bf16* normed = a.update != nullptr ? a.sum + begin : x;
  for (int i = thread() * kUnit; i < a.columns; i += kRowThreads * kUnit) {
    EightFloats values = load_eight(normed + i);
    const EightFloats weight = load_eight(a.weight + i);
    HEDGEROW_UNROLL
    for (int j = 0; j < kUnit; ++j) {
      values.values[j] = values.values[j] * scale * weight.values[j];
    }
    store_eight(a.out + begin + i, values);
  }
}

// With r = 1 / sqrt(mean x^2 + eps): dx = r (w dy) - x r^3 mean(w dy x).
HEDGEROW_TILE void norm_backward_row(const NormBackwardArguments& a, RowSums& shared, int row) {
  const std::int64_t begin = static_cast<std::int64_t>(row) * a.columns;
  const auto weighted = [&](int i) {
    EightFloats dy = load_eight(a.dy + begin + i);
    const EightFloats weight = load_eight(a.weight + i);
    if (a.low_rank != nullptr) {
      const EightFloats low_rank = load_eight(a.low_rank + begin + i);
      HEDGEROW_UNROLL
      for (int j = 0; j < kUnit; ++j) {
        dy.values[j] += low_rank.values[j];
      }
    }
    HEDGEROW_UNROLL
    for (int j = 0; j < kUnit; ++j) {
      dy.values[j] *= weight.values[j];
    }
    return dy;
  };
  float squares = 0.0F, dot = 0.0F;
  for (int i = thread() * kUnit; i < a.columns; i += kRowThreads * kUnit) {
    const EightFloats x = load_eight(a.x + begin + i), dy = weighted(i);
    HEDGEROW_UNROLL
    for (int j = 0; j < kUnit; ++j) {
      squares += x.values[j] * x.values[j];
      dot += dy.values[j] * x.values[j];
    }
  }
  sum_of_threads(squares, dot, shared);
  const float size = static_cast<float>(a.columns);
  const float inverse = inverse_root(squares / size + a.eps);
  const float along = inverse * inverse * inverse * (dot / size);
  for (int i = thread() * kUnit; i < a.columns; i += kRowThreads * kUnit) {
    const EightFloats x = load_eight(a.x + begin + i), dy = weighted(i);
    EightFloats dx = load_eight(a.residual + begin + i);
    HEDGEROW_UNROLL
    for (int j = 0; j < kUnit; ++j) {
      dx.values[j] += inverse * dy.values[j] - x.values[j] * along;
    }
    store_eight(a.dx + begin + i, dx);
  }
}

HEDGEROW_TILE float sigmoid(float x) { return 1.0F / (1.0F + power_of_two(-kLog2E * x)); }

HEDGEROW_TILE void swiglu_unit(const SwigluArguments& a, int row, int column) {
  const Bf16* gate_up = a.gate_up + static_cast<std::int64_t>(row) * 2 * a.columns;
  EightFloats gate = load_eight(gate_up + column);
  const EightFloats up = load_eight(gate_up + a.columns + column);
  HEDGEROW_UNROLL
  for (int j = 0; j < kUnit; ++j) {
    gate.values[j] = gate.values[j] * sigmoid(gate.values[j]) * up.values[j];
  }
  store_eight(a.out + static_cast<std::int64_t>(row) * a.columns + column, gate);
}

HEDGEROW_TILE void swiglu_backward_unit(const SwigluArguments& a, int row, int column) {
  const std::int64_t begin = static_cast<std::int64_t>(row) * 2 * a.columns;
  EightFloats gate = load_eight(a.gate_up + begin + column);
  EightFloats up = load_eight(a.gate_up + begin + a.columns + column);
  const EightFloats dy =
      load_eight(a.dy + static_cast<std::int64_t>(row) * a.columns + column);
  HEDGEROW_UNROLL
  for (int j = 0; j < kUnit; ++j) {
    const float s = sigmoid(gate.values[j]), silu = gate.values[j] * s;
    gate.values[j] = dy.values[j] * up.values[j] * (s + silu * (1.0F - s));
    up.values[j] = dy.values[j] * silu;
  }
  store_eight(a.out + begin + column, gate);
  store_eight(a.out + begin + a.columns + column, up);
}

// A thread's place in one token: D / 16 threads a head, each with eight elements of the lower half
// and eight of the upper. All lanes get one; those beyond the last head get the last place.
struct HeadPlace {
  int head, low;                          // low: the first of eight columns of the lower half
  bool inside;
  std::int64_t packed, split;             // in qkv; in q, k or v
  bool is_query, is_key;
};

HEDGEROW_TILE HeadPlace head_place(const HeadsArguments& a, int token, int index) {
  const int threads = a.D / (2 * kUnit), heads = a.H + 2 * a.G;
  HeadPlace place;
  place.inside = index < heads * threads;
  const int at = place.inside ? index : heads * threads - 1;
  place.head = at / threads;
  place.low = at % threads * kUnit;
  place.is_query = place.head < a.H;
  place.is_key = !place.is_query && place.head < a.H + a.G;
  const int of_kind = place.is_query ? place.head
                      : place.is_key ? place.head - a.H
                                     : place.head - a.H - a.G;
  const int batch = token / a.T, t = token % a.T;
  place.packed = (static_cast<std::int64_t>(token) * heads + place.head) * a.D + place.low;
  place.split =
      ((static_cast<std::int64_t>(batch) * (place.is_query ? a.H : a.G) + of_kind) * a.T + t) *
          a.D +
      place.low;
  return place;
}

HEDGEROW_TILE float dot_of_head(const EightFloats& a_low,
                                const EightFloats& b_low,
                                const EightFloats& a_high,
                                const EightFloats& b_high,
                                int threads) {
  float sum = 0.0F;
  HEDGEROW_UNROLL
  for (int j = 0; j < kUnit; ++j) {
    sum += a_low.values[j] * b_low.values[j] + a_high.values[j] * b_high.values[j];
  }
  return sum_of_lanes(sum, threads);
}

// The rotary embedding, direction 1, or its transpose, -1.
HEDGEROW_TILE void turn(const HeadsArguments& a,
                        int t,
                        const HeadPlace& place,
                        EightFloats& low,
                        EightFloats& high,
                        float direction) {
  const std::int64_t line = static_cast<std::int64_t>(t) * a.D + place.low;
  const EightFloats cos = load_eight(a.cos + line), sin = load_eight(a.sin + line);
  HEDGEROW_UNROLL
  for (int j = 0; j < kUnit; ++j) {
    const float x = low.values[j], y = high.values[j], s = direction * sin.values[j];
    low.values[j] = x * cos.values[j] - y * s;
    high.values[j] = y * cos.values[j] + x * s;
  }
}

HEDGEROW_TILE void split_token(const HeadsArguments& a, int token) {
  const int half = a.D / 2, threads = half / kUnit, t = token % a.T;
  const int count = (a.H + 2 * a.G) * threads, rounded = (count + 31) / 32 * 32;
  for (int index = thread(); index < rounded; index += kRowThreads) {
    const HeadPlace place = head_place(a, token, index);
    EightFloats low = load_eight(a.qkv + place.packed);
    EightFloats high = load_eight(a.qkv + place.packed + half);
    const float* norm = place.is_query ? a.q_norm : place.is_key ? a.k_norm : nullptr;
    if (a.q_norm != nullptr || a.k_norm != nullptr) {
      const float scale = inverse_root(
          dot_of_head(low, low, high, high, threads) / static_cast<float>(a.D) + a.eps);
      if (norm != nullptr) {
        const EightFloats w_low = load_eight(norm + place.low);
        const EightFloats w_high = load_eight(norm + half + place.low);
        HEDGEROW_UNROLL
        for (int j = 0; j < kUnit; ++j) {
          // As a norm of its own would hand it on: not rounded.
          low.values[j] = low.values[j] * scale * w_low.values[j];
          high.values[j] = high.values[j] * scale * w_high.values[j];
        }
      }
    }
    if (place.is_query || place.is_key) {
      turn(a, t, place, low, high, 1.0F);
    }
    if (place.inside) {
      Bf16* to = (place.is_query ? a.q : place.is_key ? a.k : a.v) + place.split;
      store_eight(to, low);
      store_eight(to + half, high);
    }
  }
}

HEDGEROW_TILE void split_backward_token(const HeadsArguments& a, int token) {
  const int half = a.D / 2, threads = half / kUnit, t = token % a.T;
  const int count = (a.H + 2 * a.G) * threads, rounded = (count + 31) / 32 * 32;
  for (int index = thread(); index < rounded; index += kRowThreads) {
    const HeadPlace place = head_place(a, token, index);
    const Bf16* from = (place.is_query ? a.q : place.is_key ? a.k : a.v) + place.split;
    EightFloats low = load_eight(from), high = load_eight(from + half);
    if (place.is_query || place.is_key) {
      turn(a, t, place, low, high, -1.0F);
    }
    if (a.q_norm != nullptr || a.k_norm != nullptr) {
      const float* norm = place.is_query ? a.q_norm : place.is_key ? a.k_norm : nullptr;
      const EightFloats x_low = load_eight(a.qkv + place.packed);
      const EightFloats x_high = load_eight(a.qkv + place.packed + half);
      if (norm != nullptr) {
        const EightFloats w_low = load_eight(norm + place.low);
        const EightFloats w_high = load_eight(norm + half + place.low);
        HEDGEROW_UNROLL
        for (int j = 0; j < kUnit; ++j) {
          low.values[j] *= w_low.values[j];
          high.values[j] *= w_high.values[j];
        }
      }
      const float size = static_cast<float>(a.D);
      const float squares = dot_of_head(x_low, x_low, x_high, x_high, threads);
      const float dot = dot_of_head(low, x_low, high, x_high, threads);
      if (norm != nullptr) {
        const float inverse = inverse_root(squares / size + a.eps);
        const float along = inverse * inverse * inverse * (dot / size);
        HEDGEROW_UNROLL
        for (int j = 0; j < kUnit; ++j) {
          low.values[j] = inverse * low.values[j] - x_low.values[j] * along;
          high.values[j] = inverse * high.values[j] - x_high.values[j] * along;
        }
      }
    }
    if (place.inside) {
      store_eight(a.dqkv + place.packed, low);
      store_eight(a.dqkv + place.packed + half, high);
    }
  }
}

}  // namespace hedgerow::kernels::cuda
