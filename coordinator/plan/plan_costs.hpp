// Bytes and FLOPs of a job's parts, from shapes alone. Memory is fitted to runs on the CPU
// (tests/bench/plan_rows.py holds it to 10 %); of GPUs nothing has been measured. The formulas
// stand in coordinator/README.md "What a plan counts".
#pragma once

#include <cstdint>

#include "coordinator/plan/plan.hpp"
#include "storage/shape/budgets.hpp"

namespace hedgerow::coordinator {

// FLOPs by how fast they go: products with the model's own weights, and everything else (attention,
// maps, exponentials of logits), which runs on vector units.
struct Work {
  double products = 0.0, other = 0.0;

  [[nodiscard]] double flops() const { return products + other; }
  [[nodiscard]] double seconds(const ComputeSpeed& speed) const {  // of one GPU or core
    return products / speed.product_flops + other / speed.other_flops;
  }
};
[[nodiscard]] inline Work operator+(const Work& a, const Work& b) {
  return {a.products + b.products, a.other + b.other};
}
[[nodiscard]] inline Work operator*(double times, const Work& work) {
  return {times * work.products, times * work.other};
}

class Costs {
 public:
  Costs(const storage::Recipe& recipe,
        const storage::ModelConfig& model,
        const PlanTokens& tokens,
        const PlanLimits& limits);

  // Memory of one worker process where it computes, bytes: of its GPU, or of its host.
  [[nodiscard]] std::uint64_t capture_memory(int layers, bool on_gpu) const;
  [[nodiscard]] std::uint64_t transfer_memory(int layers, bool on_gpu) const;
  [[nodiscard]] std::uint64_t block_memory(int layers, bool on_gpu) const;  // the larger of both
  // From the last boundary: `layers` of them at once. From tokens: one at a time.
  [[nodiscard]] std::uint64_t logits_memory(const storage::LogitsPlan& plan,
                                            int layers,
                                            bool on_gpu) const;
  [[nodiscard]] std::uint64_t evaluate_memory(bool on_gpu) const;
  // How often a task that evaluates so many sequences reads the model: once a group of them.
  [[nodiscard]] double evaluate_reads(double sequences, bool on_gpu) const;
  // Those that the students of variants add to the recipe's own.
  [[nodiscard]] double columns_of_variants() const {
    return evaluate_columns_ - storage::kMostEvaluateColumns;
  }
  [[nodiscard]] double students() const { return students_; }
  // Bytes of one of `ranks`.
  [[nodiscard]] std::uint64_t finetune_memory(const RankShare& share,
                                              int ranks,
                                              const RankDevice& device) const;
  // Bytes of a process on its host, where it computes on a GPU.
  [[nodiscard]] std::uint64_t gpu_process_memory() const;

  // Disk, bytes.
  [[nodiscard]] std::uint64_t sequence_bytes() const;  // of one sequence of one boundary
  // All that is neither a boundary nor logits.
  struct Disk {
    std::uint64_t always = 0;     // tokens and records
    std::uint64_t artifacts = 0;  // of all layers; the student has as much again
    std::uint64_t transfer_checkpoints = 0, finetune_checkpoints = 0;  // these stay until `clean`
    std::uint64_t third_checkpoint = 0;                                // of finetune, for a moment
    std::uint64_t adapter = 0;
    [[nodiscard]] std::uint64_t at_peak() const {
      return always + 2 * artifacts + transfer_checkpoints + finetune_checkpoints +
             third_checkpoint + adapter;
    }
  };
  [[nodiscard]] Disk disk() const;

  // Work of a token; attention at sequence length `seq_len`.
  [[nodiscard]] Work layer_forward(std::int64_t seq_len) const;   // the teacher's
  [[nodiscard]] Work layer_student() const;                       // its maps and hybrid attention
  [[nodiscard]] Work layer_transfer(std::int64_t seq_len) const;  // a step: both, and gradients
  [[nodiscard]] Work head() const;
  [[nodiscard]] Work model_forward(std::int64_t seq_len) const;  // the teacher with its head
  [[nodiscard]] Work model_student() const;
  // A step of LoRA; what is not kept of a forward is computed again.
  [[nodiscard]] Work model_training(bool recomputes) const;
  // The same of a range of layers, the last of which have the head behind them.
  [[nodiscard]] Work range_forward(int layers, bool has_head) const;
  [[nodiscard]] Work range_backward(int layers, bool has_head, bool recomputes) const;

  // What is read of the model's weights.
  [[nodiscard]] double layer_bytes() const;
  [[nodiscard]] double model_bytes() const;
  [[nodiscard]] double rank_bytes(const RankShare& share) const;
  // What one rank of so many layers tells the others of a step, and hears.
  [[nodiscard]] double gradient_bytes(int layers) const;
  // Bytes of a micro-batch between two stages of the finetune: its residual stream, in the narrower
  // of both dtypes, and the gradient of it.
  [[nodiscard]] double forward_message_bytes() const;
  [[nodiscard]] double backward_message_bytes() const;
  // Whether a rank keeps what its layers computed from the forward pass to the backward pass: by
  // the trainer's own rule (storage/shape/budgets.hpp), of a GPU whose memory is not known as on
  // the CPU.
  [[nodiscard]] bool keeps_activations(const RankShare& share,
                                       int ranks,
                                       const RankDevice& device) const;

 private:
  [[nodiscard]] double layer_parameters() const;
  [[nodiscard]] double attention_parameters() const;
  [[nodiscard]] double map_parameters() const;  // of one layer: both maps, biases, window factors
  [[nodiscard]] double trained_parameters() const;  // of the finetune
  [[nodiscard]] std::vector<std::string> lora_modules() const;  // none where LoRA does not train
  [[nodiscard]] double outer_bytes() const;
  [[nodiscard]] double layer_activation_bytes(double tokens) const;
  [[nodiscard]] double forward_bytes(double tokens, bool on_gpu) const;
  [[nodiscard]] double activations_in_flight(const RankShare& share) const;  // of one layer each
  // Bytes of a rank of the finetune, but for activations.
  [[nodiscard]] double loaded_bytes(const RankShare& share, int ranks, bool on_gpu) const;
  [[nodiscard]] double attention_training_bytes(double tokens) const;

  storage::ModelConfig model_;
  storage::AttentionSpec attention_;
  double layers_, hidden_, intermediate_, vocabulary_;
  double heads_, kv_heads_, key_maps_, head_dim_, features_, window_, sinks_;
  double compute_bytes_, shard_bytes_;
  double transfer_tokens_, evaluate_tokens_;  // of one forward
  double evaluate_stream_bytes_;              // of one sequence between two layers
  double evaluate_sequences_;                 // of all texts
  double tokens_bytes_;                       // of all tokens files
  double finetune_tokens_;                    // of one forward
  double finetune_seq_len_;
  double transfer_seq_len_;
  storage::TransferSection transfer_;
  storage::FinetuneSection finetune_;
  bool tied_;
  double students_;  // that the transfer trains, each by its maps' size beside the recipe's own
  int evaluate_columns_;  // at most, of an evaluation of all these students
};

}  // namespace hedgerow::coordinator
