// Group dots: products of a few rows with int8 blocks in groups. See few_rows.h.
//
// kGroupRows is the maximum number of rows, GroupRows the packed rows, and multiply_groups<M> the microkernel for M rows,
// whose sums stay in registers.

#pragma once

#include "float_rows.h"
#include "stored_groups.h"
#include "workspace.h"

namespace ringkv {

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__)

constexpr int64_t kGroupRows = 8, kGroupMR = 8;

// Rows in place, and the sum of each block's elements.
class GroupRows {
 public:
  GroupRows(int64_t rows, int64_t blocks) : rows_(rows) {
    static thread_local std::vector<float> totals;
    sums_ = workspace(totals, rows * blocks);
  }

  void pack(const LeftOperand& x, int64_t blocks) {
    x_ = x;
    for (int64_t k = 0; k < blocks; ++k)
      for (int64_t m = 0; m < rows_; ++m) {
        Vec even, odd;
        Row<BF16>::split(elements(k, m), even, odd);
        sums_[k * rows_ + m] = _mm512_reduce_add_ps(even + odd);
      }
  }
  const BF16* elements(int64_t k, int64_t m) const { return x_.upper + m * x_.row + k * x_.block; }
  float sum(int64_t k, int64_t m) const { return sums_[k * rows_ + m]; }

 private:
  const int64_t rows_;
  LeftOperand x_{};
  float* sums_;
};

// c[m][0..15] = rows first + m . a panel, for M rows over `blocks` blocks; a row of c has kNR elements.
template <typename Storage, int M>
void multiply_groups(const uint8_t* block, const GroupRows& x, int64_t first, int64_t blocks, float* c) {
  const Int8Conversion widened;
  __m512 totals[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) totals[m] = _mm512_setzero_ps();
  for (int64_t k = 0; k < blocks; ++k, block += Storage::kBlockBytes) {
    for (int64_t line = 0; line < Storage::kBlockBytes; line += 64)
      __builtin_prefetch(block + kPrefetchBytes + line, 0, 3);
    for (int64_t half = 0; half < 2; ++half) {
      __m512 sums[M][2];
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums[m][0] = sums[m][1] = _mm512_setzero_ps();
#pragma GCC unroll 4
      for (int64_t pair = half * Storage::kHalfPairs; pair < (half + 1) * Storage::kHalfPairs; pair += 2) {
        const TwoRows rows = widened(Storage::pair_row(block, pair));
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const BF16* elements = x.elements(k, first + m) + 2 * pair;
          sums[m][0] = _mm512_dpbf16_ps(sums[m][0], rows.first, broadcast_pair(elements));
          sums[m][1] = _mm512_dpbf16_ps(sums[m][1], rows.second, broadcast_pair(elements + 2));
        }
      }
      const __m512 scale = Storage::scale(block, half, 0);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
        totals[m] = _mm512_fmadd_ps(_mm512_add_ps(sums[m][0], sums[m][1]), scale, totals[m]);
    }
    if constexpr (Storage::kHasMinimums) {
      const __m512 minimum = Storage::minimum(block, 0);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
        totals[m] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x.sum(k, first + m)), totals[m]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) _mm512_storeu_ps(c + m * kNR, totals[m]);
}

#else

constexpr int64_t kGroupRows = 8, kGroupMR = 2;

using GroupRows = FloatRows<1>;

// c[m][0..15] = rows first + m . a panel, for M rows over `blocks` blocks; a row of c has kNR elements.
template <typename Storage, int M>
void multiply_groups(const uint8_t* block, const GroupRows& x, int64_t first, int64_t blocks, float* c) {
  constexpr int kParts = kTileN / kLanes;
  Vec totals[M][kParts];
  for (int m = 0; m < M; ++m)
    for (int part = 0; part < kParts; ++part) totals[m][part] = Vec(0.f);
  for (int64_t k = 0; k < blocks; ++k, block += Storage::kBlockBytes) {
    for (int64_t line = 0; line < Storage::kBlockBytes; line += 64)
      __builtin_prefetch(block + kPrefetchBytes + line, 0, 3);
    for (int64_t half = 0; half < 2; ++half) {
      Vec sums[M][kParts];
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) sums[m][part] = Vec(0.f);
      for (int64_t pair = half * Storage::kHalfPairs; pair < (half + 1) * Storage::kHalfPairs; ++pair)
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) {
          const auto [even, odd] = pair_of(Storage::pair_row(block, pair) + part * 2 * kLanes);
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
            const float* elements = x.elements(k, first + m) + 2 * pair;
            sums[m][part] = at::vec::fmadd(even, Vec(elements[0]), sums[m][part]);
            sums[m][part] = at::vec::fmadd(odd, Vec(elements[1]), sums[m][part]);
          }
        }
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part) {
        const Vec scale = Storage::scale(block, half, part * kLanes);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) totals[m][part] = at::vec::fmadd(sums[m][part], scale, totals[m][part]);
      }
    }
    if constexpr (Storage::kHasMinimums)
      for (int part = 0; part < kParts; ++part) {
        const Vec minimum = Storage::minimum(block, part * kLanes);
        for (int m = 0; m < M; ++m)
          totals[m][part] = at::vec::fmadd(minimum, Vec(*x.sums(k, first + m)), totals[m][part]);
      }
  }
  for (int m = 0; m < M; ++m)
    for (int part = 0; part < kParts; ++part) totals[m][part].store(c + m * kNR + part * kLanes);
}

#endif

}  // namespace ringkv
