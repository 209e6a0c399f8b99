// Catches: a run that goes on with another teacher or other tokens than half of it was made from.
#include "coordinator/serve/run_inputs.hpp"

#include <gmock/gmock.h>

namespace hedgerow::coordinator {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const storage::FileRecord kTransferTokens{"tokens/transfer.h5", 100, {1, 2}};
const storage::FileRecord kEvaluateTokens{"tokens/evaluate.h5", 50, {3, 4}};

// The refusal's message; empty: the run goes on.
std::string refusal(const RunInputs& now) {
  try {
    check_same_inputs({"f00d", {kTransferTokens}}, now, storage::RunLayout("/run"), "/model");
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

TEST(RunInputs, LetARunGoOnFromWhatItBeganWith) {
  EXPECT_EQ(refusal({"f00d", {kTransferTokens}}), "");
}

TEST(RunInputs, NameTheModelThatChanged) {
  EXPECT_THAT(refusal({"beef", {kTransferTokens}}),
              HasSubstr("/model changed since the run began"));
}

TEST(RunInputs, NameTheTokenFileThatIsAnotherMissingOrNew) {
  storage::FileRecord other = kTransferTokens;
  other.root_hash.low = 9;
  EXPECT_THAT(refusal({"f00d", {other}}),
              AllOf(HasSubstr("/run/tokens/transfer.h5 is not the file"),
                    HasSubstr("'hedgerow check --repair --run /run' takes it away")));
  EXPECT_THAT(refusal({"f00d", {}}), HasSubstr("missing now"));
  EXPECT_THAT(refusal({"f00d", {kTransferTokens, kEvaluateTokens}}),
              HasSubstr("/run/tokens/evaluate.h5 was not there"));
}

}  // namespace
}  // namespace hedgerow::coordinator
