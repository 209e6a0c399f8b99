#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <thread>

#include "kernels/softmax_attention.hpp"
#include "storage/base/error.hpp"
#include "tests/worker/comm/rank_threads.hpp"
#include "tests/support/tiny_student.hpp"
#include "worker/finetune/trainer.hpp"
#include "worker/model/layer/plain_layer.hpp"
#include "worker/model/linear_branch.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;
using tests::make_tiny_student;
using tests::make_tiny_tokens;
using tests::TinyOptions;
using tests::TinyStudent;

storage::FinetuneSection section() {
  storage::FinetuneSection finetune;
  finetune.rank = 4;
  finetune.alpha = 8.0;
  finetune.learning_rate = 1e-2;
  finetune.sequences_per_step = 8;
  return finetune;
}

TrainerOptions trainer_options(const storage::FinetuneSection& finetune) {
  TrainerOptions options;
  options.finetune = finetune;
  options.seed = 11;
  options.stream = at::kFloat;
  return options;
}

// A trainer of its own for each rank, over the same student and tokens. One thread a rank:
// byte-equality is promised at equal thread counts only.
class Trained {
 public:
  Trained(const TinyOptions& tiny, TrainerOptions options, Communicator& communicator)
      : student_(make_tiny_student(tiny)),
        tokens_(make_tiny_tokens(40, 3, 21, student_.config.vocab_size)) {
    at::set_num_threads(1);
    if (options.mesh.ranks() == 1) options.mesh.data = communicator.world_size();
    trainer_ = std::make_unique<FinetuneTrainer>(
        student_.config,
        student_.student,
        student_.outer,
        [this](int layer) { return student_.layers[static_cast<std::size_t>(layer)]; },
        tokens_,
        std::move(options),
        communicator);
  }
  FinetuneTrainer& operator*() { return *trainer_; }
  FinetuneTrainer* operator->() { return trainer_.get(); }
  [[nodiscard]] const TinyStudent& student() const { return student_; }
  [[nodiscard]] const storage::TokenSequences& tokens() const { return tokens_; }

 private:
  TinyStudent student_;
  storage::TokenSequences tokens_;
  std::unique_ptr<FinetuneTrainer> trainer_;
};

std::vector<std::byte> bytes_of(const storage::Checkpoint& checkpoint) {
  std::vector<std::byte> all;
  for (const auto& [name, tensor] : checkpoint.tensors)
    all.insert(all.end(), tensor.bytes.begin(), tensor.bytes.end());
  return all;
}

// The whole student with plain operations and one autograd graph.
at::Tensor plain_loss_sum(const TinyStudent& tiny,
                          const storage::TokenSequences& tokens,
                          std::span<const std::int64_t> sequences,
                          const LoraAdapter& lora) {
  const auto& config = tiny.config;
  const LayerContext context{config, make_rope_table(config, tokens.seq_len, at::kCPU), at::kFloat};
  std::vector<std::int64_t> ids, targets;
  for (const auto sequence : sequences) {
    const auto row = tokens.sequence(sequence);
    const auto mask = tokens.mask(sequence);
    ids.insert(ids.end(), row.begin(), row.end());
    for (std::size_t t = 1; t <= row.size(); ++t) {
      targets.push_back(t < row.size() && mask[t] != 0 ? row[t] : -100);
    }
  }
  const auto batch = static_cast<std::int64_t>(sequences.size());
  at::Tensor hidden =
      at::embedding(tiny.outer.embed_tokens, at::tensor(ids, at::kLong).view({batch, -1}));
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    const auto layer = static_cast<std::size_t>(i);
    const auto& parameters = tiny.student.layers[layer];
    const auto attend = [&](const Qkv& heads) {
      return parameters ? kernels::hybrid_attention_reference(
                              heads.q, heads.k, heads.v, *parameters, tiny.student.options)
                        : kernels::softmax_attention_reference(heads.q, heads.k, heads.v);
    };
    hidden = plain_layer(hidden, tiny.layers[layer], context, attend, lora.of_layer(i));
  }
  const at::Tensor logits = at::linear(
      plain_rms_norm(hidden, tiny.outer.final_norm, config.rms_norm_eps), tiny.outer.lm_head);
  return at::cross_entropy_loss(
      logits.flatten(0, 1), at::tensor(targets, at::kLong), {}, at::Reduction::Sum, -100);
}

// B is zero at the start, so that A would have no gradient: move it away.
void draw_b(TrainedParameters& parameters) {
  std::uint32_t stream = 7000;
  for (const auto& layer : parameters.adapter().layers) {
    for (const auto& [module, pair] : layer) {
      at::Tensor b = pair.b;
      b.copy_(tests::uniform(b.sizes().vec(), 0.2, ++stream));
    }
  }
}

storage::FinetuneSection everything() {
  storage::FinetuneSection finetune = section();
  finetune.target_modules = {
      "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  finetune.trainable = {"lora", "maps", "window_factors", "norms"};
  return finetune;
}

// The parts of a student in the order of the flat vector.
std::vector<TrainedPart> all_parts(TinyStudent& tiny) {
  std::vector<TrainedPart> all;
  const auto add = [&](const std::vector<TrainedPart>& parts) {
    all.insert(all.end(), parts.begin(), parts.end());
  };
  for (std::size_t i = 0; i < tiny.layers.size(); ++i) {
    const int layer = static_cast<int>(i);
    if (tiny.student.layers[i]) add(parts_of(*tiny.student.layers[i], layer));
    add(parts_of(tiny.layers[i], tiny.config, layer));
  }
  add(parts_of(tiny.outer));
  return all;
}

void expect_gradient(const at::Tensor& found, const at::Tensor& expected, const std::string& name) {
  const double largest = expected.abs().max().item<double>();
  EXPECT_TRUE(at::allclose(found, expected, 1e-3, 2e-5 * largest))
      << name << ": error " << (found - expected).abs().max().item<double>() << " of " << largest;
}

TEST(Finetune, GradientsEqualThoseOfAPlainAutogradModel) {
  for (const auto& finetune : {section(), everything()}) {
    for (const auto& tiny :
         {TinyOptions{},
          TinyOptions{.window = storage::WindowLayout::kSliding, .softmax_layers = {1}},
          TinyOptions{.qk_norm = storage::QkNorm::kHead, .biases = true},
          TinyOptions{.qk_norm = storage::QkNorm::kWidth,
          .norm_place = storage::NormPlace::kAfter,
          .biases = true},
          TinyOptions{.layers_without_rope = {1}}}) {
      const auto alone = make_single_communicator();
      Trained trained(tiny, trainer_options(finetune), *alone);
      auto& parameters = trained->parameters();
      draw_b(parameters);
      const std::vector<std::int64_t> sequences = {5, 2};
      at::Tensor gradient =
          at::full({parameters.size()}, std::numeric_limits<float>::quiet_NaN(), at::kFloat);
      const double loss = trained->accumulate(sequences, 0.25, gradient);

      // In the order of the flat vector.
      std::vector<std::string> names;
      std::vector<at::Tensor> inputs;
      const auto add = [&](const std::string& name, at::Tensor& value) {
        value = value.clone().requires_grad_(true);
        names.push_back(name);
        inputs.push_back(value);
      };
      LoraAdapter leaves = parameters.adapter();
      for (std::size_t layer = 0; layer < leaves.layers.size(); ++layer) {
        for (const auto& module : leaves.target_modules) {
          LoraPair& pair = leaves.layers[layer].at(module);
          add(lora_name(static_cast<int>(layer), module, "lora_A"), pair.a);
          add(lora_name(static_cast<int>(layer), module, "lora_B"), pair.b);
        }
      }
      TinyStudent student = trained.student();
      if (finetune.trains("maps")) {
        for (const TrainedPart& part : all_parts(student)) add(part.name, *part.value);
      }
      const at::Tensor expected_loss = plain_loss_sum(student, trained.tokens(), sequences, leaves);
      const auto expected = torch::autograd::grad({expected_loss * 0.25}, inputs);
      EXPECT_NEAR(loss, expected_loss.item<double>(), 1e-4 * loss);
      std::int64_t begin = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const std::int64_t size = expected[i].numel();
        expect_gradient(
            gradient.narrow(0, begin, size).view(expected[i].sizes()), expected[i], names[i]);
        begin += size;
      }
      EXPECT_EQ(begin, parameters.size());
    }
  }
}

TEST(Finetune, MapsFactorsAndNormsAreTrainedWithoutLora) {
  auto finetune = everything();
  finetune.trainable = {"maps", "window_factors", "norms"};
  const auto alone = make_single_communicator();
  Trained trained({.softmax_layers = {1}}, trainer_options(finetune), *alone);
  const TrainedTensors before = trained->parameters().best_parts();
  TinyStudent student = trained.student();
  EXPECT_EQ(before.size(), all_parts(student).size());
  EXPECT_FALSE(before.contains("model.layers.1.self_attn.window_factors"));
  const double first = trained->step().loss;
  const TrainedTensors after = trained->parameters().best_parts();
  for (const auto& [name, value] : after) {
    EXPECT_FALSE(value.equal(before.at(name))) << name;
  }
  EXPECT_EQ(after.at("model.layers.0.self_attn.window_factors").sizes(),
            (std::vector<std::int64_t>{1, student.config.num_attention_heads, 1, 1}));
  double last = first;
  for (int i = 0; i < 29; ++i) last = trained->step().loss;
  EXPECT_LT(last, first - 0.1);
}

TEST(Finetune, LayersWhoseLinearBranchIsOffKeepTheirMapsAndFactors) {
  const auto alone = make_single_communicator();
  TinyStudent tiny = make_tiny_student({});
  for (auto& parameters : tiny.student.layers) {
    for (kernels::FeatureMapWeights* map : {&parameters->q, &parameters->k})
      map->bias = at::zeros({map->layer.size(0), map->layer.size(2)});
  }
  ASSERT_TRUE(switch_off_linear_branch(*tiny.student.layers[1], tiny.student.options));
  const auto tokens = make_tiny_tokens(40, 3, 21, tiny.config.vocab_size);
  FinetuneTrainer trainer(
      tiny.config,
      tiny.student,
      tiny.outer,
      [&](int layer) { return tiny.layers[static_cast<std::size_t>(layer)]; },
      tokens,
      trainer_options(everything()),
      *alone);
  const TrainedTensors parts = trainer.parameters().best_parts();
  EXPECT_TRUE(parts.contains("model.layers.0.self_attn.window_factors"));
  EXPECT_FALSE(parts.contains("model.layers.1.self_attn.window_factors"));
  EXPECT_FALSE(parts.contains("model.layers.1.self_attn.feature_map_q.mlp.layer"));
  EXPECT_TRUE(parts.contains("model.layers.1.input_layernorm.weight"));
}

TEST(Finetune, UpdateNormsAreThoseOfTheChangeByModuleAndPart) {
  const auto alone = make_single_communicator();
  Trained trained({}, trainer_options(everything()), *alone);
  auto& parameters = trained->parameters();
  trained->step();
  std::map<std::string, double> expected;
  const auto copies = [&] {
    std::map<std::string, std::vector<at::Tensor>> values;
    for (const auto& layer : parameters.adapter().layers) {
      for (const auto& [module, pair] : layer) {
        values[module].push_back(pair.a.reshape(-1).clone());
        values[module].push_back(pair.b.reshape(-1).clone());
      }
    }
    for (const auto& [name, value] : parameters.best_parts()) {
      const char* group = name.ends_with("norm.weight")      ? "norms"
                          : name.ends_with("window_factors") ? "window_factors"
                                                             : "maps";
      values[group].push_back(value.reshape(-1));
    }
    return values;
  };
  const auto before = copies();
  const auto norms = trained->step().norms.updates;
  const auto after = copies();
  ASSERT_EQ(norms.size(), 10U);
  for (const auto& [group, values] : after) {
    const double expected_norm =
        (at::cat(values) - at::cat(before.at(group))).norm().item<double>();
    EXPECT_GT(norms.at(group), 0.0) << group;
    EXPECT_NEAR(norms.at(group), expected_norm, 1e-5 * expected_norm) << group;
  }
}

TEST(Finetune, AStudentWithoutAnythingToTrainIsRefused) {
  auto finetune = section();
  finetune.trainable = {"maps"};
  const auto alone = make_single_communicator();
  try {
    Trained trained({.softmax_layers = {0, 1, 2}}, trainer_options(finetune), *alone);
    FAIL() << "nothing was trained";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("finetune.trainable"), std::string::npos);
  }
}

TEST(Finetune, KeptAndRemadeActivationsGiveTheSameBytes) {
  for (const auto& finetune : {section(), everything()}) {
    std::vector<std::vector<std::byte>> results;
    for (const std::int64_t budget : {std::int64_t{0}, std::int64_t{1} << 30}) {
      const auto alone = make_single_communicator();
      TrainerOptions options = trainer_options(finetune);
      options.activation_budget_bytes = budget;
      options.stream = at::kBFloat16;
      Trained trained({.dtype = at::kBFloat16}, options, *alone);
      for (int i = 0; i < 2; ++i) trained->step();
      results.push_back(bytes_of(trained->parameters().checkpoint()));
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

void expect_equal_ranks(const storage::FinetuneSection& finetune) {
  std::vector<std::byte> expected;
  double expected_validation = 0.0, expected_loss = 0.0;
  for (const int world_size : {1, 2, 3, 5, 8}) {
    if (world_size > finetune.sequences_per_step) continue;
    run_on_threads(world_size, [&](Communicator& communicator) {
      Trained trained({.dtype = at::kBFloat16}, trainer_options(finetune), communicator);
      double loss = 0.0;
      for (int i = 0; i < 3; ++i) loss = trained->step().loss;
      const double validation = trained->validate().loss;
      const auto bytes = bytes_of(trained->parameters().checkpoint());
      if (world_size == 1) {
        expected = bytes;
        expected_validation = validation;
        expected_loss = loss;
      } else {
        EXPECT_EQ(bytes, expected) << world_size << " ranks, rank " << communicator.rank();
        EXPECT_EQ(validation, expected_validation);
        EXPECT_EQ(loss, expected_loss);
      }
    });
  }
  EXPECT_GT(expected_validation, 0.0);
}

// A teacher that is sure of what the text says: of each position its next token alone.
TopLogits text_as_teacher(const storage::TokenSequences& tokens, std::int64_t sequence) {
  const auto row = tokens.sequence(sequence);
  std::vector<std::int32_t> next(row.begin() + 1, row.end());
  next.push_back(0);
  const std::int64_t count = std::ssize(next);
  return {at::tensor(next, at::kInt).unsqueeze(1),
          at::zeros({count, 1}),
          at::full({count}, -std::numeric_limits<float>::infinity())};
}

TEST(Finetune, TheKlFromATeacherThatIsSureOfTheTextIsTheCrossEntropy) {
  const auto communicator = make_single_communicator();
  Trained plain({}, trainer_options(section()), *communicator);
  storage::FinetuneSection finetune = section();
  finetune.objective = "kl";
  TrainerOptions options = trainer_options(finetune);
  storage::CapturePlan sequences;
  sequences.num_train = 24;  // of 37: steps and validation are of these alone
  sequences.num_validation = 2;
  sequences.validation_begin = 37;
  options.sequences = sequences;
  const auto tokens = make_tiny_tokens(40, 3, 21, plain.student().config.vocab_size);
  std::vector<std::int64_t> asked;
  options.teacher = [&](std::int64_t sequence) {
    asked.push_back(sequence);
    return text_as_teacher(tokens, sequence < 24 ? sequence : 37 + sequence - 24);
  };
  Trained taught({}, options, *communicator);
  const std::vector<std::int64_t> sequence{5};
  const at::Tensor of_ce = at::zeros({plain->parameters().size()});
  const at::Tensor of_kl = at::zeros({plain->parameters().size()});
  EXPECT_NEAR(
      plain->accumulate(sequence, 0.1, of_ce), taught->accumulate(sequence, 0.1, of_kl), 1e-3);
  EXPECT_TRUE(at::allclose(of_ce, of_kl, 1e-4, 1e-6));
  const Validation validation = taught->validate();
  EXPECT_NEAR(validation.kl, validation.cross_entropy, 1e-5);
  EXPECT_EQ(validation.loss, validation.kl);
  EXPECT_EQ(asked, (std::vector<std::int64_t>{5, 24, 25}));
  taught->step();
  EXPECT_LT(*std::max_element(asked.begin(), asked.end()), 26);
}

// What a mesh leaves: every rank's tensors, of which ranks of one stage have the same.
struct Left {
  std::map<std::string, std::vector<std::byte>> tensors;
  double loss = 0.0, gradient_norm = 0.0, validation = 0.0;
  std::map<std::string, double> update_norms;
  std::string update_sums;  // JSON, by layer
  bool operator==(const Left&) const = default;
};

Left train_over(const storage::Mesh& mesh,
                const storage::FinetuneSection& finetune,
                const TinyOptions& tiny,
                std::int64_t budget) {
  Left left;
  std::mutex mutex;
  run_on_threads(mesh.ranks(), [&](Communicator& communicator) {
    TrainerOptions options = trainer_options(finetune);
    options.mesh = mesh;
    options.activation_budget_bytes = budget;
    const auto tokens = make_tiny_tokens(40, 3, 21, make_tiny_student(tiny).config.vocab_size);
    if (finetune.learns_from_teacher()) {
      options.sequences.emplace();
      options.sequences->num_train = tokens.num_train;
      options.sequences->num_validation = tokens.num_validation();
      options.sequences->validation_begin = tokens.num_train;
      options.teacher = [&](std::int64_t sequence) { return text_as_teacher(tokens, sequence); };
    }
    Trained trained(tiny, options, communicator);
    FinetuneTrainer::StepResult result;
    for (int i = 0; i < 3; ++i) result = trained->step();
    const double validation = trained->validate().loss;
    const std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : trained->parameters().checkpoint().tensors) {
      const auto [found, is_new] = left.tensors.emplace(name, tensor.bytes);
      EXPECT_TRUE(is_new || found->second == tensor.bytes)
          << name << " differs between the replicas of " << storage::mesh_text(mesh);
    }
    left.loss = result.loss;
    left.gradient_norm = result.norms.gradient;
    left.validation = validation;
    if (communicator.rank() == 0) {
      left.update_norms = result.norms.updates;
      left.update_sums = trained->parameters().update_sums_by_layer().dump();
    }
  });
  return left;
}

TEST(Finetune, EveryMeshGivesTheBytesLossesAndNormsOfOneRank) {
  const TinyOptions tiny{.num_layers = 5, .dtype = at::kBFloat16, .softmax_layers = {1}};
  storage::FinetuneSection mixed = everything();
  mixed.objective = "mixed";
  for (const auto& finetune : {section(), everything(), mixed}) {
    for (const std::int64_t budget : {std::int64_t{0}, std::int64_t{1} << 30}) {
      const Left one = train_over({}, finetune, tiny, budget);
      ASSERT_GT(one.validation, 0.0);
      for (const char* text :
           {"2x1", "1x2", "3x1", "1x3", "4x1", "2x2", "1x4", "1x5", "3x2", "1x2x2", "2x2x2"}) {
        EXPECT_EQ(train_over(*storage::parse_mesh(text), finetune, tiny, budget), one) << text;
      }
    }
  }
}

// Against what each step changed, read from the adapter itself.
TEST(Finetune, UpdateSumsAddUpTheNormsOfEachFactorsChanges) {
  run_on_threads(1, [](Communicator& alone) {
    Trained trained({.num_layers = 2}, trainer_options(section()), alone);
    std::map<std::string, double> sums;
    for (int step = 0; step < 3; ++step) {
      std::map<std::string, at::Tensor> before;
      for (const auto& [name, pair] : trained->parameters().adapter().layers[1]) {
        before[name + "/A"] = pair.a.clone();
        before[name + "/B"] = pair.b.clone();
      }
      trained->step();
      for (const auto& [name, pair] : trained->parameters().adapter().layers[1]) {
        sums[name + "/A"] += (pair.a - before[name + "/A"]).to(at::kDouble).norm().item<double>();
        sums[name + "/B"] += (pair.b - before[name + "/B"]).to(at::kDouble).norm().item<double>();
      }
    }
    const nlohmann::json layers = trained->parameters().update_sums_by_layer();
    ASSERT_EQ(layers.size(), 2U);
    EXPECT_EQ(layers[1]["layer"], 1);
    for (const auto& [key, sum] : sums) {
      EXPECT_NEAR(layers[1][key].get<double>(), sum, 1e-9 * sum) << key;
      EXPECT_DOUBLE_EQ(trained->parameters().update_sums().at(key),
                       layers[0][key].get<double>() + layers[1][key].get<double>());
    }
    // They go on from a checkpoint.
    Trained resumed({.num_layers = 2}, trainer_options(section()), alone);
    resumed->parameters().restore(trained->parameters().checkpoint());
    EXPECT_EQ(resumed->parameters().update_sums_by_layer(), layers);
  });
}

TEST(Finetune, BytesBetweenStagesAreThoseOfTheFormula) {
  const TinyOptions tiny{.num_layers = 5};
  const storage::FinetuneSection finetune = section();
  const storage::Mesh mesh{2, 2};
  std::atomic<std::int64_t> sent = 0, expected = 0;
  run_on_threads(mesh.ranks(), [&](Communicator& communicator) {
    TrainerOptions options = trainer_options(finetune);
    options.mesh = mesh;
    options.stream = at::kBFloat16;  // fp32 weights: the stream goes in half the bytes
    Trained trained(tiny, options, communicator);
    trained->step();
    sent += trained->pipeline().bytes_sent();
    const auto& config = trained.student().config;
    // Each micro-batch crosses the one border forward in bf16 and backward in fp32.
    expected =
        finetune.sequences_per_step * trained.tokens().seq_len * config.hidden_size * (2 + 4);
  });
  EXPECT_EQ(sent, expected);
}

TEST(Finetune, AMeshThatDoesNotFitTheRanksOrTheLayersIsRefused) {
  const auto refusal = [](const storage::Mesh& mesh, int ranks) {
    std::string said;
    try {
      run_on_threads(ranks, [&](Communicator& communicator) {
        TrainerOptions options = trainer_options(section());
        options.mesh = mesh;
        Trained trained({}, options, communicator);
      });
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      said = error.what();
    }
    return said;
  };
  EXPECT_NE(refusal({2, 2}, 3).find("\"2x2\" has 4 ranks, but 3 were started"), std::string::npos);
  EXPECT_NE(refusal({1, 4}, 4).find("the model has 3 layers"), std::string::npos);
}

TEST(Finetune, AnyNumberOfRanksGivesTheSameBytesAndLosses) {
  for (const auto& finetune : {section(), everything()}) expect_equal_ranks(finetune);
  storage::FinetuneSection six = section();
  six.sequences_per_step = 6;
  expect_equal_ranks(six);
}

// Catches: a rank with a micro-batch less that takes the others for lost while they compute theirs.
TEST(Finetune, ARankWithOneMicroBatchLessWaitsForTheOthersLongerThanTheDeadline) {
  storage::FinetuneSection three = section();
  three.sequences_per_step = 3;
  TrainerOptions options = trainer_options(three);
  options.check_cancelled = [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
  run_on_threads(
      2,
      [&](Communicator& communicator) {
        Trained trained({}, options, communicator);
        const auto begin = std::chrono::steady_clock::now();
        EXPECT_GT(trained->step().loss, 0.0);
        // The ranks have one and two.
        EXPECT_GT(std::chrono::steady_clock::now() - begin, 2 * communicator.deadline())
            << "a micro-batch does not last longer than the deadline";
        EXPECT_EQ(communicator.deadline(), std::chrono::milliseconds(300));
      },
      std::chrono::milliseconds(300));
}

TEST(Finetune, AResumeAtAnotherWorldSizeGivesTheBytesOfAnUndisturbedRun) {
  std::vector<std::byte> undisturbed;
  storage::Checkpoint half;
  run_on_threads(2, [&](Communicator& communicator) {
    Trained trained({}, trainer_options(everything()), communicator);
    for (int i = 0; i < 6; ++i) {
      if (i == 3 && communicator.rank() == 0) half = trained->parameters().checkpoint();
      trained->step();
    }
    if (communicator.rank() == 0) undisturbed = bytes_of(trained->parameters().checkpoint());
  });
  for (const int world_size : {1, 4}) {
    run_on_threads(world_size, [&](Communicator& communicator) {
      Trained trained({}, trainer_options(everything()), communicator);
      trained->parameters().restore(half);
      EXPECT_EQ(trained->parameters().num_steps(), 3);
      for (int i = 0; i < 3; ++i) trained->step();
      EXPECT_EQ(bytes_of(trained->parameters().checkpoint()), undisturbed)
          << world_size << " ranks";
    });
  }
}

TEST(Finetune, ACheckpointOfAnotherShapeIsRefusedByName) {
  const auto alone = make_single_communicator();
  Trained trained({}, trainer_options(section()), *alone);
  auto checkpoint = trained->parameters().checkpoint();
  auto& tensor = checkpoint.tensors.at(lora_name(1, "k_proj", "lora_B"));
  std::swap(tensor.shape[0], tensor.shape[1]);
  try {
    trained->parameters().restore(checkpoint);
    FAIL() << "a transposed matrix was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    EXPECT_NE(std::string(error.what()).find("layers.1.self_attn.k_proj.lora_B"), std::string::npos)
        << error.what();
  }
}

TEST(Finetune, TheLossFallsOnDataSeenAgainAndAgain) {
  const auto alone = make_single_communicator();
  Trained trained({}, trainer_options(section()), *alone);
  const double first = trained->step().loss;
  double last = first;
  for (int i = 0; i < 29; ++i) last = trained->step().loss;
  EXPECT_LT(last, first - 0.3);
}

TEST(Finetune, AdamWEqualsTorchsOwn) {
  const auto alone = make_single_communicator();
  auto options = trainer_options(section());
  options.finetune.weight_decay = 0.1;
  Trained trained({}, options, *alone);
  auto& parameters = trained->parameters();
  const at::Tensor value = at::cat([&] {
    std::vector<at::Tensor> parts;
    for (const auto& layer : parameters.adapter().layers) {
      for (const auto& module : parameters.adapter().target_modules) {
        parts.push_back(layer.at(module).a.reshape(-1));
        parts.push_back(layer.at(module).b.reshape(-1));
      }
    }
    return parts;
  }());
  at::Tensor average = at::zeros_like(value), square = at::zeros_like(value), none;
  for (int step = 1; step <= 3; ++step) {
    at::Tensor gradient =
        tests::uniform({parameters.size()}, 0.5, static_cast<std::uint32_t>(9000 + step));
    const double norm =
        parameters.step(gradient.clone(), {.learning_rate = 0.01, .gradient_clip = 1.0}).gradient;
    EXPECT_NEAR(norm, gradient.norm().item<double>(), 1e-4 * norm);
    gradient.div_(gradient.norm() + 1e-6);
    std::vector<at::Tensor> values = {value}, gradients = {gradient}, averages = {average},
                            squares = {square};
    std::vector<at::Tensor> steps = {at::full({}, step, at::kFloat)};
    at::_fused_adamw_(
        values, gradients, averages, squares, {}, steps, 0.01, 0.9, 0.999, 0.1, 1e-8, false, false);
  }
  const auto checkpoint = parameters.checkpoint();
  std::int64_t begin = 0;
  for (int layer = 0; layer < 3; ++layer) {
    for (const auto& module : parameters.adapter().target_modules) {
      for (const char* matrix : {"lora_A", "lora_B"}) {
        const auto& tensor = checkpoint.tensors.at(lora_name(layer, module, matrix));
        for (std::size_t i = 0; i < tensor.bytes.size() / sizeof(float); ++i, ++begin) {
          ASSERT_NEAR(reinterpret_cast<const float*>(tensor.bytes.data())[i],
                      value.const_data_ptr<float>()[begin],
                      2e-6);
        }
      }
    }
  }
}

TEST(Finetune, AGradientThatIsNotFiniteStopsBeforeItDestroysTheParameters) {
  const auto alone = make_single_communicator();
  Trained trained({}, trainer_options(section()), *alone);
  const auto before = bytes_of(trained->parameters().checkpoint());
  const at::Tensor gradient = at::ones({trained->parameters().size()});
  gradient[17] = std::numeric_limits<float>::infinity();
  EXPECT_THROW(trained->parameters().step(gradient, {}), Error);
  EXPECT_EQ(bytes_of(trained->parameters().checkpoint()), before);
}

TEST(Finetune, EachEpochIsAPermutationThatDependsOnSeedAndStepAlone) {
  DataOrder order(3, 11, 4);  // 2 steps an epoch, 3 sequences dropped
  std::vector<std::int64_t> epoch = order.step(2);
  const auto rest = order.step(3);
  epoch.insert(epoch.end(), rest.begin(), rest.end());
  std::ranges::sort(epoch);
  EXPECT_EQ(std::ranges::adjacent_find(epoch), epoch.end());
  EXPECT_GE(epoch.front(), 0);
  EXPECT_LT(epoch.back(), 11);
  DataOrder late(3, 11, 4);
  EXPECT_EQ(late.step(3), rest);
  EXPECT_NE(DataOrder(4, 11, 4).step(3), rest);
  EXPECT_NE(order.step(0), order.step(2));
  EXPECT_THROW(DataOrder(3, 3, 4), Error);
}

}  // namespace
}  // namespace hedgerow::worker
