// The weights of a sequence's last queries on its first and on its last keys, of single heads:
// small enough to draw, and where sinks, window and linear branch differ most (LoLCATs, appendix
// E.2).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "storage/model/model_config.hpp"
#include "worker/model/student.hpp"

namespace hedgerow::worker {

using LayerAndHead = std::pair<int, int>;

// "14/3" -> (14, 3). Throws kUsage for other words and for a head that the model does not have.
[[nodiscard]] std::set<LayerAndHead> layers_and_heads(const std::vector<std::string>& words,
                                                      const storage::ModelConfig& model);

// {"queries": [i, ...], "first_keys": [j, ...], "last_keys", "softmax": {"first": rows of weights,
// "last"}, and with maps "student": the same of its window and linear branch together} of heads of
// one sequence's q and k [1, ...]: the last 32 queries and the first and the last 32 keys, or as
// many as there are.
[[nodiscard]] nlohmann::json attention_corners(const Qkv& qkv,
                                               int head,
                                               const std::optional<kernels::HybridParameters>& maps,
                                               const kernels::HybridOptions& options);

}  // namespace hedgerow::worker
