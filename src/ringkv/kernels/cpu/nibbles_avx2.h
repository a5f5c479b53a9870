// Nibbles on AVX2: a shift, a mask and a conversion turn a word's nibbles into floats.

#pragma once

#include "float_rows.h"
#include "weights.h"

namespace ringkv {

constexpr int64_t kNibbleRows = 8;  // maximum number of rows
constexpr int64_t kNibbleMR = 2;    // MR: rows whose sums stay in registers

using NibbleRows = FloatRows<2>;  // with the sums of the even and of the odd elements

// c[m][0..15] = rows first + m . a panel, for M rows over `blocks` blocks; a row of c has kNR elements.
// A vector holds the even and odd K elements of four outputs; four vectors hold those of a panel.
template <int M>
void multiply_nibbles(const uint8_t* block, const NibbleRows& x, int64_t first, int64_t blocks, float* c) {
  const auto broadcast2 = [](const float* at) {
    double two;
    std::memcpy(&two, at, sizeof two);
    return _mm256_castpd_ps(_mm256_set1_pd(two));
  };
  __m256 totals[M][4];
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < 4; ++i) totals[m][i] = _mm256_setzero_ps();
  for (int64_t k = 0; k < blocks; ++k, block += StoredInt4::kBlockBytes) {
    for (int64_t line = 0; line < StoredInt4::kBlockBytes; line += 64)
      __builtin_prefetch(block + kPrefetchBytes + line, 0, 3);
    const float* elements = x.elements(k, first);
    __m256 block_sums[M][4];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) block_sums[m][i] = _mm256_setzero_ps();
    for (int64_t line = 0; line < StoredInt4::kLines; ++line) {
      const auto* words = reinterpret_cast<const __m256i*>(block + Scales::kSize + line * StoredInt4::kLineBytes);
      const __m256i word[2] = {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
#pragma GCC unroll 4
      for (int pair = 0; pair < 4; ++pair)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const __m256i shifted = _mm256_srli_epi32(word[i % 2], 4 * (2 * pair + i / 2));
          const __m256 q = _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15)));
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m)
            block_sums[m][i] =
                _mm256_fmadd_ps(q, broadcast2(elements + m * kTileK + line * 8 + pair * 2), block_sums[m][i]);
        }
    }
    const Scales scales(block);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const auto of = [&](const Duplicated* factors) { return i % 2 ? factors[i / 2].high : factors[i / 2].low; };
        const __m256 plus = _mm256_fmadd_ps(of(scales.minimum), broadcast2(x.sums(k, first + m)), totals[m][i]);
        totals[m][i] = _mm256_fmadd_ps(of(scales.scale), block_sums[m][i], plus);
      }
  }
  for (int m = 0; m < M; ++m)
    for (int half = 0; half < 2; ++half) {
      const __m256 sums = _mm256_hadd_ps(totals[m][2 * half], totals[m][2 * half + 1]);
      const __m256d ordered = _mm256_permute4x64_pd(_mm256_castps_pd(sums), 0xd8);
      _mm256_storeu_ps(c + m * kNR + half * kTileN / 2, _mm256_castpd_ps(ordered));
    }
}

}  // namespace ringkv
