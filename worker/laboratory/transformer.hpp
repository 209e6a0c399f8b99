// A small transformer as one value of options, on score_attention: what the studies train from
// scratch. Nothing here is shared with the models that hedgerow linearizes, whose shapes and
// numerics are fixed by checkpoints.
//
//   x = embedding (+ positions); per layer x += attention(norm(x)), x += mlp(norm(x)), or with the
//   norm behind each sum; logits = norm(x) head
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/laboratory/attention_spec.hpp"
#include "worker/laboratory/score_attention.hpp"

namespace hedgerow::worker::laboratory {

enum class LayerNormKind { kRms, kLayer };
enum class Positions { kRotary, kLearned };

struct TransformerOptions {
  std::int64_t vocab_size = 40;
  std::int64_t hidden_size = 64;
  std::int64_t num_layers = 2;
  std::int64_t num_heads = 4;
  std::int64_t mlp_size = 128;
  LayerNormKind norm = LayerNormKind::kRms;
  bool norm_first = true;  // before each branch; false: behind each sum
  Positions positions = Positions::kRotary;
  std::int64_t max_positions = 128;          // of kLearned
  bool tied_head = false;                    // the head is the embedding
  AttentionSpec attention;                   // whose `causal` makes a decoder
  std::vector<std::int64_t> layer_features;  // num_features of each layer; empty: the spec's
  std::uint64_t seed = 0;                    // of the weights and of random directions

  // Throws kUsage naming the field.
  void validate() const;
};

class Transformer {
 public:
  // Draws all weights from options.seed. Throws kUsage as validate() does.
  explicit Transformer(const TransformerOptions& options);

  // ids int64 [B, T] -> hidden states behind the last norm [B, T, M]. is_token: as of
  // AttentionParameters. Throws kUsage where T is beyond learned positions.
  [[nodiscard]] at::Tensor hidden(const at::Tensor& ids, const at::Tensor& is_token = {}) const;
  // Hidden states [.., M] -> [.., V].
  [[nodiscard]] at::Tensor logits(const at::Tensor& hidden) const;
  // Mean entropy of the attention's rows over layers, heads and tokens, in nats.
  [[nodiscard]] double entropy(const at::Tensor& ids) const;

  [[nodiscard]] const std::vector<at::Tensor>& parameters() const { return parameters_; }
  [[nodiscard]] std::int64_t num_parameters() const;
  [[nodiscard]] const TransformerOptions& options() const { return options_; }

 private:
  struct Layer {
    at::Tensor norm1, norm1_bias, norm2, norm2_bias;
    at::Tensor qkv, out, up, up_bias, down, down_bias;
    at::Tensor input_gate, input_gate_bias, output_gate, output_gate_bias;
    AttentionSpec spec;
    AttentionParameters map;  // weight, bias and omega
  };

  at::Tensor trained(at::Tensor initial);
  at::Tensor drawn(std::int64_t rows, std::int64_t columns, double deviation);
  Layer make_layer(std::int64_t index);
  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const;
  at::Tensor embed(const at::Tensor& ids) const;
  at::Tensor rotate(const at::Tensor& x) const;
  // y [B, T, M]; adds the entropy of the weights to `entropy` where it is not null.
  at::Tensor attention(const Layer& layer,
                       const at::Tensor& x,
                       const at::Tensor& is_token,
                       double* entropy) const;
  at::Tensor run(const at::Tensor& ids, const at::Tensor& is_token, double* entropy) const;

  TransformerOptions options_;
  at::Generator generator_;
  std::vector<at::Tensor> parameters_;
  at::Tensor embedding_, positions_, head_, last_norm_, last_norm_bias_;
  std::vector<Layer> layers_;
};

}  // namespace hedgerow::worker::laboratory
