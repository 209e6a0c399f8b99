// A student on disk: the teacher's directory by reference, hedgerow.json and
// feature_maps.safetensors (worker/README.md "Student"). Read by finetune, generate and evaluate;
// assembled by the coordinator.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/hybrid_attention.hpp"
#include "storage/model/attention_spec.hpp"
#include "storage/model/weight_hashes.hpp"
#include "worker/model/layer/rotary.hpp"

namespace hedgerow::worker {

struct Student {
  storage::AttentionSpec attention;
  kernels::HybridOptions options;
  // By layer; nullopt: the layer keeps its softmax attention. Without tensors: another rank has it.
  std::vector<std::optional<kernels::HybridParameters>> layers{};
  // Hashes of the teacher that it was trained on; empty: it was assembled before they were kept.
  storage::WeightHashes teacher_weights{};
  std::string name{};  // of its description, for messages

  // For LoadHooks::check_hash. Throws kUsage naming the layer.
  void require_teacher(const storage::ModelDirectory& model,
                       int layer_idx,
                       const storage::Hash128& hash) const {
    storage::require_weights(teacher_weights, name, model, layer_idx, hash);
  }
};

// The maps lie on `device`, those of the layers that `has` names alone, if it is given. Strict:
// exactly the tensors that the specification and softmax_layers demand, with their shapes. Throws
// kUsage if the student was made from another teacher (fingerprint), kCorrupt naming the file and
// the first missing, surplus or misshaped tensor, kNotFound.
[[nodiscard]] Student load_student(const std::filesystem::path& directory,
                                   const storage::ModelDirectory& teacher,
                                   const at::Device& device,
                                   const std::function<bool(int layer_idx)>& has = {});

// The control as a student, for programs that generate: each layer but `softmax_layers` attends to
// `attention`'s window and sinks alone, its linear branch off (linear_branch.hpp), without a cache.
// Maps are the smallest ones that every backend takes, on `device`. Throws kUsage where there is no
// window.
[[nodiscard]] Student untrained_student(const storage::AttentionSpec& attention,
                                        const std::set<int>& softmax_layers,
                                        const storage::ModelConfig& model,
                                        const at::Device& device);

// Attends with a cache of so many recalled keys in place of the student's own, which
// kOwnRecallCache leaves. Throws kUsage naming attention.recall_cache for a number that its window
// or map does not take.
inline constexpr int kOwnRecallCache = -1;
inline constexpr const char* kRecallCacheHelp =
    "Keys a kv head that stay exact behind the window, in place of the student's own; -1: those";
void set_recall_cache(Student& student, int recall_cache);

// The attention of a student's layer, without autograd: hybrid, or softmax where it has no maps.
[[nodiscard]] at::Tensor student_attention(
    const Qkv& heads,
    const std::optional<kernels::HybridParameters>& parameters,
    const kernels::HybridOptions& options);

// Whether a layer computes softmax attention: the teacher's (nullptr) all do.
[[nodiscard]] bool has_softmax(const Student* student);

}  // namespace hedgerow::worker
