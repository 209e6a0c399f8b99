// The sections of a recipe: one plain struct each, handed to its one consumer by const reference.
// Type and default stand at the field and nowhere else; TOML keys are the field names. What a field
// means, its range and what a larger value costs are in recipe_fields.hpp; rules between fields in
// Recipe::validate().
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hedgerow::storage {

struct ModelSection {
  std::string path{};
  bool operator==(const ModelSection&) const = default;
};

inline constexpr const char* kTextTemplate = "{text}";

// One text source. How it is read is told in deploy/huggingface/README.md.
struct DataSource {
  std::string path{};
  std::string format = "text";
  std::string template_{};
  std::string label_mask = "all";
  double weight = 0;
  int shots = 0;
  // Whether its records are made (deploy/huggingface/generated_records.py), as the file at path
  // says.
  [[nodiscard]] bool is_generated() const;
  bool operator==(const DataSource&) const = default;
};

// Whether BOS begins each document: as the model's tokenizer has it (TOML "auto"), or whatever that
// does (true, false).
enum class AddBos : std::uint8_t { kAuto, kYes, kNo };

// [data.transfer], [data.finetune], [data.evaluate]. Evaluation reads the validation part of its
// split.
struct DataSection {
  std::vector<DataSource> sources{};
  int seq_len = 1024;
  int validation_sequences = 8;
  std::string split = "documents";
  int max_sequences = 0;
  AddBos add_bos = AddBos::kAuto;
  int eos_token_id = -1;
  bool operator==(const DataSection&) const = default;
};

// One entry of data.evaluate.texts: read whole, packed at that section's seq_len, evaluated in the
// same pass as the section's own split, which goes by the name kValidation.
struct NamedText {
  std::string name{};
  DataSource source{};
  bool in_domain = false;
  bool operator==(const NamedText&) const = default;
};
inline constexpr const char* kValidation = "validation";
inline constexpr std::size_t kMaxTexts = 16;

// What the recipe's own student is called beside those of its variants.
inline constexpr const char* kOwnStudent = "recipe";
inline constexpr std::size_t kMaxVariantName = 40;
inline constexpr int kMaxStudents = 50;  // a task's result, which tells of all, is one message

struct PlanSection {
  int layers_per_block = 5;
  int sequences_per_forward = 4;
  int shard_mib = 256;
  std::string compute_dtype = "auto";
  std::string shard_dtype = "bf16";
  std::string keep_boundaries = "all";
  std::string device = "auto";
  bool operator==(const PlanSection&) const = default;

  // Whether the workers still have to decide what results or files depend on.
  [[nodiscard]] bool is_open() const {
    return compute_dtype == "auto" || layers_per_block == 0 || keep_boundaries == "auto";
  }
};

// The layers that keep their softmax attention: in growing order; or "all" or "uniform:N", which
// resolving a recipe turns into all that its model has, or N of them evenly spread. With all of
// them only the last stage's LoRA is trained: the reference beside a student.
struct SoftmaxLayers {
  static constexpr std::string_view kUniform = "uniform:";
  std::vector<int> layers{};
  bool all = false;
  int uniform = 0;  // N; 0: the others say
  bool operator==(const SoftmaxLayers&) const = default;
};

struct TransferSection {
  double learning_rate = 1e-2;
  int max_steps = 60;
  int sequences_per_step = 4;
  double mse_factor = 1000.0;
  double xent_factor = 0.0;
  double weight_decay = 0.0;
  double gradient_clip = 1.0;
  bool shuffle = false;
  int validate_every = 10;
  int validation_sequences = 4;
  std::string schedule = "constant";
  double plateau_factor = 0.1;
  int plateau_patience = 10;
  double min_learning_rate = 1e-5;
  int early_stop_patience = 0;
  int checkpoint_every = 10;
  int retries_with_new_seed = 0;
  int redraw_every = 0;
  bool tied_maps = false;
  SoftmaxLayers softmax_layers{};
  bool operator==(const TransferSection&) const = default;
};

struct FinetuneSection {
  bool enabled = true;
  std::string objective = "ce";
  double ce_weight = 1.0;
  double kl_weight = 1.0;
  int top_k = 256;
  bool repeat_captured = false;
  int rank = 8;
  double alpha = 16.0;
  std::vector<std::string> target_modules = {"q_proj", "k_proj", "v_proj", "o_proj"};
  std::vector<std::string> trainable = {"lora"};
  double learning_rate = 1e-4;
  double weight_decay = 0.0;
  double gradient_clip = 1.0;
  int max_steps = 40;
  int sequences_per_step = 4;
  int sequences_per_micro_batch = 1;
  int checkpoint_every = 10;
  int validate_every = 20;
  std::string schedule = "constant";
  int warmup_steps = 0;
  double plateau_factor = 0.1;
  int plateau_patience = 10;
  double min_learning_rate = 1e-5;
  int early_stop_patience = 0;
  int ranks = 2;
  std::string mesh = "auto";
  int threads = 0;
  std::string exchange = "auto";
  std::string launch = "here";
  [[nodiscard]] bool trains(std::string_view part) const {
    return std::find(trainable.begin(), trainable.end(), part) != trainable.end();
  }
  bool operator==(const FinetuneSection&) const = default;

  [[nodiscard]] bool learns_from_teacher() const { return objective != "ce"; }
};

struct EvaluateSection {
  int max_sequences = 0;
  std::vector<std::string> prompts{};
  int max_new_tokens = 40;
  bool operator==(const EvaluateSection&) const = default;
};

struct WorkersSection {
  int local = 2;
  int threads = 0;
  int orphan_timeout_s = 600;
  int lease_s = 30;
  int hang_timeout_s = 120;
  int file_patience_s = 90;
  std::string bind = "127.0.0.1";
  std::string advertise{};
  int port = 0;
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
