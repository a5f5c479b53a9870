// Dots: vectors of kLanes 32-bit sums of products of bytes, with AVX-512 VNNI, AVX-VNNI, AVX2 or plain C++.
//
// dot(sum, weights, elements) adds to each lane the products of its four unsigned bytes with four signed ones, exactly.

#pragma once

#include <cstdint>
#include <cstring>

#include "lanes.h"

namespace ringkv {

inline int32_t four_bytes(const int8_t* at) {
  int32_t all;
  std::memcpy(&all, at, sizeof all);
  return all;
}

#if defined(CPU_CAPABILITY_AVX512)

struct ByteDots {
  using V = __m512i;
  static constexpr int kVectors = 2, kRows = 8;  // vectors of outputs and rows whose sums stay in registers
  static V all(int32_t value) { return _mm512_set1_epi32(value); }
  static V load(const uint8_t* at) { return _mm512_loadu_si512(at); }
  static V broadcast(const int8_t* at) { return _mm512_set1_epi32(four_bytes(at)); }
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

#elif defined(CPU_CAPABILITY_AVX2)

struct ByteDots {
  using V = __m256i;
  static constexpr int kVectors = 2, kRows = 6;
  static V all(int32_t value) { return _mm256_set1_epi32(value); }
  static V load(const uint8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
  static V broadcast(const int8_t* at) { return _mm256_set1_epi32(four_bytes(at)); }
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

#else

struct ByteDots {
  struct V {
    int32_t of[kLanes];
  };
  static constexpr int kVectors = 1, kRows = 4;
  static V all(int32_t value) {
    V result;
    for (int32_t& lane : result.of) lane = value;
    return result;
  }
  static V load(const uint8_t* at) {
    V result;
    std::memcpy(result.of, at, sizeof result.of);
    return result;
  }
  static V broadcast(const int8_t* at) { return all(four_bytes(at)); }
  static Vec wide(V sums) {
    float wide[kLanes];
    for (int i = 0; i < kLanes; ++i) wide[i] = float(sums.of[i]);
    return Vec::loadu(wide);
  }
  static V dot(V sum, V weights, V elements) {
    for (int i = 0; i < kLanes; ++i)
      for (int shift = 0; shift < 32; shift += 8)
        sum.of[i] += int32_t(uint8_t(weights.of[i] >> shift)) * int32_t(int8_t(elements.of[i] >> shift));
    return sum;
  }
};

#endif

}  // namespace ringkv
