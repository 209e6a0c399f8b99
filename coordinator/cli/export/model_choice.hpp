// Which model `generate`, `evaluate` and `export` mean: the best that a run has come to, one of its
// stages by name, or directories given one by one. And in which precision it computes, so that the
// three give the same tokens: worker/README.md "Precision of a subject".
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cli/command.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {

struct ModelOptions {
  std::string run, subject, model, student, lora;
  std::string device;                 // empty: the run's
  bool takes_teacher = true;          // false: only a student will do
  std::optional<int> recall_cache{};  // in place of the student's attention.recall_cache
};

// --run with --subject, or --model with --student and --lora.
void add_model_options(CLI::App& app, ModelOptions& options);

// --device, for commands that compute.
void add_device_option(CLI::App& app, ModelOptions& options);

struct ModelChoice {
  std::string model;                    // the teacher: a directory or org/name
  std::string run;                      // the run directory that it comes from; empty: none
  std::filesystem::path student, lora;  // empty: without
  std::string device = "auto";          // of ModelOptions, else of the run
  std::string compute_dtype = "auto";  // of the run or the student: "bf16", "fp32"; auto: none said
  std::optional<int> recall_cache{};   // of ModelOptions

  [[nodiscard]] std::string subject() const;  // "teacher", "transfer", "lora"
  // --model, --student, --adapter and --compute-dtype as hedgerow-worker takes them.
  [[nodiscard]] std::vector<std::string> worker_arguments() const;
  // The student without LoRA, and what both were made from.
  [[nodiscard]] ModelChoice without_lora() const;
  [[nodiscard]] ModelChoice teacher() const;
};

// For an export, whose model card states them: the results of a run's evaluations have the bytes
// that the journal recorded. Throws kCorrupt, kNotFound, naming the file.
void verify_evaluations(const std::string& run);

// The tokens file that a run evaluates, those of its texts beside it, if they are those that it
// began with. Throws kUsage where one is missing, kCorrupt.
[[nodiscard]] std::string evaluated_tokens(const std::string& run, const storage::Recipe& recipe);

// Neither run nor model given: the run in the current directory, which options.run then says.
// Throws kUsage for options that contradict each other, or a stage that the run has not come to.
[[nodiscard]] ModelChoice choose_model(ModelOptions& options);

}  // namespace hedgerow::coordinator::cli
