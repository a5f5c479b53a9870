// Byte tiles on AMX: signed rows times unsigned weights, 64 K elements at a time. The sums of a group leave the tiles
// to be scaled.

#pragma once

#include "byte_tiles.h"

namespace ringkv {

// A thread's tile configuration for products of `rows` rows (at most kMR). Registers are used as in tiles_amx.h.
template <bool kScaled>
class ByteTiles {
 public:
  explicit ByteTiles(int64_t rows) : tiles_(rows), rows_(rows) {}
  void shape(int64_t rows) {
    tiles_.shape(rows);
    rows_ = rows;
  }

  // c[m][0..31] (+)= x[m] . two panels, over `blocks` blocks; a row of c has kNR elements.
  void multiply(const RowGroups& x, BytePanel first, BytePanel second, int64_t blocks, float* c, bool add,
                const Ahead&) const {
    for (int64_t k = 0; k < blocks; k += kGroupBlocks) {
      const RowGroup &upper = x.upper[k / kGroupBlocks], &lower = x.lower[k / kGroupBlocks];
      Sums sums;
      sum_up(upper, lower, first.blocks, second.blocks, (std::min(kGroupBlocks, blocks - k) + 1) / 2, sums);
      for (int s = 0; s < 2; ++s) {
        const float* scales = (s ? second : first).scales;
        scale(upper, std::min(rows_, kTileM), sums[s], scales, c + s * kTileN, add || k > 0);
        if (rows_ > kTileM)
          scale(lower, rows_ - kTileM, sums[2 + s], scales, c + kTileM * kNR + s * kTileN, add || k > 0);
      }
      for (BytePanel* panel : {&first, &second})
        *panel = {panel->blocks + kGroupBlocks * kBlockSize, panel->scales + kTileN};
    }
  }

 private:
  static constexpr int64_t kTileBytes = 64, kWeightBytes = kTileM * kTileBytes;  // of a row and of a tile
  struct alignas(64) Sum {
    int32_t of[kTileM][kTileN];
  };
  using Sums = Sum[4];

  // Sums of one group, of `depth` tiles along K.
  void sum_up(const RowGroup& upper, const RowGroup& lower, const uint8_t* first, const uint8_t* second, int64_t depth,
              Sums& sums) const {
    compiler_barrier();
    _tile_zero(0);
    _tile_zero(1);
    if (rows_ > kTileM) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t k = 0; k < depth; ++k) {
      _tile_loadd(6, first + k * kWeightBytes, kTileBytes);
      _tile_loadd(4, upper.elements[0] + k * kTileBytes, kGroup);
      _tile_dpbsud(0, 4, 6);
      _tile_loadd(7, second + k * kWeightBytes, kTileBytes);
      _tile_dpbsud(1, 4, 7);
      if (rows_ <= kTileM) continue;
      _tile_loadd(5, lower.elements[0] + k * kTileBytes, kGroup);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
    _tile_stored(0, &sums[0], kTileBytes);
    _tile_stored(1, &sums[1], kTileBytes);
    if (rows_ > kTileM) {
      _tile_stored(2, &sums[2], kTileBytes);
      _tile_stored(3, &sums[3], kTileBytes);
    }
    compiler_barrier();
  }

  // c (+)= sums of `rows` rows with one panel, scaled.
  static void scale(const RowGroup& x, int64_t rows, const Sum& sums, const float* scales, float* c, bool add) {
    for (int64_t m = 0; m < rows; ++m, c += kNR) {
      const __m512i corrected = _mm512_add_epi32(_mm512_load_si512(sums.of[m]), _mm512_set1_epi32(x.correction[m]));
      __m512 by = _mm512_set1_ps(x.scale[m]);
      if constexpr (kScaled) by = _mm512_mul_ps(by, _mm512_loadu_ps(scales));
      const __m512 sum = _mm512_cvtepi32_ps(corrected);
      _mm512_storeu_ps(c, add ? _mm512_fmadd_ps(sum, by, _mm512_loadu_ps(c)) : _mm512_mul_ps(sum, by));
    }
  }

  Tiles tiles_;
  int64_t rows_;
};

}  // namespace ringkv
