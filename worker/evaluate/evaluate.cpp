#include "worker/evaluate/evaluate.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "storage/base/error.hpp"
#include "storage/base/file.hpp"
#include "worker/client/task_inputs.hpp"
#include "worker/model/block_runner.hpp"
#include "worker/task/stopwatch.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

// Rows of logits at once: [256, V] fp32 is 50 MB for SmolLM2, 131 MB for Llama 3.
constexpr std::int64_t kLogitRows = 256;
// The residual streams of one group of sequences stay in memory while all layers pass over them.
constexpr std::int64_t kGroupBytes = std::int64_t{1} << 30;

struct ErrorSums {
  double squared_error = 0.0, energy = 0.0;
  std::int64_t elements = 0;
};

class Evaluator {
 public:
  Evaluator(const storage::ModelDirectory& model,
            const storage::TokenSequences& tokens,
            const EvaluateOptions& options)
      : model_(model),
        tokens_(tokens),
        options_(options),
        outer_(load_outer(model, options.compute_dtype, options.device, hooks())),
        rope_(make_rope_table(model.config(), tokens.seq_len, options.device)) {}

  // False if told to stop.
  bool add_group(const std::vector<std::int64_t>& group,
                 std::int64_t layers_before,
                 std::int64_t layers_in_all) {
    const c10::NoGradGuard no_grad;
    std::vector<at::Tensor> streams, teacher_streams;
    for (const std::int64_t index : group) streams.push_back(start(index));
    if (measures_layers()) teacher_streams = streams;
    const int num_layers = model_.config().num_hidden_layers;
    for (int layer = 0; layer < num_layers; ++layer) {
      const BlockRunner runner = load(layer);
      const RunOptions each{.check_cancelled = options_.check_cancelled};
      for (at::Tensor& stream : teacher_streams)
        stream = runner.run(stream, rope_, measuring_teacher(), each);
      for (at::Tensor& stream : streams)
        stream = runner.run(stream, rope_, subject_attention(), each);
      if (options_.progress &&
          !options_.progress(layers_before + layer + 1, layers_in_all, mean_loss()))
        return false;
    }
    for (std::size_t i = 0; i < group.size(); ++i) {
      add_loss(group[i], streams[i]);
      require_finite(group[i]);
    }
    return true;
  }

  [[nodiscard]] Evaluation result() const {
    Evaluation evaluation{.finished = true, .compute_dtype = options_.compute_dtype};
    evaluation.loss = mean_loss();
    evaluation.num_targets = num_targets_;
    for (const auto& [layer, sums] : errors_) {
      evaluation.layers.push_back({layer,
                                   sums.squared_error / static_cast<double>(sums.elements),
                                   sums.squared_error / sums.energy});
    }
    return evaluation;
  }

 private:
  [[nodiscard]] LoadHooks hooks() const {
    return {options_.check_cancelled, [this](int layer, const storage::Hash128& hash) {
              if (options_.check_hash) options_.check_hash(layer, hash);
              if (options_.student != nullptr)
                options_.student->require_teacher(model_, layer, hash);
            }};
  }
  // With an adapter the weights are the student's, so that there is no teacher to compare with.
  [[nodiscard]] bool measures_layers() const {
    return options_.student != nullptr && options_.adapter == nullptr;
  }
  [[nodiscard]] double mean_loss() const {
    return num_targets_ == 0 ? 0.0 : loss_ / static_cast<double>(num_targets_);
  }

  void require_finite(std::int64_t sequence) const {
    if (std::isfinite(loss_)) return;
    throw Error(ErrorKind::kUsage,
                "the loss of sequence " + std::to_string(sequence) +
                    " of the tokens file is not "
                    "finite; check the model's weights");
  }

  BlockRunner load(int layer_idx) const {
    LayerWeights layer =
        load_layer(model_, layer_idx, options_.compute_dtype, options_.device, hooks());
    if (options_.adapter != nullptr)
      merge_into(layer, *options_.adapter, layer_idx, model_.config());
    pack_layer(layer, tokens_.seq_len);
    return {model_.config(), layer_idx, {std::move(layer)}, options_.compute_dtype};
  }

  // [1, T] int64, on the CPU.
  [[nodiscard]] at::Tensor token_ids(std::int64_t index) const {
    const auto ids = tokens_.sequence(index);
    const at::Tensor input_ids = at::empty({1, static_cast<std::int64_t>(ids.size())}, at::kLong);
    std::copy(ids.begin(), ids.end(), input_ids.data_ptr<std::int64_t>());
    return input_ids;
  }

  [[nodiscard]] at::Tensor start(std::int64_t index) const {
    return embed(token_ids(index).to(options_.device), outer_.embed_tokens);
  }

  [[nodiscard]] const kernels::HybridParameters* parameters(int layer) const {
    if (options_.student == nullptr) return nullptr;
    const auto& found = options_.student->layers.at(static_cast<std::size_t>(layer));
    return found ? &*found : nullptr;
  }

  Attend subject_attention() const {
    return [this](int layer, const Qkv& qkv) {
      const kernels::HybridParameters* hybrid = parameters(layer);
      if (hybrid == nullptr) return teacher_attention(qkv);
      return kernels::hybrid_attention(qkv.q, qkv.k, qkv.v, *hybrid, options_.student->options);
    };
  }

  Attend measuring_teacher() {
    return [this](int layer, const Qkv& qkv) {
      const at::Tensor y_true = teacher_attention(qkv);
      if (const kernels::HybridParameters* hybrid = parameters(layer)) {
        kernels::HybridOptions unrounded = options_.student->options;
        unrounded.fp32_output = true;
        const at::Tensor y_pred =
            kernels::hybrid_attention(qkv.q, qkv.k, qkv.v, *hybrid, unrounded);
        const at::Tensor truth = y_true.to(at::kFloat);
        ErrorSums& sums = errors_[layer];
        sums.squared_error += (y_pred - truth).square().sum(at::kDouble).item<double>();
        sums.energy += truth.square().sum(at::kDouble).item<double>();
        sums.elements += truth.numel();
      }
      return y_true;
    };
  }

  // Row t predicts token t + 1.
  void add_loss(std::int64_t index, const at::Tensor& stream) {
    const auto mask = tokens_.mask(index);
    const at::Tensor next = token_ids(index).squeeze(0).roll(-1).unsqueeze(1).to(options_.device);
    const at::Tensor rows = stream.squeeze(0);
    for (std::int64_t first = 0; first < tokens_.seq_len; first += kLogitRows) {
      options_.check_cancelled();
      const std::int64_t count = std::min(kLogitRows, tokens_.seq_len - first);
      const at::Tensor scores = logits(rows.narrow(0, first, count), outer_, model_.config());
      if (options_.logits) options_.logits(index, first, scores);
      const at::Tensor of_next = scores.gather(1, next.narrow(0, first, count)).squeeze(1);
      const at::Tensor losses = (scores.logsumexp(-1) - of_next).cpu();
      for (std::int64_t i = 0; i < count && first + i + 1 < tokens_.seq_len; ++i) {
        if (mask[static_cast<std::size_t>(first + i + 1)] == 0) continue;
        loss_ += losses.const_data_ptr<float>()[i];
        ++num_targets_;
      }
    }
  }

  const storage::ModelDirectory& model_;
  const storage::TokenSequences& tokens_;
  const EvaluateOptions& options_;
  OuterWeights outer_;
  RopeTable rope_;
  std::map<int, ErrorSums> errors_;
  double loss_ = 0.0;
  std::int64_t num_targets_ = 0;
};

}  // namespace

double Evaluation::perplexity() const { return std::exp(loss); }

std::vector<std::int64_t> evaluation_sequences(const storage::TokenSequences& tokens,
                                               std::int64_t limit) {
  const std::int64_t begin = tokens.num_validation() > 0 ? tokens.num_train : 0;
  std::int64_t end = tokens.num_sequences;
  if (limit > 0) end = std::min(end, begin + limit);
  std::vector<std::int64_t> sequences;
  for (std::int64_t i = begin; i < end; ++i) sequences.push_back(i);
  return sequences;
}

Evaluation evaluate(const storage::ModelDirectory& model,
                    const storage::TokenSequences& tokens,
                    const std::vector<std::int64_t>& sequences,
                    const EvaluateOptions& options) {
  if (sequences.empty())
    throw Error(ErrorKind::kUsage, "nothing to evaluate: the tokens file has no sequence");
  // The errors of a student's layers are against the teacher's softmax.
  const bool measures_layers = options.student != nullptr && options.adapter == nullptr;
  if (measures_layers || has_softmax(options.student)) {
    model.config().require_within_window(
        tokens.seq_len, "a sequence of " + std::to_string(tokens.seq_len) + " tokens");
  }
  const std::int64_t bytes = tokens.seq_len * model.config().hidden_size *
                             static_cast<std::int64_t>(c10::elementSize(options.compute_dtype));
  const auto per_group = static_cast<std::size_t>(std::max<std::int64_t>(1, kGroupBytes / bytes));
  const std::int64_t num_layers = model.config().num_hidden_layers;
  const auto groups = static_cast<std::int64_t>((sequences.size() + per_group - 1) / per_group);
  Evaluator evaluator(model, tokens, options);
  for (std::int64_t group = 0; group < groups; ++group) {
    const auto begin = sequences.begin() + group * static_cast<std::int64_t>(per_group);
    const auto end = std::min(begin + static_cast<std::int64_t>(per_group), sequences.end());
    if (!evaluator.add_group({begin, end}, group * num_layers, groups * num_layers)) return {};
  }
  return evaluator.result();
}

nlohmann::json to_json(const Evaluation& evaluation, const std::string& subject) {
  nlohmann::json json = {{"subject", subject},
                         {"compute_dtype", dtype_word(evaluation.compute_dtype)},
                         {"perplexity", evaluation.perplexity()},
                         {"loss", evaluation.loss},
                         {"targets", evaluation.num_targets}};
  if (evaluation.layers.empty()) return json;
  double sum = 0.0, worst = 0.0;
  for (const LayerError& error : evaluation.layers) {
    json["layers"].push_back(
        {{"layer", error.layer}, {"mse", error.mse}, {"relative_mse", error.relative_mse}});
    sum += error.mse;
    worst = std::max(worst, error.mse);
  }
  json["mse_mean"] = sum / static_cast<double>(evaluation.layers.size());
  json["mse_worst"] = worst;
  return json;
}

namespace {

// The directory of the input file with this base name.
std::filesystem::path directory_of(const RunContext& run,
                                   const wire::Task& task,
                                   const std::string& base_name) {
  for (const storage::FileRecord& file : task.inputs) {
    const std::filesystem::path path = run.layout().resolve(file.name);
    if (path.filename() == base_name) return path.parent_path();
  }
  throw Error(ErrorKind::kInternal,
              "evaluation of '" + task.subject + "' came without its " + base_name);
}

// Throws Stopped.
TaskResult evaluate_task(RunContext& run, TaskContext& context, const wire::Task& task) {
  const Stopwatch clock;
  verify_inputs(run.layout(), task, std::chrono::seconds(run.recipe().workers.file_patience_s));
  const storage::TokenSequences& tokens = run.tokens(storage::DataStage::kEvaluate);
  const auto sequences = evaluation_sequences(tokens, run.recipe().evaluate.max_sequences);
  const auto num_tokens = static_cast<std::int64_t>(sequences.size()) * tokens.seq_len;
  EvaluateOptions options{.device = run.device(), .compute_dtype = run.compute_dtype()};
  options.progress = [&](std::int64_t done, std::int64_t all, double loss) {
    wire::Progress progress;
    progress.phase = "evaluating";
    progress.step = done;
    progress.num_steps = all;
    progress.tokens = num_tokens * done / all;
    progress.seconds = clock.seconds();
    progress.loss = loss;
    context.report(progress);
    return true;
  };
  options.check_cancelled = [&context] { stop_if_told(context); };
  options.check_hash = run.load_hooks({}).check_hash;
  std::optional<Student> student;
  std::optional<LoraAdapter> adapter;
  if (task.subject != "teacher")
    student = load_student(directory_of(run, task, "hedgerow.json"), run.model(), run.device());
  if (task.subject == "lora")
    adapter = load_adapter(directory_of(run, task, "adapter_config.json"), run.config());
  options.student = student ? &*student : nullptr;
  options.adapter = adapter ? &*adapter : nullptr;
  const Evaluation evaluation = evaluate(run.model(), tokens, sequences, options);

  TaskResult result{.finished = true, .result = to_json(evaluation, task.subject)};
  result.result["seconds"] = clock.seconds();
  result.result["tokens_per_second"] = static_cast<double>(num_tokens) / clock.seconds();
  const std::string name = storage::RunLayout::evaluation(task.subject, task.fencing_token);
  const auto path = attempt_path(run.layout(), task.fencing_token, name);
  std::filesystem::create_directories(path.parent_path());
  storage::write_atomically(path, result.result.dump(2) + "\n");
  result.files = {{name, std::filesystem::file_size(path), storage::hash_file(path)}};
  return result;
}

}  // namespace

TaskResult run_evaluate(RunContext& run, TaskContext& context, const wire::Task& task) {
  try {
    return evaluate_task(run, context, task);
  } catch (const Stopped&) {
    return {};  // an evaluation has no checkpoint: it takes minutes
  }
}

}  // namespace hedgerow::worker
