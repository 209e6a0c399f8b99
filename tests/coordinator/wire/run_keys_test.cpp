// The files of keys/: who may read them, what they may hold, and what keygen makes of them.
#include "coordinator/wire/run_keys.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>

#include "coordinator/net/key_maker.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::string key_refusal(const std::function<void()>& action) {
  return tests::refusal(action, storage::ErrorKind::kUsage);
}

unsigned mode_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 0777U;
}

class RunKeys : public ::testing::Test {
 protected:
  KeyReport make(std::vector<std::string> workers = {"worker"}, bool rotate = false) const {
    return make_keys(layout_, {.workers = std::move(workers), .rotate = rotate});
  }
  [[nodiscard]] std::string text_of(const std::string& name) const {
    return storage::read_text(layout_.keys_directory() / name);
  }
  void write(const std::string& name, const std::string& text, unsigned mode = 0600) const {
    const fs::path path = layout_.keys_directory() / name;
    std::ofstream(path, std::ios::trunc) << text;
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
  }
  [[nodiscard]] std::string refused_secret() const {
    return key_refusal([&] { std::ignore = wire::read_worker_keys(layout_); });
  }

  tests::TemporaryDirectory directory_;
  storage::RunLayout layout_{directory_ / "run"};
};

TEST_F(RunKeys, SecretsAreTheOwnersAloneAndTheListNamesTheWorker) {
  const KeyReport report = make();
  EXPECT_EQ(mode_of(layout_.keys_directory()), 0700U);
  for (const char* secret : {"coordinator.secret", "worker.secret", "http.secret"})
    EXPECT_EQ(mode_of(layout_.keys_directory() / secret), 0600U) << secret;
  const auto coordinator = wire::read_coordinator_keys(layout_);
  const auto worker = wire::read_worker_keys(layout_);
  ASSERT_TRUE(coordinator && worker);
  EXPECT_EQ(wire::public_key_of(coordinator->secret_key), worker->server_key);
  EXPECT_EQ(coordinator->allowed, std::set<std::string>{wire::public_key_of(worker->secret_key)});
  EXPECT_EQ(report.public_keys.at("worker") + "\n", text_of("worker.public"));
  EXPECT_EQ(text_of("http.secret").size(), 64U + 1) << "256 bits in hexadecimal digits";
  EXPECT_EQ(report.written.size(), 6U);
}

TEST_F(RunKeys, ARunWithoutTheFolderHasNoKeys) {
  fs::create_directories(layout_.root());
  EXPECT_FALSE(wire::has_keys(layout_));
  EXPECT_EQ(wire::read_coordinator_keys(layout_), std::nullopt);
  EXPECT_EQ(wire::read_worker_keys(layout_), std::nullopt);
}

TEST_F(RunKeys, NothingIsOverwrittenWithoutRotateAndNoTwoKeysAreAlike) {
  make();
  const std::string before = text_of("worker.secret"), http = text_of("http.secret");
  EXPECT_TRUE(make().written.empty());
  EXPECT_EQ(text_of("worker.secret"), before);
  EXPECT_EQ(make({"worker"}, true).written.size(), 6U);
  EXPECT_NE(text_of("worker.secret"), before);
  EXPECT_NE(text_of("http.secret"), http);
  EXPECT_NE(text_of("worker.secret"), text_of("coordinator.secret"));
}

TEST_F(RunKeys, WhatIsMissingIsMadeAgainAndTheRestStays) {
  make();
  const std::string before = text_of("worker.secret");
  for (const char* name : {"worker.public", "allowed", "coordinator.secret"})
    fs::remove(layout_.keys_directory() / name);
  EXPECT_THAT(key_refusal([&] { std::ignore = wire::read_coordinator_keys(layout_); }),
              HasSubstr("coordinator.secret: no such file; 'hedgerow keygen --run"));
  EXPECT_THAT(
      make().written,
      UnorderedElementsAre("coordinator.secret", "coordinator.public", "worker.public", "allowed"));
  EXPECT_EQ(text_of("worker.secret"), before);
  const auto worker = wire::read_worker_keys(layout_);
  EXPECT_TRUE(wire::read_coordinator_keys(layout_)->allowed.contains(
      wire::public_key_of(worker->secret_key)));
}

// Between the two renames of a rotation: the secret key is new, its public one is not yet.
TEST_F(RunKeys, ARotationThatWasCutShortIsFinishedByTheNextCall) {
  make();
  const KeyReport other = make_keys(storage::RunLayout(directory_ / "other"), {.workers = {"w"}});
  write("worker.secret", storage::read_text(directory_ / "other/keys/w.secret"));
  EXPECT_THAT(make().written, UnorderedElementsAre("worker.public", "allowed"));
  EXPECT_EQ(wire::read_allowed_keys(layout_), std::set<std::string>{other.public_keys.at("w")});
}

TEST_F(RunKeys, RotatingOnePairTakesItsOldKeyOffTheListAndLeavesOtherLinesAlone) {
  make({"worker", "gpu"});
  const std::string old_key = make_keys(layout_, {.workers = {"gpu"}}).public_keys.at("gpu");
  const std::string stranger(40, 'A');
  write("allowed",
        "# mine\n\n" + old_key + " also here\n" + stranger + " of the other site\n" +
            text_of("allowed"),
        0644);
  const KeyReport report =
      make_keys(layout_, {.workers = {"gpu"}, .of_coordinator = false, .rotate = true});
  EXPECT_THAT(report.written, UnorderedElementsAre("gpu.secret", "gpu.public", "allowed"));
  const std::string list = text_of("allowed");
  EXPECT_THAT(list, HasSubstr("# mine\n\n" + stranger + " of the other site\n"));
  EXPECT_THAT(list, Not(HasSubstr(old_key)));
  EXPECT_THAT(list, HasSubstr(report.public_keys.at("gpu") + " gpu\n"));
  EXPECT_EQ(wire::read_allowed_keys(layout_).size(), 3U);
}

TEST_F(RunKeys, AFileThatOthersMayTouchIsRefusedWithTheCommandThatMendsIt) {
  make();
  const auto chmod = [&](const std::string& name, unsigned mode) {
    ASSERT_EQ(::chmod((layout_.keys_directory() / name).c_str(), mode), 0);
  };
  for (const unsigned mode : {0640U, 0604U, 0620U, 0777U}) {
    chmod("worker.secret", mode);
    EXPECT_THAT(
        refused_secret(),
        HasSubstr("'chmod 600 " + (layout_.keys_directory() / "worker.secret").string() + "'"));
  }
  chmod("worker.secret", 0600);
  chmod("coordinator.public", 0664);
  EXPECT_THAT(refused_secret(), HasSubstr("may write it (mode 664); 'chmod 644"));
  chmod("coordinator.public", 0644);
  chmod("allowed", 0646);
  EXPECT_THAT(key_refusal([&] { std::ignore = wire::read_allowed_keys(layout_); }),
              HasSubstr("'chmod 644"));
  chmod("allowed", 0644);
  chmod(".", 0770);
  EXPECT_THAT(refused_secret(), HasSubstr("'chmod 700"));
  EXPECT_THAT(key_refusal([&] { make({"worker"}, true); }), HasSubstr("'chmod 700"));
}

// Read in processes of their own, so that this one stays root.
TEST_F(RunKeys, WhatBelongsToAnotherUserIsRefusedUnlessThatIsRootOrTheReaderIs) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files to other users";
  make();
  constexpr uid_t kReader = 65534, kOther = 65533;
  const fs::path folder = layout_.keys_directory();
  for (const fs::path& path : {directory_.path(), layout_.root(), folder})
    ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  const auto give = [](const fs::path& path, uid_t user) {
    ASSERT_EQ(::chown(path.c_str(), user, static_cast<gid_t>(-1)), 0);
  };
  const auto read_as_reader = [&] {
    if (::seteuid(kReader) != 0) std::exit(1);
    std::cerr << key_refusal([&] { std::ignore = wire::read_allowed_keys(layout_); });
    std::exit(0);
  };
  const auto says = ::testing::ExitedWithCode(0);
  EXPECT_EXIT(read_as_reader(), says, "accepted") << "root's";
  give(folder, kReader);
  give(folder / "allowed", kReader);
  EXPECT_EXIT(read_as_reader(), says, "accepted") << "its own";
  give(folder / "allowed", kOther);
  EXPECT_EXIT(read_as_reader(),
              says,
              "allowed: it belongs to user id 65533, expected 65534 .*'chown 65534 ");
  ASSERT_EQ(::chmod((folder / "allowed").c_str(), 0600), 0);
  EXPECT_EXIT(read_as_reader(), says, "allowed: it belongs to user id 65533") << "unreadable";
  ASSERT_EQ(::chmod((folder / "allowed").c_str(), 0644), 0);
  give(folder / "allowed", 0);
  give(folder, kOther);
  EXPECT_EXIT(read_as_reader(), says, "keys: it belongs to user id 65533, expected 65534 ");
  EXPECT_EQ(wire::read_allowed_keys(layout_).size(), 1U) << "root reads everybody's";
}

TEST_F(RunKeys, WhatIsNoKeyIsRefusedAndNeverShown) {
  make();
  const std::string secret = text_of("worker.secret").substr(0, 40);
  for (const std::string& text : {std::string(), secret + "x", secret.substr(1), secret + secret}) {
    write("worker.secret", text + "\n");
    EXPECT_THAT(refused_secret(), HasSubstr("it does not hold a key"));
    EXPECT_THAT(refused_secret(), Not(HasSubstr(secret.substr(2, 30))));
  }
  write("worker.secret", std::string(5000, 'a'));
  EXPECT_THAT(refused_secret(), HasSubstr("5000 bytes, expected at most 4096"));
  fs::remove(layout_.keys_directory() / "worker.secret");
  ASSERT_EQ(::mkfifo((layout_.keys_directory() / "worker.secret").c_str(), 0600), 0);
  EXPECT_THAT(refused_secret(), HasSubstr("is not a plain file"));
}

TEST_F(RunKeys, TheListTakesCommentsAndKeysThatBeginLikeOne) {
  make();
  const std::string hash_key = "#" + std::string(39, 'a');
  write("allowed", "# a comment\n  \n" + hash_key + "\n\t" + std::string(40, 'B') + " b\r\n", 0644);
  EXPECT_THAT(wire::read_allowed_keys(layout_),
              UnorderedElementsAre(hash_key, std::string(40, 'B')));
  write("allowed", "# ok\n" + std::string(39, 'a') + "\n", 0644);
  EXPECT_THAT(key_refusal([&] { std::ignore = wire::read_allowed_keys(layout_); }),
              HasSubstr("allowed:2: its first word is no public key"));
  write("allowed", std::string((1U << 20) + 1, '\n'), 0644);
  EXPECT_THAT(key_refusal([&] { std::ignore = wire::read_allowed_keys(layout_); }),
              HasSubstr("expected at most 1048576"));
}

TEST_F(RunKeys, ANameThatLeavesTheFolderOrHidesAnotherFileIsRefused) {
  for (const char* name : {"", "../x", "a/b", ".", "coordinator", "http", "allowed", "a b"}) {
    EXPECT_THAT(key_refusal([&] { make({name}); }),
                HasSubstr("--worker '" + std::string(name) + "'"));
    EXPECT_FALSE(fs::exists(layout_.root())) << "made something for '" << name << "'";
  }
  make();
  EXPECT_THAT(key_refusal([&] { std::ignore = wire::read_worker_keys(layout_, "../keys/worker"); }),
              HasSubstr("is no name of a worker's key pair"));
  EXPECT_THAT(key_refusal([&] { std::ignore = wire::read_worker_keys(layout_, "gpu"); }),
              HasSubstr("--worker gpu' makes what is missing"));
}

}  // namespace
}  // namespace hedgerow::coordinator
