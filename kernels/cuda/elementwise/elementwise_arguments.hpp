// What the element-wise kernels are given: pointers and sizes, no LibTorch. bf16 is its bits; every
// pointer to bf16 and to fp32 is a multiple of 16 bytes, every row of bf16 a multiple of 8
// elements.
#pragma once

#include <cstdint>

namespace hedgerow::kernels::cuda {

// RMSNorm of rows [rows, columns]; with `update` of x + update, rounded to bf16 into `sum` before.
struct NormArguments {
  const std::uint16_t* x = nullptr;
  const std::uint16_t* update = nullptr;  // null: none
  std::uint16_t* sum = nullptr;
  const float* weight = nullptr;  // [columns]
  std::uint16_t* out = nullptr;
  int rows = 0, columns = 0;
  float eps = 0;
};

// dx = residual + the norm's gradient of (dy + low_rank), summed in fp32 and rounded once.
struct NormBackwardArguments {
  const std::uint16_t* residual = nullptr;
  const std::uint16_t* dy = nullptr;
  const float* low_rank = nullptr;  // null: none
  const std::uint16_t* x = nullptr;
  const float* weight = nullptr;
  std::uint16_t* dx = nullptr;
  int rows = 0, columns = 0;
  float eps = 0;
};

// gate_up [rows, 2 columns]. Forward: out [rows, columns]; backward: out [rows, 2 columns], from dy
// [rows, columns].
struct SwigluArguments {
  const std::uint16_t* gate_up = nullptr;
  const std::uint16_t* dy = nullptr;
  std::uint16_t* out = nullptr;
  int rows = 0, columns = 0;
};

// qkv [B T, (H + 2 G) D]; q [B, H, T, D], k and v [B, G, T, D]; cos, sin [T, D]; norms [D], null
// where there are none. Forward: qkv -> q, k, v. Backward: gradients in q, k, v -> dqkv, which
// reads qkv where there are norms.
struct HeadsArguments {
  const std::uint16_t* qkv = nullptr;
  std::uint16_t *q = nullptr, *k = nullptr, *v = nullptr;
  std::uint16_t* dqkv = nullptr;
  const float *cos = nullptr, *sin = nullptr, *q_norm = nullptr, *k_norm = nullptr;
  int B = 0, T = 0, H = 0, G = 0, D = 0;
  float eps = 0;
};

}  // namespace hedgerow::kernels::cuda
