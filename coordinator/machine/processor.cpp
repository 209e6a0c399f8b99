#include "coordinator/machine/processor.hpp"

namespace hedgerow::machine {

MatrixUnits matrix_units() {
// Clang before 16 does not know amx-bf16 by name; nothing that it builds here multiplies matrices.
#if defined(__x86_64__) && !(defined(__clang__) && __clang_major__ < 16)
  if (__builtin_cpu_supports("amx-bf16")) return MatrixUnits::kAmx;
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd"))
    return MatrixUnits::kAvx512Bfloat;
  if (__builtin_cpu_supports("avx512f")) return MatrixUnits::kAvx512;
#endif
  return MatrixUnits::kNone;
}

bool multiplies_bfloat16_faster(MatrixUnits units) {
  return units == MatrixUnits::kAmx || units == MatrixUnits::kAvx512Bfloat;
}

}  // namespace hedgerow::machine
