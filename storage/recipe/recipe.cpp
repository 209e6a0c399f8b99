#include "storage/recipe/recipe.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>

#include "storage/base/error.hpp"
#include "storage/recipe/recipe_fields.hpp"
#include "storage/shape/mesh.hpp"

namespace hedgerow::storage {
namespace {

// Applies the ranges to a recipe that did not come from a file.
std::string variant_field(std::size_t i) { return "variants[" + std::to_string(i) + "]"; }

class RangeChecker {
 public:
  explicit RangeChecker(RecipeProblems& problems) : problems_(problems) {}

  void section(std::string_view name, std::string_view) { section_ = std::string(name) + "."; }
  template <typename T>
  void field(std::string_view key, const T& value, const FieldRules& rules) {
    check_field(section_ + std::string(key), value, rules, problems_);
  }
  void sources(const std::vector<DataSource>& sources) {
    const std::string section = section_;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      section_ = section + "sources[" + std::to_string(i) + "].";
      visit_source(sources[i], *this);
    }
    section_ = section;
  }
  void texts(const std::vector<NamedText>& texts) {
    const std::string section = section_;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      section_ = section + "texts[" + std::to_string(i) + "].";
      visit_text(texts[i], *this);
    }
    section_ = section;
  }
  void variants(const Recipe& recipe) {
    for (std::size_t i = 0; i < recipe.variants.size(); ++i) {
      problems_.within(variant_field(i) + ".");
      section_.clear();
      visit_variant(recipe.variants[i], *this);
    }
    problems_.within("");
  }
  template <typename Data>
  void inherit(const Data&, const Data&) {}

 private:
  RecipeProblems& problems_;
  std::string section_;
};

// Whole numbers without a point or an exponent: for messages.
std::string short_number(double value) {
  const bool is_whole = value == std::floor(value) && std::abs(value) < 1e15;
  return is_whole ? std::to_string(static_cast<std::int64_t>(value)) : toml_text(value);
}

std::string equals(int value) { return "= " + std::to_string(value); }

void check_source(const std::string& name, const DataSource& source, RecipeProblems& problems) {
  if (source.path.empty()) problems.add(name + ".path", "is not set");
  if (source.format != "jsonl" && !source.template_.empty()) {
    problems.add(name + ".template",
                 "is for format = \"jsonl\", not for \"" + source.format + "\"");
  }
  if (source.format == "text" && source.label_mask == "answer") {
    problems.add(name + ".label_mask", "= \"answer\": plain text has no answers; use \"all\"");
  }
  if (source.shots > 1 && (source.format == "text" || source.format == "tokens")) {
    problems.add(name + ".shots",
                 equals(source.shots) + ": format \"" + source.format +
                     "\" has no records to put together; leave it out");
  }
}

void check_data(const std::string& section, const DataSection& data, RecipeProblems& problems) {
  const std::string sources = section + ".sources";
  if (data.sources.empty()) {
    problems.add(sources, "is empty; name a text, as sources = [{ path = \"corpus.txt\" }]");
  }
  for (std::size_t i = 0; i < data.sources.size(); ++i)
    check_source(sources + "[" + std::to_string(i) + "]", data.sources[i], problems);
  const auto weighted = std::ranges::count_if(
      data.sources, [](const DataSource& source) { return source.weight > 0; });
  const auto generated = std::ranges::find_if(data.sources, &DataSource::is_generated);
  if (generated != data.sources.end() && weighted == 0 && data.sources.size() > 1) {
    problems.add(sources,
                 "makes records of format \"" + generated->format +
                     "\" beside other texts, by whose sizes nobody can say their share; give each "
                     "one a weight");
  }
  if (weighted > 0 && static_cast<std::size_t>(weighted) < data.sources.size()) {
    problems.add(sources,
                 "give " + std::to_string(weighted) + " of " + std::to_string(data.sources.size()) +
                     " texts a weight; give each one a weight, or none (then the files' sizes are "
                     "the weights)");
  }
  if (weighted > 0 && data.split == "sequences") {
    problems.add(section + ".split",
                 "= \"sequences\" packs the texts whole, one after another; take \"documents\", or "
                 "leave the weights out");
  }
}

// It becomes a part of file names, and a word of tables.
bool is_text_name(const std::string& name) {
  constexpr std::size_t kLongest = 64;
  return !name.empty() && name.size() <= kLongest && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_';
  });
}

void check_texts(const Recipe& recipe, RecipeProblems& problems) {
  const std::vector<NamedText>& texts = recipe.texts;
  if (texts.size() > kMaxTexts) {
    problems.add("data.evaluate.texts",
                 "names " + std::to_string(texts.size()) + " texts, at most " +
                     std::to_string(kMaxTexts) + " are evaluated; leave some out");
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const NamedText& text = texts[i];
    const std::string name = text_field(i) + ".name";
    if (!is_text_name(text.name)) {
      problems.add(name,
                   "= " + toml_text(text.name) +
                       ": expected 1 to 64 letters, digits, - and _, as \"wikitext2\"");
    } else if (text.name == kValidation) {
      problems.add(name,
                   "= \"validation\" is what the section's own split is called; use another name");
    } else if (std::any_of(texts.begin(),
                           texts.begin() + static_cast<std::ptrdiff_t>(i),
                           [&](const NamedText& other) { return other.name == text.name; })) {
      problems.add(name, "= " + toml_text(text.name) + " is given twice; name each text its own");
    }
    check_source(text_field(i), text.source, problems);
    check_text_apart(recipe, i, written_path, problems);
  }
}

// Sequences that the window covers leave the student's attention what the teacher's is: the error
// is that of rounding, and no map ever gets a gradient.
void check_length(const std::string& section,
                  const DataSection& data,
                  const AttentionSpec& attention,
                  RecipeProblems& problems) {
  const int exact = attention.longest_exact_sequence();
  if (data.seq_len > exact) return;
  problems.add(section + ".seq_len",
               equals(data.seq_len) + ": with " + attention.exact_settings() + " a " +
                   std::string(to_string(attention.window)) + " window keeps all keys of up to " +
                   std::to_string(exact) +
                   " tokens under softmax, so linear attention would learn nothing; use at least " +
                   std::to_string(exact + 1) +
                   " (several times as many teach it more), or a smaller "
                   "attention.window_size");
}

// Maps without a projection have no parameters, and without a window nothing reads its factor.
void check_that_something_trains(const Recipe& recipe, RecipeProblems& problems) {
  const AttentionSpec& attention = recipe.attention;
  const bool trains_maps = attention.train_feature_map && attention.has_projection();
  const bool trains_factors =
      attention.train_window_factor && attention.window != WindowLayout::kNone;
  if (trains_maps || trains_factors || recipe.finetune.enabled) return;
  problems.add("finetune.enabled",
               "= false: nothing of this run would learn, because attention has no feature map and "
               "no window factor that trains; set attention.train_feature_map, "
               "attention.train_window_factor or finetune.enabled to true");
}

void check_plan(const PlanSection& plan, RecipeProblems& problems) {
  const std::string& keep = plan.keep_boundaries;
  if (keep == "none" || keep == "last" || keep == "all" || keep == "auto") return;
  int every = 0;
  const std::string_view number =
      std::string_view(keep).substr(std::min<std::size_t>(6, keep.size()));
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), every);
  const bool is_number = error == std::errc() && end == number.data() + number.size() && every >= 1;
  if (!keep.starts_with("every:") || !is_number) {
    problems.add("plan.keep_boundaries",
                 "= \"" + keep + "\": expected none, last, every:N with N at least 1, all or auto");
  }
}

void check_transfer(const Recipe& recipe, RecipeProblems& problems) {
  const TransferSection& transfer = recipe.transfer;
  const int rows = recipe.plan.sequences_per_forward;
  if (transfer.sequences_per_step % rows != 0) {
    problems.add("transfer.sequences_per_step",
                 equals(transfer.sequences_per_step) +
                     " must be a multiple of plan.sequences_per_forward = " + std::to_string(rows));
  }
  if (transfer.validation_sequences > recipe.data_transfer.validation_sequences) {
    problems.add(
        "transfer.validation_sequences",
        equals(transfer.validation_sequences) + ", but data.transfer.validation_sequences = " +
            std::to_string(recipe.data_transfer.validation_sequences) + "; raise that one");
  }
  const bool has_trained_maps =
      recipe.attention.has_projection() && recipe.attention.train_feature_map;
  if (transfer.max_steps == 0 && has_trained_maps &&
      !(recipe.finetune.enabled && recipe.finetune.trains("maps"))) {
    problems.add("transfer.max_steps",
                 "= 0 leaves the maps untrained; add \"maps\" to finetune.trainable (and set "
                 "finetune.enabled = true), or give the transfer steps");
  }
  if (transfer.min_learning_rate > transfer.learning_rate) {
    problems.add("transfer.min_learning_rate",
                 "= " + short_number(transfer.min_learning_rate) +
                     " is above transfer.learning_rate = " + short_number(transfer.learning_rate));
  }
  if (transfer.mse_factor == 0.0 && transfer.xent_factor == 0.0) {
    problems.add("transfer.mse_factor",
                 "and transfer.xent_factor are both 0: nothing would be learned");
  }
  const AttentionSpec& attention = recipe.attention;
  if (transfer.redraw_every > 0 && (!attention.row().one_draw || attention.train_feature_map)) {
    problems.add("transfer.redraw_every",
                 equals(transfer.redraw_every) +
                     ": only positive_random that is not trained is drawn again; set "
                     "attention.train_feature_map = false, or leave it at 0");
  }
  if (transfer.tied_maps && attention.key_maps != KeyMaps::kQueryHead) {
    problems.add("transfer.tied_maps",
                 "= true: with attention.key_maps = \"kv_head\" the keys' map serves several "
                 "queries' maps; set attention.key_maps = \"query_head\", or false here");
  }
  if (transfer.tied_maps && recipe.finetune.enabled && recipe.finetune.trains("maps")) {
    problems.add("transfer.tied_maps",
                 "= true: the last stage would train the two maps apart; take \"maps\" out of "
                 "finetune.trainable, or set false here");
  }
  const std::vector<int>& layers = transfer.softmax_layers.layers;
  for (std::size_t i = 1; i < layers.size(); ++i) {
    if (layers[i] <= layers[i - 1])
      problems.add("transfer.softmax_layers", "must be in growing order, each layer once");
  }
}

// What only validations can decide needs some.
void check_validations(const Recipe& recipe, RecipeProblems& problems) {
  const FinetuneSection& finetune = recipe.finetune;
  std::string without;
  if (recipe.data_finetune.validation_sequences == 0)
    without = "data.finetune.validation_sequences = 0 leaves nothing to validate on";
  if (finetune.validate_every == 0)
    without = "finetune.validate_every = 0 validates only at the end";
  if (without.empty()) return;
  without += "; set it to 1 or more, or ";
  if (finetune.early_stop_patience > 0) {
    problems.add("finetune.early_stop_patience",
                 equals(finetune.early_stop_patience) + " counts validations, but " + without +
                     "leave the patience at 0");
  }
  if (finetune.schedule == "plateau") {
    problems.add("finetune.schedule",
                 "= \"plateau\" goes by validations, but " + without + "take another schedule");
  }
}

void check_rates(const FinetuneSection& finetune, RecipeProblems& problems) {
  if (finetune.schedule != "constant" && finetune.min_learning_rate > finetune.learning_rate) {
    problems.add("finetune.min_learning_rate",
                 "= " + short_number(finetune.min_learning_rate) +
                     " is above finetune.learning_rate = " + short_number(finetune.learning_rate));
  }
  if (finetune.warmup_steps > 0 && finetune.warmup_steps >= finetune.max_steps) {
    problems.add("finetune.warmup_steps",
                 equals(finetune.warmup_steps) +
                     " must be below finetune.max_steps = " + std::to_string(finetune.max_steps));
  }
}

void check_no_word_twice(const char* field,
                         const std::vector<std::string>& words,
                         RecipeProblems& problems) {
  for (auto word = words.begin(); word != words.end(); ++word) {
    if (std::find(words.begin(), word, *word) != word)
      problems.add(field, "names " + *word + " twice");
  }
}

void check_trainable(const Recipe& recipe, RecipeProblems& problems) {
  const FinetuneSection& finetune = recipe.finetune;
  const AttentionSpec& attention = recipe.attention;
  constexpr const char* kField = "finetune.trainable";
  if (finetune.trainable.empty())
    problems.add(kField, "is empty; set finetune.enabled = false instead");
  check_no_word_twice(kField, finetune.trainable, problems);
  if (finetune.trains("maps") && !attention.has_projection()) {
    problems.add(kField,
                 "names maps, but the feature map of this attention (attention.feature_map) has no "
                 "projection; leave it out");
  } else if (finetune.trains("maps") && !attention.train_feature_map) {
    problems.add(
        kField,
        "names maps, but attention.train_feature_map = false keeps them as they are drawn; "
        "set that to true, or leave it out");
  }
  if (finetune.trains("window_factors") && attention.window == WindowLayout::kNone) {
    problems.add(kField,
                 "names window_factors, but attention.window = none has none; leave it out");
  } else if (finetune.trains("window_factors") && !attention.train_window_factor) {
    problems.add(kField,
                 "names window_factors, but attention.train_window_factor = false fixes them; set "
                 "that to true, or leave it out");
  }
}

void check_mesh(const FinetuneSection& finetune, int micro_batches, RecipeProblems& problems) {
  if (finetune.mesh == "auto") return;
  const auto mesh = parse_mesh(finetune.mesh);
  const std::string given = "= " + toml_text(finetune.mesh);
  if (!mesh) {
    problems.add("finetune.mesh",
                 given + R"(: expected "auto", or pipelines x stages of each, as "2x4")");
  } else if (mesh->ranks() != finetune.ranks) {
    problems.add("finetune.mesh",
                 given + " has " + std::to_string(mesh->ranks()) + " ranks, but finetune.ranks = " +
                     std::to_string(finetune.ranks) + "; make them equal, or set it to \"auto\"");
  } else if (mesh->data > micro_batches) {
    problems.add("finetune.mesh",
                 given + " has " + std::to_string(mesh->data) + " pipelines, but a step has " +
                     std::to_string(micro_batches) +
                     " micro-batches (sequences_per_step / sequences_per_micro_batch) and each "
                     "pipeline needs one; use more stages, or raise finetune.sequences_per_step");
  }
}

void check_finetune(const Recipe& recipe, RecipeProblems& problems) {
  const FinetuneSection& finetune = recipe.finetune;
  check_rates(finetune, problems);
  check_validations(recipe, problems);
  if (finetune.target_modules.empty())
    problems.add("finetune.target_modules", "is empty; set finetune.enabled = false instead");
  check_no_word_twice("finetune.target_modules", finetune.target_modules, problems);
  check_trainable(recipe, problems);
  if (finetune.exchange == "nccl" && recipe.plan.device == "cpu") {
    problems.add("finetune.exchange",
                 "= \"nccl\" needs GPUs, and plan.device = \"cpu\"; set it to \"auto\"");
  }
  if (finetune.objective == "mixed" && finetune.ce_weight + finetune.kl_weight <= 0.0) {
    problems.add("finetune.ce_weight",
                 "and finetune.kl_weight are both 0, so that nothing is learned; set one of them");
  }
  const int per_micro_batch = finetune.sequences_per_micro_batch;
  const int micro_batches = finetune.sequences_per_step / per_micro_batch;
  if (finetune.sequences_per_step % per_micro_batch != 0) {
    problems.add("finetune.sequences_per_step",
                 equals(finetune.sequences_per_step) +
                     " must be a multiple of finetune.sequences_per_micro_batch = " +
                     std::to_string(per_micro_batch));
  } else {
    check_mesh(finetune, micro_batches, problems);
  }
}

// It becomes part of tcp://HOST:PORT; whether this host has it is for the coordinator to say.
bool is_host_text(const std::string& text) {
  constexpr std::size_t kLongestHostName = 255;
  return text.size() <= kLongestHostName && std::ranges::all_of(text, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_' || c == ':';
         });
}

void check_workers(const WorkersSection& workers, RecipeProblems& problems) {
  if (workers.bind != "*" && (workers.bind.empty() || !is_host_text(workers.bind))) {
    problems.add("workers.bind",
                 "= " + toml_text(workers.bind) +
                     ": expected an address (IPv6 without brackets), an interface's name, or *");
  }
  if (!is_host_text(workers.advertise)) {
    problems.add("workers.advertise",
                 "= " + toml_text(workers.advertise) +
                     ": expected a host's name or an address, without scheme and port");
  }
}

}  // namespace

bool DataSource::is_generated() const {
  constexpr std::array<std::string_view, 4> kGenerated = {
      "passkey", "kv_recall", "multi_query_recall", "phone_book"};
  return std::ranges::find(kGenerated, format) != kGenerated.end();
}

void RecipeProblems::add(const std::string& name, const std::string& text) {
  add_sentence(name, name + " " + text);
}

void RecipeProblems::add_sentence(const std::string& name, const std::string& text) {
  const auto line = lines_.find(prefix_ + name);
  const std::string place =
      line == lines_.end() ? file_ : file_ + ":" + std::to_string(line->second);
  problems_.push_back(place + ": " + prefix_ + text);
}

void RecipeProblems::throw_if_any() const {
  if (problems_.empty()) return;
  std::string text = problems_.front();
  for (std::size_t i = 1; i < problems_.size(); ++i) text += "\n" + problems_[i];
  throw Error(ErrorKind::kUsage, text);
}

void check_number(const std::string& name,
                  double value,
                  const FieldRules& rules,
                  RecipeProblems& problems) {
  const bool too_low = rules.above_min ? value <= rules.min : value < rules.min;
  if (std::isfinite(value) && !too_low && value <= rules.max) return;
  problems.add(name,
               "= " + short_number(value) + ": expected " +
                   (rules.above_min ? "more than " : "at least ") + short_number(rules.min) +
                   " and at most " + short_number(rules.max));
}

void check_word(const std::string& name,
                const std::string& value,
                const FieldRules& rules,
                RecipeProblems& problems) {
  if (rules.choices.empty() || is_choice(value, rules.choices)) return;
  std::string words(rules.choices);
  for (std::size_t bar = words.find('|'); bar != std::string::npos; bar = words.find('|'))
    words.replace(bar, 1, ", ");
  problems.add(name, "= " + toml_text(value) + ": expected one of " + words);
}

void check_recipe(const Recipe& recipe, RecipeProblems& problems) {
  if (recipe.model.path.empty()) {
    problems.add("model.path",
                 "is not set; name a Hugging Face model directory, or org/name in the local cache");
  }
  check_data("data.transfer", recipe.data_transfer, problems);
  // What the others took from there is said of it alone.
  const auto has_own_sources = [&](const DataSection& data) {
    return data.sources != recipe.data_transfer.sources;
  };
  if (recipe.finetune.enabled && has_own_sources(recipe.data_finetune))
    check_data("data.finetune", recipe.data_finetune, problems);
  if (has_own_sources(recipe.data_evaluate))
    check_data("data.evaluate", recipe.data_evaluate, problems);
  check_apart(recipe, written_path, problems);
  check_texts(recipe, problems);
  try {
    recipe.attention.validate(0);
  } catch (const Error& error) {
    const std::string text = error.what();
    problems.add_sentence(text.substr(0, text.find(' ')), text);
  }
  check_length("data.transfer", recipe.data_transfer, recipe.attention, problems);
  check_that_something_trains(recipe, problems);
  if (recipe.finetune.enabled && recipe.data_finetune.seq_len != recipe.data_transfer.seq_len)
    check_length("data.finetune", recipe.data_finetune, recipe.attention, problems);
  check_plan(recipe.plan, problems);
  check_transfer(recipe, problems);
  if (recipe.finetune.enabled) check_finetune(recipe, problems);
  check_workers(recipe.workers, problems);
}

void check_variants(const Recipe& recipe, RecipeProblems& problems) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < recipe.variants.size(); ++i) {
    const Variant& variant = recipe.variants[i];
    problems.within(variant_field(i) + ".");
    const bool is_word = std::ranges::all_of(
        variant.name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; });
    if (variant.name.empty() || variant.name.size() > kMaxVariantName || !is_word) {
      problems.add("name",
                   "= " + toml_text(variant.name) + ": expected 1 to " +
                       std::to_string(kMaxVariantName) +
                       " letters, digits, - and _, which a folder is called by");
    }
    if (variant.name == kOwnStudent) {
      problems.add("name",
                   "= " + toml_text(variant.name) +
                       ": so the recipe's own student is called; take another name");
    }
    if (!names.insert(variant.name).second)
      problems.add("name", "= " + toml_text(variant.name) + ": two variants have this name");
    if (recipe.transfer.max_steps == 0)
      problems.add("name",
                   "is of a variant, and transfer.max_steps = 0 trains none; set 1 or more");
    check_recipe(recipe.of(variant), problems);
  }
  problems.within("");
  if (const int students = recipe.num_students(); students > kMaxStudents) {
    problems.add("variants",
                 "and the recipe's own are " + std::to_string(students) +
                     " students, seeds counted; at most " + std::to_string(kMaxStudents) +
                     " are trained in a run");
  }
}

Recipe Recipe::of(const Variant& variant, int seed_offset) const {
  Recipe own = *this;
  own.variants.clear();
  own.attention = variant.attention;
  own.transfer = variant.transfer;
  own.seed += static_cast<std::uint64_t>(seed_offset);
  return own;
}

int Recipe::num_students() const {
  int students = 1;
  for (const Variant& variant : variants) students += variant.seeds;
  return students;
}

void Recipe::validate(const std::string& name) const {
  RecipeProblems problems(name);
  RangeChecker ranges(problems);
  visit_recipe(*this, ranges);
  problems.throw_if_any();  // the rules between fields divide by values that must be in range
  check_recipe(*this, problems);
  problems.throw_if_any();
  check_variants(*this, problems);
  problems.throw_if_any();
}

const DataSection& Recipe::data(DataStage stage) const {
  switch (stage) {
    case DataStage::kTransfer:
      return data_transfer;
    case DataStage::kFinetune:
      return data_finetune;
    case DataStage::kEvaluate:
      return data_evaluate;
  }
  return data_transfer;
}

std::vector<TokensOf> Recipe::tokens_files() const {
  std::vector<TokensOf> files{DataStage::kTransfer};
  if (finetune.enabled) files.emplace_back(DataStage::kFinetune);
  if (!data_evaluate.sources.empty()) files.emplace_back(DataStage::kEvaluate);
  for (const NamedText& text : texts) files.emplace_back(DataStage::kEvaluate, text.name);
  return files;
}

Recipe::Sources Recipe::sources(const TokensOf& of) const {
  if (of.text.empty())
    return {std::string("data.") + to_string(of.stage) + ".sources", data(of.stage).sources};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].name == of.text) return {text_field(i), {texts[i].source}};
  }
  throw Error(ErrorKind::kInternal, "data.evaluate.texts has no '" + of.text + "'");
}

}  // namespace hedgerow::storage
