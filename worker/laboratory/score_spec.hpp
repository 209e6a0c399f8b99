// An attention of the laboratory as one value: how a query and a key become a weight, what the
// weights are divided by, and what happens to the output. Every attention of the papers 000
// (Hedgehog), 001 (Performer) and 004 (softmax attention as an RNN) is one of them:
//
//   y_t = norm(out_gate_t sum_s mask_ts score(q_t, k_s) in_gate_s v_s / denominator_t)
//
// validate() runs before any computation, so that a score that cannot be normalised is refused by
// the name of its field and never trained.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hedgerow::worker::laboratory {

// With s = q.k / sqrt(D): e^s; sum_{n <= order} p^n / n! of p = phi(q).phi(k); phi(q).phi(k).
enum class Score { kExp, kSeries, kProduct };

// phi, with x' = D^-1/4 x, so that x'_q.x'_k = s. Formulas stand in README.md.
enum class Map {
  kIdentity,
  kEluPlusOne,
  kRelu,
  kExp,
  kHedgehog,
  kFavor,
  kTaylor,
  kLimit,
  kRandomTaylor,
  kCosine,
  kCosFormer
};

enum class Denominator { kSum, kDetachedSum, kLength, kNone };

// Over the columns of a head's output, without parameters.
enum class OutputNorm { kNone, kL2, kRms, kLayer };

struct ScoreSpec {
  std::string name = "softmax";
  Score score = Score::kExp;
  Map map = Map::kIdentity;
  int order = 2;                  // of kSeries, kTaylor, kRandomTaylor; n of kLimit
  double temperature = 1;         // t of kExp
  bool negation = true;           // kHedgehog: features of z and of -z
  bool feature_softmax = true;    // kHedgehog: softmax over the features (000 eq. 4), else e^z
  bool trained_map = false;       // kRelu, kEluPlusOne: of x W + b, drawn (T2R's with kRelu)
  std::int64_t num_features = 0;  // of kFavor and kRandomTaylor
  bool orthogonal = false;        // their directions, in blocks of D
  bool scale_by_width = false;    // 001 as printed: q and k each by D^-1/2, so that s = q.k / D
  Denominator denominator = Denominator::kSum;
  OutputNorm norm = OutputNorm::kNone;
  bool input_gate = false, output_gate = false;
  double clamp = 0;  // the largest exponent of kExp; 0: none (004's code has 5)
  bool causal = true;

  // Throws kUsage naming the field: an odd order or a map with negative features under a sum, an
  // order, a temperature or a number of features out of range.
  void validate() const;
};

// kExp with these is softmax attention, which can be computed with the row's maximum taken away.
[[nodiscard]] inline bool is_softmax(const ScoreSpec& spec) {
  return spec.score == Score::kExp && spec.denominator == Denominator::kSum;
}

[[nodiscard]] std::string_view to_string(Map map);

// The largest order of a series (004's), and the most features that a tensor power may have.
inline constexpr int kMaxOrder = 64;
inline constexpr std::int64_t kMaxPowerFeatures = std::int64_t{1} << 16;
// Beside the sum of kProduct and kSeries, as kernels/plain has it.
inline constexpr double kSumEpsilon = 1e-12;

}  // namespace hedgerow::worker::laboratory
