#include "coordinator/state/geometry.hpp"

#include <algorithm>

#include "storage/base/error.hpp"

namespace hedgerow::coordinator {

using storage::Error;
using storage::ErrorKind;

namespace {

constexpr int kMaxLayers = 100'000;
constexpr std::int64_t kMaxShards = 5'000'000;
constexpr std::size_t kMaxEvaluations = 100;
constexpr int kMaxEvaluatePieces = 10'000;

}  // namespace

int Geometry::layers_of(int block) const {
  return std::min(layers_per_block, num_layers - first_layer(block));
}

bool Geometry::trains(int block) const {
  return std::find(untrained_blocks.begin(), untrained_blocks.end(), block) ==
         untrained_blocks.end();
}

int Geometry::last_boundary() const {
  int last = num_blocks() - 1;
  while (last > 0 && !trains(last)) --last;
  return std::max(last, 0);
}

void check_geometry(const Geometry& g) {
  if (g.num_layers < 1 || g.layers_per_block < 1 || g.num_shards < 1 || g.shards_per_capture < 1) {
    throw Error(ErrorKind::kCorrupt, "journal: run_started describes an empty run");
  }
  // A state has a record for each; 206 TB of hidden states are below a million shards.
  const std::int64_t blocks =
      (std::int64_t{g.num_layers} + g.layers_per_block - 1) / g.layers_per_block;
  if (g.num_layers > kMaxLayers || (blocks + 1) * g.num_shards > kMaxShards ||
      g.num_logit_pieces > kMaxShards ||
      (g.logits_from_boundary && g.num_logit_pieces != g.num_pieces()) ||
      g.evaluates.size() > kMaxEvaluations || g.num_evaluate_pieces < 0 ||
      g.num_evaluate_pieces > kMaxEvaluatePieces) {
    throw Error(ErrorKind::kCorrupt, "journal: run_started describes a run that no disk holds");
  }
}

}  // namespace hedgerow::coordinator
