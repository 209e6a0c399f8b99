#include <emulated_warp.hpp>

namespace hedgerow::kernels::cuda {
namespace {

constexpr int kLanes = 32;

template <typename Slot>
Slot& of(void* const* slots, int lane) {
  return *static_cast<Slot*>(slots[lane]);
}

void check_aligned(const void* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) {
    emulation::fail("an address that is not a multiple of 16 bytes");
  }
}

Bf16 half_of(Word word, int half) { return static_cast<Bf16>(word >> (16 * half)); }

struct Shuffle {
  float value, result;
  int mask;
};

struct MultiplyAdd {
  float* c;
  const Word* a;
  Word b[2];
};

struct LoadMatrices {
  Word* r;
  const Bf16* row;
};

template <bool kTransposed>
void load(void* const* slots) {
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int l = 0; l < kLanes; ++l) {
      const int g = l / 4, t = l % 4;
      Word word = 0;
      for (int half = 0; half < 2; ++half) {
        const int row = kTransposed ? 2 * t + half : g, column = kTransposed ? g : 2 * t + half;
        const Bf16 value = of<LoadMatrices>(slots, 8 * matrix + row).row[column];
        word |= static_cast<Word>(value) << (16 * half);
      }
      of<LoadMatrices>(slots, l).r[matrix] = word;
    }
  }
}

}  // namespace

float shuffle_xor(float x, int mask) {
  Shuffle slot{x, 0.0F, mask};
  emulation::wait_for_warp("shuffle_xor", &slot, [](void* const* slots) {
    for (int l = 0; l < kLanes; ++l) {
      Shuffle& own = of<Shuffle>(slots, l);
      own.result = of<Shuffle>(slots, l ^ own.mask).value;
    }
  });
  return slot.result;
}

Bf16 round_to_bf16(float x) {
  if (x != x) {
    return 0x7fff;
  }
  Word bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<Bf16>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

void multiply_add(float (&c)[4], const Word (&a)[4], Word b0, Word b1) {
  MultiplyAdd slot{c, a, {b0, b1}};
  emulation::wait_for_warp("multiply_add", &slot, [](void* const* slots) {
    double left[16][16], right[16][8], sums[16][8] = {};
    for (int l = 0; l < kLanes; ++l) {
      const MultiplyAdd& own = of<MultiplyAdd>(slots, l);
      const int g = l / 4, t = l % 4;
      for (int half = 0; half < 2; ++half) {
        const int k = 2 * t + half;
        left[g][k] = unpack(half_of(own.a[0], half));
        left[g + 8][k] = unpack(half_of(own.a[1], half));
        left[g][k + 8] = unpack(half_of(own.a[2], half));
        left[g + 8][k + 8] = unpack(half_of(own.a[3], half));
        right[k][g] = unpack(half_of(own.b[0], half));
        right[k + 8][g] = unpack(half_of(own.b[1], half));
      }
    }
    for (int row = 0; row < 16; ++row) {
      for (int k = 0; k < 16; ++k) {
        for (int column = 0; column < 8; ++column) {
          sums[row][column] += left[row][k] * right[k][column];
        }
      }
    }
    for (int l = 0; l < kLanes; ++l) {
      for (int i = 0; i < 4; ++i) {
        of<MultiplyAdd>(slots, l).c[i] +=
            static_cast<float>(sums[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2]);
      }
    }
  });
}

void load_matrices(Word (&r)[4], const Bf16* row) {
  check_aligned(row);
  LoadMatrices slot{r, row};
  emulation::wait_for_warp("load_matrices", &slot, &load<false>);
}

void load_matrices_transposed(Word (&r)[4], const Bf16* row) {
  check_aligned(row);
  LoadMatrices slot{r, row};
  emulation::wait_for_warp("load_matrices_transposed", &slot, &load<true>);
}

void copy_async(Bf16* shared, const Bf16* global, bool inside) {
  check_aligned(shared);
  check_aligned(global);
  emulation::add_copy({shared, global, inside});
}
void commit_copies() { emulation::commit_copies(); }
void wait_for_copies_until(int pending) { emulation::finish_copies(pending); }

}  // namespace hedgerow::kernels::cuda
