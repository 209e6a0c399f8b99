// What `export` writes: a complete Hugging Face directory that transformers loads with
// trust_remote_code, or the student and its adapter alone (LoLCATs key names, PEFT format).
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "coordinator/cli/export/model_choice.hpp"
#include "coordinator/cli/terminal/terminal.hpp"

namespace hedgerow::coordinator::cli {

struct ExportRequest {
  ModelChoice model;
  std::filesystem::path out;   // created; empty or absent before
  bool links_weights = false;  // symbolic links to the teacher's weight files in place of copies
};

struct ExportSummary {
  int num_tensors = 0;
  std::uint64_t num_bytes = 0;
  bool merged = false;  // LoRA is in the weights
};

// Both throw kUsage, kExhausted (disk), child_error. nullopt: interrupted; what was written is
// removed.
[[nodiscard]] std::optional<ExportSummary> export_model(const ExportRequest& request,
                                                        Terminal& terminal);
[[nodiscard]] std::optional<ExportSummary> export_adapter(const ExportRequest& request);

}  // namespace hedgerow::coordinator::cli
