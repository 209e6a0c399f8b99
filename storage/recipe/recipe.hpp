// The recipe: one TOML file per job, one plain struct per section, each handed to its one consumer
// by const reference. Reading is strict: an unknown key, a wrong type or a value out of range is an
// error that names the key and the line. `hedgerow run` writes the resolved recipe (defaults filled
// in, versions) into the run directory and records it in the journal; a resume with a changed
// recipe is refused unless the changed field is safe to change.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "storage/files/run_layout.hpp"
#include "storage/model/attention_spec.hpp"
#include "storage/recipe/recipe_sections.hpp"

namespace hedgerow::storage {

// What a recipe that leaves them out means by workers.local and finetune.ranks: the machine that
// will compute decides (coordinator/cli/run/gpu.hpp).
struct ProcessCounts {
  int workers = WorkersSection{}.local;
  int ranks = FinetuneSection{}.ranks;
  bool operator==(const ProcessCounts&) const = default;
};

// Another attention, or another way to train it, tried in the run's own transfer: it is trained on
// the sequences that the run visits, beside the recipe's own student and as often as it has seeds
// (the recipe's, that + 1, ..., of which the maps start), and is assembled and evaluated as that
// one is. The last stage is of the recipe's own student alone.
struct Variant {
  std::string name{};
  int seeds = 1;
  AttentionSpec attention{};   // the recipe's, but for what [[variants]] names
  TransferSection transfer{};  // likewise; the steps and sequences are the run's
  bool operator==(const Variant&) const = default;
};

struct Recipe {
  std::uint64_t seed = 0;
  ModelSection model;
  DataSection data_transfer, data_finetune, data_evaluate;
  std::vector<NamedText> texts;  // data.evaluate.texts
  AttentionSpec attention;
  PlanSection plan;
  TransferSection transfer;
  FinetuneSection finetune;
  EvaluateSection evaluate;
  WorkersSection workers;
  std::vector<Variant> variants;
  MadeBySection made_by;

  bool operator==(const Recipe&) const = default;

  // Keys that [data.finetune] or [data.evaluate] leave out are those of [data.transfer]; other
  // absent keys keep their defaults, workers.local and finetune.ranks those given. Where [made_by]
  // says that a build resolved this text, keys of [attention] that it lacks came later and mean
  // what that build did: no sinks, and a key map a query head. Throws kUsage, one line a problem,
  // each with its place and key: "recipe.toml:12: transfer.learning_rat is not a known key; did you
  // mean transfer.learning_rate?"
  static Recipe parse(const std::string& toml,
                      const std::string& name,
                      const ProcessCounts& left_out = {});
  // parse() of a file. "~/" stands for the home directory; relative paths start from the recipe's
  // folder and become absolute. A model path of the form org/name is the Hugging Face cache's
  // unless that folder holds such a directory.
  static Recipe load(const std::filesystem::path& path, const ProcessCounts& left_out = {});
  // load() of a run's own run.toml. Throws kCorrupt too: its text does not have the hash in its
  // first line, so it was damaged or edited. Without such a line (an older build's) it is taken as
  // it is.
  static Recipe load_of_run(const std::filesystem::path& path);
  void validate(const std::string& name) const;  // ranges and cross-field rules; parse() calls it

  // The recipe of a run of its own that comes to the variant's student: its maps have the same
  // bytes with an offset of 0 .. variant.seeds - 1 on the seed (where transfer.shuffle, which goes
  // by the seed too, is false).
  [[nodiscard]] Recipe of(const Variant& variant, int seed_offset = 0) const;
  // A student of a variant: "name.s0", as its folder is called.
  [[nodiscard]] static std::string student_name(const Variant& variant, int seed) {
    return variant.name + ".s" + std::to_string(seed);
  }
  [[nodiscard]] static std::string variant_of(const std::string& student_name) {
    return student_name.substr(0, student_name.rfind(".s"));
  }
  // How many students the transfer trains: the recipe's own and those of the variants.
  [[nodiscard]] int num_students() const;
  // Every field, in the order above, with comments; parse(to_toml()) == *this.
  [[nodiscard]] std::string to_toml() const;
  // The same as run.toml has it: below a first line with the XXH3-128 of the rest, by which a
  // reader without the journal knows a damaged one. Throws kUsage if it is too long for the
  // journal.
  [[nodiscard]] std::string to_run_toml() const;
  [[nodiscard]] const DataSection& data(DataStage stage) const;
  // The tokens files that the job needs: transfer's, finetune's if it is enabled, evaluate's if it
  // has sources, then one for each text.
  [[nodiscard]] std::vector<TokensOf> tokens_files() const;
  // What such a file is made from, and the field that says so, "data.evaluate.texts[0]".
  struct Sources {
    std::string field;
    std::vector<DataSource> list;
  };
  [[nodiscard]] Sources sources(const TokensOf& of) const;
  // Whether the split of [data.evaluate] is the end of a text that the student learns from. Follows
  // symbolic links.
  [[nodiscard]] bool validates_in_domain() const;
};

// What stands before the names of a student's tensors in a block's artifact; the recipe's own is
// "".
[[nodiscard]] inline std::string tensors_of_student(const std::string& name) {
  return name.empty() ? "" : "variants." + name + ".";
}

// The dotted names of fields whose values differ, split by whether a resume may change them
// (workers.*, made_by.*, finetune.max_steps upward unless the schedule spans it, finetune.threads,
// finetune.exchange, finetune.launch, evaluate.*, plan.keep_boundaries are safe).
struct RecipeDifference {
  std::vector<std::string> safe;
  std::vector<std::string> unsafe;  // "transfer.learning_rate: 0.01 -> 0.02"
};
[[nodiscard]] RecipeDifference difference(const Recipe& before, const Recipe& after);

}  // namespace hedgerow::storage
