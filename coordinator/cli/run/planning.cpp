#include "coordinator/cli/run/planning.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "coordinator/cli/command.hpp"
#include "coordinator/cli/run/gpu.hpp"
#include "coordinator/cli/run/inspection.hpp"
#include "coordinator/cli/run/tokenizing.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/machine/allocation.hpp"
#include "coordinator/machine/gpus.hpp"
#include "coordinator/machine/processor.hpp"
#include "coordinator/plan/measured_nodes.hpp"
#include "coordinator/plan/plan_times.hpp"
#include "coordinator/plan/planner.hpp"
#include "coordinator/simulate/scheduled_plan.hpp"
#include "coordinator/state/fold.hpp"
#include "storage/base/build_info.hpp"
#include "storage/files/file.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/capture_plan.hpp"
#include "storage/recipe/tokens_section.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::DataSection;
using storage::PlanSection;
using storage::Recipe;

fs::path nearest_existing(fs::path directory) {
  directory = fs::absolute(directory).lexically_normal();
  while (!fs::exists(directory) && directory.has_relative_path())
    directory = directory.parent_path();
  return directory;
}

TokensInfo expected_tokens(const DataSection& data, std::int64_t wanted) {
  const std::int64_t most = data.max_sequences > 0 ? data.max_sequences : wanted;
  const std::int64_t train = std::min(wanted, most);
  return {train, train + data.validation_sequences, data.seq_len};
}

// Without a validation part the whole text is evaluated, whose length is not known before it is
// tokenized.
TokensInfo expected_evaluation(const DataSection& data) {
  constexpr std::int64_t kGuess = 8;
  const std::int64_t all = data.max_sequences > 0 ? data.max_sequences : kGuess;
  return {0, data.validation_sequences > 0 ? data.validation_sequences : all, data.seq_len};
}

// English text under the usual vocabularies. Only to say about how much it is.
constexpr std::uint64_t kBytesPerToken = 4;

// Bytes of the records that are made as this file says; 0 if it does not say it.
std::uint64_t generated_bytes(const std::string& path) {
  const auto asked =
      nlohmann::json::parse(std::ifstream(path), nullptr, /*allow_exceptions=*/false);
  std::uint64_t tokens = 0;
  if (!asked.is_object() || !asked.contains("lengths") || !asked["lengths"].is_array()) return 0;
  for (const auto& length : asked["lengths"])
    tokens += length.is_number_unsigned() ? length.get<std::uint64_t>() : 0;
  const auto samples = asked.find("samples");
  const bool is_number = samples != asked.end() && samples->is_number_unsigned();
  return is_number ? kBytesPerToken * tokens * samples->get<std::uint64_t>() : 0;
}

// Bytes of text after unpacking; 0 where it is missing (check_sources names it) or comes as tokens.
std::uint64_t unpacked_bytes(const storage::DataSource& source) {
  constexpr std::uint64_t kGzipRatio = 3;  // of English
  std::error_code missing;
  const std::uint64_t size = fs::file_size(source.path, missing);
  if (missing || source.format == "tokens") return 0;
  if (source.is_generated()) return generated_bytes(source.path);
  return source.path.ends_with(".gz") ? kGzipRatio * size : size;
}

// A text is evaluated whole, as far as max_sequences goes.
TokensInfo expected_text(const DataSection& data, const storage::DataSource& source) {
  const auto rough = static_cast<std::int64_t>(unpacked_bytes(source) / kBytesPerToken) /
                     std::max(1, data.seq_len);
  const std::int64_t most =
      data.max_sequences > 0 ? std::min<std::int64_t>(data.max_sequences, rough) : rough;
  return {0, std::max<std::int64_t>(1, most), data.seq_len};
}

void fill_missing(PlanTokens& tokens, const Recipe& recipe) {
  if (tokens.transfer.num_sequences == 0) {
    tokens.transfer = expected_tokens(
        recipe.data_transfer, storage::visited_sequences(recipe, storage::DataStage::kTransfer));
  }
  if (tokens.finetune.num_sequences == 0 && recipe.finetune.enabled) {
    tokens.finetune = expected_tokens(
        recipe.data_finetune, storage::visited_sequences(recipe, storage::DataStage::kFinetune));
  }
  if (tokens.evaluate.num_sequences == 0 && !recipe.data_evaluate.sources.empty()) {
    tokens.evaluate = expected_evaluation(recipe.data_evaluate);
  }
  for (std::size_t i = 0; i < tokens.texts.size(); ++i) {
    if (tokens.texts[i].num_sequences == 0)
      tokens.texts[i] = expected_text(recipe.data_evaluate, recipe.texts[i].source);
  }
}

// What is still to be tokenized must be there: a run would end at its first step. The content is
// make_tokens.py's to judge. What may be missing, a line for each.
std::vector<std::string> check_sources(const Recipe& recipe,
                                       const storage::RunLayout& layout,
                                       bool may_be_missing) {
  std::vector<std::string> missing;
  for (const storage::TokensOf& of : missing_tokens(layout, recipe)) {
    const Recipe::Sources sources = recipe.sources(of);
    for (const storage::DataSource& source : sources.list) {
      const std::string file = sources.field + ": " + source.path;
      std::error_code unreadable;  // the reader of the file says why
      const fs::file_status status = fs::status(source.path, unreadable);
      if (may_be_missing && status.type() == fs::file_type::not_found) {
        const std::string line = source.path + ": not here, so its length is not known";
        if (std::find(missing.begin(), missing.end(), line) == missing.end())
          missing.push_back(line);
        continue;
      }
      require(status.type() != fs::file_type::not_found,
              file + ": no such file; put it there, or correct its path in the recipe");
      const std::string why = storage::why_not_a_file(source.path);
      require(why.empty(), file + ": " + why);
      require(fs::file_size(source.path, unreadable) > 0,
              file + ": is empty; give it some text, or take it out of the recipe");
    }
  }
  return missing;
}

// A line about the weight files that were not there; empty if all were.
std::string unseen_text(const storage::ModelDirectory& model) {
  const std::vector<std::string>& files = model.unseen();
  if (files.empty()) return "";
  std::string text = files.front();
  if (files.size() > 1)
    text += " to " + files.back() + " (" + std::to_string(files.size()) + " files)";
  return model.path().string() + " has no " + text +
         ": planned by its config.json alone; the weights were not seen";
}

// Of a text no more is tokenized than its stages visit, and the end that is held out.
StageEstimate tokenizing(const Recipe& recipe, const std::vector<storage::TokensOf>& files) {
  StageEstimate estimate;
  for (const storage::TokensOf& of : files) {
    if (storage::shares_tokens_of(recipe, of)) continue;
    std::uint64_t bytes = 0;
    const Recipe::Sources sources = recipe.sources(of);
    for (const storage::DataSource& source : sources.list) bytes += unpacked_bytes(source);
    const DataSection& data = recipe.data(of.stage);
    if (of.text.empty() && data.split == "documents") {
      const std::int64_t visited = of.stage == storage::DataStage::kEvaluate
                                       ? 0
                                       : storage::visited_sequences(recipe, of.stage);
      const std::int64_t tokens = (visited + data.validation_sequences) * data.seq_len;
      bytes = std::min(bytes, static_cast<std::uint64_t>(tokens) * kBytesPerToken);
    }
    estimate.seconds += tokenizing_seconds(bytes);
  }
  return estimate;
}

std::uint64_t stored_bytes(const storage::RunLayout& layout) {
  if (!fs::exists(layout.journal_directory())) return 0;
  return committed_bytes(fold(storage::replay_journal(layout)).state);
}

bool computes_on_gpus_here(const Recipe& recipe) {
  return computes_on_gpus(recipe, storage::has_cuda(), machine::num_visible_gpus());
}

bool has_machines(const PlanFor& planned) {
  return planned.cluster && !planned.cluster->nodes.empty();
}

std::vector<WorkerKind> workers_of_allocation(const Recipe& recipe) {
  const std::optional<machine::Allocation> allocation = machine::own_allocation();
  if (!allocation) return {};
  std::vector<WorkerKind> kinds = workers_of_this_machine(std::max(1, allocation->tasks_per_node),
                                                          computes_on_gpus_here(recipe));
  kinds.front().name = "nodes of the allocation";
  kinds.front().nodes = allocation->nodes;
  return kinds;
}

PlanLimits limits_of(const Recipe& recipe, const PlanFor& planned, bool has_weights) {
  PlanLimits limits = limits_of_this_machine(nearest_existing(planned.directory));
  limits.stored_bytes = stored_bytes(storage::RunLayout(planned.directory));
  if (has_machines(planned)) {
    if (!planned.is_there) limits.free_disk_bytes = 0;
    hold_against(*planned.cluster, limits);
  } else if (planned.in_allocation) {
    limits.workers = workers_of_allocation(recipe);
  } else if (!has_weights) {
    limits.free_disk_bytes = 0;
  } else {
    limits.workers = workers_of_this_machine(planned.local_workers, computes_on_gpus_here(recipe));
  }
  return limits;
}

// A recipe brought together with its model and what there is of its tokens.
struct Subject {
  storage::ModelDirectory model;
  PlanTokens tokens;
  PlanLimits limits;
  std::vector<std::string> unseen{};  // a line for each thing that the plan rests on unseen
};

Subject subject_of(const Recipe& recipe, const PlanFor& planned) {
  storage::ModelDirectory model = storage::ModelDirectory::open(
      recipe.model.path,
      planned.before_download ? storage::Weights::kOptional : storage::Weights::kRequired);
  const storage::RunLayout layout(planned.directory);
  // Who has the weights has begun: a text that is missing then is a wrong path.
  std::vector<std::string> unseen = check_sources(recipe, layout, !model.unseen().empty());
  const std::string weights = unseen_text(model);
  if (!weights.empty()) unseen.insert(unseen.begin(), weights);
  PlanTokens tokens = read_plan_tokens(layout, recipe, model.config().vocab_size);
  fill_missing(tokens, recipe);
  PlanLimits limits = limits_of(recipe, planned, weights.empty());
  return {std::move(model), std::move(tokens), std::move(limits), std::move(unseen)};
}

// transfer.softmax_layers = "all" or "uniform:N" becomes layers of the model: of N parts of its
// depth the middle one each.
void take_named_layers(Recipe& recipe) {
  storage::SoftmaxLayers& kept = recipe.transfer.softmax_layers;
  if (!kept.all && kept.uniform == 0) return;
  const auto model = storage::ModelDirectory::open(recipe.model.path, storage::Weights::kOptional);
  const int num_layers = model.config().num_hidden_layers;
  const int count = kept.all ? num_layers : kept.uniform;
  require(count <= num_layers,
          "transfer.softmax_layers = \"uniform:" + std::to_string(count) + "\": the model has " +
              std::to_string(num_layers) + " layers; name fewer");
  kept = {};
  for (int i = 0; i < count; ++i) kept.layers.push_back((2 * i + 1) * num_layers / (2 * count));
  for (storage::Variant& variant : recipe.variants) variant.transfer.softmax_layers = kept;
}

// What the machine that plans would take, where the workers are yet to say.
Recipe closed(const Recipe& recipe) {
  Recipe filled = recipe;
  take_named_layers(filled);
  if (filled.plan.layers_per_block == 0)
    filled.plan.layers_per_block = PlanSection{}.layers_per_block;
  if (filled.plan.keep_boundaries == "auto") filled.plan.keep_boundaries = "last";
  return filled;
}

}  // namespace

PlanFor plan_for(const Recipe& recipe,
                 const fs::path& directory,
                 const std::string& cluster_file,
                 std::optional<int> workers) {
  PlanFor planned{directory};
  if (!cluster_file.empty()) planned.cluster = load_cluster(cluster_file);
  planned.local_workers = workers.value_or(recipe.workers.local);
  return planned;
}

bool has_weights(const Recipe& recipe) {
  return storage::ModelDirectory::open(recipe.model.path, storage::Weights::kOptional)
      .unseen()
      .empty();
}

void resolve(Recipe& recipe, const PlanFor& planned) {
  const bool are_known =
      has_machines(planned) || planned.in_allocation || planned.local_workers > 0;
  const std::optional<bool> has_gpus = planned.cluster ? planned.cluster->has_gpus() : std::nullopt;
  if (recipe.plan.compute_dtype == "auto" && (are_known || has_gpus)) {
    const bool has_fast_bf16 = has_gpus.value_or(computes_on_gpus_here(recipe)) ||
                               machine::multiplies_bfloat16_faster(machine::matrix_units());
    recipe.plan.compute_dtype = has_fast_bf16 ? "bf16" : "fp32";
  }
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const std::optional<machine::Allocation> allocation = machine::own_allocation();
  const auto share = [&](int processes) {
    return allocation ? allocation->threads_per_task(cores)
                      : std::max(1, cores / std::max(1, processes));
  };
  // The cores of this machine say nothing of those that other machines have.
  const bool workers_are_here = allocation || (!has_machines(planned) && recipe.workers.local > 0);
  const bool ranks_are_here =
      allocation || (!has_machines(planned) && recipe.finetune.launch == "here");
  if (recipe.workers.threads == 0 && workers_are_here)
    recipe.workers.threads = share(recipe.workers.local);
  if (recipe.finetune.threads == 0 && ranks_are_here)
    recipe.finetune.threads = share(recipe.finetune.ranks);
  take_named_layers(recipe);
  const bool chooses = recipe.plan.layers_per_block == 0 || recipe.plan.keep_boundaries == "auto";
  if (!chooses || !are_known) return;
  const Subject subject = subject_of(recipe, planned);
  choose(recipe,
         subject.model.config(),
         subject.tokens,
         subject.limits,
         scheduling({subject.model.config(), subject.tokens, subject.limits}));
}

Plan plan_of(const Recipe& recipe, const PlanFor& planned) {
  if (!planned.cluster && !planned.in_allocation)
    require_device(recipe, storage::has_cuda(), machine::num_visible_gpus());
  const Subject subject = subject_of(recipe, planned);
  const storage::RunLayout layout(planned.directory);
  const Recipe cut = closed(recipe);
  Plan plan = make_plan(cut, subject.model.config(), subject.tokens, subject.limits);
  schedule_stages(plan, cut, {subject.model.config(), subject.tokens, subject.limits});
  const std::vector<storage::TokensOf> untokenized = missing_tokens(layout, recipe);
  plan.estimates.insert(plan.estimates.begin(), tokenizing(recipe, untokenized));
  plan.warnings.insert(plan.warnings.end(), subject.unseen.begin(), subject.unseen.end());
  return plan;
}

std::vector<KChoice> choices_of(const Recipe& recipe, const PlanFor& planned) {
  const Subject subject = subject_of(recipe, planned);
  return compare_k(closed(recipe),
                   subject.model.config(),
                   subject.tokens,
                   subject.limits,
                   scheduling({subject.model.config(), subject.tokens, subject.limits}));
}

Simulation simulated(const Recipe& recipe, const PlanFor& planned, std::uint64_t seed) {
  const Subject subject = subject_of(recipe, planned);
  const Recipe cut = closed(recipe);
  const Plan plan = make_plan(cut, subject.model.config(), subject.tokens, subject.limits);
  SimulationInput input =
      simulation_of(plan, cut, {subject.model.config(), subject.tokens, subject.limits});
  input.seed = seed;
  return simulate(input);
}

std::optional<UnreadText> unread_text(const Recipe& recipe, const fs::path& directory) {
  const auto tokens = storage::RunLayout::tokens(storage::DataStage::kTransfer);
  if (fs::exists(directory / tokens)) return std::nullopt;
  UnreadText text;
  std::uint64_t unpacked = 0;
  bool is_plain = true;
  for (const storage::DataSource& source : recipe.data_transfer.sources) {
    std::error_code missing;  // check_sources names it
    const std::uint64_t size = fs::file_size(source.path, missing);
    is_plain &= !missing && source.format == "text" && !source.path.ends_with(".gz");
    if (missing || source.format == "tokens") continue;
    text.bytes += size;
    unpacked += unpacked_bytes(source);
  }
  if (text.bytes == 0) return std::nullopt;
  text.rough_sequences = static_cast<std::int64_t>(unpacked / kBytesPerToken) /
                         std::max(1, recipe.data_transfer.seq_len);
  constexpr std::uint64_t kAddedToADocument = 2;  // BOS and EOS
  if (is_plain) {
    text.most_tokens = static_cast<std::int64_t>(
        text.bytes + kAddedToADocument * recipe.data_transfer.sources.size());
  }
  return text;
}

std::optional<PlanProblem> text_problem(const UnreadText& text, const DataSection& data) {
  const std::int64_t least = (std::int64_t{data.validation_sequences} + 1) * data.seq_len;
  if (!text.most_tokens || *text.most_tokens >= least) return std::nullopt;
  return PlanProblem{"data.transfer needs " + std::to_string(data.validation_sequences) +
                         " sequences for validation and at least 1 for training, " +
                         std::to_string(least) + " tokens of text; its sources hold " +
                         bytes_text(text.bytes) + ", at most " + std::to_string(*text.most_tokens) +
                         " tokens",
                     "add text, or lower data.transfer.seq_len or validation_sequences"};
}

}  // namespace hedgerow::coordinator::cli
