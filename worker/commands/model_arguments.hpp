// The model that answer, evaluate, generate and merge compute with: its options in the same words,
// and the student and adapter that they name.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "worker/model/lora.hpp"
#include "worker/model/student.hpp"

namespace CLI {
class App;
}

namespace hedgerow::worker {

struct ModelArguments {
  std::string model, student, adapter;
  std::string device = "auto", compute_dtype = "auto";
  int recall_cache = kOwnRecallCache;
  int threads = 0;  // 0: as many as cores
};

// --model, --student and --adapter.
void add_model_directories(CLI::App& command, ModelArguments& given);

// Those and --recall-cache, --device, --compute-dtype and --threads.
void add_model_options(CLI::App& command, ModelArguments& given);

// --device, after --threads was obeyed.
[[nodiscard]] at::Device begin_computing(const ModelArguments& given);

struct GivenStudent {
  std::optional<Student> student;
  std::optional<LoraAdapter> adapter;
};

// What the arguments name, what the adapter trained of the student in its place. The layers that
// `has` names alone, if it is given. Throws kUsage where a directory is absent or damaged, or of
// another model.
[[nodiscard]] GivenStudent load_given(const ModelArguments& given,
                                      const storage::ModelDirectory& model,
                                      const at::Device& device,
                                      const std::function<bool(int layer_idx)>& has = {});

}  // namespace hedgerow::worker
