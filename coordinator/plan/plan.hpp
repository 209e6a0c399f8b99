// What a job will be before it starts: blocks, shards, bytes on disk, memory of a worker, hours and
// money, and whether all of that fits. Pure arithmetic over the recipe, the model's configuration
// and the workers that will compute (plan_workers.hpp); `hedgerow plan` prints it, `run` and
// `submit` refuse what does not fit, and the scheduler compares a worker's memory with it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/plan/plan_workers.hpp"
#include "coordinator/state/task_id.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/capture_plan.hpp"
#include "storage/recipe/recipe.hpp"
#include "storage/shape/mesh.hpp"

namespace hedgerow::coordinator {

struct BlockPlan {
  int block = 0;
  int first_layer = 0;
  int num_layers = 0;  // the last block may be shorter: layers need not be divisible by k
  bool trains = true;  // false when transfer.softmax_layers keeps all its layers
};

struct KeepBoundaries {
  enum class Kind { kNone, kLast, kEvery, kAll };
  Kind kind = Kind::kAll;
  int every = 1;
  static KeepBoundaries parse(
      const std::string& word);  // "none", "last", "every:N", "all". Throws kUsage.
  [[nodiscard]] bool keeps(int boundary, int num_blocks) const;
  // The teacher's logits, once finetune is done.
  [[nodiscard]] bool keeps_logits() const { return kind == Kind::kAll; }
};

// The counts of one tokens file; all zero when the recipe has no such data.
struct TokensInfo {
  std::int64_t num_train = 0, num_sequences = 0, seq_len = 0;
};

// What the plan is held against. 0: unknown, not checked.
struct PlanLimits {
  std::uint64_t free_disk_bytes = 0;
  std::uint64_t stored_bytes = 0;  // of the plan's disk, what a run that goes on has there already
  int shards_per_capture = 0;      // of a run that has begun; 0: the plan chooses
  double disk_bytes_per_second = 0.0;  // of the run's file system, all nodes together
  // Between two ranks on one node, and on two.
  double inside_bytes_per_second = 0.0, between_bytes_per_second = 0.0;
  int compute_bytes = 2;  // of plan.compute_dtype = auto: 2 where bf16 is fast, else 4
  // What will compute; none: nothing is known of it, and no memory is judged and no time told.
  std::vector<WorkerKind> workers{};
};

// Why a plan cannot run, and what would fit.
struct PlanProblem {
  std::string message;
  std::string remedy;
};

// nullopt: before the tasks, the texts are tokenized.
using PlannedFor = std::optional<Stage>;
[[nodiscard]] std::string word_of(PlannedFor stage);  // "tokenize", "capture", ...
// Throws kCorrupt for another word.
[[nodiscard]] PlannedFor planned_for(const std::string& word);

struct StageEstimate {
  PlannedFor stage{};
  double flops = 0.0;
  double seconds = 0.0;            // starts included; 0 if no speed is known
  double gpu_hours = 0.0;          // of the GPUs at work, not of those that are held meanwhile
  double cost = 0.0;               // of all nodes meanwhile, in the currency of their prices
  double disk_seconds = 0.0;       // that the shared disk takes at least; part of `seconds`
  std::uint64_t memory_bytes = 0;  // of one process, where it computes; 0: next to none
  std::uint64_t disk_bytes = 0;    // of the run directory, at most, up to its end
};

// What a rank of the finetune has of the model: the ranges of layers of its stage of the mesh.
struct RankShare {
  int layers = 0;
  bool has_embedding = true, has_head = true;  // of the first stage, of the last
  int num_ranges = 1;
  int in_flight = 1;  // passes of a range whose backward passes are to come, at most
};

// The ranks of the finetune (storage/shape/mesh.hpp) and what a step of them comes to
// (plan_mesh.hpp).
struct MeshPlan {
  storage::Mesh mesh{};
  std::vector<RankShare> shares{};   // of each stage
  int most_layers = 0;               // of a rank
  int micro_batches = 0;             // of the longest pipeline, a step
  bool recomputes = false;           // a rank keeps each layer's input alone for the backward pass
  double idle = 0.0;                 // the share of a step in which stages wait for each other
  std::uint64_t bytes_per_step = 0;  // between stages, both ways, of all pipelines
  std::uint64_t gradient_bytes_per_step = 0;  // between pipelines, of all ranks
  std::uint64_t read_bytes = 0;               // of weights, by the rank that reads most
  std::size_t kind = 0;                       // of PlanLimits::workers, on which the ranks run
  double step_seconds = 0.0, validation_seconds = 0.0;  // 0: no speed is known
  // Of a GPU, while steps are trained; 0 without GPUs. Beside it what a GPU would do at the speed
  // that others published (kPublishedLoraFlops).
  double tokens_per_second = 0.0, published_tokens_per_second = 0.0;
};

// Floating-point operations a second and GPU in training LoRA on a model of 70B, without those of
// recomputation: NVIDIA-NeMo/Automodel, docs/performance-summary.md (October 2025), 8 x H100, bf16,
// sequences of 4,096, 608 tokens a second and GPU.
inline constexpr double kPublishedLoraFlops = 176e12;
// A pipeline of several stages should have at least so many micro-batches a step, and one a stage:
// with fewer its stages mostly wait for one another.
[[nodiscard]] constexpr int least_micro_batches(const storage::Mesh& mesh) {
  constexpr int kLeast = 4;
  return mesh.pipeline == 1 ? 1 : std::max(kLeast, mesh.pipeline);
}

struct Plan {
  int num_layers = 0;
  std::vector<BlockPlan> blocks;
  storage::CapturePlan capture;
  int shards_per_capture = 1;  // of one capture task: 30 to 300 s of work
  // The teacher's logits for finetune; nullopt: its objective needs none.
  std::optional<storage::LogitsPlan> logits = std::nullopt;
  int num_logit_pieces = 0;
  int num_evaluate_pieces = 0;       // Geometry::num_evaluate_pieces
  std::uint64_t logits_bytes = 0;    // on disk
  std::uint64_t boundary_bytes = 0;  // one boundary on disk
  std::uint64_t peak_disk_bytes =
      0;  // boundaries alive at once by keep_boundaries, artifacts, checkpoints, adapter
  std::uint64_t final_disk_bytes = 0;       // what is left when the run is done
  std::uint64_t capture_memory_bytes = 0;   // like those below 0 for a stage that is left out
  std::uint64_t transfer_memory_bytes = 0;  // of the largest block
  std::uint64_t logits_memory_bytes = 0;
  std::uint64_t evaluate_memory_bytes = 0;
  std::uint64_t finetune_memory_bytes = 0;  // of one rank, of the stage that needs most
  MeshPlan mesh{};                          // of the finetune, if there is one
  std::uint64_t host_memory_bytes = 0;      // of a process whose memory above is a GPU's; else 0
  // Bytes of a sequence while it generates: what the linear layers keep whatever its length, what
  // those of softmax add with each token, and the untrained window that keeps as much as a linear
  // layer.
  std::int64_t state_bytes = 0, state_bytes_per_token = 0;
  int equal_window = 0;
  // captures: one block alone is fed by the embeddings, and no boundary is stored.
  bool captures = false, evaluates = false, finetunes = false;
  std::vector<StageEstimate> estimates;
  double overlap_seconds = 0.0;       // in which two of them go on
  std::vector<WorkerKind> workers{};  // whom it is planned for
  std::vector<PlanProblem> problems;
  std::vector<std::string> warnings;

  [[nodiscard]] int last_boundary() const;  // that a block trains on; 0: only block 0 trains
  [[nodiscard]] int num_blocks() const { return static_cast<int>(blocks.size()); }
  [[nodiscard]] bool fits() const { return problems.empty(); }
  [[nodiscard]] bool knows_times() const;
  [[nodiscard]] double seconds() const;  // of the whole run
  [[nodiscard]] double gpu_hours() const;
  [[nodiscard]] double cost() const;
};

struct PlanTokens {
  TokensInfo transfer, finetune, evaluate;
  std::vector<TokensInfo> texts{};  // of data.evaluate.texts, in their order

  // Sequences of one evaluation, `most` of each text (0: all).
  [[nodiscard]] std::int64_t evaluated(std::int64_t most) const;
};

void require_fits(const Plan& plan);  // Throws kUsage listing every problem with its remedy
void to_json(nlohmann::json& json, const Plan& plan);

}  // namespace hedgerow::coordinator
