#include "coordinator/host/process.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <thread>

#include "coordinator/host/launcher.hpp"
#include "storage/base/error.hpp"
#include "tests/support/fake_clock.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator {
namespace {

ProcessExit wait_for(ChildProcess& child) {
  while (true) {
    if (const auto exit = child.poll()) return *exit;
    std::this_thread::yield();
  }
}

TEST(ChildProcess, SaysHowItEnded) {
  const tests::TemporaryDirectory directory;
  ChildProcess failing = ChildProcess::start({"sh", "-c", "echo why; exit 3"}, directory / "log");
  const ProcessExit exit = wait_for(failing);
  EXPECT_EQ(exit.code, 3);
  EXPECT_EQ(exit.text(), "exited with code 3");
  EXPECT_EQ(tail_of(directory / "log"), "\n    why");
  ChildProcess killed = ChildProcess::start({"sleep", "1000"}, directory / "log");
  killed.signal(SIGKILL);
  EXPECT_EQ(wait_for(killed).signal, SIGKILL);
}

TEST(ChildProcess, AMissingProgramIsNamed) {
  const tests::TemporaryDirectory directory;
  try {
    static_cast<void>(ChildProcess::start({"/no/such/worker"}, directory / "log"));
    FAIL() << "started";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kNotFound);
    EXPECT_NE(std::string(error.what()).find("/no/such/worker"), std::string::npos);
  }
}

TEST(ChildProcess, ALogThatIsAFifoIsRefusedAndNotWaitedFor) {
  const tests::TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo((directory / "log").c_str(), 0600), 0);
  try {
    static_cast<void>(ChildProcess::start({"true"}, directory / "log"));
    FAIL() << "started";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("is a FIFO"), std::string::npos) << error.what();
  }
}

// mpirun answers SIGTERM by killing its ranks, which need time for a checkpoint.
TEST(ChildProcess, ABlockedSignalDoesNotReachTheProgram) {
  const tests::TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  ChildProcess child =
      ChildProcess::start({"sh", "-c", "read line < " + (directory / "pipe").string() + "; exit 7"},
                          directory / "log",
                          host_processes(),
                          SIGTERM);
  child.signal(SIGTERM);
  std::ofstream(directory / "pipe") << "go\n";
  const ProcessExit exit = wait_for(child);
  EXPECT_EQ(exit.signal, 0) << exit.text();
  EXPECT_EQ(exit.code, 7);
}

// Ctrl-C at the terminal goes to the foreground process group; a child must not be in it.
TEST(ChildProcess, RunsInASessionOfItsOwn) {
  const tests::TemporaryDirectory directory;
  ChildProcess child = ChildProcess::start({"sleep", "1000"}, directory / "log");
  EXPECT_EQ(::getsid(child.id().pid), child.id().pid);
  child.signal(SIGKILL);
  wait_for(child);
}

TEST(ChildProcess, AnAdoptedOneIsWatchedByPidAndStartTime) {
  const tests::TemporaryDirectory directory;
  ChildProcess child = ChildProcess::start({"sleep", "1000"}, directory / "log");
  ChildProcess adopted = ChildProcess::adopt(child.id());
  EXPECT_FALSE(adopted.poll());
  ChildProcess recycled = ChildProcess::adopt({child.id().pid, child.id().start_ticks + 1});
  EXPECT_TRUE(recycled.poll()) << "the pid is another process now";
  recycled.signal(SIGKILL);
  EXPECT_FALSE(adopted.poll()) << "and that one must not be hit";
  adopted.signal(SIGKILL);
  wait_for(child);
  EXPECT_TRUE(adopted.poll());
}

// Catches: messages of 16 to 34 MB between pipeline stages copied twice on every machine, and ranks
// whose every message fails in a container.
TEST(MpirunWords, SetTheSingleCopyOffOnlyWhereItIsDenied) {
  const auto turns_off = [](bool copies) {
    const std::vector<std::string> words = mpirun_words(/*in_allocation=*/false, copies);
    return std::find(words.begin(), words.end(), "btl_vader_single_copy_mechanism") != words.end();
  };
  EXPECT_TRUE(turns_off(false));
  EXPECT_FALSE(turns_off(true));
  const tests::TemporaryDirectory directory;
  const auto may_copy = [&directory](const std::string& scope, bool copies) {
    if (!scope.empty()) std::ofstream(directory / "ptrace_scope") << scope << "\n";
    return machine::may_copy_between_processes(directory / "ptrace_scope",
                                               [copies] { return copies; });
  };
  EXPECT_TRUE(may_copy("", true)) << "a kernel without Yama";
  EXPECT_FALSE(may_copy("", false)) << "a container that filters the call";
  EXPECT_TRUE(may_copy("0", true));
  for (const char* scope : {"1", "2", "3", "?"}) EXPECT_FALSE(may_copy(scope, true)) << scope;
}

class LocalWorkersTest : public ::testing::Test {
 protected:
  // A "worker" that writes its arguments and then does what `body` says.
  LauncherConfig config(const std::string& body) {
    const std::string script = directory_ / "worker";
    std::ofstream(script) << "#!/bin/sh\necho \"$@\" >> " << (directory_ / "starts").string()
                          << "\n"
                          << body << "\n";
    std::filesystem::permissions(script, std::filesystem::perms::owner_all);
    return {.worker_binary = script,
            .run_directory = directory_.path(),
            .logs = directory_.path(),
            .local_workers = 1};
  }

  std::vector<EndedWorker> tend_until_one_ends(LocalWorkers& workers) {
    while (true) {
      auto ended = workers.tend(true, "tcp://127.0.0.1:1");
      if (!ended.empty()) return ended;
      clock_.advance(std::chrono::seconds(1));
      std::this_thread::yield();
    }
  }

  tests::TemporaryDirectory directory_;
  FakeClock clock_;
};

TEST_F(LocalWorkersTest, ADeadWorkerComesBackAsItsNextIncarnation) {
  LocalWorkers workers(config("exit 7"), clock_);
  const auto first = tend_until_one_ends(workers);
  EXPECT_EQ(first[0].incarnation, 1U);
  EXPECT_EQ(first[0].how, "exited with code 7");
  EXPECT_FALSE(first[0].in_order);
  const auto second = tend_until_one_ends(workers);
  EXPECT_EQ(second[0].uuid, first[0].uuid);
  EXPECT_EQ(second[0].incarnation, 2U);
}

TEST_F(LocalWorkersTest, OneThatNeverComesUpEndsTheRunWithItsLog) {
  LocalWorkers workers(config("echo cannot load libtorch; exit 127"), clock_);
  try {
    for (int i = 0; i < 10; ++i) static_cast<void>(tend_until_one_ends(workers));
    FAIL() << "went on for ever";
  } catch (const storage::Error& error) {
    EXPECT_NE(std::string(error.what()).find("cannot load libtorch"), std::string::npos)
        << error.what();
  }
}

TEST_F(LocalWorkersTest, LivingOnesAreAdoptedAndNotStartedTwice) {
  LocalWorkers first(config("exec sleep 1000"), clock_);
  static_cast<void>(first.tend(true, "tcp://127.0.0.1:1"));
  const auto children = first.children();
  ASSERT_EQ(children.size(), 1U);
  LocalWorkers second(config("exec sleep 1000"), clock_);
  second.adopt(children);
  static_cast<void>(second.tend(true, "tcp://127.0.0.1:2"));
  ASSERT_EQ(second.children().size(), 1U);
  EXPECT_EQ(second.children()[0].process, children[0].process);
  second.signal_all(SIGKILL);
  static_cast<void>(tend_until_one_ends(first));
}

// Catches: two workers on one card that each claim all of its memory, so that both get a block.
TEST_F(LocalWorkersTest, WorkersThatShareAGpuAreToldHowMany) {
  EXPECT_EQ(workers_on_device(0, 2, 1), 2);
  EXPECT_EQ(workers_on_device(1, 2, 1), 2);
  EXPECT_EQ(workers_on_device(0, 5, 2), 3) << "slots 0, 2 and 4";
  EXPECT_EQ(workers_on_device(3, 5, 2), 2) << "slots 1 and 3";
  EXPECT_EQ(workers_on_device(7, 8, 8), 1);
  EXPECT_EQ(workers_on_device(1, 2, 0), 1) << "on the processors";
  const auto arguments = [this](int local_workers, int num_gpus) {
    std::filesystem::remove(directory_ / "starts");
    LauncherConfig shared = config("exit 7");
    shared.local_workers = local_workers;
    shared.num_gpus = num_gpus;
    LocalWorkers workers(shared, clock_);
    std::size_t ended = 0;
    while (ended < static_cast<std::size_t>(local_workers))
      ended += workers.tend(true, "tcp://127.0.0.1:1").size();
    std::ifstream file(directory_ / "starts");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_NE(arguments(2, 1).find("--workers-on-device 2"), std::string::npos);
  EXPECT_EQ(arguments(1, 1).find("--workers-on-device"), std::string::npos);
  EXPECT_EQ(arguments(2, 0).find("--workers-on-device"), std::string::npos);
}

class WorkerLauncherTest : public LocalWorkersTest {
 protected:
  LauncherConfig launched(const std::string& body) {
    LauncherConfig launched = config(body);
    launched.worker_launcher = launched.worker_binary;
    launched.local_workers = 0;
    return launched;
  }
  [[nodiscard]] int num_starts() const {
    std::ifstream file(directory_ / "starts");
    int lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }
  // Tends until the launcher runs, or has ended if it is not to.
  void tend_until(LocalWorkers& workers, bool wanted, bool runs) {
    do {
      EXPECT_TRUE(workers.tend(wanted, "tcp://127.0.0.1:1").empty()) << "it is no worker";
      clock_.advance(std::chrono::seconds(1));
      std::this_thread::yield();
    } while (workers.all_gone() == runs);
  }
};

TEST_F(WorkerLauncherTest, RunsWheneverWorkersAreWantedAndIsWaitedForElse) {
  const std::string pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  LocalWorkers workers(launched("read line < " + pipe), clock_);
  EXPECT_TRUE(workers.all_gone());
  tend_until(workers, true, true);
  static_cast<void>(workers.tend(false, ""));
  EXPECT_FALSE(workers.all_gone()) << "its workers may still have the node";
  std::ofstream(pipe) << "go\n";
  tend_until(workers, false, false);
  tend_until(workers, true, true);
  std::ofstream(pipe) << "go\n";
  tend_until(workers, false, false);
  EXPECT_EQ(num_starts(), 2);
}

// srun answers SIGTERM by killing its tasks.
TEST_F(WorkerLauncherTest, IsAskedToStopBySigusr1) {
  LocalWorkers workers(launched("trap 'exit 0' USR1\necho ready > " +
                                (directory_ / "ready").string() + "\nwhile :; do sleep 0.02; done"),
                       clock_);
  tend_until(workers, true, true);
  while (!std::filesystem::exists(directory_ / "ready")) std::this_thread::yield();
  workers.signal_all(SIGTERM);
  tend_until(workers, false, false);
}

TEST_F(WorkerLauncherTest, OneThatNeverBringsAWorkerEndsTheRunWithItsLogButNotOneWhoseWorkersCame) {
  const auto starts_before_it_gives_up = [&](LocalWorkers& workers, bool workers_come) {
    const int before = num_starts();
    try {
      while (num_starts() - before < 8) {
        static_cast<void>(workers.tend(true, ""));
        if (workers_come) workers.note_hello("elsewhere-1");
        clock_.advance(std::chrono::seconds(1));
        std::this_thread::yield();
      }
      workers.signal_all(SIGKILL);
    } catch (const storage::Error& error) {
      EXPECT_NE(std::string(error.what()).find("srun: no such partition"), std::string::npos)
          << error.what();
    }
    return num_starts() - before;
  };
  LocalWorkers silent(launched("echo srun: no such partition; exit 1"), clock_);
  EXPECT_EQ(starts_before_it_gives_up(silent, false), 5);
  LocalWorkers heard(launched("echo srun: no such partition; exit 1"), clock_);
  EXPECT_GE(starts_before_it_gives_up(heard, true), 8);
}

}  // namespace
}  // namespace hedgerow::coordinator
