// Block on AMX: the partial attention of block.h, for bfloat16 and at most 16 query heads.
//
// The first product is K Q^T: keys are the left operand, read in place, and queries the right one. The scores are then
// transposed, so that a softmax runs over the keys of one query. Values are the right operand of the second product,
// with two entries interleaved.
//
// Blocks are pipelined: while the values of one are accumulated, the keys of the next are scored. Keys and values are
// read in alternation, in small portions and each prefetched: one core saturates the memory bandwidth only with loads
// always in flight, and the hardware prefetchers then follow both streams. A tile's entries follow each other, in place or
// in a page.

#pragma once

#include "block.h"
#include "scores.h"
#include "tiles.h"

#if defined(__AMX_BF16__) && defined(CPU_CAPABILITY_AVX512)

namespace ringkv {

// Tile registers: 0-3 outputs and 4 weights, with a row per query; 5-6 other operands; 7 scores.
class BlockTiles {
 public:
  BlockTiles(int64_t groups, int64_t width, float scale) : groups_(groups), width_(width), scale_(scale) {
    for (int i = 0; i < 8; ++i) {
      config_.bytes[i] = 64;
      config_.rows[i] = uint8_t(i < 5 ? groups : 16);
    }
    config_.load();
  }
  ~BlockTiles() { _tile_release(); }
  BlockTiles(const BlockTiles&) = delete;
  static_assert(kTileM == kLanes, "a page has whole tiles");

  static bool fit(int64_t groups, int64_t width) {
    return groups <= kTileM && width % kTileK == 0 && width <= kMaxWidth;
  }

  // Scores the first block of a run.
  void begin(const Block<BF16>& block) {
    load_queries(block.query);
    Scoring scoring(block, width_, 1);
    advance(scoring);
    finish(scoring);
  }

  // Attends to `block`, which `begin` or the previous call has scored, and scores `next`, which has no entries at the
  // end of a run.
  void attend(const Block<BF16>& block, const Block<BF16>& next, const Partial& to) {
    const int64_t padded = (block.entries + kTileK - 1) / kTileK * kTileK;
    for (int64_t g = 0; g < groups_; ++g) exponentiate(g, block.entries, padded, to.top + g, to.sum + g);
    if (next.query != block.query) load_queries(next.query);
    Scoring scoring(next, width_, (width_ + kPassWidth - 1) / kPassWidth * padded / kTileM);
    for (int64_t d = 0; d < width_; d += kPassWidth) {
      const BF16* after = d + kPassWidth < width_ ? values(block, 0) + d + kPassWidth : values(next, 0);
      accumulate(block, after, d, padded, scoring, to.out);
    }
    finish(scoring);
  }

 private:
  static constexpr int64_t kMaxWidth = 256, kPassWidth = 2 * kTileK;  // kPassWidth: output columns per pass
  static constexpr int64_t kPrefetchDistance = 1024;  // elements between the prefetch of keys and their use

  // Progress of scoring a block's keys: tiles of 16 keys, spread evenly over a number of steps.
  struct Scoring {
    Scoring(const Block<BF16>& block, int64_t width, int64_t steps)
        : block(block), tiles((block.entries + kTileM - 1) / kTileM), steps(steps), width(width),
          soon(kPrefetchDistance / (kTileM * width)), inside(kPrefetchDistance % (kTileM * width)),
          end(block.in.pages || tiles == 0 ? tiles : tiles + soon + 1) {}

    void prefetch_keys(int64_t count) {  // as many elements as are read of the values meanwhile
      if (soon < end) prefetch<3>(keys(soon) + inside, 1, count);
      inside += count;
      if (inside < kTileM * width) return;
      inside -= kTileM * width;
      ++soon;
    }
    const BF16* keys(int64_t tile) const { return block.key + block.in.place(tile * kTileM) * width; }

    const Block<BF16>& block;
    const int64_t tiles, steps, width;
    int64_t tile = 0, step = 0;
    int64_t soon, inside, end;  // the tile and its element that are prefetched next
  };

  // The values of 16 entries from j on.
  const BF16* values(const Block<BF16>& block, int64_t j) const {
    return block.value + block.in.place(j) * width_;
  }

  void advance(Scoring& scoring) {
    ++scoring.step;
    for (; (scoring.tile + 1) * scoring.steps <= scoring.tiles * scoring.step; ++scoring.tile)
      score(scoring.block, scoring.keys(scoring.tile), scoring.tile * kTileM);
  }
  void finish(const Scoring& scoring) {
    if (scoring.tiles > 0) transpose_scores(score_tiles_[(scoring.tiles - 1) % 2], (scoring.tiles - 1) * kTileM);
  }

  // Computes q[g] . key[j] for 16 keys from j on into a score tile, which the next call transposes into scores_.
  void score(const Block<BF16>& block, const BF16* keys, int64_t j) {
    const int64_t tile = j / kTileM, stride = width_ * sizeof(BF16);
    const BF16* rows = key_tile(keys, block.entries - j, width_, padded_keys_);
    compiler_barrier();
    _tile_zero(7);
    for (int64_t d = 0; d < width_; d += kTileK) {
      _tile_loadd(5, queries_ + d * kTileN, 64);
      _tile_loadd(6, rows + d, stride);
      _tile_dpbf16ps(7, 6, 5);
    }
    _tile_stored(7, score_tiles_[tile % 2], 64);
    if (tile > 0) transpose_scores(score_tiles_[(tile - 1) % 2], j - kTileM);
  }

  // Packs the queries as right operands [width / 32][16 pairs][16 queries][2], padded with the last query.
  void load_queries(const BF16* q) {
    pack_vnni([&](int64_t g) { return q + std::min(g, groups_ - 1) * width_; }, width_, queries_);
  }

  // Transposes a tile [16 keys][16 queries] into rows of scores, four queries at a time.
  void transpose_scores(const float* score_tile, int64_t j) {
    for (int64_t g = 0; g < groups_; g += 4) {
      __m512 rows[4];  // quarter i of rows[k] is key 4 * i + k
      for (int k = 0; k < 4; ++k) {
        const float* at = score_tile + k * kTileN + g;
        rows[k] = _mm512_castps128_ps512(_mm_load_ps(at));
        rows[k] = _mm512_insertf32x4(rows[k], _mm_load_ps(at + 4 * kTileN), 1);
        rows[k] = _mm512_insertf32x4(rows[k], _mm_load_ps(at + 8 * kTileN), 2);
        rows[k] = _mm512_insertf32x4(rows[k], _mm_load_ps(at + 12 * kTileN), 3);
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

  // Turns one query's scores into its softmax weights.
  void exponentiate(int64_t g, int64_t entries, int64_t padded, float* top, float* sum) {
    float* scores = scores_ + g * kBlock;
    for (int64_t j = entries; j < padded; ++j) scores[j] = -1e30f;
    __m512 highest = _mm512_load_ps(scores), total = _mm512_setzero_ps();
    for (int64_t j = kTileN; j < padded; j += kTileN) highest = _mm512_max_ps(highest, _mm512_load_ps(scores + j));
    const float most = _mm512_reduce_max_ps(highest), factor = scale_ * float(M_LOG2E);
    const __m512 by = _mm512_set1_ps(factor), from = _mm512_set1_ps(most * factor);
    for (int64_t j = 0; j < padded; j += kTileK) {
      const __m512 a = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + j), by, from));
      const __m512 b = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + j + kTileN), by, from));
      total = _mm512_add_ps(total, _mm512_add_ps(a, b));
      _mm512_store_si512(weights_ + g * kBlock + j, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
    *top = most * scale_;
    *sum = _mm512_reduce_add_ps(total);
  }

  // out = weights . values, for up to kPassWidth columns from d on. Prefetches `after`, the values that are read next.
  // The values of 32 entries are interleaved while the tiles multiply the previous 32.
  void accumulate(const Block<BF16>& block, const BF16* after, int64_t d, int64_t padded, Scoring& scoring,
                  float* out) {
    const int64_t columns = std::min(width_ - d, kPassWidth);
    const BF16* now = values(block, 0) + d;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t j = 0; j < padded; j += kTileM) {
      const BF16* later = j + kTileM < block.entries ? values(block, j + kTileM) + d : after;
      BF16* pairs = pairs_ + j / kTileK % 2 * kTileK * kPassWidth + j % kTileK * kTileN;
      for (int64_t i = 0; i < kTileM; i += 2) {
        prefetch<3>(later + i * width_, 1, columns);
        prefetch<3>(later + (i + 1) * width_, 1, columns);
        scoring.prefetch_keys(2 * columns);
        interleave(now + i * width_, block.entries - j - i, columns, pairs + i * kTileN);
      }
      now = later;
      advance(scoring);
      if (j >= kTileK && j % kTileK > 0) multiply(j / kTileK * kTileK - kTileK);
    }
    multiply(padded - kTileK);
    _tile_stored(0, sums_, 64);
    _tile_stored(1, sums_ + kTileSums, 64);
    _tile_stored(2, sums_ + 2 * kTileSums, 64);
    _tile_stored(3, sums_ + 3 * kTileSums, 64);
    store_output(d, columns, out);
  }

  // Interleaves the values of an entry and the next into a line of the right operands [width / 16][16 pairs][16][2].
  // Only `left` entries remain.
  void interleave(const BF16* row, int64_t left, int64_t columns, BF16* to) const {
    for (int64_t d = 0; d < columns; d += kTileK) {
      const __m512i even = left > 0 ? _mm512_loadu_si512(row + d) : _mm512_setzero_si512();
      const __m512i odd = left > 1 ? _mm512_loadu_si512(row + width_ + d) : _mm512_setzero_si512();
      _mm512_store_si512(to + d * kTileK, _mm512_unpacklo_epi16(even, odd));
      _mm512_store_si512(to + d * kTileK + kBlockSize, _mm512_unpackhi_epi16(even, odd));
    }
  }

  void multiply(int64_t j) const {
    const BF16* values = pairs_ + j / kTileK % 2 * kTileK * kPassWidth;
    compiler_barrier();
    _tile_loadd(4, weights_ + j, kBlock * sizeof(BF16));
    _tile_loadd(5, values, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, values + kBlockSize, 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(5, values + 2 * kBlockSize, 64);
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(6, values + 3 * kBlockSize, 64);
    _tile_dpbf16ps(3, 4, 6);
  }

  // Stores the output. Interleaving works within quarters of a vector: a first tile has columns 0-3 of each eight, a
  // second 4-7.
  void store_output(int64_t d, int64_t columns, float* out) const {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int64_t g = 0; g < groups_; ++g)
      for (int64_t i = 0; i < columns; i += kTileK) {
        const float* at = sums_ + i * kTileM + g * kTileN;
        const __m512 a = _mm512_load_ps(at), b = _mm512_load_ps(at + kTileSums);
        _mm512_storeu_ps(out + g * width_ + d + i, _mm512_permutex2var_ps(a, first, b));
        _mm512_storeu_ps(out + g * width_ + d + i + kTileN, _mm512_permutex2var_ps(a, second, b));
      }
  }

  const NoSubnormals no_subnormals_;
  const int64_t groups_, width_;
  const float scale_;
  TileConfig config_;
  alignas(64) BF16 queries_[kTileM * kMaxWidth], padded_keys_[kTileM * kMaxWidth], weights_[kTileM * kBlock];
  alignas(64) BF16 pairs_[2 * kTileK * kPassWidth];
  alignas(64) float scores_[kTileM * kBlock], sums_[4 * kTileSums], score_tiles_[2][kTileSums];
};

}  // namespace ringkv

#endif
