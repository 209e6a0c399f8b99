#include "coordinator/dispatch/commit.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "storage/base/error.hpp"
#include "tests/coordinator/run_fixture.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class TokensOnDisk : public RunFixture {
 protected:
  void touch(const std::string& name) const {
    fs::create_directories((layout_.root() / name).parent_path());
    std::ofstream(layout_.root() / name) << "x";
  }
};

TEST_F(TokensOnDisk, TheLargestIsFoundInEveryFolder) {
  EXPECT_EQ(largest_token_on_disk(layout_), 0U);
  std::uint64_t token = 0;
  const auto expect_found = [&](const std::string& name) {
    touch(name);
    EXPECT_EQ(largest_token_on_disk(layout_), token) << name;
  };
  ++token, expect_found(storage::RunLayout::attempt_directory(token) + "/checkpoint");
  ++token, expect_found(storage::RunLayout::hidden_shard(2, 5, token));
  ++token, expect_found(storage::RunLayout::block_artifact(1, token));
  ++token, expect_found(storage::RunLayout::student_directory(token) + "/hedgerow.json");
  ++token, expect_found(storage::RunLayout::adapter_directory(token) + "/adapter_config.json");
  ++token, expect_found(storage::RunLayout::evaluation("teacher", token));
}

TEST(Outputs, AFinetuneMayLeaveTrainedParametersBesideItsAdapterAndNothingElse) {
  const auto files = [](std::initializer_list<const char*> names) {
    std::vector<storage::FileRecord> records;
    for (const char* name : names)
      records.emplace_back().name = storage::RunLayout::adapter_directory(3) + "/" + name;
    return records;
  };
  const char *config = "adapter_config.json", *model = "adapter_model.safetensors",
             *trained = "trained_parameters.safetensors";
  EXPECT_TRUE(are_outputs(TaskId::finetune(), 3, files({model, config})));
  EXPECT_TRUE(are_outputs(TaskId::finetune(), 3, files({trained, model, config})));
  EXPECT_FALSE(are_outputs(TaskId::finetune(), 3, files({trained, config})));
  EXPECT_FALSE(are_outputs(TaskId::finetune(), 3, files({model, config, "more.safetensors"})));
  EXPECT_FALSE(are_outputs(TaskId::finetune(), 4, files({model, config})));
  EXPECT_FALSE(are_outputs(TaskId::assemble(), 3, files({trained, model, config})));
}

// A person's notes, an editor's lock, a link into nowhere: a run must start beside them.
TEST_F(TokensOnDisk, NamesOfOthersAreNoObstacle) {
  touch("hidden/b0001/s00000.t7.h5");
  touch("hidden/b0001/\xff\xfe odd");
  touch("hidden/my notes/t99.txt/deeper");
  fs::create_symlink("loop", layout_.root() / "hidden" / "loop");
  fs::create_symlink("loop", layout_.root() / "hidden" / "b0001" / "loop");
  fs::create_symlink("/nowhere/at/all", layout_.root() / "hidden" / "b0002");
  EXPECT_EQ(largest_token_on_disk(layout_), 7U);
}

TEST_F(TokensOnDisk, AFolderThatCannotBeListedIsNamed) {
  touch("hidden");  // a file where a folder must be
  try {
    static_cast<void>(largest_token_on_disk(layout_));
    FAIL() << "a token that lies there could be given out again";
  } catch (const storage::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr((layout_.root() / "hidden").string()));
  }
}

}  // namespace
}  // namespace hedgerow::coordinator
