// Vector pieces that both attentions share, for processors with 512-bit vectors.

#pragma once

#include <immintrin.h>

namespace ringkv {

#if defined(__AVX512F__)
// A 16 x 16 matrix of 32-bit numbers, one row a vector, in place.
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
// 2^x for x <= 0, with a relative error under 8e-5: far below the rounding to bfloat16 that follows
inline __m512 exp2_of(__m512 x) {
  const __m512 magic = _mm512_set1_ps(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  x = _mm512_max_ps(x, _mm512_set1_ps(-100.f));
  const __m512 whole = _mm512_add_ps(x, magic), part = _mm512_sub_ps(x, _mm512_sub_ps(whole, magic));
  __m512 y = _mm512_fmadd_ps(part, _mm512_set1_ps(0.05508868f), _mm512_set1_ps(0.24260405f));
  y = _mm512_fmadd_ps(part, y, _mm512_set1_ps(0.69327624f));
  y = _mm512_fmadd_ps(part, y, _mm512_set1_ps(0.99992894f));
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(y), _mm512_slli_epi32(_mm512_castps_si512(whole), 23)));
}
#endif

}  // namespace ringkv
