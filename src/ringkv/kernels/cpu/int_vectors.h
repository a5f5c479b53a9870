// Integer vectors: 16-bit elements with 32-bit sums.

#pragma once

#include "lanes.h"

namespace ringkv {

// A vector has kElements elements.
struct IntVector {
  using V = Ints;
  static constexpr int64_t kElements = 2 * kLanes;
  static constexpr int kFours = kLanes / 4, kRows = kLanes;  // rows that are reduced together
  static V zero() { return V{}; }
  static V load(const int16_t* at) { return loaded<V>(at); }
  static V widen(const int8_t* at) { return widened_bytes(at); }
  static V dot(V sum, V a, V b) {
#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    return RINGKV_SIMD(add_epi32)(sum, RINGKV_SIMD(madd_epi16)(a, b));
#endif
  }
  static V broadcast2(const int16_t* two) { return RINGKV_SIMD(set1_epi32)(word_of(two)); }
  static void store_scaled(V sums, float by, const float* scales, float* to) {
    (Vec(RINGKV_SIMD(cvtepi32_ps)(sums)) * (Vec::loadu(scales) * Vec(by))).store(to);
  }
  static void store_sums(V sums, int32_t* to) { std::memcpy(to, &sums, sizeof sums); }

  // `interleave` interleaves kElements elements of two rows, in the order that `store` expects. Horizontal sums take three
  // steps: `add2` reduces two vectors to one and `add4` two of its results; `reduce` turns kFours results of `add4` into
  // kRows sums, in order. `quantize16` rounds kLanes elements.
#if defined(CPU_CAPABILITY_AVX512)
  static constexpr int kMaxQueries = 6;  // queries that share a pass
  static constexpr int accumulators(int group) { return group > 3 ? 1 : 2; }  // output vectors kept in registers
  static void interleave(const int8_t* a, const int8_t* b, V& low, V& high) {
    const __m256i x = loaded<__m256i>(a), y = loaded<__m256i>(b);
    low = _mm512_cvtepi8_epi16(_mm256_unpacklo_epi8(x, y));
    high = _mm512_cvtepi8_epi16(_mm256_unpackhi_epi8(x, y));
  }
  static void store(V low, V high, float by, float* to) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const __m512 scale = _mm512_set1_ps(by);
    _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_permutex2var_epi32(low, first, high)), scale));
    _mm512_storeu_ps(to + 16, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_permutex2var_epi32(low, second, high)), scale));
  }
  static V add2(V a, V b) { return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)); }
  static V add4(V ab, V cd) { return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd)); }
  static V reduce(const V* fours) {
    return add_quarters(add_quarters(fours[0], fours[1]), add_quarters(fours[2], fours[3]));
  }
  static void quantize16(const float* x, float by, int16_t* to) {
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(by)));
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtsepi32_epi16(rounded));
  }

 private:
  static V add_quarters(V a, V b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  }
#else
  static constexpr int kMaxQueries = 4;
  static constexpr int accumulators(int) { return 1; }
  static void interleave(const int8_t* a, const int8_t* b, V& low, V& high) {
    const __m128i x = loaded<__m128i>(a), y = loaded<__m128i>(b);
    low = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(x, y));
    high = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(x, y));
  }
  static void store(V low, V high, float by, float* to) {
    (Vec(_mm256_cvtepi32_ps(low)) * Vec(by)).store(to);
    (Vec(_mm256_cvtepi32_ps(high)) * Vec(by)).store(to + 8);
  }
  static V add2(V a, V b) { return _mm256_hadd_epi32(a, b); }
  static V add4(V ab, V cd) { return _mm256_hadd_epi32(ab, cd); }
  static V reduce(const V* fours) {
    const V low = _mm256_permute2x128_si256(fours[0], fours[1], 0x20);
    return _mm256_add_epi32(low, _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
  }
  static void quantize16(const float* x, float by, int16_t* to) {
    const __m256i rounded = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(by)));
    const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
    _mm_storeu_si128((__m128i*)to, halves);
  }
#endif
};

}  // namespace ringkv
