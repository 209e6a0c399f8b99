#include "worker/model/weights.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "storage/base/error.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

// The tensors of one layer, or those outside the layers, read on demand and hashed on the way.
class Expected {
 public:
  Expected(const storage::ModelDirectory& model, int layer_idx, const LoadHooks& hooks)
      : model_(model),
        layer_idx_(layer_idx),
        hooks_(hooks),
        tensors_(layer_idx == storage::kOuterWeights
                     ? storage::outer_tensors(model.config())
                     : storage::layer_tensors(model.config(), layer_idx)),
        hashes_(tensors_.size()) {}

  [[nodiscard]] at::Tensor required(const std::string& name,
                                    at::ScalarType dtype,
                                    const at::Device& device) {
    at::Tensor tensor = stacked({name}, dtype, device);
    if (!tensor.defined())
      throw Error(ErrorKind::kInternal, "no tensor named " + name + " among the expected ones");
    return tensor;
  }

  // Rows of several tensors, one after the other, converted straight into their place. Undefined
  // when the architecture has no such tensors.
  [[nodiscard]] at::Tensor stacked(const std::vector<std::string>& names,
                                   at::ScalarType dtype,
                                   const at::Device& device) {
    std::int64_t rows = 0;
    std::vector<std::int64_t> shape;
    for (const std::string& name : names) {
      const std::optional<std::size_t> found = find(name);
      if (!found) return {};
      shape = tensors_[*found].shape;
      rows += shape.front();
    }
    shape.front() = rows;
    at::Tensor all = at::empty(shape, at::TensorOptions(dtype).device(device));
    std::int64_t row = 0;
    for (const std::string& name : names) {
      const std::size_t index = *find(name);
      const std::int64_t count = tensors_[index].shape.front();
      read(index, all.narrow(0, row, count));
      row += count;
    }
    return all;
  }

  // Checks the hash of all tensors, also of those that were not asked for.
  void check_hash() {
    if (!hooks_.check_hash) return;
    storage::LayerHasher hasher;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!hashes_[i]) read(i, {});
      hasher.add(tensors_[i].name, *hashes_[i]);
    }
    hooks_.check_hash(layer_idx_, hasher.digest());
  }

 private:
  [[nodiscard]] std::optional<std::size_t> find(const std::string& name) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].name == name) return i;
    }
    return std::nullopt;
  }

  // A chunk is copied while it is in the cache from being hashed. Without `out` it is hashed alone.
  void read(std::size_t index, const at::Tensor& out) {
    if (hooks_.check_cancelled) hooks_.check_cancelled();
    storage::TensorChunks chunks(model_, tensors_[index]);
    const storage::TensorView& view = chunks.view();
    // Over the mapped bytes, not a copy.
    const at::Tensor in = at::from_blob(const_cast<std::byte*>(view.bytes.data()),
                                        view.shape,
                                        at::TensorOptions(scalar_type(view.dtype)));
    const bool copies_chunks = out.defined() && out.device().is_cpu();
    at::parallel_for(0, chunks.count(), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t chunk = begin; chunk < end; ++chunk) {
        chunks.read(chunk);
        if (!copies_chunks) continue;
        const auto [first, count] = chunks.rows(chunk);
        out.narrow(0, first, count).copy_(in.narrow(0, first, count));
      }
    });
    if (out.defined() && !copies_chunks) out.copy_(in);
    storage::release_pages(view.bytes);
    hashes_[index] = chunks.digest();
  }

  const storage::ModelDirectory& model_;
  int layer_idx_;
  const LoadHooks& hooks_;
  std::vector<storage::TensorShape> tensors_;
  std::vector<std::optional<storage::Hash128>> hashes_;
};

}  // namespace

LayerWeights load_layer(const storage::ModelDirectory& model,
                        int layer_idx,
                        at::ScalarType compute_dtype,
                        const at::Device& device,
                        const LoadHooks& hooks) {
  Expected tensors(model, layer_idx, hooks);
  const auto slots = storage::layer_slots(model.config());
  const auto names = [&](std::span<const storage::Slot> wanted, bool is_bias) {
    std::vector<std::string> found;
    for (const storage::Slot slot : wanted) {
      for (const storage::LayerTensor& tensor : slots) {
        if (tensor.slot == slot && tensor.is_bias == is_bias)
          found.push_back(storage::layer_prefix(layer_idx) + tensor.name);
      }
    }
    return found;
  };
  LayerWeights layer;
  layer.has_rope = model.config().has_rope(layer_idx);
  for (const NormSlot& norm : kNorms) {
    if (const auto name = names({&norm.slot, 1}, false); !name.empty())
      layer.*norm.norm = tensors.required(name.front(), at::kFloat, device);
  }
  for (const ProductSlots& product : kProducts) {
    at::Tensor weight = tensors.stacked(names(product.all(), false), compute_dtype, device);
    at::Tensor bias;
    if (const auto name = names(product.all(), true); !name.empty())
      bias = tensors.stacked(name, compute_dtype, device);
    layer.*product.product = FrozenProduct(std::move(weight), std::move(bias));
  }
  tensors.check_hash();
  return layer;
}

void pack_layer(LayerWeights& layer, std::int64_t rows) {
  for (const ProductSlots& product : kProducts) (layer.*product.product).pack(rows);
}

OuterWeights load_outer(const storage::ModelDirectory& model,
                        at::ScalarType compute_dtype,
                        const at::Device& device,
                        const LoadHooks& hooks,
                        const OuterParts& parts) {
  OuterWeights outer;
  if (!parts.embedding && !parts.head) return outer;
  const std::string embedding = "model.embed_tokens.weight";
  Expected tensors(model, storage::kOuterWeights, hooks);
  if (parts.embedding) outer.embed_tokens = tensors.required(embedding, compute_dtype, device);
  if (parts.head) {
    const bool is_tied = model.config().tie_word_embeddings;
    outer.final_norm = tensors.required("model.norm.weight", at::kFloat, device);
    outer.lm_head =
        is_tied && parts.embedding
            ? outer.embed_tokens
            : tensors.required(is_tied ? embedding : "lm_head.weight", compute_dtype, device);
  }
  tensors.check_hash();
  return outer;
}

at::Tensor load_embedding(const storage::ModelDirectory& model,
                          at::ScalarType compute_dtype,
                          const at::Device& device,
                          const LoadHooks& hooks) {
  return load_outer(model, compute_dtype, device, hooks, {.head = false}).embed_tokens;
}

}  // namespace hedgerow::worker
