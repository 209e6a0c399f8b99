#include "storage/shards/hidden_shard.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/shards/shard_header.hpp"
#include "tests/support/forked_process.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/shard_fixture.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using tests::bytes_of;
using tests::sequence_bytes;
using tests::shard_info;
using tests::write_bytes;
using tests::write_shard;

// What reading everything says: the refusal to open, the first damage, or nothing.
std::string diagnosis(const fs::path& path, const std::optional<FileRecord>& expected) {
  try {
    const std::vector<std::string> damage = ShardReader(path, expected).check();
    return damage.empty() ? "" : damage.front();
  } catch (const Error& error) {
    return error.what();
  }
}

class HiddenShard : public ::testing::Test {
 protected:
  tests::MemoryDirectory directory_;
  fs::path path_ = directory_ / "s00012.t41.h5";
};

TEST_F(HiddenShard, EverySequenceComesBackInAnyOrderAndElementType) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    ShardInfo info = shard_info(5, 7, 24);
    info.dtype = dtype;
    const FileRecord record = write_shard(path_, info);
    EXPECT_EQ(record.size, fs::file_size(path_));
    const ShardReader reader(path_, record);
    EXPECT_EQ(reader.info().fencing_token, info.fencing_token);
    EXPECT_EQ(reader.info().dtype, dtype);
    std::vector<std::byte> out(info.bytes_per_sequence());
    for (const std::int64_t i : {4, 0, 2, 2, 1, 3}) {
      reader.read(i, out);
      EXPECT_EQ(out, sequence_bytes(info, i)) << to_string(dtype) << ", sequence " << i;
    }
    EXPECT_TRUE(reader.check().empty());
  }
}

TEST_F(HiddenShard, SameInputGivesTheSameBytes) {
  write_shard(path_, shard_info(3, 64, 96));
  write_shard(directory_ / "again.h5", shard_info(3, 64, 96));
  EXPECT_EQ(bytes_of(path_), bytes_of(directory_ / "again.h5"));
}

TEST_F(HiddenShard, LargeChunksBeginAtAPage) {
  write_shard(path_, shard_info(2, 64, 96));
  const std::string file = bytes_of(path_);
  const ShardHeader header = decode_shard_header(std::as_bytes(std::span(file)), file.size(), "x");
  EXPECT_EQ(header.data_offset % 4096, 0U);
}

TEST_F(HiddenShard, EveryOneOf2000BitFlipsIsFoundAndPlaced) {
  const ShardInfo info = shard_info(6, 16, 64);
  const FileRecord record = write_shard(path_, info);
  const std::string sound = bytes_of(path_);
  const ShardHeader header =
      decode_shard_header(std::as_bytes(std::span(sound)), sound.size(), "x");
  std::uint64_t random = 41;
  for (int flip = 0; flip < 2000; ++flip) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    const std::size_t bit = (random >> 20) % (sound.size() * 8);
    tests::flip_bit(path_, bit);
    // Every second one without the journal's record, as `hedgerow check FILE` sees it.
    const std::string found =
        diagnosis(path_, flip % 2 == 0 ? std::optional(record) : std::nullopt);
    ASSERT_NE(found, "") << "flip " << flip << ", bit " << bit << " went unnoticed";
    if (bit / 8 >= header.data_offset && bit / 8 < header.data_end()) {
      const std::size_t sequence = (bit / 8 - header.data_offset) / info.bytes_per_sequence();
      ASSERT_THAT(found, HasSubstr("sequence " + std::to_string(sequence) + " ")) << "bit " << bit;
    }
    tests::flip_bit(path_, bit);
  }
}

TEST_F(HiddenShard, SoundChunksInTheWrongPlaceAreDamaged) {
  const ShardInfo info = shard_info(4, 4, 16);
  const FileRecord record = write_shard(path_, info);
  std::string file = bytes_of(path_);
  const ShardHeader header = decode_shard_header(std::as_bytes(std::span(file)), file.size(), "x");
  const std::size_t stride = info.bytes_per_sequence();
  std::swap_ranges(file.begin() + static_cast<std::ptrdiff_t>(header.data_offset),
                   file.begin() + static_cast<std::ptrdiff_t>(header.data_offset + stride),
                   file.begin() + static_cast<std::ptrdiff_t>(header.data_offset + 2 * stride));
  write_bytes(path_, file);
  const std::vector<std::string> damage = ShardReader(path_, record).check();
  ASSERT_EQ(damage.size(), 2U);
  EXPECT_THAT(damage[0], HasSubstr("sequence 0 "));
  EXPECT_THAT(damage[1], HasSubstr("sequence 2 "));
}

// The specified formula, so that equal data in two places, shards or attempts has different hashes.
TEST_F(HiddenShard, AChunksHashCoversShardAttemptAndIndex) {
  const ShardInfo info = shard_info(2, 4, 16);
  const std::vector<std::byte> bytes = sequence_bytes(info, 0);
  ShardWriter writer(path_, info);
  for (int i = 0; i < 2; ++i) writer.append(bytes);
  writer.finish("s.h5");
  const std::string file = bytes_of(path_);
  for (std::uint64_t index = 0; index < 2; ++index) {
    Hasher128 hasher;
    hasher.update(3).update(12).update(41).update(index).update(bytes);
    const std::string hex = hasher.digest().hex();
    std::string digest;
    for (std::size_t k = 0; k < hex.size(); k += 2) {
      digest += static_cast<char>(std::stoi(hex.substr(k, 2), nullptr, 16));
    }
    EXPECT_NE(file.find(digest), std::string::npos) << "index " << index;
  }
}

TEST_F(HiddenShard, AFileOfAnotherAttemptIsNotTheOneThatTheJournalNames) {
  ShardInfo info = shard_info(3, 4, 16);
  const FileRecord record = write_shard(path_, info);
  ++info.fencing_token;
  write_shard(path_, info);
  EXPECT_THAT(diagnosis(path_, record), AllOf(HasSubstr("root hash"), HasSubstr(path_.string())));
  EXPECT_EQ(diagnosis(path_, std::nullopt), "");
}

TEST_F(HiddenShard, ForeignFilesAreRefusedBeforeHdf5SeesThem) {
  write_bytes(path_, std::string("\x89HDF\r\n\x1a\n", 8) + std::string(8000, '\0'));
  EXPECT_THAT(diagnosis(path_, std::nullopt), HasSubstr("no header"));
  write_bytes(path_, "");
  EXPECT_THAT(diagnosis(path_, std::nullopt), HasSubstr("too few"));
  EXPECT_THROW(ShardReader(directory_ / "none.h5"), Error);
}

TEST_F(HiddenShard, AWriterThatDidNotFinishLeavesNothing) {
  const ShardInfo info = shard_info(3, 4, 16);
  {
    ShardWriter writer(path_, info);
    writer.append(sequence_bytes(info, 0));
    EXPECT_THAT(tests::refusal([&] { writer.finish("x"); }, ErrorKind::kInternal),
                HasSubstr("1 of 3"));
  }
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(HiddenShard, AKilledWriterLeavesNoShardThatOpens) {
  const ShardInfo info = shard_info(40, 64, 96);
  for (int after = 0; after < 40; after += 3) {
    tests::ForkedProcess child([&] {
      ShardWriter writer(path_, info);
      for (int i = 0; i < after; ++i) writer.append(sequence_bytes(info, i));
      ::kill(::getpid(), SIGKILL);
    });
    const int status = child.wait();
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ASSERT_TRUE(fs::exists(path_)) << "the child must have died while writing";
    EXPECT_NE(diagnosis(path_, std::nullopt), "") << "killed after " << after << " sequences";
  }
}

TEST_F(HiddenShard, AFailingWriteThrowsAndRemovesThePartialFile) {
  const ShardInfo info = shard_info(4, 64, 96);
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  {
    ShardWriter writer(path_, info);
    writer.append(sequence_bytes(info, 0));
    const rlimit limited{30000, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
    try {
      for (int i = 1; i < 4; ++i) writer.append(sequence_bytes(info, i));
      ADD_FAILURE() << "written beyond the limit";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kExhausted) << error.what();
    }
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(fs::exists(path_));
}

// In a child, because the mount must not outlive the test. Exit 77: this machine may not mount.
int write_on_a_full_disk(const fs::path& mount_point) {
  if (::unshare(CLONE_NEWNS) != 0) return 77;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
  if (::mount("tmpfs", mount_point.c_str(), "tmpfs", 0, "size=1m") != 0) return 77;
  const ShardInfo info = shard_info(100, 64, 96);
  const std::uint64_t before = free_bytes(mount_point);
  try {
    const ShardWriter writer(mount_point / "s.h5", info);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kExhausted) return 2;
    if (std::string(error.what()).find("free space") == std::string::npos) return 3;
    if (fs::exists(mount_point / "s.h5")) return 4;
    return free_bytes(mount_point) == before ? 0 : 5;
  }
  return 1;
}

TEST_F(HiddenShard, AFullDiskIsExhaustedBeforeAnythingIsComputedAndLeavesNoFile) {
  tests::ForkedProcess child([&] { ::_exit(write_on_a_full_disk(directory_.path())); });
  const int status = child.wait();
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this machine may not mount a tmpfs";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ShardHeader, ALaterFormatIsTheUsersMatter) {
  ShardHeader header{
      .info = shard_info(1, 1, 1), .file_bytes = 8192, .data_offset = 4096, .root_hash = {}};
  std::string text = encode_shard_header(header);
  text.replace(text.find("shard 1"), 7, "shard 2");
  try {
    (void)decode_shard_header(std::as_bytes(std::span(text)), 8192, "s.h5");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  }
}

TEST(ShardHeader, NumbersThatDoNotFitTheFileAreRefused) {
  const ShardHeader good{
      .info = shard_info(2, 4, 16), .file_bytes = 8192, .data_offset = 4096, .root_hash = {}};
  const auto refuses = [](const ShardHeader& header, std::uint64_t file_bytes) {
    const std::string text = encode_shard_header(header);
    return tests::refusal(
        [&] { (void)decode_shard_header(std::as_bytes(std::span(text)), file_bytes, "s.h5"); },
        ErrorKind::kCorrupt);
  };
  EXPECT_EQ(refuses(good, 8192), "(accepted)");
  EXPECT_THAT(refuses(good, 8191), HasSubstr("header says 8192"));
  ShardHeader bad = good;
  bad.data_offset = 8192 - 255;
  EXPECT_THAT(refuses(bad, 8192), HasSubstr("outside the file"));
  bad.data_offset = 4095;
  EXPECT_THAT(refuses(bad, 8192), HasSubstr("outside the file"));
  bad = good;
  bad.info.num_sequences = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(refuses(bad, 8192), HasSubstr("damaged"));
  bad = good;
  bad.info.seq_len = -4;
  EXPECT_THAT(refuses(bad, 8192), HasSubstr("damaged"));
}

TEST_F(HiddenShard, H5pyReadsBf16AsTheNumbersThatWereWrittenAndTheHashesAsSpecified) {
  const char* const home = std::getenv("HOME");
  const char* const cache = std::getenv("HEDGEROW_CACHE");
  const fs::path python =
      (cache != nullptr ? fs::path(cache)
                        : fs::path(home == nullptr ? "/" : home) / ".cache/hedgerow") /
      "venv/bin/python";
  if (!fs::exists(python)) GTEST_SKIP() << "no Python environment (deploy/setup makes it)";
  ShardInfo info = shard_info(2, 3, 4);
  info.dtype = DType::kBF16;
  {
    ShardWriter writer(path_, info);
    for (int i = 0; i < 2; ++i) {
      // 1.0, 1.0078125, -2.0 and 3.3895314e38: an exact bf16 each.
      const std::uint16_t row[4] = {0x3f80, 0x3f81, 0xc000, 0x7f7f};
      std::vector<std::byte> bytes(info.bytes_per_sequence());
      for (std::size_t t = 0; t < 3; ++t)
        std::memcpy(bytes.data() + t * sizeof(row), row, sizeof(row));
      writer.append(bytes);
    }
    writer.finish("s.h5");
  }
  const std::string script =
      "import h5py, struct, sys, xxhash; f=h5py.File(sys.argv[1]); d=f['hidden_states']; "
      "assert d.shape==(2,3,4), d.shape; "
      "assert d[1,2].tolist()==[1.0,1.0078125,-2.0,3.3895313892515355e38], d[1,2].tolist(); "
      "row=struct.pack('<4H',0x3f80,0x3f81,0xc000,0x7f7f)*3; "
      "hashes=[xxhash.xxh3_128_digest(struct.pack('<4Q',3,12,41,i)+row) for i in range(2)]; "
      "assert [h.tobytes() for h in f['chunk_hashes'][:]]==hashes";
  const std::string command = python.string() + " -c \"" + script + "\" " + path_.string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace hedgerow::storage
