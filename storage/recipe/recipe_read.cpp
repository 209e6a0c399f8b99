// Recipes out of TOML. All problems of a file are collected and reported together.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/files/hash.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/recipe_fields.hpp"
#include "storage/recipe/toml_reader.hpp"

namespace hedgerow::storage {

namespace fs = std::filesystem;

// What TomlReader looks for beside a recipe's own types.
namespace {

class RecipeReader : public TomlReader {
 public:
  using TomlReader::TomlReader;

  void sources(std::vector<DataSource>& sources) {
    tables<RecipeReader>(
        "sources", "{ path = \"...\" }", sources, [](DataSource& source, RecipeReader& reader) {
          visit_source(source, reader);
          complete(source);
        });
  }

  void texts(std::vector<NamedText>& texts) {
    const char* const form = "{ name = \"...\", path = \"...\" }";
    tables<RecipeReader>("texts", form, texts, [](NamedText& text, RecipeReader& reader) {
      visit_text(text, reader);
      complete(text.source);
    });
  }

  // Read by VariantsReader, when what they differ from is complete.
  void variants(Recipe&) {}

  template <typename Data>
  void inherit(Data& data, const Data& base) {
    data = base;
  }

 private:
  static void complete(DataSource& source) {
    if (source.format == "jsonl" && source.template_.empty()) source.template_ = kTextTemplate;
  }
};

// One of [[variants]].
class VariantReader : public TomlReader {
 public:
  using TomlReader::TomlReader;

  void section(std::string_view name, std::string_view comment) {
    in_transfer_ = name == "transfer";
    TomlReader::section(name, comment);
  }

  template <typename T>
  void field(std::string_view key, T& value, const FieldRules& rules) {
    const bool is_of_run =
        in_transfer_ && std::ranges::find(kTransferKeysOfRun, key) != kTransferKeysOfRun.end();
    if (!is_of_run) return TomlReader::field(key, value, rules);
    const std::string name = section_ + std::string(key);
    if (take(key, name) != nullptr)
      problems_.add(name,
                    "is the run's: all its students share steps and sequences; set transfer." +
                        std::string(key) + " of the recipe");
  }

 private:
  bool in_transfer_ = false;
};

class VariantsReader : public TomlReader {
 public:
  using TomlReader::TomlReader;

  void read(Recipe& recipe) {
    tables<VariantReader>("variants",
                          "{ name = \"...\", attention.feature_dim = 64 }",
                          recipe.variants,
                          [&](Variant& variant, VariantReader& reader) {
                            variant.attention = recipe.attention;
                            variant.transfer = recipe.transfer;
                            visit_variant(variant, reader);
                          });
  }
};

std::string expand_home(const std::string& path) {
  const char* home = std::getenv("HOME");
  if (!path.starts_with("~/") || home == nullptr) return path;
  return std::string(home) + path.substr(1);
}

// org/name of the Hugging Face cache, and not a folder beside the recipe that is called so. The
// working directory has no say in what a recipe means; a directory of that name there would be
// taken before the cache (ModelDirectory::open), by whichever process happens to stand in it.
bool names_cached_model(const std::string& model, const fs::path& folder, const fs::path& recipe) {
  std::error_code ignored;  // what cannot be looked at is no directory
  if (model.starts_with("~/") || model.starts_with("./") || model.starts_with("../") ||
      !ModelDirectory::is_hub_name(model) || fs::is_directory(folder / model, ignored))
    return false;
  if (!fs::is_directory(model, ignored)) return true;
  throw Error(ErrorKind::kUsage,
              recipe.string() + ": model.path = \"" + model +
                  "\" is a folder of the working directory, but a recipe's paths start from the "
                  "recipe's own folder, " +
                  folder.string() + "; write \"" + fs::absolute(model).string() +
                  "\" for that folder, or go elsewhere to take the model from the Hugging Face "
                  "cache");
}

// What [attention] leaves out and other keys decide. A recipe that names the build that resolved it
// had every key of that build: it has none of a later feature's, and its run goes on without.
void complete_attention(const toml::table& root, AttentionSpec& attention) {
  const bool is_resolved = root.contains("made_by");
  if (!root.at_path("attention.num_sinks"))
    attention.num_sinks = is_resolved ? 0 : attention.default_sinks();
  if (!root.at_path("attention.recall_cache"))
    attention.recall_cache = is_resolved ? 0 : attention.default_recall_cache();
  if (!root.at_path("attention.key_maps"))
    attention.key_maps = is_resolved ? KeyMaps::kQueryHead : attention.default_key_maps();
}

// The same of [finetune]: earlier builds learned from what the transfer had captured, and no more.
void complete_finetune(const toml::table& root, FinetuneSection& finetune) {
  if (!root.at_path("finetune.repeat_captured"))
    finetune.repeat_captured = root.contains("made_by");
}

// A key of earlier builds and the one value of it that this build computes, which their resolved
// recipes say.
struct RetiredKey {
  const char* name;
  double value;
};
constexpr std::array<RetiredKey, 2> kRetiredKeys{
    {{"transfer.linear_factor", 0.0}, {"attention.order", 2.0}}};

void take_retired_keys(const toml::table& root, RecipeReader& reader, RecipeProblems& problems) {
  for (const RetiredKey& key : kRetiredKeys) {
    const auto node = root.at_path(key.name);
    if (!node) continue;
    reader.known(key.name);
    if (node.value<double>() == key.value) continue;
    problems.at_line(key.name, static_cast<int>(node.node()->source().begin.line));
    problems.add(key.name,
                 "is of an earlier build, and this one has only its " +
                     std::to_string(static_cast<int>(key.value)) +
                     "; leave it out, or finish this run with the build that began it");
  }
}

}  // namespace

Recipe Recipe::parse(const std::string& toml,
                     const std::string& name,
                     const ProcessCounts& left_out) {
  const toml::table root = parse_toml(toml, name);
  Recipe recipe;
  recipe.workers.local = left_out.workers;
  recipe.finetune.ranks = left_out.ranks;
  RecipeProblems problems(name);
  RecipeReader reader(root, problems);
  visit_recipe(recipe, reader);
  reader.known("variants");
  take_retired_keys(root, reader, problems);
  reader.report_unknown();
  problems.throw_if_any();
  complete_attention(root, recipe.attention);
  complete_finetune(root, recipe.finetune);
  VariantsReader(root, problems).read(recipe);
  problems.throw_if_any();
  check_recipe(recipe, problems);
  problems.throw_if_any();
  check_variants(recipe, problems);
  problems.throw_if_any();
  return recipe;
}

namespace {

// parse() of a file's text, with its paths absolute.
Recipe placed(const std::string& text, const fs::path& path, const ProcessCounts& left_out = {}) {
  Recipe recipe = Recipe::parse(text, path.string(), left_out);
  const fs::path folder = fs::absolute(path).parent_path();
  const auto absolute = [&](std::string& name) {
    name = (folder / expand_home(name)).lexically_normal().string();
  };
  for (DataSection* data : {&recipe.data_transfer, &recipe.data_finetune, &recipe.data_evaluate}) {
    for (DataSource& source : data->sources) absolute(source.path);
  }
  for (NamedText& named : recipe.texts) absolute(named.source.path);
  if (!names_cached_model(recipe.model.path, folder, path)) absolute(recipe.model.path);
  return recipe;
}

}  // namespace

Recipe Recipe::load(const fs::path& path, const ProcessCounts& left_out) {
  if (!fs::exists(path)) {
    throw Error(ErrorKind::kUsage,
                path.string() +
                    ": no such recipe; 'hedgerow init' writes one, and a run directory "
                    "has its own, run.toml");
  }
  return placed(read_toml(path), path, left_out);
}

Recipe Recipe::load_of_run(const fs::path& path) {
  const std::string text = read_toml(path);
  const std::size_t line = text.find('\n');
  if (text.starts_with(kRunHashLine) && line != std::string::npos) {
    const std::string recorded = text.substr(kRunHashLine.size(), line - kRunHashLine.size());
    const std::string found = hash128(std::as_bytes(std::span(text).subspan(line + 1))).hex();
    if (found != recorded) {
      const std::string run = path.parent_path().string();
      const bool has_begun = fs::exists(RunLayout(run).journal_directory());
      throw Error(ErrorKind::kCorrupt,
                  path.string() + ": hash " + found + " != " + recorded +
                      " in its first line, so it was damaged or edited; " +
                      (has_begun ? "'hedgerow check --run " + run +
                                       "' names the field, and with --repair puts it back, where "
                                       "the journal still has it; else "
                                 : "the run has computed nothing yet: ") +
                      "'hedgerow run --recipe FILE --run " + run + "' writes it again");
    }
  }
  return placed(text, path);
}

}  // namespace hedgerow::storage
