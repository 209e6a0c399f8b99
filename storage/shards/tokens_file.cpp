#include "storage/shards/tokens_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/files/hash.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/shards/hdf5_attribute.hpp"
#include "storage/shards/hdf5_handle.hpp"

namespace hedgerow::storage {
namespace {

constexpr const char* kFormat = "tokens/1";
constexpr std::array kNames{"document_starts", "input_ids", "loss_mask"};

// The commands that put another file in its place.
std::string how_to_mend(const std::filesystem::path& path) {
  const RunLayout run(path.parent_path().parent_path());
  if (path.parent_path().filename() != "tokens" || !std::filesystem::exists(run.recipe()))
    return "'hedgerow tokenize' makes another";
  return fmt::format(
      "'hedgerow check --repair --run {0}' takes it away, and 'hedgerow run --run {0}' makes it "
      "again",
      run.root().string());
}

[[noreturn]] void refuse_tokens(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::kCorrupt, fmt::format("tokens file {}: {}", path, what));
}

Hash128 content_hash(const TokenSequences& tokens) {
  Hasher128 hasher;
  hasher.update(std::as_bytes(std::span(tokens.input_ids)))
      .update(std::as_bytes(std::span(tokens.loss_mask)))
      .update(std::as_bytes(std::span(tokens.document_starts)));
  return hasher.digest();
}

void require_recorded(const std::filesystem::path& path, const FileRecord& expected) {
  const std::uint64_t size = File::open_read(path).size();
  if (size != expected.size) {
    refuse_tokens(path.string(),
                  fmt::format("it has {} bytes, the journal recorded {}", size, expected.size));
  }
  if (const Hash128 found = hash_file(path); found != expected.root_hash) {
    refuse_tokens(path.string(),
                  fmt::format("hash {} != recorded {}", found.hex(), expected.root_hash.hex()));
  }
}

void read_attributes(const hdf5::Handle& file, TokenSequences& tokens, const std::string& path) {
  const std::string format = hdf5::read_text(file, "hedgerow_format", path);
  if (format != kFormat) {
    throw Error(ErrorKind::kUsage,
                fmt::format("tokens file {}: format '{}', expected '{}'; {}",
                            path,
                            format.substr(0, 40),
                            kFormat,
                            how_to_mend(path)));
  }
  tokens.num_train = hdf5::read_integer(file, "num_train", path);
  tokens.vocab_size = hdf5::read_integer(file, "vocab_size", path);
  tokens.tokenizer_hash = hdf5::read_text(file, "tokenizer_hash", path);
  tokens.sources = hdf5::read_text(file, "sources", path);
  tokens.content_hash = hdf5::read_text(file, "content_hash", path);
}

std::array<hdf5::Handle, 3> open_datasets(const hdf5::Handle& file, const std::string& path) {
  hdf5::require_names(file, kNames, path);
  return {hdf5::open_dataset(file, "input_ids", DType::kI32, path),
          hdf5::open_dataset(file, "loss_mask", DType::kU8, path),
          hdf5::open_dataset(file, "document_starts", DType::kU8, path)};
}

// Sets num_sequences and seq_len. Nothing is filtered, so data larger than the file is a lie that
// would exhaust memory.
void read_shape(const std::array<hdf5::Handle, 3>& datasets,
                std::uint64_t file_bytes,
                TokenSequences& tokens,
                const std::string& path) {
  const std::vector<std::uint64_t> shape = hdf5::layout_of(datasets[0], path).shape;
  for (const hdf5::Handle& dataset : datasets) {
    if (hdf5::layout_of(dataset, path).shape != shape || shape.size() != 2) {
      refuse_tokens(path, "its datasets are not all of one shape [sequences, seq_len]");
    }
  }
  std::uint64_t elements = 0;
  if (__builtin_mul_overflow(shape[0], shape[1], &elements) || elements == 0 ||
      elements > file_bytes / 6) {
    refuse_tokens(
        path,
        fmt::format("[{}, {}] tokens do not fit its {} bytes", shape[0], shape[1], file_bytes));
  }
  tokens.num_sequences = static_cast<std::int64_t>(shape[0]);
  tokens.seq_len = static_cast<std::int64_t>(shape[1]);
  if (tokens.num_train < 0 || tokens.num_train > tokens.num_sequences) {
    refuse_tokens(
        path, fmt::format("num_train {} of {} sequences", tokens.num_train, tokens.num_sequences));
  }
}

template <typename T>
std::vector<T> read_all(const hdf5::Handle& dataset,
                        hid_t type,
                        std::int64_t elements,
                        const std::string& path) {
  std::vector<T> values(static_cast<std::size_t>(elements));
  hdf5::check(
      H5Dread(dataset.id(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), "H5Dread", path);
  return values;
}

void verify_content(const TokenSequences& tokens, const std::string& path) {
  const Hash128 found = content_hash(tokens);
  if (found.hex() != tokens.content_hash) {
    refuse_tokens(
        path,
        fmt::format(
            "content hash {} != recorded {}", found.hex(), tokens.content_hash.substr(0, 40)));
  }
  const auto is_flag = [](std::uint8_t value) { return value <= 1; };
  if (!std::ranges::all_of(tokens.loss_mask, is_flag) ||
      !std::ranges::all_of(tokens.document_starts, is_flag)) {
    refuse_tokens(path, "loss_mask and document_starts must be 0 or 1");
  }
}

void verify_ids(const TokenSequences& tokens, std::int64_t vocab_size, const std::string& path) {
  const auto bad = std::ranges::find_if(
      tokens.input_ids, [&](std::int32_t id) { return id < 0 || id >= vocab_size; });
  if (bad == tokens.input_ids.end()) return;
  const std::int64_t at = bad - tokens.input_ids.begin();
  throw Error(ErrorKind::kUsage,
              fmt::format("tokens file {}: token id {} at sequence {}, position {} is outside the "
                          "vocabulary ({} entries); "
                          "the text was tokenized for another model: {}",
                          path,
                          *bad,
                          at / tokens.seq_len,
                          at % tokens.seq_len,
                          vocab_size,
                          how_to_mend(path)));
}

void require_consistent(const TokenSequences& tokens, const std::string& path) {
  const auto elements = static_cast<std::size_t>(tokens.num_sequences * tokens.seq_len);
  if (tokens.num_sequences < 1 || tokens.seq_len < 1 || tokens.num_train < 0 ||
      tokens.num_train > tokens.num_sequences || tokens.input_ids.size() != elements ||
      tokens.loss_mask.size() != elements || tokens.document_starts.size() != elements) {
    throw Error(ErrorKind::kInternal,
                fmt::format("tokens file {}: sizes of its parts do not fit together", path));
  }
}

template <typename T>
void write_dataset(const hdf5::Handle& file,
                   const char* name,
                   DType dtype,
                   const TokenSequences& tokens,
                   const std::vector<T>& values,
                   const std::string& path) {
  const hdf5::DatasetLayout layout{{static_cast<std::uint64_t>(tokens.num_sequences),
                                    static_cast<std::uint64_t>(tokens.seq_len)},
                                   {}};
  const hdf5::Handle dataset = hdf5::create_dataset(file, name, dtype, layout, path);
  const hdf5::Handle type = hdf5::file_type(dtype);
  hdf5::check(H5Dwrite(dataset.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
              "H5Dwrite",
              path,
              ErrorKind::kUnavailable);
}

void write_all(hdf5::Handle& file, const TokenSequences& tokens, const std::string& path) {
  write_dataset(file, "input_ids", DType::kI32, tokens, tokens.input_ids, path);
  write_dataset(file, "loss_mask", DType::kU8, tokens, tokens.loss_mask, path);
  write_dataset(file, "document_starts", DType::kU8, tokens, tokens.document_starts, path);
  hdf5::write_text(file, "hedgerow_format", kFormat, path);
  hdf5::write_integer(file, "num_train", tokens.num_train, path);
  hdf5::write_integer(file, "vocab_size", tokens.vocab_size, path);
  hdf5::write_text(file, "tokenizer_hash", tokens.tokenizer_hash, path);
  hdf5::write_text(file, "sources", tokens.sources, path);
  hdf5::write_text(file, "content_hash", content_hash(tokens).hex(), path);
  if (!file.close()) hdf5::throw_error("H5Fclose", path, ErrorKind::kUnavailable);
}

TokenSequences read_tokens(const std::filesystem::path& path, std::int64_t model_vocab_size) {
  const std::string name = path.string();
  const std::uint64_t file_bytes = File::open_read(path).size();  // kNotFound, before HDF5 words it
  TokenSequences tokens;
  const hdf5::Handle file = hdf5::open_file(path);
  read_attributes(file, tokens, name);
  const std::array<hdf5::Handle, 3> datasets = open_datasets(file, name);
  read_shape(datasets, file_bytes, tokens, name);
  const std::int64_t elements = tokens.num_sequences * tokens.seq_len;
  tokens.input_ids = read_all<std::int32_t>(datasets[0], H5T_STD_I32LE, elements, name);
  tokens.loss_mask = read_all<std::uint8_t>(datasets[1], H5T_STD_U8LE, elements, name);
  tokens.document_starts = read_all<std::uint8_t>(datasets[2], H5T_STD_U8LE, elements, name);
  verify_content(tokens, name);
  verify_ids(tokens, model_vocab_size, name);
  return tokens;
}

// Whatever of a file is damaged, its reader has the same to do.
template <typename Read>
auto telling_how_to_mend(const std::filesystem::path& path, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    throw Error(
        error.kind(),
        fmt::format(
            "{}; this is no tokens file, or a damaged one: {}", error.what(), how_to_mend(path)));
  }
}

}  // namespace

std::span<const std::int32_t> TokenSequences::sequence(std::int64_t index) const {
  return std::span(input_ids).subspan(static_cast<std::size_t>(index * seq_len),
                                      static_cast<std::size_t>(seq_len));
}

std::span<const std::uint8_t> TokenSequences::mask(std::int64_t index) const {
  return std::span(loss_mask).subspan(static_cast<std::size_t>(index * seq_len),
                                      static_cast<std::size_t>(seq_len));
}

TokenSequences load_tokens(const std::filesystem::path& path,
                           std::int64_t model_vocab_size,
                           const std::optional<FileRecord>& expected) {
  if (expected) verify_tokens(path, *expected);
  return telling_how_to_mend(path, [&] { return read_tokens(path, model_vocab_size); });
}

void verify_tokens(const std::filesystem::path& path, const FileRecord& expected) {
  telling_how_to_mend(path, [&] { require_recorded(path, expected); });
}

void write_tokens(const std::filesystem::path& path, const TokenSequences& tokens) {
  require_consistent(tokens, path.string());
  hdf5::Handle file = hdf5::create_file(path, 0);
  try {
    write_all(file, tokens, path.string());
    sync_file(path);
  } catch (const Error&) {
    std::error_code ignored;
    std::filesystem::resize_file(path, 0, ignored);  // frees the space that HDF5 needs to close
    file.close();
    std::filesystem::remove(path, ignored);
    throw;
  }
}

}  // namespace hedgerow::storage
