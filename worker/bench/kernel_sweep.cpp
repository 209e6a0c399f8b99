#include "worker/bench/kernel_sweep.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "worker/bench/attention_problem.hpp"
#include "worker/bench/softmax_opponents.hpp"
#include "worker/device/device.hpp"

namespace hedgerow::worker::bench {
namespace {

using nlohmann::json;

// Variants that take turns in one round: more would hold more memory at once, fewer would measure
// the opponent more often than needed.
constexpr std::size_t kVariantsARound = 6;

// One line of a plot, less its length: what is swept beside T, direction and heads.
struct Variant {
  storage::AttentionSpec attention;
  BenchDtype dtype = BenchDtype::kBfloat16;
};

std::vector<Variant> variants_of(const measure::KernelSweep& sweep) {
  std::vector<Variant> variants;
  for (const storage::WindowLayout layout : sweep.layouts) {
    for (const storage::FeatureMapKind map : sweep.maps) {
      for (const int features : sweep.features_of(map)) {
        for (const BenchDtype dtype : sweep.dtypes)
          variants.push_back({sweep.attention(map, features, layout), dtype});
      }
    }
  }
  return variants;
}

// A variant that can run at this size: what it is, and its call once that is made.
struct Entry {
  const Variant* variant;
  MapSize map;
  Contender contender;
};

// The measurements of one (heads, direction, length).
class Round {
 public:
  Round(const measure::KernelSweep& sweep,
        const AttentionSize& size,
        BenchDirection direction,
        const at::Device& device,
        std::uint64_t memory_bytes,
        const DevicePeaks& peaks,
        const SweepObserver& observer)
      : sweep_(sweep),
        size_(size),
        direction_(direction),
        device_(device),
        memory_bytes_(memory_bytes),
        peaks_(peaks),
        observer_(observer) {}

  void run(const std::vector<Variant>& variants, SoftmaxOpponents& opponents) {
    const MemoryNeed shared = shared_need(size_, direction_);
    if (!shared.fits(memory_bytes_)) {
      for (const Variant& variant : variants) refuse(variant, shared.against(memory_bytes_));
      return;
    }
    CastInputs inputs(draw_inputs(size_, direction_, device_));
    std::vector<LeftOut> left_out;
    opponent_ = opponents.fastest(size_, direction_, inputs, left_out);
    for (const LeftOut& one : left_out) {
      json object = place("left_out");
      object.update({{"softmax", one.name}, {"reason", one.reason}});
      observer_.on_object(object);
    }
    std::vector<Entry> entries;
    for (const Variant& variant : variants) {
      if (auto entry = prepare(variant, inputs)) entries.push_back(std::move(*entry));
      if (entries.size() == kVariantsARound) measure(std::exchange(entries, {}));
    }
    if (!entries.empty()) measure(entries);
  }

 private:
  json place(const char* event) const {
    return {{"event", event},
            {"direction", measure::to_string(direction_)},
            {"length", size_.T},
            {"sequences", size_.B},
            {"heads", measure::to_string(measure::HeadCounts{size_.H, size_.G})},
            {"head_dim", size_.D}};
  }

  json place(const char* event, const Variant& variant) const {
    json object = place(event);
    object.update({{"layout", storage::to_string(variant.attention.window)},
                   {"map", storage::to_string(variant.attention.feature_map)},
                   {"features", variant.attention.feature_dim},
                   {"window", variant.attention.window_size},
                   {"sinks", variant.attention.num_sinks},
                   {"key_maps", storage::to_string(variant.attention.key_maps)},
                   {"dtype", measure::to_string(variant.dtype)}});
    return object;
  }

  void refuse(const Variant& variant, const std::string& reason) const {
    json object = place("refused", variant);
    object["reason"] = reason;
    observer_.on_object(object);
  }

  // The variant's tensors, its graph or its state, and one call; refused if that fails or would not
  // fit beside the opponent and as many of its kind as a round holds.
  std::optional<Entry> prepare(const Variant& variant, CastInputs& inputs) const {
    try {
      HybridCase hybrid = draw_hybrid(variant.attention, size_.H, size_.G, size_.D, device_);
      MemoryNeed need = shared_need(size_, direction_);
      if (opponent_) need.add(opponent_->name, opponent_->need_bytes);
      need.add(std::to_string(kVariantsARound) + " variants at a time",
               static_cast<double>(kVariantsARound) *
                   hybrid_need(size_.in(variant.dtype), hybrid.map, direction_));
      if (!need.fits(memory_bytes_)) {
        refuse(variant, need.against(memory_bytes_));
        return std::nullopt;
      }
      Entry entry{
          &variant, hybrid.map, {hybrid_call(inputs.in(variant.dtype), hybrid, direction_)}};
      if (direction_ == BenchDirection::kDecode)
        entry.contender.calls_a_round = decode_steps_a_round(hybrid.map);
      entry.contender.call();
      return entry;
    } catch (const std::exception& error) {
      refuse(variant, sentence_of(error));
    }
    return std::nullopt;
  }

  void measure(const std::vector<Entry>& entries) const {
    std::vector<Contender> contenders;
    for (const Entry& entry : entries) contenders.push_back(entry.contender);
    if (opponent_) contenders.push_back(opponent_->contender);
    std::vector<Timing> timings;
    try {
      timings = alternate(contenders, sweep_.repeats, device_);
    } catch (const std::exception& error) {  // the estimate was too low, or a launch failed
      for (const Entry& entry : entries) refuse(*entry.variant, sentence_of(error));
      return;
    }
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const Variant& variant = *entries[i].variant;
      const Cost cost = hybrid_cost(size_.in(variant.dtype), entries[i].map, direction_);
      json object = place("measured", variant);
      object.update(speed(timings[i].median_ms, cost));
      object["repeats"] = sweep_.repeats;
      const double flops = cost.flops / (timings[i].median_ms * 1e-3);
      const double bytes = cost.bytes / (timings[i].median_ms * 1e-3);
      object["share_of_flops"] = flops / peaks_.flops(variant.dtype);
      object["share_of_bandwidth"] = bytes / peaks_.copy_bytes_per_second;
      object["softmax"] = nullptr;
      object["ratio"] = nullptr;
      if (opponent_) {
        object["softmax"] = speed(timings.back().median_ms, opponent_->cost);
        object["softmax"]["name"] = opponent_->name;
        object["ratio"] = timings[i].median_ms / timings.back().median_ms;
      }
      observer_.on_object(object);
    }
  }

  json speed(double milliseconds, const Cost& cost) const {
    const std::int64_t tokens = direction_ == BenchDirection::kDecode ? size_.B : size_.B * size_.T;
    return {{"ms", milliseconds},
            {"us_per_token", milliseconds * 1e3 / static_cast<double>(tokens)},
            {"gb_per_s", cost.bytes / milliseconds * 1e-6},
            {"tflop_per_s", cost.flops / milliseconds * 1e-9}};
  }

  const measure::KernelSweep& sweep_;
  AttentionSize size_;
  BenchDirection direction_;
  at::Device device_;
  std::uint64_t memory_bytes_;
  const DevicePeaks& peaks_;
  const SweepObserver& observer_;
  std::optional<SoftmaxOpponent> opponent_;
};

// For the bar: a length costs about its tokens, and softmax its square.
double weight(const AttentionSize& size, BenchDirection direction) {
  const double tokens = static_cast<double>(size.B) * static_cast<double>(size.T);
  if (direction == BenchDirection::kDecode) return tokens * 0.05;
  return tokens * (1 + static_cast<double>(size.T) / 512);
}

}  // namespace

json describe_device(const at::Device& device, const DevicePeaks& peaks) {
  return {{"event", "device"},
          {"device", device.is_cuda() ? "cuda" : "cpu"},
          {"model", device_model(device)},
          {"threads", at::get_num_threads()},
          {"libtorch", TORCH_VERSION},
          {"copy_gb_per_s", peaks.copy_bytes_per_second * 1e-9},
          {"bf16_tflop_per_s", peaks.bf16_flops * 1e-12},
          {"fp32_tflop_per_s", peaks.fp32_flops * 1e-12}};
}

void run_sweep(const measure::KernelSweep& sweep,
               const at::Device& device,
               std::uint64_t memory_bytes,
               const DevicePeaks& peaks,
               const SweepObserver& observer) {
  struct Step {
    AttentionSize size;
    BenchDirection direction;
  };
  std::vector<std::int64_t> lengths = sweep.lengths;
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  std::vector<Step> steps;
  double whole = 0;
  for (const measure::HeadCounts& heads : sweep.heads) {
    for (const BenchDirection direction : sweep.directions) {
      for (const std::int64_t T : lengths) {
        steps.push_back({{.B = sweep.num_sequences(T, direction),
                          .H = heads.query,
                          .G = heads.kv,
                          .T = T,
                          .D = sweep.head_dim},
                         direction});
        whole += weight(steps.back().size, direction);
      }
    }
  }
  const std::vector<Variant> variants = variants_of(sweep);
  SoftmaxOpponents opponents(device, memory_bytes);
  double done = 0;
  for (const auto& [size, direction] : steps) {
    observer.on_progress(
        done / whole, std::string(measure::to_string(direction)) + ", T = " + std::to_string(size.T));
    Round(sweep, size, direction, device, memory_bytes, peaks, observer).run(variants, opponents);
    done += weight(size, direction);
  }
}

}  // namespace hedgerow::worker::bench
