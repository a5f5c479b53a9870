// Tiles without AMX: broadcasts one pair of K elements of each row, for the 16 outputs of a panel at once.

#pragma once

#include "lanes.h"
#include "tiles.h"

namespace ringkv {

#if defined(__AVX512BF16__)
constexpr int kRowsInRegisters = 8;     // rows whose sums stay in registers
constexpr int64_t kKCBlocks = 1 << 20;  // blocks along K per pass over the rows: no limit

// c (+)= x . (first, second), for M rows over `blocks` blocks.
template <int M>
inline void multiply_rows(const BF16* x, int64_t row, int64_t block, const BF16* first, const BF16* second,
                          int64_t blocks, float* c, int64_t c_row, int64_t next_panel, bool add, Ahead ahead) {
  __m512 sums[M][2];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
    for (int s = 0; s < 2; ++s)
      sums[m][s] = add ? _mm512_loadu_ps(c + m * c_row + s * next_panel) : _mm512_setzero_ps();
  for (; blocks > 0; --blocks, x += block, first += kBlockSize, second += kBlockSize) {
    ahead.fetch_block();
    for (int64_t k = 0; k < kTileK; k += 2) {
      const auto left = (__m512bh)_mm512_loadu_si512(first + k * kTileN);
      const auto right = (__m512bh)_mm512_loadu_si512(second + k * kTileN);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const auto both = (__m512bh)_mm512_set1_epi32(word_of(x + m * row + k));
        sums[m][0] = _mm512_dpbf16_ps(sums[m][0], left, both);
        sums[m][1] = _mm512_dpbf16_ps(sums[m][1], right, both);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
    for (int s = 0; s < 2; ++s) _mm512_storeu_ps(c + m * c_row + s * next_panel, sums[m][s]);
}

#else
constexpr int kRowsInRegisters = 6;
constexpr int64_t kKCBlocks = 8;  // so many blocks of two panels fit in L1

// Up to kKCBlocks blocks of M rows, as floats.
template <int M>
struct Floats {
  alignas(32) float of[M][kKCBlocks * kTileK];

  void widen(const BF16* x, int64_t row, int64_t block, int64_t blocks) {
    for (int m = 0; m < M; ++m)
      for (int64_t b = 0; b < blocks; ++b)
        for (int64_t k = 0; k < kTileK; k += 8) {
          const auto words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + m * row + b * block + k));
          const auto wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16);
          _mm256_store_ps(of[m] + b * kTileK + k, _mm256_castsi256_ps(wide));
        }
  }
};

// A bfloat16 is the upper half of a float: a shift extracts a pair's even element, a mask its odd one.
struct EvenElement {
  static constexpr int kOffset = 0;
  __m256 operator()(__m256i pairs) const { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
};
struct OddElement {
  static constexpr int kOffset = 1;
  __m256 operator()(__m256i pairs) const {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000))));
  }
};

// Sums of M rows and S panels; half i holds 8 outputs of panel i / 2.
template <int M, int S>
struct RowSums {
  static constexpr int kHalves = 2 * S;
  __m256 of[M][kHalves];

  // Calls run(sum, m, i) for each sum.
  template <typename Run>
  void each(const Run& run) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
      for (int i = 0; i < kHalves; ++i) run(of[m][i], m, i);
  }

  // Adds the products of one element of the pair at k: of each row, times that of the panels.
  template <typename Element>
  void add(const Floats<M>& x, const BF16* const* panels, int64_t k, const Element& element_of) {
    __m256 weight[kHalves];
#pragma GCC unroll 16
    for (int i = 0; i < kHalves; ++i)
      weight[i] = element_of(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panels[i / 2] + k * kTileN + i % 2 * kTileN)));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m256 element = _mm256_broadcast_ss(x.of[m] + k + Element::kOffset);
#pragma GCC unroll 16
      for (int i = 0; i < kHalves; ++i) of[m][i] = _mm256_fmadd_ps(element, weight[i], of[m][i]);
    }
  }
};

// c (+)= x . S panels, for M rows over `blocks` blocks.
template <int M, int S>
void multiply_panels(const Floats<M>& x, const BF16* const* panels, int64_t blocks, float* c, int64_t c_row,
                     int64_t next_panel, bool add) {
  const auto place = [&](int m, int i) { return c + m * c_row + i / 2 * next_panel + i % 2 * 8; };
  RowSums<M, S> sums;
  sums.each([&](__m256& sum, int m, int i) { sum = add ? _mm256_loadu_ps(place(m, i)) : _mm256_setzero_ps(); });
  for (int64_t k = 0; k < blocks * kTileK; k += 2) {
    sums.add(x, panels, k, EvenElement());
    sums.add(x, panels, k, OddElement());
  }
  sums.each([&](const __m256& sum, int m, int i) { _mm256_storeu_ps(place(m, i), sum); });
}

// Sixteen registers hold the sums of six rows with one panel. One or two rows multiply both panels at once, for more
// independent chains of FMAs.
template <int M>
void multiply_rows(const BF16* x, int64_t row, int64_t block, const BF16* first, const BF16* second,
                   int64_t blocks, float* c, int64_t c_row, int64_t next_panel, bool add, Ahead ahead) {
  for (int64_t k = 0; k < blocks; ++k) ahead.fetch_block();
  Floats<M> floats;
  floats.widen(x, row, block, blocks);
  const BF16* panels[] = {first, second};
  if constexpr (M <= 2) return multiply_panels<M, 2>(floats, panels, blocks, c, c_row, next_panel, add);
  multiply_panels<M, 1>(floats, panels, blocks, c, c_row, next_panel, add);
  multiply_panels<M, 1>(floats, panels + 1, blocks, c + next_panel, c_row, next_panel, add);
}

#endif

// c (+)= x . (first, second), for up to kMR rows over `blocks` blocks.
inline void multiply_tiles(const LeftOperand& x, int64_t rows, const BF16* first, const BF16* second, int64_t blocks,
                           const OutputTiles& c, bool add, const Ahead& ahead = {}) {
  const int64_t parts = (rows + kRowsInRegisters - 1) / kRowsInRegisters;  // a few more or less if a tile has a rest
  int64_t part = 0;
  const auto multiply = [&](const BF16* at, float* to, int64_t k, int64_t count) {
    const int64_t depth = std::min(kKCBlocks, blocks - k);
    const Ahead share = ahead.part(part++ % parts, parts).from(k);
    at_most<kRowsInRegisters>(count, [&](auto rows_at_once) {
      constexpr int M = decltype(rows_at_once)::value;
      multiply_rows<M>(at + k * x.block, x.row, x.block, first + k * kBlockSize, second + k * kBlockSize, depth, to,
                       c.row, c.next_panel, add || k > 0, share);
    });
  };
  for (int64_t k = 0; k < blocks; k += kKCBlocks)
    for (int64_t tile = 0; tile * kTileM < rows; ++tile) {
      const int64_t count = std::min(kTileM, rows - tile * kTileM);
      for (int64_t m = 0; m < count; m += kRowsInRegisters)
        multiply((tile ? x.lower : x.upper) + m * x.row, c.at + tile * c.next_tile + m * c.row, k, count - m);
    }
}

// Microkernel of 2 x 2 tiles: c (+)= x . (first, second), over `blocks` blocks.
inline void multiply_four(const LeftOperand& x, const BF16* first, const BF16* second, int64_t blocks,
                          const OutputTiles& c, bool add) {
  multiply_tiles(x, kMR, first, second, blocks, c, add);
}

class Tiles {
 public:
  explicit Tiles(int64_t rows) : rows_(rows) {}
  void shape(int64_t rows) { rows_ = rows; }

  // c[m][0..31] (+)= x[m] . two panels, over `blocks` blocks; a row of c has kNR elements.
  void multiply(const LeftOperand& x, const BF16* first, const BF16* second, int64_t blocks, float* c, bool add,
                const Ahead& ahead) const {
    multiply_tiles(x, rows_, first, second, blocks, {c, kNR, kTileN, kTileM * kNR}, add, ahead);
  }

 private:
  int64_t rows_;
};

}  // namespace ringkv
