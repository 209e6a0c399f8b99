// What the weights of a teacher are, by layer: a fingerprint knows names, shapes and sizes, and
// another training of the same model has all of them. The loader of a layer hashes it on the way;
// a run records the hash at the first load of each, a student keeps those of the teacher that it
// was trained on, and every later load is compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "storage/files/hash.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/model/model_config.hpp"

namespace hedgerow::storage {

// In place of a layer: what lies outside the layers (embedding, final norm, head).
inline constexpr int kOuterWeights = -1;
using WeightHashes = std::map<int, Hash128>;  // by layer

// One tensor as it is hashed: chunks of whole rows, in any order and on any thread, so that each
// can be copied while it is in the cache.
class TensorChunks {
 public:
  // The model outlives it. Throws like ModelDirectory::tensor.
  TensorChunks(const ModelDirectory& model, const TensorShape& tensor);

  [[nodiscard]] const TensorView& view() const noexcept { return view_; }
  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(hashes_.size()); }
  struct Rows {
    std::int64_t first = 0, count = 0;
  };
  [[nodiscard]] Rows rows(std::int64_t chunk) const;
  // Hashes a chunk. Throws kUsage naming tensor, file and place of a value that is not finite.
  void read(std::int64_t chunk);
  [[nodiscard]] Hash128 digest() const;  // once all chunks are read

 private:
  const ModelDirectory& model_;
  std::string name_;
  TensorView view_;
  std::int64_t row_bytes_ = 0, rows_per_chunk_ = 1, num_rows_ = 1;
  std::vector<std::uint64_t> hashes_;
};

// The hash of a layer is that of its tensors' names and hashes, in the order of layer_tensors().
class LayerHasher {
 public:
  void add(const std::string& tensor, const Hash128& hash);
  [[nodiscard]] Hash128 digest() const { return hasher_.digest(); }

 private:
  Hasher128 hasher_;
};

// Throws kUsage naming model, layer, both hashes and `whose` they were ("the student ST"), if the
// layer is among `expected` with another hash.
void require_weights(const WeightHashes& expected,
                     const std::string& whose,
                     const ModelDirectory& model,
                     int layer_idx,
                     const Hash128& found);

// Reads all weights, one layer after the other, where no layer is loaded (an export copies files).
// `progress` gets the share done; false ends it.
void verify_weights(const ModelDirectory& model,
                    const WeightHashes& expected,
                    const std::string& whose,
                    const std::function<bool(double)>& progress = {});

// As hedgerow.json has them under "teacher": {"weights": {"outer": hex, "0": hex, ...}}. Throws
// kCorrupt and what nlohmann::json throws; empty where there is none.
[[nodiscard]] nlohmann::json weight_hashes_to_json(const WeightHashes& hashes);
[[nodiscard]] WeightHashes weight_hashes_from_json(const nlohmann::json& teacher);

// Records the hash of a layer with the run, durably, if no process has yet; compares it else. Of
// several at once all but one compare. Throws kUsage like require_weights, kCorrupt for a damaged
// record.
void record_or_require_weights(const RunLayout& layout,
                               const ModelDirectory& model,
                               int layer_idx,
                               const Hash128& found);
// Hashes of all layers that were loaded so far. Throws kCorrupt naming a damaged file.
[[nodiscard]] WeightHashes recorded_weights(const RunLayout& layout, int num_layers);

}  // namespace hedgerow::storage
