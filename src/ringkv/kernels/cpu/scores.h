// Attention scores with tiles: 32 keys, read in place, times a block of 32 queries.

#pragma once

#include "tiles.h"
#include "vectors.h"

#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)

namespace ringkv {

constexpr int64_t kQueryBlock = 2 * kTileN;  // queries processed together, in two halves of 16 lanes
constexpr float kMasked = -1e30f;           // score of a masked key

// Packs 16 rows, row(0) to row(15), as a right operand in VNNI layout, [width / 32][16 pairs][16 rows][2].
template <typename Row>
void pack_vnni(const Row& row, int64_t width, BF16* to) {
  for (int64_t d = 0; d < width; d += kTileK) {
    __m512i lines[16];
    for (int64_t i = 0; i < kTileN; ++i) lines[i] = _mm512_loadu_si512(row(i) + d);
    transpose(lines);
    for (int64_t i = 0; i < kTileN; ++i) _mm512_storeu_si512(to + d * kTileN + i * kTileK, lines[i]);
  }
}

// Returns 16 keys that a tile can load: `keys`, or a zero-padded copy if only `left` keys remain.
inline const BF16* key_tile(const BF16* keys, int64_t left, int64_t width, BF16* copy) {
  if (left >= kTileM) return keys;
  std::memset(copy, 0, kTileM * width * sizeof(BF16));
  if (left > 0) std::memcpy(copy, keys, left * width * sizeof(BF16));
  return copy;
}

// Offset of key j's scores within those of a query block, for one half.
inline int64_t score_offset(int64_t j, int64_t half) {
  return (j / kTileM * 2 + half) * kTileSums + j % kTileM * kTileN;
}

// Computes scores [2 key tiles][half][16 keys][16 queries].
inline void score_keys(const BF16* upper, const BF16* lower, const BF16* queries, int64_t width, float* to) {
  multiply_four({upper, lower, width, kTileK}, queries, queries + kTileN * width, width / kTileK,
                {to, kTileN, kTileSums, 2 * kTileSums}, false);
}

}  // namespace ringkv

#endif
