// The recipe: one TOML file per job, one plain struct per section, each handed to its one consumer by const reference.
// Reading is strict: an unknown key, a wrong type or a value out of range is an error that names the key and the line.
// `hedgerow run` writes the resolved recipe (defaults filled in, versions) into the run directory; a resume with a
// changed recipe is refused unless the changed field is safe to change.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "storage/attention_spec.hpp"
#include "storage/dtype.hpp"
#include "storage/run_layout.hpp"

namespace hedgerow::storage {

struct ModelSection {
  std::string path;  // a Hugging Face model directory, or org/name in the local Hugging Face cache
};

// One text source. How Python's tokenize step reads it is deploy/huggingface/README.md's.
struct DataSource {
  std::string path;             // file; or the name of a tokens file (*.h5) that is used as it is
  std::string format = "text";  // text | jsonl | alpaca | records | chat | tokens
  std::string template_;        // jsonl: format string, as "{question}\n{answer}"; TOML key `template`
  std::string label_mask = "all";  // all | answer: which positions count in the finetune loss
};

// [data.transfer], [data.finetune], [data.evaluate]
struct DataSection {
  std::vector<DataSource> sources;
  int seq_len = 1024;               // tokens; multiple of nothing
  int validation_sequences = 8;     // the last ones, split off before packing
  int max_sequences = 0;            // 0: all; more are never tokenized nor captured
  bool add_bos = false;
  int eos_token_id = -1;            // appended after each document; -1: the model's own; -2: none
};

struct PlanSection {
  int layers_per_block = 5;         // k: a deployment choice, never changes the result
  int sequences_per_forward = 4;    // the canonical forward's rows; memory grows with it
  int shard_mib = 256;              // larger: fewer files, more redone work after a loss
  std::string compute_dtype = "auto";  // auto | bf16 | fp32
  std::string shard_dtype = "bf16";    // bf16 | fp16 | fp32: the residual stream is rounded to it after every layer
  std::string keep_boundaries = "all"; // none | last | every:N | all
  std::string device = "auto";         // auto | cpu | cuda
};

struct TransferSection {
  double learning_rate = 1e-2;
  int max_steps = 60;               // optimizer steps a layer
  int sequences_per_step = 4;       // a multiple of plan.sequences_per_forward (accumulation is the ratio)
  double mse_factor = 1000.0;
  double xent_factor = 0.0;
  double weight_decay = 0.0;
  double gradient_clip = 1.0;       // of each layer alone; 0: none
  bool shuffle = false;             // by windows of the sequence index from (seed, epoch)
  int validate_every = 10;          // optimizer steps
  int validation_sequences = 4;     // of the validation split, for MSE
  std::string schedule = "constant";  // constant | plateau
  double plateau_factor = 0.1;
  int plateau_patience = 10;        // validations
  double min_learning_rate = 1e-5;
  int early_stop_patience = 0;      // validations without improvement; 0: never
  int checkpoint_every = 10;        // optimizer steps: at most this much work is lost to a SIGKILL
  int retries_with_new_seed = 0;    // when a block ends badly
  std::vector<int> softmax_layers;  // kept as they are
};

struct FinetuneSection {
  bool enabled = true;
  int rank = 8;
  double alpha = 16.0;
  std::vector<std::string> target_modules = {"q_proj", "k_proj", "v_proj", "o_proj"};
  double learning_rate = 1e-4;
  double weight_decay = 0.0;
  double gradient_clip = 1.0;
  int max_steps = 40;
  int sequences_per_step = 4;       // the global batch: a power of two micro-batches
  int sequences_per_micro_batch = 1;
  int checkpoint_every = 10;        // optimizer steps
  int validate_every = 20;          // optimizer steps; 0: only at the end
  int ranks = 2;                    // data ranks launched locally; must divide the micro-batches of a step
};

struct EvaluateSection {
  int max_sequences = 0;            // 0: all of the evaluate split
  std::vector<std::string> prompts;  // a few generated sentences at the end of a run
  int max_new_tokens = 40;
};

struct WorkersSection {
  int local = 2;                    // processes that `hedgerow run` starts on this machine
  int threads = 0;                  // per worker; 0: cores / local. Part of what byte-equality is promised for
  int orphan_timeout_s = 600;
  int lease_s = 30;
  std::string bind = "127.0.0.1";
};

struct Recipe {
  std::uint64_t seed = 0;
  ModelSection model;
  DataSection data_transfer, data_finetune, data_evaluate;
  AttentionSpec attention;
  PlanSection plan;
  TransferSection transfer;
  FinetuneSection finetune;
  EvaluateSection evaluate;
  WorkersSection workers;

  // Throws kUsage: "recipe.toml:12: transfer.learning_rat is not a known key; did you mean transfer.learning_rate?"
  static Recipe parse(const std::string& toml, const std::string& name);
  static Recipe load(const std::filesystem::path& path);
  void validate(const std::string& name) const;  // ranges and cross-field rules; parse() calls it

  // Every field, in the order above, with comments; parse(to_toml()) == *this.
  [[nodiscard]] std::string to_toml() const;
  [[nodiscard]] const DataSection& data(DataStage stage) const;
};

// The dotted names of fields whose values differ, split by whether a resume may change them
// (workers.*, finetune.max_steps upward, evaluate.*, plan.keep_boundaries are safe).
struct RecipeDifference {
  std::vector<std::string> safe;
  std::vector<std::string> unsafe;  // "transfer.learning_rate: 0.01 -> 0.02"
};
[[nodiscard]] RecipeDifference difference(const Recipe& before, const Recipe& after);

}  // namespace hedgerow::storage
