#include "worker/logits/top_logits.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "storage/base/error.hpp"
#include "storage/recipe/capture_plan.hpp"

namespace hedgerow::worker {
namespace {

class TopLogitsOf : public testing::TestWithParam<std::pair<std::int64_t, int>> {};

TEST_P(TopLogitsOf, AreThoseThatSortingGivesAndTheRestIsWhatTheOthersHave) {
  const auto [vocab_size, top_k] = GetParam();
  at::manual_seed(7);
  const at::Tensor logits = at::randn({9, vocab_size}) * 4.0;
  logits[3].fill_(0.5);                    // all equal: the lower ids
  logits[4].narrow(0, 0, top_k).add_(60);  // next to nothing is left
  const TopLogits found = top_logits(logits, top_k);
  const at::Tensor log_p = at::log_softmax(logits.to(at::kDouble), -1);
  const auto [values, ids] = log_p.sort(/*stable=*/true, -1, /*descending=*/true);
  EXPECT_TRUE(at::equal(found.ids.to(at::kLong), ids.narrow(1, 0, top_k)));
  EXPECT_TRUE(at::allclose(
      found.log_probabilities.to(at::kDouble), values.narrow(1, 0, top_k), 1e-5, 1e-5));
  if (top_k == vocab_size) {
    EXPECT_TRUE(at::isneginf(found.log_rest).all().item<bool>());
    return;
  }
  const at::Tensor rest = values.narrow(1, top_k, vocab_size - top_k).logsumexp(-1);
  EXPECT_TRUE(at::allclose(found.log_rest.to(at::kDouble), rest, 1e-4, 1e-4));
}

INSTANTIATE_TEST_SUITE_P(Sizes,
                         TopLogitsOf,
                         testing::Values(std::pair{49152, 256},
                                         std::pair{1000, 1},
                                         std::pair{1001, 250},
                                         std::pair{130, 100},
                                         std::pair{64, 64}),
                         [](const auto& size) {
                           return std::to_string(size.param.first) + "_" +
                                  std::to_string(size.param.second);
                         });

TEST(TopLogits, ReadBackAsTheyWereWrittenButForHalfPrecisionAndSumToOne) {
  at::manual_seed(8);
  const TopLogits top = top_logits(at::randn({11, 300}) * 5.0, 13);
  const std::vector<std::byte> bytes = encode(top);
  EXPECT_EQ(std::ssize(bytes), 11 * storage::logits_bytes(13));
  const TopLogits read = decode(bytes, 11, 300, "logits/p00000.t1.h5");
  EXPECT_TRUE(at::equal(read.ids, top.ids));
  EXPECT_TRUE(at::allclose(read.log_probabilities, top.log_probabilities, 2e-3, 2e-3));
  EXPECT_TRUE(at::allclose(read.log_rest, top.log_rest, 2e-3, 2e-3));
  const at::Tensor sum = read.log_probabilities.exp().sum(-1) + read.log_rest.exp();
  EXPECT_TRUE(at::allclose(sum, at::ones_like(sum), 1e-6, 1e-6));
}

TEST(TopLogits, OfAnotherLengthAreCorruptAndOfAnotherVocabularyOfAnotherTeacher) {
  const std::vector<std::byte> bytes = encode(top_logits(at::randn({4, 300}), 300));
  for (const auto& [seq_len, vocab_size] : {std::pair{4, 299}, {3, 300}}) {
    try {
      static_cast<void>(decode(bytes, seq_len, vocab_size, "logits/p00000.t1.h5"));
      ADD_FAILURE() << seq_len << " positions, vocabulary of " << vocab_size;
    } catch (const storage::Error& error) {
      EXPECT_EQ(error.kind(),
                seq_len == 3 ? storage::ErrorKind::kCorrupt : storage::ErrorKind::kUsage);
      EXPECT_NE(std::string(error.what()).find("logits/p00000.t1.h5"), std::string::npos);
    }
  }
}

TEST(TopLogits, ThatAreNotFiniteAreRefused) {
  const at::Tensor logits = at::zeros({2, 50});
  logits[1][3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(static_cast<void>(top_logits(logits, 5)), storage::Error);
}

}  // namespace
}  // namespace hedgerow::worker
