// The ranks of the LoRA stage and of generation as a mesh, data x pipeline: pure arithmetic shared
// by the coordinator (memory, time, the choice) and the worker (who holds what). A pipeline stage
// is one or more contiguous ranges of layers; a data index is a pipeline with its share of the
// micro-batches. Ranks of one pipeline follow each other, so that they are neighbours where a
// launcher fills a node before the next.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/model/model_config.hpp"

namespace hedgerow::storage {

struct Mesh {
  int data = 1, pipeline = 1;
  // Ranges of layers that a rank holds: with more than one a micro-batch passes each rank as often
  // (interleaved stages; Narayanan et al., arXiv 2104.04473), and the pipeline is idle for less
  // time. Range r lies at stage r % pipeline.
  int chunks = 1;

  [[nodiscard]] int ranks() const { return data * pipeline; }
  [[nodiscard]] int num_ranges() const { return pipeline * chunks; }
  [[nodiscard]] int data_index(int rank) const { return rank / pipeline; }
  [[nodiscard]] int stage(int rank) const { return rank % pipeline; }
  [[nodiscard]] int rank(int data_index, int stage) const { return data_index * pipeline + stage; }
  bool operator==(const Mesh&) const = default;
};

// "2x4": 2 pipelines of 4 stages; "2x4x3": of 3 ranges of layers each. nullopt: no mesh.
[[nodiscard]] std::optional<Mesh> parse_mesh(std::string_view text);
[[nodiscard]] std::string mesh_text(const Mesh& mesh);
// A mesh of so many ranks, with as few stages as give each pipeline a micro-batch: what "auto"
// means where no plan says better.
[[nodiscard]] Mesh shortest_mesh(int ranks, int num_micro_batches);

struct LayerRange {
  int begin = 0, end = 0;  // layers begin to end - 1

  [[nodiscard]] int size() const { return end - begin; }
  [[nodiscard]] bool contains(int layer) const { return begin <= layer && layer < end; }
  bool operator==(const LayerRange&) const = default;
};

// What the head costs of a token, in layers: by the weights that a token meets (8.0 for
// SmolLM2-135M).
[[nodiscard]] double head_in_layers(const ModelConfig& model);

// All layers in mesh.num_ranges() contiguous ranges, none empty, such that the most expensive one,
// with the head counted to the last, is as cheap as can be; the others differ by one layer at most,
// the longer ones last, since the first stages have the embedding and hold most micro-batches.
// Throws kUsage when there are more ranges than layers.
[[nodiscard]] std::vector<LayerRange> split_layers(const ModelConfig& model, const Mesh& mesh);

// The ranges of one stage, in the order of its chunks.
[[nodiscard]] std::vector<LayerRange> ranges_of_stage(const std::vector<LayerRange>& ranges,
                                                      const Mesh& mesh,
                                                      int stage);

}  // namespace hedgerow::storage
