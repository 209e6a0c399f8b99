#include "coordinator/wire/processor.hpp"

namespace hedgerow::wire {

MatrixUnits matrix_units() {
#ifdef __x86_64__
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

}  // namespace hedgerow::wire
