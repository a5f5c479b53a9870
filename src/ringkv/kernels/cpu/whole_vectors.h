// Vectors of whole numbers: 16-bit elements, 32-bit sums.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
#include <immintrin.h>

namespace ringkv {

// kWide elements fill a vector.
#if defined(CPU_CAPABILITY_AVX512)
struct Whole {
  using V = __m512i;
  static constexpr int64_t kWide = 32;
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
  static V pair(const int16_t* two) {  // the same two numbers everywhere
    int32_t both;
    std::memcpy(&both, two, sizeof(both));
    return _mm512_set1_epi32(both);
  }
  // Elements of two rows side by side, kWide of each: in `low` and `high` as `store` expects them
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
  // Vectors are added up in three steps: two of them become one, then two such results; `sums` gives sixteen sums in
  // order, of four results of the second step.
  static V two(V a, V b) { return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)); }
  static V four(V ab, V cd) { return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd)); }
  static V sums(const V* fours) { return quarters(quarters(fours[0], fours[1]), quarters(fours[2], fours[3])); }
  static void scale(V sums, float by, const float* scales, float* to) {
    const __m512 each = _mm512_mul_ps(_mm512_loadu_ps(scales), _mm512_set1_ps(by));
    _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(sums), each));
  }
  static void unpack(V sums, int32_t* to) { _mm512_storeu_si512(to, sums); }
  static constexpr int kFours = 4, kRows = 4 * kFours;  // rows whose sums come together
  static constexpr int kGroup = 6;                      // queries that share a pass
  static constexpr int steps(int group) { return group > 3 ? 1 : 2; }  // vectors of outputs that stay in registers

  static void narrow(const float* x, float by, int16_t* to) {  // kLanes elements, rounded
    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(by)));
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtsepi32_epi16(whole));
  }

 private:
  static V quarters(V a, V b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  }
};
#elif defined(CPU_CAPABILITY_AVX2)
struct Whole {
  using V = __m256i;
  static constexpr int64_t kWide = 16;
  static V zero() { return _mm256_setzero_si256(); }
  static V load(const int16_t* at) { return _mm256_loadu_si256((const __m256i*)at); }
  static V widen(const int8_t* at) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)at)); }
  static V dot(V sum, V a, V b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
  static V pair(const int16_t* two) {
    int32_t both;
    std::memcpy(&both, two, sizeof(both));
    return _mm256_set1_epi32(both);
  }
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
  static V two(V a, V b) { return _mm256_hadd_epi32(a, b); }
  static V four(V ab, V cd) { return _mm256_hadd_epi32(ab, cd); }
  static V sums(const V* fours) {  // eight, of two results
    const V low = _mm256_permute2x128_si256(fours[0], fours[1], 0x20);
    return _mm256_add_epi32(low, _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
  }
  static void scale(V sums, float by, const float* scales, float* to) {
    const __m256 each = _mm256_mul_ps(_mm256_loadu_ps(scales), _mm256_set1_ps(by));
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(sums), each));
  }
  static void unpack(V sums, int32_t* to) { _mm256_storeu_si256((__m256i*)to, sums); }
  static constexpr int kFours = 2, kRows = 4 * kFours;
  static constexpr int kGroup = 4;
  static constexpr int steps(int) { return 1; }

  static void narrow(const float* x, float by, int16_t* to) {
    const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(by)));
    const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storeu_si128((__m128i*)to, halves);
  }
};
#endif

}  // namespace ringkv

#endif
