#include "coordinator/plan/plan_geometry.hpp"

namespace hedgerow::coordinator {

Geometry geometry_of(const Plan& plan, const storage::Recipe& recipe) {
  Geometry geometry;
  geometry.num_layers = plan.num_layers;
  geometry.layers_per_block = recipe.plan.layers_per_block;
  geometry.num_shards = plan.capture.num_shards();
  geometry.shards_per_capture = plan.shards_per_capture;
  geometry.sequences_per_shard = plan.capture.sequences_per_shard;
  geometry.seed = recipe.seed;
  geometry.finetunes = plan.finetunes;
  geometry.num_logit_pieces = plan.num_logit_pieces;
  if (plan.logits) {
    geometry.logits_from_boundary = plan.logits->from_boundary;
    geometry.sequences_per_logit_piece = plan.logits->sequences.sequences_per_shard;
  }
  for (const BlockPlan& block : plan.blocks) {
    if (!block.trains) geometry.untrained_blocks.push_back(block.block);
  }
  if (plan.evaluates) geometry.evaluates = {Subject::kTeacher, Subject::kTransfer};
  if (plan.evaluates && plan.finetunes) geometry.evaluates.push_back(Subject::kLora);
  if (plan.evaluates) geometry.num_evaluate_pieces = plan.num_evaluate_pieces;
  return geometry;
}

}  // namespace hedgerow::coordinator
