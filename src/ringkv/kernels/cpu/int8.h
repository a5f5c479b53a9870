// The encoding int8 in integer arithmetic: a vector is rotated int8 elements and one float32 scale.
//
// Products of keys and queries are exact with 32-bit sums, so every processor gets the same sums. Outputs stay rotated
// until all blocks are merged.

#pragma once

#include "encoded_block.h"
#include "int_vectors.h"
#include "sum_quads.h"

namespace ringkv {

using BlockInt8 = EncodedBlock<int8_t, float>;

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__)

constexpr int64_t kColumnBytes = 32;  // bytes of a key that are loaded together

// Loads 32 bytes of each of sixteen keys, `bytes` apart, as columns of four bytes: a 32-bit lane holds those of a key. So
// products with a query's four elements add up without horizontal sums. Keys after `last` repeat it; `mask` excludes
// bytes beyond their ends.
inline void load_columns(const uint8_t* key, int64_t bytes, int64_t last, __mmask32 mask, __m512i* columns) {
  __m512i x[8], y[8];
  const auto row = [&](int64_t i) { return _mm256_maskz_loadu_epi8(mask, key + std::min(i, last) * bytes); };
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const int64_t first = i % 4 + 8 * (i / 4);
    x[i] = _mm512_inserti64x4(_mm512_castsi256_si512(row(first)), row(first + 4), 1);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      x[i + 2 * j] = _mm512_unpacklo_epi64(y[i + j], y[i + j + 2]);
      x[i + 2 * j + 1] = _mm512_unpackhi_epi64(y[i + j], y[i + j + 2]);
    }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    columns[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    columns[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
  }
}

// scores[g * kBlock + j] = q[g] . key[j] * scale, for sixteen keys at a time. Calls step(j, 16) before.
template <int G, typename Step>
void score_int8(const BlockInt8& block, const Query& query, int64_t width, float scale, float* scores,
                const Step& step) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(block.key);
  for (int64_t j = 0; j < block.entries; j += 16) {
    step(j, 16);
    const int64_t last = std::min<int64_t>(15, block.entries - 1 - j);
    __m512i even[G], odd[G];  // two sums each, for more independent chains
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) even[g] = odd[g] = _mm512_setzero_si512();
    for (int64_t d = 0; d < width; d += kColumnBytes) {
      __m512i columns[8];
      load_columns(bytes + j * width + d, width, last, ~__mmask32(0), columns);
#pragma GCC unroll 4
      for (int i = 0; i < 8; i += 2) {
        const __m512i first = _mm512_xor_si512(columns[i], _mm512_set1_epi8(-128));  // unsigned: plus 128
        const __m512i second = _mm512_xor_si512(columns[i + 1], _mm512_set1_epi8(-128));
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) {
          const int8_t* part = query.elements + query.width * g + d + 4 * i;
          even[g] = _mm512_dpbusd_epi32(even[g], first, _mm512_set1_epi32(word_of(part)));
          odd[g] = _mm512_dpbusd_epi32(odd[g], second, _mm512_set1_epi32(word_of(part + 4)));
        }
      }
    }
    const __m512 scales = _mm512_maskz_loadu_ps(__mmask16((2u << last) - 1), block.key_scale + j);
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const __m512i sum = _mm512_add_epi32(even[g], odd[g]);
      const __m512 products = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_set1_epi32(128 * query.sum[g])));
      const __m512 by = _mm512_mul_ps(scales, _mm512_set1_ps(scale * query.scale[g]));
      _mm512_storeu_ps(scores + g * kBlock + j, _mm512_mul_ps(products, by));
    }
  }
}

#else

// Computes the partial sums of two keys with each query. Two keys at a time keep all sums in registers.
template <int G>
inline void dot_two_rows(const int8_t* a, const int8_t* b, const Query& query, int64_t width, IntVector::V* sums) {
  IntVector::V first[G], second[G];
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) first[g] = second[g] = IntVector::zero();
  for (int64_t d = 0; d < width; d += IntVector::kElements) {
    const auto x = IntVector::widen(a + d), y = IntVector::widen(b + d);
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const auto elements = IntVector::load(query.elements + g * query.width + d);
      first[g] = IntVector::dot(first[g], x, elements);
      second[g] = IntVector::dot(second[g], y, elements);
    }
  }
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) sums[g] = IntVector::add2(first[g], second[g]);
}

// scores[g * kBlock + j] = q[g] . key[j] * scale, kRows keys at a time, padded with the last key. Calls step(j, kRows)
// before.
template <int G, typename Step>
void score_int8(const BlockInt8& block, const Query& query, int64_t width, float scale, float* scores,
                const Step& step) {
  constexpr int kRows = IntVector::kRows;
  for (int64_t j = 0; j < block.entries; j += kRows) {
    step(j, kRows);
    IntVector::V fours[G][IntVector::kFours];
    for (int four = 0; four < IntVector::kFours; ++four) {
      IntVector::V sums[2][G];
      for (int i = 0; i < 4; i += 2) {
        const int64_t first = j + 4 * four + i, last = block.entries - 1;
        dot_two_rows<G>(block.key + std::min(first, last) * width, block.key + std::min(first + 1, last) * width,
                        query, width, sums[i / 2]);
      }
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) fours[g][four] = IntVector::add4(sums[0][g], sums[1][g]);
    }
    const int64_t rows = std::min<int64_t>(kRows, block.entries - j);
    for (int g = 0; g < G; ++g) {
      const auto sums = IntVector::reduce(fours[g]);
      const float by = scale * query.scale[g];
      float* to = scores + g * kBlock + j;
      if (rows == kRows) {
        IntVector::store_scaled(sums, by, block.key_scale + j, to);
        continue;
      }
      int32_t products[kRows];
      IntVector::store_sums(sums, products);
      for (int64_t i = 0; i < rows; ++i) to[i] = float(products[i]) * (block.key_scale[j + i] * by);
    }
  }
}

#endif

#if defined(RINGKV_QUADS)

// 32 elements of values.
struct ByteColumns {
  static constexpr LaneOrder kFirst{0, 1, 8}, kSecond{16, 1, 24};
  __mmask32 mask = ~__mmask32(0);
  __m512i first = _mm512_load_si512(kFirst.from), second = _mm512_load_si512(kSecond.from);

  void split(const Quad& quad, __m512i (&x)[2]) const {
    x[0] = quad.lanes(first);
    x[1] = quad.lanes(second);
  }
  static void store(__m512 first, __m512 second, float* to) {
    _mm512_storeu_ps(to, first);
    _mm512_storeu_ps(to + 16, second);
  }
};

#else

constexpr int64_t kLineElements = 64;  // elements in a cache line

// out[g][d] = sum over j of weights[g][j] * value[j][d], two entries at a time, for STEPS vectors of d. Prefetches
// `later`, the next block's keys.
template <int G, int STEPS>
void sum_columns_int8(const Weights& weights, const int8_t* value, const int8_t* later,
                      int64_t entries, int64_t width, bool prefetch_later, float* out) {
  IntVector::V low[G][STEPS], high[G][STEPS];
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 2
    for (int s = 0; s < STEPS; ++s) low[g][s] = high[g][s] = IntVector::zero();
  for (int64_t j = 0; j < entries; j += 2) {
    const int8_t *a = value + j * width, *b = j + 1 < entries ? a + width : a;  // the weight beyond the end is 0
    if (prefetch_later) {
      prefetch<2>(later + j * width, 1, kLineElements);
      prefetch<2>(later + (j + 1) * width, 1, kLineElements);
    }
#pragma GCC unroll 2
    for (int s = 0; s < STEPS; ++s) {
      IntVector::V first, second;
      IntVector::interleave(a + s * IntVector::kElements, b + s * IntVector::kElements, first, second);
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) {
        const auto weight = IntVector::broadcast2(weights.words[g] + j);
        low[g][s] = IntVector::dot(low[g][s], first, weight);
        high[g][s] = IntVector::dot(high[g][s], second, weight);
      }
    }
  }
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 2
    for (int s = 0; s < STEPS; ++s)
      IntVector::store(low[g][s], high[g][s], weights.by[g], out + g * width + s * IntVector::kElements);
}

#endif

// See block_encoded.h.
struct Int8 {
  using Element = int8_t;
  using Scale = float;
  struct Scales {
    const float* value;
    explicit Scales(const BlockInt8& block) : value(block.value_scale) {}
  };

#if defined(RINGKV_QUADS)
  static constexpr int kQueries = kMaxWeighted;
#else
  static constexpr int kQueries = IntVector::kMaxQueries;
#endif
  static constexpr int64_t kScaleBytes = sizeof(Scale);
  static int64_t bytes(int64_t width) { return width; }

  template <typename T>
  static void encode(const T* x, int64_t width, int8_t* to, float* scale, const float* center) {
    *scale = quantize(x, width, to, center);
  }
  static void decode(const int8_t* from, const float* scale, int64_t width, float* to) {
    for (int64_t d = 0; d < width; ++d) to[d] = float(from[d]) * *scale;
  }
  static void order(const int8_t* query, int64_t width, QueryElement* to) { std::copy_n(query, width, to); }

  template <int G, typename Step>
  static void score(const BlockInt8& block, const Scales&, const Query& query, int64_t width, float scale, float* to,
                    const Step& step) {
    score_int8<G>(block, query, width, scale, to, step);
  }
  static float add(const float*, const Scales&, float, int64_t) { return 0.f; }
  template <int G, typename Ahead>
  static void sum(const BlockInt8& block, const Weights& weights, const float* add, int64_t width, Ahead& ahead,
                  float* out) {
#if defined(RINGKV_QUADS)
    const auto* value = reinterpret_cast<const uint8_t*>(block.value);
    for (int64_t d = 0; d < width; d += 32)
      sum_all_quads<G>(weights, add, ByteColumns(), {value + d, width, block.entries}, ahead, width, out + d);
#else
    const int8_t *value = block.value, *later = block.key + block.entries * width;
    const auto columns = [&](auto steps, int64_t d) {
      sum_columns_int8<G, decltype(steps)::value>(weights, value + d, later + d, block.entries, width,
                                                  d % kLineElements == 0, out + d);
    };
    constexpr int kSteps = IntVector::accumulators(G);
    int64_t d = 0;
    for (; d + kSteps * IntVector::kElements <= width; d += kSteps * IntVector::kElements)
      columns(std::integral_constant<int, kSteps>(), d);
    if (d < width) columns(std::integral_constant<int, 1>(), d);
#endif
  }
};

}  // namespace ringkv
