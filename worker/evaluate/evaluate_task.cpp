#include "worker/evaluate/evaluate_task.hpp"

#include <algorithm>
#include <filesystem>

#include "storage/base/error.hpp"
#include "storage/base/file.hpp"
#include "worker/client/task_inputs.hpp"
#include "worker/task/stopwatch.hpp"

namespace hedgerow::worker {
namespace {

// The directory of the input file with this base name.
std::filesystem::path directory_of(const RunContext& run,
                                   const wire::Task& task,
                                   const std::string& base_name) {
  for (const storage::FileRecord& file : task.inputs) {
    const std::filesystem::path path = run.layout().resolve(file.name);
    if (path.filename() == base_name) return path.parent_path();
  }
  throw storage::Error(storage::ErrorKind::kInternal,
                       "evaluation of '" + task.subject + "' came without its " + base_name);
}

// Throws Stopped.
TaskResult evaluate_task(RunContext& run, TaskContext& context, const wire::Task& task) {
  const Stopwatch clock;
  verify_inputs(run.layout(), task, std::chrono::seconds(run.recipe().workers.file_patience_s));
  const storage::TokenSequences& tokens = run.tokens(storage::DataStage::kEvaluate);
  const auto sequences = evaluation_sequences(tokens, run.recipe().evaluate.max_sequences);
  EvaluateOptions options{.device = run.device(), .compute_dtype = run.compute_dtype()};
  options.texts = texts_of(run.recipe(),
                           run.recipe().evaluate.max_sequences,
                           [&](const std::string& name) -> const storage::TokenSequences& {
                             return run.tokens({storage::DataStage::kEvaluate, name});
                           });
  const std::int64_t num_tokens = tokens_in(tokens, sequences, options.texts);
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
    student = load_student(directory_of(run, task, "hedgerow.json"), run.model(), at::kCPU);
  if (task.subject == "lora")
    adapter = load_adapter(directory_of(run, task, "adapter_config.json"), run.config());
  if (student && adapter) put_in_place(*student, adapter->trained);
  options.student = student ? &*student : nullptr;
  options.adapter = adapter ? &*adapter : nullptr;
  options.control = control_of(run.recipe());
  const Evaluation evaluation = evaluate(run.model(), tokens, sequences, options);

  TaskResult result{.finished = true, .result = to_json(evaluation, task.subject)};
  result.result["in_domain"] = run.recipe().validates_in_domain();
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

std::int64_t tokens_in(const storage::TokenSequences& tokens,
                       const std::vector<std::int64_t>& sequences,
                       const std::vector<EvaluationText>& texts) {
  std::int64_t count = static_cast<std::int64_t>(sequences.size()) * tokens.seq_len;
  for (const EvaluationText& text : texts)
    count += static_cast<std::int64_t>(text.sequences.size()) * text.tokens->seq_len;
  return count;
}

std::vector<std::int64_t> evaluation_sequences(const storage::TokenSequences& tokens,
                                               std::int64_t limit) {
  const std::int64_t begin = tokens.num_validation() > 0 ? tokens.num_train : 0;
  std::int64_t end = tokens.num_sequences;
  if (limit > 0) end = std::min(end, begin + limit);
  std::vector<std::int64_t> sequences;
  for (std::int64_t i = begin; i < end; ++i) sequences.push_back(i);
  return sequences;
}

std::vector<EvaluationText> texts_of(
    const storage::Recipe& recipe,
    std::int64_t limit,
    const std::function<const storage::TokenSequences&(const std::string& name)>& load) {
  std::vector<EvaluationText> texts;
  for (const storage::NamedText& text : recipe.texts) {
    const storage::TokenSequences& tokens = load(text.name);
    texts.push_back({text.name, text.in_domain, &tokens, evaluation_sequences(tokens, limit)});
  }
  return texts;
}

TaskResult run_evaluate(RunContext& run, TaskContext& context, const wire::Task& task) {
  try {
    return evaluate_task(run, context, task);
  } catch (const Stopped&) {
    return {};  // an evaluation has no checkpoint: it takes minutes
  }
}

}  // namespace hedgerow::worker
