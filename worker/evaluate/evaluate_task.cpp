#include "worker/evaluate/evaluate_task.hpp"

#include <algorithm>
#include <filesystem>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/shape/budgets.hpp"
#include "worker/client/task_inputs.hpp"
#include "worker/task/stopwatch.hpp"

namespace hedgerow::worker {
namespace {

wire::Subject subject_of(const wire::Task& task) {
  return wire::subject_from_string(task.subject).value_or(wire::Subject::kNone);
}

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

struct EvaluatedTexts {
  const storage::TokenSequences& tokens;
  std::vector<std::int64_t> sequences;
  std::vector<EvaluationText> texts;
  [[nodiscard]] std::int64_t num_sequences() const {
    std::int64_t count = static_cast<std::int64_t>(sequences.size());
    for (const EvaluationText& text : texts)
      count += static_cast<std::int64_t>(text.sequences.size());
    return count;
  }
};

EvaluatedTexts evaluated_texts(RunContext& run) {
  const storage::TokenSequences& tokens = run.tokens(storage::DataStage::kEvaluate);
  const std::int64_t limit = run.recipe().evaluate.max_sequences;
  return {
      tokens,
      evaluation_sequences(tokens, limit),
      texts_of(run.recipe(), limit, [&](const std::string& name) -> const storage::TokenSequences& {
        return run.tokens({storage::DataStage::kEvaluate, name});
      })};
}

// A student of the recipe's variants.
struct VariantStudent {
  std::string name, variant;
  int seed = 0;
  storage::Recipe recipe;  // as if the variant were all that it asks for
};

// Those that an evaluation has beside the recipe's own, in the recipe's order.
std::vector<VariantStudent> variant_students(const storage::Recipe& recipe,
                                             const wire::Task& task) {
  std::vector<VariantStudent> students;
  if (subject_of(task) != wire::Subject::kTransfer) return students;
  for (const storage::Variant& variant : recipe.variants) {
    for (int seed = 0; seed < variant.seeds; ++seed)
      students.push_back(
          {storage::Recipe::student_name(variant, seed), variant.name, seed, recipe.of(variant)});
  }
  return students;
}

// Throws Stopped.
EvaluationPart part_of(RunContext& run,
                       TaskContext& context,
                       const wire::Task& task,
                       const EvaluatedTexts& given,
                       std::int64_t num_tokens) {
  const Stopwatch clock;
  EvaluateOptions options{.device = run.device(), .compute_dtype = run.compute_dtype()};
  options.texts = given.texts;
  if (task.num_pieces > 0) {
    options.piece = task.piece;
    options.num_pieces = task.num_pieces;
  }
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
  std::vector<Student> others;
  if (subject_of(task) != wire::Subject::kTeacher) {
    const std::filesystem::path folder = directory_of(run, task, "hedgerow.json");
    student = load_student(folder, run.model(), at::kCPU);
    for (const VariantStudent& variant : variant_students(run.recipe(), task))
      others.push_back(load_student(folder / "variants" / variant.name, run.model(), at::kCPU));
  }
  if (subject_of(task) == wire::Subject::kLora)
    adapter = load_adapter(directory_of(run, task, "adapter_config.json"), run.config());
  if (student && adapter) put_in_place(*student, adapter->trained);
  options.student = student ? &*student : nullptr;
  options.adapter = adapter ? &*adapter : nullptr;
  for (const Student& other : others) options.others.push_back({&other});
  options.control = control_of(run.recipe());
  // The progress always goes on, and a stop is thrown.
  EvaluationPart part = evaluate_part(run.model(), given.tokens, given.sequences, options).value();
  part.seconds = clock.seconds();
  return part;
}

// The figures of a whole evaluation.
nlohmann::json figures_json(const RunContext& run,
                            const wire::Task& task,
                            const EvaluatedTexts& given,
                            const EvaluationPart& part,
                            const storage::Recipe& recipe,
                            bool recalls) {
  const wire::Subject subject = subject_of(task);
  const EvaluationShape shape = shape_of({.has_student = subject != wire::Subject::kTeacher,
                                          .has_adapter = subject == wire::Subject::kLora,
                                          .recalls = recalls},
                                         control_of(recipe),
                                         run.config());
  return to_json(
      evaluation_of(shape, text_shapes(given.tokens.seq_len, given.texts), part, run.config()),
      task.subject);
}

// What of a variant's figures goes into the task's result, a message: the file has all of them.
nlohmann::json told_of(const nlohmann::json& figures) {
  nlohmann::json told;
  for (const char* key : {"student", "variant", "seed", "perplexity", "gap_closed", "kl"})
    if (figures.contains(key)) told[key] = figures[key];
  for (const char* path : {"/columns/student/beyond/kl", "/control/state_bytes"}) {
    const nlohmann::json::json_pointer at(path);
    if (figures.contains(at)) told[at] = figures[at];
  }
  if (figures.contains("texts"))
    for (const auto& [name, text] : figures["texts"].items()) told["texts"][name] = told_of(text);
  return told;
}

// Those of each variant's students, in the order of the recipe.
nlohmann::json variants_json(const RunContext& run,
                             const wire::Task& task,
                             const EvaluatedTexts& given,
                             const EvaluationPart& part) {
  nlohmann::json variants = nlohmann::json::array();
  const std::vector<VariantStudent> students = variant_students(run.recipe(), task);
  for (std::size_t i = 0; i < students.size(); ++i) {
    const VariantStudent& student = students[i];
    nlohmann::json own = figures_json(run, task, given, part.others.at(i), student.recipe, false);
    own.erase("subject");
    own["student"] = student.name;
    own["variant"] = student.variant;
    own["seed"] = student.seed;
    variants.push_back(std::move(own));
  }
  return variants;
}

// Throws kCorrupt where the files are not the parts of this evaluation.
EvaluationPart read_parts(const RunContext& run,
                          const wire::Task& task,
                          const EvaluatedTexts& given) {
  std::vector<EvaluationPart> parts;
  for (const storage::FileRecord& file : task.inputs) {
    parts.push_back(part_from_json(
        storage::parse_document(storage::read_text(run.layout().resolve(file.name)))));
  }
  EvaluationPart whole = put_together(parts);
  const auto expected = static_cast<std::size_t>(given.num_sequences());
  const std::size_t variants = variant_students(run.recipe(), task).size();
  if (whole.others.size() != variants)
    throw storage::Error(storage::ErrorKind::kCorrupt,
                         "the parts of the evaluation of '" + task.subject + "' have " +
                             std::to_string(whole.others.size()) +
                             " students of variants, expected " + std::to_string(variants));
  if (whole.sequences.size() != expected) {
    throw storage::Error(storage::ErrorKind::kCorrupt,
                         "the parts of the evaluation of '" + task.subject + "' have " +
                             std::to_string(whole.sequences.size()) + " sequences, expected " +
                             std::to_string(expected));
  }
  return whole;
}

// Throws Stopped.
TaskResult evaluate_task(RunContext& run, TaskContext& context, const wire::Task& task) {
  verify_inputs(run.layout(), task, std::chrono::seconds(run.recipe().workers.file_patience_s));
  const EvaluatedTexts given = evaluated_texts(run);
  const bool is_piece = task.num_pieces > 0 && task.piece >= 0;
  const bool puts_together = task.num_pieces > 0 && task.piece < 0;
  std::int64_t num_tokens = tokens_in(given.tokens, given.sequences, given.texts);
  if (is_piece) {
    // All texts have sequences of one length.
    num_tokens =
        given.tokens.seq_len *
        storage::sequences_of_piece(given.num_sequences(), task.piece, task.num_pieces).count;
  }
  const EvaluationPart part =
      puts_together ? read_parts(run, task, given) : part_of(run, context, task, given, num_tokens);
  TaskResult result{.finished = true};
  if (!is_piece) {
    result.result =
        figures_json(run, task, given, part, run.recipe(), run.recipe().attention.recall_cache > 0);
    result.result["in_domain"] = run.recipe().validates_in_domain();
  }
  nlohmann::json variants = nlohmann::json::array();
  if (!is_piece) variants = variants_json(run, task, given, part);
  result.result["seconds"] = part.seconds;
  result.result["tokens_per_second"] = static_cast<double>(num_tokens) / part.seconds;
  const std::string name =
      is_piece ? storage::RunLayout::evaluation_piece(task.subject, task.piece, task.fencing_token)
               : storage::RunLayout::evaluation(task.subject, task.fencing_token);
  const auto path = attempt_path(run.layout(), task.fencing_token, name);
  std::filesystem::create_directories(path.parent_path());
  nlohmann::json whole = result.result;
  if (!variants.empty()) whole["variants"] = variants;
  storage::write_atomically(path, is_piece ? to_json(part).dump() + "\n" : whole.dump(2) + "\n");
  for (const nlohmann::json& variant : variants)
    result.result["variants"].push_back(told_of(variant));
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
