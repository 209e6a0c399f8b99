// The finetune stage through its files: run.toml, tokens, a student, checkpoints, the adapter.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/tensors/checkpoint.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/tiny_model.hpp"
#include "tests/support/tiny_run.hpp"
#include "tests/support/tiny_student.hpp"
#include "tests/worker/comm/rank_threads.hpp"
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
    recipe_ = recipe;
    write_run();
    write_student("student/t5");
  }

  void write_run() const { tests::write_tiny_run(root(), recipe_, 12); }
  // Rules that all have something to decide: at such a rate the validation loss soon rises again.
  void use_all_rules() {
    recipe_.finetune.learning_rate = 0.1;
    recipe_.finetune.max_steps = 60;
    recipe_.finetune.checkpoint_every = 3;
    recipe_.finetune.validate_every = 2;
    recipe_.finetune.warmup_steps = 3;
    recipe_.finetune.schedule = "plateau";
    recipe_.finetune.plateau_patience = 0;
    recipe_.finetune.plateau_factor = 0.5;
    recipe_.finetune.early_stop_patience = 4;
    write_run();
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
    return run(storage::Mesh{world_size, 1}, task, stop_when);
  }
  [[nodiscard]] Outcome run(const storage::Mesh& mesh,
                            const wire::Task& task,
                            const StopWhen& stop_when = {}) const {
    Outcome outcome;
    run_on_threads(mesh.ranks(), [&](Communicator& communicator) {
      at::set_num_threads(1);
      RunContext run(root());
      tests::LocalTaskContext context(run.layout(), task.fencing_token);
      if (communicator.rank() == 0) context.stop_when = stop_when;
      auto result = run_finetune(run, context, task, mesh, communicator);
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

  // The lines of an attempt's metrics.jsonl that have this key.
  [[nodiscard]] std::vector<nlohmann::json> metrics(storage::FencingToken token,
                                                    const char* key) const {
    std::ifstream file(root() / ("attempts/t" + std::to_string(token)) / "metrics.jsonl");
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(file, line);) {
      auto parsed = nlohmann::json::parse(line);
      if (parsed.contains(key)) lines.push_back(std::move(parsed));
    }
    return lines;
  }

  tests::TemporaryDirectory directory_;
  storage::Recipe recipe_;
};

// What of a result has to be the same after a resume.
nlohmann::json without_times(nlohmann::json result) {
  for (const char* key : {"seconds", "tokens_per_second", "ranks", "mesh"}) result.erase(key);
  return result;
}

TEST_F(FinetuneTask, AnyNumberOfRanksLeavesTheSameAdapterAndResult) {
  const Outcome one = run(1, task(1));
  ASSERT_TRUE(one.result.finished);
  EXPECT_EQ(one.result.files[0].name, "adapter/t1/adapter_config.json");
  EXPECT_EQ(one.result.files[1].name, "adapter/t1/adapter_model.safetensors");
  const RunContext run_context(root());
  const LoraAdapter adapter = load_adapter(root() / "adapter/t1", run_context.config());
  EXPECT_GT(adapter.find(3, "o_proj")->b.abs().max().item<double>(), 0.0) << "nothing was learned";
  for (const int world_size : {2, 3, 4}) {
    const auto token = static_cast<storage::FencingToken>(world_size);
    const Outcome many = run(world_size, task(token));
    EXPECT_EQ(many.adapter, one.adapter) << world_size << " ranks";
    EXPECT_EQ(many.result.result["validation_loss"], one.result.result["validation_loss"]);
    EXPECT_EQ(many.result.result["ranks"], world_size);
  }
  EXPECT_EQ(metrics(1, "loss").size(), static_cast<std::size_t>(kMaxSteps));
  std::vector<int> validated;
  for (const auto& line : metrics(1, "validation_loss")) validated.push_back(line.at("step"));
  EXPECT_THAT(validated, testing::ElementsAre(0, 3, 6));
}

TEST_F(FinetuneTask, TheAdapterOfTheBestValidationIsPublishedAndItsFiguresAreThoseOfTheResult) {
  use_all_rules();
  const Outcome outcome = run(1, task(1));
  ASSERT_TRUE(outcome.result.finished);
  const nlohmann::json& result = outcome.result.result;
  const auto validations = metrics(1, "validation_loss");
  const auto best =
      std::min_element(validations.begin(), validations.end(), [](const auto& a, const auto& b) {
        return a.at("validation_loss") < b.at("validation_loss");
      });
  const int best_step = best->at("step");
  EXPECT_EQ(result.at("best_step"), best_step);
  EXPECT_EQ(result.at("validation_loss"), best->at("validation_loss"));
  EXPECT_DOUBLE_EQ(result.at("validation_perplexity").get<double>(),
                   std::exp(best->at("validation_cross_entropy").get<double>()));
  EXPECT_EQ(result.at("last_validation_loss"), validations.back().at("validation_loss"));
  // Four validations of two steps each brought nothing better.
  EXPECT_EQ(result.at("steps"), best_step + 8);
  EXPECT_EQ(result.at("stopped_early"), true);
  EXPECT_LT(metrics(1, "learning_rate").back().at("learning_rate"),
            0.9 * recipe_.finetune.learning_rate)
      << "no plateau was met";
  // The same steps and no more: their last adapter is that of the best step.
  ASSERT_GT(best_step, 0);
  recipe_.finetune.max_steps = best_step;
  write_run();
  EXPECT_EQ(run(1, task(2)).adapter, outcome.adapter);
}

TEST_F(FinetuneTask, WhereNoStepHelpsTheAdapterIsThatOfTheUntouchedStudent) {
  recipe_.finetune.learning_rate = 1e-30;  // too little to change a product
  write_run();
  const Outcome outcome = run(2, task(1));
  EXPECT_EQ(outcome.result.result.at("best_step"), 0);
  EXPECT_FALSE(outcome.result.result.contains("stopped_early"));
  const LoraAdapter adapter = load_adapter(root() / "adapter/t1", RunContext(root()).config());
  for (const auto& layer : adapter.layers) {
    for (const auto& [module, pair] : layer)
      EXPECT_EQ(pair.b.abs().max().item<double>(), 0.0) << module;
  }
}

TEST_F(FinetuneTask, WithoutAValidationSplitTheLastAdapterIsPublished) {
  recipe_.finetune.learning_rate = 1.0;
  recipe_.data_finetune.validation_sequences = 0;
  write_run();
  const fs::path file = root() / storage::RunLayout::tokens(storage::DataStage::kFinetune);
  storage::TokenSequences tokens =
      storage::load_tokens(file, RunContext(root()).config().vocab_size);
  tokens.num_train = tokens.num_sequences;
  storage::write_tokens(file, tokens);
  const Outcome outcome = run(1, task(1));
  ASSERT_TRUE(outcome.result.finished);
  EXPECT_TRUE(metrics(1, "validation_loss").empty());
  for (const char* key : {"best_step", "validation_loss", "last_validation_loss"})
    EXPECT_FALSE(outcome.result.result.contains(key)) << key;
  const LoraAdapter adapter = load_adapter(root() / "adapter/t1", RunContext(root()).config());
  EXPECT_GT(adapter.find(3, "o_proj")->b.abs().max().item<double>(), 0.0);
}

TEST_F(FinetuneTask, AResumeAtAnyCheckpointGivesTheBestAdapterAndResultOfAnUndisturbedRun) {
  use_all_rules();
  const Outcome undisturbed = run(2, task(1));
  const int last = undisturbed.result.result.at("steps");
  storage::FencingToken token = 10;
  for (int stop = 0; stop < last; stop += 3) {
    const int world_size = stop % 2 == 0 ? 1 : 4;
    const Outcome stopped = run(2, task(++token), [stop](const tests::LocalTaskContext& context) {
      return context.reports.back().phase == "training" && context.reports.back().step >= stop;
    });
    ASSERT_FALSE(stopped.result.finished);
    wire::Task again = task(++token);
    again.resume = stopped.checkpoints.rbegin()->second;
    const Outcome resumed = run(world_size, again);
    EXPECT_EQ(resumed.adapter, undisturbed.adapter) << "stopped at step " << stop << " of " << last;
    EXPECT_EQ(without_times(resumed.result.result), without_times(undisturbed.result.result));
    const auto rates = metrics(token, "learning_rate"), all = metrics(1, "learning_rate");
    ASSERT_FALSE(rates.empty());
    EXPECT_EQ(rates.back().at("learning_rate"), all.back().at("learning_rate"));
  }
}

TEST_F(FinetuneTask, AValidationThatAStopCutsOffIsMadeAfterTheResume) {
  use_all_rules();
  const Outcome undisturbed = run(1, task(1));
  Outcome stopped;
  run_on_threads(1, [&](Communicator& communicator) {
    at::set_num_threads(1);
    RunContext run(root());
    tests::LocalTaskContext context(run.layout(), 2);
    context.stop_when = [](const tests::LocalTaskContext& seen) {
      return seen.reports.back().phase == "validating" && seen.reports.back().step == 4;
    };
    const StopTimeout none{std::chrono::milliseconds(0), std::chrono::hours(1)};
    stopped.result =
        run_finetune(run, context, task(2), {communicator.world_size(), 1}, communicator, none);
    stopped.checkpoints = context.checkpoints;
  });
  ASSERT_FALSE(stopped.result.finished);
  ASSERT_EQ(stopped.checkpoints.rbegin()->first, 4);
  ASSERT_EQ(metrics(2, "validation_loss").back().at("step"), 2) << "it was not cut off";
  wire::Task again = task(3);
  again.resume = stopped.checkpoints.rbegin()->second;
  const Outcome resumed = run(1, again);
  EXPECT_EQ(resumed.adapter, undisturbed.adapter);
  EXPECT_EQ(without_times(resumed.result.result), without_times(undisturbed.result.result));
}

TEST_F(FinetuneTask, ACheckpointOfABuildWithoutABestAdapterGoesOn) {
  const Outcome first = run(1, task(1));
  const RunContext run_context(root());
  const storage::FileRecord& file = first.checkpoints.at(4);
  storage::Checkpoint old = storage::read_checkpoint(root() / file.name, file);
  ASSERT_EQ(old.state.at("kind"), "finetune/2");
  old.state["kind"] = "finetune/1";
  old.state.erase("validation");
  std::erase_if(old.tensors, [](const auto& entry) { return entry.first.ends_with(".best"); });
  wire::Task again = task(2);
  fs::create_directories(root() / "attempts/t2");
  again.resume = storage::write_checkpoint(run_context.layout(), 2, 4, old);
  const Outcome resumed = run(1, again);
  EXPECT_TRUE(resumed.result.finished);
  EXPECT_EQ(resumed.result.result.at("best_step"), kMaxSteps) << "of the validations it has made";
  EXPECT_EQ(resumed.result.result.at("last_validation_loss"),
            first.result.result.at("last_validation_loss"));
}

TEST_F(FinetuneTask, EachStepSaysTheRateOfItsSchedule) {
  recipe_.finetune.schedule = "linear";
  recipe_.finetune.min_learning_rate = 0.0;
  recipe_.finetune.warmup_steps = 2;
  write_run();
  static_cast<void>(run(1, task(1)));
  std::vector<double> rates;
  for (const auto& line : metrics(1, "learning_rate")) rates.push_back(line.at("learning_rate"));
  EXPECT_THAT(rates,
              testing::Pointwise(testing::DoubleNear(1e-12),
                                 std::vector<double>{5e-3, 1e-2, 1e-2, 7.5e-3, 5e-3, 2.5e-3}));
}

TEST_F(FinetuneTask, WhatIsTrainedBesidesLoraIsAFileOfItsOwnAndTheSameAtAnyNumberOfRanks) {
  storage::Recipe recipe = RunContext(root(), at::kCPU).recipe();
  recipe.finetune.trainable = {"maps", "window_factors", "norms"};
  storage::write_atomically(root() / "run.toml", recipe.to_toml());
  const Outcome one = run(1, task(1));
  ASSERT_TRUE(one.result.finished);
  ASSERT_EQ(one.result.files.size(), 3U);
  EXPECT_EQ(one.result.files[2].name, "adapter/t1/trained_parameters.safetensors");
  const RunContext run_context(root(), at::kCPU);
  const LoraAdapter adapter = load_adapter(root() / "adapter/t1", run_context.config());
  EXPECT_EQ(adapter.find(3, "o_proj")->b.abs().max().item<double>(), 0.0) << "LoRA is not trained";
  EXPECT_TRUE(adapter.trained.contains("model.norm.weight"));
  EXPECT_TRUE(adapter.trained.contains("model.layers.0.self_attn.feature_map_q.mlp.layer"));
  EXPECT_FALSE(adapter.trained.contains("model.layers.2.self_attn.window_factors"))
      << "layer 2 keeps its softmax";
  Student student = load_student(root() / "student/t5", run_context.model(), at::kCPU);
  const at::Tensor before = student.layers[0]->q.layer.clone();
  put_in_place(student, adapter.trained);
  EXPECT_FALSE(at::equal(student.layers[0]->q.layer, before)) << "nothing was learned";
  EXPECT_EQ(run(4, task(4)).adapter, one.adapter);
  std::ifstream metrics(root() / "attempts/t1/metrics.jsonl");
  std::string line;
  std::getline(metrics, line);  // the validation of the untouched student
  std::getline(metrics, line);
  const auto norms = nlohmann::json::parse(line).at("update_norms");
  EXPECT_EQ(norms.size(), 3U) << norms;
  EXPECT_GT(norms.at("maps").get<double>(), 0.0);
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

TEST_F(FinetuneTask, EveryMeshLeavesTheSameAdapterAndResultAndResumesEveryOthers) {
  recipe_.finetune.trainable = {"lora", "maps", "window_factors", "norms"};
  use_all_rules();
  recipe_.finetune.max_steps = 12;
  write_run();
  const Outcome one = run(1, task(1));
  const auto trained = [&](storage::FencingToken token) {
    return storage::read_text(root() / ("adapter/t" + std::to_string(token)) /
                              "trained_parameters.safetensors") +
           storage::read_text(root() / ("adapter/t" + std::to_string(token)) /
                              "adapter_model.safetensors");
  };
  storage::FencingToken token = 10;
  const std::vector<storage::Mesh> meshes = {{1, 1}, {1, 2}, {2, 2}, {1, 3}, {1, 2, 2}};
  for (std::size_t i = 0; i < meshes.size(); ++i) {
    const Outcome whole = run(meshes[i], task(++token));
    EXPECT_EQ(trained(token), trained(1)) << storage::mesh_text(meshes[i]);
    EXPECT_EQ(without_times(whole.result.result), without_times(one.result.result));
    const Outcome stopped = run(meshes[i], task(++token), [](const auto& context) {
      return context.reports.back().phase == "training" && context.reports.back().step >= 4;
    });
    ASSERT_FALSE(stopped.result.finished);
    ASSERT_FALSE(stopped.checkpoints.empty());
    wire::Task again = task(++token);
    again.resume = stopped.checkpoints.rbegin()->second;
    const storage::Mesh& other = meshes[(i + 1) % meshes.size()];
    const Outcome resumed = run(other, again);
    EXPECT_EQ(trained(token), trained(1))
        << storage::mesh_text(meshes[i]) << " resumed as " << storage::mesh_text(other);
    EXPECT_EQ(without_times(resumed.result.result), without_times(one.result.result));
  }
}

TEST_F(FinetuneTask, ACheckpointWhosePartIsDamagedIsRefusedByItsName) {
  const Outcome stopped = run(storage::Mesh{1, 2}, task(1), [](const auto& context) {
    return context.checkpoints.contains(2);
  });
  wire::Task again = task(2);
  again.resume = stopped.checkpoints.rbegin()->second;
  const auto state = storage::read_checkpoint(root() / again.resume->name).state;
  const fs::path part = root() / state.at("parts").at(0).at("name").get<std::string>();
  fs::resize_file(part, fs::file_size(part) - 1);
  try {
    static_cast<void>(run(storage::Mesh{2, 1}, again));
    FAIL() << "half a checkpoint was taken";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kCorrupt);
    EXPECT_THAT(error.what(), testing::HasSubstr(again.resume->name));
    EXPECT_THAT(error.what(), testing::HasSubstr(part.filename().string()));
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
      stopped.result =
          run_finetune(run, context, task(2), {communicator.world_size(), 1}, communicator, none);
      stopped.checkpoints = context.checkpoints;
      return;
    }
    try {
      static_cast<void>(
          run_finetune(run, context, task(2), {communicator.world_size(), 1}, communicator, none));
    } catch (const storage::Error& error) {
      other_found_it_lost = error.kind() == storage::ErrorKind::kUnavailable;
    }
  });
  EXPECT_FALSE(stopped.result.finished);
  EXPECT_TRUE(stopped.result.step_abandoned);
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
    results[is_root ? 0 : 1] =
        run_finetune(run, context, task(1), {communicator.world_size(), 1}, communicator);
    if (is_root) checkpoints = context.checkpoints;
  });
  for (const TaskResult& result : results) {
    EXPECT_FALSE(result.finished);
    EXPECT_FALSE(result.step_abandoned);
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
  std::vector<std::int64_t> steps = stopped.published_steps;
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(std::ranges::adjacent_find(steps), steps.end()) << "one was written twice";
}

TEST_F(FinetuneTask, ARankThatSeesAnotherRecipeThanRankZeroIsNamed) {
  tests::TemporaryDirectory elsewhere;
  fs::copy(directory_.path(), elsewhere.path(), fs::copy_options::recursive);
  storage::Recipe other = recipe_;
  other.seed += 1;
  tests::write_tiny_run(elsewhere.path() / "run", other, 12);
  std::atomic<int> num_refused = 0;
  run_on_threads(2, [&](Communicator& communicator) {
    at::set_num_threads(1);
    RunContext run(communicator.rank() == 0 ? root() : elsewhere.path() / "run");
    tests::LocalTaskContext context(run.layout(), 1);
    try {
      static_cast<void>(run_finetune(run, context, task(1), {2, 1}, communicator));
      ADD_FAILURE() << "rank " << communicator.rank();
    } catch (const storage::Error& error) {
      EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
      EXPECT_THAT(error.what(), testing::HasSubstr("rank 1 on "));
      EXPECT_THAT(error.what(), testing::HasSubstr("another run.toml than rank 0"));
      ++num_refused;
    }
  });
  EXPECT_EQ(num_refused, 2);
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

TEST_F(FinetuneTask, MoreRanksThanMicroBatchesAreRefused) {
  try {
    static_cast<void>(run(5, task(1)));
    FAIL() << "5 ranks shared 4 micro-batches";
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
