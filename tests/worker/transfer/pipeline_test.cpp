// Capture and transfer through shards on disk, in one process, on a tiny random model: what
// is promised about bytes.
#include <fstream>

#include "pipeline_fixture.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/shards/hidden_shard.hpp"
#include "worker/model/tensor_bytes.hpp"
#include "worker/transfer/block_input.hpp"

namespace hedgerow::tests {
namespace {

// Copies at once.
class PromptEngine final : public worker::CopyEngine {
 public:
  explicit PromptEngine(int& num_copies) : num_copies_(num_copies) {}
  std::shared_ptr<std::byte[]> host_buffer(std::size_t bytes) override {
    return std::make_shared<std::byte[]>(bytes);
  }
  at::Tensor begin_copy(const at::Tensor& host, int /*slot*/) override {
    ++num_copies_;
    return host.clone();
  }
  void let_compute_wait(const at::Tensor& /*on_device*/, int /*slot*/) override {}
  void wait(int /*slot*/) override {}

 private:
  int& num_copies_;
};

TEST_F(Pipeline, SequencesThatAreCopiedAheadAreThoseThatAreCopiedWhenNeeded) {
  const auto root = make_run("run", [](storage::Recipe& recipe) {
    recipe.plan.layers_per_block = 2;
    recipe.plan.shard_dtype = "bf16";
    recipe.plan.compute_dtype = "fp32";
  });
  const PipelineResult result = run_pipeline(root);
  worker::RunContext run(root);
  const wire::Task task = transfer_task(run, 1, {2, 2}, 9, result.boundaries.at(1));
  int num_copies = 0;
  worker::BlockInput plain(run, task, nullptr),
      ahead(run, task, std::make_unique<PromptEngine>(num_copies));
  for (worker::BlockInput* input : {&plain, &ahead}) input->plan({5, 0, 3, 3, 7});
  for (const int count : {2, 3}) {
    const at::Tensor expected = plain.next(count), found = ahead.next(count);
    EXPECT_EQ(found.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(found, expected)) << count << " sequences";
  }
  EXPECT_EQ(num_copies, 5);
  worker::BlockInput first(
      run, transfer_task(run, 0, {0, 2}, 9, {}), std::make_unique<PromptEngine>(num_copies));
  first.plan({1});
  EXPECT_EQ(first.next(1).size(0), 1) << "block 0 reads no shard";
}

TEST_F(Pipeline, BlockInputsEqualTheFullForwardBitForBit) {
  for (const std::string compute : {"fp32", "bf16"}) {
    const auto root = make_run("run-" + compute, [&](storage::Recipe& recipe) {
      recipe.plan.layers_per_block = 3;
      recipe.plan.compute_dtype = compute;
    });
    const PipelineResult result = run_pipeline(root);
    worker::RunContext run(root);
    ASSERT_EQ(result.boundaries.size(), 2U);
    std::int64_t checked = 0;
    for (const auto& file : result.boundaries[1]) {
      const storage::ShardReader shard(root / file.name, file);
      EXPECT_EQ(shard.info().boundary, 1);
      for (std::int64_t i = 0; i < shard.info().num_sequences; ++i, ++checked) {
        const at::Tensor stored =
            at::empty({shard.info().seq_len, shard.info().hidden_size}, run.stream());
        shard.read(i, {static_cast<std::byte*>(stored.data_ptr()), stored.nbytes()});
        const at::Tensor expected =
            full_forward(run, shard.info().first_sequence + i, 3).squeeze(0);
        ASSERT_TRUE(at::equal(stored, expected)) << compute << ", captured sequence " << checked;
      }
    }
    EXPECT_EQ(checked, run.capture_plan().num_sequences());
  }
}

TEST_F(Pipeline, LayersPerBlockNeverChangesTheMaps) {
  for (const bool is_reference : {false, true}) {  // as LoLCATs, and shuffled
    std::map<std::string, std::string> expected;
    for (const int k : {4, 1, 2, 3}) {
      const std::string name = "k" + std::to_string(k) + (is_reference ? "r" : "");
      const auto root = make_run(name, [&](storage::Recipe& recipe) {
        recipe.plan.layers_per_block = k;
        if (!is_reference) return;
        recipe.transfer.shuffle = true;
        recipe.attention.num_sinks = 0;
        recipe.attention.key_maps = storage::KeyMaps::kQueryHead;
      });
      const auto maps = run_pipeline(root).maps;
      ASSERT_EQ(maps.size(), 4U * 5U) << "weights and biases of two maps, and the window factors";
      if (expected.empty()) expected = maps;
      EXPECT_EQ(maps, expected) << name;
    }
  }
}

TEST_F(Pipeline, RunTwiceGivesTheSameBytesAndAnotherSeedDoesNot) {
  const auto first = run_pipeline(make_run("a")).maps;
  EXPECT_EQ(run_pipeline(make_run("b")).maps, first);
  EXPECT_NE(run_pipeline(make_run("c", [](storage::Recipe& recipe) { recipe.seed = 8; })).maps,
            first);
}

TEST_F(Pipeline, TransferLearnsAndKeepsTheBestValidation) {
  const auto root = make_run("run", [](storage::Recipe& recipe) {
    recipe.plan.layers_per_block = 4;
    recipe.transfer.max_steps = 30;
    recipe.transfer.validate_every = 5;
  });
  const PipelineResult result = run_pipeline(root);
  std::ifstream lines(root / "attempts/t1/metrics.jsonl");
  std::map<int, std::vector<double>> history;
  for (std::string line; std::getline(lines, line);) {
    const auto metrics = nlohmann::json::parse(line);
    if (metrics.contains("attention")) continue;
    EXPECT_GT(metrics.at("window_share").get<double>(), 0.0);
    EXPECT_GT(metrics.at("sink_share").get<double>(), 0.0);
    history[metrics.at("layer")].push_back(metrics.at("mse"));
    EXPECT_GT(metrics.at("linear_share").get<double>(), 0.0);
    EXPECT_LT(metrics.at("linear_share").get<double>(), 1.0);
    EXPECT_GT(metrics.at("window_factor").get<double>(), 0.0);
  }
  ASSERT_EQ(history.size(), 4U);
  for (const auto& [layer, mse] : history) {
    ASSERT_EQ(mse.size(), 7U) << "a validation before the first step, then every 5 of 30";
    EXPECT_LT(*std::min_element(mse.begin(), mse.end()), 0.95 * mse.front()) << "layer " << layer;
    const auto& reported = result.results[0].at("layers").at(static_cast<std::size_t>(layer));
    const char* trained = reported.contains("trained_mse") ? "trained_mse" : "mse";
    EXPECT_EQ(reported.at(trained).get<double>(), *std::min_element(mse.begin(), mse.end()));
    EXPECT_GT(reported.at("control_mse").get<double>(), 0.0);
  }
}

// The attention maps that an attempt wrote, by layer and head.
std::map<std::pair<int, int>, nlohmann::json> attention_maps(const std::filesystem::path& root,
                                                             storage::FencingToken token) {
  std::map<std::pair<int, int>, nlohmann::json> maps;
  std::ifstream lines(root / storage::RunLayout::attempt_directory(token) / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const auto metrics = nlohmann::json::parse(line);
    if (!metrics.contains("attention")) continue;
    const nlohmann::json& map = metrics.at("attention");
    EXPECT_TRUE(maps.emplace(std::pair<int, int>(map.at("layer"), map.at("head")), map).second);
  }
  return maps;
}

TEST_F(Pipeline, AttentionMapsOfAFewLayersComeOnceAtTheEndAndLayersPerBlockNeverChangesThem) {
  std::map<std::pair<int, int>, nlohmann::json> expected;
  for (const int k : {4, 2, 1}) {
    const auto root = make_run("k" + std::to_string(k), [k](storage::Recipe& recipe) {
      recipe.plan.layers_per_block = k;
      recipe.transfer.softmax_layers.layers = {2};
    });
    run_pipeline(root);
    std::map<std::pair<int, int>, nlohmann::json> maps;
    // Captures have attempts of their own.
    for (storage::FencingToken token = 1;
         std::filesystem::exists(root / storage::RunLayout::attempt_directory(token));
         ++token) {
      maps.merge(attention_maps(root, token));
    }
    if (k == 4) {
      const std::int64_t heads = worker::RunContext(root).config().num_attention_heads;
      ASSERT_EQ(std::ssize(maps), 3 * heads) << "layers 0, 1 and 3; 2 keeps its softmax";
      const std::int64_t T = worker::RunContext(root).tokens(storage::DataStage::kTransfer).seq_len;
      const std::int64_t side = std::min<std::int64_t>(T, 64);
      for (const auto& [place, map] : maps) {
        EXPECT_EQ(map.at("rows"), side);
        EXPECT_EQ(map.at("columns"), side);
        for (const char* weights : {"softmax", "student"})
          EXPECT_EQ(std::ssize(map.at(weights).get<std::string>()), (side * side + 2) / 3 * 4);
      }
      expected = maps;
    }
    EXPECT_EQ(maps, expected) << k << " layers a block";
  }
}

TEST_F(Pipeline, AttentionMapsComeAlsoOfLayersThatHaveStoppedEarly) {
  const auto root = make_run("run", [](storage::Recipe& recipe) {
    recipe.transfer.learning_rate = 1e-30;
    recipe.transfer.min_learning_rate = 0;
    recipe.transfer.early_stop_patience = 1;
  });
  worker::RunContext run(root);
  LocalTaskContext context(run.layout(), 1);
  const auto done = run_transfer(run, context, transfer_task(run, 0, {0, 2}, 1, {}));
  for (const auto& layer : done.result.at("layers")) EXPECT_EQ(layer.at("stopped_early"), true);
  const auto maps = attention_maps(root, 1);
  EXPECT_TRUE(maps.contains({0, 0}) && maps.contains({1, 0}));
}

TEST_F(Pipeline, AttentionMapsComeAlsoAfterAStopAmongThemAndAreTheSame) {
  const auto root = make_run("run");
  worker::RunContext run(root);
  LocalTaskContext straight(run.layout(), 1);
  int asked_in_all = 0;
  straight.stop_when = [&](const LocalTaskContext&) { return ++asked_in_all < 0; };
  const auto whole = run_transfer(run, straight, transfer_task(run, 0, {0, 2}, 1, {}));
  const auto expected = attention_maps(root, 1);
  ASSERT_FALSE(expected.empty());

  LocalTaskContext first(run.layout(), 2);
  int asked = 0;  // the last looks are those of the maps' own forward
  first.stop_when = [&](const LocalTaskContext&) { return ++asked >= asked_in_all; };
  worker::RunContext another(root);
  ASSERT_FALSE(run_transfer(another, first, transfer_task(run, 0, {0, 2}, 2, {})).finished);
  EXPECT_TRUE(attention_maps(root, 2).empty());
  wire::Task task = transfer_task(run, 0, {0, 2}, 3, {});
  task.resume = first.checkpoints.rbegin()->second;
  LocalTaskContext second(run.layout(), 3);
  const auto finished = run_transfer(run, second, task);
  EXPECT_EQ(attention_maps(root, 3), expected);
  EXPECT_EQ(finished.result.at("layers"), whole.result.at("layers"));
}

TEST_F(Pipeline, ResumingAtAnyCheckpointGivesTheSameArtifact) {
  const auto root = make_run("run", [](storage::Recipe& recipe) {
    recipe.transfer.checkpoint_every = 1;
    recipe.transfer.schedule = "plateau";
    recipe.transfer.plateau_patience = 0;
  });
  worker::RunContext run(root);
  const Block block{0, 2};
  LocalTaskContext straight(run.layout(), 1);
  const auto whole = run_transfer(run, straight, transfer_task(run, 0, block, 1, {}));
  const auto expected =
      tensor_hashes(worker::attempt_path(run.layout(), 1, whole.files.front().name));
  EXPECT_EQ(straight.checkpoints.size(), 5U);

  for (storage::FencingToken token = 2; token < 8; ++token) {
    // Stops after token - 2 whole steps; the next attempt goes on from there.
    LocalTaskContext first(run.layout(), token * 10);
    first.stop_when = [&](const LocalTaskContext& context) {
      return context.reports.back().step == static_cast<std::int64_t>(token) - 2;
    };
    const auto stopped = run_transfer(run, first, transfer_task(run, 0, block, token * 10, {}));
    ASSERT_FALSE(stopped.finished);
    ASSERT_EQ(first.checkpoints.empty(), token == 2) << "before the first validation is nothing";
    wire::Task task = transfer_task(run, 0, block, token * 10 + 1, {});
    if (token > 2) task.resume = first.checkpoints.rbegin()->second;
    LocalTaskContext second(run.layout(), token * 10 + 1);
    const auto finished = run_transfer(run, second, task);
    ASSERT_TRUE(finished.finished);
    EXPECT_EQ(tensor_hashes(
                  worker::attempt_path(run.layout(), token * 10 + 1, finished.files.front().name)),
              expected)
        << "resumed at step " << token - 2;
    EXPECT_EQ(finished.result.at("layers"), whole.result.at("layers"));
    EXPECT_EQ(finished.result.at("tokens"), whole.result.at("tokens"));
  }
}

TEST_F(Pipeline, CheckpointThatSawAnotherOrderOrSeedIsRefused) {
  const auto root = make_run("run");
  worker::RunContext run(root);
  LocalTaskContext context(run.layout(), 1);
  context.stop_when = [](const LocalTaskContext& seen) { return seen.reports.back().step == 3; };
  run_transfer(run, context, transfer_task(run, 0, {0, 2}, 1, {}));
  wire::Task task = transfer_task(run, 0, {0, 2}, 2, {});
  task.resume = context.checkpoints.rbegin()->second;

  recipe_.transfer.shuffle = true;
  storage::write_atomically(root / "run.toml", recipe_.to_toml());
  worker::RunContext changed(root);
  LocalTaskContext second(changed.layout(), 2);
  try {
    run_transfer(changed, second, task);
    FAIL() << "a changed order was not noticed";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kCorrupt);
    EXPECT_NE(std::string(error.what()).find("order"), std::string::npos) << error.what();
  }
  task.seed = 99;
  EXPECT_THROW(run_transfer(run, second, task), storage::Error);
}

TEST_F(Pipeline, AccumulationTakesTheSameStepAsOneLargeForwardNearly) {
  const auto maps_with_rows = [this](int rows) {
    const auto root = make_run("rows" + std::to_string(rows), [rows](storage::Recipe& recipe) {
      recipe.plan.layers_per_block = 4;
      recipe.plan.sequences_per_forward = rows;
      recipe.transfer.max_steps = 1;
      recipe.transfer.learning_rate = 1e-3;
    });
    return tensor_values(root / run_pipeline(root).artifacts.at(0).name);
  };
  const auto four = maps_with_rows(4), one = maps_with_rows(1);
  for (const auto& [name, values] : four) {
    const at::Tensor x = at::tensor(values), y = at::tensor(one.at(name));
    EXPECT_LT((x - y).norm().item<double>() / x.norm().item<double>(), 1e-4) << name;
  }
}

TEST_F(Pipeline, CaptureSplitIntoTasksWritesTheSameShards) {
  const auto root = make_run("run");
  worker::RunContext run(root);
  const auto shard_hashes = [&](storage::FencingToken token,
                                const std::vector<std::pair<int, int>>& ranges) {
    LocalTaskContext context(run.layout(), token);
    for (const auto& [first, count] : ranges) {
      wire::Task task = capture_task(run, 0, {0, 2}, token, {});
      task.sequences_per_shard = 4;
      task.first_shard = first;
      task.num_shards = count;
      EXPECT_TRUE(run_capture(run, context, task).finished);
    }
    std::vector<std::string> bytes;
    for (const auto& [shard, file] : context.shards) {
      const storage::ShardReader reader(root / file.name, file);
      std::string all(reader.info().bytes_per_sequence() *
                          static_cast<std::size_t>(reader.info().num_sequences),
                      '\0');
      for (std::int64_t i = 0; i < reader.info().num_sequences; ++i) {
        reader.read(i,
                    std::as_writable_bytes(std::span(all))
                        .subspan(static_cast<std::size_t>(i) * reader.info().bytes_per_sequence(),
                                 reader.info().bytes_per_sequence()));
      }
      bytes.push_back(all);
    }
    return bytes;
  };
  // 12 training sequences (3 whole steps) and 3 of validation: shards of 4, 4, 4 and 3.
  const auto whole = shard_hashes(1, {{0, 4}});
  ASSERT_EQ(whole.size(), 4U);
  EXPECT_EQ(shard_hashes(2, {{2, 2}, {0, 1}, {1, 1}}), whole);
}

TEST_F(Pipeline, KeptSoftmaxLayersHaveNoMapsAndTheOthersTrainAsBefore) {
  const auto all = run_pipeline(make_run("all")).maps;
  auto kept = run_pipeline(make_run("kept", [](storage::Recipe& recipe) {
                recipe.transfer.softmax_layers.layers = {1, 3};
              })).maps;
  EXPECT_EQ(kept.size(), 2U * 5U);
  for (const auto& [name, bytes] : kept) EXPECT_EQ(bytes, all.at(name)) << name;
}

TEST_F(Pipeline, WeightsThatAreNotFiniteAreNamedByTensor) {
  // A NaN in one weight of layer 2.
  const storage::SafetensorsFile file(model() / "model.safetensors");
  std::map<std::string, storage::TensorView> tensors = file.tensors();
  std::vector<std::byte> damaged(tensors.at("model.layers.2.self_attn.v_proj.weight").bytes.begin(),
                                 tensors.at("model.layers.2.self_attn.v_proj.weight").bytes.end());
  damaged[0] = std::byte{0xC0};
  damaged[1] = std::byte{0x7F};
  tensors.at("model.layers.2.self_attn.v_proj.weight").bytes = damaged;
  storage::write_safetensors(directory_ / "damaged.safetensors", tensors);
  std::filesystem::rename(directory_ / "damaged.safetensors", model() / "model.safetensors");
  try {
    run_pipeline(make_run("run"));
    FAIL() << "NaN went through";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_NE(
        std::string(error.what()).find("'model.layers.2.self_attn.v_proj.weight' has a value"),
        std::string::npos)
        << error.what();
  }
}

TEST_F(Pipeline, DamagedInputShardIsNamed) {
  const auto root = make_run("run");
  const PipelineResult result = run_pipeline(root);
  const storage::FileRecord& shard = result.boundaries[1].front();
  {
    std::fstream file(root / shard.name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(shard.size / 2));
    const char byte = static_cast<char>(file.peek() ^ 1);
    file.write(&byte, 1);
  }
  worker::RunContext run(root);
  LocalTaskContext context(run.layout(), 50);
  try {
    run_transfer(run, context, transfer_task(run, 1, {2, 2}, 50, result.boundaries[1]));
    FAIL() << "a flipped bit went through";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kCorrupt);
    EXPECT_NE(std::string(error.what()).find(shard.name.substr(shard.name.rfind('/') + 1)),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace hedgerow::tests
