// adapter_config.json as PEFT reads it: which projections of which layers carry LoRA. A setting
// that PEFT would compute otherwise than we do is refused by its key, and so is an unknown key.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "storage/model/model_config.hpp"

namespace hedgerow::worker {

struct PeftConfig {
  int rank = 8;
  double alpha = 16.0;
  // By layer, a subset of storage::module_names() in that order.
  std::vector<std::vector<std::string>> targets;
};

// target_modules may be names, suffixes or full names in a list, a regular expression, or
// "all-linear". Throws kUsage naming the key, or the target that is no projection of a decoder
// layer; kCorrupt for what is no adapter_config.json.
[[nodiscard]] PeftConfig read_peft_config(const std::filesystem::path& path,
                                          const storage::ModelConfig& model);

}  // namespace hedgerow::worker
