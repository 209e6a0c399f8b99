// Every field of a recipe, in the order of the file: key, comment, range, choices and whether a
// resume may change it. Type and default are in recipe_sections.hpp. Reading, writing, comparing,
// range checks and the JSON for the tokenizer are visitors of this one list, so that a field cannot
// be known to one of them alone. A visitor has section(name, comment), field(key, value, rules),
// sources(value), texts(value), variants(recipe) and inherit(value, base). The comment is what a
// written recipe says of the field; what only a programmer asks stands above the entry. Below the
// list: a value as TOML, and the report of what is wrong with a recipe. Private to
// storage/recipe/*.{hpp,cpp}.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "storage/model/attention_spec.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::storage {

// What is known of a field beside its key and default.
struct FieldRules {
  std::string_view comment;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;       // the minimum itself is not allowed
  std::string_view choices{};   // of a string: "a|b|c"; empty: any
  bool safe_to_change = false;  // on resume
};

// "a" is one of "a|b|c".
inline bool is_choice(std::string_view word, std::string_view choices) {
  while (!choices.empty()) {
    const std::size_t end = choices.find('|');
    if (choices.substr(0, end) == word) return true;
    choices = end == std::string_view::npos ? std::string_view() : choices.substr(end + 1);
  }
  return false;
}

// The keys of one entry of `sources`.
template <typename Source, typename Visitor>
void visit_source(Source& source, Visitor& visitor) {
  // With format "tokens" a tokens file (*.h5), which is used as it is.
  visitor.field("path", source.path, {""});
  visitor.field(
      "format",
      source.format,
      {.comment = "",
       .choices = "text|jsonl|alpaca|records|chat|tokens|passkey|kv_recall|multi_query_recall|"
                  "phone_book"});
  // For jsonl alone, as "{question}\n{answer}"; kTextTemplate where a recipe says none.
  visitor.field("template", source.template_, {""});
  // Which positions count in the finetune loss.
  visitor.field("label_mask", source.label_mask, {.comment = "", .choices = "all|answer"});
  // Its share of the training tokens beside the other sources' weights; 0: by the file's size.
  visitor.field("weight", source.weight, {"", 0, 1e9});
  // So many records make one document; 0 and 1: each is one.
  visitor.field("shots", source.shots, {"", 0, 1000});
}

// The keys of one entry of `texts`.
template <typename Text, typename Visitor>
void visit_text(Text& text, Visitor& visitor) {
  visitor.field("name", text.name, {""});
  visit_source(text.source, visitor);
  // The text resembles what the student learns from; that is only told beside its figures.
  visitor.field("in_domain", text.in_domain, {""});
}

template <typename Data, typename Visitor>
void visit_data(Data& data, Visitor& visitor) {
  constexpr int kMaxLength = 1 << 24;
  visitor.field(
      "seq_len", data.seq_len, {"tokens of a sequence; each stage has its own", 2, kMaxLength});
  visitor.field("validation_sequences",
                data.validation_sequences,
                {"the last ones, never trained on", 0, 1e9});
  // documents: the last documents become validation before anything is packed, so that no
  // document is in both parts; sequences: the last sequences of the whole packed stream do, as the
  // reference measurements did.
  visitor.field("split",
                data.split,
                {.comment = "validation is cut before packing (documents) or after it (sequences)",
                 .choices = "documents|sequences"});
  // More are never tokenized nor captured.
  visitor.field("max_sequences", data.max_sequences, {"0: all", 0, 1e9});
  visitor.field(
      "add_bos", data.add_bos, {"before each document; auto: as the model's tokenizer does"});
  visitor.field("eos_token_id",
                data.eos_token_id,
                {"after each document; -1: the model's own, -2: none", -2, 1e9});
  visitor.sources(data.sources);
}

template <typename Spec, typename Visitor>
void visit_attention(Spec& spec, Visitor& visitor) {
  static const std::string words = feature_map_words();
  kernels::visit_options(
      spec, [&](const char* key, auto& value, const kernels::OptionRules& rules) {
        FieldRules own{.comment = rules.comment.empty() ? std::string_view(words) : rules.comment};
        if (rules.max > rules.min) {
          own.min = rules.min;
          own.max = rules.student_max > 0 ? rules.student_max : rules.max;
          own.above_min = rules.above_min;
        }
        visitor.field(key, value, own);
      });
  visitor.field("feature_dim",
                spec.feature_dim,
                {"F, after the concatenation of negation; cost grows with it", 1, 65536});
  visitor.field("bias", spec.bias, {"one per head and feature"});
  visitor.field("start",
                spec.start,
                {"orthogonal, kaiming or identity; gaussian or orthogonal_chi (positive_random)"});
  visitor.field("key_maps",
                spec.key_maps,
                {"kv_head: one map and state of keys a kv head; query_head: one a query head"});
  visitor.field(
      "window_factor", spec.window_factor, {"logit of the window's share at the start", -30, 30});
  visitor.field("train_window_factor", spec.train_window_factor, {"learn that share per head"});
  visitor.field(
      "train_feature_map", spec.train_feature_map, {"false: leave the maps as they were drawn"});
}

template <typename Plan, typename Visitor>
void visit_plan(Plan& plan, Visitor& visitor) {
  visitor.field(
      "layers_per_block",
      plan.layers_per_block,
      {"never changes the result; fewer: more disk, more blocks; 0: as the plan chooses", 0, 1e6});
  // The rows of the canonical forward.
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
  // A step accumulates over the forwards that they take.
  visitor.field("sequences_per_step",
                transfer.sequences_per_step,
                {"a multiple of plan.sequences_per_forward", 1, 1e6});
  visitor.field("mse_factor", transfer.mse_factor, {"weight of the output error", 0, 1e9});
  visitor.field("xent_factor",
                transfer.xent_factor,
                {"weight of the attention-weight error; O(T^2) work", 0, 1e9});
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
  // Only features that are not trained are drawn again, so that the window factors do not fit one
  // draw. The best draw by validation is kept.
  visitor.field("redraw_every",
                transfer.redraw_every,
                {"steps until positive_random is drawn again; 0: never", 0, 1e9});
  visitor.field("tied_maps",
                transfer.tied_maps,
                {"one map for queries and keys of a head, as Hedgehog's (needs key_maps = "
                 "\"query_head\"); else two that begin alike"});
  visitor.field(
      "softmax_layers",
      transfer.softmax_layers,
      {"layers kept as they are, or \"uniform:N\"; \"all\": LoRA alone is trained", 0, 1e6});
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
  // The K likeliest tokens of a position keep their log-probability, the rest their sum's.
  visitor.field(
      "top_k",
      finetune.top_k,
      {"kl, mixed: tokens of a position that are kept; 6 top_k + 4 bytes each", 1, 65536});
  visitor.field("repeat_captured",
                finetune.repeat_captured,
                {"kl, mixed: of the transfer's text only what it captured, over and over"});
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
  // A multiple of sequences_per_micro_batch.
  visitor.field("sequences_per_step", finetune.sequences_per_step, {"the global batch", 1, 1e6});
  visitor.field("sequences_per_micro_batch",
                finetune.sequences_per_micro_batch,
                {"memory grows with it", 1, 1e6});
  visitor.field("checkpoint_every",
                finetune.checkpoint_every,
                {"optimizer steps that a kill can cost", 1, 1e9});
  // Before the first step too. The adapter is that of the best validation, the last one where
  // data.finetune.validation_sequences = 0.
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
  // Each stage has every micro-batch of its pipeline pass through its layers alone
  // (storage/shape/mesh.hpp); the bytes are the same.
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
  // The bytes are the same.
  visitor.field("exchange",
                finetune.exchange,
                {.comment = "of gradients; auto: NCCL if each rank has a GPU of its own, else MPI",
                 .choices = "auto|mpi|nccl",
                 .safe_to_change = true});
  // elsewhere: a Kubernetes MPIJob or another job's mpirun brings the ranks, and they ask for the
  // stage.
  visitor.field("launch",
                finetune.launch,
                {.comment = "here: the coordinator starts mpirun; elsewhere: an MPIJob or a person",
                 .choices = "here|elsewhere",
                 .safe_to_change = true});
}

template <typename Workers, typename Visitor>
void visit_workers(Workers& workers, Visitor& visitor) {
  visitor.field(
      "local",
      workers.local,
      {.comment = "started on this machine", .min = 0, .max = 4096, .safe_to_change = true});
  visitor.field("threads",
                workers.threads,
                {.comment = "each; 0: cores / local, elsewhere all; equal bytes need equal threads",
                 .min = 0,
                 .max = 4096,
                 .safe_to_change = true});
  visitor.field("orphan_timeout_s",
                workers.orphan_timeout_s,
                {.comment = "without a coordinator, then checkpoint and exit",
                 .min = 1,
                 .max = 1e6,
                 .safe_to_change = true});
  visitor.field("lease_s",
                workers.lease_s,
                {.comment = "silence after which a task goes to another worker",
                 .min = 1,
                 .max = 1e5,
                 .safe_to_change = true});
  visitor.field("hang_timeout_s",
                workers.hang_timeout_s,
                {.comment = "alive without progress, then killed; or ten steps' time, if longer",
                 .min = 1,
                 .max = 1e6,
                 .safe_to_change = true});
  visitor.field(
      "file_patience_s",
      workers.file_patience_s,
      {.comment = "for renames that a network file system shows late; then a file is lost",
       .min = 0,
       .max = 1e5,
       .safe_to_change = true});
  visitor.field("bind",
                workers.bind,
                {.comment = "an address or interface, or * for all; all but loopback need keys",
                 .safe_to_change = true});
  visitor.field("advertise",
                workers.advertise,
                {.comment = "how workers reach it; empty: what bind says, or this host's name",
                 .safe_to_change = true});
  // For firewalls and Services, which want to know it.
  visitor.field("port",
                workers.port,
                {.comment = "where the coordinator listens; 0: any free one",
                 .min = 0,
                 .max = 65535,
                 .safe_to_change = true});
}

// What a person writes: everything but [made_by].
template <typename AnyRecipe, typename Visitor>
void visit_settings(AnyRecipe& recipe, Visitor& visitor) {
  visitor.field("seed", recipe.seed, {"of feature maps, shuffling and LoRA", 0, 9.2e18});
  visitor.section("model", "the teacher: a Hugging Face directory, or org/name in the local cache");
  visitor.field("path", recipe.model.path, {""});
  visitor.section("data.transfer", "text for the attention transfer");
  visit_data(recipe.data_transfer, visitor);
  visitor.section("data.finetune",
                  "text for LoRA, the same or other; keys left out are those of data.transfer");
  visitor.inherit(recipe.data_finetune, recipe.data_transfer);
  visit_data(recipe.data_finetune, visitor);
  visitor.section("data.evaluate", "its validation part gives the perplexities; likewise");
  visitor.inherit(recipe.data_evaluate, recipe.data_transfer);
  visit_data(recipe.data_evaluate, visitor);
  visitor.texts(recipe.texts);
  visitor.section("attention", "what the student attends with");
  visit_attention(recipe.attention, visitor);
  visitor.section("plan", "how the job is cut");
  visit_plan(recipe.plan, visitor);
  visitor.section("transfer", "stage 1: every layer learns alone");
  visit_transfer(recipe.transfer, visitor);
  visitor.section("finetune", "stage 2: LoRA over the whole student");
  visit_finetune(recipe.finetune, visitor);
  visitor.section("evaluate", "");
  visitor.field("max_sequences",
                recipe.evaluate.max_sequences,
                {.comment = "0: all", .min = 0, .max = 1e9, .safe_to_change = true});
  visitor.field("prompts",
                recipe.evaluate.prompts,
                {.comment = "what 'hedgerow generate --run' goes on from when it is given none",
                 .safe_to_change = true});
  visitor.field("max_new_tokens",
                recipe.evaluate.max_new_tokens,
                {.comment = "of each", .min = 1, .max = 1e6, .safe_to_change = true});
  visitor.section("workers", "all of it may change on resume");
  visit_workers(recipe.workers, visitor);
}

// The keys of one [[variants]]: what differs from the recipe's own tables.
template <typename AnyVariant, typename Visitor>
void visit_variant(AnyVariant& variant, Visitor& visitor) {
  visitor.field("name", variant.name, {"of letters, digits, - and _"});
  visitor.field(
      "seeds", variant.seeds, {"students, which differ in how their maps start", 1, kMaxStudents});
  visitor.section("attention", "");
  visit_attention(variant.attention, visitor);
  visitor.section("transfer", "");
  visit_transfer(variant.transfer, visitor);
}

// Keys of [transfer] that all students of a run share.
inline constexpr std::array<std::string_view, 8> kTransferKeysOfRun = {"max_steps",
                                                                       "sequences_per_step",
                                                                       "shuffle",
                                                                       "validate_every",
                                                                       "validation_sequences",
                                                                       "checkpoint_every",
                                                                       "retries_with_new_seed",
                                                                       "softmax_layers"};

template <typename AnyRecipe, typename Visitor>
void visit_made_by(AnyRecipe& recipe, Visitor& visitor) {
  visitor.section("made_by", "which build resolved this recipe");
  visitor.field("version", recipe.made_by.version, {.comment = "", .safe_to_change = true});
  visitor.field("git_hash", recipe.made_by.git_hash, {.comment = "", .safe_to_change = true});
}

template <typename AnyRecipe, typename Visitor>
void visit_recipe(AnyRecipe& recipe, Visitor& visitor) {
  visit_settings(recipe, visitor);
  visitor.variants(recipe);
  visit_made_by(recipe, visitor);
}

// Before the hash in the first line of a run.toml.
inline constexpr std::string_view kRunHashLine = "# XXH3-128 of the lines below: ";

// Values as TOML writes them.
[[nodiscard]] std::string toml_text(bool value);
[[nodiscard]] std::string toml_text(int value);
[[nodiscard]] std::string toml_text(std::int64_t value);
[[nodiscard]] std::string toml_text(std::uint64_t value);
[[nodiscard]] std::string toml_text(
    double value);  // shortest digits that read back as the same double
[[nodiscard]] std::string toml_text(std::string_view value);  // quoted and escaped
[[nodiscard]] std::string toml_text(const std::string& value);
[[nodiscard]] std::string toml_text(FeatureMapKind value);
[[nodiscard]] std::string toml_text(FeatureMapStart value);
[[nodiscard]] std::string toml_text(WindowLayout value);
[[nodiscard]] std::string toml_text(KeyMaps value);
[[nodiscard]] std::string toml_text(AddBos value);
[[nodiscard]] std::string toml_text(const std::vector<int>& values);
[[nodiscard]] std::string toml_text(const SoftmaxLayers& value);
[[nodiscard]] std::string toml_text(const std::vector<std::string>& values);
[[nodiscard]] std::string toml_text(const DataSource& source);  // an inline table
[[nodiscard]] std::string toml_text(const std::vector<DataSource>& sources);
[[nodiscard]] std::string toml_text(const NamedText& text);
[[nodiscard]] std::string toml_text(const std::vector<NamedText>& texts);

// What is wrong with a recipe, each problem with the place of its key.
class RecipeProblems {
 public:
  explicit RecipeProblems(std::string file) : file_(std::move(file)) {}

  // Where the file has the key; keys that it leaves out have no line.
  void at_line(const std::string& name, int line) { lines_[name] = line; }
  void add(const std::string& name, const std::string& text);  // "<file>:<line>: <name> <text>"
  void add_sentence(const std::string& name, const std::string& text);  // "<file>:<line>: <text>"
  // Names of what follows stand inside this, as "variants[0]."; "" for none.
  void within(const std::string& prefix) { prefix_ = prefix; }
  // Throws kUsage with all of them, one a line.
  void throw_if_any() const;

 private:
  std::string file_, prefix_;
  std::map<std::string, int> lines_;
  std::vector<std::string> problems_;
};

void check_number(const std::string& name,
                  double value,
                  const FieldRules& rules,
                  RecipeProblems& problems);
void check_word(const std::string& name,
                const std::string& value,
                const FieldRules& rules,
                RecipeProblems& problems);

// Range and choices of one field, of each element for a list. Words of enums are checked where they
// are read.
template <typename T>
void check_field(const std::string& name,
                 const T& value,
                 const FieldRules& rules,
                 RecipeProblems& problems) {
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    check_number(name, static_cast<double>(value), rules, problems);
  } else if constexpr (std::is_same_v<T, std::string>) {
    check_word(name, value, rules, problems);
  } else if constexpr (std::is_same_v<T, std::vector<int>> ||
                       std::is_same_v<T, std::vector<std::string>>) {
    for (const auto& element : value) check_field(name, element, rules, problems);
  } else if constexpr (std::is_same_v<T, SoftmaxLayers>) {
    check_field(name, value.layers, rules, problems);
  }
}

// The rules between fields and those that no range expresses.
void check_recipe(const Recipe& recipe, RecipeProblems& problems);
// Of its variants; the recipe's own are checked.
void check_variants(const Recipe& recipe, RecipeProblems& problems);

// By what two sources are one text: the path as it is written, or what it comes to on this machine.
using PathOf = std::string (*)(const DataSource&);
[[nodiscard]] std::string written_path(const DataSource& source);
[[nodiscard]] std::string real_path_of(const DataSource& source);

// What one stage is judged by no other learns (tokens_section.cpp).
void check_apart(const Recipe& recipe, PathOf path_of, RecipeProblems& problems);
// No stage learns data.evaluate.texts[index].
void check_text_apart(const Recipe& recipe,
                      std::size_t index,
                      PathOf path_of,
                      RecipeProblems& problems);
[[nodiscard]] std::string text_field(std::size_t index);  // "data.evaluate.texts[0]"

}  // namespace hedgerow::storage
