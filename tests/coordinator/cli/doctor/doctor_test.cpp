// What doctor says of machines that this one is not: made-up /proc and /sys trees, limits, library
// versions and launchers' answers.
#include "coordinator/cli/doctor/doctor.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "coordinator/cli/doctor/doctor_sockets.hpp"
#include "coordinator/net/key_maker.hpp"
#include "coordinator/wire/run_keys.hpp"
#include "tests/coordinator/cli/doctor/findings.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using tests::TemporaryDirectory;

constexpr std::uint64_t kGiB = 1ULL << 30U;

class OfAMachine : public ::testing::Test {
 protected:
  OfAMachine() {
    facts_.root = scratch_.path();
    facts_.variable = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    };
    facts_.limit = [this](int resource) {
      const auto found = limits_.find(resource);
      return found == limits_.end() ? rlimit{RLIM_INFINITY, RLIM_INFINITY} : found->second;
    };
    facts_.num_cores = 8;
    write("proc/meminfo", "MemTotal:       33554432 kB\nMemFree: 1 kB\n");
    write("proc/self/cgroup", "0::/job\n");
    write("proc/sys/kernel/core_pattern", "core\n");
    write("dev/shm/.kept", "");
  }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((scratch_.path() / path).parent_path());
    std::ofstream(scratch_.path() / path) << text;
  }

  Finding machine(const std::string& check) { return named(examine_machine(facts_), check); }
  Finding limit(const std::string& check) { return named(examine_limits(facts_), check); }
  Finding gpu(const std::string& check) { return named(examine_gpus(facts_), check); }

  TemporaryDirectory scratch_;
  std::map<std::string, std::string> variables_;
  std::map<int, rlimit> limits_;
  MachineFacts facts_;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(OfAMachine, MemoryIsWhatTheContainersGroupLeavesAndTheMachinesIsSaidBesideIt) {
  EXPECT_EQ(machine("memory").found, "34.4 GB");
  write("sys/fs/cgroup/memory.max", std::to_string(4 * kGiB));
  const Finding limited = machine("memory");
  EXPECT_EQ(limited.level, Level::kOk);
  EXPECT_TRUE(contains(limited.found, "4.3 GB, the limit of this container")) << limited.found;
  EXPECT_TRUE(contains(limited.found, "the machine has 34.4 GB")) << limited.found;
  write("sys/fs/cgroup/job/memory.max", std::to_string(kGiB / 2));
  EXPECT_EQ(machine("memory").level, Level::kWarn) << "no worker fits 0.5 GB";
}

TEST_F(OfAMachine, QuotaBelowTheCoresThatAreSeenIsAWarningThatNamesTheThreads) {
  EXPECT_EQ(machine("cores").found, "8");
  write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(machine("cores").level, Level::kOk);
  write("sys/fs/cgroup/cpu.max", "250000 100000\n");
  const Finding quota = machine("cores");
  EXPECT_EQ(quota.level, Level::kWarn);
  EXPECT_TRUE(contains(quota.found, "quota is 2.5")) << quota.found;
  EXPECT_TRUE(contains(quota.fix, "workers.threads")) << quota.fix;
  fs::remove(scratch_.path() / "sys/fs/cgroup/cpu.max");
  write("proc/self/cgroup", "3:cpu,cpuacct:/pod\n0::/\n");
  write("sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us", "400000\n");
  write("sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us", "100000\n");
  EXPECT_TRUE(contains(machine("cores").found, "quota is 4")) << "a group of the first version";
}

TEST_F(OfAMachine, TheKindOfContainerIsTold) {
  EXPECT_EQ(machine("container or host").found, "the host itself");
  write(".dockerenv", "");
  EXPECT_EQ(machine("container or host").found, "a Docker container");
  variables_["KUBERNETES_SERVICE_HOST"] = "10.0.0.1";
  EXPECT_EQ(machine("container or host").found, "a Kubernetes pod");
  variables_["APPTAINER_CONTAINER"] = "/images/hedgerow.sif";
  variables_["SLURM_JOB_ID"] = "4711";
  EXPECT_EQ(machine("container or host").found, "an Apptainer container, in Slurm's job 4711");
}

TEST_F(OfAMachine, MissingSharedMemoryIsAWarning) {
  EXPECT_EQ(machine("shared memory").level, Level::kOk);
  fs::remove_all(scratch_.path() / "dev/shm");
  EXPECT_EQ(machine("shared memory").level, Level::kWarn);
}

TEST_F(OfAMachine, LowLimitIsMendedByTheShellOrByWhoSetTheHardLimit) {
  EXPECT_EQ(limit("open files").found, "unlimited");
  limits_[RLIMIT_NOFILE] = {256, 4096};
  EXPECT_EQ(limit("open files").level, Level::kWarn);
  EXPECT_EQ(limit("open files").fix, "ulimit -n 1024");
  limits_[RLIMIT_NOFILE] = {256, 512};
  EXPECT_TRUE(contains(limit("open files").fix, "hard limit is 512")) << limit("open files").fix;
  EXPECT_TRUE(contains(limit("open files").fix, "LimitNOFILE=")) << limit("open files").fix;
  limits_[RLIMIT_STACK] = {64 << 10, RLIM_INFINITY};
  EXPECT_EQ(limit("stack").level, Level::kWarn);
}

TEST_F(OfAMachine, LockedMemoryMattersWhereInfiniBandIs) {
  limits_[RLIMIT_MEMLOCK] = {65536, 65536};
  EXPECT_EQ(limit("locked memory").level, Level::kOk);
  write("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
  EXPECT_EQ(limit("locked memory").level, Level::kWarn);
  limits_[RLIMIT_MEMLOCK] = {RLIM_INFINITY, RLIM_INFINITY};
  EXPECT_EQ(limit("locked memory").level, Level::kOk);
}

TEST_F(OfAMachine, ProcessesAreLimitedByTheUserOrByAnyGroupAbove) {
  limits_[RLIMIT_NPROC] = {4096, 4096};
  EXPECT_EQ(limit("processes").level, Level::kOk);
  write("sys/fs/cgroup/pids.max", "100\n");
  EXPECT_EQ(limit("processes").level, Level::kWarn);
  EXPECT_TRUE(contains(limit("processes").fix, "pids.max"));
  write("sys/fs/cgroup/pids.max", "max\n");
  EXPECT_EQ(limit("processes").level, Level::kOk);
  limits_[RLIMIT_NPROC] = {100, 4096};
  EXPECT_TRUE(contains(limit("processes").fix, "ulimit -u")) << limit("processes").fix;
}

TEST_F(OfAMachine, AddressSpaceLimitFailsABuildWithCudaAndWarnsAnother) {
  EXPECT_EQ(limit("address space").level, Level::kOk);
  limits_[RLIMIT_AS] = {64 * kGiB, RLIM_INFINITY};
  EXPECT_EQ(limit("address space").level, Level::kWarn);
  facts_.has_cuda = true;
  EXPECT_EQ(limit("address space").level, Level::kFail);
}

TEST_F(OfAMachine, CoreFilesAreWarnedOfUnlessAProgramTakesThem) {
  EXPECT_EQ(limit("core files").level, Level::kWarn);
  write("proc/sys/kernel/core_pattern", "|/usr/lib/systemd/systemd-coredump %P\n");
  EXPECT_EQ(limit("core files").level, Level::kOk);
  write("proc/sys/kernel/core_pattern", "core\n");
  limits_[RLIMIT_CORE] = {0, RLIM_INFINITY};
  EXPECT_EQ(limit("core files").level, Level::kOk);
}

class OfAMachineWithGpus : public OfAMachine {
 protected:
  OfAMachineWithGpus() {
    facts_.has_cuda = true;
    write("dev/nvidia0", "");
    write("dev/nvidia1", "");
    driver("580.65.06");
    facts_.cuda_driver_api = 13000;
  }
  void driver(const std::string& version) {
    write("proc/driver/nvidia/version",
          "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " + version +
              "  Release Build\nGCC version: gcc 12.2.0\n");
  }
};

TEST_F(OfAMachineWithGpus, ADriverThatOffersCuda13IsFine) {
  EXPECT_EQ(gpu("GPU").found, "2 device(s)");
  EXPECT_EQ(gpu("GPU driver").found, "580.65.06, offers CUDA 13.0");
}

TEST_F(OfAMachineWithGpus, AnOlderDriverFailsUnlessACompatibilityPackageStandsBefore) {
  driver("550.90.07");
  facts_.cuda_driver_api = 12040;
  EXPECT_EQ(gpu("GPU driver").level, Level::kFail);
  EXPECT_TRUE(contains(gpu("GPU driver").fix, "580")) << gpu("GPU driver").fix;
  EXPECT_TRUE(contains(gpu("GPU driver").found, "offers CUDA 12.4")) << gpu("GPU driver").found;
  facts_.cuda_driver_api = 13000;  // cuda-compat-13-0 on that driver
  EXPECT_EQ(gpu("GPU driver").level, Level::kOk);
}

TEST_F(OfAMachineWithGpus, AContainerWithoutTheDriversLibraryIsToldHowToGetIt) {
  facts_.cuda_driver_api = 0;
  EXPECT_EQ(gpu("GPU driver").level, Level::kFail);
  EXPECT_TRUE(contains(gpu("GPU driver").fix, "--nv")) << gpu("GPU driver").fix;
}

TEST_F(OfAMachineWithGpus, HiddenAndMissingDevicesAreToldApart) {
  variables_["CUDA_VISIBLE_DEVICES"] = "";
  EXPECT_TRUE(contains(gpu("GPU").found, "hides all")) << gpu("GPU").found;
  variables_.clear();
  fs::remove(scratch_.path() / "dev/nvidia0");
  fs::remove(scratch_.path() / "dev/nvidia1");
  EXPECT_EQ(gpu("GPU").found, "a driver without devices");
  fs::remove_all(scratch_.path() / "proc/driver");
  EXPECT_EQ(gpu("GPU").level, Level::kOk) << "a machine without GPUs is no fault";
}

TEST_F(OfAMachineWithGpus, ABuildWithoutCudaWarnsThatItLeavesThemIdle) {
  facts_.has_cuda = false;
  EXPECT_EQ(gpu("GPU").level, Level::kWarn);
}

nlohmann::json probe_of(const char* library, const std::string& built, const std::string& found) {
  return {{library, {{"built", built}, {"found", found}}}};
}

TEST(Doctor, AnOlderNcclThanItsHeadersFailsAndANewerOneDoesNot) {
  EXPECT_EQ(judge_nccl(probe_of("nccl", "", "")).level, Level::kOk) << "a build without it";
  EXPECT_EQ(judge_nccl(probe_of("nccl", "2.28.9", "2.28.9")).level, Level::kOk);
  EXPECT_EQ(judge_nccl(probe_of("nccl", "2.28.9", "2.29.2")).level, Level::kOk);
  EXPECT_EQ(judge_nccl(probe_of("nccl", "2.28.9", "2.9.11")).level, Level::kFail);
  EXPECT_EQ(judge_nccl(probe_of("nccl", "2.28.9", "")).level, Level::kFail);
}

TEST(Doctor, AnotherMajorVersionOfMpiThanItWasCompiledWithFails) {
  EXPECT_EQ(judge_mpi_library(probe_of("mpi", "Open MPI v4.1.4", "Open MPI v4.0.7")).level,
            Level::kOk);
  EXPECT_EQ(judge_mpi_library(probe_of("mpi", "Open MPI v4.1.4", "Open MPI v5.0.3")).level,
            Level::kFail);
  EXPECT_EQ(judge_mpi_library(probe_of("mpi", "", "")).level, Level::kWarn);
}

const std::vector<std::string> kTwoRanks = {
    "motd", R"({"ranks":2,"hosts":["n1","n2"],"exchange_seconds":0.004,"library":"Open MPI v4"})"};

TEST(Doctor, RanksThatMetAreToldFromRanksThatCameUpAlone) {
  const Finding met = judge_ranks("mpirun, two ranks", kTwoRanks);
  EXPECT_EQ(met.level, Level::kOk);
  EXPECT_EQ(met.found, "on n1, n2, exchanged a megabyte in 4 ms (Open MPI v4)");
  const std::string alone = R"({"ranks":1,"hosts":["n1"],"exchange_seconds":0.1,"library":"x"})";
  const Finding apart = judge_ranks("srun, two ranks", {alone, alone});
  EXPECT_EQ(apart.level, Level::kFail);
  EXPECT_TRUE(contains(apart.found, "came up alone")) << apart.found;
  EXPECT_EQ(judge_ranks("mpirun, two ranks", {}).level, Level::kFail);
}

TEST(Doctor, OneLauncherThatWorksIsEnoughAndItSaysWhich) {
  const Finding works = judge_ranks("x", kTwoRanks);
  const Finding fails = judge_ranks("x", {});
  const auto levels = [](const std::vector<Finding>& findings) {
    std::vector<Level> all;
    for (const Finding& finding : findings) {
      EXPECT_EQ(finding.fix.empty(), finding.level == Level::kOk) << finding.found;
      all.push_back(finding.level);
    }
    return all;
  };
  EXPECT_EQ(levels(weigh_launchers(works, std::nullopt)), std::vector{Level::kOk});
  EXPECT_EQ(levels(weigh_launchers(fails, std::nullopt)), std::vector{Level::kFail});
  EXPECT_EQ(levels(weigh_launchers(works, works)), (std::vector{Level::kOk, Level::kOk}));
  EXPECT_EQ(levels(weigh_launchers(fails, fails)), (std::vector{Level::kFail, Level::kFail}));
  const auto by_mpirun = weigh_launchers(works, fails);
  EXPECT_EQ(levels(by_mpirun), (std::vector{Level::kOk, Level::kOk}));
  EXPECT_TRUE(contains(by_mpirun[1].found, "mpirun does, and is used")) << by_mpirun[1].found;
  const auto by_srun = weigh_launchers(fails, works);
  EXPECT_EQ(levels(by_srun), (std::vector{Level::kWarn, Level::kOk}));
  EXPECT_TRUE(contains(by_srun[0].fix, "srun --mpi=pmix")) << by_srun[0].fix;
}

TEST(Doctor, OfSeveralNodesTheWorstFindingOfEachCheckIsShown) {
  const auto report = [](const char* level) {
    return nlohmann::json{{"checks",
                           {{{"check", "clocks"}, {"level", level}, {"found", level}, {"fix", ""}},
                            {{"check", "files"}, {"level", "ok"}, {"found", "x"}, {"fix", ""}}}}}
        .dump();
  };
  const auto worst = worst_of_each({report("ok"), "srun: noise", report("fail"), report("warn")});
  ASSERT_EQ(worst.size(), 2U);
  EXPECT_EQ(worst[0].level, Level::kFail);
  EXPECT_EQ(worst[1].level, Level::kOk);
}

class OfANetwork : public ::testing::Test {
 protected:
  Finding network(const std::string& check) { return named(examine_network(facts_), check); }
  std::vector<std::string> addresses_;
  NetworkFacts facts_{.host = "n1", .addresses_of = [this](auto&) { return addresses_; }};
};

TEST_F(OfANetwork, TheLibraryCanEncryptAndLoopbackAnswers) {
  EXPECT_EQ(network("libzmq").level, Level::kOk) << network("libzmq").found;
  EXPECT_EQ(network("loopback").level, Level::kOk) << network("loopback").found;
}

TEST_F(OfANetwork, ANameThatMeansLoopbackOrNothingIsATrapForWorkersElsewhereAlone) {
  for (const auto& addresses : std::vector<std::vector<std::string>>{
           {"127.0.1.1", "::1"}, {}, {"192.0.2.7"} /* of documentation: nobody has it */}) {
    addresses_ = addresses;
    facts_.bind = "127.0.0.1";
    EXPECT_EQ(network("address for other nodes").level, Level::kOk);
    facts_.bind = "*";
    const Finding trap = network("address for other nodes");
    EXPECT_EQ(trap.level, Level::kWarn) << trap.found;
    EXPECT_TRUE(contains(trap.fix, "workers.advertise")) << trap.fix;
  }
}

TEST_F(OfANetwork, AnAddressThatIsNotOfThisMachineCannotBeBound) {
  facts_.bind = "192.0.2.7";
  EXPECT_EQ(network("workers.bind").level, Level::kFail);
}

TEST_F(OfANetwork, APortThatAnotherHoldsFails) {
  const ListeningSocket other("127.0.0.1", 0);
  facts_.port = other.port();
  EXPECT_EQ(network("loopback").level, Level::kFail);
  EXPECT_TRUE(contains(network("loopback").found, std::to_string(other.port())));
}

class OfADirectory : public OfAMachine {
 protected:
  Finding directory(const std::string& check, const fs::path& where) {
    return named(examine_directory(where, facts_, needed_), check);
  }
  TemporaryDirectory place_;
  std::optional<std::uint64_t> needed_;
};

TEST_F(OfADirectory, RenamesLeaveNoGapForReaders) {
  const Finding finding = directory("rename", place_.path());
  EXPECT_EQ(finding.level, Level::kOk) << finding.found;
  EXPECT_TRUE(fs::is_empty(place_.path())) << "something was left behind";
}

TEST_F(OfADirectory, ADirectoryThatIsNotThereYetIsLookedAtAndIsNotThereAfterwards) {
  const Finding finding = directory("fsync", place_.path() / "runs" / "mine");
  EXPECT_NE(finding.level, Level::kFail) << finding.found;
  EXPECT_TRUE(fs::is_empty(place_.path())) << "doctor made a directory";
}

TEST_F(OfADirectory, WhatGoesWithTheMachineIsAWarning) {
  if (!fs::is_directory("/dev/shm")) GTEST_SKIP() << "no tmpfs at /dev/shm";
  EXPECT_EQ(directory("file system", "/dev/shm").level, Level::kWarn);
}

TEST_F(OfADirectory, SpaceIsHeldAgainstThePlan) {
  needed_ = 1;
  EXPECT_EQ(directory("free space", place_.path()).level, Level::kOk);
  needed_ = ~0ULL >> 1U;
  EXPECT_EQ(directory("free space", place_.path()).level, Level::kFail);
}

TEST_F(OfADirectory, Hdf5sVariableIsReadAsHdf5ReadsIt) {
  EXPECT_EQ(directory("file locks", place_.path()).found, "work");
  variables_["HDF5_USE_FILE_LOCKING"] = "FALSE";
  EXPECT_TRUE(contains(directory("file locks", place_.path()).found, "not taken"));
  variables_["HDF5_USE_FILE_LOCKING"] = "no";
  EXPECT_EQ(directory("file locks", place_.path()).level, Level::kWarn);
}

TEST_F(OfADirectory, KeysAreReadAsEachSideReadsThemAndMissingOnesCountWhereOthersConnect) {
  const storage::RunLayout layout(place_.path());
  EXPECT_EQ(examine_keys(place_.path(), "127.0.0.1").level, Level::kOk);
  EXPECT_EQ(examine_keys(place_.path(), "*").level, Level::kFail);
  EXPECT_TRUE(contains(examine_keys(place_.path(), "*").fix, "hedgerow keygen --run"));
  std::ignore = make_keys(layout, {.workers = {"worker"}});
  EXPECT_EQ(examine_keys(place_.path(), "*").found, "the coordinator's and a worker's");
  fs::permissions(wire::secret_key_file(layout, "worker"), fs::perms(0640));
  EXPECT_EQ(examine_keys(place_.path(), "*").level, Level::kFail) << "the group may read it";
  fs::remove(wire::secret_key_file(layout, "worker"));
  EXPECT_EQ(examine_keys(place_.path(), "*").found, "the coordinator's") << "as in its pod";
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
