#include "storage/shards/tokens_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "storage/base/error.hpp"
#include "storage/files/hash.hpp"
#include "storage/files/run_layout.hpp"
#include "tests/support/shard_fixture.hpp"
#include "tests/support/temporary_directory.hpp"

#if defined(__SANITIZE_ADDRESS__)
// HDF5 1.10 does not free all of what it had read of a damaged file that it then refuses.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }
#endif

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

TokenSequences sample() {
  TokenSequences tokens{.num_sequences = 5,
                        .num_train = 3,
                        .seq_len = 7,
                        .vocab_size = 100,
                        .tokenizer_hash = "00ff",
                        .sources = R"([{"path":"caf\u00e9.txt"}])",
                        .content_hash = {},
                        .input_ids = {},
                        .loss_mask = {},
                        .document_starts = {}};
  for (int i = 0; i < 35; ++i) {
    tokens.input_ids.push_back(i * 13 % 100);
    tokens.loss_mask.push_back(i % 3 == 0 ? 0 : 1);
    tokens.document_starts.push_back(i % 11 == 0 ? 1 : 0);
  }
  return tokens;
}

class TokensFile : public ::testing::Test {
 protected:
  std::string refusal(ErrorKind kind,
                      std::int64_t vocab_size = 100,
                      const std::optional<FileRecord>& record = {}) {
    try {
      (void)load_tokens(path_, vocab_size, record);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      return error.what();
    }
    return "(accepted)";
  }
  // Runs Python with the tokenizer code of deploy/huggingface on its path, or skips.
  void python(const std::string& script) {
    const char* const home = std::getenv("HOME");
    const char* const cache = std::getenv("HEDGEROW_CACHE");
    const fs::path interpreter =
        (cache != nullptr ? fs::path(cache)
                          : fs::path(home == nullptr ? "/" : home) / ".cache/hedgerow") /
        "venv/bin/python";
    if (!fs::exists(interpreter)) GTEST_SKIP() << "no Python environment (deploy/setup makes it)";
    const std::string command = "PYTHONPATH=" HEDGEROW_SOURCE_DIR
                                "/deploy/huggingface OMP_NUM_THREADS=1 " +
                                interpreter.string() + " -B -c '" + script + "' " + path_.string();
    ASSERT_EQ(std::system(command.c_str()), 0);
  }

  tests::MemoryDirectory directory_;
  fs::path path_ = directory_ / "transfer.h5";
};

TEST_F(TokensFile, ATextOverItsCapIsRefused) {
  TokenSequences tokens = sample();
  tokens.sources = std::string((16U << 20) + 1, 'x');
  write_tokens(path_, tokens);
  EXPECT_THAT(refusal(ErrorKind::kCorrupt),
              HasSubstr("the attribute 'sources' has 16777217 bytes, expected at most 16777216"));
}

TEST_F(TokensFile, RoundTripKeepsEverything) {
  const TokenSequences tokens = sample();
  write_tokens(path_, tokens);
  const TokenSequences read = load_tokens(path_, 100);
  EXPECT_EQ(read.num_sequences, 5);
  EXPECT_EQ(read.num_train, 3);
  EXPECT_EQ(read.num_validation(), 2);
  EXPECT_EQ(read.seq_len, 7);
  EXPECT_EQ(read.vocab_size, 100);
  EXPECT_EQ(read.tokenizer_hash, tokens.tokenizer_hash);
  EXPECT_EQ(read.sources, tokens.sources);
  EXPECT_EQ(read.input_ids, tokens.input_ids);
  EXPECT_EQ(read.loss_mask, tokens.loss_mask);
  EXPECT_EQ(read.document_starts, tokens.document_starts);
  EXPECT_EQ(read.sequence(4).front(), 28 * 13 % 100);
  EXPECT_EQ(read.mask(1).front(), 7 % 3 == 0 ? 0 : 1);
}

TEST_F(TokensFile, SameTokensGiveTheSameBytes) {
  write_tokens(path_, sample());
  write_tokens(directory_ / "again.h5", sample());
  EXPECT_EQ(tests::bytes_of(path_), tests::bytes_of(directory_ / "again.h5"));
}

TEST_F(TokensFile, WhatPythonWritesIsReadAndTheHashesAgree) {
  python(R"(
import sys, numpy as np, make_tokens
from pathlib import Path
from types import SimpleNamespace as N
ids = np.arange(12, dtype=np.int64).reshape(3, 4); one = np.ones((3, 4), np.uint8); start = np.zeros((3, 4), np.uint8)
s = N(input_ids=ids, loss_mask=one, document_starts=start, num_train=2, sources=[{"path": "caf\u00e9"}])
make_tokens.write_tokens(Path(sys.argv[1]), s, N(vocab_size=50, hash="abc"))
)");
  if (IsSkipped()) return;
  const TokenSequences tokens = load_tokens(path_, 50);
  EXPECT_EQ(tokens.num_sequences, 3);
  EXPECT_EQ(tokens.num_train, 2);
  EXPECT_EQ(tokens.vocab_size, 50);
  EXPECT_EQ(tokens.tokenizer_hash, "abc");
  EXPECT_THAT(tokens.sources, HasSubstr("path"));
  EXPECT_EQ(tokens.input_ids, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

TEST_F(TokensFile, PythonReadsWhatWeWriteAndTheHashesAgree) {
  write_tokens(path_, sample());
  python(R"(
import sys, h5py, make_tokens
f = h5py.File(sys.argv[1], "r")
arrays = [f[n][:] for n in ("input_ids", "loss_mask", "document_starts")]
assert [str(a.dtype) for a in arrays] == ["int32", "uint8", "uint8"]
assert f.attrs["hedgerow_format"] == "tokens/1" and f.attrs["num_train"] == 3 and f.attrs["vocab_size"] == 100
assert make_tokens.content_hash(*arrays) == f.attrs["content_hash"]
)");
}

TEST_F(TokensFile, EveryFlippedBitOfTheContentIsFound) {
  write_tokens(path_, sample());
  const std::string file = tests::bytes_of(path_);
  const TokenSequences tokens = sample();
  const auto place = [&](const void* bytes, std::size_t count) {
    const std::size_t at = file.find(std::string(static_cast<const char*>(bytes), count));
    EXPECT_NE(at, std::string::npos);
    return std::pair(at, at + count);
  };
  for (const auto& [begin, end] : {place(tokens.input_ids.data(), 140),
                                   place(tokens.loss_mask.data(), 35),
                                   place(tokens.document_starts.data(), 35)}) {
    for (std::size_t bit = 8 * begin; bit < 8 * end; bit += 3) {
      tests::flip_bit(path_, bit);
      ASSERT_THAT(refusal(ErrorKind::kCorrupt), HasSubstr("content hash")) << "bit " << bit;
      tests::flip_bit(path_, bit);
    }
  }
  EXPECT_EQ(refusal(ErrorKind::kInternal), "(accepted)");
}

TEST_F(TokensFile, TheJournalsRecordIsCheckedBeforeHdf5OpensTheFile) {
  write_tokens(path_, sample());
  const FileRecord record{"tokens/transfer.h5", fs::file_size(path_), hash_file(path_)};
  EXPECT_EQ(refusal(ErrorKind::kCorrupt, 100, record), "(accepted)");
  tests::flip_bit(path_, 3);  // in HDF5's signature: HDF5 itself would say something else
  EXPECT_THAT(refusal(ErrorKind::kCorrupt, 100, record), HasSubstr("!= recorded"));
  fs::resize_file(path_, record.size - 1);
  EXPECT_THAT(refusal(ErrorKind::kCorrupt, 100, record), HasSubstr("the journal recorded"));
}

TEST_F(TokensFile, TokenIdsOutsideTheVocabularyAreNamedWithTheirPlace) {
  write_tokens(path_, sample());
  EXPECT_THAT(refusal(ErrorKind::kUsage, 99),
              AllOf(HasSubstr("token id 99 at sequence 3, position 2"), HasSubstr("(99 entries)")));
  TokenSequences tokens = sample();
  tokens.input_ids[1] = -7;
  write_tokens(path_, tokens);
  EXPECT_THAT(refusal(ErrorKind::kUsage), HasSubstr("token id -7 at sequence 0, position 1"));
}

TEST_F(TokensFile, ForeignAndMissingFilesAreOneClearError) {
  EXPECT_THAT(refusal(ErrorKind::kNotFound), HasSubstr("transfer.h5"));
  tests::write_bytes(path_, "input_ids: 1 2 3");
  EXPECT_THAT(
      refusal(ErrorKind::kCorrupt),
      testing::AllOf(HasSubstr("transfer.h5"), HasSubstr("'hedgerow tokenize' makes another")));
  const ShardInfo info = tests::shard_info(1, 2, 3);
  tests::write_shard(path_, info);
  EXPECT_THAT(refusal(ErrorKind::kCorrupt), HasSubstr("'hedgerow_format' is missing"));
  TokenSequences flags = sample();
  flags.loss_mask[0] = 2;
  write_tokens(path_, flags);
  EXPECT_THAT(refusal(ErrorKind::kCorrupt), HasSubstr("0 or 1"));
}

TEST_F(TokensFile, DamageToAFileOfARunIsNamedWithTheCommandsThatMendIt) {
  const RunLayout run(directory_ / "run");
  const fs::path path = run.root() / RunLayout::tokens(DataStage::kEvaluate);
  fs::create_directories(path.parent_path());
  tests::write_bytes(run.recipe(), "# only its presence matters here");
  write_tokens(path, sample());
  const std::string sound = tests::bytes_of(path);
  for (const char* name : {"num_train", "tokenizer_hash", "loss_mask", "HDF"}) {
    std::string damaged = sound;
    damaged[sound.find(name)] ^= 1;
    tests::write_bytes(path, damaged);
    try {
      static_cast<void>(load_tokens(path, 100));
      ADD_FAILURE() << "accepted without its " << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(path.string()),
                        HasSubstr("'hedgerow check --repair --run " + run.root().string() +
                                  "' takes it away, and 'hedgerow run --run")))
          << name;
    }
  }
}

TEST_F(TokensFile, EveryTruncationIsRefused) {
  write_tokens(path_, sample());
  const std::uint64_t size = fs::file_size(path_);
  for (std::uint64_t length = 0; length < size; length += 97) {
    write_tokens(path_, sample());
    fs::resize_file(path_, length);
    EXPECT_NE(refusal(ErrorKind::kCorrupt), "(accepted)") << length << " of " << size << " bytes";
  }
}

}  // namespace
}  // namespace hedgerow::storage
