#include "worker/model/weights.hpp"

#include <ATen/ATen.h>

#include <vector>

#include "storage/base/error.hpp"
#include "worker/model/packed_product.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

// The expected tensors of one group, by the end of their names ("self_attn.q_proj.weight"), read on
// demand.
class Expected {
 public:
  Expected(const storage::ModelDirectory& model,
           std::vector<storage::TensorShape> tensors,
           CheckCancelled check_cancelled = {})
      : model_(model), tensors_(std::move(tensors)), check_cancelled_(std::move(check_cancelled)) {}

  [[nodiscard]] const storage::TensorShape* find(const std::string& suffix) const {
    for (const storage::TensorShape& tensor : tensors_) {
      if (tensor.name.ends_with(suffix)) return &tensor;
    }
    return nullptr;
  }

  // Undefined when the architecture has no such tensor.
  [[nodiscard]] at::Tensor optional(const std::string& suffix,
                                    at::ScalarType dtype,
                                    const at::Device& device) const {
    const storage::TensorShape* tensor = find(suffix);
    return tensor == nullptr
               ? at::Tensor()
               : view_of(*tensor).to(device, dtype, /*non_blocking=*/false, /*copy=*/true);
  }

  [[nodiscard]] at::Tensor required(const std::string& suffix,
                                    at::ScalarType dtype,
                                    const at::Device& device) const {
    at::Tensor tensor = optional(suffix, dtype, device);
    if (!tensor.defined())
      throw Error(ErrorKind::kInternal, "no tensor named *" + suffix + " among the expected ones");
    return tensor;
  }

  // Rows of several tensors, one after the other, converted straight into their place.
  [[nodiscard]] at::Tensor stacked(const std::vector<std::string>& suffixes,
                                   at::ScalarType dtype,
                                   const at::Device& device) const {
    std::int64_t rows = 0;
    std::vector<std::int64_t> shape;
    for (const std::string& suffix : suffixes) {
      const storage::TensorShape* tensor = find(suffix);
      if (tensor == nullptr) return {};
      shape = tensor->shape;
      rows += shape.front();
    }
    shape.front() = rows;
    at::Tensor all = at::empty(shape, at::TensorOptions(dtype).device(device));
    std::int64_t row = 0;
    for (const std::string& suffix : suffixes) {
      const storage::TensorShape& tensor = *find(suffix);
      all.narrow(0, row, tensor.shape.front()).copy_(view_of(tensor));
      row += tensor.shape.front();
    }
    return all;
  }

 private:
  // Over the mapped bytes, not a copy: valid while the model directory is.
  [[nodiscard]] at::Tensor view_of(const storage::TensorShape& tensor) const {
    if (check_cancelled_) check_cancelled_();
    const storage::TensorView view = model_.tensor(tensor);
    return at::from_blob(const_cast<std::byte*>(view.bytes.data()),
                         view.shape,
                         at::TensorOptions(scalar_type(view.dtype)));
  }

  const storage::ModelDirectory& model_;
  std::vector<storage::TensorShape> tensors_;
  CheckCancelled check_cancelled_;
};

}  // namespace

LayerWeights load_layer(const storage::ModelDirectory& model,
                        int layer_idx,
                        at::ScalarType compute_dtype,
                        const at::Device& device,
                        const CheckCancelled& check_cancelled) {
  const Expected tensors(model, storage::layer_tensors(model.config(), layer_idx), check_cancelled);
  const std::string attention = ".self_attn.";
  LayerWeights layer;
  layer.input_norm = tensors.required(".input_layernorm.weight", at::kFloat, device);
  layer.post_norm = tensors.required(".post_attention_layernorm.weight", at::kFloat, device);
  layer.q_norm = tensors.optional(attention + "q_norm.weight", at::kFloat, device);
  layer.k_norm = tensors.optional(attention + "k_norm.weight", at::kFloat, device);
  layer.qkv_proj = tensors.stacked(
      {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"},
      compute_dtype,
      device);
  layer.qkv_bias = tensors.stacked(
      {attention + "q_proj.bias", attention + "k_proj.bias", attention + "v_proj.bias"},
      compute_dtype,
      device);
  layer.o_proj = tensors.required(attention + "o_proj.weight", compute_dtype, device);
  layer.o_bias = tensors.optional(attention + "o_proj.bias", compute_dtype, device);
  layer.gate_up_proj =
      tensors.stacked({".mlp.gate_proj.weight", ".mlp.up_proj.weight"}, compute_dtype, device);
  layer.gate_up_bias =
      tensors.stacked({".mlp.gate_proj.bias", ".mlp.up_proj.bias"}, compute_dtype, device);
  layer.down_proj = tensors.required(".mlp.down_proj.weight", compute_dtype, device);
  layer.down_bias = tensors.optional(".mlp.down_proj.bias", compute_dtype, device);
  return layer;
}

void pack_layer(LayerWeights& layer, std::int64_t rows) {
  if (!can_pack(layer.qkv_proj)) return;
  const auto move = [rows](at::Tensor& plain, at::Tensor& packed) {
    packed = pack(plain, rows);
    plain = at::Tensor();
  };
  move(layer.qkv_proj, layer.qkv_packed);
  move(layer.o_proj, layer.o_packed);
  move(layer.gate_up_proj, layer.gate_up_packed);
  move(layer.down_proj, layer.down_packed);
}

at::Tensor load_embedding(const storage::ModelDirectory& model,
                          at::ScalarType compute_dtype,
                          const at::Device& device) {
  return Expected(model, storage::outer_tensors(model.config()))
      .required("embed_tokens.weight", compute_dtype, device);
}

OuterWeights load_outer(const storage::ModelDirectory& model,
                        at::ScalarType compute_dtype,
                        const at::Device& device,
                        const CheckCancelled& check_cancelled) {
  const Expected tensors(model, storage::outer_tensors(model.config()), check_cancelled);
  OuterWeights outer;
  outer.embed_tokens = tensors.required("embed_tokens.weight", compute_dtype, device);
  outer.final_norm = tensors.required("model.norm.weight", at::kFloat, device);
  outer.lm_head = model.config().tie_word_embeddings
                      ? outer.embed_tokens
                      : tensors.required("lm_head.weight", compute_dtype, device);
  return outer;
}

}  // namespace hedgerow::worker
