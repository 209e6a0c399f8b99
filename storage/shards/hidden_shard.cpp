#include "storage/shards/hidden_shard.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/shards/hdf5_handle.hpp"
#include "storage/shards/shard_header.hpp"

namespace hedgerow::storage {
namespace {

constexpr const char* kAgain =
    "a run that goes on makes it again; 'hedgerow check --repair' marks all damage, for the next "
    "run to make again";
constexpr const char* kStates = "hidden_states";
constexpr const char* kHashes = "chunk_hashes";
constexpr std::array kNames{kHashes, kStates};
constexpr std::size_t kHashBytes = 16;
constexpr std::size_t kReadBuffer = 1U << 20;

// Covers the identity too: a sound chunk in the wrong place or of another attempt is a damaged one.
Hash128 chunk_hash(const ShardInfo& info, std::int64_t index, std::span<const std::byte> bytes) {
  Hasher128 hasher;
  hasher.update(static_cast<std::uint64_t>(info.boundary))
      .update(static_cast<std::uint64_t>(info.shard))
      .update(info.fencing_token)
      .update(static_cast<std::uint64_t>(index))
      .update(bytes);
  return hasher.digest();
}

// Hash of every byte outside the chunks: header (with zeros for its own digits), HDF5's metadata,
// the table of chunk hashes.
Hash128 root_hash(const File& file, ShardHeader header) {
  header.root_hash = {};
  const std::string text = encode_shard_header(header);
  Hasher128 hasher;
  hasher.update(std::as_bytes(std::span(text)));
  const std::uint64_t hashed = header.data_offset + (header.file_bytes - header.data_end());
  std::vector<std::byte> buffer(std::min<std::uint64_t>(hashed, kReadBuffer));
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    while (begin < end) {
      const auto part =
          std::span(buffer).first(std::min<std::uint64_t>(end - begin, buffer.size()));
      file.read_exact(part, begin);
      hasher.update(part);
      begin += part.size();
    }
  };
  add(kShardHeaderBytes, header.data_offset);
  add(header.data_end(), header.file_bytes);
  return hasher.digest();
}

hdf5::DatasetLayout states_layout(const ShardInfo& info) {
  const auto n = static_cast<std::uint64_t>(info.num_sequences);
  const auto t = static_cast<std::uint64_t>(info.seq_len);
  const auto m = static_cast<std::uint64_t>(info.hidden_size);
  return {{n, t, m}, {1, t, m}};
}

hdf5::DatasetLayout hashes_layout(const ShardInfo& info) {
  return {{static_cast<std::uint64_t>(info.num_sequences), kHashBytes}, {}};
}

// XXH3's canonical form, big-endian, as every other XXH3 implementation's digest() gives it.
std::array<std::byte, kHashBytes> to_bytes(const Hash128& hash) {
  std::array<std::byte, kHashBytes> bytes{};
  for (std::size_t i = 0; i < kHashBytes; ++i) {
    const std::uint64_t word = i < 8 ? hash.high : hash.low;
    bytes[i] = static_cast<std::byte>(word >> (56 - 8 * (i % 8)));
  }
  return bytes;
}

Hash128 from_bytes(std::span<const std::byte, kHashBytes> bytes) {
  Hash128 hash;
  for (std::size_t i = 0; i < kHashBytes; ++i) {
    std::uint64_t& word = i < 8 ? hash.high : hash.low;
    word = word << 8 | static_cast<std::uint64_t>(bytes[i]);
  }
  return hash;
}

haddr_t chunk_address(const hdf5::Handle& dataset,
                      std::int64_t index,
                      std::size_t expected_bytes,
                      const std::string& path) {
  const std::array<hsize_t, 3> offset{static_cast<hsize_t>(index), 0, 0};
  unsigned filter_mask = 0;
  haddr_t address = HADDR_UNDEF;
  hsize_t bytes = 0;
  hdf5::check(
      H5Dget_chunk_info_by_coord(dataset.id(), offset.data(), &filter_mask, &address, &bytes),
      "H5Dget_chunk_info_by_coord",
      path);
  if (address == HADDR_UNDEF || bytes != expected_bytes || filter_mask != 0) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("shard {}, sequence {}: HDF5 has no plain chunk for it", path, index));
  }
  return address;
}

// HDF5 before 2.0 counts a chunk's address from the end of the user block, later releases from the
// start of the file.
bool is_address_of(haddr_t address, std::uint64_t offset) {
  return address == offset || address + kShardHeaderBytes == offset;
}

}  // namespace

std::size_t ShardInfo::bytes_per_sequence() const {
  return static_cast<std::size_t>(seq_len) * static_cast<std::size_t>(hidden_size) * size_of(dtype);
}

struct ShardWriter::Impl {
  Impl(const std::filesystem::path& p, const ShardInfo& i) : path(p), info(i) {
    if (info.num_sequences < 1 || info.seq_len < 1 || info.hidden_size < 1) {
      throw Error(ErrorKind::kInternal,
                  fmt::format("shard {}: sizes must be positive", path.string()));
    }
    try {
      file = hdf5::create_file(path, kShardHeaderBytes);
      reserve_space();
      dataset = hdf5::create_dataset(file, kStates, info.dtype, states_layout(info), path.string());
    } catch (const Error&) {
      drop();
      throw;
    }
    hashes.reserve(static_cast<std::size_t>(info.num_sequences));
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (!finished) drop();
  }

  // Where the file system can (network file systems may not), so that the disk is full now and not
  // in an hour.
  void reserve_space() {
    const File raw = File::open_update(path);
    const auto bytes = static_cast<off_t>(info.bytes_per_sequence()) * info.num_sequences;
    if (::fallocate(raw.descriptor(), FALLOC_FL_KEEP_SIZE, 0, bytes) != 0 && errno != EOPNOTSUPP &&
        errno != EINTR && errno != ENOSYS) {
      throw system_error("reserve space for", path.string(), errno);
    }
  }

  // Truncates before closing: HDF5 still wants to write what it holds, which on a full disk works
  // only once our own bytes are gone; a failing close would keep the descriptor, and with it the
  // space, until the process ends.
  void drop() noexcept {
    std::error_code ignored;
    std::filesystem::resize_file(path, 0, ignored);
    dataset.close();
    file.close();
    std::filesystem::remove(path, ignored);
  }

  void write_hashes() {
    std::vector<std::byte> table;
    for (const Hash128& hash : hashes) {
      const auto digest = to_bytes(hash);
      table.insert(table.end(), digest.begin(), digest.end());
    }
    const hdf5::Handle side =
        hdf5::create_dataset(file, kHashes, DType::kU8, hashes_layout(info), path.string());
    hdf5::check(H5Dwrite(side.id(), H5T_STD_U8LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, table.data()),
                "H5Dwrite",
                path.string(),
                ErrorKind::kUnavailable);
  }

  // Finds chunk 0 in the closed file by its content, which also proves that what was written can be
  // read back.
  std::uint64_t find_data(const File& raw, haddr_t address) const {
    std::vector<std::byte> bytes(info.bytes_per_sequence());
    for (const std::uint64_t offset : {address, address + kShardHeaderBytes}) {
      if (offset + bytes.size() > raw.size()) continue;
      raw.read_exact(bytes, offset);
      if (chunk_hash(info, 0, bytes) == hashes.front()) return offset;
    }
    throw Error(
        ErrorKind::kUnavailable,
        fmt::format(
            "shard {}: what was written does not read back; the disk or its driver is faulty",
            path.string()));
  }

  std::filesystem::path path;
  ShardInfo info;
  hdf5::Handle file;
  hdf5::Handle dataset;
  std::vector<Hash128> hashes;
  bool finished = false;
};

ShardWriter::ShardWriter(const std::filesystem::path& path, const ShardInfo& info)
    : impl_(std::make_unique<Impl>(path, info)) {}
ShardWriter::~ShardWriter() = default;

void ShardWriter::append(std::span<const std::byte> bytes) {
  const auto index = static_cast<std::int64_t>(impl_->hashes.size());
  if (index >= impl_->info.num_sequences || bytes.size() != impl_->info.bytes_per_sequence()) {
    throw Error(
        ErrorKind::kInternal,
        fmt::format(
            "shard {}: sequence {} with {} bytes appended, expected {} sequences of {} bytes",
            impl_->path.string(),
            index,
            bytes.size(),
            impl_->info.num_sequences,
            impl_->info.bytes_per_sequence()));
  }
  hdf5::prepare();
  const std::array<hsize_t, 3> offset{static_cast<hsize_t>(index), 0, 0};
  hdf5::check(H5Dwrite_chunk(
                  impl_->dataset.id(), H5P_DEFAULT, 0, offset.data(), bytes.size(), bytes.data()),
              "H5Dwrite_chunk",
              impl_->path.string(),
              ErrorKind::kUnavailable);
  impl_->hashes.push_back(chunk_hash(impl_->info, index, bytes));
}

FileRecord ShardWriter::finish(const std::string& relative_name) {
  Impl& impl = *impl_;
  const std::string path = impl.path.string();
  if (std::ssize(impl.hashes) != impl.info.num_sequences) {
    throw Error(ErrorKind::kInternal,
                fmt::format("shard {}: finished after {} of {} sequences",
                            path,
                            impl.hashes.size(),
                            impl.info.num_sequences));
  }
  hdf5::prepare();
  impl.write_hashes();
  const std::size_t stride = impl.info.bytes_per_sequence();
  const std::int64_t last = impl.info.num_sequences - 1;
  const haddr_t first_address = chunk_address(impl.dataset, 0, stride, path);
  const haddr_t last_address = chunk_address(impl.dataset, last, stride, path);
  if (last_address != first_address + static_cast<std::uint64_t>(last) * stride) {
    throw Error(ErrorKind::kInternal,
                fmt::format("shard {}: this HDF5 does not lay chunks one after the other", path));
  }
  impl.dataset.close();
  if (!impl.file.close()) hdf5::throw_error("H5Fclose", path, ErrorKind::kUnavailable);

  File raw = File::open_update(impl.path);
  ShardHeader header{.info = impl.info,
                     .file_bytes = raw.size(),
                     .data_offset = impl.find_data(raw, first_address),
                     .root_hash = {}};
  header.root_hash = root_hash(raw, header);
  const std::string text = encode_shard_header(header);
  raw.write_at(std::as_bytes(std::span(text)), 0);
  raw.sync();
  raw.close();
  impl.finished = true;
  return {relative_name, header.file_bytes, header.root_hash};
}

struct ShardReader::Impl {
  Impl(const std::filesystem::path& p, const std::optional<FileRecord>& expected)
      : path(p.string()), file(File::open_read(p)) {
    verify(expected);
    take_offsets_and_hashes(p);
  }

  // Nothing of the file reaches HDF5 before this has passed.
  void verify(const std::optional<FileRecord>& expected) {
    const std::uint64_t size = file.size();
    if (expected && expected->size != size) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("shard {}: it has {} bytes, the journal recorded {}; {}",
                              path,
                              size,
                              expected->size,
                              kAgain));
    }
    std::vector<std::byte> first(std::min<std::uint64_t>(size, kShardHeaderBytes));
    file.read_exact(first, 0);
    header = decode_shard_header(first, size, path);
    const Hash128 recorded = expected ? expected->root_hash : header.root_hash;
    const Hash128 found = root_hash(file, header);
    if (found != recorded || header.root_hash != recorded) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("shard {}, outside its sequences: root hash {} != recorded {}; {}",
                              path,
                              found.hex(),
                              recorded.hex(),
                              kAgain));
    }
  }

  // Once, under HDF5's global lock; every later read is a pread. HDF5 must see the very chunks that
  // the header names, or h5py's users and we would read different numbers.
  void take_offsets_and_hashes(const std::filesystem::path& p) {
    const hdf5::Handle hdf = hdf5::open_file(p);
    hdf5::require_names(hdf, kNames, path);
    const hdf5::Handle states = hdf5::open_dataset(hdf, kStates, header.info.dtype, path);
    const hdf5::Handle side = hdf5::open_dataset(hdf, kHashes, DType::kU8, path);
    if (hdf5::layout_of(states, path) != states_layout(header.info) ||
        hdf5::layout_of(side, path) != hashes_layout(header.info)) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("shard {}: its datasets have not the shapes of its header", path));
    }
    const std::size_t stride = header.info.bytes_per_sequence();
    for (std::int64_t i = 0; i < header.info.num_sequences; ++i) {
      const std::uint64_t offset = header.data_offset + static_cast<std::uint64_t>(i) * stride;
      if (!is_address_of(chunk_address(states, i, stride, path), offset)) {
        throw Error(
            ErrorKind::kCorrupt,
            fmt::format(
                "shard {}, sequence {}: HDF5 sees it elsewhere than byte {}", path, i, offset));
      }
    }
    std::vector<std::byte> table(static_cast<std::size_t>(header.info.num_sequences) * kHashBytes);
    hdf5::check(H5Dread(side.id(), H5T_STD_U8LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, table.data()),
                "H5Dread",
                path);
    for (std::size_t at = 0; at < table.size(); at += kHashBytes) {
      hashes.push_back(from_bytes(std::span(table).subspan(at).first<kHashBytes>()));
    }
  }

  std::string path;
  File file;
  ShardHeader header;
  std::vector<Hash128> hashes;
};

ShardReader::ShardReader(const std::filesystem::path& path,
                         const std::optional<FileRecord>& expected)
    : impl_(std::make_unique<Impl>(path, expected)) {}
ShardReader::ShardReader(ShardReader&&) noexcept = default;
ShardReader::~ShardReader() = default;

const ShardInfo& ShardReader::info() const { return impl_->header.info; }

void ShardReader::read(std::int64_t index, std::span<std::byte> out) const {
  const ShardInfo& shard = info();
  const std::size_t stride = shard.bytes_per_sequence();
  if (index < 0 || index >= shard.num_sequences || out.size() != stride) {
    throw Error(ErrorKind::kInternal,
                fmt::format("shard {}: sequence {} asked for into {} bytes, it has {} of {} bytes",
                            impl_->path,
                            index,
                            out.size(),
                            shard.num_sequences,
                            stride));
  }
  const std::uint64_t offset =
      impl_->header.data_offset + static_cast<std::uint64_t>(index) * stride;
  impl_->file.read_exact(out, offset);
  const Hash128 found = chunk_hash(shard, index, out);
  const Hash128& recorded = impl_->hashes[static_cast<std::size_t>(index)];
  if (found != recorded) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("shard {}, sequence {} (bytes {} to {}): hash {} != recorded {}; {}",
                            impl_->path,
                            index,
                            offset,
                            offset + stride,
                            found.hex(),
                            recorded.hex(),
                            kAgain));
  }
}

std::vector<std::string> ShardReader::check() const {
  std::vector<std::string> damage;
  std::vector<std::byte> bytes(info().bytes_per_sequence());
  for (std::int64_t i = 0; i < info().num_sequences; ++i) {
    try {
      read(i, bytes);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt) throw;
      damage.emplace_back(error.what());
    }
  }
  return damage;
}

}  // namespace hedgerow::storage
