// Every field of a recipe, in the order of the file: key, range, choices, comment and whether a
// resume may change it. Reading, writing and comparing are three visitors of this one list, so that
// a field cannot be known to one of them alone. A visitor has section(name, comment), field(key,
// value, rules), sources(value), texts(value) and inherit(value, base). Private to
// storage/recipe/recipe*.cpp.
#pragma once

#include <string>

#include "storage/recipe/recipe.hpp"
#include "storage/recipe/recipe_rules.hpp"
#include "storage/recipe/recipe_stage_fields.hpp"
#include "storage/recipe/recipe_worker_fields.hpp"

namespace hedgerow::storage {

template <typename Data, typename Visitor>
void visit_data(Data& data, Visitor& visitor) {
  constexpr int kMaxLength = 1 << 24;
  visitor.field(
      "seq_len", data.seq_len, {"tokens of a sequence; each stage has its own", 2, kMaxLength});
  visitor.field("validation_sequences",
                data.validation_sequences,
                {"the last ones, never trained on", 0, 1e9});
  visitor.field("split",
                data.split,
                {.comment = "validation is cut before packing (documents) or after it (sequences)",
                 .choices = "documents|sequences"});
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
  visitor.field("feature_map", spec.feature_map, {words});
  visitor.field("negation", spec.negation, {"also map -xW (the hedgehog maps)"});
  visitor.field("feature_dim",
                spec.feature_dim,
                {"F, after that concatenation; cost grows with it", 1, 65536});
  visitor.field("order", spec.order, {"of taylor's series; 2 is what a student can have", 1, 3});
  visitor.field("temperature",
                spec.temperature,
                {"t of exp's exp(t x)", 0, AttentionSpec::kMaxTemperature, /*above_min=*/true});
  visitor.field("bias", spec.bias, {"one per head and feature"});
  visitor.field("start",
                spec.start,
                {"orthogonal, kaiming or identity; gaussian or orthogonal_chi (positive_random)"});
  visitor.field("key_maps",
                spec.key_maps,
                {"kv_head: one map and state of keys a kv head; query_head: one a query head"});
  visitor.field("window", spec.window, {"terraced, sliding or none"});
  visitor.field("window_size",
                spec.window_size,
                {"keys under softmax; terraced sees up to twice as many", 1, 65536});
  visitor.field(
      "num_sinks", spec.num_sinks, {"first tokens that stay under softmax; 0 for none", 0, 16});
  visitor.field("recall_cache",
                spec.recall_cache,
                {"keys a kv head that left the window and stay exact; the state recalls them worst",
                 0,
                 65536});
  visitor.field(
      "window_factor", spec.window_factor, {"logit of the window's share at the start", -30, 30});
  visitor.field("train_window_factor", spec.train_window_factor, {"learn that share per head"});
  visitor.field(
      "train_feature_map", spec.train_feature_map, {"false: leave the maps as they were drawn"});
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

template <typename AnyRecipe, typename Visitor>
void visit_made_by(AnyRecipe& recipe, Visitor& visitor) {
  visitor.section("made_by", "which build resolved this recipe");
  visitor.field("version", recipe.made_by.version, {.comment = "", .safe_to_change = true});
  visitor.field("git_hash", recipe.made_by.git_hash, {.comment = "", .safe_to_change = true});
}

template <typename AnyRecipe, typename Visitor>
void visit_recipe(AnyRecipe& recipe, Visitor& visitor) {
  visit_settings(recipe, visitor);
  visit_made_by(recipe, visitor);
}

// The keys of one entry of `sources`.
template <typename Source, typename Visitor>
void visit_source(Source& source, Visitor& visitor) {
  visitor.field("path", source.path, {""});
  visitor.field(
      "format", source.format, {.comment = "", .choices = "text|jsonl|alpaca|records|chat|tokens"});
  visitor.field("template", source.template_, {""});
  visitor.field("label_mask", source.label_mask, {.comment = "", .choices = "all|answer"});
}

// The keys of one entry of `texts`.
template <typename Text, typename Visitor>
void visit_text(Text& text, Visitor& visitor) {
  visitor.field("name", text.name, {""});
  visit_source(text.source, visitor);
  visitor.field("in_domain", text.in_domain, {""});
}

}  // namespace hedgerow::storage
