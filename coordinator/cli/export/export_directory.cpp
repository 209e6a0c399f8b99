#include "coordinator/cli/export/export_directory.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "coordinator/cli/export/model_card.hpp"
#include "coordinator/cli/export/partial_directory.hpp"
#include "coordinator/cli/programs/child.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "storage/files/file.hpp"
#include "storage/model/attention_spec.hpp"
#include "storage/model/weight_hashes.hpp"
#include "storage/tensors/safetensors.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using storage::Error;
using storage::ErrorKind;

// Beside the weights, an export carries the teacher's tokenizer, generation settings and licence,
// but neither its code nor its model card.
constexpr std::array kLeftBehind{
    ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".msgpack", ".h5", ".py"};
constexpr std::array kOurModeling{"attention_hedgerow.py",
                                  "cache_hedgerow.py",
                                  "configuration_hedgerow.py",
                                  "architecture_rows_hedgerow.py",
                                  "feature_map_rows_hedgerow.py",
                                  "option_rows_hedgerow.py",
                                  "feature_maps_hedgerow.py",
                                  "gradients_hedgerow.py",
                                  "hybrid_hedgerow.py",
                                  "layers_hedgerow.py",
                                  "modeling_hedgerow.py",
                                  "operators_hedgerow.py",
                                  "packing_hedgerow.py"};

constexpr const char* kFeatureMaps = "feature_maps.safetensors";
constexpr const char* kTrainedParameters = "trained_parameters.safetensors";

// AutoTokenizer asks no question only about a model_type of transformers' own, so config.json keeps
// the teacher's. A program that then takes the body's own class would silently compute softmax
// attention with these weights. An activation that does not exist makes that class fail, and its
// error shows this name.
constexpr const char* kForeignActivation = "hedgerow, which needs trust_remote_code=True";

json read_json(const fs::path& path) {
  json value = json::parse(storage::read_text(path), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) throw Error(ErrorKind::kCorrupt, path.string() + ": not a JSON object");
  return value;
}

std::vector<fs::path> weight_files(const fs::path& directory) {
  const fs::path index = directory / "model.safetensors.index.json";
  if (!fs::exists(index)) return {directory / "model.safetensors"};
  std::set<std::string> names;
  for (const auto& [tensor, file] : read_json(index).at("weight_map").items())
    names.insert(file.get<std::string>());
  std::vector<fs::path> files;
  for (const std::string& name : names) files.push_back(directory / fs::path(name).filename());
  return files;
}

using OnBytes = std::function<void(std::uint64_t)>;

// Not std::filesystem's, which calls a full disk an input/output error. Ends early when
// interrupted.
void copy_bytes(const fs::path& from, const fs::path& to, const OnBytes& on_bytes = {}) {
  constexpr std::uint64_t kPiece = 8U << 20;
  const storage::File source = storage::File::open_read(from);
  storage::File target = storage::File::create_exclusive(to);
  std::vector<std::byte> piece(std::min(kPiece, source.size()));
  for (std::uint64_t at = 0; at < source.size() && !is_interrupted(); at += piece.size()) {
    piece.resize(std::min(kPiece, source.size() - at));
    source.read_exact(piece, at);
    target.write_all(piece);
    if (on_bytes) on_bytes(piece.size());
  }
  target.sync();
  target.close();
}

void copy_companions(const fs::path& teacher, const fs::path& out) {
  for (const auto& entry : fs::directory_iterator(teacher)) {
    const fs::path name = entry.path().filename();
    const std::string extension = name.extension().string();
    const bool is_index = name.string().ends_with(".index.json");
    if (!entry.is_regular_file() || name == "config.json" || name == "README.md" ||
        name.string().starts_with(".") || is_index) {
      continue;
    }
    if (std::find(kLeftBehind.begin(), kLeftBehind.end(), extension) != kLeftBehind.end()) continue;
    copy_bytes(entry.path(), out / name);
  }
}

void copy_modeling(const Console& console, const fs::path& out) {
  const fs::path modeling = huggingface_directory(console) / "modeling";
  for (const char* name : kOurModeling) copy_bytes(modeling / name, out / name);
}

void write_config(const storage::ModelDirectory& teacher,
                  const ModelChoice& choice,
                  const fs::path& out) {
  json config = read_json(teacher.path() / "config.json");
  const json description = read_json(choice.student / "hedgerow.json");
  if (choice.compute_dtype != "auto") {
    config.erase("torch_dtype");  // what transformers read before version 5
    config["dtype"] = choice.compute_dtype == "bf16" ? "bfloat16" : "float32";
  }
  json attention = description.at("attention");
  if (choice.recall_cache) {
    attention["recall_cache"] = *choice.recall_cache;
    attention.get<storage::AttentionSpec>().validate(teacher.config().head_dim);
  }
  config["hedgerow"] = {{"format", "export/1"},
                        {"body", teacher.config().model_type},
                        {"hidden_act", config.value("hidden_act", "silu")},
                        {"attention", attention},
                        {"softmax_layers", description.at("softmax_layers")}};
  config["architectures"] = json::array({"HedgerowForCausalLM"});
  config["model_type"] = teacher.config().model_type;  // it may have said only its architecture
  config["hidden_act"] = kForeignActivation;
  config["auto_map"] = {{"AutoConfig", "configuration_hedgerow.HedgerowConfig"},
                        {"AutoModel", "modeling_hedgerow.HedgerowModel"},
                        {"AutoModelForCausalLM", "modeling_hedgerow.HedgerowForCausalLM"}};
  storage::write_atomically(out / "config.json", config.dump(2) + "\n");
}

enum class Bring { kCopy, kLink, kMove };

struct WeightFile {
  fs::path path;
  Bring how = Bring::kCopy;
};

void bring(const WeightFile& file, const fs::path& to, const OnBytes& on_bytes) {
  switch (file.how) {
    case Bring::kCopy:
      return copy_bytes(file.path, to, on_bytes);
    case Bring::kLink:
      return fs::create_symlink(fs::canonical(file.path), to);
    case Bring::kMove:
      return fs::rename(file.path, to);
  }
}

// The base weights with LoRA in them, by hedgerow-worker. Empty: interrupted.
std::vector<fs::path> merged_weights(const ExportRequest& request,
                                     const fs::path& into,
                                     Terminal& terminal) {
  ChildCommand command{
      .arguments = {
          worker_binary(terminal.console()), "merge", "--progress", "--out", into.string()}};
  ModelChoice model = request.model;
  model.recall_cache.reset();  // no weight depends on it
  const auto more = model.worker_arguments();
  command.arguments.insert(command.arguments.end(), more.begin(), more.end());
  terminal.status("merging LoRA into the weights ...");
  if (!run_helper(terminal, "merging", "hedgerow-worker merge", command, [](const json&) {}))
    return {};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(into)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  if (files.empty())
    throw Error(ErrorKind::kInternal, "hedgerow-worker merge wrote no weights to " + into.string());
  return files;
}

// feature_maps.safetensors of the student, with the maps and window factors that the finetune
// trained, in fp32, in place of its own.
void write_feature_maps(const ModelChoice& model, const fs::path& to) {
  const fs::path from = model.student / kFeatureMaps;
  const fs::path trained = model.lora / kTrainedParameters;
  if (model.lora.empty() || !fs::exists(trained)) return copy_bytes(from, to);
  const storage::SafetensorsFile maps(from), parameters(trained);
  auto tensors = maps.tensors();
  for (auto& [name, view] : tensors) {
    const auto found = parameters.tensors().find(name);
    if (found == parameters.tensors().end()) continue;
    if (found->second.shape != view.shape) {
      throw Error(ErrorKind::kCorrupt,
                  trained.string() + ": tensor " + name +
                      " has another shape than the student's; name the student that it was "
                      "trained on");
    }
    view = found->second;
  }
  storage::write_safetensors(to, tensors, maps.metadata());
}

// The adapter form leaves the base as it is, so it has no place for norms.
void require_no_trained_norms(const ModelChoice& model) {
  const fs::path trained = model.lora / kTrainedParameters;
  if (model.lora.empty() || !fs::exists(trained)) return;
  const storage::SafetensorsFile parameters(trained);
  for (const auto& [name, view] : parameters.tensors()) {
    require(!name.ends_with("norm.weight"),
            trained.string() + ": norms were trained (" + name +
                "), which --adapter cannot carry without the teacher's weights; export without "
                "--adapter");
  }
}

std::string shard_name(std::size_t index, std::size_t count) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name.data();
}

// transformers reads model.safetensors before any index, so that no file keeps that name.
ExportSummary write_weights(const std::vector<WeightFile>& files,
                            const fs::path& out,
                            Terminal& terminal) {
  ExportSummary summary;
  json weight_map = json::object();
  std::uint64_t bytes_in_all = 0, bytes_done = 0;
  for (const WeightFile& file : files)
    bytes_in_all += file.how == Bring::kCopy ? fs::file_size(file.path) : 0;
  ProgressBar bar(terminal, "writing");
  const auto on_bytes = [&](std::uint64_t count) {
    bytes_done += count;
    bar.update(static_cast<double>(bytes_done) / static_cast<double>(bytes_in_all),
               bytes_text(bytes_done) + " of " + bytes_text(bytes_in_all));
  };
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = shard_name(i, files.size());
    bring(files[i], out / name, on_bytes);
    if (is_interrupted()) return summary;
    const storage::SafetensorsFile weights(out / name);
    for (const auto& [tensor, view] : weights.tensors()) {
      if (weight_map.contains(tensor))
        throw Error(ErrorKind::kCorrupt,
                    files[i].path.string() + ": tensor " + tensor + " is in an earlier file too");
      weight_map[tensor] = name;
      summary.num_bytes += view.bytes.size();
      ++summary.num_tensors;
    }
  }
  const json index = {{"metadata", {{"total_size", summary.num_bytes}}},
                      {"weight_map", weight_map}};
  storage::write_atomically(out / "model.safetensors.index.json", index.dump(2) + "\n");
  return summary;
}

}  // namespace

std::optional<ExportSummary> export_model(const ExportRequest& request, Terminal& terminal) {
  const storage::ModelDirectory model = storage::ModelDirectory::open(request.model.model);
  const fs::path& teacher = model.path();
  PartialDirectory partial(request.out);
  copy_companions(teacher, partial.path());
  copy_modeling(terminal.console(), partial.path());
  write_config(model, request.model, partial.path());
  storage::write_atomically(partial.path() / "README.md", model_card(request.model, request.out));
  const bool merges = !request.model.lora.empty();
  if (!merges) {  // hedgerow-worker merge does it itself
    terminal.status("checking the weights ...");
    const json description = read_json(request.model.student / "hedgerow.json");
    storage::verify_weights(
        model,
        storage::weight_hashes_from_json(description.value("teacher", json::object())),
        "the student " + request.model.student.string(),
        [](double) { return !is_interrupted(); });
    if (is_interrupted()) return std::nullopt;
  }
  const fs::path merged = partial.path() / "merged";
  std::vector<WeightFile> files;
  if (merges) {
    fs::create_directories(merged);
    for (const fs::path& file : merged_weights(request, merged, terminal))
      files.push_back({file, Bring::kMove});
    if (files.empty()) return std::nullopt;
  } else {
    for (const fs::path& file : weight_files(teacher))
      files.push_back({file, request.links_weights ? Bring::kLink : Bring::kCopy});
  }
  const fs::path maps = partial.path() / kFeatureMaps;
  write_feature_maps(request.model, maps);
  files.push_back({maps, Bring::kMove});
  terminal.status("writing " + request.out.string() + " ...");
  ExportSummary summary = write_weights(files, partial.path(), terminal);
  fs::remove_all(merged);
  if (is_interrupted()) return std::nullopt;
  partial.publish();
  summary.merged = merges;
  return summary;
}

std::optional<ExportSummary> export_adapter(const ExportRequest& request) {
  require_no_trained_norms(request.model);
  PartialDirectory partial(request.out);
  ExportSummary summary;
  const auto count = [&](const fs::path& name) {
    if (is_interrupted()) return;  // the copy may have ended early
    const storage::SafetensorsFile file(partial.path() / name);
    for (const auto& [tensor, view] : file.tensors()) {
      summary.num_bytes += view.bytes.size();
      ++summary.num_tensors;
    }
  };
  copy_bytes(request.model.student / "hedgerow.json", partial.path() / "hedgerow.json");
  write_feature_maps(request.model, partial.path() / kFeatureMaps);
  count(kFeatureMaps);
  if (!request.model.lora.empty()) {
    const fs::path adapter = partial.path() / "adapter";
    fs::create_directories(adapter);
    for (const char* name : {"adapter_config.json", "adapter_model.safetensors"})
      copy_bytes(request.model.lora / name, adapter / name);
    count("adapter/adapter_model.safetensors");
  }
  if (is_interrupted()) return std::nullopt;
  partial.publish();
  return summary;
}

}  // namespace hedgerow::coordinator::cli
