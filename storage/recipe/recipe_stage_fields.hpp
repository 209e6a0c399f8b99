// The fields of [plan], [transfer] and [finetune] for recipe_fields.hpp, which tells what a visitor
// is.
#pragma once

#include "storage/recipe/recipe_rules.hpp"

namespace hedgerow::storage {

template <typename Plan, typename Visitor>
void visit_plan(Plan& plan, Visitor& visitor) {
  visitor.field(
      "layers_per_block",
      plan.layers_per_block,
      {"never changes the result; fewer: more disk, more blocks; 0: as the plan chooses", 0, 1e6});
  visitor.field(
      "sequences_per_forward", plan.sequences_per_forward, {"memory grows with it", 1, 1e6});
  visitor.field(
      "shard_mib", plan.shard_mib, {"larger: fewer files, more redone after a loss", 1, 1 << 20});
  visitor.field("compute_dtype",
                plan.compute_dtype,
                {.comment = "auto: what the processor is fast at", .choices = "auto|bf16|fp32"});
  visitor.field("shard_dtype",
                plan.shard_dtype,
                {.comment = "the residual stream is rounded to it after every layer",
                 .choices = "bf16|fp16|fp32"});
  visitor.field("keep_boundaries",
                plan.keep_boundaries,
                {.comment = "none, last, every:N or all; auto: as the disk has room",
                 .safe_to_change = true});
  visitor.field("device",
                plan.device,
                {.comment = "auto: a GPU if there is one", .choices = "auto|cpu|cuda"});
}

// How the learning rate falls, and when validations end the training.
template <typename Section, typename Visitor>
void visit_rules(Section& section, Visitor& visitor) {
  visitor.field("schedule",
                section.schedule,
                {.comment = "cosine and linear: down to min_learning_rate over max_steps",
                 .choices = "constant|plateau|cosine|linear"});
  visitor.field("plateau_factor", section.plateau_factor, {"plateau: rate times this", 0, 1, true});
  visitor.field(
      "plateau_patience", section.plateau_patience, {"plateau: after so many validations", 0, 1e9});
  visitor.field(
      "min_learning_rate", section.min_learning_rate, {"all but constant: not below", 0, 10});
  visitor.field("early_stop_patience",
                section.early_stop_patience,
                {"validations without improvement; 0: never", 0, 1e9});
}

template <typename Transfer, typename Visitor>
void visit_transfer(Transfer& transfer, Visitor& visitor) {
  visitor.field("learning_rate", transfer.learning_rate, {"AdamW", 0, 10, true});
  visitor.field(
      "max_steps",
      transfer.max_steps,
      {"optimizer steps a layer; 0: maps start untrained and the finetune trains them", 0, 1e9});
  visitor.field("sequences_per_step",
                transfer.sequences_per_step,
                {"a multiple of plan.sequences_per_forward", 1, 1e6});
  visitor.field("mse_factor", transfer.mse_factor, {"weight of the output error", 0, 1e9});
  visitor.field("xent_factor",
                transfer.xent_factor,
                {"weight of the attention-weight error; O(T^2) work", 0, 1e9});
  visitor.field("linear_factor",
                transfer.linear_factor,
                {"times the linear branch's own error, beside mse_factor's", 0, 1e9});
  visitor.field("weight_decay", transfer.weight_decay, {"AdamW", 0, 1});
  visitor.field(
      "gradient_clip", transfer.gradient_clip, {"norm of each layer alone; 0: none", 0, 1e9});
  visitor.field(
      "shuffle", transfer.shuffle, {"within windows of 1024 sequences, from (seed, epoch)"});
  visitor.field("validate_every", transfer.validate_every, {"optimizer steps", 1, 1e9});
  visitor.field("validation_sequences",
                transfer.validation_sequences,
                {"of the validation split, for the error", 1, 1e6});
  visit_rules(transfer, visitor);
  visitor.field("checkpoint_every",
                transfer.checkpoint_every,
                {"optimizer steps that a kill can cost", 1, 1e9});
  visitor.field(
      "retries_with_new_seed", transfer.retries_with_new_seed, {"when a block ends badly", 0, 100});
  visitor.field("redraw_every",
                transfer.redraw_every,
                {"steps until positive_random is drawn again; 0: never", 0, 1e9});
  visitor.field("softmax_layers", transfer.softmax_layers, {"layers kept as they are", 0, 1e6});
}

template <typename Finetune, typename Visitor>
void visit_finetune(Finetune& finetune, Visitor& visitor) {
  visitor.field("enabled", finetune.enabled, {"false: stop after the transfer"});
  visitor.field("objective",
                finetune.objective,
                {.comment = "ce: the text; kl: the teacher's top_k logits; mixed: both",
                 .choices = "ce|kl|mixed"});
  visitor.field("ce_weight", finetune.ce_weight, {"mixed: of the cross-entropy", 0, 1e6});
  visitor.field("kl_weight", finetune.kl_weight, {"mixed: of the KL divergence", 0, 1e6});
  visitor.field(
      "top_k",
      finetune.top_k,
      {"kl, mixed: tokens of a position that are kept; 6 top_k + 4 bytes each", 1, 65536});
  visitor.field("rank", finetune.rank, {"LoRA r", 1, 4096});
  visitor.field("alpha", finetune.alpha, {"LoRA alpha: updates count alpha / r", 0, 1e6, true});
  visitor.field("target_modules",
                finetune.target_modules,
                {.comment = "which projections learn",
                 .choices = "q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj"});
  visitor.field("trainable",
                finetune.trainable,
                {.comment = "what is trained", .choices = "lora|maps|window_factors|norms"});
  visitor.field("learning_rate", finetune.learning_rate, {"AdamW", 0, 10, true});
  visitor.field("weight_decay", finetune.weight_decay, {"AdamW", 0, 1});
  visitor.field(
      "gradient_clip", finetune.gradient_clip, {"norm over all parameters; 0: none", 0, 1e9});
  visitor.field("max_steps",
                finetune.max_steps,
                {"may grow until the stage is done, unless the schedule spans it", 1, 1e9});
  visitor.field("sequences_per_step", finetune.sequences_per_step, {"the global batch", 1, 1e6});
  visitor.field("sequences_per_micro_batch",
                finetune.sequences_per_micro_batch,
                {"memory grows with it", 1, 1e6});
  visitor.field("checkpoint_every",
                finetune.checkpoint_every,
                {"optimizer steps that a kill can cost", 1, 1e9});
  visitor.field(
      "validate_every", finetune.validate_every, {"optimizer steps; 0: only at the end", 0, 1e9});
  visit_rules(finetune, visitor);
  visitor.field("warmup_steps",
                finetune.warmup_steps,
                {"steps over which the rate rises from nothing", 0, 1e9});
  visitor.field("ranks",
                finetune.ranks,
                {.comment = "MPI processes; any number gives the same bytes",
                 .min = 1,
                 .max = 1e6,
                 .safe_to_change = true});
  visitor.field(
      "mesh",
      finetune.mesh,
      {.comment = "of the ranks: pipelines x stages of each, as \"2x4\"; auto: the plan chooses",
       .safe_to_change = true});
  visitor.field("threads",
                finetune.threads,
                {.comment = "each; 0: cores / ranks, elsewhere all; equal bytes need equal threads",
                 .min = 0,
                 .max = 4096,
                 .safe_to_change = true});
  visitor.field("exchange",
                finetune.exchange,
                {.comment = "of gradients; auto: NCCL if each rank has a GPU of its own, else MPI",
                 .choices = "auto|mpi|nccl",
                 .safe_to_change = true});
  visitor.field("launch",
                finetune.launch,
                {.comment = "here: the coordinator starts mpirun; elsewhere: an MPIJob or a person",
                 .choices = "here|elsewhere",
                 .safe_to_change = true});
}

}  // namespace hedgerow::storage
