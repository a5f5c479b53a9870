// Scores on the tiles: 32 keys, as they lie, times a strip of 32 queries.

#pragma once

#include "tiles.h"
#include "vectors.h"

#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)

namespace ringkv {

constexpr int64_t kStrip = 2 * kWide;        // queries that are taken together, in two halves of 16 lanes
constexpr float kHidden = -1e30f;            // the score of a key that a query does not see

// 16 rows, row(0) to row(15), as a right operand [width / 32][16 pairs][16 rows][2]
template <typename Row>
void right_operand(const Row& row, int64_t width, BF16* to) {
  for (int64_t d = 0; d < width; d += kDeep) {
    __m512i lines[16];
    for (int64_t i = 0; i < kWide; ++i) lines[i] = _mm512_loadu_si512(row(i) + d);
    transpose(lines);
    for (int64_t i = 0; i < kWide; ++i) _mm512_storeu_si512(to + d * kWide + i * kDeep, lines[i]);
  }
}

// 16 keys where a tile can read them: a copy, filled up with zeros, where only `left` are there
inline const BF16* sixteen_keys(const BF16* keys, int64_t left, int64_t width, BF16* copy) {
  if (left >= kTall) return keys;
  std::memset(copy, 0, kTall * width * sizeof(BF16));
  if (left > 0) std::memcpy(copy, keys, left * width * sizeof(BF16));
  return copy;
}

// Where key j's scores are among those of a strip, for one half
inline int64_t place(int64_t j, int64_t half) { return (j / kTall * 2 + half) * kSquare + j % kTall * kWide; }

// Scores [2 key tiles][half][16 keys][16 queries]
inline void score_keys(const BF16* upper, const BF16* lower, const BF16* queries, int64_t width, float* to) {
  multiply_four({upper, lower, width, kDeep}, queries, queries + kWide * width, width / kDeep,
                {to, kWide, kSquare, 2 * kSquare}, false);
}

}  // namespace ringkv

#endif
