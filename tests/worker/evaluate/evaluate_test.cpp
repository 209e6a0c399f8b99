#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/shape/state_bytes.hpp"
#include "storage/tensors/safetensors.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/tiny_model.hpp"
#include "tests/support/tiny_run.hpp"
#include "worker/evaluate/evaluate_task.hpp"
#include "worker/model/linear_branch.hpp"

namespace hedgerow::tests {
namespace {

class Evaluate : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    write_tiny_model(directory_ / "model", {.num_layers = 3});
    recipe_ = tiny_recipe(directory_ / "model");
    write_tiny_run(directory_ / "run", recipe_, 6);
    tokens_ = storage::load_tokens(directory_ / "run/tokens/evaluate.h5", 101);
  }

  storage::ModelDirectory model() const {
    return storage::ModelDirectory::open((directory_ / "model").string());
  }

  // A student of untrained maps; a window of seq_len leaves nothing to the linear branch.
  worker::Student student(int window_size) const {
    worker::Student made;
    made.attention = recipe_.attention;
    made.attention.window = storage::WindowLayout::kSliding;
    made.attention.window_size = window_size;
    made.attention.num_sinks = 0;
    made.options = made.attention;
    at::manual_seed(5);
    for (int layer = 0; layer < 3; ++layer) {
      kernels::HybridParameters parameters;
      parameters.q.layer = at::randn({4, 16, 8});
      parameters.k.layer = at::randn({4, 16, 8});
      parameters.window_factors = at::zeros({4});
      made.layers.emplace_back(parameters);
    }
    return made;
  }

  // One that changes the projections.
  worker::LoraAdapter adapter() const {
    storage::FinetuneSection finetune;
    finetune.rank = 2;
    worker::LoraAdapter made = worker::start_adapter(model().config(), finetune, 3);
    at::manual_seed(6);
    for (auto& layer : made.layers) {
      for (auto& [module, pair] : layer) pair.b.normal_(0.0, 0.2);
    }
    return made;
  }

  TemporaryDirectory directory_;
  storage::Recipe recipe_;
  storage::TokenSequences tokens_;
};

TEST_F(Evaluate, LossIsTheMeanCrossEntropyOfTheLogitsItGives) {
  worker::EvaluateOptions options;
  double sum = 0.0;
  std::int64_t count = 0;
  options.logits = [&](std::int64_t sequence, std::int64_t first, const at::Tensor& logits) {
    ASSERT_EQ(first, 0) << "40 rows fit one chunk";
    const auto ids = tokens_.sequence(sequence);
    const at::Tensor log_probabilities = logits.to(at::kDouble).log_softmax(-1);
    for (std::int64_t t = 0; t + 1 < tokens_.seq_len; ++t, ++count) {
      sum -= log_probabilities[t][ids[static_cast<std::size_t>(t + 1)]].item<double>();
    }
  };
  const auto teacher = model();
  const auto evaluation =
      worker::evaluate(teacher, tokens_, worker::evaluation_sequences(tokens_, 0), options);
  ASSERT_TRUE(evaluation.finished);
  EXPECT_EQ(evaluation.figures().targets, 4 * 39) << "the validation split";
  EXPECT_EQ(evaluation.figures().targets, count);
  EXPECT_NEAR(evaluation.figures().loss, sum / static_cast<double>(count), 1e-5);
  EXPECT_NEAR(evaluation.figures().perplexity(), std::exp(evaluation.figures().loss), 1e-9);
}

// A dash in a table says nothing.
TEST_F(Evaluate, ALossThatIsNotFiniteIsAnError) {
  const auto path = directory_ / "model/model.safetensors";
  {
    const storage::SafetensorsFile file(path);
    auto tensors = file.tensors();
    const std::vector<std::uint16_t> largest(64, 0x7f7f);  // finite in bf16, and its product is not
    tensors["model.norm.weight"].bytes = std::as_bytes(std::span(largest));
    storage::write_safetensors(directory_ / "changed", tensors);
  }
  std::filesystem::rename(directory_ / "changed", path);
  const std::string said = refusal(
      [&] { worker::evaluate(model(), tokens_, worker::evaluation_sequences(tokens_, 0), {}); },
      storage::ErrorKind::kUsage);
  EXPECT_NE(said.find("of the tokens file is not finite"), std::string::npos) << said;
}

TEST_F(Evaluate, ATeacherIsNotEvaluatedBeyondItsOwnWindow) {
  nlohmann::json config =
      nlohmann::json::parse(storage::read_text(directory_ / "model/config.json"));
  config["architectures"] = {"MistralForCausalLM"};
  config["model_type"] = "mistral";
  config["sliding_window"] = 8;
  storage::write_atomically(directory_ / "model/config.json", config.dump());
  const std::string said = refusal(
      [&] { worker::evaluate(model(), tokens_, worker::evaluation_sequences(tokens_, 0), {}); },
      storage::ErrorKind::kUsage);
  EXPECT_NE(said.find("a sequence of 40 tokens"), std::string::npos) << said;
}

TEST_F(Evaluate, MaskedTargetsDoNotCount) {
  const auto teacher = model();
  const auto sequences = worker::evaluation_sequences(tokens_, 1);
  const auto whole = worker::evaluate(teacher, tokens_, sequences, {});
  const auto offset = static_cast<std::size_t>(sequences.front() * tokens_.seq_len);
  for (std::size_t t = 1; t < 30; ++t) tokens_.loss_mask[offset + t] = 0;
  const auto masked = worker::evaluate(teacher, tokens_, sequences, {});
  EXPECT_EQ(whole.figures().targets, 39);
  EXPECT_EQ(masked.figures().targets, 10);
  EXPECT_NE(whole.figures().loss, masked.figures().loss);
}

TEST_F(Evaluate, StudentWhoseWindowHoldsTheSequenceIsTheTeacher) {
  const auto teacher = model();
  const auto sequences = worker::evaluation_sequences(tokens_, 0);
  const auto expected = worker::evaluate(teacher, tokens_, sequences, {});
  const worker::Student wide = student(40), narrow = student(4);
  worker::EvaluateOptions options;
  options.student = &wide;
  const auto same = worker::evaluate(teacher, tokens_, sequences, options);
  EXPECT_NEAR(same.figures().loss, expected.figures().loss, 1e-5);
  ASSERT_EQ(same.layers.size(), 3U);
  for (const auto& layer : same.layers) EXPECT_LT(layer.mse, 1e-10) << "layer " << layer.layer;
  options.student = &narrow;
  const auto other = worker::evaluate(teacher, tokens_, sequences, options);
  EXPECT_GT(std::abs(other.figures().loss - expected.figures().loss), 1e-4);
  for (const auto& layer : other.layers)
    EXPECT_GT(layer.relative_mse, 1e-3) << "layer " << layer.layer;
}

TEST_F(Evaluate, KeptSoftmaxLayersHaveNoError) {
  const auto teacher = model();
  worker::Student kept = student(4);
  kept.layers[1].reset();
  worker::EvaluateOptions options;
  options.student = &kept;
  const auto evaluation = worker::evaluate(teacher, tokens_, {0}, options);
  ASSERT_EQ(evaluation.layers.size(), 2U);
  EXPECT_EQ(evaluation.layers[0].layer, 0);
  EXPECT_EQ(evaluation.layers[1].layer, 2);
}

// Whatever stands beside it, a column is what an evaluation of it alone gives.
TEST_F(Evaluate, EachColumnIsToTheLastDigitWhatItsOwnEvaluationGives) {
  const auto teacher = model();
  const auto sequences = worker::evaluation_sequences(tokens_, 0);
  const worker::Student made = student(4);
  const worker::LoraAdapter adapter = this->adapter();
  const auto alone = worker::evaluate(teacher, tokens_, sequences, {});
  worker::EvaluateOptions options;
  options.control = worker::Control{made.attention};
  const auto controlled = worker::evaluate(teacher, tokens_, sequences, options);
  options.student = &made;
  const auto transfer = worker::evaluate(teacher, tokens_, sequences, options);
  options.adapter = &adapter;
  const auto lora = worker::evaluate(teacher, tokens_, sequences, options);

  using enum worker::Column;
  for (const auto* evaluation : {&controlled, &transfer, &lora}) {
    EXPECT_EQ(evaluation->column(kTeacher)->all.loss, alone.figures().loss);
    EXPECT_EQ(evaluation->column(kControl)->all.loss, controlled.column(kControl)->all.loss);
    EXPECT_EQ(evaluation->column(kControl)->all.kl, controlled.column(kControl)->all.kl);
  }
  EXPECT_FALSE(alone.column(kControl));
  EXPECT_FALSE(controlled.column(kStudent));
  EXPECT_EQ(transfer.figures().loss, transfer.column(kStudent)->all.loss);
  EXPECT_EQ(transfer.column(kLinearOff)->all.loss, controlled.column(kControl)->all.loss)
      << "without LoRA it is the control";
  EXPECT_NE(lora.figures().loss, transfer.figures().loss);
  EXPECT_NE(lora.column(kLinearOff)->all.loss, controlled.column(kControl)->all.loss)
      << "its weights are the student's";
  EXPECT_NE(lora.column(kLinearOff)->all.loss, lora.figures().loss);
}

// Catches: an error of the student's q, k and v without their adapter, or of a path that is not the
// teacher's.
TEST_F(Evaluate, LayerErrorsWithAnAdapterAreThoseOfItsOwnQueriesKeysAndValues) {
  const auto teacher = model();
  const worker::Student made = student(4);
  const auto sequences = worker::evaluation_sequences(tokens_, 0);
  const auto errors_with = [&](const std::string& module) {
    worker::LoraAdapter adapter = this->adapter();
    for (auto& layer : adapter.layers) {
      for (auto& [name, pair] : layer) {
        if (name != module) pair.b.zero_();
      }
    }
    worker::EvaluateOptions options;
    options.student = &made;
    if (module != "no adapter") options.adapter = &adapter;
    std::vector<double> errors;
    for (const auto& layer : worker::evaluate(teacher, tokens_, sequences, options).layers)
      errors.push_back(layer.mse);
    return errors;
  };
  const std::vector<double> transfer = errors_with("no adapter");
  ASSERT_EQ(transfer.size(), 3U);
  EXPECT_EQ(errors_with("none of them"), transfer) << "the adapter changes nothing";
  EXPECT_EQ(errors_with("o_proj"), transfer) << "behind what is compared";
  for (const char* module : {"q_proj", "k_proj", "v_proj"}) {
    const std::vector<double> own = errors_with(module);
    for (std::size_t layer = 0; layer < transfer.size(); ++layer)
      EXPECT_NE(own[layer], transfer[layer]) << module << " of layer " << layer;
  }
}

// Catches: an opponent of another window, a cache that stays on in the column without it.
TEST_F(Evaluate, TheWindowOfEqualBytesAndTheStudentWithoutItsCacheAreColumns) {
  const auto teacher = model();
  worker::Student recalling = student(4);
  recalling.attention.recall_cache = 3;
  recalling.options.recall_cache = 3;
  worker::EvaluateOptions options;
  options.student = &recalling;
  const auto found = worker::evaluate(teacher, tokens_, {0, 1}, options);
  const worker::Student plain = student(4);
  options.student = &plain;
  const auto without = worker::evaluate(teacher, tokens_, {0, 1}, options);
  using enum worker::Column;
  EXPECT_EQ(found.column(kRecallOff)->all.loss, without.column(kStudent)->all.loss);
  EXPECT_NE(found.column(kStudent)->all.loss, without.column(kStudent)->all.loss);
  EXPECT_FALSE(without.column(kRecallOff));

  ASSERT_EQ(found.equal_window, storage::equal_window(recalling.attention, teacher.config()));
  ASSERT_GT(found.equal_window, without.equal_window);
  worker::EvaluateOptions untrained;
  untrained.control = worker::Control{recalling.attention};
  untrained.control->attention.window_size = found.equal_window;
  const auto alone = worker::evaluate(teacher, tokens_, {0, 1}, untrained);
  EXPECT_EQ(found.column(kEqualWindow)->all.loss, alone.column(kControl)->all.loss);
  const nlohmann::json json = worker::to_json(found, "transfer");
  EXPECT_EQ(json.at("control").at("equal_window"), found.equal_window);
  EXPECT_EQ(json.at("control").at("recall_cache"), 3);
  EXPECT_GT(json.at("control").at("state_bytes"), 0);
  EXPECT_TRUE(json.at("columns").contains("recall_off"));
}

// Catches: figures of one text in another's, and weights that are read once for each.
TEST_F(Evaluate, EachTextHasTheFiguresOfItsOwnEvaluationAndTheLayersAreReadOnce) {
  const auto teacher = model();
  const worker::Student made = student(4);
  storage::TokenSequences other = tokens_;
  std::reverse(other.input_ids.begin(), other.input_ids.end());
  int loaded = 0;
  worker::EvaluateOptions options;
  options.student = &made;
  options.check_hash = [&](int layer, const storage::Hash128&) { loaded += layer == 0; };
  const auto alone = worker::evaluate(teacher, tokens_, {0, 1}, options);
  const auto beside = worker::evaluate(teacher, other, {2, 3, 4}, options);
  EXPECT_EQ(loaded, 2);
  options.texts = {{"other", true, &other, {2, 3, 4}}};
  const auto both = worker::evaluate(teacher, tokens_, {0, 1}, options);
  EXPECT_EQ(loaded, 3);
  ASSERT_EQ(both.texts.size(), 1U);
  nlohmann::json json = worker::to_json(both, "transfer");
  const nlohmann::json text = json.at("texts").at("other");
  nlohmann::json own = worker::to_json(alone, "transfer");
  const nlohmann::json expected = worker::to_json(beside, "transfer");
  for (const char* column : {"control", "equal_window", "student"})
    EXPECT_DOUBLE_EQ(json["kl"][column],
                     (own["kl"][column].get<double>() + expected["kl"][column].get<double>()) / 2);
  for (nlohmann::json* one : {&json, &own})
    for (const char* key : {"texts", "kl"}) one->erase(key);
  EXPECT_EQ(json, own);
  for (const char* key : {"perplexity", "loss", "targets", "columns", "beyond", "mse_mean"})
    EXPECT_EQ(text.at(key), expected.at(key)) << key;
  EXPECT_EQ(text.at("in_domain"), true);
  EXPECT_FALSE(text.contains("layers"));
}

TEST_F(Evaluate, ATextWithoutSequencesIsNamed) {
  worker::EvaluateOptions options;
  options.texts = {{"empty", false, &tokens_, {}}};
  const std::string said = refusal([&] { worker::evaluate(model(), tokens_, {0}, options); },
                                   storage::ErrorKind::kUsage);
  EXPECT_NE(said.find("the tokens file of empty has no sequence"), std::string::npos) << said;
}

TEST_F(Evaluate, AStudentWithItsLinearBranchOffIsItsControl) {
  const auto teacher = model();
  worker::Student off = student(4);
  off.options.feature_map = kernels::FeatureMapKind::kRelu;
  off.options.negation = false;
  for (const auto& layer : off.layers)
    ASSERT_TRUE(worker::switch_off_linear_branch(*layer, off.options));
  worker::EvaluateOptions options;
  options.student = &off;
  const auto evaluation = worker::evaluate(teacher, tokens_, {0, 1}, options);
  EXPECT_NEAR(
      evaluation.figures().loss, evaluation.column(worker::Column::kControl)->all.loss, 1e-5);
  EXPECT_NEAR(evaluation.gap_closed().value_or(0.0), 0.0, 1e-3);
  for (const auto& layer : evaluation.layers) EXPECT_TRUE(layer.kept_untrained);
}

TEST_F(Evaluate, LayersThatKeepTheirSoftmaxKeepItInTheControlToo) {
  const auto teacher = model();
  worker::Student kept = student(4);
  for (auto& layer : kept.layers) layer.reset();
  worker::EvaluateOptions options;
  options.student = &kept;
  const auto evaluation = worker::evaluate(teacher, tokens_, {0}, options);
  for (const auto& column : evaluation.columns) {
    if (!column) continue;  // it has no cache
    EXPECT_EQ(column->all.loss, evaluation.column(worker::Column::kTeacher)->all.loss);
    EXPECT_EQ(column->all.kl, 0.0);
    EXPECT_EQ(column->all.top1, 1.0);
  }
  EXPECT_FALSE(evaluation.gap_closed()) << "the control is no worse than the teacher";
}

// The distance to the teacher, and what lies beyond 2 W, against the logits.
TEST_F(Evaluate, DistancesToTheTeacherAndFiguresBeyondTheWindowsAreThoseOfTheLogits) {
  const auto teacher = model();
  const auto sequences = worker::evaluation_sequences(tokens_, 2);
  const worker::Student made = student(4);
  const auto logits_of = [&](const worker::Student* student) {
    std::vector<at::Tensor> logits;
    worker::EvaluateOptions options;
    options.student = student;
    options.logits = [&](std::int64_t, std::int64_t, const at::Tensor& rows) {
      logits.push_back(rows.narrow(0, 0, tokens_.seq_len - 1).to(at::kDouble).log_softmax(-1));
    };
    const auto evaluation = worker::evaluate(teacher, tokens_, sequences, options);
    return std::pair{at::stack(logits), evaluation};
  };
  const at::Tensor exact = logits_of(nullptr).first;
  const auto [own, evaluation] = logits_of(&made);
  const at::Tensor kl = (exact.exp() * (exact - own)).sum(-1);
  const at::Tensor agrees = own.argmax(-1).eq(exact.argmax(-1)).to(at::kDouble);
  const worker::ColumnFigures& figures = *evaluation.column(worker::Column::kStudent);
  EXPECT_EQ(evaluation.beyond, 8);
  EXPECT_EQ(figures.beyond.targets, 2 * 32) << "positions 8 to 39";
  const auto beyond = [](const at::Tensor& rows) {
    return rows.narrow(1, 7, 32).mean().item<double>();  // row t is of the target at t + 1
  };
  EXPECT_GT(figures.all.kl, 1e-4);
  EXPECT_NEAR(figures.all.kl, kl.mean().item<double>(), 1e-6);
  EXPECT_NEAR(figures.beyond.kl, beyond(kl), 1e-6);
  EXPECT_NEAR(figures.all.top1, agrees.mean().item<double>(), 1e-9);
  EXPECT_NEAR(figures.beyond.top1, beyond(agrees), 1e-9);
  const auto loss = [&](worker::Column column) { return evaluation.column(column)->beyond.loss; };
  using enum worker::Column;
  ASSERT_TRUE(evaluation.gap_closed().has_value() == (loss(kControl) > loss(kTeacher)));
  if (evaluation.gap_closed()) {
    EXPECT_NEAR(*evaluation.gap_closed(),
                (loss(kControl) - loss(kStudent)) / (loss(kControl) - loss(kTeacher)),
                1e-12);
  }
}

TEST_F(Evaluate, NothingLiesBeyondTwoWindowsOfTheWholeSequence) {
  const auto teacher = model();
  const worker::Student wide = student(40);
  worker::EvaluateOptions options;
  options.student = &wide;
  const auto evaluation = worker::evaluate(teacher, tokens_, {0}, options);
  EXPECT_EQ(evaluation.column(worker::Column::kStudent)->beyond.targets, 0);
  EXPECT_FALSE(evaluation.gap_closed());
  const nlohmann::json json = worker::to_json(evaluation, "transfer");
  EXPECT_FALSE(json.at("columns").at("student").contains("beyond"));
  EXPECT_FALSE(json.contains("gap_closed"));
}

TEST_F(Evaluate, TaskWritesItsResultAndStopsWhenTold) {
  worker::RunContext run(directory_ / "run");
  wire::Task task;
  task.kind = wire::TaskKind::kEvaluate;
  task.fencing_token = 9;
  task.subject = "teacher";
  LocalTaskContext context(run.layout(), 9);
  const auto done = worker::run_evaluate(run, context, task);
  ASSERT_TRUE(done.finished);
  EXPECT_EQ(done.files.at(0).name, "evaluate/teacher.t9.json");
  const auto written = nlohmann::json::parse(
      storage::read_text(worker::attempt_path(run.layout(), 9, done.files.at(0).name)));
  EXPECT_EQ(written.at("perplexity"), done.result.at("perplexity"));
  EXPECT_EQ(written.at("compute_dtype"), "fp32");
  const auto teacher = model();
  const auto sequences = worker::evaluation_sequences(tokens_, 0);
  EXPECT_EQ(written.at("loss"), worker::evaluate(teacher, tokens_, sequences, {}).figures().loss)
      << "rounded to plan.shard_dtype, " << recipe_.plan.shard_dtype << ", between layers";
  EXPECT_EQ(written.at("columns").at("teacher").at("loss"), written.at("loss"));
  EXPECT_TRUE(written.at("columns").contains("control")) << "of the run's recipe";
  EXPECT_EQ(written.at("control").at("window_size"), recipe_.attention.window_size);
  EXPECT_EQ(written.at("beyond"), 2 * recipe_.attention.window_size);
  EXPECT_EQ(context.reports.back().phase, "evaluating");

  LocalTaskContext stopped(run.layout(), 10);
  stopped.stop_when = [](const LocalTaskContext& seen) { return seen.reports.size() >= 2; };
  EXPECT_FALSE(worker::run_evaluate(run, stopped, task).finished);
}

TEST_F(Evaluate, TheUntrainedStudentIsTheControlLayersOfSoftmaxKept) {
  const auto teacher = model();
  storage::AttentionSpec attention = student(8).attention;
  attention.num_sinks = 2;
  for (const auto layout : {storage::WindowLayout::kSliding, storage::WindowLayout::kTerraced}) {
    attention.window = layout;
    const worker::Student untrained =
        worker::untrained_student(attention, {1}, teacher.config(), at::kCPU);
    EXPECT_FALSE(untrained.layers[1]);
    EXPECT_TRUE(worker::is_linear_branch_off(*untrained.layers[0]));
    worker::EvaluateOptions options;
    options.student = &untrained;
    const auto found = worker::evaluate(teacher, tokens_, {0, 1}, options);
    EXPECT_NEAR(found.column(worker::Column::kStudent)->all.loss,
                found.column(worker::Column::kControl)->all.loss,
                1e-5);
    EXPECT_GT(found.column(worker::Column::kStudent)->all.kl, 1e-4) << "a window sees less";
  }
  attention.window = storage::WindowLayout::kNone;
  const std::string said = refusal(
      [&] {
        static_cast<void>(worker::untrained_student(attention, {}, teacher.config(), at::kCPU));
      },
      storage::ErrorKind::kUsage);
  EXPECT_NE(said.find("there is no untrained control"), std::string::npos) << said;
}

TEST_F(Evaluate, PiecesPutTogetherHaveTheBytesOfOneTask) {
  worker::RunContext run(directory_ / "run");
  const auto result_of = [&](wire::Task task) {
    LocalTaskContext context(run.layout(), task.fencing_token);
    auto done = worker::run_evaluate(run, context, task);
    EXPECT_TRUE(done.finished);
    context.commit(done.files.at(0));
    for (const char* key : {"seconds", "tokens_per_second"}) {
      EXPECT_GE(done.result.at(key).get<double>(), 0.0);
      done.result.erase(key);
    }
    return done;
  };
  wire::Task whole;
  whole.kind = wire::TaskKind::kEvaluate;
  whole.subject = "teacher";
  whole.fencing_token = 100;
  const nlohmann::json expected = result_of(whole).result;
  // Of four sequences: alone, unequal pieces, and one without any.
  for (const int pieces : {1, 3, 5}) {
    wire::Task task = whole;
    task.num_pieces = pieces;
    std::vector<storage::FileRecord> files;
    for (task.piece = 0; task.piece < pieces; ++task.piece) {
      ++task.fencing_token;
      files.push_back(result_of(task).files.at(0));
      EXPECT_EQ(files.back().name,
                storage::RunLayout::evaluation_piece("teacher", task.piece, task.fencing_token));
    }
    ++task.fencing_token;
    task.piece = -1;
    task.inputs = files;
    EXPECT_EQ(result_of(task).result.dump(), expected.dump());
    task.inputs.pop_back();
    if (pieces == 3) {
      const std::string said = refusal([&] { result_of(task); }, storage::ErrorKind::kCorrupt);
      EXPECT_NE(said.find("have 2 sequences, expected 4"), std::string::npos) << said;
    }
  }
}

TEST_F(Evaluate, PiecesOfAStudentAndOfItsTextsHaveTheBytesOfOne) {
  const auto teacher = model();
  worker::Student made = student(8);
  made.layers[1].reset();
  made.layers[2]->q.layer.zero_();
  const worker::LoraAdapter lora = adapter();
  for (const worker::LoraAdapter* with :
       {static_cast<const worker::LoraAdapter*>(nullptr), &lora}) {
    worker::EvaluateOptions options;
    options.student = &made;
    options.adapter = with;
    options.texts = {{"more", true, &tokens_, {0, 1, 2}}};
    const auto dumped = [&](const worker::Evaluation& evaluation) {
      return worker::to_json(evaluation, "transfer").dump();
    };
    const std::string whole = dumped(worker::evaluate(teacher, tokens_, {6, 7}, options));
    std::vector<worker::EvaluationPart> parts;
    for (options.num_pieces = 3; options.piece < 3; ++options.piece) {
      const auto part = worker::evaluate_part(teacher, tokens_, {6, 7}, options);
      parts.push_back(worker::part_from_json(nlohmann::json::parse(worker::to_json(*part).dump())));
    }
    const worker::EvaluationShape shape =
        worker::shape_of({.has_student = true, .has_adapter = with != nullptr},
                         worker::Control{made.attention, {1}},
                         teacher.config());
    EXPECT_EQ(dumped(worker::evaluation_of(shape,
                                           worker::text_shapes(tokens_.seq_len, options.texts),
                                           worker::put_together(parts),
                                           teacher.config())),
              whole);
  }
}

TEST_F(Evaluate, StudentsBesideOneAnotherHaveTheFiguresOfEvaluationsOfTheirOwn) {
  const auto teacher = model();
  // Of one window, of another one, with a layer that keeps its softmax as the first's does.
  std::vector<worker::Student> made = {student(4), student(4), student(8), student(4)};
  made[1].layers[2]->q.layer.mul_(0.5);
  made[3].options.num_sinks = made[3].attention.num_sinks = 2;
  for (worker::Student& one : made) one.layers[1].reset();
  worker::EvaluateOptions options;
  options.texts = {{"more", true, &tokens_, {0, 1, 2}}};
  const auto figures = [&](const worker::Student& of, const worker::EvaluationPart& part) {
    const auto shape = worker::shape_of(
        {.has_student = true}, worker::Control{of.attention, {1}}, teacher.config());
    return worker::to_json(
               worker::evaluation_of(shape,
                                     worker::text_shapes(tokens_.seq_len, options.texts),
                                     part,
                                     teacher.config()),
               "transfer")
        .dump();
  };
  std::vector<std::string> expected;
  for (const worker::Student& one : made) {
    options.student = &one;
    expected.push_back(
        figures(one, worker::evaluate_part(teacher, tokens_, {6, 7}, options).value()));
  }
  EXPECT_EQ(std::set<std::string>(expected.begin(), expected.end()).size(), made.size());
  options.student = made.data();
  for (std::size_t i = 1; i < made.size(); ++i) options.others.push_back({&made[i]});
  std::vector<worker::EvaluationPart> parts;
  for (options.num_pieces = 2; options.piece < 2; ++options.piece) {
    const auto part = worker::evaluate_part(teacher, tokens_, {6, 7}, options);
    parts.push_back(worker::part_from_json(nlohmann::json::parse(worker::to_json(*part).dump())));
  }
  const worker::EvaluationPart whole = worker::put_together(parts);
  ASSERT_EQ(whole.others.size(), made.size() - 1);
  EXPECT_EQ(figures(made[0], whole), expected[0]);
  for (std::size_t i = 1; i < made.size(); ++i)
    EXPECT_EQ(figures(made[i], whole.others[i - 1]), expected[i]) << i;
  parts[1].others.pop_back();
  const std::string said = refusal([&] { static_cast<void>(worker::put_together(parts)); },
                                   storage::ErrorKind::kCorrupt);
  EXPECT_NE(said.find("are of 4 and of 3 students"), std::string::npos) << said;
}

TEST_F(Evaluate, ALayerOrAHeadThatReturnsToSoftmaxIsThatOfAStudentWhichKeptIt) {
  const auto teacher = model();
  const worker::Student made = student(4);
  worker::EvaluateOptions options;
  options.student = &made;
  options.others = {{&made, 0}, {&made, 2}, {&made, 1, 0}, {&made, 1, 1}};
  const auto part = worker::evaluate_part(teacher, tokens_, {6, 7}, options).value();
  const auto kl = [&](const worker::EvaluationPart& of) {
    return worker::evaluation_of_other(
               teacher, worker::text_shapes(tokens_.seq_len, {}), of, options.others[0])
        .column(worker::Column::kStudent)
        ->all.kl;
  };
  for (std::size_t i = 0; i < 2; ++i) {
    worker::Student kept = made;
    kept.layers[static_cast<std::size_t>(options.others[i].softmax_layer)].reset();
    worker::EvaluateOptions alone;
    alone.student = &kept;
    const auto found = worker::evaluate(teacher, tokens_, {6, 7}, alone);
    EXPECT_EQ(kl(part.others[i]), found.column(worker::Column::kStudent)->all.kl) << i;
    EXPECT_TRUE(part.others[i].sequences[0].layers.empty()) << "errors of layers are the first's";
  }
  const std::set<double> different{kl(part), kl(part.others[2]), kl(part.others[3])};
  EXPECT_EQ(different.size(), 3);
}

TEST_F(Evaluate, AStopIsHeardBetweenTheSequencesOfALayer) {
  worker::RunContext run(directory_ / "run");
  wire::Task task;
  task.kind = wire::TaskKind::kEvaluate;
  task.subject = "teacher";
  int asked_in_all = 0;
  LocalTaskContext straight(run.layout(), 20);
  straight.stop_when = [&](const LocalTaskContext&) { return ++asked_in_all < 0; };
  task.fencing_token = 20;
  ASSERT_TRUE(worker::run_evaluate(run, straight, task).finished);
  const int num_sequences = 4, num_layers = run.config().num_hidden_layers;
  EXPECT_GT(asked_in_all, num_sequences * (num_layers + 1)) << "each layer, and the loss";
  for (int place = 1; place < asked_in_all; place += 5) {
    task.fencing_token = 20U + static_cast<storage::FencingToken>(place);
    LocalTaskContext stopped(run.layout(), task.fencing_token);
    int asked = 0;
    stopped.stop_when = [&](const LocalTaskContext&) { return ++asked >= place; };
    EXPECT_FALSE(worker::run_evaluate(run, stopped, task).finished);
    EXPECT_EQ(asked, place) << "it went on after it was told";
  }
}

TEST_F(Evaluate, SequencesAreTheValidationSplitOrAllWithoutOne) {
  EXPECT_EQ(worker::evaluation_sequences(tokens_, 0), (std::vector<std::int64_t>{6, 7, 8, 9}));
  EXPECT_EQ(worker::evaluation_sequences(tokens_, 2), (std::vector<std::int64_t>{6, 7}));
  tokens_.num_train = tokens_.num_sequences;
  EXPECT_EQ(worker::evaluation_sequences(tokens_, 0).size(), 10U);
  tokens_.num_train = 0;
  EXPECT_EQ(worker::evaluation_sequences(tokens_, 0).size(), 10U);
}

}  // namespace
}  // namespace hedgerow::tests
