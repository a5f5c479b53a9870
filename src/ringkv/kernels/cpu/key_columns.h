// Columns of four bytes of sixteen keys: a 32-bit lane holds those of one key. So products with a query's four elements
// add up without horizontal sums.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__)
#include <immintrin.h>

namespace ringkv {

constexpr int64_t kColumnBytes = 32;  // bytes of a key that are loaded together

// Loads 32 bytes of each of sixteen keys, `bytes` apart, as columns of four bytes. Keys after `last` repeat it; `mask`
// excludes bytes beyond their ends.
inline void load_columns(const uint8_t* key, int64_t bytes, int64_t last, __mmask32 mask, __m512i* columns) {
  __m512i x[8], y[8];
  const auto row = [&](int64_t i) { return _mm256_maskz_loadu_epi8(mask, key + std::min(i, last) * bytes); };
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const int64_t first = i % 4 + 8 * (i / 4);
    x[i] = _mm512_inserti64x4(_mm512_castsi256_si512(row(first)), row(first + 4), 1);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      x[i + 2 * j] = _mm512_unpacklo_epi64(y[i + j], y[i + j + 2]);
      x[i + 2 * j + 1] = _mm512_unpackhi_epi64(y[i + j], y[i + j + 2]);
    }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    columns[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    columns[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
  }
}

inline __m512i broadcast4(const int8_t* four) {
  int32_t all;
  std::memcpy(&all, four, sizeof(all));
  return _mm512_set1_epi32(all);
}

}  // namespace ringkv

#endif
