#include "coordinator/plan/planner.hpp"

#include <algorithm>
#include <array>

#include "coordinator/plan/bytes_text.hpp"
#include "coordinator/plan/plan_costs.hpp"
#include "coordinator/plan/plan_memory.hpp"
#include "coordinator/plan/plan_mesh.hpp"
#include "coordinator/plan/plan_times.hpp"
#include "storage/base/error.hpp"
#include "storage/shape/state_bytes.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::Error;
using storage::ErrorKind;
using storage::ModelConfig;
using storage::Recipe;

std::vector<BlockPlan> make_blocks(const Recipe& recipe, int num_layers) {
  const std::vector<int>& softmax = recipe.transfer.softmax_layers.layers;
  const auto stays = [&softmax](int layer) {
    return std::find(softmax.begin(), softmax.end(), layer) != softmax.end();
  };
  std::vector<BlockPlan> blocks;
  for (int first = 0; first < num_layers; first += recipe.plan.layers_per_block) {
    BlockPlan block;
    block.block = static_cast<int>(blocks.size());
    block.first_layer = first;
    block.num_layers = std::min(recipe.plan.layers_per_block, num_layers - first);
    block.trains = false;
    for (int layer = first; layer < first + block.num_layers; ++layer)
      block.trains |= !stays(layer);
    blocks.push_back(block);
  }
  return blocks;
}

// Boundaries on disk at once at most: every kept one, and two that are being written and read.
int boundaries_at_once(const KeepBoundaries& keep, int last, int num_blocks) {
  int kept = 0;
  for (int boundary = 1; boundary <= last; ++boundary)
    kept += keep.keeps(boundary, num_blocks) ? 1 : 0;
  return std::min(last, kept + 2);
}

int boundaries_at_end(const KeepBoundaries& keep, int last, int num_blocks) {
  int kept = 0;
  for (int boundary = 1; boundary <= last; ++boundary)
    kept += keep.keeps(boundary, num_blocks) ? 1 : 0;
  return kept;
}

// Layers are listed once and in growing order (Recipe::validate).
void require_something_to_train(const Recipe& recipe, const ModelConfig& model) {
  if (static_cast<int>(recipe.transfer.softmax_layers.layers.size()) < model.num_hidden_layers)
    return;
  const std::string names = "transfer.softmax_layers names all " +
                            std::to_string(model.num_hidden_layers) + " layers of the model, ";
  if (!recipe.finetune.enabled) {
    throw Error(ErrorKind::kUsage,
                names +
                    "so there is nothing to train; leave at least one out, or set "
                    "finetune.enabled = true to train LoRA alone");
  }
  if (recipe.finetune.learns_from_teacher()) {
    throw Error(ErrorKind::kUsage,
                names + "so what finetune.objective = \"" + recipe.finetune.objective +
                    "\" trains is the teacher already; leave at least one out, or set "
                    "finetune.objective = \"ce\" to train LoRA alone");
  }
}

void check_data(const Recipe& recipe, const ModelConfig& model, const PlanTokens& tokens) {
  const auto check = [&model](const TokensInfo& info, const char* section) {
    if (info.num_sequences == 0) return;
    if (model.max_position_embeddings > 0 && info.seq_len > model.max_position_embeddings) {
      throw Error(ErrorKind::kUsage,
                  std::string(section) + ".seq_len = " + std::to_string(info.seq_len) +
                      " is beyond the model's " + std::to_string(model.max_position_embeddings) +
                      " positions; shorten it");
    }
    model.require_within_window(
        info.seq_len, std::string(section) + ".seq_len = " + std::to_string(info.seq_len));
  };
  check(tokens.transfer, "data.transfer");
  check(tokens.finetune, "data.finetune");
  check(tokens.evaluate, "data.evaluate");
  for (const TokensInfo& text : tokens.texts) check(text, "data.evaluate");
  if (tokens.transfer.num_sequences == 0) {
    throw Error(ErrorKind::kUsage,
                "data.transfer has no sequences; name a source in [[data.transfer.sources]]");
  }
  for (const int layer : recipe.transfer.softmax_layers.layers) {
    if (layer < 0 || layer >= model.num_hidden_layers) {
      throw Error(ErrorKind::kUsage,
                  "transfer.softmax_layers names layer " + std::to_string(layer) +
                      ", but the model has layers 0 to " +
                      std::to_string(model.num_hidden_layers - 1));
    }
  }
  require_something_to_train(recipe, model);
}

// The run directory's bytes at most, by stage, and at the end.
void plan_disk(const Recipe& recipe, const Costs& costs, Plan& plan) {
  const KeepBoundaries keep = KeepBoundaries::parse(recipe.plan.keep_boundaries);
  const int last = plan.last_boundary(), blocks = plan.num_blocks();
  const Costs::Disk disk = costs.disk();
  const auto boundaries = [&plan](int count) {
    return plan.boundary_bytes * static_cast<std::uint64_t>(count);
  };
  const int kept = boundaries_at_end(keep, last, blocks);
  const std::uint64_t trained = disk.always + disk.artifacts + disk.transfer_checkpoints;
  const std::uint64_t assembled = trained + disk.artifacts;
  const bool from_boundary = plan.logits && plan.logits->from_boundary;
  const int read_by_logits = std::max(kept, from_boundary ? std::min(last, kept + 1) : 0);
  const std::uint64_t adapter = plan.finetunes ? disk.adapter + disk.finetune_checkpoints : 0;
  plan.final_disk_bytes =
      assembled + boundaries(kept) + adapter + (keep.keeps_logits() ? plan.logits_bytes : 0);
  const std::uint64_t captured = trained + boundaries(boundaries_at_once(keep, last, blocks));
  const std::array<std::uint64_t, kNumStages> by_stage = {
      captured,
      captured,
      assembled + boundaries(read_by_logits),
      assembled + boundaries(read_by_logits) + plan.logits_bytes,
      assembled + boundaries(kept) + plan.logits_bytes + adapter + disk.third_checkpoint,
      plan.final_disk_bytes};
  for (StageEstimate& stage : plan.estimates) {
    stage.disk_bytes = by_stage.at(static_cast<std::size_t>(stage.stage.value()));
    plan.peak_disk_bytes = std::max(plan.peak_disk_bytes, stage.disk_bytes);
  }
}

void check_disk(const Recipe& recipe, const Costs& costs, const PlanLimits& limits, Plan& plan) {
  const std::uint64_t room = limits.free_disk_bytes + limits.stored_bytes;
  if (limits.free_disk_bytes == 0 || plan.peak_disk_bytes <= room) return;
  const std::string held = limits.stored_bytes > 0
                               ? " and it holds " + bytes_text(limits.stored_bytes) + " already"
                               : "";
  PlanProblem problem{"the run needs " + bytes_text(plan.peak_disk_bytes) + " of disk, " +
                          bytes_text(limits.free_disk_bytes) + " are free" + held,
                      ""};
  const std::uint64_t other = costs.disk().at_peak() + plan.logits_bytes;
  const int last = plan.last_boundary();
  const auto peak_with = [&](const KeepBoundaries& keep, int boundaries, int num_blocks) {
    return other + plan.boundary_bytes *
                       static_cast<std::uint64_t>(boundaries_at_once(keep, boundaries, num_blocks));
  };
  const KeepBoundaries none{KeepBoundaries::Kind::kNone, 1};
  if (recipe.plan.keep_boundaries != "none" && peak_with(none, last, plan.num_blocks()) <= room) {
    problem.remedy = "plan.keep_boundaries = \"none\" needs " +
                     bytes_text(peak_with(none, last, plan.num_blocks()));
  } else if (other < room) {
    const std::uint64_t fit = (room - other) / std::max<std::uint64_t>(1, plan.boundary_bytes);
    int k = recipe.plan.layers_per_block;
    const auto boundaries_with = [&](int layers) {
      const int boundaries = (plan.num_layers + layers - 1) / layers - 1;
      return static_cast<std::uint64_t>(boundaries_at_once(none, boundaries, plan.num_layers));
    };
    while (k < plan.num_layers && boundaries_with(k) > fit) ++k;
    problem.remedy = "fewer sequences (data.transfer.max_sequences), or plan.layers_per_block = " +
                     std::to_string(k) + " with plan.keep_boundaries = \"none\"";
  } else {
    problem.remedy =
        "free disk space, put the run directory on another file system, or take fewer "
        "sequences (data.transfer.max_sequences)";
  }
  plan.problems.push_back(std::move(problem));
}

void plan_logits(const Recipe& recipe,
                 const ModelConfig& model,
                 const TokensInfo& finetune,
                 Plan& plan) {
  const int top_k = recipe.finetune.top_k;
  if (top_k > model.vocab_size) {
    throw Error(ErrorKind::kUsage,
                "finetune.top_k = " + std::to_string(top_k) + ", but the model's vocabulary has " +
                    std::to_string(model.vocab_size) + " tokens; lower it");
  }
  plan.logits = storage::make_logits_plan(
      recipe, plan.capture, finetune.num_train, finetune.num_sequences, model.hidden_size);
  const storage::CapturePlan& sequences = plan.logits->sequences;
  const int shards_per_piece = plan.logits->from_boundary ? plan.shards_per_capture : 1;
  plan.num_logit_pieces = (sequences.num_shards() + shards_per_piece - 1) / shards_per_piece;
  plan.logits_bytes = static_cast<std::uint64_t>(sequences.num_sequences() * finetune.seq_len *
                                                 storage::logits_bytes(top_k));
}

// What the fused CUDA kernels of attention do not take, all in one sentence; empty: nothing. The
// kernels themselves (HybridBackend::why_not in kernels/cuda) have the last word, on their device:
// shared memory is not known here. The factor is arithmetic, not measured.
std::string slow_attention(const Recipe& recipe, int head_dim) {
  const storage::AttentionSpec& attention = recipe.attention;
  std::vector<std::string> reasons;
  const auto set = [&reasons](bool is_slow, const std::string& setting) {
    if (is_slow) reasons.push_back(setting);
  };
  const bool is_series = !attention.row().is_activation();
  constexpr int kMostDecodeFeatures = 256;
  const int columns = attention.projected_dim();
  const bool has_columns = !attention.has_projection() || columns == 64 || columns == 128 ||
                           (attention.negation && columns == 32);
  set(head_dim != 64 && head_dim != 128, "head_dim " + std::to_string(head_dim));
  set(is_series,
      "attention.feature_map = \"" + std::string(storage::to_string(attention.feature_map)) + "\"");
  set(!is_series && !has_columns && attention.feature_dim <= kMostDecodeFeatures,
      "attention.feature_dim = " + std::to_string(attention.feature_dim));
  set(!is_series && attention.feature_dim > kMostDecodeFeatures,
      "attention.feature_dim = " + std::to_string(attention.feature_dim) + " (more than " +
          std::to_string(kMostDecodeFeatures) + " in decode)");
  set(recipe.plan.compute_dtype == "fp32", "plan.compute_dtype = \"fp32\"");
  if (reasons.empty()) return "";
  std::string text = "attention at " + reasons.front();
  for (std::size_t i = 1; i < reasons.size(); ++i)
    text += (i + 1 < reasons.size() ? ", " : " and ") + reasons[i];
  return text + " has no fused kernel on GPUs: about 3 to 6 times slower attention";
}

}  // namespace

Plan make_plan(const Recipe& recipe,
               const ModelConfig& model,
               const PlanTokens& tokens,
               const PlanLimits& limits,
               const MeshPlan* mesh) {
  recipe.attention.validate(model.head_dim);
  check_data(recipe, model, tokens);
  const Costs costs(recipe, model, tokens, limits);
  Plan plan;
  plan.workers = limits.workers;
  plan.num_layers = model.num_hidden_layers;
  plan.blocks = make_blocks(recipe, plan.num_layers);
  plan.capture = storage::make_capture_plan(
      recipe, tokens.transfer.num_train, tokens.transfer.num_sequences, model.hidden_size);
  const int last = plan.last_boundary();
  plan.captures = last > 0;
  plan.evaluates = tokens.evaluate.num_sequences > 0;
  plan.finetunes = recipe.finetune.enabled && tokens.finetune.num_sequences > 0;
  plan.shards_per_capture = limits.shards_per_capture > 0
                                ? limits.shards_per_capture
                                : shards_per_capture(plan, costs, recipe, tokens, limits);
  if (plan.finetunes && recipe.finetune.learns_from_teacher())
    plan_logits(recipe, model, tokens.finetune, plan);
  const auto num_softmax = static_cast<int>(recipe.transfer.softmax_layers.layers.size());
  plan.state_bytes = storage::state_bytes(recipe.attention, model, num_softmax, 0);
  plan.state_bytes_per_token =
      storage::state_bytes(recipe.attention, model, num_softmax, 1) - plan.state_bytes;
  plan.equal_window = storage::equal_window(recipe.attention, model);
  plan.boundary_bytes =
      static_cast<std::uint64_t>(plan.capture.num_sequences()) * costs.sequence_bytes();
  const int largest = std::min(recipe.plan.layers_per_block, plan.num_layers);
  const bool on_gpu = std::any_of(
      plan.workers.begin(), plan.workers.end(), [](const auto& kind) { return kind.on_gpu; });
  plan.host_memory_bytes = on_gpu ? costs.gpu_process_memory() : 0;
  plan.capture_memory_bytes = plan.captures ? costs.capture_memory(largest, on_gpu) : 0;
  plan.transfer_memory_bytes = costs.transfer_memory(largest, on_gpu);
  plan.logits_memory_bytes =
      plan.logits ? costs.logits_memory(
                        *plan.logits,
                        plan.num_layers - plan.blocks[static_cast<std::size_t>(last)].first_layer,
                        on_gpu)
                  : 0;
  plan.evaluate_memory_bytes = plan.evaluates ? costs.evaluate_memory(on_gpu) : 0;
  if (plan.finetunes) {
    plan.mesh = mesh != nullptr ? *mesh : MeshPlanner(recipe, model, tokens, limits).plan();
    RankDevice device{.on_gpu = on_gpu};
    if (plan.mesh.kind < limits.workers.size())
      device = rank_device(limits.workers[plan.mesh.kind]);
    for (const RankShare& share : plan.mesh.shares)
      plan.finetune_memory_bytes = std::max(
          plan.finetune_memory_bytes, costs.finetune_memory(share, plan.mesh.mesh.ranks(), device));
  }
  if (plan.evaluates)
    plan.num_evaluate_pieces = evaluate_pieces(plan, costs, recipe, tokens, limits);
  if (on_gpu) {
    const std::string slow = slow_attention(recipe, model.head_dim);
    if (!slow.empty()) plan.warnings.push_back(slow);
  }
  check_memory(recipe, model, tokens, limits, plan);
  plan.estimates = estimate_times(plan, costs, recipe, tokens, limits);
  plan_disk(recipe, costs, plan);
  check_disk(recipe, costs, limits, plan);
  if (recipe.finetune.enabled && !plan.finetunes) {
    plan.warnings.push_back(
        "finetune.enabled is true, but data.finetune has no sequences: the run ends after "
        "transfer");
  }
  const int exact = recipe.attention.longest_exact_sequence();
  if (plan.evaluates && tokens.evaluate.seq_len <= exact) {
    plan.warnings.push_back(
        "data.evaluate.seq_len = " + std::to_string(tokens.evaluate.seq_len) + ": with " +
        recipe.attention.exact_settings() + " all keys of up to " + std::to_string(exact) +
        " tokens are under softmax, so the perplexities will say nothing of linear attention");
  }
  return plan;
}

}  // namespace hedgerow::coordinator
