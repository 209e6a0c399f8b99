// A small transformer as one value of options, on score_attention: what the studies train from
// scratch. Nothing here is shared with the models that hedgerow linearizes, whose shapes and
// numerics are fixed by checkpoints.
//
//   x = embedding (+ positions); per layer x += attention(norm(x)), x += mlp(norm(x)), or with the
//   norm behind each sum; logits = norm(x) head
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/laboratory/score_attention.hpp"
#include "worker/laboratory/score_spec.hpp"

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
  bool norm_first = true;       // before each branch; false: behind each sum
  bool norm_embedding = false;  // a norm of the embedding, and none at the end (BERT)
  Positions positions = Positions::kRotary;
  std::int64_t max_positions = 128;  // of kLearned
  bool tied_head = false;            // the head is the embedding
  bool projection_biases = false;    // of q, k, v and of attention's output (GPT-2)
  bool tanh_gelu = false;            // GPT-2's gelu_new in place of the exact one
  double norm_epsilon = 1e-6;
  ScoreSpec attention;                       // whose `causal` makes a decoder
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

  // Mean over layers, heads and tokens of the cross-entropy of these attentions' weights under
  // softmax's of the same q and k (000 eq. 3), each layer reading what softmax put out. A gradient
  // flows to map_parameters() alone. Throws kUsage where weights can be negative.
  [[nodiscard]] at::Tensor map_loss(const at::Tensor& ids, const at::Tensor& is_token = {}) const;

  // Copies every parameter that `other` has under the same name: all but the maps, where the two
  // differ in the attention only.
  void copy_from(const Transformer& other) const;
  // Writes one parameter, by its name in named(). Throws kUsage naming it where there is none, or
  // of another shape.
  void assign(std::string_view name, const at::Tensor& value) const;

  struct Named {
    std::string name;  // "embedding", "layer.0.qkv"
    at::Tensor tensor;
  };
  [[nodiscard]] const std::vector<Named>& named() const { return named_; }
  [[nodiscard]] std::vector<at::Tensor> parameters() const;
  [[nodiscard]] std::vector<at::Tensor> map_parameters() const;
  [[nodiscard]] const TransformerOptions& options() const { return options_; }

 private:
  struct Layer {
    at::Tensor norm1, norm1_bias, norm2, norm2_bias;
    at::Tensor qkv, qkv_bias, out, out_bias, up, up_bias, down, down_bias;
    at::Tensor input_gate, input_gate_bias, output_gate, output_gate_bias;
    ScoreSpec spec;
    AttentionParameters map;  // weight, bias and omega
  };

  // What a run measures beside its output; null members are not measured.
  struct Probe {
    double* entropy = nullptr;       // sum over layers
    at::Tensor* map_loss = nullptr;  // the same; layers then put out softmax's values
  };

  at::Tensor trained(const std::string& name, at::Tensor initial);
  at::Tensor drawn(const std::string& name,
                   std::int64_t rows,
                   std::int64_t columns,
                   double deviation);
  void add_gates(Layer& layer, const std::string& name, double deviation);
  void add_map(Layer& layer, const std::string& name, std::uint64_t seed);
  Layer make_layer(std::int64_t index);
  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const;
  at::Tensor embed(const at::Tensor& ids) const;
  at::Tensor rotate(const at::Tensor& x) const;
  at::Tensor add_map_loss(const Layer& layer,
                          const at::Tensor& q,
                          const at::Tensor& k,
                          const AttentionParameters& parameters,
                          at::Tensor& sum) const;
  // y [B, T, M].
  at::Tensor attention(const Layer& layer,
                       const at::Tensor& x,
                       const at::Tensor& is_token,
                       const Probe& probe) const;
  at::Tensor run(const at::Tensor& ids, const at::Tensor& is_token, const Probe& probe) const;

  TransformerOptions options_;
  at::Generator generator_;
  std::vector<Named> named_;
  at::Tensor embedding_, positions_, head_;
  at::Tensor model_norm_, model_norm_bias_;  // at the end, or of the embedding
  std::vector<Layer> layers_;
};

}  // namespace hedgerow::worker::laboratory
