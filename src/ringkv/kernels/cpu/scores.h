// Attention scores with tiles: 32 keys, read in place, times a block of 32 queries. And vectors of a softmax.

#pragma once

#include "tiles.h"

#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)

namespace ringkv {

constexpr int64_t kQueryBlock = 2 * kTileN;  // queries processed together, in two halves of 16 lanes
constexpr float kMasked = -1e30f;           // score of a masked key

// Transposes a 16 x 16 matrix of 32-bit elements in place, one vector per row.
inline void transpose(__m512i* rows) {
  __m512i pairs[16], fours[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
  // fours[4 * i + j] now holds column j of each quarter, for rows 4 * i to 4 * i + 3
  for (int j = 0; j < 4; ++j) {
    const __m512i low = _mm512_shuffle_i32x4(fours[j], fours[j + 4], 0x88);
    const __m512i low_odd = _mm512_shuffle_i32x4(fours[j], fours[j + 4], 0xdd);
    const __m512i high = _mm512_shuffle_i32x4(fours[j + 8], fours[j + 12], 0x88);
    const __m512i high_odd = _mm512_shuffle_i32x4(fours[j + 8], fours[j + 12], 0xdd);
    rows[j] = _mm512_shuffle_i32x4(low, high, 0x88);
    rows[j + 4] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
    rows[j + 8] = _mm512_shuffle_i32x4(low, high, 0xdd);
    rows[j + 12] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
  }
}

// Returns 2^x with a relative error below 8e-5, far below the bfloat16 rounding that follows. The caller must hold a
// `NoSubnormals`.
inline __m512 exp2_of(__m512 x) {
  const __m512 part = _mm512_reduce_ps(x, 1);  // x - floor(x)
  __m512 y = _mm512_fmadd_ps(part, _mm512_set1_ps(0.07802446f), _mm512_set1_ps(0.22606716f));
  y = _mm512_fmadd_ps(part, y, _mm512_set1_ps(0.69583354f));
  y = _mm512_fmadd_ps(part, y, _mm512_set1_ps(0.99992522f));
  return _mm512_scalef_ps(y, x);  // y * 2^floor(x)
}

// Sets flush-to-zero and denormals-are-zero for the current thread while the object exists: arithmetic with subnormals
// is about fifty times slower.
class NoSubnormals {
 public:
  NoSubnormals() { _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON); }
  ~NoSubnormals() { _mm_setcsr(before_); }
  NoSubnormals(const NoSubnormals&) = delete;

 private:
  const unsigned before_ = _mm_getcsr();
};
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
