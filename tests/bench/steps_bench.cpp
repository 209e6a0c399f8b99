// One repeat of what a worker spends its life on, timed on request, so that tests/bench/run can
// alternate it with a PyTorch opponent (tests/bench/opponents/protocol.py has the protocol):
//   steps_bench capture|transfer|logits|finetune|decode --model DIR --tokens FILE [--sequences N ...]
// prints {"ready": true, ...}; for each line "go" on stdin one repeat and {"seconds": ..., ...};
// for "phases" one repeat and {"phases": {"attention": seconds, ...}}; for "memory" one repeat that
// begins with nothing kept, and {"step_mib": ...}, its peak beside the weights.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "coordinator/machine/memory.hpp"
#include "step_phases.hpp"
#include "storage/base/error.hpp"
#include "storage/shards/tokens_file.hpp"
#include "worker/device/device.hpp"
#include "worker/device/large_blocks.hpp"
#include "worker/finetune/trainer.hpp"
#include "worker/generate/generator.hpp"
#include "worker/logits/top_logits.hpp"
#include "worker/model/block_runner.hpp"
#include "worker/model/weights.hpp"
#include "worker/task/stopwatch.hpp"
#include "worker/transfer/layer_trainer.hpp"

namespace hedgerow {
namespace {

using nlohmann::json;

struct Options {
  std::string model, tokens, window = "terraced", compute_dtype = "auto";
  std::string objective = "ce", device = "cpu";
  int sequences = 4, seq_len = 512, rows = 4, threads = 0, layers = 0, top_k = 256;
  int prompt = 32, recall_cache = 0;
  bool bias = false, graph = false;
};

// The first tokens of the file, joined and cut anew to the wanted length.
storage::TokenSequences cut_tokens(const Options& options, int vocab_size) {
  const auto file = storage::load_tokens(options.tokens, vocab_size);
  storage::TokenSequences cut = file;
  cut.num_sequences = cut.num_train = options.sequences;
  cut.seq_len = options.seq_len;
  const auto count = static_cast<std::size_t>(cut.num_sequences * cut.seq_len);
  if (file.input_ids.size() < count) {
    throw storage::Error(storage::ErrorKind::kUsage,
                         options.tokens + " holds " + std::to_string(file.input_ids.size()) +
                             " tokens, --sequences times --seq-len needs " + std::to_string(count) +
                             "; ask for fewer, or give a longer file");
  }
  cut.input_ids.resize(count);
  cut.loss_mask.assign(count, 1);
  cut.document_starts.resize(count);
  return cut;
}

at::Tensor ids_of(const storage::TokenSequences& tokens) {
  return at::tensor(at::ArrayRef<std::int32_t>(tokens.input_ids), at::kInt)
      .to(at::kLong)
      .reshape({tokens.num_sequences, tokens.seq_len});
}

struct Bench {
  explicit Bench(const Options& given)
      : options(given),
        model(storage::ModelDirectory::open(given.model)),
        config(model.config()),
        tokens(cut_tokens(given, config.vocab_size)),
        device(worker::resolve_device(given.device)),
        input_ids(ids_of(tokens).to(device)),
        dtype(worker::resolve_compute_dtype(given.compute_dtype, device)),
        outer(worker::load_outer(model, dtype, device)),
        rope(worker::make_rope_table(config, given.seq_len, device)) {
    if (given.layers > 0) config.num_hidden_layers = given.layers;
    recipe.attention.window = storage::window_layout_from_string(given.window);
    recipe.attention.bias = given.bias;
    recipe.attention.feature_dim = config.head_dim;
    recipe.finetune.sequences_per_step = given.sequences;
    recipe.finetune.objective = given.objective;
  }

  // A model deeper than the one on disk has that one's layers again.
  worker::LayerWeights load_layer(int i) const {
    return worker::load_layer(model, i % model.config().num_hidden_layers, dtype, device);
  }

  std::vector<worker::LayerWeights> load_layers() const {
    std::vector<worker::LayerWeights> layers;
    for (int i = 0; i < config.num_hidden_layers; ++i) {
      layers.push_back(load_layer(i));
      worker::pack_layer(layers.back(), options.seq_len);
    }
    return layers;
  }

  // Calls body with the embedded rows of each forward.
  void each_forward(const std::function<void(const at::Tensor&)>& body) const {
    for (const at::Tensor& ids : input_ids.split(options.rows))
      body(worker::embed(ids, outer.embed_tokens));
  }

  Options options;
  storage::ModelDirectory model;
  storage::ModelConfig config;
  storage::TokenSequences tokens;
  at::Device device;
  at::Tensor input_ids;
  at::ScalarType dtype;
  worker::OuterWeights outer;
  worker::RopeTable rope;
  storage::Recipe recipe;
};

using Repeat = std::function<json()>;

Repeat capture_repeat(const std::shared_ptr<Bench>& bench) {
  const auto runner =
      std::make_shared<worker::BlockRunner>(bench->config, 0, bench->load_layers(), at::kBFloat16);
  return [bench, runner] {
    bench->each_forward([&](const at::Tensor& hidden_states) {
      runner->run(hidden_states, bench->rope, [](int, const worker::Qkv& qkv) {
        return worker::teacher_attention(qkv);
      });
    });
    return json::object();
  };
}

// An optimizer step of every layer: the teacher's pass and, in each layer, accumulate; then all
// updates.
Repeat transfer_repeat(const std::shared_ptr<Bench>& bench) {
  const auto runner =
      std::make_shared<worker::BlockRunner>(bench->config, 0, bench->load_layers(), at::kBFloat16);
  const auto trainers = std::make_shared<std::vector<worker::LayerTrainer>>();
  for (int i = 0; i < bench->config.num_hidden_layers; ++i)
    trainers->emplace_back(i, bench->recipe, bench->config, 0, bench->device);
  return [bench, runner, trainers] {
    const double share = static_cast<double>(bench->options.rows) / bench->options.sequences;
    const worker::Attend attend = [&](int layer, const worker::Qkv& qkv) {
      return trainers->at(static_cast<std::size_t>(layer)).accumulate(qkv, share);
    };
    bench->each_forward([&](const at::Tensor& hidden_states) {
      runner->run(
          hidden_states, bench->rope, attend, {.finish_last = false, .attend_batched = true});
    });
    for (auto& trainer : *trainers) trainer.step();
    return json::object();
  };
}

// The teacher's logits of all rows, and with top_k their top as it is stored.
Repeat logits_repeat(const std::shared_ptr<Bench>& bench) {
  const auto runner =
      std::make_shared<worker::BlockRunner>(bench->config, 0, bench->load_layers(), at::kBFloat16);
  return [bench, runner] {
    std::size_t bytes = 0;
    bench->each_forward([&](const at::Tensor& hidden_states) {
      const at::Tensor out =
          runner->run(hidden_states, bench->rope, [](int, const worker::Qkv& qkv) {
            return worker::teacher_attention(qkv);
          });
      for (const at::Tensor& rows : out.flatten(0, 1).split(256)) {
        const at::Tensor logits = worker::logits(rows, bench->outer, bench->config);
        if (bench->options.top_k > 0)
          bytes += encode(worker::top_logits(logits, bench->options.top_k)).size();
      }
    });
    return json{{"bytes", bytes}};
  };
}

worker::Student untrained_student(const Bench& bench) {
  storage::AttentionSpec spec = bench.recipe.attention;
  spec.recall_cache = bench.options.recall_cache;
  worker::Student student{.attention = spec, .options = spec};
  const std::int64_t heads = bench.config.num_attention_heads;
  const std::int64_t key_maps = spec.num_key_maps(heads, bench.config.num_key_value_heads);
  for (int i = 0; i < bench.config.num_hidden_layers; ++i) {
    const at::Tensor noise =
        at::randn({heads, bench.config.head_dim, spec.projected_dim()}, at::kDouble);
    const at::Tensor layer = kernels::start_feature_map(spec.start, noise).to(bench.device);
    const at::Tensor bias =
        spec.bias ? at::zeros({heads, spec.projected_dim()}, bench.device) : at::Tensor();
    const auto of_keys = [&](const at::Tensor& x) {
      return x.defined() ? x.slice(0, 0, heads, heads / key_maps).clone() : x;
    };
    student.layers.emplace_back(
        kernels::HybridParameters{{layer, bias},
                                  {of_keys(layer), of_keys(bias)},
                                  at::full({heads}, spec.window_factor, at::device(bench.device).dtype(at::kFloat))});
  }
  return student;
}

Repeat finetune_repeat(const std::shared_ptr<Bench>& bench) {
  const std::shared_ptr<worker::Communicator> alone = worker::make_single_communicator();
  worker::TrainerOptions options{.finetune = bench->recipe.finetune, .device = bench->device};
  if (bench->recipe.finetune.learns_from_teacher()) {
    // Whose probabilities they are makes no difference to the time.
    const auto top = worker::top_logits(
        at::randn({bench->options.seq_len, bench->config.vocab_size}) * 4.0, bench->options.top_k);
    options.teacher = [top](std::int64_t) { return top; };
    options.sequences.emplace().num_train = bench->tokens.num_train;
  }
  const auto trainer = std::make_shared<worker::FinetuneTrainer>(
      bench->config,
      untrained_student(*bench),
      bench->outer,
      [&](int i) { return bench->load_layer(i); },
      bench->tokens,
      options,
      *alone);
  return [bench, alone, trainer] { return json{{"loss", trainer->step().loss}}; };
}

// --seq-len new tokens for each of --sequences prompts of --prompt tokens.
Repeat decode_repeat(const std::shared_ptr<Bench>& bench) {
  const auto generator = std::make_shared<worker::Generator>(
      bench->config, bench->outer, bench->load_layers(), untrained_student(*bench));
  std::vector<std::vector<std::int64_t>> prompts;
  for (int row = 0; row < bench->options.sequences; ++row) {
    prompts.emplace_back();
    for (std::int64_t i = 0; i < bench->options.prompt; ++i)
      prompts.back().push_back((7 * i + row) % bench->config.vocab_size);
  }
  worker::GenerateOptions options;
  options.max_new_tokens = bench->options.seq_len;
  options.end_tokens = {-1};
  options.records_steps = bench->options.graph;
  return [generator, prompts, options] {
    struct Rows final : worker::GenerationObserver {
      void on_row(std::int64_t /*row*/, const std::vector<std::int64_t>& ids) override {
        tokens += std::ssize(ids);
        for (const std::int64_t id : ids) hash = hash * 1099511628211U + static_cast<std::uint64_t>(id);
      }
      std::int64_t tokens = 0;
      std::uint64_t hash = 0;  // of what was said
    } rows;
    generator->run(prompts, options, rows);
    return json{{"new_tokens", rows.tokens}, {"hash", rows.hash}};
  };
}

json timed(const Repeat& repeat, const at::Device& device) {
  const worker::Stopwatch clock;
  json reply = repeat();
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  reply["seconds"] = clock.seconds();
  return reply;
}

json measured(const Repeat& repeat) {
  worker::release_kept_blocks();
  machine::reset_resident_peak();  // or loading the weights would hide what a step takes
  const std::uint64_t before = machine::resident_memory().now;
  repeat();
  return {{"step_mib", static_cast<double>(machine::resident_memory().peak - before) / (1 << 20)}};
}

void serve(const Repeat& repeat, const Options& options, const at::Device& device) {
  repeat();
  std::cout << json{{"ready", true},
                    {"tokens", options.sequences * options.seq_len},
                    {"threads", at::get_num_threads()},
                    {"compute_dtype", options.compute_dtype}}
            << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "go") {
      std::cout << timed(repeat, device) << std::endl;
    } else if (line == "phases") {
      std::cout << json{{"phases", bench::phases_of([&] { repeat(); })}} << std::endl;
    } else if (line == "memory") {
      std::cout << measured(repeat) << std::endl;
    } else {
      std::cout << json{{"error", "request: expected go, phases or memory, found '" + line + "'"}}
                << std::endl;
    }
  }
}

int run(int argc, char** argv) {
  CLI::App app{"Times one repeat of a stage's inner loop on request"};
  Options options;
  std::string what;
  app.add_option("stage", what)
      ->required()
      ->check(CLI::IsMember({"capture", "transfer", "logits", "finetune", "decode"}));
  app.add_option("--model", options.model)->required();
  app.add_option("--tokens", options.tokens)->required();
  app.add_option("--sequences", options.sequences, "A repeat's sequences");
  app.add_option("--seq-len", options.seq_len);
  app.add_option("--rows", options.rows, "Sequences of one forward");
  app.add_option("--threads", options.threads);
  app.add_option("--layers", options.layers, "So many layers, of a deeper model those on disk again; 0: all");
  app.add_option("--window", options.window);
  app.add_flag("--bias", options.bias);
  app.add_option("--prompt", options.prompt, "decode: tokens of a prompt");
  app.add_option("--recall-cache", options.recall_cache, "decode: keys a kv head that stay exact behind the window");
  app.add_flag("--graph", options.graph, "decode: steps as one CUDA graph");
  app.add_option("--top-k", options.top_k, "logits: kept of a position; 0: none");
  app.add_option("--objective", options.objective, "finetune")->check(CLI::IsMember({"ce", "kl"}));
  app.add_option("--device", options.device)->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--compute-dtype", options.compute_dtype)
      ->check(CLI::IsMember({"auto", "bf16", "fp32"}));
  CLI11_PARSE(app, argc, argv);
  worker::keep_large_blocks();  // as the worker does
  if (options.threads > 0) at::set_num_threads(options.threads);
  const auto bench = std::make_shared<Bench>(options);
  serve(what == "capture"    ? capture_repeat(bench)
        : what == "transfer" ? transfer_repeat(bench)
        : what == "logits"   ? logits_repeat(bench)
        : what == "decode"   ? decode_repeat(bench)
                             : finetune_repeat(bench),
        options,
        bench->device);
  return 0;
}

}  // namespace
}  // namespace hedgerow

int main(int argc, char** argv) {
  try {
    return hedgerow::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
