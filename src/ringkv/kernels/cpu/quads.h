// Quads: blocks of int8 weights in the order of dot products of bytes.

#pragma once

#include "tiles.h"

namespace ringkv {

constexpr int64_t kQuadLine = 4 * kTileN;  // bytes of a line
constexpr int64_t kBlockLines = kBlockSize / kQuadLine;

#if defined(CPU_CAPABILITY_AVX512)

// Converts a line of two pair rows, [2][16 outputs][2], to one of quads.
inline __m512i quads_of(const uint8_t* line) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_xor_si512(_mm512_permutexvar_epi16(order, _mm512_loadu_si512(line)), _mm512_set1_epi8(int8_t(0x80)));
}

inline void write_quads(const uint8_t* pairs, uint8_t* to) {
  for (int64_t i = 0; i < kBlockSize; i += kQuadLine) _mm512_storeu_si512(to + i, quads_of(pairs + i));
}

#else

inline void write_quads(const uint8_t* pairs, uint8_t* to) {
  const auto load = [](const uint8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); };
  const auto store = [](uint8_t* at, __m128i quads) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm_xor_si128(quads, _mm_set1_epi8(int8_t(0x80))));
  };
  for (int64_t i = 0; i < kBlockSize; i += kQuadLine, pairs += kQuadLine, to += kQuadLine)
    for (int64_t half = 0; half < 2; ++half) {
      const __m128i first = load(pairs + 16 * half), second = load(pairs + 2 * kTileN + 16 * half);
      store(to + 32 * half, _mm_unpacklo_epi16(first, second));
      store(to + 32 * half + 16, _mm_unpackhi_epi16(first, second));
    }
}

#endif

}  // namespace ringkv
