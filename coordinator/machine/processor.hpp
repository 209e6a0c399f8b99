// What this machine's processor is good at, as workers choose by it and as doctor tells it.
#pragma once

#include <cstdint>

namespace hedgerow::machine {

enum class MatrixUnits : std::uint8_t {
  kNone,          // AVX2 and less
  kAvx512,        // fp32; bf16, if it can, at half that rate
  kAvx512Bfloat,  // AMD's with AVX512_BF16: bf16 at twice the rate of fp32, by 512 bits
  kAmx,           // tiles of bf16
};
[[nodiscard]] MatrixUnits matrix_units();

// Products in bf16 are faster than in fp32, in LibTorch's libraries (oneDNN for bf16, MKL for
// fp32).
[[nodiscard]] bool multiplies_bfloat16_faster(MatrixUnits units);

}  // namespace hedgerow::machine
