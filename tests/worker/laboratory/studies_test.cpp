// The part of the studies that runs on every change: the recall study itself, at its own setting,
// with softmax and 1 + ELU. What all studies find is in worker/laboratory/README.md.
#include <gmock/gmock.h>

#include "worker/laboratory/study.hpp"

namespace hedgerow::worker::laboratory {
namespace {

// Catches: a change after which softmax no longer solves recall, or 1 + ELU does.
TEST(Studies, SoftmaxSolvesRecallAndEluStaysOnThePlateau) {
  StudyOptions options;
  options.num_threads = 2;
  options.only = {"elu"};
  const StudyResult result = find_study("recall").run(options);
  ASSERT_EQ(result.rows.size(), 2);
  EXPECT_GE(result.rows[0].at("accuracy").get<double>(), 0.99);
  EXPECT_LE(result.rows[1].at("accuracy").get<double>(), 0.50);
  EXPECT_EQ(result.claims.front().verdict, Verdict::kReproduced);
}

}  // namespace
}  // namespace hedgerow::worker::laboratory
