// Integer vectors: 16-bit elements with 32-bit sums.

#pragma once

#include "lanes.h"

namespace ringkv {

// A vector has kElements elements.
#if defined(CPU_CAPABILITY_AVX512)
struct IntVector {
  using V = __m512i;
  static constexpr int64_t kElements = 32;
  static V zero() { return _mm512_setzero_si512(); }
  static V load(const int16_t* at) { return _mm512_loadu_si512(at); }
  static V widen(const int8_t* at) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)at)); }
  static V dot(V sum, V a, V b) {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
  }
  static V broadcast2(const int16_t* two) { return _mm512_set1_epi32(word_of(two)); }
  // Interleaves kElements elements of two rows, in the order that `store` expects.
  static void interleave(const int8_t* a, const int8_t* b, V& low, V& high) {
    const __m256i x = _mm256_loadu_si256((const __m256i*)a), y = _mm256_loadu_si256((const __m256i*)b);
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
  // Horizontal sums in three steps: `add2` reduces two vectors to one and `add4` two of its results; `reduce` turns
  // four results of `add4` into sixteen sums, in order.
  static V add2(V a, V b) { return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)); }
  static V add4(V ab, V cd) { return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd)); }
  static V reduce(const V* fours) {
    return add_quarters(add_quarters(fours[0], fours[1]), add_quarters(fours[2], fours[3]));
  }
  static void store_scaled(V sums, float by, const float* scales, float* to) {
    const __m512 each = _mm512_mul_ps(_mm512_loadu_ps(scales), _mm512_set1_ps(by));
    _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(sums), each));
  }
  static void store_sums(V sums, int32_t* to) { _mm512_storeu_si512(to, sums); }
  static constexpr int kFours = 4, kRows = 4 * kFours;  // rows that are reduced together
  static constexpr int kMaxQueries = 6;                 // queries that share a pass
  static constexpr int accumulators(int group) { return group > 3 ? 1 : 2; }  // output vectors kept in registers

  static void quantize16(const float* x, float by, int16_t* to) {  // kLanes elements, rounded
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(by)));
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtsepi32_epi16(rounded));
  }

 private:
  static V add_quarters(V a, V b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  }
};
#else
struct IntVector {
  using V = __m256i;
  static constexpr int64_t kElements = 16;
  static V zero() { return _mm256_setzero_si256(); }
  static V load(const int16_t* at) { return _mm256_loadu_si256((const __m256i*)at); }
  static V widen(const int8_t* at) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)at)); }
  static V dot(V sum, V a, V b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
  static V broadcast2(const int16_t* two) { return _mm256_set1_epi32(word_of(two)); }
  static void interleave(const int8_t* a, const int8_t* b, V& low, V& high) {
    const __m128i x = _mm_loadu_si128((const __m128i*)a), y = _mm_loadu_si128((const __m128i*)b);
    low = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(x, y));
    high = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(x, y));
  }
  static void store(V low, V high, float by, float* to) {
    const __m256 scale = _mm256_set1_ps(by);
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(low), scale));
    _mm256_storeu_ps(to + 8, _mm256_mul_ps(_mm256_cvtepi32_ps(high), scale));
  }
  static V add2(V a, V b) { return _mm256_hadd_epi32(a, b); }
  static V add4(V ab, V cd) { return _mm256_hadd_epi32(ab, cd); }
  static V reduce(const V* fours) {  // eight sums, from two results
    const V low = _mm256_permute2x128_si256(fours[0], fours[1], 0x20);
    return _mm256_add_epi32(low, _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
  }
  static void store_scaled(V sums, float by, const float* scales, float* to) {
    const __m256 each = _mm256_mul_ps(_mm256_loadu_ps(scales), _mm256_set1_ps(by));
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(sums), each));
  }
  static void store_sums(V sums, int32_t* to) { _mm256_storeu_si256((__m256i*)to, sums); }
  static constexpr int kFours = 2, kRows = 4 * kFours;
  static constexpr int kMaxQueries = 4;
  static constexpr int accumulators(int) { return 1; }

  static void quantize16(const float* x, float by, int16_t* to) {
    const __m256i rounded = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(by)));
    const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
    _mm_storeu_si128((__m128i*)to, halves);
  }
};
#endif

}  // namespace ringkv
