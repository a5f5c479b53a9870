// Dots: vectors of kLanes 32-bit sums of products of bytes, with AVX-512 VNNI, AVX-VNNI or AVX2.
//
// dot(sum, weights, elements) adds to each lane the products of its four unsigned bytes with four signed ones, exactly.

#pragma once

#include "lanes.h"

namespace ringkv {

struct ByteDots {
  using V = Ints;
  static constexpr int kVectors = 2, kRows = kLanes > 8 ? 8 : 6;  // vectors of outputs and rows whose sums stay in registers
  static V all(int32_t value) { return RINGKV_SIMD(set1_epi32)(value); }
  static V load(const uint8_t* at) { return loaded<V>(at); }
  static V broadcast(const int8_t* at) { return all(word_of(at)); }
  static Vec wide(V sums) { return Vec(RINGKV_SIMD(cvtepi32_ps)(sums)); }
  static V dot(V sum, V weights, V elements) {
#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(sum, weights, elements);
#elif !defined(CPU_CAPABILITY_AVX512) && defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, weights, elements);
#else
    const V lower = weights & RINGKV_SIMD(set1_epi16)(255), upper = RINGKV_SIMD(srli_epi16)(weights, 8);
    const V first = RINGKV_SIMD(srai_epi16)(RINGKV_SIMD(slli_epi16)(elements, 8), 8);
    const V even = RINGKV_SIMD(madd_epi16)(lower, first);
    const V odd = RINGKV_SIMD(madd_epi16)(upper, RINGKV_SIMD(srai_epi16)(elements, 8));
    return RINGKV_SIMD(add_epi32)(sum, RINGKV_SIMD(add_epi32)(even, odd));
#endif
  }
};

}  // namespace ringkv
