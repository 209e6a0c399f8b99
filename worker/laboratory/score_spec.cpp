#include "worker/laboratory/score_spec.hpp"

#include "storage/base/error.hpp"

namespace hedgerow::worker::laboratory {
namespace {

[[noreturn]] void refuse(const ScoreSpec& spec, const std::string& field, const std::string& why) {
  throw storage::Error(storage::ErrorKind::kUsage,
                       "attention '" + spec.name + "', " + field + ": " + why);
}

// Products of these may be below 0.
bool has_negative_features(Map map) { return map == Map::kIdentity || map == Map::kCosine; }

// phi(q).phi(k) of these is a polynomial of s, which an odd order takes below 0.
bool is_polynomial(Map map) { return map == Map::kTaylor || map == Map::kLimit; }

}  // namespace

std::string_view to_string(Map map) {
  switch (map) {
    case Map::kIdentity:
      return "identity";
    case Map::kEluPlusOne:
      return "elu_plus_one";
    case Map::kRelu:
      return "relu";
    case Map::kExp:
      return "exp";
    case Map::kHedgehog:
      return "hedgehog";
    case Map::kFavor:
      return "favor";
    case Map::kTaylor:
      return "taylor";
    case Map::kLimit:
      return "limit";
    case Map::kRandomTaylor:
      return "random_taylor";
    case Map::kCosine:
      return "cosine";
    case Map::kCosFormer:
      return "cosformer";
  }
  return "";
}

void ScoreSpec::validate() const {
  const bool divides = denominator == Denominator::kSum || denominator == Denominator::kDetachedSum;
  const bool has_order = score == Score::kSeries || map == Map::kTaylor || map == Map::kLimit ||
                         map == Map::kRandomTaylor;
  if (score == Score::kExp && map != Map::kIdentity)
    refuse(*this, "map", "e^s has no map; expected identity, found " + std::string(to_string(map)));
  if (has_order && (order < 0 || order > kMaxOrder))
    refuse(*this,
           "order",
           "expected 0 to " + std::to_string(kMaxOrder) + ", found " + std::to_string(order));
  if (map == Map::kLimit && order < 1) refuse(*this, "order", "expected n >= 1 of (1 + s/n)^n");
  const bool odd_can_be_negative = score == Score::kSeries
                                       ? has_negative_features(map)
                                       : is_polynomial(map) || map == Map::kRandomTaylor;
  if (divides && has_order && odd_can_be_negative && order % 2 != 0)
    refuse(*this,
           "order",
           "an odd order (" + std::to_string(order) +
               ") has weights of 0 and below, which a sum cannot normalise; choose an even order, "
               "or denominator length or none");
  if (divides && score == Score::kProduct && has_negative_features(map))
    refuse(*this,
           "map",
           std::string(to_string(map)) +
               " has negative features, whose sum may be 0; choose another map, or denominator "
               "length or none");
  if (trained_map && map != Map::kRelu && map != Map::kEluPlusOne)
    refuse(*this, "trained_map", "only ReLU and 1 + ELU have one beside their formula");
  const bool is_random = map == Map::kFavor || map == Map::kRandomTaylor;
  if (is_random && num_features < 1)
    refuse(*this, "num_features", "expected at least 1, found " + std::to_string(num_features));
  if (map == Map::kExp && !(temperature > 0))
    refuse(*this, "temperature", "expected a number above 0, found " + std::to_string(temperature));
  if (clamp < 0)
    refuse(*this, "clamp", "expected 0 (none) or above, found " + std::to_string(clamp));
  if (clamp > 0 && score != Score::kExp)
    refuse(*this, "clamp", "only e^s has an exponent to clamp");
}

}  // namespace hedgerow::worker::laboratory
