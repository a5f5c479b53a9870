// Block over int8 keys and values: the same partial attention as block.h, in whole numbers.
//
// Keys, values and queries are rotated, and so is what comes out, until all blocks are merged.
// A key or value is 8-bit elements and one float32 scale. Queries and softmax weights become 16-bit numbers, relative to
// the largest of their vector or block, so that products are exact and add up in 32 bits: every processor gets the same
// sums. Rounding a query or a weight to 16 bits changes it by at most 1 / 65534 of that largest one.

#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "block.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
#include <immintrin.h>

namespace ringkv {

// What a block reads: its head's queries as 16-bit numbers [queries, width] with a scale each, and 8-bit keys and values
// [entries, width] with a scale each
struct BlockInt8 {
  const int16_t* query;
  const float* query_scale;
  const int8_t *key, *value;
  const float *key_scale, *value_scale;
  int64_t entries;

  BlockInt8 none() const { return {query, query_scale, key, value, key_scale, value_scale, 0}; }
};

constexpr float kMost8 = 127.f;
constexpr int64_t kNarrow = 256;  // of the widths whose products with 16-bit queries add up in 32 bits

// The largest 16-bit query whose products with `width` 8-bit elements stay in 32 bits
inline float most16(int64_t width) { return width <= kNarrow ? 32767.f : std::floor(32767.f * kNarrow / float(width)); }

// As `rotate` in decode_attend_int8.py: float32 [width] times a Hadamard matrix, in place
inline void rotate(float* x, int64_t width) {
  const int64_t block = width & -width;
  for (int64_t half = 1; half < block; half *= 2)
    for (int64_t i = 0; i < width; i += 2 * half)
      for (int64_t j = i; j < i + half; ++j) {
        const float first = x[j], second = x[j + half];
        x[j] = first + second;
        x[j + half] = first - second;
      }
  const float by = float(std::pow(double(block), -0.5));
  for (int64_t i = 0; i < width; ++i) x[i] *= by;
}

// The rotated x[i] / scale, rounded; returns the scale, which makes the largest element `most`.
template <typename To, typename T>
float to_whole(const T* x, int64_t count, float most, To* to) {
  thread_local std::vector<float> wide;
  wide.resize(count);
  for (int64_t i = 0; i < count; ++i) wide[i] = float(x[i]);
  rotate(wide.data(), count);
  const float largest = at::vec::map_reduce_all<float>(
      [](Vec v) { return v.abs(); }, [](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, wide.data(), count);
  const float scale = largest / most, by = largest > 0.f ? most / largest : 0.f;
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(std::nearbyint(wide[i] * by));
  return scale;
}

// Vectors of whole numbers: W holds 16-bit elements, sums are 32-bit. kWide elements fill a vector.
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

// The products of two keys with each query, to be added up further. So few sums stay in registers.
template <int G>
inline void two_rows(const int8_t* a, const int8_t* b, const int16_t* query, int64_t width, Whole::V* sums) {
  Whole::V first[G], second[G];
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) first[g] = second[g] = Whole::zero();
  for (int64_t d = 0; d < width; d += Whole::kWide) {
    const auto x = Whole::widen(a + d), y = Whole::widen(b + d);
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const auto one = Whole::load(query + g * width + d);
      first[g] = Whole::dot(first[g], x, one);
      second[g] = Whole::dot(second[g], y, one);
    }
  }
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) sums[g] = Whole::two(first[g], second[g]);
}

// scores[g * kBlock + j] = q[g] . key[j]; kRows keys at a time, the last one again where there are fewer
template <int G>
void score_int8(const BlockInt8& block, int64_t from, int64_t width, float scale, float* scores) {
  constexpr int kRows = Whole::kRows;
  const int16_t* query = block.query + from * width;
  for (int64_t j = 0; j < block.entries; j += kRows) {
    fetch<2>(block.value + j * width, kRows, width);
    Whole::V fours[G][Whole::kFours];
    for (int four = 0; four < Whole::kFours; ++four) {
      Whole::V sums[2][G];
      for (int i = 0; i < 4; i += 2) {
        const int64_t first = j + 4 * four + i, last = block.entries - 1;
        two_rows<G>(block.key + std::min(first, last) * width, block.key + std::min(first + 1, last) * width, query,
                    width, sums[i / 2]);
      }
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) fours[g][four] = Whole::four(sums[0][g], sums[1][g]);
    }
    const int64_t rows = std::min<int64_t>(kRows, block.entries - j);
    for (int g = 0; g < G; ++g) {
      const auto sums = Whole::sums(fours[g]);
      const float by = scale * block.query_scale[from + g];
      float* to = scores + g * kBlock + j;
      if (rows == kRows) {
        Whole::scale(sums, by, block.key_scale + j, to);
        continue;
      }
      int32_t whole[kRows];
      Whole::unpack(sums, whole);
      for (int64_t i = 0; i < rows; ++i) to[i] = float(whole[i]) * (block.key_scale[j + i] * by);
    }
  }
}

constexpr int64_t kAsked = 64;  // elements that come from memory together

// out[g][d] = sum over j of weights[g][j] * value[j][d], two entries at a time, for STEPS vectors of d
template <int G, int STEPS>
void sum_columns_int8(const int16_t* weights, const float* by, const int8_t* value, const int8_t* later,
                      int64_t entries, int64_t width, bool ask, float* out) {
  Whole::V low[G][STEPS], high[G][STEPS];
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 2
    for (int s = 0; s < STEPS; ++s) low[g][s] = high[g][s] = Whole::zero();
  for (int64_t j = 0; j < entries; j += 2) {
    const int8_t *a = value + j * width, *b = j + 1 < entries ? a + width : a;  // the weight beyond the end is 0
    if (ask) {
      fetch<2>(later + j * width, 1, kAsked);
      fetch<2>(later + (j + 1) * width, 1, kAsked);
    }
#pragma GCC unroll 2
    for (int s = 0; s < STEPS; ++s) {
      Whole::V first, second;
      Whole::interleave(a + s * Whole::kWide, b + s * Whole::kWide, first, second);
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) {
        const auto weight = Whole::pair(weights + g * kBlock + j);
        low[g][s] = Whole::dot(low[g][s], first, weight);
        high[g][s] = Whole::dot(high[g][s], second, weight);
      }
    }
  }
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 2
    for (int s = 0; s < STEPS; ++s) Whole::store(low[g][s], high[g][s], by[g], out + g * width + s * Whole::kWide);
}

// As `soften`, with an exponential that is exact to 20 of float's last units: the weights are rounded to 16 bits anyway.
inline std::pair<float, float> soften_fast(float* scores, int64_t entries) {
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

// Each weight with its value's scale, as 16-bit numbers, the largest of them 32767, and zeros up to a whole vector;
// returns the scale of these. Changes `weight`, kBlock long.
inline float to_weights(float* weight, const float* value_scale, int64_t entries, int16_t* to) {
  at::vec::map2<float>([](Vec a, Vec b) { return a * b; }, weight, weight, value_scale, entries);
  const float largest =
      at::vec::reduce_all<float>([](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, weight, entries);
  const int64_t padded = (entries + kLanes - 1) / kLanes * kLanes;
  std::fill(weight + entries, weight + padded, 0.f);
  const float by = largest > 0.f ? 32767.f / largest : 0.f;
  for (int64_t j = 0; j < padded; j += kLanes) Whole::narrow(weight + j, by, to + j);
  return largest / 32767.f;
}

// G queries from the block's query `from` on
template <int G>
void attend_group_int8(const BlockInt8& block, int64_t from, int64_t width, float scale, const Partial& to) {
  alignas(64) float scores[G * kBlock];
  alignas(64) int16_t weights[G * kBlock];
  float by[G];
  score_int8<G>(block, from, width, scale, scores);
  for (int g = 0; g < G; ++g) {
    float* weight = scores + g * kBlock;
    std::tie(to.top[from + g], to.sum[from + g]) = soften_fast(weight, block.entries);
    by[g] = to_weights(weight, block.value_scale, block.entries, weights + g * kBlock);
  }
  int64_t d = 0;
  float* out = to.out + from * width;
  const int8_t* later = block.key + block.entries * width;
  constexpr int kSteps = Whole::steps(G);
  for (; d + kSteps * Whole::kWide <= width; d += kSteps * Whole::kWide)
    sum_columns_int8<G, kSteps>(weights, by, block.value + d, later + d, block.entries, width, d % kAsked == 0, out + d);
  if (d < width) sum_columns_int8<G, 1>(weights, by, block.value + d, later + d, block.entries, width, d % kAsked == 0, out + d);
}

// Calls run with the number of queries in a group, at most 6, as a constant.
template <typename Run>
void for_group_int8(int64_t count, const Run& run) {
  if (count > 5) return run(std::integral_constant<int, 6>{});
  if (count > 4) return run(std::integral_constant<int, 5>{});
  for_group(count, run);
}

// Blocks one after the other
class BlockRowsInt8 {
 public:
  BlockRowsInt8(int64_t queries, int64_t width, float scale) : queries_(queries), width_(width), scale_(scale) {}

  void begin(const BlockInt8&) {}
  void attend(const BlockInt8& block, const BlockInt8&, const Partial& to) const {
    const int64_t groups = (queries_ + Whole::kGroup - 1) / Whole::kGroup, most = (queries_ + groups - 1) / groups;
    for (int64_t from = 0; from < queries_; from += most) {
      const auto run = [&](auto count) {
        attend_group_int8<decltype(count)::value>(block, from, width_, scale_, to);
      };
      for_group_int8(std::min(most, queries_ - from), run);
    }
  }

 private:
  const int64_t queries_, width_;
  const float scale_;
};

}  // namespace ringkv

#endif
