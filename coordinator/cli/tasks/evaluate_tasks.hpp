// `hedgerow evaluate --tasks`: lm-eval's tasks and our own of retrieval over all subjects of a run,
// by deploy/huggingface/tasks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/cli/command.hpp"
#include "coordinator/cli/export/model_choice.hpp"

namespace hedgerow::coordinator::cli {

struct TaskOptions {
  std::vector<std::string> tasks, subjects;
  std::vector<int> lengths;
  std::string data;
  int limit = 0;   // 0: all questions of a task, 20 of a generated one
  int shots = -1;  // -1: the task's own
  int new_tokens = 2048;
  std::int64_t seed = 1234;
  bool chat = false;
  bool prints_subjects = false;
};

void add_task_options(CLI::App& app, TaskOptions& options);

// Prints a table, and records it in a run.
storage::ExitCode evaluate_tasks(ModelOptions& model,
                                 const TaskOptions& options,
                                 Terminal& terminal);

}  // namespace hedgerow::coordinator::cli
