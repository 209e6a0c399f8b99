// `hedgerow bench generate`: student and teacher by hedgerow-worker, and transformers' generate, by
// deploy/huggingface/tasks/bench_generate.py.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cli/command.hpp"
#include "coordinator/cli/export/model_choice.hpp"

namespace hedgerow::coordinator::cli {

struct GenerateBench {
  ModelOptions model;
  std::vector<int> batches{1, 8}, prompts{128}, new_tokens{128};
  std::string plot;
  bool alone = false;  // without teacher and transformers
};
void add_generate_bench(CLI::App& app, GenerateBench& bench);
// `threads` 0: as many as cores.
storage::ExitCode bench_generate(GenerateBench& bench,
                                 const std::string& device,
                                 int threads,
                                 Terminal& terminal);

}  // namespace hedgerow::coordinator::cli
