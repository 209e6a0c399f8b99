#include "worker/bench/kernel_costs.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace hedgerow::worker::bench {
namespace {

using kernels::WindowLayout;

constexpr double kFp32Bytes = 4, kBothDtypesBytes = 2 + kFp32Bytes;
constexpr double kShareForOthers = 0.1;  // of memory: the program itself, the allocator's rounding

double count(std::int64_t value) { return static_cast<double>(value); }

// Elements of a [B, heads, T, D] tensor.
double rows(const AttentionSize& size, std::int64_t heads) {
  return count(size.B) * count(heads) * count(size.T) * count(size.D);
}

// Key maps, and states, for one query head: 1, or G / H where a kv head's query heads share them.
double key_maps_a_head(const AttentionSize& size, const MapSize& map) {
  return map.key_maps == storage::KeyMaps::kKvHead ? count(size.G) / count(size.H) : 1;
}

// What a decode step reads and writes for one query head: S [F, D], z [F].
double state_elements(const AttentionSize& size, const MapSize& map) {
  return key_maps_a_head(size, map) * count(map.F) * (count(size.D) + 1);
}

// Keys under softmax of a decode step, on average over the steps: a terraced ring holds its own
// chunk so far and the whole previous one.
double keys_of_step(const MapSize& map, std::int64_t T) {
  switch (map.layout) {
    case WindowLayout::kNone:
      return 0;
    case WindowLayout::kSliding:
      return count(std::min(map.W + map.S, T));
    case WindowLayout::kTerraced:
      break;
  }
  return std::min(1.5 * count(map.W) + 0.5 + count(map.S), count(T));
}

Cost decode_cost(const AttentionSize& size, const MapSize& map) {
  const double heads = count(size.B) * count(size.H), D = count(size.D);
  const double keys = keys_of_step(map, size.T);
  // S and z are read for every token; they are written when keys leave the window.
  const double writes = map.layout == WindowLayout::kTerraced ? 1.0 / count(map.W) : 1.0;
  const double sides = 1 + key_maps_a_head(size, map);  // a query's map, and its share of a key's
  return {.flops = heads * D * (4 * keys + sides * 2 * (count(map.F) + count(map.f))),
          .bytes = heads * state_elements(size, map) * kFp32Bytes * (1 + writes) +
                   2 * count(size.B) * count(size.G) * keys * D * count(size.element_bytes) +
                   sides * count(size.H) * D * count(map.f) * kFp32Bytes};
}

std::string gigabytes(double bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f GB", bytes / 1e9);
  return text.data();
}

}  // namespace

AttentionSize AttentionSize::in(BenchDtype dtype) const {
  AttentionSize size = *this;
  size.element_bytes = dtype == BenchDtype::kFloat32 ? 4 : 2;
  return size;
}

double num_window_pairs(const MapSize& map, std::int64_t T) {
  double pairs = 0;
  for (std::int64_t i = 0; i < T; ++i) {
    const std::int64_t begin = kernels::window_begin(map.layout, map.W, i);
    pairs += count(i + 1 - begin + std::min(map.S, begin));
  }
  return pairs;
}

Cost hybrid_cost(const AttentionSize& size, const MapSize& map, BenchDirection direction) {
  if (direction == BenchDirection::kDecode) return decode_cost(size, map);
  const double heads = count(size.B) * count(size.H), D = count(size.D), T = count(size.T);
  const double F = count(map.F), f = count(map.f);
  const double pairs = num_window_pairs(map, size.T);
  const double share = key_maps_a_head(size, map), sides = 1 + share;
  const double element = count(size.element_bytes);
  const double maps = sides * count(size.H) * D * f * kFp32Bytes;
  Cost cost;
  if (direction != BenchDirection::kBackward) {
    cost.flops += heads * D * (4 * pairs + T * sides * (2 * F + 2 * f));
    cost.bytes += 2 * (rows(size, size.H) + rows(size, size.G)) * element + maps;
  }
  if (direction != BenchDirection::kForward) {
    cost.flops += heads * D * (10 * pairs + T * ((4 + 6 * share) * F + sides * 7 * f));
    cost.bytes += 4 * (rows(size, size.H) + rows(size, size.G)) * element + 2 * maps;
  }
  return cost;
}

Cost softmax_cost(const AttentionSize& size, BenchDirection direction) {
  const double heads = count(size.B) * count(size.H), D = count(size.D), T = count(size.T);
  const double element = count(size.element_bytes);
  if (direction == BenchDirection::kDecode)
    return {.flops = heads * 4 * T * D, .bytes = 2 * rows(size, size.G) * element};
  const double pairs = T * (T + 1) / 2;
  Cost cost;
  if (direction != BenchDirection::kBackward) {
    cost.flops += heads * 4 * pairs * D;
    cost.bytes += 2 * (rows(size, size.H) + rows(size, size.G)) * element;
  }
  if (direction != BenchDirection::kForward) {
    cost.flops += heads * 10 * pairs * D;
    cost.bytes += 4 * (rows(size, size.H) + rows(size, size.G)) * element;
  }
  return cost;
}

int decode_steps_a_round(const MapSize& map) {
  if (map.layout != WindowLayout::kTerraced) return 1;
  return static_cast<int>(std::min<std::int64_t>(map.W, kMostStepsARound));
}

MemoryNeed& MemoryNeed::add(const std::string& what, double bytes) {
  bytes_ += bytes;
  terms_ += (terms_.empty() ? "" : " + ") + what + " " + gigabytes(bytes);
  return *this;
}

std::string MemoryNeed::against(std::uint64_t available) const {
  return "needs " + gigabytes(bytes_) + " (" + terms_ + ") of " +
         gigabytes(static_cast<double>(available));
}

bool MemoryNeed::fits(std::uint64_t available) const {
  return bytes_ <= static_cast<double>(available) * (1 - kShareForOthers);
}

MemoryNeed shared_need(const AttentionSize& size, BenchDirection direction) {
  const double q = direction == BenchDirection::kDecode ? rows(size, size.H) / count(size.T)
                                                        : rows(size, size.H);
  MemoryNeed need;
  need.add("q, k, v", (q + 2 * rows(size, size.G)) * kBothDtypesBytes);
  if (direction == BenchDirection::kBackward || direction == BenchDirection::kTraining)
    need.add("dy", q * kBothDtypesBytes);
  return need;
}

double hybrid_need(const AttentionSize& size, const MapSize& map, BenchDirection direction) {
  const double element = count(size.element_bytes);
  const double heads = count(size.B) * count(size.H);
  const double states = heads * state_elements(size, map) * kFp32Bytes;
  if (direction == BenchDirection::kDecode) {
    // A prefill maps every key once.
    return 2 * states + heads * count(size.T) * count(map.F) * kFp32Bytes;
  }
  const double y = rows(size, size.H) * (element + kFp32Bytes);
  if (direction == BenchDirection::kForward) return y + states;
  return y + states + (rows(size, size.H) + 2 * rows(size, size.G)) * (element + kFp32Bytes) +
         heads * count(size.T) * count(map.F) * kFp32Bytes;
}

double softmax_need(const AttentionSize& size, BenchDirection direction, bool is_quadratic) {
  const double heads = count(size.B) * count(size.H);
  if (direction == BenchDirection::kDecode)
    return 2 * rows(size, size.H) * kFp32Bytes + heads * count(size.T) * 3 * kFp32Bytes;
  const bool has_backward = direction != BenchDirection::kForward;
  // K and V expanded to the query heads, y, and with a backward every gradient.
  const double linear = rows(size, size.H) * kFp32Bytes * (has_backward ? 8 : 4);
  // Scores, the masked ones, weights; the gradients of two of them besides.
  const double maps = has_backward ? 5 : 3;
  return linear + (is_quadratic ? maps * heads * count(size.T) * count(size.T) * kFp32Bytes : 0.0);
}

}  // namespace hedgerow::worker::bench
