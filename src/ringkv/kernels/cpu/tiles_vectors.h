// Tiles in vectors: one pair of inner numbers of each row at a time, for the 16 outputs of a strip at once.

#pragma once

#include "tiles.h"

namespace ringkv {

#if defined(__AVX512BF16__)
constexpr int kTogether = 8;         // rows whose sums stay in registers
constexpr int64_t kChunk = 1 << 20;  // blocks that all rows are multiplied with before the next are read: all

// M rows' sums (+)= x . (first, second), over `blocks` blocks
template <int M>
inline void multiply_rows(const BF16* x, int64_t row, int64_t block, const BF16* first, const BF16* second,
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
constexpr int kTogether = 6;
constexpr int64_t kChunk = 8;  // so many of two strips stay in the first cache

// M rows' numbers of up to kChunk blocks as floats
template <int M>
struct Floats {
  alignas(32) float of[M][kChunk * kDeep];

  void take(const BF16* x, int64_t row, int64_t block, int64_t blocks) {
    for (int m = 0; m < M; ++m)
      for (int64_t b = 0; b < blocks; ++b)
        for (int64_t k = 0; k < kDeep; k += 8) {
          const auto words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + m * row + b * block + k));
          const auto wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16);
          _mm256_store_ps(of[m] + b * kDeep + k, _mm256_castsi256_ps(wide));
        }
  }
};

// A bfloat16 is the upper half of a float: a pair's first number is there by a shift, its second one by masking.
struct First {
  static constexpr int kPlace = 0;
  __m256 operator()(__m256i pairs) const { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
};
struct Second {
  static constexpr int kPlace = 1;
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

  // += one number of the pair at k of each row, times that number of the strips' pairs there
  template <typename Which>
  void add(const Floats<M>& x, const BF16* const* strips, int64_t k, const Which& which) {
    __m256 weight[kHalves];
#pragma GCC unroll 16
    for (int i = 0; i < kHalves; ++i)
      weight[i] = which(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(strips[i / 2] + k * kWide + i % 2 * kWide)));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m256 number = _mm256_broadcast_ss(x.of[m] + k + Which::kPlace);
#pragma GCC unroll 16
      for (int i = 0; i < kHalves; ++i) of[m][i] = _mm256_fmadd_ps(number, weight[i], of[m][i]);
    }
  }
};

// M rows' sums (+)= x . S strips, over `blocks` blocks
template <int M, int S>
void multiply_strips(const Floats<M>& x, const BF16* const* strips, int64_t blocks, float* c, int64_t c_row,
                     int64_t beside, bool add) {
  const auto place = [&](int m, int i) { return c + m * c_row + i / 2 * beside + i % 2 * 8; };
  RowSums<M, S> sums;
  sums.each([&](__m256& sum, int m, int i) { sum = add ? _mm256_loadu_ps(place(m, i)) : _mm256_setzero_ps(); });
  for (int64_t k = 0; k < blocks * kDeep; k += 2) {
    sums.add(x, strips, k, First());
    sums.add(x, strips, k, Second());
  }
  sums.each([&](const __m256& sum, int m, int i) { _mm256_storeu_ps(place(m, i), sum); });
}

// The sixteen registers have room for six rows' sums with one strip. One or two rows take both strips at once: a sum
// waits for the one before it, and there are others meanwhile.
template <int M>
void multiply_rows(const BF16* x, int64_t row, int64_t block, const BF16* first, const BF16* second,
                   int64_t blocks, float* c, int64_t c_row, int64_t beside, bool add) {
  Floats<M> floats;
  floats.take(x, row, block, blocks);
  const BF16* strips[] = {first, second};
  if constexpr (M <= 2) return multiply_strips<M, 2>(floats, strips, blocks, c, c_row, beside, add);
  multiply_strips<M, 1>(floats, strips, blocks, c, c_row, beside, add);
  multiply_strips<M, 1>(floats, strips + 1, blocks, c + beside, c_row, beside, add);
}

#else
constexpr int kTogether = 4;
constexpr int64_t kChunk = 1 << 20;

template <int M>
void multiply_rows(const BF16* x, int64_t row, int64_t block, const BF16* first, const BF16* second,
                   int64_t blocks, float* c, int64_t c_row, int64_t beside, bool add) {
  for (int s = 0; s < 2; ++s) {
    const BF16* strip = s ? second : first;
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
        const BF16* two = x + m * row + k / kDeep * block + k % kDeep;
        const float a = float(two[0]), b = float(two[1]);
        for (int i = 0; i < kWide; ++i) sums[m][i] += a * even[i] + b * odd[i];
      }
    }
    for (int m = 0; m < M; ++m)
      for (int i = 0; i < kWide; ++i) c[m * c_row + s * beside + i] = sums[m][i];
  }
}
#endif

// Up to kPiece rows, times two strips: c (+)= x . (first, second), over `blocks` blocks
inline void multiply_tiles(const Left& x, int64_t rows, const BF16* first, const BF16* second, int64_t blocks,
                           const Squares& c, bool add) {
  const auto multiply = [&](const BF16* at, float* to, int64_t k, int64_t count) {
    const int64_t deep = std::min(kChunk, blocks - k);
    at_most<kTogether>(count, [&](auto together) {
      multiply_rows<decltype(together)::value>(at + k * x.block, x.row, x.block, first + k * kBlockSize,
                                               second + k * kBlockSize, deep, to, c.row, c.beside, add || k > 0);
    });
  };
  for (int64_t k = 0; k < blocks; k += kChunk)
    for (int64_t tile = 0; tile * kTall < rows; ++tile) {
      const int64_t count = std::min(kTall, rows - tile * kTall);
      for (int64_t m = 0; m < count; m += kTogether)
        multiply((tile ? x.lower : x.upper) + m * x.row, c.at + tile * c.below + m * c.row, k, count - m);
    }
}

// Two whole tiles of rows
inline void multiply_four(const Left& x, const BF16* first, const BF16* second, int64_t blocks, const Squares& c,
                          bool add) {
  multiply_tiles(x, kPiece, first, second, blocks, c, add);
}

class Tiles {
 public:
  explicit Tiles(int64_t rows) : rows_(rows) {}
  void shape(int64_t rows) { rows_ = rows; }

  // c[m][0..31] (+)= x[m] . two strips, over `blocks` blocks; c has kPair numbers a row
  void multiply(const Left& x, const BF16* first, const BF16* second, int64_t blocks, float* c,
                bool add) const {
    multiply_tiles(x, rows_, first, second, blocks, {c, kPair, kWide, kTall * kPair}, add);
  }

 private:
  int64_t rows_;
};

}  // namespace ringkv
