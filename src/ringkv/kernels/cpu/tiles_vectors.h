// Tiles in vectors: one pair of inner numbers of each row at a time, for the 16 outputs of a strip at once.

#pragma once

#include "tiles.h"

namespace ringkv {

#if defined(__AVX512BF16__)
constexpr int kTogether = 8;  // rows whose sums stay in registers

// M rows' sums (+)= x . (first, second), over `blocks` blocks
template <int M>
inline void multiply_rows(const Half16* x, int64_t row, int64_t block, const Half16* first, const Half16* second,
                          int64_t blocks, float* c, int64_t c_row, int64_t beside, bool add) {
  __m512 sums[M][2];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
    for (int s = 0; s < 2; ++s) sums[m][s] = add ? _mm512_loadu_ps(c + m * c_row + s * beside) : _mm512_setzero_ps();
  for (; blocks > 0; --blocks, x += block, first += kBlockSize, second += kBlockSize)
    for (int64_t k = 0; k < kDeep; k += 2) {
      const auto left = (__m512bh)_mm512_loadu_si512(first + k * kWide);
      const auto right = (__m512bh)_mm512_loadu_si512(second + k * kWide);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        int32_t two;
        std::memcpy(&two, x + m * row + k, sizeof two);
        const auto both = (__m512bh)_mm512_set1_epi32(two);
        sums[m][0] = _mm512_dpbf16_ps(sums[m][0], left, both);
        sums[m][1] = _mm512_dpbf16_ps(sums[m][1], right, both);
      }
    }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
    for (int s = 0; s < 2; ++s) _mm512_storeu_ps(c + m * c_row + s * beside, sums[m][s]);
}

#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kTogether = 4;

// A bfloat16 is the upper half of a float: a pair's first number is there by a shift, its second one by masking.
struct First {
  __m256 operator()(__m256i pairs) const { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
};
struct Second {
  __m256 operator()(__m256i pairs) const {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000))));
  }
};

// M rows' sums of S strips; half i of them holds 8 outputs of strip i / 2
template <int M, int S>
struct RowSums {
  static constexpr int kHalves = 2 * S;
  __m256 of[M][kHalves];

  // Calls run(sum, m, i) for each.
  template <typename Run>
  void each(const Run& run) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
      for (int i = 0; i < kHalves; ++i) run(of[m][i], m, i);
  }

  // += one number of each pair of x, at m * row, times that number of the strips' pairs, at `from`
  template <typename Which>
  void add(const Half16* x, int64_t row, const Half16* const* strips, int64_t from, const Which& which) {
    __m256 weight[kHalves];
#pragma GCC unroll 16
    for (int i = 0; i < kHalves; ++i)
      weight[i] = which(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(strips[i / 2] + from + i % 2 * kWide)));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      int32_t two;
      std::memcpy(&two, x + m * row, sizeof two);
      const __m256 number = which(_mm256_set1_epi32(two));
#pragma GCC unroll 16
      for (int i = 0; i < kHalves; ++i) of[m][i] = _mm256_fmadd_ps(number, weight[i], of[m][i]);
    }
  }
};

// M rows' sums (+)= x . S strips, over `blocks` blocks
template <int M, int S>
void multiply_strips(const Half16* x, int64_t row, int64_t block, const Half16* const* strips, int64_t blocks,
                     float* c, int64_t c_row, int64_t beside, bool add) {
  const auto place = [&](int m, int i) { return c + m * c_row + i / 2 * beside + i % 2 * 8; };
  RowSums<M, S> sums;
  sums.each([&](__m256& sum, int m, int i) { sum = add ? _mm256_loadu_ps(place(m, i)) : _mm256_setzero_ps(); });
  for (int64_t b = 0; b < blocks; ++b, x += block)
    for (int64_t k = 0; k < kDeep; k += 2) {
      sums.add(x + k, row, strips, b * kBlockSize + k * kWide, First());
      sums.add(x + k, row, strips, b * kBlockSize + k * kWide, Second());
    }
  sums.each([&](const __m256& sum, int m, int i) { _mm256_storeu_ps(place(m, i), sum); });
}

// The sixteen registers have room for four rows' sums with one strip. One or two rows take both strips at once: a sum
// waits for the one before it, and there are others meanwhile.
template <int M>
void multiply_rows(const Half16* x, int64_t row, int64_t block, const Half16* first, const Half16* second,
                   int64_t blocks, float* c, int64_t c_row, int64_t beside, bool add) {
  const Half16* strips[] = {first, second};
  if constexpr (M <= 2) return multiply_strips<M, 2>(x, row, block, strips, blocks, c, c_row, beside, add);
  multiply_strips<M, 1>(x, row, block, strips, blocks, c, c_row, beside, add);
  multiply_strips<M, 1>(x, row, block, strips + 1, blocks, c + beside, c_row, beside, add);
}

#else
constexpr int kTogether = 4;

template <int M>
void multiply_rows(const Half16* x, int64_t row, int64_t block, const Half16* first, const Half16* second,
                   int64_t blocks, float* c, int64_t c_row, int64_t beside, bool add) {
  for (int s = 0; s < 2; ++s) {
    const Half16* strip = s ? second : first;
    float sums[M][kWide];
    for (int m = 0; m < M; ++m)
      for (int i = 0; i < kWide; ++i) sums[m][i] = add ? c[m * c_row + s * beside + i] : 0.f;
    for (int64_t k = 0; k < blocks * kDeep; k += 2) {
      float even[kWide], odd[kWide];
      for (int i = 0; i < kWide; ++i) {
        even[i] = float(strip[k * kWide + 2 * i]);
        odd[i] = float(strip[k * kWide + 2 * i + 1]);
      }
      for (int m = 0; m < M; ++m) {
        const Half16* two = x + m * row + k / kDeep * block + k % kDeep;
        const float a = float(two[0]), b = float(two[1]);
        for (int i = 0; i < kWide; ++i) sums[m][i] += a * even[i] + b * odd[i];
      }
    }
    for (int m = 0; m < M; ++m)
      for (int i = 0; i < kWide; ++i) c[m * c_row + s * beside + i] = sums[m][i];
  }
}
#endif

// Tiles of 32 rows, times two strips: squares (+)= x . (first, second), over `blocks` blocks
inline void multiply_four(const Left& x, const Half16* first, const Half16* second, int64_t blocks, const Squares& c,
                          bool add) {
  for (int64_t m = 0; m < kPiece; m += kTogether) {
    const int64_t tile = m / kTall, in_tile = m % kTall;
    multiply_rows<kTogether>((tile ? x.lower : x.upper) + in_tile * x.row, x.row, x.block, first, second, blocks,
                             c.at + tile * c.below + in_tile * c.row, c.row, c.beside, add);
  }
}

class Tiles {
 public:
  explicit Tiles(int64_t rows) : rows_(rows) {}
  void shape(int64_t rows) { rows_ = rows; }

  // c[m][0..31] (+)= x[m] . two strips, over `blocks` blocks; c has kPair numbers a row
  void multiply(const Left& x, const Half16* first, const Half16* second, int64_t blocks, float* c,
                bool add) const {
    for (int64_t m = 0; m < rows_; m += kTogether) {
      const Half16* at = (m < kTall ? x.upper : x.lower) + m % kTall * x.row;
      const auto run = [&](auto count) {
        multiply_rows<decltype(count)::value>(at, x.row, x.block, first, second, blocks, c + m * kPair, kPair, kWide,
                                              add);
      };
      at_most<kTogether>(rows_ - m, run);
    }
  }

 private:
  int64_t rows_;
};

}  // namespace ringkv
