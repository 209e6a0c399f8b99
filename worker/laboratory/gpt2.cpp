#include "worker/laboratory/gpt2.hpp"

#include <array>
#include <string>
#include <utility>

namespace hedgerow::worker::laboratory {
namespace {

// Ours, theirs.
constexpr std::array<std::pair<const char*, const char*>, 4> kModelNames{{
    {"embedding", "transformer.wte.weight"},
    {"positions", "transformer.wpe.weight"},
    {"last_norm", "transformer.ln_f.weight"},
    {"last_norm_bias", "transformer.ln_f.bias"},
}};
constexpr std::array<std::pair<const char*, const char*>, 12> kLayerNames{{
    {"norm1", "ln_1.weight"},
    {"norm1_bias", "ln_1.bias"},
    {"qkv", "attn.c_attn.weight"},
    {"qkv_bias", "attn.c_attn.bias"},
    {"out", "attn.c_proj.weight"},
    {"out_bias", "attn.c_proj.bias"},
    {"norm2", "ln_2.weight"},
    {"norm2_bias", "ln_2.bias"},
    {"up", "mlp.c_fc.weight"},
    {"up_bias", "mlp.c_fc.bias"},
    {"down", "mlp.c_proj.weight"},
    {"down_bias", "mlp.c_proj.bias"},
}};

}  // namespace

TransformerOptions gpt2_options(std::int64_t vocab_size,
                                std::int64_t hidden_size,
                                std::int64_t num_layers,
                                std::int64_t num_heads,
                                std::int64_t max_positions) {
  TransformerOptions options;
  options.vocab_size = vocab_size;
  options.hidden_size = hidden_size;
  options.num_layers = num_layers;
  options.num_heads = num_heads;
  options.mlp_size = 4 * hidden_size;
  options.norm = LayerNormKind::kLayer;
  options.positions = Positions::kLearned;
  options.max_positions = max_positions;
  options.tied_head = true;
  options.projection_biases = true;
  options.tanh_gelu = true;
  options.norm_epsilon = 1e-5;
  return options;
}

std::vector<Gpt2Name> gpt2_names(std::int64_t num_layers) {
  std::vector<Gpt2Name> names;
  for (const auto& [ours, theirs] : kModelNames) names.push_back({ours, theirs});
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    const std::string number = std::to_string(layer) + ".";
    for (const auto& [ours, theirs] : kLayerNames)
      names.push_back({"layer." + number + ours, "transformer.h." + number + theirs});
  }
  return names;
}

}  // namespace hedgerow::worker::laboratory
