// Block on the tile unit: the same partial attention as block.h, for bfloat16 and at most 16 query heads.
//
// Keys are a tile's rows as they lie, and the queries its columns; the scores are then turned, so that a softmax runs
// over the keys of one query. Values are the right operand of the second product: two entries interleaved.
//
// Blocks go through as in a pipe: while one's values are summed, the next one's keys are scored. Keys and values are
// thus read side by side, a little of each between little pieces of work, and each a little ahead of its use: one core
// keeps the memory busy only if it asks all the time, and hardware then follows both streams.

#pragma once

#include "block.h"
#include "scores.h"
#include "tiles.h"
#include "vectors.h"

#if defined(__AMX_BF16__) && defined(CPU_CAPABILITY_AVX512)

namespace ringkv {

// Tile registers: 0-3 outputs and 4 shares, a row for each query; 5-6 what is multiplied; 7 scores.
class BlockTiles {
 public:
  BlockTiles(int64_t groups, int64_t width, float scale) : groups_(groups), width_(width), scale_(scale) {
    for (int i = 0; i < 8; ++i) {
      shapes_.bytes[i] = 64;
      shapes_.rows[i] = uint8_t(i < 5 ? groups : 16);
    }
    shapes_.load();
  }
  ~BlockTiles() { _tile_release(); }
  BlockTiles(const BlockTiles&) = delete;

  static bool fit(int64_t groups, int64_t width) { return groups <= kTall && width % kDeep == 0 && width <= kWidest; }

  // The first block of a run
  void begin(const Block<BF16>& block) {
    enter(block.query);
    Scoring scoring(block, width_, 1);
    advance(scoring);
    finish(scoring);
  }

  // Attends to `block`, which the call before named as the next one, and scores `next`, which has no entries at the end
  // of a run.
  void attend(const Block<BF16>& block, const Block<BF16>& next, const Partial& to) {
    const int64_t padded = (block.entries + kDeep - 1) / kDeep * kDeep;
    for (int64_t g = 0; g < groups_; ++g) soften(g, block.entries, padded, to.top + g, to.sum + g);
    if (next.query != block.query) enter(next.query);
    Scoring scoring(next, width_, (width_ + kPass - 1) / kPass * padded / kTall);
    for (int64_t d = 0; d < width_; d += kPass) {
      const BF16* after = d + kPass < width_ ? block.value + d + kPass : next.value;
      gather(block, after, d, padded, scoring, to.out);
    }
    finish(scoring);
  }

 private:
  static constexpr int64_t kWidest = 256, kPass = 2 * kDeep;  // of the width whose outputs are summed at once
  static constexpr int64_t kAhead = 1024;                     // numbers between asking for keys and their use

  // The keys of a block, 16 at a time, spread evenly over a number of steps
  struct Scoring {
    Scoring(const Block<BF16>& block, int64_t width, int64_t steps)
        : block(block), tiles((block.entries + kTall - 1) / kTall), steps(steps), soon(block.key + kAhead),
          end(tiles > 0 ? soon + block.entries * width : soon) {}

    void ask(int64_t count) {  // for as many numbers as are read of the values in the meantime
      if (soon < end) fetch<3>(soon, 1, count);
      soon += count;
    }

    const Block<BF16>& block;
    const int64_t tiles, steps;
    int64_t tile = 0, step = 0;
    const BF16 *soon, *end;
  };

  void advance(Scoring& scoring) {
    ++scoring.step;
    for (; (scoring.tile + 1) * scoring.steps <= scoring.tiles * scoring.step; ++scoring.tile)
      score(scoring.block, scoring.tile);
  }
  void finish(const Scoring& scoring) {
    if (scoring.tiles > 0) turn(squares_[(scoring.tiles - 1) % 2], (scoring.tiles - 1) * kTall);
  }

  // scores_[g][j] = q[g] . key[j] for 16 keys, but for the turning, which the next call does
  void score(const Block<BF16>& block, int64_t tile) {
    const int64_t j = tile * kTall, stride = width_ * sizeof(BF16);
    const BF16* keys = block.key + j * width_;
    const BF16* rows = sixteen_keys(keys, block.entries - j, width_, edge_);
    written();
    _tile_zero(7);
    for (int64_t d = 0; d < width_; d += kDeep) {
      _tile_loadd(5, queries_ + d * kWide, 64);
      _tile_loadd(6, rows + d, stride);
      _tile_dpbf16ps(7, 6, 5);
    }
    _tile_stored(7, squares_[tile % 2], 64);
    if (tile > 0) turn(squares_[(tile - 1) % 2], j - kTall);
  }

  // Queries as right operands [width / 32][16 pairs][16 queries][2]; where there are fewer, the last one again
  void enter(const BF16* q) {
    right_operand([&](int64_t g) { return q + std::min(g, groups_ - 1) * width_; }, width_, queries_);
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

  // out = shares . values, for 64 of the width from d on; `after` are the values that are read then. 32 entries' values
  // are interleaved while the tiles multiply those before them.
  void gather(const Block<BF16>& block, const BF16* after, int64_t d, int64_t padded, Scoring& scoring, float* out) {
    const int64_t wide = std::min(width_ - d, kPass);
    const BF16* value = block.value + d;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t j = 0; j < padded; j += kTall) {
      const BF16* later = j + kTall < padded ? value + (j + kTall) * width_ : after;
      BF16* turned = turned_ + j / kDeep % 2 * kDeep * kPass + j % kDeep * kWide;
      for (int64_t i = 0; i < kTall; i += 2) {
        fetch<3>(later + i * width_, 1, wide);
        fetch<3>(later + (i + 1) * width_, 1, wide);
        scoring.ask(2 * wide);
        interleave(value, j + i, block.entries, wide, turned + i * kWide);
      }
      advance(scoring);
      if (j >= kDeep && j % kDeep > 0) multiply(j / kDeep * kDeep - kDeep);
    }
    multiply(padded - kDeep);
    _tile_stored(0, sums_, 64);
    _tile_stored(1, sums_ + kSquare, 64);
    _tile_stored(2, sums_ + 2 * kSquare, 64);
    _tile_stored(3, sums_ + 3 * kSquare, 64);
    leave(d, wide, out);
  }

  // Two entries, j and j + 1, become a line of the right operands [width / 16][16 pairs][16][2]
  void interleave(const BF16* value, int64_t j, int64_t entries, int64_t wide, BF16* to) const {
    const BF16* row = value + j * width_;
    for (int64_t d = 0; d < wide; d += kDeep) {
      const __m512i even = j < entries ? _mm512_loadu_si512(row + d) : _mm512_setzero_si512();
      const __m512i odd = j + 1 < entries ? _mm512_loadu_si512(row + width_ + d) : _mm512_setzero_si512();
      _mm512_store_si512(to + d * kDeep, _mm512_unpacklo_epi16(even, odd));
      _mm512_store_si512(to + d * kDeep + kBlockSize, _mm512_unpackhi_epi16(even, odd));
    }
  }

  void multiply(int64_t j) const {
    const BF16* values = turned_ + j / kDeep % 2 * kDeep * kPass;
    written();
    _tile_loadd(4, shares_ + j, kBlock * sizeof(BF16));
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

  const NoSubnormals flushed_;
  const int64_t groups_, width_;
  const float scale_;
  TileConfig shapes_;
  alignas(64) BF16 queries_[kTall * kWidest], edge_[kTall * kWidest], shares_[kTall * kBlock];
  alignas(64) BF16 turned_[2 * kDeep * kPass];
  alignas(64) float scores_[kTall * kBlock], sums_[4 * kSquare], squares_[2][kSquare];
};

}  // namespace ringkv

#endif
