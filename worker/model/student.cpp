#include "worker/model/student.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/softmax_attention.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/tensors/safetensors.hpp"
#include "worker/model/linear_branch.hpp"
#include "worker/model/tensor_bytes.hpp"
#include "worker/model/trained_parts.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;
namespace fs = std::filesystem;

struct Description {
  storage::AttentionSpec attention;
  std::set<int> softmax_layers;
  storage::WeightHashes teacher_weights;
};

Description read_description(const fs::path& path, const storage::ModelDirectory& teacher) {
  Description description;
  try {
    const auto json = nlohmann::json::parse(storage::read_text(path, 1U << 24));
    if (const auto format = json.at("format").get<std::string>(); format != "student/1") {
      throw Error(
          ErrorKind::kUsage,
          path.string() + ": format '" + format + "' is not student/1; use a newer hedgerow");
    }
    const auto made_from = json.at("teacher").at("fingerprint").get<std::string>();
    if (made_from != teacher.fingerprint()) {
      throw Error(ErrorKind::kUsage,
                  path.string() + ": the student was made from a teacher with fingerprint " +
                      made_from + ", but " + teacher.path().string() + " has " +
                      teacher.fingerprint() + "; name the right model");
    }
    json.at("attention").get_to(description.attention);
    json.at("softmax_layers").get_to(description.softmax_layers);
    description.teacher_weights = storage::weight_hashes_from_json(json.at("teacher"));
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kCorrupt,
                path.string() + ": not a student description: " + error.what());
  }
  try {
    description.attention.validate(teacher.config().head_dim);
  } catch (const Error& error) {
    throw Error(error.kind(), path.string() + ": " + error.what());
  }
  return description;
}

// Takes tensors by name and counts them, so that surplus ones are found at the end.
class StrictReader {
 public:
  StrictReader(const fs::path& path, const at::Device& device)
      : path_(path), file_(path), device_(device) {}

  // `setting`: what the shape comes of, for the message. Undefined if it is only checked.
  at::Tensor take(const std::string& name,
                  const std::vector<std::int64_t>& shape,
                  bool is_held,
                  const std::string& setting = "") {
    const auto found = file_.tensors().find(name);
    if (found == file_.tensors().end()) fail(name + " is missing");
    if (found->second.shape != shape) {
      fail(name + ": expected " + text(shape) + setting + ", found " + text(found->second.shape));
    }
    taken_.insert(name);
    if (!is_held) return {};
    return to_tensor(found->second).to(device_, at::kFloat);
  }

  void finish() const {
    for (const auto& [name, view] : file_.tensors()) {
      if (!taken_.contains(name)) fail(name + " is surplus");
    }
  }

 private:
  static std::string text(const std::vector<std::int64_t>& shape) {
    std::string list = "[";
    for (const auto size : shape) list += (list.size() > 1 ? ", " : "") + std::to_string(size);
    return list + "]";
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::kCorrupt,
                path_.string() + ": tensor " + what + "; assemble the student again");
  }

  fs::path path_;
  storage::SafetensorsFile file_;
  at::Device device_;
  std::set<std::string> taken_;
};

}  // namespace

Student untrained_student(const storage::AttentionSpec& attention,
                          const std::set<int>& softmax_layers,
                          const storage::ModelConfig& model,
                          const at::Device& device) {
  if (attention.window == kernels::WindowLayout::kNone) {
    throw Error(ErrorKind::kUsage,
                "attention.window = \"none\": without a window there is no untrained control");
  }
  Student student;
  student.attention = attention;
  storage::AttentionSpec& spec = student.attention;
  spec.feature_map = kernels::FeatureMapKind::kHedgehogSoftmax;
  spec.negation = true;
  spec.bias = true;
  spec.feature_dim = 64;
  spec.key_maps = storage::KeyMaps::kKvHead;
  spec.recall_cache = 0;
  spec.validate(model.head_dim);
  student.options = spec;
  const std::int64_t heads = model.num_attention_heads, columns = spec.projected_dim();
  const std::int64_t key_maps = spec.num_key_maps(heads, model.num_key_value_heads);
  kernels::HybridParameters off;
  off.q = {at::zeros({heads, model.head_dim, columns}), at::zeros({heads, columns})};
  off.k = {at::zeros({key_maps, model.head_dim, columns}), at::zeros({key_maps, columns})};
  off.window_factors = at::zeros({heads});
  if (!switch_off_linear_branch(off, student.options))
    throw Error(ErrorKind::kInternal, "the control's feature map cannot be switched off");
  for (const TrainedPart& part : parts_of(off, 0)) *part.value = part.value->to(device);
  for (int layer = 0; layer < model.num_hidden_layers; ++layer) {
    if (softmax_layers.contains(layer)) {
      student.layers.emplace_back(std::nullopt);
    } else {
      student.layers.emplace_back(off);
    }
  }
  student.name = "the untrained window of " + std::to_string(spec.window_size) + " tokens";
  return student;
}

void set_recall_cache(Student& student, int recall_cache) {
  if (recall_cache == kOwnRecallCache) return;
  student.attention.recall_cache = recall_cache;
  student.attention.validate(0);
  student.options = student.attention;
}

Student load_student(const fs::path& directory,
                     const storage::ModelDirectory& teacher,
                     const at::Device& device,
                     const std::function<bool(int layer_idx)>& has) {
  const auto description = read_description(directory / "hedgerow.json", teacher);
  const auto& spec = description.attention;
  const auto& config = teacher.config();
  const std::int64_t heads = config.num_attention_heads;
  Student student{.attention = spec,
                  .options = spec,
                  .layers = {},
                  .teacher_weights = description.teacher_weights,
                  .name = "the student " + directory.string()};
  StrictReader reader(directory / "feature_maps.safetensors", device);
  const auto map = [&](const std::string& prefix,
                       std::int64_t num_maps,
                       bool is_held,
                       const std::string& setting) {
    kernels::FeatureMapWeights weights;
    if (spec.has_projection()) {
      weights.layer = reader.take(prefix + ".mlp.layer",
                                  {num_maps, config.head_dim, spec.projected_dim()},
                                  is_held,
                                  setting);
    }
    if (spec.bias)
      weights.bias =
          reader.take(prefix + ".mlp.bias", {num_maps, spec.projected_dim()}, is_held, setting);
    return weights;
  };
  const std::int64_t key_maps = spec.num_key_maps(heads, config.num_key_value_heads);
  const std::string setting =
      " with attention.key_maps = " + std::string(storage::to_string(spec.key_maps));
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (description.softmax_layers.contains(layer)) {
      student.layers.emplace_back(std::nullopt);
      continue;
    }
    const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
    const bool is_held = !has || has(layer);
    kernels::HybridParameters parameters{map(prefix + "feature_map_q", heads, is_held, ""),
                                         map(prefix + "feature_map_k", key_maps, is_held, setting),
                                         {}};
    if (spec.window != storage::WindowLayout::kNone) {
      const at::Tensor factors = reader.take(prefix + "window_factors", {1, heads, 1, 1}, is_held);
      if (is_held) parameters.window_factors = factors.reshape({heads});
    }
    student.layers.emplace_back(std::move(parameters));
  }
  reader.finish();
  return student;
}

at::Tensor student_attention(const Qkv& heads,
                             const std::optional<kernels::HybridParameters>& parameters,
                             const kernels::HybridOptions& options) {
  return parameters ? kernels::hybrid_attention(heads.q, heads.k, heads.v, *parameters, options)
                    : kernels::softmax_attention(heads.q, heads.k, heads.v);
}

bool has_softmax(const Student* student) {
  if (student == nullptr) return true;
  return std::ranges::any_of(student->layers, [](const auto& layer) { return !layer.has_value(); });
}

}  // namespace hedgerow::worker
