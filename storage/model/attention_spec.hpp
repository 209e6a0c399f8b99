// What the student attends with: one value that the recipe holds, artifacts and exports carry, and
// kernels are configured from. Every variant of LoLCATs (arXiv 2410.10254) is one formula with
// switches; a further variant joins by a field here and not by a class of its own.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "kernels/options/attention_options.hpp"

namespace hedgerow::storage {

using kernels::FeatureMapKind;
using kernels::FeatureMapStart;
using kernels::to_string;
using kernels::WindowLayout;

// Who has a key map phi_k, and with it a state, of its own: each kv head, whose query heads share
// them, or each query head (as LoLCATs'). Maps without parameters always belong to query heads.
enum class KeyMaps { kKvHead, kQueryHead };
inline constexpr std::array<kernels::Spelling<KeyMaps>, 2> kKeyMaps{{
    {KeyMaps::kKvHead, "kv_head"},
    {KeyMaps::kQueryHead, "query_head"},
}};
[[nodiscard]] constexpr std::string_view to_string(KeyMaps value) {
  return kernels::word_of(kKeyMaps, value);
}

// What the kernels compute (HybridOptions, with its list) and what training and files add.
struct AttentionSpec : kernels::HybridOptions {
  AttentionSpec() { num_sinks = kUsualSinks; }

  static constexpr std::int64_t kUsualSinks = 4;

  // F: features after the concatenation, so that W is [H, D, F / 2] with negation. Cost grows
  // linearly with F. Maps without a projection have it of the head dimension D alone: D, or for
  // kTaylor C(D + 2, 2).
  int feature_dim = 64;
  bool bias = true;  // one bias per head and feature, [H, f], zero at the start
  FeatureMapStart start = FeatureMapStart::kOrthogonal;
  KeyMaps key_maps = KeyMaps::kKvHead;
  double window_factor =
      -2.1972245773362196;  // the logit of g = sigmoid(window_factors) at the start: g = 0.1
  bool train_window_factor = true;
  // False keeps the maps as they were drawn; positive random features are then those of the paper.
  bool train_feature_map = true;

  // Columns of W: feature_dim, halved with negation.
  [[nodiscard]] int projected_dim() const { return negation ? feature_dim / 2 : feature_dim; }
  [[nodiscard]] bool has_projection() const;  // false: F follows from the head dimension
  // That F: D, or of the Taylor series the monomials of degree <= 2.
  [[nodiscard]] std::int64_t features_of_head(int head_dim) const;
  // Heads of phi_k, and states of a layer, in a model with so many heads.
  [[nodiscard]] std::int64_t num_key_maps(std::int64_t num_attention_heads,
                                          std::int64_t num_key_value_heads) const;
  // num_sinks, recall_cache and key_maps of a recipe that leaves them out: 4 sinks or as many as
  // the window takes; half as many keys as the state has features, at most the window's, and none
  // where the state recalls no key (recalls()); a map a kv head but where a map of keys is that of
  // their queries.
  [[nodiscard]] std::int64_t default_sinks() const;
  [[nodiscard]] std::int64_t default_recall_cache() const;
  [[nodiscard]] KeyMaps default_key_maps() const;
  // Whether the residual of a key is defined: there is a window to leave, and no feature is < 0.
  [[nodiscard]] bool recalls() const;
  // The most tokens that a sequence can have while all its pairs of query and key are under
  // softmax: up to here the linear branch has no key, and what trains it has no gradient. `sliding`
  // keeps the last w keys, `terraced` the own chunk and the whole one before
  // (kernels::window_begin), both the sinks as well.
  [[nodiscard]] std::int64_t longest_exact_sequence() const;
  // The settings that this length comes of, for messages: "attention.window_size = 64", and
  // num_sinks where sinks make it longer.
  [[nodiscard]] std::string exact_settings() const;
  // Throws kUsage naming `attention.<key>` if a value or a combination is out of range for this
  // head dimension (0: not known yet, as when a recipe is read before its model).
  void validate(int head_dim) const;
  bool operator==(const AttentionSpec&) const = default;
};

// From the spellings of kernels/options/attention_options.hpp; throw kUsage listing them.
[[nodiscard]] FeatureMapKind feature_map_kind_from_string(std::string_view word);
// "hedgehog_softmax, .. or taylor": all of them.
[[nodiscard]] std::string feature_map_words();
[[nodiscard]] FeatureMapStart feature_map_start_from_string(std::string_view word);
[[nodiscard]] WindowLayout window_layout_from_string(std::string_view word);
[[nodiscard]] KeyMaps key_maps_from_string(std::string_view word);

// {"feature_map": "hedgehog_softmax", ...}, by recipe key and spelling: the "attention" of
// hedgerow.json. from_json throws kUsage for an unknown word and nlohmann's own exceptions for an
// absent or ill-typed key. Files of earlier builds lack the options that are `later` in the list,
// which then have HybridOptions' defaults, `train_feature_map` (true) and `key_maps` (one a query
// head).
void to_json(nlohmann::json& json, const AttentionSpec& spec);
void from_json(const nlohmann::json& json, AttentionSpec& spec);

}  // namespace hedgerow::storage
