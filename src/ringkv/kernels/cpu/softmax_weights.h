// Softmax weights of a block, times the scales of its values, and rounded to two bytes: to 1 / 65535 of the largest of
// the block, or to 1 / 32767 without AVX-512's byte permutations.

#pragma once

#include "block.h"
#include "int_vectors.h"

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define RINGKV_QUADS  // weighted sums are computed in quads, see sum_quads.h
#endif

namespace ringkv {

constexpr int64_t kMaxWeighted = 6;  // queries

#if defined(RINGKV_QUADS)

constexpr float kMaxWeight = 65535.f;

// The rounded weights of some queries, zero-padded to whole vectors: (256 * upper + lower) * by.
struct Weights {
  alignas(64) uint8_t upper[kMaxWeighted][kBlock], lower[kMaxWeighted][kBlock];
  float by[kMaxWeighted];
};

inline __mmask16 first_lanes(int64_t count) { return count < 16 ? __mmask16((1u << count) - 1) : __mmask16(0xffff); }

// Returns e^x for x <= 0, or NaN, with a relative error below 2e-7. Results below 2^-100 become 2^-100: arithmetic with
// subnormals is slow.
inline __m512 exp_of(__m512 x) {
  const __m512 power = _mm512_max_ps(_mm512_set1_ps(-100.f), _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)));
  const __m512 part = _mm512_reduce_ps(power, 1);  // power - floor(power)
  __m512 y = _mm512_fmadd_ps(part, _mm512_set1_ps(1.87757669e-3f), _mm512_set1_ps(8.98934063e-3f));
  y = _mm512_fmadd_ps(part, y, _mm512_set1_ps(5.58263175e-2f));
  y = _mm512_fmadd_ps(part, y, _mm512_set1_ps(0.240153611f));
  y = _mm512_fmadd_ps(part, y, _mm512_set1_ps(0.693153083f));
  y = _mm512_fmadd_ps(part, y, _mm512_set1_ps(0.99999994f));
  return _mm512_scalef_ps(y, power);  // y * 2^floor(power)
}

inline float highest_of(const float* scores, int64_t entries) {
  __m512 top = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int64_t j = 0; j < entries; j += 16)
    top = _mm512_mask_max_ps(top, first_lanes(entries - j), top, _mm512_load_ps(scores + j));
  return _mm512_reduce_max_ps(top);
}

// Replaces scores by exp(score - top) * scale, and those beyond `entries` by zeros, up to a whole vector. Returns the
// sum of the exponentials and the largest product.
inline std::pair<float, float> weigh(float* scores, const float* scale, float top, int64_t entries) {
  __m512 sum = _mm512_setzero_ps();
  __m512i largest = _mm512_setzero_si512();  // bits of positive floats are ordered like them, and NaN comes last
  for (int64_t j = 0; j < entries; j += 16) {
    const __mmask16 live = first_lanes(entries - j);
    const __m512 weight = exp_of(_mm512_sub_ps(_mm512_load_ps(scores + j), _mm512_set1_ps(top)));
    const __m512 product = _mm512_maskz_mul_ps(live, weight, _mm512_maskz_loadu_ps(live, scale + j));
    sum = _mm512_mask_add_ps(sum, live, sum, weight);
    largest = _mm512_max_epu32(largest, _mm512_castps_si512(product));
    _mm512_store_ps(scores + j, product);
  }
  const __m512i most = _mm512_set1_epi32(int(_mm512_reduce_max_epu32(largest)));
  return {_mm512_reduce_add_ps(sum), _mm512_cvtss_f32(_mm512_castsi512_ps(most))};
}

// Replaces the scores of query g by exp(score - maximum) * scale and rounds these products. Returns the maximum and the
// sum of the exponentials. A NaN among the scores makes the sum NaN; one among the scales makes `by` NaN.
inline std::pair<float, float> weigh(float* scores, const float* scale, int64_t entries, int64_t g, Weights& to) {
  const float top = highest_of(scores, entries);
  const auto [sum, largest] = weigh(scores, scale, top, entries);
  const __m512 by = _mm512_set1_ps(largest > 0.f ? kMaxWeight / largest : 0.f);
  for (int64_t j = 0; j < entries; j += 16) {
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(scores + j), by));
    _mm_store_si128(reinterpret_cast<__m128i*>(to.lower[g] + j), _mm512_cvtepi32_epi8(rounded));
    _mm_store_si128(reinterpret_cast<__m128i*>(to.upper[g] + j),
                    _mm512_cvtepi32_epi8(_mm512_srli_epi32(rounded, 8)));
  }
  to.by[g] = largest / kMaxWeight;
  return {top, sum};
}

#else

constexpr float kMaxWeight = 32767.f;

// The rounded weights of some queries, zero-padded to whole vectors: words * by.
struct Weights {
  alignas(64) int16_t words[kMaxWeighted][kBlock];
  float by[kMaxWeighted];
};

// Does what `exponentiate` does with an exponential of 20 ulp: the weights are rounded anyway.
inline std::pair<float, float> exponentiate_fast(float* scores, int64_t entries) {
  const float top =
      at::vec::reduce_all<float>([](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, scores, entries);
  Vec sums(0.f);
  int64_t j = 0;
  for (; j + kLanes <= entries; j += kLanes) {
    const Vec weight = (Vec::loadu(scores + j) - Vec(top)).exp_u20();
    weight.store(scores + j);
    sums = sums + weight;
  }
  float sum = sum_of(sums);
  for (; j < entries; ++j) sum += scores[j] = std::exp(scores[j] - top);
  return {top, sum};
}

// Replaces the scores of query g by exp(score - maximum) * scale and rounds these products. Returns the maximum and the
// sum of the exponentials.
inline std::pair<float, float> weigh(float* scores, const float* scale, int64_t entries, int64_t g, Weights& to) {
  const auto maximum = [](Vec& a, Vec& b) { return at::vec::maximum(a, b); };
  const auto result = exponentiate_fast(scores, entries);
  at::vec::map2<float>([](Vec a, Vec b) { return a * b; }, scores, scores, scale, entries);
  const float largest = at::vec::reduce_all<float>(maximum, scores, entries);
  const int64_t padded = (entries + kLanes - 1) / kLanes * kLanes;
  std::fill(scores + entries, scores + padded, 0.f);
  const float by = largest > 0.f ? kMaxWeight / largest : 0.f;
  for (int64_t j = 0; j < padded; j += kLanes) IntVector::quantize16(scores + j, by, to.words[g] + j);
  to.by[g] = largest / kMaxWeight;
  return result;
}

#endif

}  // namespace ringkv
