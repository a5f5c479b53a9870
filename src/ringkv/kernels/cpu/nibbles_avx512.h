// Nibbles with bfloat16 dot products. 128 + q is a bfloat16 whose last four bits are q, so one and-or turns a word's
// nibbles into operands. For a block
//
//     sum x (scale q + minimum) = scale (sum x (128 + q) - 128 sum x) + minimum sum x

#pragma once

#include "weights.h"
#include "workspace.h"

namespace ringkv {

constexpr int64_t kNibbleRows = 8;  // maximum number of rows
constexpr int64_t kNibbleMR = 4;    // MR: rows whose sums stay in registers

// Rows in the order of a word's nibbles. A lane holds two elements of one output, four tile rows apart; its neighbour
// holds the other elements of the same two pairs. So eight K elements are ordered 0 4 1 5 2 6 3 7, and each block has
// the sums of its even and of its odd elements.
class NibbleRows {
 public:
  NibbleRows(int64_t rows, int64_t blocks) : rows_(rows) {
    static thread_local std::vector<BF16> buffer;
    static thread_local std::vector<float> totals;
    elements_ = workspace(buffer, rows * blocks * kTileK);
    sums_ = workspace(totals, rows * blocks * 2);
  }

  void pack(const LeftOperand& x, int64_t blocks) {
    const __m512i places = _mm512_loadu_si512(kOrder);
    for (int64_t k = 0; k < blocks; ++k)
      for (int64_t m = 0; m < rows_; ++m) {
        const BF16* row = x.upper + m * x.row + k * x.block;
        Vec even, odd;
        Row<BF16>::split(row, even, odd);
        const __m512i ordered = _mm512_permutexvar_epi16(places, _mm512_loadu_si512(row));
        _mm512_storeu_si512(elements_ + (k * rows_ + m) * kTileK, ordered);
        sums_[(k * rows_ + m) * 2] = _mm512_reduce_add_ps(even);
        sums_[(k * rows_ + m) * 2 + 1] = _mm512_reduce_add_ps(odd);
      }
  }

  // Both start at row m of block k.
  const BF16* elements(int64_t k, int64_t m) const { return elements_ + (k * rows_ + m) * kTileK; }
  const float* sums(int64_t k, int64_t m) const { return sums_ + (k * rows_ + m) * 2; }

 private:
  static constexpr int16_t kOrder[kTileK] = {0,  4,  1,  5,  2,  6,  3,  7,  8,  12, 9,  13, 10, 14, 11, 15,
                                             16, 20, 17, 21, 18, 22, 19, 23, 24, 28, 25, 29, 26, 30, 27, 31};
  const int64_t rows_;
  BF16* elements_;
  float* sums_;
};

// c[m][0..15] = rows first + m . a panel, for M rows over `blocks` blocks; a row of c has kNR elements.
template <int M>
void multiply_nibbles(const uint8_t* block, const NibbleRows& x, int64_t first, int64_t blocks, float* c) {
  const __m512i bits = _mm512_set1_epi32(0x000f000f), base = _mm512_set1_epi32(0x43004300);
  const auto broadcast2 = [](const float* at) {
    double two;
    std::memcpy(&two, at, sizeof two);
    return (__m512)_mm512_set1_pd(two);
  };
  const auto broadcast4 = [](const BF16* at) {
    int64_t words;
    std::memcpy(&words, at, sizeof words);
    return (__m512bh)_mm512_set1_epi64(words);
  };
  __m512 totals[M][2];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) totals[m][0] = totals[m][1] = _mm512_setzero_ps();
  for (int64_t k = 0; k < blocks; ++k, block += StoredInt4::kBlockBytes) {
    for (int64_t line = 0; line < StoredInt4::kBlockBytes; line += 64)
      __builtin_prefetch(block + kPrefetchBytes + line, 0, 3);
    const Vec scales = from_halves(block), minimum = from_halves(block + kTileN * sizeof(c10::Half));
    const float* sums = x.sums(k, first);
    const BF16* elements = x.elements(k, first);
    __m512 block_sums[M][2];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m)
      block_sums[m][0] = block_sums[m][1] = _mm512_mul_ps(broadcast2(sums + 2 * m), _mm512_set1_ps(-128.f));
    for (int64_t line = 0; line < StoredInt4::kLines; ++line) {
      const __m512i words = _mm512_loadu_si512(block + 2 * kTileN * sizeof(c10::Half) + line * StoredInt4::kLineBytes);
      __m512bh q[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        q[i] = (__m512bh)_mm512_ternarylogic_epi32(_mm512_srli_epi32(words, 4 * i), bits, base, 0xea);  // (a & b) | c
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
          block_sums[m][i % 2] =
              _mm512_dpbf16_ps(block_sums[m][i % 2], q[i], broadcast4(elements + m * kTileK + line * 8 + i / 2 * 4));
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m512 plus = _mm512_fmadd_ps(twice(minimum, half), broadcast2(sums + 2 * m), totals[m][half]);
        totals[m][half] = _mm512_fmadd_ps(twice(scales, half), block_sums[m][half], plus);
      }
  }
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m)
    _mm512_storeu_ps(c + m * kNR, _mm512_add_ps(_mm512_permutex2var_ps(totals[m][0], even, totals[m][1]),
                                                _mm512_permutex2var_ps(totals[m][0], odd, totals[m][1])));
}

}  // namespace ringkv
