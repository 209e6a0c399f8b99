#include "storage/base/error.hpp"

#include <gtest/gtest.h>

#include <cerrno>

namespace hedgerow::storage {
namespace {

TEST(Error, WordsRoundTripSoThatJournalAndWireKeepTheKind) {
  for (const ErrorKind kind : {ErrorKind::kUsage,
                               ErrorKind::kNotFound,
                               ErrorKind::kCorrupt,
                               ErrorKind::kUnavailable,
                               ErrorKind::kExhausted,
                               ErrorKind::kFenced,
                               ErrorKind::kInternal}) {
    EXPECT_EQ(error_kind_from_string(to_string(kind)), kind);
  }
  EXPECT_EQ(error_kind_from_string("a word of a later version"), ErrorKind::kInternal);
}

TEST(Error, FullDiskIsTheEnvironmentsFaultAndSaysWhatToDo) {
  const Error error = system_error("write", "hidden/b0001/s00000.t3.h5", ENOSPC);
  EXPECT_EQ(exit_code(error.kind()), ExitCode::kEnvironment);
  EXPECT_NE(std::string(error.what()).find("free space"), std::string::npos) << error.what();
}

TEST(Error, APathThatCannotBeOneIsTheUsersToEdit) {
  for (const int number : {ENOTDIR, EISDIR, ELOOP, ENAMETOOLONG}) {
    EXPECT_EQ(exit_code(system_error("open", "run.toml/journal", number).kind()), ExitCode::kUsage);
  }
}

}  // namespace
}  // namespace hedgerow::storage
