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
    facts_.memory_bytes = 32 * kGiB;
    write("dev/shm/.kept", "");
  }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((scratch_.path() / path).parent_path());
    std::ofstream(scratch_.path() / path) << text;
  }

  Finding machine(const std::string& check) { return named(examine_machine(facts_), check); }

  TemporaryDirectory scratch_;
  std::map<std::string, std::string> variables_;
  std::map<int, rlimit> limits_;
  MachineFacts facts_;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(OfAMachine, MemoryForNoWorkerIsAWarning) {
  EXPECT_EQ(machine("memory").found, "34.4 GB");
  facts_.memory_bytes = kGiB / 2;
  EXPECT_EQ(machine("memory").level, Level::kWarn);
}

TEST_F(OfAMachine, AJobOfSlurmIsTold) {
  EXPECT_EQ(machine("Slurm").found, "not inside a job");
  variables_["SLURM_JOB_ID"] = "4711";
  EXPECT_EQ(machine("Slurm").found, "job 4711, nodes: 1");
}

TEST_F(OfAMachine, MissingSharedMemoryIsAWarning) {
  EXPECT_EQ(machine("shared memory").level, Level::kOk);
  fs::remove_all(scratch_.path() / "dev/shm");
  EXPECT_EQ(machine("shared memory").level, Level::kWarn);
}

TEST_F(OfAMachine, ALowLimitIsAWarning) {
  EXPECT_EQ(machine("open files").found, "unlimited");
  limits_[RLIMIT_NOFILE] = {256, 4096};
  EXPECT_EQ(machine("open files").level, Level::kWarn);
  EXPECT_EQ(machine("open files").found, "256");
  limits_[RLIMIT_NPROC] = {100, 4096};
  EXPECT_EQ(machine("processes").level, Level::kWarn);
  limits_[RLIMIT_AS] = {64 * kGiB, RLIM_INFINITY};
  EXPECT_EQ(machine("address space").level, Level::kWarn);
  EXPECT_EQ(machine("address space").found, "68.7 GB");
}

TEST_F(OfAMachine, LockedMemoryMattersWhereInfiniBandIs) {
  limits_[RLIMIT_MEMLOCK] = {65536, 65536};
  EXPECT_EQ(machine("locked memory").level, Level::kOk);
  write("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
  EXPECT_EQ(machine("locked memory").level, Level::kWarn);
  limits_[RLIMIT_MEMLOCK] = {RLIM_INFINITY, RLIM_INFINITY};
  EXPECT_EQ(machine("locked memory").level, Level::kOk);
}

class OfAMachineWithGpus : public OfAMachine {
 protected:
  OfAMachineWithGpus() {
    facts_.has_cuda = true;
    write("dev/nvidia0", "");
    write("dev/nvidia1", "");
    write("proc/driver/nvidia/version", "");
    facts_.cuda_driver_api = 13000;
  }
  Finding gpu() { return machine("GPU"); }
};

TEST_F(OfAMachineWithGpus, ADriverThatOffersCuda13IsFineAndAnOlderOneFails) {
  EXPECT_EQ(gpu().found, "2 device(s), the driver offers CUDA 13.0");
  facts_.cuda_driver_api = 12040;
  EXPECT_EQ(gpu().level, Level::kFail);
  EXPECT_TRUE(contains(gpu().fix, "580")) << gpu().fix;
  EXPECT_TRUE(contains(gpu().found, "offers CUDA 12.4")) << gpu().found;
}

TEST_F(OfAMachineWithGpus, TheDriversVersionIsNamedBesideWhatItOffers) {
  write("proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
        "GCC version:  gcc version 12.3.0\n");
  facts_.cuda_driver_api = 12020;
  EXPECT_EQ(gpu().level, Level::kFail);
  EXPECT_EQ(gpu().found, "2 device(s), the driver 535.104.05 offers CUDA 12.2; 13.0 is needed");
  EXPECT_TRUE(contains(gpu().fix, "driver 580 or newer")) << gpu().fix;
  EXPECT_TRUE(contains(gpu().fix, "cuda-compat-13-0")) << gpu().fix;
  facts_.has_cuda = false;
  EXPECT_EQ(gpu().level, Level::kWarn) << "this build needs none";
  facts_.has_cuda = true;
  facts_.cuda_driver_api = 13000;
  EXPECT_EQ(gpu().level, Level::kOk) << "the compatibility package offers it on the older driver";
  write(
      "proc/driver/nvidia/version",
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (a@b)\n");
  EXPECT_EQ(gpu().found, "2 device(s), the driver 580.65.06 offers CUDA 13.0");
}

TEST_F(OfAMachineWithGpus, AContainerWithoutTheDriversLibraryIsToldHowToGetIt) {
  facts_.cuda_driver_api = 0;
  EXPECT_EQ(gpu().level, Level::kFail);
  EXPECT_TRUE(contains(gpu().fix, "--nv")) << gpu().fix;
}

TEST_F(OfAMachineWithGpus, HiddenAndMissingDevicesAreToldApart) {
  variables_["CUDA_VISIBLE_DEVICES"] = "";
  EXPECT_TRUE(contains(gpu().found, "hides all")) << gpu().found;
  variables_.clear();
  fs::remove(scratch_.path() / "dev/nvidia0");
  fs::remove(scratch_.path() / "dev/nvidia1");
  EXPECT_EQ(gpu().found, "a driver without devices");
  fs::remove_all(scratch_.path() / "proc/driver");
  EXPECT_EQ(gpu().level, Level::kOk) << "a machine without GPUs is no fault";
}

TEST_F(OfAMachineWithGpus, ABuildWithoutCudaWarnsThatItLeavesThemIdle) {
  facts_.has_cuda = false;
  EXPECT_EQ(gpu().level, Level::kWarn);
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
  const Outcome met = judge_ranks(kTwoRanks);
  EXPECT_EQ(met.level, Level::kOk);
  EXPECT_EQ(met.found, "on n1, n2, exchanged a megabyte in 4 ms (Open MPI v4)");
  const std::string alone = R"({"ranks":1,"hosts":["n1"],"exchange_seconds":0.1,"library":"x"})";
  const Outcome apart = judge_ranks({alone, alone});
  EXPECT_EQ(apart.level, Level::kFail);
  EXPECT_TRUE(contains(apart.found, "came up alone")) << apart.found;
  EXPECT_EQ(judge_ranks({}).level, Level::kFail);
}

TEST(Doctor, OneLauncherThatWorksIsEnoughAndItSaysWhich) {
  const Finding works{"x", Level::kOk, "on n1, n2", ""};
  const Finding fails{"x", Level::kFail, "no rank answered", "install it"};
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
  Finding network(const std::string& check) {
    return named(examine_network(facts_, place_.path()), check);
  }
  TemporaryDirectory place_;
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

TEST_F(OfADirectory, ItIsLookedAtAndNothingIsLeftBehind) {
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
}

TEST_F(OfANetwork, KeysAreReadAsEachSideReadsThemAndMissingOnesCountWhereOthersConnect) {
  const storage::RunLayout layout(place_.path());
  const auto keys_with = [this](const std::string& bind) {
    facts_.bind = bind;
    return network("keys");
  };
  EXPECT_EQ(keys_with("127.0.0.1").level, Level::kOk);
  EXPECT_EQ(keys_with("*").level, Level::kFail);
  EXPECT_TRUE(contains(keys_with("*").fix, "hedgerow keygen --run"));
  std::ignore = make_keys(layout, {.workers = {"worker"}});
  EXPECT_EQ(keys_with("*").found, "the coordinator's and a worker's");
  fs::permissions(wire::secret_key_file(layout, "worker"), fs::perms(0640));
  EXPECT_EQ(keys_with("*").level, Level::kFail) << "the group may read it";
  fs::remove(wire::secret_key_file(layout, "worker"));
  EXPECT_EQ(keys_with("*").found, "the coordinator's") << "as in its pod";
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
