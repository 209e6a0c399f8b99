#include "storage/files/file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "storage/base/error.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

ErrorKind kind_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "expected a storage::Error, none was thrown";
  return ErrorKind::kInternal;
}

class FileTest : public ::testing::Test {
 protected:
  tests::TemporaryDirectory directory_;
};

TEST_F(FileTest, WritesAndReadsBackAtAnOffset) {
  File file = File::create(directory_ / "a");
  file.write_all(std::as_bytes(std::span(std::string_view("0123456789"))));
  file.sync();
  file.close();
  std::array<char, 4> part{};
  File::open_read(directory_ / "a").read_exact(std::as_writable_bytes(std::span(part)), 3);
  EXPECT_EQ(std::string(part.data(), part.size()), "3456");
}

TEST_F(FileTest, AShortFileIsCorruptAndTheMessageSaysWhereItEnds) {
  write_atomically(directory_ / "a", "12345");
  std::array<std::byte, 8> part{};
  try {
    File::open_read(directory_ / "a").read_exact(part, 2);
    FAIL() << "read past the end";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    EXPECT_NE(std::string(error.what()).find("ends at byte 5"), std::string::npos) << error.what();
  }
}

// Catches: a run that `ulimit -f` kills without a word.
TEST_F(FileTest, AWriteBeyondTheLimitOfFileSizesFailsLikeOneOnAFullDisk) {
  const auto write_much = [this] {
    let_large_writes_fail();
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      File::create(directory_ / "large").write_all(std::vector<std::byte>(8192));
    } catch (const Error& error) {
      std::_Exit(error.kind() == ErrorKind::kExhausted ? 5 : 1);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(write_much(), ::testing::ExitedWithCode(5), "");
}

// Catches: a run that waits for ever for a writer, or reads a device that has no end.
TEST_F(FileTest, WhatIsNoRegularFileIsRefusedBeforeItIsOpened) {
  ASSERT_EQ(::mkfifo((directory_ / "fifo").c_str(), 0600), 0);
  fs::create_symlink("fifo", directory_ / "link");
  for (const auto& [path, what] : {std::pair(directory_ / "fifo", "a FIFO"),
                                   std::pair(directory_ / "link", "a FIFO"),
                                   std::pair(fs::path("/dev/zero"), "a device"),
                                   std::pair(directory_ / ".", "a directory")}) {
    try {
      static_cast<void>(read_text(path));
      ADD_FAILURE() << path << " was read";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_EQ(error.what(), path.string() + ": is " + what + "; name a regular file");
    }
  }
  EXPECT_EQ(kind_of([&] { static_cast<void>(File::open_append(directory_ / "fifo")); }),
            ErrorKind::kUsage);
  EXPECT_EQ(kind_of([&] { static_cast<void>(read_text(directory_ / "none")); }),
            ErrorKind::kNotFound);
  write_atomically(directory_ / "file", "text");
  fs::create_symlink("file", directory_ / "to-file");
  EXPECT_EQ(read_text(directory_ / "to-file"), "text");
}

TEST_F(FileTest, OfTwoExclusiveCreatorsExactlyOneWins) {
  constexpr int kThreads = 8;
  std::atomic<int> winners = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        try {
          File::create_exclusive(directory_ / "term").close();
          ++winners;
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
        }
      });
    }
  }
  EXPECT_EQ(winners, 1);
}

TEST_F(FileTest, ReplacesAtomicallyAndLeavesNoTemporaryFile) {
  write_atomically(directory_ / "a", "old");
  write_atomically(directory_ / "a", "new content");
  EXPECT_EQ(read_text(directory_ / "a"), "new content");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), fs::directory_iterator{}), 1);
}

TEST_F(FileTest, AFailedReplacementKeepsTheOldContentAndLeavesNoTemporaryFile) {
  // The target is a directory that is not empty: the rename must fail after the bytes were written.
  fs::create_directories(directory_ / "target" / "inside");
  EXPECT_THROW(write_atomically(directory_ / "target", "bytes"), Error);
  EXPECT_TRUE(fs::exists(directory_ / "target" / "inside"));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), fs::directory_iterator{}), 1);
}

TEST_F(FileTest, ATextWrittenInPiecesIsTheirSumAndNothingIfItsWriterFails) {
  std::string expected;
  const auto write = [&](const TextSink& sink) {
    for (const std::size_t size : {5U, 3U << 20, 0U, 700'000U, 700'000U, 1U}) {
      const std::string piece(size, static_cast<char>('a' + expected.size() % 26));
      expected += piece;
      sink(piece);
    }
  };
  write_atomically(directory_ / "a", write);
  EXPECT_TRUE(read_text(directory_ / "a") == expected);
  const auto fail = [](const TextSink& sink) {
    sink(std::string(2U << 20, 'x'));
    throw std::runtime_error("no more");
  };
  EXPECT_THROW(write_atomically(directory_ / "a", fail), std::runtime_error);
  EXPECT_TRUE(read_text(directory_ / "a") == expected);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), fs::directory_iterator{}), 1)
      << "what was written of it is left behind";
}

TEST_F(FileTest, SecretsAreWrittenWithTheirModeFromTheFirstByte) {
  write_atomically(directory_ / "key", "secret", 0600);
  struct stat status {};
  ASSERT_EQ(::stat((directory_ / "key").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST_F(FileTest, PublishMovesTheBytesAcrossDirectories) {
  fs::create_directories(directory_ / "attempts");
  fs::create_directories(directory_ / "blocks");
  write_atomically(directory_ / "attempts" / "x", "bytes");
  publish(directory_ / "attempts" / "x", directory_ / "blocks" / "x");
  EXPECT_FALSE(fs::exists(directory_ / "attempts" / "x"));
  EXPECT_EQ(read_text(directory_ / "blocks" / "x"), "bytes");
}

TEST_F(FileTest, WhatIsPublishedFirstStays) {
  for (const char* name : {"a", "b"}) write_atomically(directory_ / name, name);
  EXPECT_TRUE(publish_first(directory_ / "a", directory_ / "x"));
  EXPECT_FALSE(fs::exists(directory_ / "a"));
  EXPECT_FALSE(publish_first(directory_ / "b", directory_ / "x"));
  EXPECT_EQ(read_text(directory_ / "x"), "a");
  EXPECT_EQ(read_text(directory_ / "b"), "b");
}

TEST_F(FileTest, PublishOfAnAbsentFileIsNotFound) {
  EXPECT_EQ(kind_of([&] { publish(directory_ / "absent", directory_ / "x"); }),
            ErrorKind::kNotFound);
}

TEST_F(FileTest, WaitsForAFileThatAppearsLate) {
  std::jthread writer([&] {
    std::this_thread::sleep_for(milliseconds(30));  // lateness is what is tested, not a hand-shake
    write_atomically(directory_ / "late", "x");
  });
  wait_until_visible(directory_ / "late", milliseconds(20'000));
  EXPECT_EQ(read_text(directory_ / "late"), "x");
}

TEST_F(FileTest, GivesUpWaitingAtTheDeadline) {
  EXPECT_EQ(kind_of([&] { wait_until_visible(directory_ / "never", milliseconds(30)); }),
            ErrorKind::kNotFound);
}

TEST_F(FileTest, RefusesAFifoInPlaceOfACommittedFileWithoutWaitingForItsWriter) {
  ASSERT_EQ(::mkfifo((directory_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(kind_of([&] { wait_until_visible(directory_ / "fifo", milliseconds(30)); }),
            ErrorKind::kUsage);
}

TEST_F(FileTest, RefusesTextAboveTheCapBeforeReadingIt) {
  write_atomically(directory_ / "a", "123456789");
  EXPECT_EQ(read_text(directory_ / "a", 9), "123456789");
  EXPECT_EQ(kind_of([&] { (void)read_text(directory_ / "a", 8); }), ErrorKind::kCorrupt);
}

TEST_F(FileTest, FreeSpaceOfADirectoryYetToBeMadeIsThatOfItsAncestor) {
  EXPECT_GT(free_bytes(directory_ / "run" / "hidden"), 0U);
}

}  // namespace
}  // namespace hedgerow::storage
