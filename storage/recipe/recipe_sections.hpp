// The sections of a recipe: one plain struct each, handed to its one consumer by const reference.
// Defaults stand at the field and nowhere else; TOML keys are the field names. Ranges and the
// comments that a written recipe carries are in recipe_fields.hpp; rules between fields in
// Recipe::validate().
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hedgerow::storage {

struct ModelSection {
  std::string path{};  // a Hugging Face directory, or org/name in the local Hugging Face cache
  bool operator==(const ModelSection&) const = default;
};

inline constexpr const char* kTextTemplate = "{text}";

// One text source. How it is read is told in deploy/huggingface/README.md.
struct DataSource {
  std::string path{};  // a file; format "tokens": a tokens file (*.h5) that is used as it is
  std::string format = "text";     // text | jsonl | alpaca | records | chat | tokens
  std::string template_{};         // jsonl only, as "{question}\n{answer}", kTextTemplate where
                                   // a recipe says none; TOML key `template`
  std::string label_mask = "all";  // all | answer: which positions count in the finetune loss
  bool operator==(const DataSource&) const = default;
};

// Whether BOS begins each document: as the model's tokenizer has it (TOML "auto"), or whatever that
// does (true, false).
enum class AddBos : std::uint8_t { kAuto, kYes, kNo };

// [data.transfer], [data.finetune], [data.evaluate]. Evaluation reads the validation part of its
// split.
struct DataSection {
  std::vector<DataSource> sources{};
  int seq_len = 1024;            // tokens of one sequence
  int validation_sequences = 8;  // at the end of the file, never trained on
  // documents: the last documents become validation before anything is packed, so that no document
  // is in both parts; sequences: the last sequences of the whole packed stream do, as the reference
  // measurements did.
  std::string split = "documents";
  int max_sequences = 0;  // 0: all; more are never tokenized nor captured
  AddBos add_bos = AddBos::kAuto;
  int eos_token_id = -1;  // appended after each document; -1: the model's own; -2: none
  bool operator==(const DataSection&) const = default;
};

// One entry of data.evaluate.texts: read whole, packed at that section's seq_len, evaluated in the
// same pass as the section's own split, which goes by the name kValidation.
struct NamedText {
  std::string name{};  // letters, digits, - and _
  DataSource source{};
  bool in_domain = false;  // resembles what the student learns from; only told beside its figures
  bool operator==(const NamedText&) const = default;
};
inline constexpr const char* kValidation = "validation";
inline constexpr std::size_t kMaxTexts = 16;

struct PlanSection {
  int layers_per_block = 5;             // k: a deployment choice, never changes the result; 0: the
                                        // plan chooses when a run begins
  int sequences_per_forward = 4;        // the canonical forward's rows; memory grows with it
  int shard_mib = 256;                  // larger: fewer files, more redone work after a loss
  std::string compute_dtype = "auto";   // auto | bf16 | fp32
  std::string shard_dtype = "bf16";     // bf16 | fp16 | fp32: the residual stream after every layer
  std::string keep_boundaries = "all";  // none | last | every:N | all | auto
  std::string device = "auto";          // auto | cpu | cuda
  bool operator==(const PlanSection&) const = default;

  // What results or files depend on is still left to whoever will compute.
  [[nodiscard]] bool is_open() const {
    return compute_dtype == "auto" || layers_per_block == 0 || keep_boundaries == "auto";
  }
};

struct TransferSection {
  double learning_rate = 1e-2;
  int max_steps = 60;  // optimizer steps a layer
  int sequences_per_step =
      4;  // a multiple of plan.sequences_per_forward (accumulation is the ratio)
  double mse_factor = 1000.0;
  double xent_factor = 0.0;
  // Share of the linear branch's own error, against softmax over the keys outside its window
  double linear_factor = 0.0;
  double weight_decay = 0.0;
  double gradient_clip = 1.0;         // of each layer alone; 0: none
  bool shuffle = false;               // by windows of the sequence index from (seed, epoch)
  int validate_every = 10;            // optimizer steps
  int validation_sequences = 4;       // of the validation split, for MSE
  std::string schedule = "constant";  // constant | plateau | cosine | linear
  double plateau_factor = 0.1;
  int plateau_patience = 10;  // validations
  double min_learning_rate = 1e-5;
  int early_stop_patience = 0;    // validations without improvement; 0: never
  int checkpoint_every = 10;      // optimizer steps: at most this much work is lost to a SIGKILL
  int retries_with_new_seed = 0;  // when a block ends badly
  // Steps after which positive random features that are not trained are drawn again, so that the
  // window factors do not fit one draw; 0: never. The best draw by validation is kept.
  int redraw_every = 0;
  std::vector<int> softmax_layers{};  // kept as they are
  bool operator==(const TransferSection&) const = default;
};

struct FinetuneSection {
  bool enabled = true;
  // ce: cross-entropy of the text; kl: KL divergence from the teacher's next-token probabilities;
  // mixed: ce_weight times the one plus kl_weight times the other
  std::string objective = "ce";
  double ce_weight = 1.0;
  double kl_weight = 1.0;
  // K: of a position, the K likeliest tokens keep their log-probability, the rest their sum's.
  // A position takes 6 K + 4 bytes of disk.
  int top_k = 256;
  int rank = 8;
  double alpha = 16.0;
  std::vector<std::string> target_modules = {"q_proj", "k_proj", "v_proj", "o_proj"};
  std::vector<std::string> trainable = {"lora"};  // lora | maps | window_factors | norms
  double learning_rate = 1e-4;
  double weight_decay = 0.0;
  double gradient_clip = 1.0;
  int max_steps = 40;
  int sequences_per_step = 4;  // the global batch: a multiple of the next
  int sequences_per_micro_batch = 1;
  int checkpoint_every = 10;  // optimizer steps
  // Optimizer steps; before the first one too; 0: only at the end. The adapter is that of the best
  // validation, the last one where data.finetune.validation_sequences = 0.
  int validate_every = 20;
  std::string schedule = "constant";  // constant | plateau | cosine | linear
  int warmup_steps = 0;               // over which the rate rises linearly
  double plateau_factor = 0.1;
  int plateau_patience = 10;        // validations
  double min_learning_rate = 1e-5;  // of every schedule but constant
  int early_stop_patience = 0;      // validations without improvement; 0: never
  int ranks = 2;                    // processes
  // auto: the plan chooses. "2x4": 2 pipelines of 4 stages, each of which has every micro-batch of
  // its pipeline pass through its layers alone (storage/shape/mesh.hpp); the bytes are the same
  std::string mesh = "auto";
  // Per rank; 0: cores / ranks, elsewhere all. Part of what byte-equality is promised for.
  int threads = 0;
  // auto | mpi | nccl: how gradients go between ranks on GPUs; the bytes are the same
  std::string exchange = "auto";
  // here: the coordinator starts the ranks with mpirun; elsewhere: they come from outside, as a
  // Kubernetes MPIJob or another job's mpirun, and ask for the stage
  std::string launch = "here";
  [[nodiscard]] bool trains(std::string_view part) const {
    return std::find(trainable.begin(), trainable.end(), part) != trainable.end();
  }
  bool operator==(const FinetuneSection&) const = default;

  [[nodiscard]] bool learns_from_teacher() const { return objective != "ce"; }
};

struct EvaluateSection {
  int max_sequences = 0;               // 0: all of the evaluate split
  std::vector<std::string> prompts{};  // of `hedgerow generate --run` without any
  int max_new_tokens = 40;
  bool operator==(const EvaluateSection&) const = default;
};

struct WorkersSection {
  int local = 2;  // processes that `hedgerow run` starts on this machine
  // Per worker; 0: cores / local, elsewhere all. Part of what byte-equality is promised for.
  int threads = 0;
  int orphan_timeout_s = 600;
  int lease_s = 30;
  int hang_timeout_s = 120;  // without progress, although heartbeats come; at least ten steps' time
  int file_patience_s = 90;  // for a committed file that is not to be seen; then it is lost
  std::string bind = "127.0.0.1";  // an address, an interface's name, or 0.0.0.0 or * for all
  std::string advertise{};  // the host that coordinator.json names; empty: what bind says, or the
                            // host's name where bind means all addresses
  int port = 0;             // 0: any; for firewalls and Services, which want to know it
  bool operator==(const WorkersSection&) const = default;
};

// What resolved the recipe: written by `hedgerow run` into run.toml, absent from recipes made by
// hand.
struct MadeBySection {
  std::string version{};
  std::string git_hash{};
  bool operator==(const MadeBySection&) const = default;
};

}  // namespace hedgerow::storage
