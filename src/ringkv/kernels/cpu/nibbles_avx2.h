// Nibbles as floats: a word's numbers become floats by a shift, a mask and a conversion.

#pragma once

#include <vector>

#include "weights.h"
#include "workspace.h"

namespace ringkv {

constexpr int64_t kFew = 8;          // rows that are taken without widening
constexpr int64_t kInRegisters = 2;  // of these, whose sums stay there

// Rows as floats, and the sums of every second of a block's
class Turned {
 public:
  Turned(int64_t rows, int64_t blocks) : rows_(rows) {
    static thread_local std::vector<float> kept, totals;
    numbers_ = workspace(kept, rows * blocks * kDeep);
    sums_ = workspace(totals, rows * blocks * 2);
  }

  void take(const Left& x, int64_t blocks) {
    for (int64_t k = 0; k < blocks; ++k)
      for (int64_t m = 0; m < rows_; ++m) {
        float *to = numbers_ + (k * rows_ + m) * kDeep, *sums = sums_ + (k * rows_ + m) * 2;
        sums[0] = sums[1] = 0.f;
        for (int64_t i = 0; i < kDeep; ++i) {
          to[i] = float(x.upper[m * x.row + k * x.block + i]);
          sums[i % 2] += to[i];
        }
      }
  }

  // Of block k, from row m on
  const float* numbers(int64_t k, int64_t m) const { return numbers_ + (k * rows_ + m) * kDeep; }
  const float* sums(int64_t k, int64_t m) const { return sums_ + (k * rows_ + m) * 2; }

 private:
  const int64_t rows_;
  float *numbers_, *sums_;
};

// c[m][0..15] = M rows, from `first` on, . a strip's outputs, over `blocks` blocks; c has kPair numbers a row.
// A vector holds four outputs' even and odd inner numbers; four vectors hold a strip's.
template <int M>
void multiply_nibbles(const uint8_t* block, const Turned& x, int64_t first, int64_t blocks, float* c) {
  const auto both = [](const float* at) {
    double two;
    std::memcpy(&two, at, sizeof two);
    return _mm256_castpd_ps(_mm256_set1_pd(two));
  };
  __m256 totals[M][4];
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < 4; ++i) totals[m][i] = _mm256_setzero_ps();
  for (int64_t k = 0; k < blocks; ++k, block += Four::kBlock) {
    for (int64_t line = 0; line < Four::kBlock; line += 64) __builtin_prefetch(block + kAhead + line, 0, 3);
    const float* numbers = x.numbers(k, first);
    __m256 near[M][4];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) near[m][i] = _mm256_setzero_ps();
    for (int64_t line = 0; line < Four::kLines; ++line) {
      const auto* words = reinterpret_cast<const __m256i*>(block + Scales::kSize + line * Four::kLine);
      const __m256i word[2] = {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
#pragma GCC unroll 4
      for (int pair = 0; pair < 4; ++pair)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const __m256i shifted = _mm256_srli_epi32(word[i % 2], 4 * (2 * pair + i / 2));
          const __m256 q = _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15)));
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m)
            near[m][i] = _mm256_fmadd_ps(q, both(numbers + m * kDeep + line * 8 + pair * 2), near[m][i]);
        }
    }
    const Scales scales(block);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const auto of = [&](const Twice* one) { return i % 2 ? one[i / 2].high : one[i / 2].low; };
        const __m256 plus = _mm256_fmadd_ps(of(scales.least), both(x.sums(k, first + m)), totals[m][i]);
        totals[m][i] = _mm256_fmadd_ps(of(scales.scale), near[m][i], plus);
      }
  }
  for (int m = 0; m < M; ++m)
    for (int half = 0; half < 2; ++half) {
      const __m256 sums = _mm256_hadd_ps(totals[m][2 * half], totals[m][2 * half + 1]);
      const __m256d ordered = _mm256_permute4x64_pd(_mm256_castps_pd(sums), 0xd8);
      _mm256_storeu_ps(c + m * kPair + half * kWide / 2, _mm256_castpd_ps(ordered));
    }
}

}  // namespace ringkv
