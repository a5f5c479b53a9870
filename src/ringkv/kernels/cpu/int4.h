// The encoding int4 in integer arithmetic: a vector is packed nibbles, and a scale and a minimum in float16.
//
// A rotated element is level * scale + minimum; see levels.h. A value's element is also (level + offset) * scale. So a
// weighted sum of values is a sum of levels, plus the weighted sum of offsets, which is the same for all elements of
// the rotated output. Both sums have the same rounded weights.

#pragma once

#include "int8.h"
#include "levels.h"

namespace ringkv {

using BlockInt4 = EncodedBlock<uint8_t, c10::Half>;

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__)

// Orders a chunk of a query as its keys' nibbles come: for each four bytes the lower nibbles, then the upper ones.
inline void order_chunk(const int8_t* from, int64_t words, QueryElement* to) {
  for (int64_t i = 0; i < words; i += 2)
    for (int64_t upper = 0; upper < 2; ++upper)
      for (int64_t word = i; word < i + 2; ++word) {
        *to++ = from[upper * words + word];
        *to++ = from[(2 + upper) * words + word];
      }
}

// products[g * kBlock + j] = query[g] . levels of key[j], for sixteen keys at a time: one per lane. Calls
// step(j, 16) before.
template <int G, typename Step>
void multiply_levels(const BlockInt4& block, const Query& query, int64_t width, int32_t* products, const Step& step) {
  const int64_t bytes = width / 2;
  const __m512i nibble = _mm512_set1_epi8(15);
  for (int64_t j = 0; j < block.entries; j += 16) {
    step(j, 16);
    const int64_t last = std::min<int64_t>(15, block.entries - 1 - j);
    __m512i lower[G], upper[G];
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) lower[g] = upper[g] = _mm512_setzero_si512();
    for (int64_t d = 0; d < width; d += kChunk) {
      const __mmask32 mask = width - d < kChunk ? 0xffff : 0xffffffff;
      __m512i columns[8];
      load_columns(block.key + j * bytes + d / 2, bytes, last, mask, columns);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const __m512i low = _mm512_and_si512(columns[i], nibble);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(columns[i], 4), nibble);
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) {
          const int8_t* part = query.elements + query.width * g + d + 8 * i;
          lower[g] = _mm512_dpbusd_epi32(lower[g], low, _mm512_set1_epi32(word_of(part)));
          upper[g] = _mm512_dpbusd_epi32(upper[g], high, _mm512_set1_epi32(word_of(part + 4)));
        }
      }
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g)
      _mm512_storeu_si512(products + g * kBlock + j, _mm512_add_epi32(lower[g], upper[g]));
  }
}

#else

// Orders a chunk of a query as its keys' nibbles come, 16 elements for each nibble of a word.
inline void order_chunk(const int8_t* from, int64_t words, QueryElement* to) {
  for (int64_t n = 0; n < 4; ++n) std::copy_n(from + n * words, words, to + n * 16);
}

// Returns the sums of eight vectors, in order.
inline __m256i eight_sums(const __m256i* v) {
  const auto four = [&](int i) {
    return _mm256_hadd_epi32(_mm256_hadd_epi32(v[i], v[i + 1]), _mm256_hadd_epi32(v[i + 2], v[i + 3]));
  };
  const __m256i low = four(0), high = four(4);
  return _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
}

// Loads 32 bytes, or 16 and zeros.
inline __m256i load_chunk(const uint8_t* at, bool is_full) {
  return is_full ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))
                  : _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

// Adds the products of a chunk's levels with each query.
template <int G>
inline void add_chunk(__m256i words, const QueryElement* query, int64_t padded, __m256i* sums) {
  const __m256i nibble = _mm256_set1_epi16(15);
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) {
    const __m256i levels = _mm256_and_si256(_mm256_srli_epi16(words, 4 * n), nibble);
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const auto* part = reinterpret_cast<const __m256i*>(query + padded * g + n * 16);
      sums[g] = _mm256_add_epi32(sums[g], _mm256_madd_epi16(levels, _mm256_loadu_si256(part)));
    }
  }
}

// products[g * kBlock + j] = query[g] . levels of key[j], eight keys at a time, padded with the last key. Calls
// step(j, 8) before.
template <int G, typename Step>
void multiply_levels(const BlockInt4& block, const Query& query, int64_t width, int32_t* products, const Step& step) {
  const int64_t bytes = width / 2;
  for (int64_t j = 0; j < block.entries; j += 8) {
    step(j, 8);
    __m256i sums[G][8];
    for (int64_t i = 0; i < 8; ++i) {
      const uint8_t* key = block.key + std::min(j + i, block.entries - 1) * bytes;
      __m256i of_key[G];
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) of_key[g] = _mm256_setzero_si256();
      for (int64_t d = 0; d < width; d += kChunk)
        add_chunk<G>(load_chunk(key + d / 2, width - d >= kChunk), query.elements + d, query.width, of_key);
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) sums[g][i] = of_key[g];
    }
    for (int g = 0; g < G; ++g)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(products + g * kBlock + j), eight_sums(sums[g]));
  }
}

#endif

// scores[g * kBlock + j] = q[g] . key[j] * scale
template <int G, typename Step>
void score_int4(const BlockInt4& block, const Ranges& keys, const Query& query, int64_t width, float scale,
                float* scores, const Step& step) {
  alignas(64) int32_t products[G * kBlock];
  multiply_levels<G>(block, query, width, products, step);
  for (int g = 0; g < G; ++g) {
    const float by = scale * query.scale[g], sum = scale * (query.scale[g] * float(query.sum[g]));
    for (int64_t j = 0; j < block.entries; ++j)
      scores[g * kBlock + j] = keys.scale[j] * (float(products[g * kBlock + j]) * by) + keys.minimum[j] * sum;
  }
}

// What is added to a level of a value before its scale multiplies it.
struct Offsets {
  alignas(64) float at[kBlock];

  Offsets(const Ranges& ranges, int64_t entries) {
    for (int64_t j = 0; j < entries; ++j) at[j] = ranges.minimum[j] / ranges.scale[j];
  }
};

// Returns the sum of offsets with weights that are rounded to multiples of `by`.
inline float sum_offsets(const float* weight, const Offsets& offsets, float by, int64_t entries) {
  const Vec inverse(by > 0.f ? 1.f / by : 0.f);
  return by * at::vec::map2_reduce_all<float>([inverse](Vec a, Vec b) { return (a * inverse).round() * b; },
                                              [](Vec a, Vec b) { return a + b; }, weight, offsets.at, entries);
}

#if defined(RINGKV_QUADS)

// 32 elements of values: those of the lower or upper bytes of a chunk's words.
struct NibbleColumns {
  static constexpr LaneOrder kLower{0, 2, 16}, kUpper{1, 2, 17};
  __mmask32 mask = ~__mmask32(0);
  __m512i order;

  explicit NibbleColumns(bool is_upper) : order(_mm512_load_si512(is_upper ? kUpper.from : kLower.from)) {}
  void split(const Quad& quad, __m512i (&x)[2]) const {
    const __m512i bytes = quad.lanes(order), nibble = _mm512_set1_epi8(15);
    x[0] = _mm512_and_si512(bytes, nibble);
    x[1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble);
  }
  static void store(__m512 first, __m512 second, float* to) {
    _mm512_storeu_ps(to, first);
    _mm512_storeu_ps(to + 16, second);
  }

 protected:
  NibbleColumns(__mmask32 bytes, const LaneOrder& lanes) : mask(bytes), order(_mm512_load_si512(lanes.from)) {}
};

// A chunk of 32 elements in 16 bytes: lower bytes of its words come first, then upper ones.
struct ShortChunk : NibbleColumns {
  static constexpr LaneOrder kBoth{0, 2, 1};

  ShortChunk() : NibbleColumns(0xffff, kBoth) {}
  static void store(__m512 first, __m512 second, float* to) {
    _mm512_storeu_ps(to, _mm512_shuffle_f32x4(first, second, 0x44));
    _mm512_storeu_ps(to + 16, _mm512_shuffle_f32x4(first, second, 0xee));
  }
};

#else

// Levels of two entries, interleaved: kWords words of each, and each nibble of them is a vector of pairs.
struct LevelPairs {
  using V = IntVector::V;
  static constexpr int64_t kWords = kLanes;
  static constexpr int kMaxQueries = kLanes > 8 ? 6 : 3;  // queries that share a pass
  V words;

  LevelPairs(const uint8_t* a, const uint8_t* b, int64_t count)
      : words(widen(a, count) | RINGKV_SIMD(slli_epi32)(widen(b, count), 16)) {}
  template <int N>
  V nibble() const {
    return RINGKV_SIMD(srli_epi16)(words, 4 * N) & RINGKV_SIMD(set1_epi16)(15);
  }
  static void store(V sums, float by, float add, float* to, int64_t count) {
    const auto scaled = at::vec::fmadd(Vec(RINGKV_SIMD(cvtepi32_ps)(sums)), Vec(by), Vec(add));
#if defined(CPU_CAPABILITY_AVX512)
    _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), scaled);
#else
    scaled.store(to);
#endif
  }

 private:
  static V widen(const uint8_t* at, int64_t count) {
#if defined(CPU_CAPABILITY_AVX512)
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(__mmask16((1u << count) - 1), at));
#else
    return _mm256_cvtepu16_epi32(loaded<HalfInts>(at));
#endif
  }
};

// out[g * width + n * stride + i] = sum over j of weights[g][j] * nibble n of word i of value[j], for `count` words of
// entries that are `bytes` apart. Prefetches `later`, the next block's keys, if it is not null.
template <int G>
void sum_levels(const Weights& weights, const float* add, const uint8_t* value, const uint8_t* later, int64_t entries,
                int64_t bytes, int64_t count, int64_t stride, int64_t width, float* out) {
  IntVector::V sums[G][4];
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) sums[g][n] = IntVector::zero();
  for (int64_t j = 0; j < entries; j += 2) {
    const uint8_t *a = value + j * bytes, *b = j + 1 < entries ? a + bytes : a;  // the weight beyond the end is 0
    if (later) prefetch<2>(later + j * bytes, 2, bytes);
    const LevelPairs pairs(a, b, count);
    const IntVector::V levels[4] = {pairs.nibble<0>(), pairs.nibble<1>(), pairs.nibble<2>(), pairs.nibble<3>()};
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const auto weight = IntVector::broadcast2(weights.words[g] + j);
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) sums[g][n] = IntVector::dot(sums[g][n], levels[n], weight);
    }
  }
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n)
      LevelPairs::store(sums[g][n], weights.by[g], add[g], out + g * width + n * stride, count);
}

#endif

// See block_encoded.h.
struct Int4 {
  using Element = uint8_t;
  using Scale = c10::Half;
  struct Scales {
    const Ranges keys, values;
    const Offsets offsets;
    const float* value = values.scale;
    explicit Scales(const BlockInt4& block)
        : keys(block.key_scale, block.entries), values(block.value_scale, block.entries),
          offsets(values, block.entries) {}
  };

#if defined(RINGKV_QUADS)
  static constexpr int kQueries = kMaxWeighted;
#else
  static constexpr int kQueries = LevelPairs::kMaxQueries;
#endif
  static constexpr int64_t kScaleBytes = 2 * sizeof(Scale);
  static int64_t bytes(int64_t width) { return width / 2; }

  template <typename T>
  static void encode(const T* x, int64_t width, uint8_t* to, c10::Half* range, const float* center) {
    quantize_int4(x, width, to, range, center);
  }
  // The product of a level and its scale has few bits, so it is exact.
  static void decode(const uint8_t* from, const c10::Half* range, int64_t width, float* to) {
    unpack_levels(from, width, to);
    const float scale = float(range[0]), minimum = float(range[1]);
    for (int64_t d = 0; d < width; ++d) to[d] = to[d] * scale + minimum;
  }
  static void order(const int8_t* query, int64_t width, QueryElement* to) {
    for (int64_t d = 0; d < width; d += kChunk) order_chunk(query + d, words_of(d, width), to + d);
  }

  template <int G, typename Step>
  static void score(const BlockInt4& block, const Scales& scales, const Query& query, int64_t width, float scale,
                    float* to, const Step& step) {
    score_int4<G>(block, scales.keys, query, width, scale, to, step);
  }
  static float add(const float* weight, const Scales& scales, float by, int64_t entries) {
    return sum_offsets(weight, scales.offsets, by, entries);
  }
  template <int G, typename Ahead>
  static void sum(const BlockInt4& block, const Weights& weights, const float* add, int64_t width, Ahead& ahead,
                  float* out) {
    const int64_t bytes = width / 2;
    for (int64_t d = 0; d < width; d += kChunk) {
#if defined(RINGKV_QUADS)
      const ValueRows rows{block.value + d / 2, bytes, block.entries};
      if (width - d < kChunk) return sum_all_quads<G>(weights, add, ShortChunk(), rows, ahead, width, out + d);
      sum_all_quads<G>(weights, add, NibbleColumns(false), rows, ahead, width, out + d);
      sum_all_quads<G>(weights, add, NibbleColumns(true), rows, ahead, width, out + d + 32);
#else
      const int64_t words = words_of(d, width);
      for (int64_t word = 0; word < words; word += LevelPairs::kWords)
        sum_levels<G>(weights, add, block.value + d / 2 + 2 * word,
                      d + word ? nullptr : block.key + block.entries * bytes, block.entries, bytes,
                      std::min(words, LevelPairs::kWords), words, width, out + d + word);
#endif
    }
  }
};

}  // namespace ringkv
