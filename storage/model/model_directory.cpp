// ModelDirectory: finding a model (a directory, or a name in the local Hugging Face cache) and
// opening its weight files.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/files/hash.hpp"
#include "storage/json/strict_json.hpp"
#include "storage/model/model_config.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::uint64_t kMaxConfigBytes = 16U << 20;
constexpr std::uint64_t kMaxIndexBytes = 512U << 20;

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of("/\\") == std::string::npos &&
         std::all_of(name.begin(), name.end(), [](char c) { return c >= ' ' && c < 0x7f; });
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Where huggingface_hub keeps downloads, by its own order of precedence.
fs::path hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string path = environment(name); !path.empty()) return path;
  }
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) {
    return fs::path(cache) / "huggingface" / "hub";
  }
  return fs::path(environment("HOME")) / ".cache" / "huggingface" / "hub";
}

// refs/main names the commit; a cache that was filled by commit alone has no refs, and then one
// snapshot is unambiguous.
fs::path snapshot_of(const fs::path& repository, const std::string& reference) {
  std::error_code error;
  if (const fs::path ref = repository / "refs" / "main"; fs::exists(ref, error)) {
    std::string commit = read_text(ref, 4096);
    commit.erase(commit.find_last_not_of(" \r\n\t") + 1);
    if (is_plain_name(commit) && fs::is_directory(repository / "snapshots" / commit, error)) {
      return repository / "snapshots" / commit;
    }
  }
  std::vector<fs::path> snapshots;
  for (const auto& entry : fs::directory_iterator(repository / "snapshots", error))
    snapshots.push_back(entry.path());
  if (snapshots.size() == 1) return snapshots.front();
  throw Error(ErrorKind::kUsage,
              fmt::format("model '{}': the cache directory {} has {} snapshots and no usable "
                          "refs/main; give the path of "
                          "one snapshot, or download it again with 'hf download {}'",
                          reference,
                          repository.string(),
                          snapshots.size(),
                          reference));
}

fs::path find_directory(const std::string& reference) {
  std::error_code error;
  if (fs::is_directory(reference, error)) return reference;
  if (fs::exists(reference, error)) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format(
            "model '{}' is a file; give the directory that holds config.json and *.safetensors",
            reference));
  }
  if (!ModelDirectory::is_hub_name(reference)) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("model '{}': no such directory (and not an org/name of the Hugging Face "
                    "cache)",
                    reference));
  }
  const fs::path cache = hub_cache();
  std::string folder = "models--" + reference;
  folder.replace(folder.find('/'), 1, "--");
  if (!fs::is_directory(cache / folder, error)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("model '{}': no such directory, and not in the Hugging Face cache {}; "
                            "hedgerow works offline: "
                            "download it with 'hf download {}', or give a directory",
                            reference,
                            cache.string(),
                            reference));
  }
  return snapshot_of(cache / folder, reference);
}

// Checks all files, since most are read later: by the tokenizer, by an export.
void require_files(const fs::path& directory) {
  std::error_code error;  // what cannot be listed is said of the file that is missed
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (!entry.is_directory(error)) require_file(entry.path());
  }
}

// The first of the weight files that are no safetensors; "" if there is none.
std::string foreign_weights(const fs::path& directory) {
  std::string foreign;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string extension = entry.path().extension().string();
    for (const char* known : {".bin", ".pt", ".pth", ".gguf"}) {
      if (extension == known && (foreign.empty() || entry.path().filename().string() < foreign)) {
        foreign = entry.path().filename().string();
      }
    }
  }
  return foreign;
}

[[noreturn]] void refuse_without_safetensors(const fs::path& directory,
                                             const std::string& foreign) {
  if (foreign.empty()) {
    throw Error(ErrorKind::kUsage,
                fmt::format("model directory {}: neither {} nor {} is there",
                            directory.string(),
                            kSingleFile,
                            kIndexFile));
  }
  throw Error(ErrorKind::kUsage,
              fmt::format("model directory {}: weights are in {}, which hedgerow does not read "
                          "(pickle files can run code, "
                          "GGUF permutes tensors); convert them to safetensors: transformers' "
                          "save_pretrained(..., safe_serialization=True), or "
                          "deploy/huggingface/prepare.py for GGUF",
                          directory.string(),
                          foreign));
}

// tensor name -> file name, from the index. Names must be plain: an index is input from elsewhere,
// and the resolved file (which may well be a link: the cache links snapshots into blobs) must be
// one that stands in this directory.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const nlohmann::json index = parse_strict_json(read_text(path, kMaxIndexBytes), path.string());
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty()) {
    throw Error(ErrorKind::kCorrupt, path.string() + ": no object 'weight_map' with tensors in it");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>()) ||
        !file.get<std::string>().ends_with(".safetensors")) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("{}: tensor '{}' is in {}, expected the plain name of a .safetensors "
                              "file in this directory",
                              path.string(),
                              tensor,
                              file.dump(-1, ' ', true)));
    }
    files.emplace(tensor, file.get<std::string>());
  }
  return files;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool is_float(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32 ||
         dtype == DType::kF64;
}

// "; the names in it ...": where the tensor stands under another prefix, how to rename it. Files
// saved from torch.compile, from a model's body alone or from the text part of another model do.
std::string renaming(const std::string& wanted,
                     const std::map<std::string, const TensorView*>& tensors) {
  constexpr std::string_view kPrefix = "model.";
  if (!wanted.starts_with(kPrefix)) return "";
  const std::string tail = wanted.substr(kPrefix.size());
  for (const auto& [name, view] : tensors) {
    if (!name.ends_with(tail)) continue;
    const std::string prefix = name.substr(0, name.size() - tail.size());
    if (!prefix.empty() && !prefix.ends_with('.')) continue;
    std::string body = prefix;
    if (body.ends_with(kPrefix)) body.erase(body.size() - kPrefix.size());
    const bool is_before = body.size() < prefix.size() && body.ends_with('.');
    return fmt::format(
        "; it is there as '{}': in all names {} (load_file and save_file of Python's "
        "safetensors)",
        name,
        is_before        ? fmt::format("take '{}' off the front", body)
        : prefix.empty() ? fmt::format("but lm_head's put '{}' before", kPrefix)
                         : fmt::format("write '{}' for '{}'", kPrefix, prefix));
  }
  return "";
}

// The layer number in "model.layers.<n>.", or -1.
long layer_of(const std::string& tensor) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!tensor.starts_with(kPrefix)) return -1;
  return std::strtol(tensor.c_str() + kPrefix.size(), nullptr, 10);
}

}  // namespace

struct ModelDirectory::Impl {
  fs::path path;
  ModelConfig config;
  std::string config_text;
  std::map<std::string, SafetensorsFile> files;          // by base name
  std::map<std::string, const TensorView*> tensors;      // of all files
  std::map<std::string, const std::string*> file_names;  // tensor -> key of `files`
  std::map<std::string, std::string> unread;             // of an element type that is not read
  std::vector<std::string> unseen;                       // weight files that are not there

  // False where it is not there and need not be.
  bool open_file(const std::string& name, Weights weights) {
    if (files.contains(name)) return true;
    std::error_code error;
    if (!fs::exists(path / name, error) && weights == Weights::kOptional) {
      if (std::find(unseen.begin(), unseen.end(), name) == unseen.end()) unseen.push_back(name);
      return false;
    }
    if (!fs::exists(path / name, error)) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("model directory {}: {} names the weight file {}, which is missing; "
                              "get it again",
                              path.string(),
                              kIndexFile,
                              name));
    }
    const auto opened = files.emplace(name, SafetensorsFile(path / name)).first;
    const auto& others = opened->second.unread();
    unread.insert(others.begin(), others.end());
    return true;
  }

  void add(const std::string& tensor, const std::string& file_name) {
    const auto file = files.find(file_name);
    const auto& in_file = file->second.tensors();
    const auto found = in_file.find(tensor);
    if (found == in_file.end() && file->second.unread().contains(tensor)) return;
    if (found == in_file.end()) {
      throw Error(
          ErrorKind::kCorrupt,
          fmt::format("model directory {}: {} says that tensor '{}' is in {}, but it is not",
                      path.string(),
                      kIndexFile,
                      tensor,
                      file_name));
    }
    tensors.emplace(tensor, &found->second);
    file_names.emplace(tensor, &file->first);
  }

  void open_weights(Weights weights) {
    std::error_code error;
    if (fs::exists(path / kSingleFile, error)) {
      open_file(kSingleFile, weights);
      for (const auto& [tensor, view] : files.at(kSingleFile).tensors()) add(tensor, kSingleFile);
      return;
    }
    if (!fs::exists(path / kIndexFile, error)) {
      const std::string foreign = foreign_weights(path);
      if (weights == Weights::kRequired || !foreign.empty())
        refuse_without_safetensors(path, foreign);
      unseen.emplace_back(kSingleFile);
      return;
    }
    for (const auto& [tensor, file] : read_index(path / kIndexFile)) {
      if (open_file(file, weights)) add(tensor, file);
    }
  }

  // A file may hold a head of its own beside tie_word_embeddings = true. As transformers takes it:
  // tied where the two are equal, else the file's own.
  void untie_own_head() {
    const std::vector<TensorShape> outer = outer_tensors(config);
    const auto head = tensors.find("lm_head.weight"), table = tensors.find(outer.front().name);
    if (!config.tie_word_embeddings || head == tensors.end() || table == tensors.end()) return;
    const TensorView &own = *head->second, &tied = *table->second;
    config.tie_word_embeddings = own.dtype == tied.dtype && own.shape == tied.shape &&
                                 std::ranges::equal(own.bytes, tied.bytes);
  }

  // generation_config.json is where transformers takes the end tokens of an instruction-tuned model
  // from.
  void read_generation_config() {
    std::error_code error;
    const fs::path file = path / "generation_config.json";
    if (!fs::exists(file, error)) return;
    const nlohmann::json json = parse_strict_json(read_text(file, kMaxConfigBytes), file.string());
    const auto eos = json.is_object() ? json.find("eos_token_id") : json.end();
    if (eos == json.end() || eos->is_null()) return;
    std::vector<int> ids;
    for (const nlohmann::json& id : eos->is_array() ? *eos : nlohmann::json::array({*eos})) {
      if (!id.is_number_integer() || id < 0 || id >= config.vocab_size) {
        throw Error(ErrorKind::kUsage,
                    fmt::format("{}: eos_token_id {} is not a token id below vocab_size {}",
                                file.string(),
                                id.dump(),
                                config.vocab_size));
      }
      ids.push_back(id.get<int>());
    }
    config.eos_token_ids = std::move(ids);
  }

  void open(const std::string& reference, Weights weights) {
    path = find_directory(reference);
    require_files(path);
    const fs::path config_file = path / "config.json";
    std::error_code error;
    if (!fs::exists(config_file, error)) {
      throw Error(
          ErrorKind::kUsage,
          fmt::format(
              "model directory {}: config.json is missing; give a Hugging Face model directory",
              path.string()));
    }
    config_text = read_text(config_file, kMaxConfigBytes);
    config = ModelConfig::parse(config_text, config_file.string());
    read_generation_config();
    open_weights(weights);
    untie_own_head();
  }
};

ModelDirectory::ModelDirectory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ModelDirectory::ModelDirectory(ModelDirectory&&) noexcept = default;
ModelDirectory::~ModelDirectory() = default;

bool ModelDirectory::is_hub_name(const std::string& reference) {
  const std::size_t slash = reference.find('/');
  return slash != std::string::npos && is_plain_name(reference.substr(0, slash)) &&
         is_plain_name(reference.substr(slash + 1));
}

fs::path ModelDirectory::locate(const std::string& reference) {
  return read_given([&] { return find_directory(reference); });
}

ModelDirectory ModelDirectory::open(const std::string& reference, Weights weights) {
  return read_given([&] {
    auto impl = std::make_unique<Impl>();
    impl->open(reference, weights);
    ModelDirectory model(std::move(impl));
    model.check_complete();
    return model;
  });
}

const fs::path& ModelDirectory::path() const { return impl_->path; }
const ModelConfig& ModelDirectory::config() const { return impl_->config; }
const std::vector<std::string>& ModelDirectory::unseen() const { return impl_->unseen; }
bool ModelDirectory::has(const std::string& name) const { return impl_->tensors.contains(name); }
const std::string& ModelDirectory::file_of(const std::string& name) const {
  return *impl_->file_names.at(name);
}

TensorView ModelDirectory::tensor(const TensorShape& expected) const {
  const auto found = impl_->tensors.find(expected.name);
  if (const auto other = impl_->unread.find(expected.name);
      found == impl_->tensors.end() && other != impl_->unread.end()) {
    throw Error(ErrorKind::kUsage,
                fmt::format("model directory {}: tensor '{}' is of dtype {}, which is not read; "
                            "quantised weights and 8-bit floats must be saved as BF16 first",
                            impl_->path.string(),
                            expected.name,
                            other->second));
  }
  if (found == impl_->tensors.end()) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format(
            "model directory {}: tensor '{}' {} is missing, which {} with {} layers needs{}",
            impl_->path.string(),
            expected.name,
            shape_text(expected.shape),
            impl_->config.architecture,
            impl_->config.num_hidden_layers,
            renaming(expected.name, impl_->tensors)));
  }
  const TensorView& view = *found->second;
  if (view.shape != expected.shape || !is_float(view.dtype)) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format(
            "model directory {}, file {}: tensor '{}' is {} {}, expected a float {} by config.json",
            impl_->path.string(),
            *impl_->file_names.at(expected.name),
            expected.name,
            to_string(view.dtype),
            shape_text(view.shape),
            shape_text(expected.shape)));
  }
  return view;
}

void ModelDirectory::check_complete() const {
  const ModelConfig& config = impl_->config;
  const auto check = [&](const std::vector<TensorShape>& expected) {
    for (const TensorShape& one : expected) {
      if (impl_->unseen.empty() || has(one.name)) static_cast<void>(tensor(one));
    }
  };
  check(outer_tensors(config));
  for (int layer = 0; layer < config.num_hidden_layers; ++layer)
    check(layer_tensors(config, layer));
  for (const auto& [name, view] : impl_->tensors) {
    if (layer_of(name) >= config.num_hidden_layers) {
      throw Error(
          ErrorKind::kUsage,
          fmt::format("model directory {}: tensor '{}' belongs to a layer beyond the {} of "
                      "config.json; if the two are of one model, set num_hidden_layers or take the "
                      "tensor out of the file",
                      impl_->path.string(),
                      name,
                      config.num_hidden_layers));
    }
  }
}

std::string ModelDirectory::fingerprint() const {
  Hasher128 hasher;
  const auto add = [&hasher](std::string_view text) {
    hasher.update(static_cast<std::uint64_t>(text.size())).update(std::as_bytes(std::span(text)));
  };
  add(impl_->config_text);
  for (const auto& [name, file] : impl_->files) {
    add(name);
    hasher.update(file.file_bytes()).update(file.header());
  }
  return hasher.digest().hex();
}

}  // namespace hedgerow::storage
