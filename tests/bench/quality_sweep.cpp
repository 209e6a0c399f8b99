// Attention transfer of a whole model under many recipes at once, for choosing defaults: the
// teacher runs a single time, layer by layer, and each layer's q, k and v train every recipe with
// every seed (a layer is a problem of its own, worker/transfer/layer_trainer.hpp). Then each
// student is evaluated on each text. A run of the system gives the same student, but for its
// shards' rounding. One JSON line a recipe and seed:
//   {"recipe", "seed", "steps", "feature_dim", "state_bytes", "mse_mean", "mse_worst",
//    "texts": {name: {"perplexity", "control", "teacher", "kl", "kl_control", "gap_closed"}}}
// state_bytes: kv_state and k_state of all layers, of one sequence.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "storage/model/model_config.hpp"
#include "storage/recipe/recipe.hpp"
#include "storage/shards/tokens_file.hpp"
#include "worker/device/large_blocks.hpp"
#include "worker/evaluate/evaluate_task.hpp"
#include "worker/model/attention_options.hpp"
#include "worker/model/block_runner.hpp"
#include "worker/model/tensor_bytes.hpp"
#include "worker/transfer/layer_trainer.hpp"

namespace {

using namespace hedgerow;
using namespace hedgerow::worker;

struct Options {
  std::string model, tokens;
  std::vector<std::string> recipes, texts;  // texts: name=FILE
  std::vector<std::uint64_t> seeds = {0};
  std::vector<int> layers = {};  // none: all
  std::int64_t sequences = 16;   // of each text
  bool fp32 = false;
};

struct Variant {
  std::string name;
  std::uint64_t seed;
  storage::Recipe recipe;
  Student student;
  std::vector<double> mse = {};  // a layer
};

// One layer's inputs of all sequences, the validation's behind the others.
struct LayerInputs {
  std::vector<Qkv> sequences;

  [[nodiscard]] Qkv batch(const std::vector<std::int64_t>& indices) const {
    std::vector<at::Tensor> q, k, v;
    for (const std::int64_t i : indices) {
      const Qkv& one = sequences[static_cast<std::size_t>(i)];
      q.push_back(one.q);
      k.push_back(one.k);
      v.push_back(one.v);
    }
    return {at::cat(q), at::cat(k), at::cat(v)};
  }
};

void train(Variant& variant,
           int layer,
           const LayerInputs& inputs,
           std::int64_t num_train,
           const storage::ModelConfig& config) {
  const storage::TransferSection& transfer = variant.recipe.transfer;
  LayerTrainer trainer(layer, variant.recipe, config, variant.seed, at::kCPU);
  const auto validate = [&](std::int64_t step) {
    for (std::int64_t i = 0; i < transfer.validation_sequences; ++i) {
      const Qkv qkv = inputs.batch({num_train + i});
      trainer.validate(qkv, teacher_attention(qkv));
    }
    trainer.finish_validation(step);
  };
  for (std::int64_t step = 0; step < transfer.max_steps; ++step) {
    if (step % transfer.validate_every == 0) validate(step);
    std::vector<std::int64_t> indices;
    for (std::int64_t i = 0; i < transfer.sequences_per_step; ++i)
      indices.push_back((step * transfer.sequences_per_step + i) % num_train);
    trainer.accumulate(inputs.batch(indices), 1.0);
    trainer.step();
  }
  validate(transfer.max_steps);
  std::map<std::string, storage::OwnedTensor> tensors;
  trainer.export_best(tensors);
  const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
  const auto find = [&](const std::string& name) {
    const auto found = tensors.find(prefix + name);
    return found == tensors.end() ? at::Tensor() : to_tensor(found->second);
  };
  kernels::HybridParameters& parameters =
      variant.student.layers[static_cast<std::size_t>(layer)].emplace();
  parameters.q = {find("feature_map_q.mlp.layer"), find("feature_map_q.mlp.bias")};
  parameters.k = {find("feature_map_k.mlp.layer"), find("feature_map_k.mlp.bias")};
  parameters.window_factors = find("window_factors").flatten();
  variant.mse.push_back(trainer.result().at("mse").get<double>());
}

std::vector<Variant> variants_of(const Options& options, const storage::ModelConfig& config) {
  std::vector<Variant> variants;
  for (const std::string& path : options.recipes) {
    const auto recipe = storage::Recipe::load(path);
    for (const std::uint64_t seed : options.seeds) {
      Student student{recipe.attention, hybrid_options(recipe.attention)};
      student.layers.resize(static_cast<std::size_t>(config.num_hidden_layers));
      variants.push_back({std::filesystem::path(path).stem(), seed, recipe, std::move(student)});
    }
  }
  return variants;
}

void report(const Variant& variant,
            const storage::ModelDirectory& model,
            const Options& options,
            at::ScalarType dtype) {
  const storage::ModelConfig& config = model.config();
  const storage::AttentionSpec& spec = variant.recipe.attention;
  const std::int64_t states =
      spec.num_key_maps(config.num_attention_heads, config.num_key_value_heads);
  nlohmann::json line = {
      {"recipe", variant.name},
      {"seed", variant.seed},
      {"steps", variant.recipe.transfer.max_steps},
      {"feature_dim", spec.feature_dim},
      {"state_bytes",
       config.num_hidden_layers * states * spec.feature_dim * (config.head_dim + 1) * 4},
      {"mse_mean", at::tensor(variant.mse, at::kDouble).mean().item<double>()},
      {"mse_worst", *std::max_element(variant.mse.begin(), variant.mse.end())}};
  for (const std::string& text : options.texts) {
    const std::size_t equals = text.find('=');
    const auto tokens = storage::load_tokens(text.substr(equals + 1), config.vocab_size);
    EvaluateOptions evaluation;
    evaluation.compute_dtype = dtype;
    evaluation.student = &variant.student;
    const Evaluation found =
        evaluate(model, tokens, evaluation_sequences(tokens, options.sequences), evaluation);
    const auto& control = *found.column(Column::kControl);
    const auto& student = *found.column(Column::kStudent);
    line["texts"][text.substr(0, equals)] = {
        {"perplexity", student.all.perplexity()},
        {"control", control.all.perplexity()},
        {"teacher", found.column(Column::kTeacher)->all.perplexity()},
        {"kl", student.all.kl},
        {"kl_control", control.all.kl},
        {"gap_closed", found.gap_closed().value_or(0.0)}};
  }
  std::cout << line << std::endl;
}

void sweep(const Options& options) {
  const at::ScalarType dtype = options.fp32 ? at::kFloat : at::kBFloat16;
  const auto model = storage::ModelDirectory::open(options.model);
  const auto tokens = storage::load_tokens(options.tokens, model.config().vocab_size);
  const RopeTable rope = make_rope_table(model.config(), tokens.seq_len, at::kCPU);
  std::vector<Variant> variants = variants_of(options, model.config());
  std::vector<at::Tensor> streams;
  {
    const OuterWeights outer = load_outer(model, dtype, at::kCPU);
    for (std::int64_t i = 0; i < tokens.num_sequences; ++i) {
      const auto ids = tokens.sequence(i);
      const at::Tensor row = at::empty({1, tokens.seq_len}, at::kLong);
      std::copy(ids.begin(), ids.end(), row.data_ptr<std::int64_t>());
      streams.push_back(embed(row, outer.embed_tokens));
    }
  }
  const int last = options.layers.empty()
                       ? model.config().num_hidden_layers - 1
                       : *std::max_element(options.layers.begin(), options.layers.end());
  for (int layer = 0; layer <= last; ++layer) {
    const bool trains = options.layers.empty() ||
                        std::count(options.layers.begin(), options.layers.end(), layer) > 0;
    LayerInputs inputs;
    {
      const c10::NoGradGuard no_grad;
      LayerWeights weights = load_layer(model, layer, dtype, at::kCPU);
      pack_layer(weights, tokens.seq_len);
      const BlockRunner runner(model.config(), layer, {std::move(weights)}, dtype);
      for (at::Tensor& stream : streams) {
        stream = runner.run(stream, rope, [&](int, const Qkv& qkv) {
          if (trains) inputs.sequences.push_back({qkv.q.clone(), qkv.k.clone(), qkv.v.clone()});
          return teacher_attention(qkv);
        });
      }
    }
    if (!trains) continue;
    for (Variant& variant : variants)
      train(variant, layer, inputs, tokens.num_train, model.config());
    std::cerr << "layer " << layer << "\n";
  }
  for (const Variant& variant : variants) report(variant, model, options, dtype);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Attention transfer under many recipes from one pass of the teacher, as JSON lines");
  app.add_option("--model", options.model, "the teacher's directory")->required();
  app.add_option("--tokens", options.tokens, "tokens file to train on and validate with")
      ->required();
  app.add_option("--text", options.texts, "name=FILE, a tokens file to evaluate; any number")
      ->required()
      ->allow_extra_args(false);
  app.add_option("--seeds", options.seeds)->delimiter(',');
  app.add_option("--layers", options.layers, "which are trained; the others keep softmax")
      ->delimiter(',');
  app.add_option("--sequences", options.sequences, "of each text")->capture_default_str();
  app.add_flag("--fp32", options.fp32, "instead of bf16");
  app.add_option("recipes", options.recipes, "recipes: [attention] and [transfer] count")
      ->required();
  CLI11_PARSE(app, argc, argv);
  keep_large_blocks();
  try {
    sweep(options);
  } catch (const std::exception& error) {
    std::cerr << "quality_sweep: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
