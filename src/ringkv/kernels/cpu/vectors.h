// AVX-512 helpers that the attention kernels and window_votes share.

#pragma once

#include <immintrin.h>

namespace ringkv {

#if defined(__AVX512DQ__)
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
#endif

}  // namespace ringkv
