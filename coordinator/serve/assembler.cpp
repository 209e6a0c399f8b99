#include "coordinator/serve/assembler.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "coordinator/dispatch/commit.hpp"
#include "coordinator/dispatch/task_kinds.hpp"
#include "storage/files/file.hpp"
#include "storage/files/hash.hpp"
#include "storage/json/json_fields.hpp"
#include "storage/tensors/safetensors.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;
using storage::Error;
using storage::ErrorKind;
using storage::FileRecord;
using storage::SafetensorsFile;

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

bool stays_softmax(const storage::Recipe& recipe, int layer) {
  const std::vector<int>& layers = recipe.transfer.softmax_layers.layers;
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

// One artifact, opened: its bytes are those that the journal committed, or it throws.
SafetensorsFile open_artifact(const storage::RunLayout& layout,
                              const FileRecord& record,
                              std::uint64_t token) {
  const auto damaged = [&record](const std::string& what) {
    return DamagedArtifact(record.name, "artifact " + record.name + ": " + what);
  };
  if (storage::RunLayout::token_in_name(record.name) != token) {
    throw damaged("stale: the block was last done under fencing token " + std::to_string(token));
  }
  const fs::path path = layout.resolve(record.name);
  if (!fs::exists(path)) throw damaged("the file is missing");
  if (const std::uint64_t size = fs::file_size(path); size != record.size) {
    throw damaged(std::to_string(size) + " bytes, the journal recorded " +
                  std::to_string(record.size));
  }
  if (const storage::Hash128 hash = storage::hash_file(path); hash != record.root_hash) {
    throw damaged("hash " + hash.hex() + " != recorded " + record.root_hash.hex());
  }
  try {
    return SafetensorsFile(path);
  } catch (const Error& error) {
    throw damaged(error.what());
  }
}

// A student that the run makes.
struct Assembled {
  std::string name;  // "": the recipe's own
  storage::AttentionSpec attention;
  std::map<std::string, storage::TensorView> tensors{};
};

std::vector<Assembled> students_of(const storage::Recipe& recipe) {
  std::vector<Assembled> students{{"", recipe.attention}};
  for (const storage::Variant& variant : recipe.variants) {
    for (int seed = 0; seed < variant.seeds; ++seed)
      students.push_back({storage::Recipe::student_name(variant, seed), variant.attention});
  }
  return students;
}

// Moves the block's tensors of a student into its own, each checked off against what its layers
// must have; their names in the file are added to `expected_names`.
void take_block(const SafetensorsFile& file,
                const std::string& name,
                const Geometry& geometry,
                int block,
                const AssemblyInput& input,
                Assembled& student,
                std::set<std::string>& expected_names) {
  const std::string prefix = storage::tensors_of_student(student.name);
  const int first = geometry.first_layer(block);
  for (int layer = first; layer < first + geometry.layers_of(block); ++layer) {
    if (stays_softmax(input.recipe, layer)) continue;
    for (const storage::TensorShape& expected :
         layer_map_tensors(student.attention, input.model, layer)) {
      const std::string stored = prefix + expected.name;
      expected_names.insert(stored);
      const auto found = file.tensors().find(stored);
      if (found == file.tensors().end()) {
        throw DamagedArtifact(name, "artifact " + name + ": tensor " + stored + " is missing");
      }
      if (found->second.shape != expected.shape || found->second.dtype != storage::DType::kF32) {
        throw DamagedArtifact(name,
                              "artifact " + name + ": tensor " + stored + " is " +
                                  std::string(storage::to_string(found->second.dtype)) + " " +
                                  shape_text(found->second.shape) + ", expected F32 " +
                                  shape_text(expected.shape));
      }
      student.tensors.emplace(expected.name, found->second);
    }
  }
}

void refuse_surplus(const SafetensorsFile& file,
                    const std::string& name,
                    int block,
                    const std::set<std::string>& expected_names) {
  for (const auto& [tensor, view] : file.tensors()) {
    if (!expected_names.contains(tensor)) {
      throw DamagedArtifact(name,
                            "artifact " + name + ": tensor " + tensor + " is surplus for block " +
                                std::to_string(block));
    }
  }
}

// Which attempt made each layer, on what: it differs between runs that come to the same student.
nlohmann::json provenance_of(const State& state, const storage::Recipe& recipe) {
  const Geometry& geometry = *state.geometry;
  nlohmann::json layers = nlohmann::json::array();
  for (int layer = 0; layer < geometry.num_layers; ++layer) {
    if (stays_softmax(recipe, layer)) continue;
    const TaskRecord& transfer = state.task(TaskId::transfer(layer / geometry.layers_per_block));
    layers.push_back({{"layer", layer},
                      {"block", transfer.id.block},
                      {"artifact", transfer.files.front().name},
                      {"hash", transfer.files.front().root_hash.hex()},
                      {"seed", transfer.seed},
                      {"attempts", transfer.attempts},
                      {"devices", transfer.devices}});
  }
  return {{"format", "provenance/1"}, {"layers", layers}};
}

FileRecord record_of(const fs::path& path, const std::string& name) {
  return {name, fs::file_size(path), storage::hash_file(path)};
}

}  // namespace

std::vector<storage::TensorShape> layer_map_tensors(const storage::AttentionSpec& attention,
                                                    const storage::ModelConfig& model,
                                                    int layer_idx) {
  const std::string prefix = "model.layers." + std::to_string(layer_idx) + ".self_attn.";
  const std::int64_t heads = model.num_attention_heads;
  const std::int64_t projected = attention.projected_dim();
  std::vector<storage::TensorShape> tensors;
  const std::int64_t key_maps = attention.num_key_maps(heads, model.num_key_value_heads);
  for (const auto& [map, num_maps] :
       {std::pair{"feature_map_q", heads}, std::pair{"feature_map_k", key_maps}}) {
    if (attention.has_projection()) {
      tensors.push_back({prefix + map + ".mlp.layer", {num_maps, model.head_dim, projected}});
    }
    if (attention.bias) tensors.push_back({prefix + map + ".mlp.bias", {num_maps, projected}});
  }
  if (attention.window != storage::WindowLayout::kNone) {
    tensors.push_back({prefix + "window_factors", {1, heads, 1, 1}});
  }
  return tensors;
}

storage::WeightHashes teacher_weights(const storage::RunLayout& layout, const Geometry& geometry) {
  int block = geometry.num_blocks();
  while (block > 0 && !geometry.trains(block - 1)) --block;
  const int num_layers =
      block == 0 ? 0 : geometry.first_layer(block - 1) + geometry.layers_of(block - 1);
  storage::WeightHashes hashes = storage::recorded_weights(layout, num_layers);
  if (std::ssize(hashes) != num_layers + 1) return {};
  return hashes;
}

std::vector<FileRecord> assemble_student(const storage::RunLayout& layout,
                                         const State& state,
                                         const AssemblyInput& input,
                                         std::uint64_t token) {
  const Geometry& geometry = *state.geometry;
  std::vector<SafetensorsFile> artifacts;  // keeps the mapped bytes alive until they are written
  std::vector<Assembled> students = students_of(input.recipe);
  for (int block = 0; block < geometry.num_blocks(); ++block) {
    if (!geometry.trains(block)) continue;
    const TaskRecord& transfer = state.task(TaskId::transfer(block));
    if (transfer.state != TaskState::kDone || transfer.files.size() != 1) {
      throw Error(ErrorKind::kInternal,
                  "assemble: " + to_string(transfer.id) + " has no committed artifact");
    }
    artifacts.push_back(open_artifact(layout, transfer.files.front(), transfer.token));
    const std::string& name = transfer.files.front().name;
    std::set<std::string> expected;
    for (Assembled& student : students)
      take_block(artifacts.back(), name, geometry, block, input, student, expected);
    refuse_surplus(artifacts.back(), name, block, expected);
  }
  nlohmann::json teacher = {{"path", input.teacher_path},
                            {"fingerprint", input.teacher_fingerprint}};
  if (const auto hashes = teacher_weights(layout, geometry); !hashes.empty())
    teacher["weights"] = storage::weight_hashes_to_json(hashes);
  const std::string attempt = storage::RunLayout::attempt_directory(token);
  const std::string final = storage::RunLayout::student_directory(token);
  std::vector<FileRecord> files;
  for (const Assembled& student : students) {
    const std::string below = student.name.empty() ? "" : "/variants/" + student.name;
    storage::os_disk().make_directories(layout.resolve(attempt + below));
    const auto path_of = [&](const char* name) { return layout.resolve(attempt + below + name); };
    const auto record = [&](const char* name) {
      files.push_back(record_of(path_of(name), final + below + name));
    };
    storage::write_safetensors(
        path_of("/feature_maps.safetensors"), student.tensors, {{"format", "pt"}});
    record("/feature_maps.safetensors");
    const nlohmann::json description = {
        {"format", "student/1"},
        {"teacher", teacher},
        {"attention", student.attention},
        {"softmax_layers", input.recipe.transfer.softmax_layers.layers},
        {"compute_dtype", input.recipe.plan.compute_dtype}};
    storage::write_atomically(path_of("/hedgerow.json"), description.dump(2) + "\n");
    record("/hedgerow.json");
    if (!student.name.empty()) continue;
    const std::string provenance = provenance_of(state, input.recipe).dump(2) + "\n";
    storage::write_atomically(path_of("/provenance.json"), provenance);
    record("/provenance.json");
  }
  return files;
}

}  // namespace hedgerow::coordinator
