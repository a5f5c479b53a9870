// Block on the tile unit: the same partial attention as block.h, for bfloat16 and at most 16 query heads.
//
// Keys are a tile's rows as they lie, and the queries its columns; the scores are then turned, so that a softmax runs
// over the keys of one query. Values are the right operand of the second product: two entries interleaved.

#pragma once

#include "block.h"
#include "scores.h"
#include "tiles.h"
#include "vectors.h"

#if defined(__AMX_BF16__) && defined(CPU_CAPABILITY_AVX512)

namespace ringkv {

// Tile registers: for scores 0-3 sums, 4 queries, 5-6 keys; for outputs 0-3 sums and 4 shares, a row for each query, and
// 5-6 values.
class BlockTiles {
 public:
  BlockTiles(int64_t groups, int64_t width, float scale) : groups_(groups), width_(width), scale_(scale) {
    Tiles::allow();
    for (int i = 0; i < 8; ++i) {
      scoring_.bytes[i] = gathering_.bytes[i] = 64;
      scoring_.rows[i] = 16;
      gathering_.rows[i] = uint8_t(i < 5 ? groups : 16);
    }
  }
  ~BlockTiles() { _tile_release(); }
  BlockTiles(const BlockTiles&) = delete;

  static bool fit(int64_t groups, int64_t width) { return groups <= kTall && width % kDeep == 0 && width <= kWidest; }

  // As attend_block. All the while it asks, a few rows at a time, for the keys and values that the next call will read:
  // a core that asks only when it needs them leaves the memory idle while it computes.
  void attend(const Half16* q, const Half16* key, const Half16* value, int64_t entries, const Partial& to,
              const Half16* next_key, const Half16* next_value) {
    const int64_t padded = (entries + kDeep - 1) / kDeep * kDeep;
    enter(q);
    scoring_.load();
    score(key, next_key, entries);
    gathering_.load();
    for (int64_t g = 0; g < groups_; ++g) soften(g, entries, padded, to.top + g, to.sum + g);
    for (int64_t d = 0; d < width_; d += 2 * kDeep) gather(value, next_value, d, entries, padded, to.out);
  }

 private:
  static constexpr int64_t kWidest = 256;
  static constexpr int64_t kFour = 4 * kTall;  // keys that are scored together

  // Queries as right operands [width / 32][16 pairs][16 queries][2]
  void enter(const Half16* q) {
    for (int64_t d = 0; d < width_; d += kDeep) {
      __m512i lines[16];
      for (int64_t g = 0; g < kTall; ++g)
        lines[g] = g < groups_ ? _mm512_loadu_si512(q + g * width_ + d) : _mm512_setzero_si512();
      transpose(lines);
      for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(queries_ + d * kWide + i * kDeep, lines[i]);
    }
  }

  // scores_[g][j] = q[g] . key[j]; what is beyond the last key is not to be used
  void score(const Half16* key, const Half16* next, int64_t entries) {
    alignas(64) float squares[2][4 * kSquare];
    const int64_t stride = width_ * sizeof(Half16);
    for (int64_t j = 0; j < entries; j += kFour) {
      const auto keys = [&](int64_t tile) {
        const int64_t left = entries - j - tile * kTall;
        return left <= 0 ? edge_ : sixteen_keys(key + (entries - left) * width_, left, width_, edge_);
      };
      const Half16* rows[4] = {keys(0), keys(1), keys(2), keys(3)};
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int64_t d = 0; d < width_; d += kDeep) {
        const Half16* later = next + j * width_ + d * kFour;  // as many lines as are read here
        _tile_loadd(4, queries_ + d * kWide, 64);
        _tile_loadd(5, rows[0] + d, stride);
        _tile_dpbf16ps(0, 5, 4);
        fetch(later, kTall, kDeep);
        _tile_loadd(6, rows[1] + d, stride);
        _tile_dpbf16ps(1, 6, 4);
        fetch(later + kBlockSize, kTall, kDeep);
        _tile_loadd(5, rows[2] + d, stride);
        _tile_dpbf16ps(2, 5, 4);
        fetch(later + 2 * kBlockSize, kTall, kDeep);
        _tile_loadd(6, rows[3] + d, stride);
        _tile_dpbf16ps(3, 6, 4);
        fetch(later + 3 * kBlockSize, kTall, kDeep);
      }
      float* square = squares[j / kFour % 2];
      _tile_stored(0, square, 64);
      _tile_stored(1, square + kSquare, 64);
      _tile_stored(2, square + 2 * kSquare, 64);
      _tile_stored(3, square + 3 * kSquare, 64);
      if (j > 0) turn_four(squares[(j / kFour - 1) % 2], j - kFour);
    }
    const int64_t last = (entries - 1) / kFour;
    turn_four(squares[last % 2], last * kFour);
  }

  void turn_four(const float* squares, int64_t j) {
    for (int64_t i = 0; i < 4; ++i) turn(squares + i * kSquare, j + i * kTall);
  }

  // A square [16 keys][16 queries] becomes rows of scores, four queries at a time
  void turn(const float* square, int64_t j) {
    for (int64_t g = 0; g < groups_; g += 4) {
      __m512 rows[4];  // quarter i of rows[k] is key 4 * i + k
      for (int k = 0; k < 4; ++k) {
        const float* at = square + k * kWide + g;
        rows[k] = _mm512_castps128_ps512(_mm_load_ps(at));
        rows[k] = _mm512_insertf32x4(rows[k], _mm_load_ps(at + 4 * kWide), 1);
        rows[k] = _mm512_insertf32x4(rows[k], _mm_load_ps(at + 8 * kWide), 2);
        rows[k] = _mm512_insertf32x4(rows[k], _mm_load_ps(at + 12 * kWide), 3);
      }
      const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(rows[0], rows[1]));
      const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(rows[2], rows[3]));
      const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(rows[0], rows[1]));
      const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(rows[2], rows[3]));
      float* to = scores_ + g * kBlock + j;
      _mm512_store_pd(to, _mm512_unpacklo_pd(low01, low23));
      _mm512_store_pd(to + kBlock, _mm512_unpackhi_pd(low01, low23));
      _mm512_store_pd(to + 2 * kBlock, _mm512_unpacklo_pd(high01, high23));
      _mm512_store_pd(to + 3 * kBlock, _mm512_unpackhi_pd(high01, high23));
    }
  }

  // One query's scores become its weights
  void soften(int64_t g, int64_t entries, int64_t padded, float* top, float* sum) {
    float* scores = scores_ + g * kBlock;
    for (int64_t j = entries; j < padded; ++j) scores[j] = -1e30f;
    __m512 highest = _mm512_load_ps(scores), total = _mm512_setzero_ps();
    for (int64_t j = kWide; j < padded; j += kWide) highest = _mm512_max_ps(highest, _mm512_load_ps(scores + j));
    const float most = _mm512_reduce_max_ps(highest), factor = scale_ * float(M_LOG2E);
    const __m512 by = _mm512_set1_ps(factor), from = _mm512_set1_ps(most * factor);
    for (int64_t j = 0; j < padded; j += kDeep) {
      const __m512 a = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + j), by, from));
      const __m512 b = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + j + kWide), by, from));
      total = _mm512_add_ps(total, _mm512_add_ps(a, b));
      _mm512_store_si512(shares_ + g * kBlock + j, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
    *top = most * scale_;
    *sum = _mm512_reduce_add_ps(total);
  }

  // out = shares . values, for 64 of the width from d on. 32 entries' values are interleaved while the tiles multiply
  // those before them.
  void gather(const Half16* value, const Half16* next, int64_t d, int64_t entries, int64_t padded, float* out) {
    const int64_t wide = std::min(width_ - d, 2 * kDeep);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t j = 0; j < padded; j += kDeep) {
      Half16* turned = turned_ + j / kDeep % 2 * kDeep * 2 * kDeep;
      for (int64_t i = 0; i < kDeep; i += 2) {
        fetch(next + (j + i) * width_ + d, 1, wide);
        fetch(next + (j + i + 1) * width_ + d, 1, wide);
        interleave(value + d, j + i, entries, wide, turned + i * kWide);
      }
      if (j > 0) multiply(j - kDeep);
    }
    multiply(padded - kDeep);
    _tile_stored(0, sums_, 64);
    _tile_stored(1, sums_ + kSquare, 64);
    _tile_stored(2, sums_ + 2 * kSquare, 64);
    _tile_stored(3, sums_ + 3 * kSquare, 64);
    leave(d, wide, out);
  }

  // Two entries, j and j + 1, become a line of the right operands [width / 16][16 pairs][16][2]
  void interleave(const Half16* value, int64_t j, int64_t entries, int64_t wide, Half16* to) const {
    const Half16* row = value + j * width_;
    for (int64_t d = 0; d < wide; d += kDeep) {
      const __m512i even = j < entries ? _mm512_loadu_si512(row + d) : _mm512_setzero_si512();
      const __m512i odd = j + 1 < entries ? _mm512_loadu_si512(row + width_ + d) : _mm512_setzero_si512();
      _mm512_store_si512(to + d * kDeep, _mm512_unpacklo_epi16(even, odd));
      _mm512_store_si512(to + d * kDeep + kBlockSize, _mm512_unpackhi_epi16(even, odd));
    }
  }

  void multiply(int64_t j) const {
    const Half16* values = turned_ + j / kDeep % 2 * kDeep * 2 * kDeep;
    _tile_loadd(4, shares_ + j, kBlock * sizeof(Half16));
    _tile_loadd(5, values, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, values + kBlockSize, 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(5, values + 2 * kBlockSize, 64);
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(6, values + 3 * kBlockSize, 64);
    _tile_dpbf16ps(3, 4, 6);
  }

  // Interleaving works within quarters of a vector: a first tile has numbers 0-3 of each eight, a second 4-7.
  void leave(int64_t d, int64_t wide, float* out) const {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int64_t g = 0; g < groups_; ++g)
      for (int64_t i = 0; i < wide; i += kDeep) {
        const float* at = sums_ + i * kTall + g * kWide;
        const __m512 a = _mm512_load_ps(at), b = _mm512_load_ps(at + kSquare);
        _mm512_storeu_ps(out + g * width_ + d + i, _mm512_permutex2var_ps(a, first, b));
        _mm512_storeu_ps(out + g * width_ + d + i + kWide, _mm512_permutex2var_ps(a, second, b));
      }
  }

  const int64_t groups_, width_;
  const float scale_;
  TileConfig scoring_, gathering_;
  alignas(64) Half16 queries_[kTall * kWidest], edge_[kTall * kWidest], shares_[kTall * kBlock];
  alignas(64) Half16 turned_[2 * kDeep * 2 * kDeep];
  alignas(64) float scores_[kTall * kBlock], sums_[4 * kSquare];
};

}  // namespace ringkv

#endif
