// The finetune stage through its files: run.toml, tokens, a student, checkpoints, the adapter.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "storage/base/error.hpp"
#include "storage/base/file.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/tiny_model.hpp"
#include "tests/support/tiny_run.hpp"
#include "tests/support/tiny_student.hpp"
#include "worker/finetune/finetune.hpp"
#include "worker/model/lora.hpp"
#include "worker/model/student.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxSteps = 6;

class FinetuneTask : public testing::Test {
 protected:
  void SetUp() override {
    tests::write_tiny_model(directory_ / "model");
    storage::Recipe recipe = tests::tiny_recipe(directory_ / "model");
    recipe.finetune.rank = 4;
    recipe.finetune.learning_rate = 1e-2;
    recipe.finetune.max_steps = kMaxSteps;
    recipe.finetune.sequences_per_step = 4;
    recipe.finetune.checkpoint_every = 2;
    recipe.finetune.validate_every = 3;
    tests::write_tiny_run(root(), recipe, 12);
    write_student("student/t5");
  }

  [[nodiscard]] fs::path root() const { return directory_ / "run"; }

  void write_student(const std::string& name) const {
    tests::write_tiny_student(RunContext(root(), at::kCPU), name);
  }
  static wire::Task task(storage::FencingToken token, const std::string& student = "student/t5") {
    return tests::finetune_task(token, student);
  }

  struct Outcome {
    TaskResult result;
    std::map<std::int64_t, storage::FileRecord> checkpoints;
    std::vector<std::int64_t> published_steps;
    std::string adapter;  // bytes of adapter_model.safetensors
  };
  using StopWhen = std::function<bool(const tests::LocalTaskContext&)>;

  // The stage on `world_size` ranks; what rank 0 saw.
  [[nodiscard]] Outcome run(int world_size,
                            const wire::Task& task,
                            const StopWhen& stop_when = {}) const {
    Outcome outcome;
    run_on_threads(world_size, [&](Communicator& communicator) {
      at::set_num_threads(1);
      RunContext run(root());
      tests::LocalTaskContext context(run.layout(), task.fencing_token);
      if (communicator.rank() == 0) context.stop_when = stop_when;
      auto result = run_finetune(run, context, task, communicator);
      if (communicator.rank() != 0) {
        EXPECT_TRUE(result.files.empty());
        return;
      }
      for (const auto& file : result.files) context.commit(file);
      if (result.finished)
        outcome.adapter = storage::read_text(run.layout().resolve(result.files.back().name));
      outcome.result = std::move(result);
      outcome.checkpoints = context.checkpoints;
      outcome.published_steps = context.published_steps;
    });
    return outcome;
  }

  tests::TemporaryDirectory directory_;
};

TEST_F(FinetuneTask, AnyNumberOfRanksLeavesTheSameAdapterAndResult) {
  const Outcome one = run(1, task(1));
  ASSERT_TRUE(one.result.finished);
  EXPECT_EQ(one.result.files[0].name, "adapter/t1/adapter_config.json");
  EXPECT_EQ(one.result.files[1].name, "adapter/t1/adapter_model.safetensors");
  const RunContext run_context(root());
  const LoraAdapter adapter = load_adapter(root() / "adapter/t1", run_context.config());
  EXPECT_GT(adapter.find(3, "o_proj")->b.abs().max().item<double>(), 0.0) << "nothing was learned";
  for (const int world_size : {2, 4}) {
    const auto token = static_cast<storage::FencingToken>(world_size);
    const Outcome many = run(world_size, task(token));
    EXPECT_EQ(many.adapter, one.adapter) << world_size << " ranks";
    EXPECT_EQ(many.result.result["validation_loss"], one.result.result["validation_loss"]);
    EXPECT_EQ(many.result.result["ranks"], world_size);
  }
  std::ifstream metrics(root() / "attempts/t1/metrics.jsonl");
  int losses = 0, validations = 0;
  for (std::string line; std::getline(metrics, line);) {
    losses += static_cast<int>(nlohmann::json::parse(line).count("loss"));
    validations += static_cast<int>(nlohmann::json::parse(line).count("validation_loss"));
  }
  EXPECT_EQ(losses, kMaxSteps);
  EXPECT_EQ(validations, 2);
}

TEST_F(FinetuneTask, AStoppedStageGoesOnAtAnotherWorldSizeToTheSameAdapter) {
  const Outcome undisturbed = run(2, task(1));
  for (const int world_size : {1, 4}) {
    const auto token = static_cast<storage::FencingToken>(10 + world_size);
    const Outcome stopped = run(2, task(token), [](const tests::LocalTaskContext& context) {
      return context.reports.back().phase != "loading" && context.reports.back().step >= 3;
    });
    EXPECT_FALSE(stopped.result.finished);
    ASSERT_FALSE(stopped.checkpoints.empty());
    EXPECT_EQ(stopped.checkpoints.rbegin()->first, 3)
        << "the last checkpoint is of the moment of the stop";
    wire::Task again = task(token + 100);
    again.resume = stopped.checkpoints.rbegin()->second;
    const Outcome resumed = run(world_size, again);
    EXPECT_EQ(resumed.adapter, undisturbed.adapter) << world_size << " ranks";
    EXPECT_EQ(resumed.result.result["tokens"], undisturbed.result.result["tokens"]);
  }
}

TEST_F(FinetuneTask, AStepThatLastsTooLongForAStopIsAbandonedAndTheLastWholeOneIsCheckpointed) {
  const Outcome undisturbed = run(2, task(1));
  Outcome stopped;
  bool other_found_it_lost = false;
  run_on_threads(2, [&](Communicator& communicator) {
    at::set_num_threads(1);
    RunContext run(root());
    tests::LocalTaskContext context(run.layout(), 2);
    const StopTimeout none{std::chrono::milliseconds(0), std::chrono::hours(1)};
    if (communicator.rank() == 0) {
      // In the middle of the step behind the third.
      context.stop_when = [](const tests::LocalTaskContext& seen) {
        return seen.reports.back().phase == "training" && seen.reports.back().step == 3;
      };
      stopped.result = run_finetune(run, context, task(2), communicator, none);
      stopped.checkpoints = context.checkpoints;
      return;
    }
    try {
      static_cast<void>(run_finetune(run, context, task(2), communicator, none));
    } catch (const storage::Error& error) {
      other_found_it_lost = error.kind() == storage::ErrorKind::kUnavailable;
    }
  });
  EXPECT_FALSE(stopped.result.finished);
  EXPECT_TRUE(stopped.result.ranks_parted);
  EXPECT_TRUE(other_found_it_lost);
  ASSERT_FALSE(stopped.checkpoints.empty());
  EXPECT_EQ(stopped.checkpoints.rbegin()->first, 3);
  wire::Task again = task(3);
  again.resume = stopped.checkpoints.rbegin()->second;
  EXPECT_EQ(run(2, again).adapter, undisturbed.adapter);
}

TEST_F(FinetuneTask, AStopThatReachesAnyRankEndsTheStageForAllAtTheNextStep) {
  std::atomic<bool> told = false;
  std::vector<TaskResult> results(2);
  std::map<std::int64_t, storage::FileRecord> checkpoints;
  run_on_threads(2, [&](Communicator& communicator) {
    at::set_num_threads(1);
    RunContext run(root());
    tests::LocalTaskContext context(run.layout(), 1);
    const bool is_root = communicator.rank() == 0;
    // The second rank alone is told, while the first step runs.
    context.stop_when = [&, is_root](const tests::LocalTaskContext& seen) {
      if (is_root && seen.reports.back().phase == "training") told = true;
      return !is_root && told;
    };
    results[is_root ? 0 : 1] = run_finetune(run, context, task(1), communicator);
    if (is_root) checkpoints = context.checkpoints;
  });
  for (const TaskResult& result : results) {
    EXPECT_FALSE(result.finished);
    EXPECT_FALSE(result.ranks_parted);
  }
  ASSERT_FALSE(checkpoints.empty());
  EXPECT_LE(checkpoints.rbegin()->first, 2);
}

// Written again, it would be empty for a moment, in which the coordinator finds it damaged.
TEST_F(FinetuneTask, AStopRightAfterACheckpointDoesNotWriteItAgain) {
  const Outcome stopped = run(2, task(1), [](const tests::LocalTaskContext& context) {
    return context.checkpoints.contains(2);
  });
  EXPECT_FALSE(stopped.result.finished);
  EXPECT_EQ(stopped.published_steps, std::vector<std::int64_t>{2});
}

TEST_F(FinetuneTask, ACheckpointOfAnotherStudentIsRefused) {
  const Outcome first = run(1, task(1));
  write_student("student/t6");
  wire::Task other = task(2, "student/t6");
  other.resume = first.checkpoints.rbegin()->second;
  try {
    static_cast<void>(run(1, other));
    FAIL() << "a checkpoint of student/t5 was taken for student/t6";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kCorrupt);
    EXPECT_THAT(error.what(), testing::HasSubstr("student/t5"));
  }
}

TEST_F(FinetuneTask, RanksThatCannotShareAStepAreRefused) {
  try {
    static_cast<void>(run(3, task(1)));
    FAIL() << "3 ranks shared 4 micro-batches";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage) << error.what();
  }
}

TEST_F(FinetuneTask, AStudentWithAMissingTensorOrOfAnotherTeacherIsRefused) {
  const auto path = root() / "student/t5/hedgerow.json";
  const auto refusal = [&](const std::string& key, const nlohmann::json& value) {
    const std::string before = storage::read_text(path);
    auto json = nlohmann::json::parse(before);
    json[key] = value;
    storage::write_atomically(path, json.dump());
    std::string message = "none";
    try {
      const RunContext run_context(root());
      static_cast<void>(load_student(root() / "student/t5", run_context.model(), at::kCPU));
    } catch (const storage::Error& error) {
      message = error.what();
    }
    storage::write_atomically(path, before);
    return message;
  };
  EXPECT_THAT(refusal("softmax_layers", {1, 2}),
              testing::HasSubstr("model.layers.1.self_attn.feature_map_k.mlp.bias is surplus"));
  EXPECT_THAT(refusal("softmax_layers", nlohmann::json::array()),
              testing::HasSubstr("model.layers.2.self_attn.feature_map_q.mlp.layer is missing"));
  EXPECT_THAT(refusal("teacher", {{"fingerprint", "another"}}),
              testing::HasSubstr("fingerprint another"));
  EXPECT_EQ(refusal("layers", nlohmann::json::array()), "none");
  nlohmann::json attention = nlohmann::json::parse(storage::read_text(path)).at("attention");
  attention["key_maps"] = "query_head";
  EXPECT_THAT(refusal("attention", attention),
              testing::HasSubstr("feature_map_k.mlp.layer: expected [4, 16, 8] with "
                                 "attention.key_maps = query_head, found [2, 16, 8]"));
  attention["num_sinks"] = 9;
  EXPECT_THAT(refusal("attention", attention),
              testing::HasSubstr("hedgerow.json: attention.num_sinks = 9: more than "
                                 "attention.window_size = 8"));
}

}  // namespace
}  // namespace hedgerow::worker
