// Bytes and FLOPs of a job's parts, from shapes alone. Upper bounds by a few per cent rather than
// exact: the plan refuses what these say does not fit. The formulas stand in coordinator/README.md
// "What a plan counts".
#pragma once

#include <cstdint>

#include "coordinator/plan.hpp"

namespace hedgerow::coordinator {

class Costs {
 public:
  Costs(const storage::Recipe& recipe,
        const storage::ModelConfig& model,
        const PlanTokens& tokens,
        const PlanLimits& limits);

  // Memory of one worker process, bytes.
  [[nodiscard]] std::uint64_t capture_memory(int layers) const;
  [[nodiscard]] std::uint64_t transfer_memory(int layers) const;
  [[nodiscard]] std::uint64_t block_memory(int layers) const;  // the larger of both
  [[nodiscard]] std::uint64_t evaluate_memory() const;
  [[nodiscard]] std::uint64_t finetune_memory() const;  // of one rank

  // Disk, bytes.
  [[nodiscard]] std::uint64_t sequence_bytes() const;  // of one sequence of one boundary
  [[nodiscard]] std::uint64_t other_disk() const;  // everything that is not a boundary, at its peak
  [[nodiscard]] std::uint64_t final_disk() const;

  // FLOPs a token; attention at sequence length `seq_len`.
  [[nodiscard]] double layer_forward_flops(std::int64_t seq_len) const;
  [[nodiscard]] double layer_transfer_flops(std::int64_t seq_len) const;
  [[nodiscard]] double model_forward_flops(std::int64_t seq_len) const;

 private:
  [[nodiscard]] double layer_parameters() const;
  [[nodiscard]] double attention_parameters() const;
  [[nodiscard]] double map_parameters() const;  // of one layer: both maps, biases, window factors
  [[nodiscard]] double lora_parameters() const;
  [[nodiscard]] double outer_bytes() const;
  [[nodiscard]] double layer_activation_bytes(double tokens) const;
  [[nodiscard]] double attention_training_bytes(double tokens) const;

  double layers_, hidden_, intermediate_, vocabulary_;
  double heads_, kv_heads_, head_dim_, features_, projected_, window_;
  double compute_bytes_, shard_bytes_;
  double transfer_tokens_, evaluate_tokens_, finetune_tokens_;  // of one forward
  double transfer_seq_len_;
  double lora_rank_;
  bool tied_, has_bias_;
};

}  // namespace hedgerow::coordinator
