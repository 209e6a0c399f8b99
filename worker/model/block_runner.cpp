#include "worker/model/block_runner.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "kernels/softmax_attention.hpp"

namespace hedgerow::worker {
namespace {

at::Tensor join(const std::vector<at::Tensor>& parts) {
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

Qkv join(const std::vector<Qkv>& parts) {
  std::vector<at::Tensor> q, k, v;
  for (const Qkv& part : parts) {
    q.push_back(part.q);
    k.push_back(part.k);
    v.push_back(part.v);
  }
  return {join(q), join(k), join(v)};
}

}  // namespace

std::vector<at::Tensor> split_batch(const at::Tensor& batch) { return batch.split(1); }

at::Tensor teacher_attention(const Qkv& qkv) {
  return kernels::softmax_attention_by_sequence(qkv.q, qkv.k, qkv.v);
}

BlockRunner::BlockRunner(const storage::ModelConfig& config,
                         int first_layer,
                         std::vector<LayerWeights> layers,
                         at::ScalarType stream)
    : config_(config), first_layer_(first_layer), layers_(std::move(layers)), stream_(stream) {}

at::Tensor BlockRunner::run(const at::Tensor& hidden_states,
                            const RopeTable& table,
                            const Attend& attend,
                            const RunOptions& options) const {
  const c10::NoGradGuard no_grad;
  const std::int64_t tokens = hidden_states.size(1);
  const LayerContext context{
      config_, {table.cos.narrow(0, 0, tokens), table.sin.narrow(0, 0, tokens)}, stream_};
  const int count = options.num_layers < 0 ? num_layers() : options.num_layers;
  std::vector<at::Tensor> streams = split_batch(hidden_states);
  for (int i = 0; i < count; ++i) {
    const LayerWeights& layer = layers_[static_cast<std::size_t>(i)];
    const int layer_idx = first_layer_ + i;
    const bool finish = options.finish_last || i + 1 < count;
    std::vector<at::Tensor> attended(streams.size());
    if (options.attend_batched) {
      std::vector<Qkv> parts;
      for (const at::Tensor& stream : streams) {
        if (options.check_cancelled) options.check_cancelled();
        parts.push_back(layer_qkv(stream, layer, context));
      }
      const at::Tensor output = attend(layer_idx, join(parts));
      if (finish) attended = split_batch(output);
    }
    for (std::size_t b = 0; b < streams.size(); ++b) {
      if (options.check_cancelled) options.check_cancelled();
      const auto attention = [&](const Qkv& qkv) { return attend(layer_idx, qkv); };
      if (finish && !options.attend_batched) {
        streams[b] = run_layer(streams[b], layer, context, attention);
      } else if (finish) {
        streams[b] = layer_output(streams[b], attended[b], layer, context);
      } else if (!options.attend_batched) {
        static_cast<void>(attention(layer_qkv(streams[b], layer, context)));
      }
    }
    if (!finish) return {};
  }
  return join(streams);
}

}  // namespace hedgerow::worker
