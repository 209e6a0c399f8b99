// The logits task through its files, and a finetune that learns from them.
#include "worker/logits/logits.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/shards/hidden_shard.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/tiny_model.hpp"
#include "tests/support/tiny_run.hpp"
#include "tests/support/tiny_student.hpp"
#include "tests/worker/comm/rank_threads.hpp"
#include "worker/finetune/finetune.hpp"
#include "worker/logits/logits_reader.hpp"

namespace hedgerow::worker {
namespace {

namespace fs = std::filesystem;

class Logits : public testing::Test {
 protected:
  void SetUp() override { tests::write_tiny_model(directory_ / "model"); }

  storage::Recipe recipe() const {
    storage::Recipe recipe = tests::tiny_recipe(directory_ / "model");
    recipe.plan.layers_per_block = 2;
    recipe.finetune.objective = "kl";
    recipe.finetune.top_k = 9;
    recipe.finetune.rank = 4;
    recipe.finetune.learning_rate = 1e-2;
    recipe.finetune.max_steps = 4;
    recipe.finetune.sequences_per_step = 4;
    recipe.data_finetune = recipe.data_transfer;
    return recipe;
  }

  fs::path write_run(const std::string& name, const storage::Recipe& recipe) const {
    const fs::path root = directory_ / name;
    tests::write_tiny_run(root, recipe, 12);
    return root;
  }

  // As the coordinator grants it: the whole plan as one piece.
  static wire::Task task_of(RunContext& run, const std::vector<storage::FileRecord>& boundary) {
    wire::Task task;
    task.kind = wire::TaskKind::kLogits;
    task.fencing_token = 30;
    task.piece = 0;
    task.num_shards = 1;
    task.sequences_per_shard = run.logits_plan().sequences.num_sequences();
    task.num_layers = run.config().num_hidden_layers;
    if (run.logits_plan().from_boundary) {
      task.first_layer = run.config().num_hidden_layers - 2;
      task.num_layers = 2;
      task.block = task.first_layer / 2;
      task.inputs = boundary;
    }
    return task;
  }

  static storage::FileRecord run_task(RunContext& run, const wire::Task& task) {
    tests::LocalTaskContext context(run.layout(), task.fencing_token);
    const TaskResult result = run_logits(run, context, task);
    EXPECT_TRUE(result.finished);
    context.commit(result.files.at(0));
    return result.files.at(0);
  }

  static std::vector<std::vector<std::byte>> chunks_of(const fs::path& path) {
    const storage::ShardReader reader(path);
    std::vector<std::vector<std::byte>> chunks;
    for (std::int64_t i = 0; i < reader.info().num_sequences; ++i)
      reader.read(i, chunks.emplace_back(reader.info().bytes_per_sequence()));
    return chunks;
  }

  tests::TemporaryDirectory directory_;
};

TEST_F(Logits, FromTheLastBoundaryAreThoseThatAllLayersGiveFromTheTokens) {
  const fs::path captured = write_run("captured", recipe());
  const tests::PipelineResult pipeline = tests::run_pipeline(captured);
  RunContext from_boundary(captured);
  ASSERT_TRUE(from_boundary.logits_plan().from_boundary);
  const auto first = run_task(from_boundary, task_of(from_boundary, pipeline.boundaries.back()));
  EXPECT_EQ(first.name, "logits/p00000.t30.h5");

  storage::Recipe apart = recipe();
  // The same tokens; as far as it knows, other text.
  apart.data_finetune.add_bos = storage::AddBos::kNo;
  const fs::path other = write_run("other", apart);
  RunContext from_tokens(other);
  ASSERT_FALSE(from_tokens.logits_plan().from_boundary);
  const auto second = run_task(from_tokens, task_of(from_tokens, {}));
  const auto a = chunks_of(captured / first.name), b = chunks_of(other / second.name);
  ASSERT_GE(a.size(), 8U);
  ASSERT_EQ(b.size(), 12U + 4U) << "all of its own validation, not the transfer's part";
  EXPECT_EQ(a[0], b[0]);
  EXPECT_EQ(a[7], b[7]);
}

TEST_F(Logits, AFinetuneLearnsFromThemOnAnyNumberOfRanksWithTheSameBytes) {
  storage::Recipe apart = recipe();
  apart.data_finetune.add_bos = storage::AddBos::kNo;
  const fs::path root = write_run("run", apart);
  RunContext run(root);
  const auto logits = run_task(run, task_of(run, {}));
  tests::write_tiny_student(RunContext(root, at::kCPU), "student/t5");
  std::map<int, std::string> adapters;
  for (const int world_size : {1, 2}) {
    run_on_threads(world_size, [&](Communicator& communicator) {
      RunContext own(root);
      wire::Task task =
          tests::finetune_task(static_cast<storage::FencingToken>(40 + world_size), "student/t5");
      task.inputs.push_back(logits);
      tests::LocalTaskContext context(own.layout(), task.fencing_token);
      const TaskResult result =
          run_finetune(own, context, task, {communicator.world_size(), 1}, communicator);
      if (communicator.rank() != 0) return;
      for (const auto& file : result.files) context.commit(file);
      adapters[world_size] = storage::read_text(root / result.files.at(1).name);
    });
  }
  EXPECT_EQ(adapters[1], adapters[2]);
  EXPECT_FALSE(adapters[1].empty());
}

TEST_F(Logits, AFinetuneWithoutThemSaysWhatIsMissing) {
  const fs::path root = write_run("run", recipe());
  tests::write_tiny_student(RunContext(root, at::kCPU), "student/t5");
  RunContext run(root);
  tests::LocalTaskContext context(run.layout(), 41);
  const auto communicator = make_single_communicator();
  try {
    static_cast<void>(
        run_finetune(run, context, tests::finetune_task(41, "student/t5"), {}, *communicator));
    FAIL() << "learnt from nothing";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("finetune.objective"), std::string::npos);
  }
}

}  // namespace
}  // namespace hedgerow::worker
