// Dots: vectors of kLanes 32-bit sums of products of bytes, with AVX-512 VNNI, AVX-VNNI or AVX2.
//
// dot(sum, weights, elements) adds to each lane the products of its four unsigned bytes with four signed ones, exactly.

#pragma once

#include "lanes.h"

namespace ringkv {

#if defined(CPU_CAPABILITY_AVX512)

struct ByteDots {
  using V = __m512i;
  static constexpr int kVectors = 2, kRows = 8;  // vectors of outputs and rows whose sums stay in registers
  static V all(int32_t value) { return _mm512_set1_epi32(value); }
  static V load(const uint8_t* at) { return _mm512_loadu_si512(at); }
  static V broadcast(const int8_t* at) { return _mm512_set1_epi32(word_of(at)); }
  static Vec wide(V sums) { return Vec(_mm512_cvtepi32_ps(sums)); }
  static V dot(V sum, V weights, V elements) {
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(sum, weights, elements);
#else
    const V even = _mm512_madd_epi16(_mm512_and_si512(weights, _mm512_set1_epi16(255)),
                                     _mm512_srai_epi16(_mm512_slli_epi16(elements, 8), 8));
    const V odd = _mm512_madd_epi16(_mm512_srli_epi16(weights, 8), _mm512_srai_epi16(elements, 8));
    return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
#endif
  }
};

#else

struct ByteDots {
  using V = __m256i;
  static constexpr int kVectors = 2, kRows = 6;
  static V all(int32_t value) { return _mm256_set1_epi32(value); }
  static V load(const uint8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
  static V broadcast(const int8_t* at) { return _mm256_set1_epi32(word_of(at)); }
  static Vec wide(V sums) { return Vec(_mm256_cvtepi32_ps(sums)); }
  static V dot(V sum, V weights, V elements) {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, weights, elements);
#else
    const V even = _mm256_madd_epi16(_mm256_and_si256(weights, _mm256_set1_epi16(255)),
                                     _mm256_srai_epi16(_mm256_slli_epi16(elements, 8), 8));
    const V odd = _mm256_madd_epi16(_mm256_srli_epi16(weights, 8), _mm256_srai_epi16(elements, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
#endif
  }
};

#endif

}  // namespace ringkv
