// What a warp of 32 lanes does together, and nothing else that is CUDA: the tile code above these
// functions is plain C++. They have two bodies. nvcc compiles PTX (sm_80: mma.sync, ldmatrix,
// cp.async; the same instructions run on sm_90a). With HEDGEROW_EMULATED_CUDA, g++ compiles the
// bodies of tests/kernels/emulation, where every lane is a fiber: so the tests run the tile code
// itself, its index arithmetic and its barriers included, on a machine without a GPU.
//
// A bf16 value is its bits. Every function but unpack, pack and the maths must be reached by all 32
// lanes of a warp (sync_threads: by all lanes of the threadblock). Fragments are those of
// mma.m16n8k16, with g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
//
//   left  [16, 16]  a0 (g, 2t..2t+1)  a1 (g + 8, 2t..)  a2 (g, 2t + 8..)  a3 (g + 8, 2t + 8..)
//   right [16, 8]   b0 (2t..2t+1, g)  b1 (2t + 8.., g)
//   sums  [16, 8]   c0, c1 (g, 2t..2t+1)                c2, c3 (g + 8, 2t..2t+1)
#pragma once

#include <cstdint>

#if defined(HEDGEROW_EMULATED_CUDA)
#include <emulated_warp.hpp>
#else

#define HEDGEROW_TILE __device__ __forceinline__
#define HEDGEROW_UNROLL _Pragma("unroll")
#define HEDGEROW_UNROLL_TWICE _Pragma("unroll 2")
#define HEDGEROW_NO_UNROLL _Pragma("unroll 1")  // a whole tile in the body: registers, not latency

namespace hedgerow::kernels::cuda {

using Bf16 = std::uint16_t;
using Word = std::uint32_t;  // two bf16, the one of the lower column in the low half

HEDGEROW_TILE int thread() { return static_cast<int>(threadIdx.x); }
// Opaque to the compiler at every call: the addresses that a tile's walk derives from it are then
// computed where they are used, a few cycles under the tensor cores. Known to be the same all
// along, they would be hoisted out of the walk and fill the registers (measured: 255 instead of
// 170).
HEDGEROW_TILE int lane() {
  int x = static_cast<int>(threadIdx.x % 32);
  asm volatile("" : "+r"(x));
  return x;
}
HEDGEROW_TILE int warp() { return static_cast<int>(threadIdx.x / 32); }

HEDGEROW_TILE void sync_threads() { __syncthreads(); }
HEDGEROW_TILE void sync_warp() { __syncwarp(); }

HEDGEROW_TILE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffU, x, mask); }

HEDGEROW_TILE Word pack(float low, float high) {
  Word bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
HEDGEROW_TILE float unpack(Bf16 bits) { return __uint_as_float(static_cast<Word>(bits) << 16); }

// 2^x, relative error 2^-22; 0 for -infinity, NaN for NaN.
HEDGEROW_TILE float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// log2(x), absolute error 2^-22; -infinity for 0, NaN for NaN.
HEDGEROW_TILE float log_two(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
HEDGEROW_TILE float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000U)); }

// c += a b.
HEDGEROW_TILE void multiply_add(float (&c)[4], const Word (&a)[4], Word b0, Word b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

HEDGEROW_TILE Word shared_address(const void* pointer) {
  return static_cast<Word>(__cvta_generic_to_shared(pointer));
}

// Four 8 x 8 matrices of bf16: lanes 8 i .. 8 i + 7 give the rows (16 bytes each, aligned) of
// matrix i, whose row g, columns 2t..2t+1 lie in r[i] of lane 4 g + t.
HEDGEROW_TILE void load_matrices(Word (&r)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
// The same, each matrix transposed: its column g, rows 2t..2t+1.
HEDGEROW_TILE void load_matrices_transposed(Word (&r)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// 16 bytes from global to shared memory, both aligned to 16; zeros where `inside` is false, and
// then nothing is read. Arrives after commit_copies and wait_for_copies of the same thread, and for
// other threads after a barrier.
HEDGEROW_TILE void copy_async(Bf16* shared, const Bf16* global, bool inside) {
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(shared)), "l"(global), "r"(bytes)
               : "memory");
}
HEDGEROW_TILE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kPending of the groups committed by this thread are under way.
template <int kPending>
HEDGEROW_TILE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace hedgerow::kernels::cuda
#endif
