#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/run/gpu.hpp"
#include "coordinator/cli/run/planning.hpp"
#include "coordinator/cli/run/whole_job.hpp"
#include "coordinator/cli/tasks/returns.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/plan/measured_nodes.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/status/status.hpp"
#include "storage/files/file.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using storage::ExitCode;

struct InitOptions {
  std::string model, data, format, template_, tokens, cluster, like = "own", out = "recipe.toml";
  // A run and one of its variants, in place of a model and its text; which layers keep softmax.
  std::string from, variant, softmax_layers;
  bool study = false;
};

// Tokens of the longest sequence that the teacher can be asked for. Throws kUsage if our window
// would leave linear attention nothing of it.
int longest_sequence(const storage::ModelDirectory& model,
                     const storage::AttentionSpec& attention) {
  const storage::ModelConfig& config = model.config();
  const int positions = config.max_position_embeddings;
  const int longest = std::min(positions, config.sliding_window.value_or(positions));
  const int exact = attention.longest_exact_sequence();
  require(longest > exact,
          (model.path() / "config.json").string() + ": " +
              (longest < positions ? "sliding_window = " : "max_position_embeddings = ") +
              std::to_string(longest) + " is the longest data.transfer.seq_len, but with " +
              attention.exact_settings() + " a " + std::string(to_string(attention.window)) +
              " window keeps all keys of up to " + std::to_string(exact) +
              " tokens under softmax: linear attention would learn " +
              "nothing; write a recipe with a smaller attention.window_size");
  return longest;
}

// What look_at_source.py says of the text, by the readers that will tokenize it. Without the
// model's tokenizer chats are not rendered. nullopt: interrupted. Throws kUsage for a text that no
// reader takes.
std::optional<json> look_at_source(const InitOptions& options,
                                   const fs::path& model,
                                   Terminal& terminal) {
  std::vector<std::string> words{fs::absolute(options.data).lexically_normal()};
  if (!options.format.empty()) words.insert(words.end(), {"--format", options.format});
  if (!options.template_.empty()) words.insert(words.end(), {"--template", options.template_});
  if (fs::exists(model / "tokenizer.json")) {
    words.insert(words.end(), {"--model", model});
  } else {
    terminal.warn(model.string() +
                  " has no tokenizer.json: whether the text can be tokenized was not seen");
  }
  json seen;
  const bool finished =
      run_python(terminal, "look at the text", "look_at_source.py", words, [&](const json& object) {
        if (object.value("event", "") == "source") seen = object;
      });
  if (!finished) return std::nullopt;
  for (const auto& field : seen.value("unused", json::array())) {
    terminal.warn(options.data + ": the field '" + field.get<std::string>() +
                  "' holds text that is not learned");
  }
  return seen;
}

storage::DataSource source_of(const InitOptions& options, const json& seen) {
  storage::DataSource source;
  source.path = fs::absolute(options.data).lexically_normal().string();
  source.format = seen.value("format", "text");
  source.template_ = seen.value("template", "");
  return source;
}

// kernels/README.md "Choice of features": twice the head dimension pays; beyond 128 the state of a
// key head leaves a GPU's registers.
int chosen_features(int head_dim) {
  constexpr int kMost = 128;
  return std::max(head_dim, std::min(2 * head_dim, kMost));
}

// tests/bench/README.md "Frontier and generation": beyond the length that a student learned at its
// perplexity is 1.4 to 1.6 times smaller with this cap than without, and within it nearly the same
// (one student, one seed).
constexpr int kLinearCap = 100;

// Recipe's defaults and what measured best in the last stage (worker/finetune/README.md "Which
// objective").
void set_own(storage::Recipe& recipe, int head_dim) {
  recipe.attention.feature_dim = chosen_features(head_dim);
  recipe.attention.recall_cache = recipe.attention.default_recall_cache();
  recipe.attention.linear_cap = kLinearCap;
  recipe.finetune.objective = "kl";
  recipe.finetune.trainable = {"lora", "maps", "window_factors"};
  recipe.finetune.learning_rate = 1e-3;
}

// LoLCATs (arXiv 2410.10254) with the attention of its eq. 6, as
// deploy/recipes/smollm2_reference.toml: the rest of it are Recipe's defaults, which a test
// compares.
void set_published(storage::Recipe& recipe, int head_dim) {
  recipe.attention.feature_dim = head_dim;  // half of it columns, mapped twice
  recipe.attention.bias = false;
  recipe.attention.start = storage::FeatureMapStart::kKaiming;
  recipe.attention.key_maps = storage::KeyMaps::kQueryHead;
  recipe.attention.window = storage::WindowLayout::kSliding;
  recipe.attention.num_sinks = 0;
  recipe.attention.recall_cache = 0;
  recipe.transfer.sequences_per_step = 8;  // one at a time, accumulated
  recipe.finetune.sequences_per_step = 8;
}

// The layers that keep softmax beside six that train, from a tenth of the depth to the last at
// equal distances. Six, as the order of variants in three of thirty was not that in all thirty
// (tests/bench/README.md "The papers' findings").
std::vector<int> all_but_six(int num_layers) {
  constexpr int kIntervals = 5;
  const int first = num_layers / 10, last = num_layers - 1;
  std::set<int> trained;
  for (int i = 0; i <= kIntervals; ++i)
    trained.insert(first + ((last - first) * i + kIntervals / 2) / kIntervals);
  std::vector<int> kept;
  for (int layer = 0; layer < num_layers; ++layer)
    if (!trained.contains(layer)) kept.push_back(layer);
  return kept;
}

// Seven attentions that people choose among, on six layers of the model: each differs from the
// recipe's own in what its name says.
void set_study(storage::Recipe& recipe, int num_layers) {
  recipe.transfer.softmax_layers.layers = all_but_six(num_layers);
  recipe.transfer.max_steps = 50;
  recipe.transfer.validate_every = 25;
  recipe.finetune.enabled = false;
  recipe.evaluate.max_sequences = 4;
  const auto add = [&](const std::string& name, const auto& change) {
    storage::Variant variant{
        .name = name, .seeds = 2, .attention = recipe.attention, .transfer = recipe.transfer};
    change(variant);
    recipe.variants.push_back(std::move(variant));
  };
  using storage::Variant;
  add("half-the-features", [](Variant& v) {
    v.attention.feature_dim /= 2;
    v.attention.recall_cache =
        std::min<std::int64_t>(v.attention.recall_cache, v.attention.feature_dim / 2);
  });
  add("no-recall-cache", [](Variant& v) { v.attention.recall_cache = 0; });
  add("no-sinks", [](Variant& v) { v.attention.num_sinks = 0; });
  add("half-the-window", [](Variant& v) {
    v.attention.window_size /= 2;
    v.attention.recall_cache = std::min(v.attention.recall_cache, v.attention.window_size);
  });
  add("hedgehog-exp",
      [](Variant& v) { v.attention.feature_map = storage::FeatureMapKind::kHedgehogExp; });
  add("t2r", [](Variant& v) {  // of as many features: without the negation, twice the columns
    v.attention.feature_map = storage::FeatureMapKind::kT2R;
    v.attention.negation = false;
  });
  add("query-head-maps", [](Variant& v) { v.attention.key_maps = storage::KeyMaps::kQueryHead; });
}

// The number in "500000", "20M". Throws kUsage.
std::int64_t number_of_tokens(const std::string& text) {
  constexpr std::int64_t kMost = 1'000'000'000'000;
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string suffix = text.substr(digits);
  const std::int64_t scale = suffix.empty()  ? 1
                             : suffix == "K" ? 1'000
                             : suffix == "M" ? 1'000'000
                             : suffix == "G" ? 1'000'000'000
                                             : 0;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + digits, number);
  require(digits > 0 && error == std::errc() && scale > 0 && number > 0 && number <= kMost / scale,
          "--tokens " + text +
              ": expected how many tokens each stage visits, from 1 to 1000G: a whole number, or "
              "one of thousands, millions or billions as 500K, 20M, 1G");
  return number * scale;
}

// Whole steps that visit `tokens`, and a line that says so.
std::string set_steps(const std::string& field,
                      std::int64_t tokens,
                      int seq_len,
                      int sequences_per_step,
                      int& max_steps) {
  const std::int64_t per_step = std::int64_t{seq_len} * sequences_per_step;
  // In int: Recipe::validate() says what is too many.
  max_steps = static_cast<int>(
      std::min<std::int64_t>((tokens + per_step - 1) / per_step, std::numeric_limits<int>::max()));
  return field + " = " + std::to_string(max_steps) + ": " + std::to_string(max_steps * per_step) +
         " tokens, in steps of " + std::to_string(sequences_per_step) + " x " +
         std::to_string(seq_len);
}

// Ranks on all GPUs of the cluster, and steps of so many sequences that each pipeline of the mesh
// that the plan chooses has enough micro-batches. A line that says so.
std::string fit_last_stage(storage::Recipe& recipe, const std::string& file) {
  const PlanFor planned{.directory = ".", .cluster = load_cluster(file), .before_download = true};
  int gpus = 0;
  for (const storage::NodeKind& nodes : planned.cluster->nodes)
    gpus = std::max(gpus, nodes.count * nodes.gpus);
  if (gpus == 0) return file + " tells of no GPUs: ranks and steps stay as they are";
  constexpr int kMostSequences = 1024;
  storage::FinetuneSection& finetune = recipe.finetune;
  finetune.ranks = gpus;
  MeshPlan mesh = plan_of(recipe, planned).mesh;
  const auto waits = [&] { return mesh.micro_batches < least_micro_batches(mesh.mesh); };
  while (waits() && finetune.sequences_per_step < kMostSequences) {
    finetune.sequences_per_step *= 2;
    mesh = plan_of(recipe, planned).mesh;
  }
  return "finetune.ranks = " + std::to_string(gpus) + ", a mesh of " +
         storage::mesh_text(mesh.mesh) +
         "; finetune.sequences_per_step = " + std::to_string(finetune.sequences_per_step) + ", " +
         std::to_string(mesh.micro_batches) + " micro-batches a pipeline";
}

// What depends on the model or on the options is filled in.
storage::Recipe recipe_for(const InitOptions& options,
                           const storage::DataSource& source,
                           const storage::ModelDirectory& model) {
  storage::Recipe recipe;
  const int head_dim = model.config().head_dim;
  options.like == "published" ? set_published(recipe, head_dim) : set_own(recipe, head_dim);
  const bool is_directory = fs::is_directory(options.model);
  recipe.model.path =
      is_directory ? fs::absolute(options.model).lexically_normal().string() : options.model;
  recipe.plan.layers_per_block = 0;  // as the plan chooses: no byte of the result depends on it
  const int longest = longest_sequence(model, recipe.attention);
  for (storage::DataSection* data :
       {&recipe.data_transfer, &recipe.data_finetune, &recipe.data_evaluate}) {
    data->sources = {source};
    data->seq_len = std::min(data->seq_len, longest);
  }
  recipe.finetune.top_k = std::min(recipe.finetune.top_k, model.config().vocab_size);
  const MachineGpus gpus = gpus_of_this_machine();
  recipe.workers.local = processes_for(recipe, std::nullopt, gpus).workers;
  recipe.finetune.ranks = processes_for(recipe, std::nullopt, gpus).ranks;
  return recipe;
}

void write_recipe(const storage::Recipe& recipe, const std::string& path) {
  recipe.validate(path);
  const std::string toml = recipe.to_toml();
  storage::File file = storage::File::create_exclusive(path);
  file.write_all(std::as_bytes(std::span(toml)));
  file.sync();
  file.close();
}

void require_new(const std::string& out) {
  const fs::path folder = fs::absolute(out).parent_path();
  require(fs::is_directory(folder),
          "--out " + out + ": the folder " + folder.string() + " does not exist; make it");
  require(!fs::exists(out), out + " exists and is not overwritten; choose another name with --out");
}

// "3,7", "uniform:4", or "kl:4": the four whose return the run found to matter most.
storage::SoftmaxLayers softmax_layers_of(const std::string& text, const storage::RunLayout& run) {
  storage::SoftmaxLayers kept;
  constexpr std::string_view kByKl = "kl:";
  const auto number = [&](std::string_view digits) {
    int value = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    require(error == std::errc() && end == digits.data() + digits.size() && value >= 0,
            "--softmax-layers " + text + ": expected layers as 3,7, or uniform:N or kl:N");
    return value;
  };
  const std::string_view given = text;
  if (given.starts_with(kByKl)) {
    kept.layers = layers_that_matter(run, number(given.substr(kByKl.size())));
  } else if (given.starts_with(storage::SoftmaxLayers::kUniform)) {
    kept.uniform = number(given.substr(storage::SoftmaxLayers::kUniform.size()));
  } else {
    for (std::size_t begin = 0; begin < given.size();) {
      const std::size_t end = std::min(given.find(',', begin), given.size());
      kept.layers.push_back(number(given.substr(begin, end - begin)));
      begin = end + 1;
    }
    std::ranges::sort(kept.layers);
  }
  return kept;
}

ExitCode init_from_run(const InitOptions& options, Terminal& terminal) {
  require(!options.variant.empty(),
          "--from takes the run of a study; --variant says which of its variants (" +
              std::string(storage::kOwnStudent) + ": the recipe's own)");
  require_new(options.out);
  const storage::RunLayout layout(options.from);
  require_run(layout);
  const storage::Recipe study = recipe_of_run(layout);
  storage::Recipe recipe = whole_job(study, options.variant, options.from);
  recipe.transfer.softmax_layers = softmax_layers_of(options.softmax_layers, layout);
  write_recipe(recipe, options.out);
  terminal.print("wrote " + options.out + ": the whole job of " + options.variant + " of " +
                 options.from);
  terminal.say("next: hedgerow plan --recipe " + options.out + "   what it will take");
  terminal.say("      hedgerow run --run DIR --recipe " + options.out);
  terminal.print_json({{"recipe", options.out}, {"variant", options.variant}});
  return ExitCode::kOk;
}

ExitCode run_init(const InitOptions& options, Terminal& terminal) {
  if (!options.from.empty()) return init_from_run(options, terminal);
  require(options.variant.empty() && options.softmax_layers.empty(),
          "--variant and --softmax-layers are of a run; name that with --from RUN");
  require(!options.model.empty() && !options.data.empty(),
          "a model and --data FILE, the text to learn from, are needed; or --from RUN --variant "
          "NAME");
  require(!fs::is_directory(options.data),
          options.data + " is a directory; --data takes one file, and a recipe may list several");
  storage::require_file(options.data);
  require(fs::exists(options.data),
          options.data + ": no such file; --data takes the text to learn from");
  require(fs::file_size(options.data) > 0,
          options.data + ": is empty; --data takes the text to learn from");
  require_new(options.out);
  const auto model = storage::ModelDirectory::open(options.model, storage::Weights::kOptional);
  const InterruptScope interrupts;
  const std::optional<json> seen = look_at_source(options, model.path(), terminal);
  if (!seen) return ExitCode::kInterrupted;
  const storage::DataSource source = source_of(options, *seen);
  storage::Recipe recipe = recipe_for(options, source, model);
  if (!model.unseen().empty()) {
    terminal.say(model.path().string() + " has no " + model.unseen().front() +
                 (model.unseen().size() > 1 ? " and others" : "") +
                 ": the recipe is by its config.json; the weights were not seen");
  }
  std::vector<std::string> steps;
  if (!options.cluster.empty()) steps.push_back(fit_last_stage(recipe, options.cluster));
  if (!options.tokens.empty()) {
    const std::int64_t tokens = number_of_tokens(options.tokens);
    for (const std::string& line : {set_steps("transfer.max_steps",
                                              tokens,
                                              recipe.data_transfer.seq_len,
                                              recipe.transfer.sequences_per_step,
                                              recipe.transfer.max_steps),
                                    set_steps("finetune.max_steps",
                                              tokens,
                                              recipe.data_finetune.seq_len,
                                              recipe.finetune.sequences_per_step,
                                              recipe.finetune.max_steps)})
      steps.push_back(line);
  }
  if (options.study) set_study(recipe, model.config().num_hidden_layers);
  write_recipe(recipe, options.out);
  terminal.print("wrote " + options.out + " for " + model.config().architecture + ", " +
                 std::to_string(model.config().num_hidden_layers) + " layers");
  terminal.print(options.data + ": " + seen->value("what", "") + ", read as format \"" +
                 source.format + "\"" +
                 (source.template_.empty() ? "" : ", template \"" + source.template_ + "\""));
  for (const std::string& line : steps) terminal.print(line);
  terminal.say("next: hedgerow plan --recipe " + options.out + "   what it will take");
  terminal.say("      hedgerow run --run DIR --recipe " + options.out);
  terminal.print_json({{"recipe", options.out},
                       {"model", recipe.model.path},
                       {"format", source.format},
                       {"template", source.template_},
                       {"like", options.like},
                       {"transfer_steps", recipe.transfer.max_steps},
                       {"finetune_steps", recipe.finetune.max_steps},
                       {"architecture", model.config().architecture},
                       {"num_layers", model.config().num_hidden_layers}});
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_init(CLI::App& app) {
  const auto options = std::make_shared<InitOptions>();
  app.add_option("model",
                 options->model,
                 "a Hugging Face model directory, or org/name in the local Hugging Face cache")
      ->type_name("DIR");
  app.add_option("--data", options->data, "the text to learn from")->type_name("FILE");
  one_of(app.add_option("--format",
                        options->format,
                        "how to read it; unless told, what its first records look like"),
         {"text", "jsonl", "alpaca", "records", "chat", "tokens"});
  app.add_option("--template",
                 options->template_,
                 "of jsonl: the text of a record, its fields in braces, as '{question} {answer}'; "
                 "unless told '{text}'")
      ->type_name("TEXT");
  app.add_option("--tokens",
                 options->tokens,
                 "how many each stage visits, in whole steps: 500000, 20M (K, M, G: thousands, "
                 "millions, billions); of a shorter text more than once")
      ->type_name("N");
  app.add_option("--cluster",
                 options->cluster,
                 "the nodes on which it will run: ranks on all their GPUs, and steps large enough "
                 "that no stage of a pipeline waits")
      ->type_name("FILE");
  one_of(app.add_option("--like", options->like, "settings: our own, or the published method's")
             ->capture_default_str(),
         {"own", "published"});
  app.add_flag("--study",
               options->study,
               "seven variants of the attention on six layers, to choose one: 'hedgerow metrics "
               "--variants' shows them");
  app.add_option("--from", options->from, "a study's run: the whole job of its --variant")
      ->type_name("RUN");
  app.add_option("--variant", options->variant, "of --from: its name, or recipe")
      ->type_name("NAME");
  app.add_option("--softmax-layers",
                 options->softmax_layers,
                 "with --from: layers that keep softmax, as 3,7; uniform:N evenly spread; kl:N by "
                 "'hedgerow evaluate --returns layers'")
      ->type_name("WHICH");
  app.add_option("--out", options->out, "the recipe to write")
      ->type_name("FILE")
      ->capture_default_str();
  return [options](Terminal& terminal) { return run_init(*options, terminal); };
}

}  // namespace hedgerow::coordinator::cli
