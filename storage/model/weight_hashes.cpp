#include "storage/model/weight_hashes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>

#include "storage/base/error.hpp"
#include "storage/base/random.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;

// Half of what a core's second cache holds on small machines.
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 19;

// Every lane of a word has an exponent that is not all ones. `exponent`: its bits in all lanes,
// `below`: all bits but the highest of each lane. (~x & exponent) + below sets a lane's highest bit
// unless all bits of the exponent are ones.
struct Lanes {
  std::uint64_t exponent = 0, below = 0;
};

std::optional<Lanes> lanes_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return Lanes{0x7f807f807f807f80, 0x7fff7fff7fff7fff};
    case DType::kF16:
      return Lanes{0x7c007c007c007c00, 0x7fff7fff7fff7fff};
    case DType::kF32:
      return Lanes{0x7f8000007f800000, 0x7fffffff7fffffff};
    case DType::kF64:
      return Lanes{0x7ff0000000000000, 0x7fffffffffffffff};
    default:
      return std::nullopt;
  }
}

bool all_finite(std::span<const std::byte> bytes, const Lanes& lanes) {
  constexpr std::size_t kWords = 16;  // a constant count, which compilers vectorize
  const std::uint64_t highest = ~lanes.below;
  std::array<std::uint64_t, kWords> finite{};
  finite.fill(highest);
  std::array<std::uint64_t, kWords> words{};
  std::size_t at = 0;
  const auto look = [&] {
    for (std::size_t i = 0; i < kWords; ++i)
      finite[i] &= (~words[i] & lanes.exponent) + lanes.below;
  };
  for (; at + sizeof(words) <= bytes.size(); at += sizeof(words)) {
    std::memcpy(words.data(), bytes.data() + at, sizeof(words));
    look();
  }
  words.fill(0);
  std::memcpy(words.data(), bytes.data() + at, bytes.size() - at);
  look();
  return std::ranges::all_of(finite,
                             [highest](std::uint64_t word) { return (word & highest) == highest; });
}

std::string layer_name(int layer_idx) {
  return layer_idx == kOuterWeights ? "the embedding, the final norm and the head"
                                    : fmt::format("layer {}", layer_idx);
}

constexpr const char* kOuterKey = "outer";

// "<hash of the weights> <hash of those 32 digits>\n": damage is told from another model.
std::string record_text(const Hash128& hash) {
  const std::string digits = hash.hex();
  return fmt::format("{} {:016x}\n", digits, hash64(std::as_bytes(std::span(digits))));
}

std::optional<Hash128> read_record(const RunLayout& layout, int layer_idx) {
  const fs::path path = layout.resolve(RunLayout::weight_hash(layer_idx));
  if (!fs::exists(path)) return std::nullopt;
  const std::string text = read_text(path, 1 << 10);
  constexpr std::size_t kDigits = 32;
  try {
    const Hash128 hash = Hash128::from_hex(text.substr(0, kDigits));
    if (text == record_text(hash)) return hash;
  } catch (const Error&) {  // says the same
  }
  throw Error(ErrorKind::kCorrupt,
              fmt::format("{}: damaged; it held the hash of {} as the run began with it. If the "
                          "model is the same still, remove the file, and the next load writes it",
                          path.string(),
                          layer_name(layer_idx)));
}

}  // namespace

TensorChunks::TensorChunks(const ModelDirectory& model, const TensorShape& tensor)
    : model_(model), name_(tensor.name), view_(model.tensor(tensor)) {
  num_rows_ = view_.shape.empty() ? 1 : view_.shape.front();
  row_bytes_ = static_cast<std::int64_t>(view_.bytes.size()) / std::max<std::int64_t>(num_rows_, 1);
  rows_per_chunk_ = std::max<std::int64_t>(kChunkBytes / std::max<std::int64_t>(row_bytes_, 1), 1);
  hashes_.resize(static_cast<std::size_t>((num_rows_ + rows_per_chunk_ - 1) / rows_per_chunk_));
}

TensorChunks::Rows TensorChunks::rows(std::int64_t chunk) const {
  const std::int64_t first = chunk * rows_per_chunk_;
  return {first, std::min(rows_per_chunk_, num_rows_ - first)};
}

void TensorChunks::read(std::int64_t chunk) {
  const Rows which = rows(chunk);
  const auto bytes = view_.bytes.subspan(static_cast<std::size_t>(which.first * row_bytes_),
                                         static_cast<std::size_t>(which.count * row_bytes_));
  hashes_[static_cast<std::size_t>(chunk)] = hash64(bytes);
  const std::optional<Lanes> lanes = lanes_of(view_.dtype);
  if (!lanes || all_finite(bytes, *lanes)) return;
  std::int64_t row = which.first;
  const auto row_is_finite = [&] {
    return all_finite(view_.bytes.subspan(static_cast<std::size_t>(row * row_bytes_),
                                          static_cast<std::size_t>(row_bytes_)),
                      *lanes);
  };
  while (row_is_finite()) ++row;
  throw Error(ErrorKind::kUsage,
              fmt::format("model directory {}, file {}: tensor '{}' has a value that is not finite "
                          "in row {}; get the file again",
                          model_.path().string(),
                          model_.file_of(name_),
                          name_,
                          row));
}

Hash128 TensorChunks::digest() const { return hash128(std::as_bytes(std::span(hashes_))); }

void LayerHasher::add(const std::string& tensor, const Hash128& hash) {
  hasher_.update(static_cast<std::uint64_t>(tensor.size()))
      .update(std::as_bytes(std::span(tensor)))
      .update(hash.high)
      .update(hash.low);
}

void require_weights(const WeightHashes& expected,
                     const std::string& whose,
                     const ModelDirectory& model,
                     int layer_idx,
                     const Hash128& found) {
  const auto record = expected.find(layer_idx);
  if (record == expected.end() || record->second == found) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("the weights of {} in {} are not those that {} began with: hash {} then, "
                          "{} now; put the old weights back, or start anew with these",
                          layer_name(layer_idx),
                          model.path().string(),
                          whose,
                          record->second.hex(),
                          found.hex()));
}

void verify_weights(const ModelDirectory& model,
                    const WeightHashes& expected,
                    const std::string& whose,
                    const std::function<bool(double)>& progress) {
  const int num_layers = model.config().num_hidden_layers;
  for (int layer = kOuterWeights; layer < num_layers; ++layer) {
    LayerHasher hasher;
    const auto tensors = layer == kOuterWeights ? outer_tensors(model.config())
                                                : layer_tensors(model.config(), layer);
    for (const TensorShape& tensor : tensors) {
      TensorChunks chunks(model, tensor);
      for (std::int64_t chunk = 0; chunk < chunks.count(); ++chunk) chunks.read(chunk);
      hasher.add(tensor.name, chunks.digest());
    }
    require_weights(expected, whose, model, layer, hasher.digest());
    if (progress && !progress(static_cast<double>(layer + 2) / (num_layers + 1))) return;
  }
}

nlohmann::json weight_hashes_to_json(const WeightHashes& hashes) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [layer, hash] : hashes)
    object[layer == kOuterWeights ? kOuterKey : std::to_string(layer)] = hash.hex();
  return object;
}

WeightHashes weight_hashes_from_json(const nlohmann::json& teacher) {
  WeightHashes hashes;
  if (!teacher.contains("weights")) return hashes;
  for (const auto& [key, hash] : teacher.at("weights").items()) {
    int layer = kOuterWeights;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
    if (key != kOuterKey && (error != std::errc() || end != key.data() + key.size()))
      throw Error(ErrorKind::kCorrupt, "teacher.weights: '" + key.substr(0, 40) + "' is no layer");
    hashes.emplace(layer, Hash128::from_hex(hash.get<std::string>()));
  }
  return hashes;
}

void record_or_require_weights(const RunLayout& layout,
                               const ModelDirectory& model,
                               int layer_idx,
                               const Hash128& found) {
  const auto compare = [&] {
    const std::optional<Hash128> recorded = read_record(layout, layer_idx);
    if (!recorded) return false;
    require_weights(
        {{layer_idx, *recorded}}, "the run " + layout.root().string(), model, layer_idx, found);
    return true;
  };
  if (compare()) return;
  const fs::path path = layout.resolve(RunLayout::weight_hash(layer_idx));
  fs::create_directories(path.parent_path());
  constexpr std::size_t kRandomBytes = 8;
  const fs::path temporary = path.parent_path() / ("." + random_hex(kRandomBytes) + ".tmp");
  write_atomically(temporary, record_text(found));
  if (publish_first(temporary, path)) return;
  std::error_code ignored;
  fs::remove(temporary, ignored);
  compare();
}

WeightHashes recorded_weights(const RunLayout& layout, int num_layers) {
  WeightHashes hashes;
  for (int layer = kOuterWeights; layer < num_layers; ++layer) {
    if (const auto hash = read_record(layout, layer)) hashes.emplace(layer, *hash);
  }
  return hashes;
}

}  // namespace hedgerow::storage
