#include "kernels/cuda/elementwise_cuda.hpp"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "kernels/cuda/elementwise/elementwise_launch.hpp"
#include "kernels/cuda/hybrid_problem_cuda.hpp"
#include "kernels/cuda/stream.hpp"

namespace hedgerow::kernels::cuda {
namespace {

constexpr std::int64_t kRowUnit = 8;  // elements of 16 bytes

// As the kernels read it: rows without gaps, aligned to 16 bytes.
at::Tensor ready(const at::Tensor& x) {
  const at::Tensor rows = x.contiguous();
  return reinterpret_cast<std::uintptr_t>(rows.const_data_ptr()) % 16 == 0 ? rows : rows.clone();
}

int rows_before(const at::Tensor& x) { return static_cast<int>(x.numel() / x.size(-1)); }

bool takes(const at::Tensor& rows) {
  return rows.scalar_type() == at::kBFloat16 && rows.size(-1) % kRowUnit == 0;
}

bool takes_heads(const at::Tensor& rows, std::int64_t head_dim) {
  return rows.scalar_type() == at::kBFloat16 && head_dim >= 16 && head_dim <= 512 &&
         (head_dim & (head_dim - 1)) == 0;
}

std::array<at::Tensor, 2> norm(const at::Tensor& x,
                               const at::Tensor& update,
                               const at::Tensor& weight,
                               double eps) {
  const c10::DeviceGuard guard(x.device());
  const at::Tensor rows = ready(x), scale = ready(weight);
  const at::Tensor added = update.defined() ? ready(update) : update;
  std::array<at::Tensor, 2> out{update.defined() ? at::empty_like(rows) : rows,
                                at::empty_like(rows)};
  if (rows.numel() == 0) return out;
  launch_norm({.x = bf16(rows),
               .update = update.defined() ? bf16(added) : nullptr,
               .sum = update.defined() ? bf16_out(out[0]) : nullptr,
               .weight = floats(scale),
               .out = bf16_out(out[1]),
               .rows = rows_before(rows),
               .columns = static_cast<int>(rows.size(-1)),
               .eps = static_cast<float>(eps)},
              current_stream(x.device()));
  return out;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return norm(x, {}, weight, eps)[1];
}

at::Tensor rms_norm_backward(const at::Tensor& residual_gradient,
                             const at::Tensor& output_gradient,
                             const at::Tensor& low_rank,
                             const at::Tensor& x,
                             const at::Tensor& weight,
                             double eps) {
  const c10::DeviceGuard guard(x.device());
  const at::Tensor residual = ready(residual_gradient), dy = ready(output_gradient);
  const at::Tensor rows = ready(x), scale = ready(weight);
  const at::Tensor added = low_rank.defined() ? ready(low_rank) : low_rank;
  at::Tensor out = at::empty_like(rows);
  if (rows.numel() == 0) return out;
  launch_norm_backward({.residual = bf16(residual),
                        .dy = bf16(dy),
                        .low_rank = low_rank.defined() ? floats(added) : nullptr,
                        .x = bf16(rows),
                        .weight = floats(scale),
                        .dx = bf16_out(out),
                        .rows = rows_before(rows),
                        .columns = static_cast<int>(rows.size(-1)),
                        .eps = static_cast<float>(eps)},
                       current_stream(x.device()));
  return out;
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const c10::DeviceGuard guard(gate_up.device());
  const at::Tensor rows = ready(gate_up);
  auto shape = rows.sizes().vec();
  shape.back() /= 2;
  at::Tensor out = at::empty(shape, rows.options());
  if (rows.numel() == 0) return out;
  launch_swiglu({.gate_up = bf16(rows),
                 .out = bf16_out(out),
                 .rows = rows_before(rows),
                 .columns = static_cast<int>(shape.back())},
                current_stream(rows.device()));
  return out;
}

at::Tensor swiglu_backward(const at::Tensor& output_gradient, const at::Tensor& gate_up) {
  const c10::DeviceGuard guard(gate_up.device());
  const at::Tensor rows = ready(gate_up), dy = ready(output_gradient);
  at::Tensor out = at::empty_like(rows);
  if (rows.numel() == 0) return out;
  launch_swiglu_backward({.gate_up = bf16(rows),
                          .dy = bf16(dy),
                          .out = bf16_out(out),
                          .rows = rows_before(rows),
                          .columns = static_cast<int>(rows.size(-1) / 2)},
                         current_stream(rows.device()));
  return out;
}

// Pointers and sizes of a call, with what backs them.
struct HeadsCall {
  HeadsCall(const HeadLayout& heads, std::int64_t B, std::int64_t T, std::int64_t D)
      : cos(ready(heads.cos)), sin(ready(heads.sin)) {
    arguments.cos = floats(cos);
    arguments.sin = floats(sin);
    const auto norm_of = [](const at::Tensor& weight, at::Tensor& kept) -> const float* {
      if (!weight.defined()) return nullptr;
      kept = ready(weight);
      return floats(kept);
    };
    arguments.q_norm = norm_of(heads.q_norm, q_norm);
    arguments.k_norm = norm_of(heads.k_norm, k_norm);
    arguments.B = static_cast<int>(B);
    arguments.T = static_cast<int>(T);
    arguments.H = static_cast<int>(heads.H);
    arguments.G = static_cast<int>(heads.G);
    arguments.D = static_cast<int>(D);
    arguments.eps = static_cast<float>(heads.eps);
    TORCH_CHECK(cos.size(0) == T && cos.size(1) == D,
                "rotary table ",
                cos.sizes(),
                " does not fit ",
                T,
                " tokens of head_dim ",
                D);
  }
  at::Tensor cos, sin, q_norm, k_norm;
  HeadsArguments arguments;
};

std::array<at::Tensor, 3> split_heads(const at::Tensor& qkv, const HeadLayout& heads) {
  const c10::DeviceGuard guard(qkv.device());
  const std::int64_t B = qkv.size(0), T = qkv.size(1), D = qkv.size(2) / (heads.H + 2 * heads.G);
  const at::Tensor rows = ready(qkv);
  std::array<at::Tensor, 3> out{at::empty({B, heads.H, T, D}, rows.options()),
                                at::empty({B, heads.G, T, D}, rows.options()),
                                at::empty({B, heads.G, T, D}, rows.options())};
  if (rows.numel() == 0) return out;
  HeadsCall call(heads, B, T, D);
  call.arguments.qkv = bf16(rows);
  call.arguments.q = bf16_out(out[0]);
  call.arguments.k = bf16_out(out[1]);
  call.arguments.v = bf16_out(out[2]);
  launch_split_heads(call.arguments, current_stream(rows.device()));
  return out;
}

at::Tensor split_heads_backward(const std::array<at::Tensor, 3>& gradient,
                                const at::Tensor& qkv,
                                const HeadLayout& heads) {
  const c10::DeviceGuard guard(gradient[0].device());
  const std::int64_t B = gradient[0].size(0), T = gradient[0].size(2), D = gradient[0].size(3);
  const std::array<at::Tensor, 3> parts{ready(gradient[0]), ready(gradient[1]), ready(gradient[2])};
  at::Tensor out = at::empty({B, T, (heads.H + 2 * heads.G) * D}, parts[0].options());
  if (out.numel() == 0) return out;
  HeadsCall call(heads, B, T, D);
  const bool has_norms = heads.q_norm.defined() || heads.k_norm.defined();
  const at::Tensor rows = has_norms ? ready(qkv) : at::Tensor();
  call.arguments.qkv = has_norms ? bf16(rows) : nullptr;
  call.arguments.q = bf16_out(parts[0]);  // read alone
  call.arguments.k = bf16_out(parts[1]);
  call.arguments.v = bf16_out(parts[2]);
  call.arguments.dqkv = bf16_out(out);
  launch_split_heads_backward(call.arguments, current_stream(out.device()));
  return out;
}

}  // namespace

const ElementwiseBackend* elementwise_backend() {
  static constexpr ElementwiseBackend kBackend{.takes = &takes,
                                               .takes_heads = &takes_heads,
                                               .rms_norm = &rms_norm,
                                               .add_rms_norm = &norm,
                                               .rms_norm_backward = &rms_norm_backward,
                                               .swiglu = &swiglu,
                                               .swiglu_backward = &swiglu_backward,
                                               .split_heads = &split_heads,
                                               .split_heads_backward = &split_heads_backward};
  return &kBackend;
}

}  // namespace hedgerow::kernels::cuda
