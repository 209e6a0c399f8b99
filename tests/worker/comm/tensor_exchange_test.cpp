#include "worker/comm/tensor_exchange.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "storage/base/error.hpp"
#include "tests/worker/comm/rank_threads.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;
using testing::HasSubstr;

RankPlace gpu(std::string_view host, std::string_view uuid, std::string_view slot) {
  RankPlace place{.is_on_gpu = 1, .nccl_version = 22809};
  std::ranges::copy(host, place.host.begin());
  std::ranges::copy(uuid, place.gpu_uuid.begin());
  std::ranges::copy(slot, place.gpu_slot.begin());
  return place;
}

const std::vector<RankPlace> kTwoGpus = {gpu("a", "00", "0000:01:00"),
                                         gpu("a", "01", "0000:02:00")};

void expect_mpi(const std::vector<RankPlace>& ranks, const std::string& reason) {
  const ExchangeChoice choice = choose_exchange("auto", ranks);
  EXPECT_FALSE(choice.is_nccl) << reason;
  EXPECT_EQ(choice.reason, reason);
  EXPECT_FALSE(choose_exchange("mpi", ranks).is_nccl);
  try {
    static_cast<void>(choose_exchange("nccl", ranks));
    FAIL() << "NCCL was chosen where it cannot be: " << reason;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(error.what(),
              "finetune.exchange = \"nccl\", but " + reason + "; set it to \"auto\" or \"mpi\"");
  }
}

TEST(ExchangeChoice, IsNcclWhereEveryRankHasAGpuOfItsOwn) {
  const std::vector<RankPlace> two_hosts = {gpu("a", "00", "0000:01:00"),
                                            gpu("b", "01", "0000:01:00")};
  for (const auto& ranks : {kTwoGpus, two_hosts}) {
    EXPECT_TRUE(choose_exchange("auto", ranks).is_nccl);
    EXPECT_TRUE(choose_exchange("nccl", ranks).is_nccl);
    EXPECT_FALSE(choose_exchange("mpi", ranks).is_nccl) << "the recipe's word counts";
  }
}

TEST(ExchangeChoice, IsMpiForAllWhereOneRankCannotAndNamesIt) {
  auto ranks = kTwoGpus;
  ranks[1] = RankPlace{};
  expect_mpi(ranks, "rank 1 does not compute on a GPU");
  ranks = kTwoGpus;
  ranks[1].nccl_version = 0;
  expect_mpi(ranks, "rank 1 is of a build without NCCL");
  ranks[1].nccl_version = 21403;
  expect_mpi(ranks, "rank 1 has NCCL 2.14.3 and rank 0 2.28.9");
}

TEST(ExchangeChoice, IsMpiWhereTwoRanksShareAGpu) {
  auto ranks = kTwoGpus;
  ranks.push_back(gpu("a", "01", "0000:02:00"));
  expect_mpi(ranks, "ranks 1 and 2 share the GPU 0000:02:00 of a, which NCCL forbids");
  ranks[2] = gpu("container", "01", "0000:02:00");  // another name for the same host
  expect_mpi(ranks, "ranks 1 and 2 share the GPU 0000:02:00 of a, which NCCL forbids");
  ranks[2] = gpu("a", "02", "0000:02:00");  // another part of one card
  expect_mpi(ranks, "ranks 1 and 2 share the GPU 0000:02:00 of a, which NCCL forbids");
}

TEST(ExchangeChoice, OneRankNeedsNoneButMayAskForIt) {
  const std::vector<RankPlace> one = {kTwoGpus[0]};
  EXPECT_FALSE(choose_exchange("auto", one).is_nccl);
  EXPECT_TRUE(choose_exchange("nccl", one).is_nccl);
}

std::string sharing_problem(const std::vector<RankPlace>& ranks) {
  try {
    refuse_needless_sharing(ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

// Catches: eight ranks on a node's first GPU, because none of them knew its number there.
TEST(RankPlaces, TwoRanksOnOneGpuAreRefusedWhileAnotherIsFree) {
  const auto on_host_of = [](int visible, std::vector<RankPlace> ranks) {
    for (RankPlace& rank : ranks) rank.num_visible_gpus = visible;
    return ranks;
  };
  const RankPlace first = gpu("a", "00", "0000:01:00"), second = gpu("a", "01", "0000:02:00");
  EXPECT_EQ(sharing_problem(on_host_of(8, {second, first, first})),
            "ranks 1 and 2 compute on one GPU, 0000:01:00 of a, where 8 are visible and 2 are in "
            "use: the ranks do not know their numbers on the host; start them with mpirun or srun, "
            "or set SLURM_LOCALID or CUDA_VISIBLE_DEVICES of each to a number of its own");
  EXPECT_THAT(sharing_problem(on_host_of(2, {first, first})),
              HasSubstr("2 are visible and 1 is in use"));
  EXPECT_EQ(sharing_problem(on_host_of(2, {first, second, first})), "") << "none is free";
  EXPECT_EQ(sharing_problem(on_host_of(1, {first, first})), "") << "one card for both";
  EXPECT_EQ(sharing_problem(on_host_of(8, {first, second})), "");
  EXPECT_EQ(sharing_problem(on_host_of(8, {first, gpu("b", "02", "0000:01:00")})), "")
      << "the same place on two hosts";
  EXPECT_EQ(sharing_problem({RankPlace{}, RankPlace{}}), "") << "on processors";
}

at::Tensor numbers(int rank) { return at::arange(5, at::kFloat) + 10 * rank; }

TEST(HostExchange, GivesBothRanksThePeersTensor) {
  run_on_threads(4, [](Communicator& communicator) {
    const auto exchange = make_tensor_exchange(communicator, at::kCPU, "auto");
    EXPECT_EQ(exchange->name(), "MPI");
    const int rank = communicator.rank();
    for (const int distance : {1, 2}) {
      const at::Tensor own = numbers(rank), other = at::empty_like(own);
      exchange->exchange(own, other, rank ^ distance);
      EXPECT_TRUE(other.equal(numbers(rank ^ distance))) << other;
      EXPECT_TRUE(own.equal(numbers(rank))) << "what was sent has changed";
    }
  });
}

TEST(HostExchange, NcclIsRefusedOnEveryRankOfTheCpu) {
  run_on_threads(2, [](Communicator& communicator) {
    try {
      static_cast<void>(make_tensor_exchange(communicator, at::kCPU, "nccl"));
      ADD_FAILURE() << "rank " << communicator.rank();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("rank 0 does not compute on a GPU"));
    }
  });
}

TEST(HostExchange, AnUndefinedTensorIsNotSentAndNotReceived) {
  run_on_threads(2, [](Communicator& communicator) {
    const auto exchange = make_host_exchange(communicator);
    for (const int sender : {0, 1}) {
      const at::Tensor sent = at::arange(4, at::kFloat) + sender;
      const at::Tensor received = at::empty_like(sent);
      if (communicator.rank() == sender) {
        exchange->exchange(sent, {}, 1 - sender);
      } else {
        exchange->exchange({}, received, sender);
        EXPECT_TRUE(received.equal(sent));
      }
    }
  });
}

TEST(HostExchange, LengthsThatDifferBetweenRanksAreABug) {
  try {
    run_on_threads(2, [](Communicator& communicator) {
      const auto exchange = make_host_exchange(communicator);
      const at::Tensor own = at::ones({communicator.rank() == 0 ? 4 : 3});
      exchange->exchange(own, at::empty_like(own), 1 - communicator.rank());
    });
    FAIL() << "3 numbers were taken for 4";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal) << error.what();
  }
}

TEST(HostExchange, TensorsThatDoNotFitEachOtherAreABugOfThisRank) {
  const auto alone = make_single_communicator();
  const auto exchange = make_host_exchange(*alone);
  const at::Tensor own = at::ones({4});
  for (const at::Tensor& other :
       {at::ones({3}), at::ones({4}, at::kDouble), at::ones({4, 2}).select(1, 0)}) {
    try {
      exchange->exchange(own, other, 1);
      ADD_FAILURE() << other;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInternal);
      EXPECT_THAT(error.what(),
                  HasSubstr("of one shape and device, found CPUFloatType [4] on cpu"));
    }
  }
}

TEST(HostExchange, ALostPeerIsAnErrorWithinTheDeadlineThatNamesIt) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_on_threads(
        2,
        [](Communicator& communicator) {
          const auto exchange = make_host_exchange(communicator);
          if (communicator.rank() == 1) {  // alive, but it does not come
            std::vector<std::byte> bytes(1);
            communicator.receive(bytes, 0, 7);
          }
          const at::Tensor own = at::ones({4});
          exchange->exchange(own, at::empty_like(own), 1);
        },
        std::chrono::milliseconds(50));
    FAIL() << "an exchange without a peer came back";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("from rank"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace hedgerow::worker
