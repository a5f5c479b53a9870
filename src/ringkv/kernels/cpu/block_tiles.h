// Block on the tile unit: the same partial attention as block.h, for bfloat16 and at most 16 query heads.
//
// Keys are a tile's rows as they lie, and the queries its columns; the scores are then turned, so that a softmax runs
// over the keys of one query. Values are the right operand of the second product: two entries interleaved.

#pragma once

#include "block.h"
#include "tiles.h"
#include "vectors.h"

#if defined(__AMX_BF16__) && defined(CPU_CAPABILITY_AVX512)

namespace ringkv {

// Tile registers: 0 scores, 2 keys, 7 queries; then 3-6 sums and 1 shares, a row for each query; 2 and 7 values.
class BlockTiles {
 public:
  BlockTiles(int64_t groups, int64_t width) : groups_(groups), width_(width) {
    Tiles::allow();
    TileConfig config;
    for (int i = 0; i < 8; ++i) config.bytes[i] = 64;
    for (int i : {0, 2, 7}) config.rows[i] = 16;
    for (int i : {1, 3, 4, 5, 6}) config.rows[i] = uint8_t(groups);
    _tile_loadconfig(&config);
  }
  ~BlockTiles() { _tile_release(); }
  BlockTiles(const BlockTiles&) = delete;

  static bool fit(int64_t groups, int64_t width) { return groups <= kTall && width % kDeep == 0 && width <= kWidest; }

  // As attend_block: unnormalised outputs [groups, width], each query's highest score and sum of weights
  void attend(const Half16* q, const Half16* key, const Half16* value, int64_t entries, float scale, float* out,
              float* top, float* sum) {
    const int64_t padded = (entries + kDeep - 1) / kDeep * kDeep;
    enter(q);
    score(key, value, entries, padded);
    for (int64_t g = 0; g < groups_; ++g) soften(g, entries, padded, scale, top + g, sum + g);
    gather(value, entries, padded, out);
  }

 private:
  static constexpr int64_t kWidest = 256, kSquare = kTall * kWide;
  static constexpr int64_t kTogether = 4;  // blocks of 32 entries whose values are interleaved before they are multiplied

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

  // 16 keys of which only `left` are there
  const Half16* padded_keys(const Half16* key, int64_t left) {
    if (left >= kTall) return key;
    std::memset(edge_, 0, kTall * width_ * sizeof(Half16));
    if (left > 0) std::memcpy(edge_, key, left * width_ * sizeof(Half16));
    return edge_;
  }

  // scores_[g][j] = q[g] . key[j]
  void score(const Half16* key, const Half16* value, int64_t entries, int64_t padded) {
    alignas(64) float squares[2][kSquare];
    for (int64_t j = 0; j < padded; j += kTall) {
      float* square = squares[j / kTall % 2];
      const Half16* rows = padded_keys(key + j * width_, entries - j);
      _tile_zero(0);
      for (int64_t d = 0; d < width_; d += kDeep) {
        _tile_loadd(7, queries_ + d * kWide, 64);
        _tile_loadd(2, rows + d, width_ * sizeof(Half16));
        _tile_dpbf16ps(0, 2, 7);
      }
      _tile_stored(0, square, 64);
      fetch(value + j * width_, kTall, width_);
      if (j > 0) turn(squares[(j / kTall - 1) % 2], j - kTall);
    }
    turn(squares[(padded / kTall - 1) % 2], padded - kTall);
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
  void soften(int64_t g, int64_t entries, int64_t padded, float scale, float* top, float* sum) {
    float* scores = scores_ + g * kBlock;
    for (int64_t j = entries; j < padded; ++j) scores[j] = -1e30f;
    __m512 highest = _mm512_load_ps(scores), total = _mm512_setzero_ps();
    for (int64_t j = kWide; j < padded; j += kWide) highest = _mm512_max_ps(highest, _mm512_load_ps(scores + j));
    const float most = _mm512_reduce_max_ps(highest), factor = scale * float(M_LOG2E);
    const __m512 by = _mm512_set1_ps(factor), from = _mm512_set1_ps(most * factor);
    for (int64_t j = 0; j < padded; j += kDeep) {
      const __m512 a = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + j), by, from));
      const __m512 b = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + j + kWide), by, from));
      total = _mm512_add_ps(total, _mm512_add_ps(a, b));
      _mm512_store_si512(shares_ + g * kBlock + j, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
    *top = most * scale;
    *sum = _mm512_reduce_add_ps(total);
  }

  // out = shares . values. Whole rows are read, in order, so that the processor reads ahead by itself.
  void gather(const Half16* value, int64_t entries, int64_t padded, float* out) {
    for (int64_t j = 0; j < padded; j += kTogether * kDeep) {
      const int64_t blocks = std::min(kTogether, (padded - j) / kDeep);
      for (int64_t i = 0; i < blocks * 16; ++i) interleave(value, j + 2 * i, entries, i);
      for (int64_t d = 0; d < width_; d += 2 * kDeep) sum(d, j, blocks);
    }
    // Interleaving works within quarters of a vector: a first tile has numbers 0-3 of each eight, a second 4-7.
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int64_t g = 0; g < groups_; ++g)
      for (int64_t d = 0; d < width_; d += kDeep) {
        const float* at = sums_ + d * kTall + g * kWide;
        const __m512 a = _mm512_load_ps(at), b = _mm512_load_ps(at + kSquare);
        _mm512_storeu_ps(out + g * width_ + d, _mm512_permutex2var_ps(a, first, b));
        _mm512_storeu_ps(out + g * width_ + d + kWide, _mm512_permutex2var_ps(a, second, b));
      }
  }

  // Entries j and j + 1 become line `i` of the right operands [blocks][width / 16][16 pairs][16][2]
  void interleave(const Half16* value, int64_t j, int64_t entries, int64_t i) {
    Half16* to = turned_ + i / 16 * kDeep * width_ + i % 16 * kDeep;
    for (int64_t d = 0; d < width_; d += kDeep) {
      const __m512i even = j < entries ? _mm512_loadu_si512(value + j * width_ + d) : _mm512_setzero_si512();
      const __m512i odd = j + 1 < entries ? _mm512_loadu_si512(value + (j + 1) * width_ + d) : _mm512_setzero_si512();
      _mm512_store_si512(to + d * kDeep, _mm512_unpacklo_epi16(even, odd));
      _mm512_store_si512(to + d * kDeep + kBlockSize, _mm512_unpackhi_epi16(even, odd));
    }
  }

  // Four tiles of the width from d on, of which the last two are there if the width goes so far
  void sum(int64_t d, int64_t j, int64_t blocks) {
    float* sums = sums_ + d * kTall;
    const Half16* values = turned_ + d * kDeep;
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    if (j > 0) {
      _tile_loadd(3, sums, 64);
      _tile_loadd(4, sums + kSquare, 64);
      _tile_loadd(5, sums + 2 * kSquare, 64);
      _tile_loadd(6, sums + 3 * kSquare, 64);
    }
    for (int64_t n = 0; n < blocks; ++n, values += kDeep * width_) {
      _tile_loadd(1, shares_ + j + n * kDeep, kBlock * sizeof(Half16));
      _tile_loadd(7, values, 64);
      _tile_dpbf16ps(3, 1, 7);
      _tile_loadd(2, values + kBlockSize, 64);
      _tile_dpbf16ps(4, 1, 2);
      _tile_loadd(7, values + 2 * kBlockSize, 64);
      _tile_dpbf16ps(5, 1, 7);
      _tile_loadd(2, values + 3 * kBlockSize, 64);
      _tile_dpbf16ps(6, 1, 2);
    }
    _tile_stored(3, sums, 64);
    _tile_stored(4, sums + kSquare, 64);
    _tile_stored(5, sums + 2 * kSquare, 64);
    _tile_stored(6, sums + 3 * kSquare, 64);
  }

  const int64_t groups_, width_;
  alignas(64) Half16 queries_[kTall * kWidest], edge_[kTall * kWidest], shares_[kTall * kBlock];
  alignas(64) Half16 turned_[(kTogether * kDeep + kDeep) * kWidest];
  alignas(64) float scores_[kTall * kBlock], sums_[kTall * (kWidest + kDeep)];
};

}  // namespace ringkv

#endif
