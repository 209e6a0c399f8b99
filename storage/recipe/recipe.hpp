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

#include "storage/base/run_layout.hpp"
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

// The dotted names of fields whose values differ, split by whether a resume may change them
// (workers.*, made_by.*, finetune.max_steps upward unless the schedule spans it, finetune.threads,
// finetune.exchange, finetune.launch, evaluate.*, plan.keep_boundaries are safe).
struct RecipeDifference {
  std::vector<std::string> safe;
  std::vector<std::string> unsafe;  // "transfer.learning_rate: 0.01 -> 0.02"
};
[[nodiscard]] RecipeDifference difference(const Recipe& before, const Recipe& after);

}  // namespace hedgerow::storage
