// Row of e4m3 elements, as floats: sign, 4 bits of exponent with bias 7, 3 bits of mantissa.

#pragma once

#include "lanes.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
#include <immintrin.h>

namespace ringkv {

struct E4M3 {
  uint8_t bits;
};

// Float16 has the same fields in other places and a bias of 15. So moved bits are the element times 2^-8, subnormal
// ones too. `split` leaves that factor to its callers.
constexpr float kE4M3Factor = 256.f;

template <>
struct Row<E4M3> {
  static Vec dot(Vec sum, const float* query, const E4M3* row) {
    Vec low, high;
    split(row, low, high);
    return at::vec::fmadd(Vec::loadu(query + kLanes), high, at::vec::fmadd(Vec::loadu(query), low, sum));
  }
  static void join(Vec low, Vec high, float* at) { Row<float>::join(low, high, at); }
#if defined(CPU_CAPABILITY_AVX512)
  static void split(const E4M3* at, Vec& low, Vec& high) {
    const __m512i shifted =
        _mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))), 8);
    const __m512i halves = _mm512_and_si512(_mm512_srai_epi16(shifted, 1), _mm512_set1_epi16(int16_t(0xbfff)));
    low = Vec(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)));
    high = Vec(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)));
  }
#else
  static void split(const E4M3* at, Vec& low, Vec& high) {
    const __m256i shifted =
        _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))), 8);
    const __m256i halves = _mm256_and_si256(_mm256_srai_epi16(shifted, 1), _mm256_set1_epi16(int16_t(0xbfff)));
    low = Vec(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)));
    high = Vec(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
  }
#endif
};

}  // namespace ringkv

#endif
