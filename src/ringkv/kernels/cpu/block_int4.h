// Block over 4-bit keys and values: the partial attention of block_int8.h.
//
// A value's element is (level + offset) * scale. So a weighted sum of values is a sum of levels, plus the weighted sum
// of offsets, which is the same for all elements of the rotated output. Both sums have the same rounded weights.

#pragma once

#include "block_int8.h"
#include "scores_int4.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {

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

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__) && defined(__AVX512VBMI__)

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

struct QuadsInt4 {
  using Block = BlockInt4;
  using Queries = QueriesInt4;
  struct Scales {
    const Ranges keys, values;
    const Offsets offsets;
    const float* value = values.scale;
    explicit Scales(const BlockInt4& block)
        : keys(block.key_scale, block.entries), values(block.value_scale, block.entries),
          offsets(values, block.entries) {}
  };

  static constexpr int64_t kScaleBytes = 2 * sizeof(c10::Half);
  static int64_t bytes(int64_t width) { return width / 2; }
  template <int G, typename Step>
  static void score(const BlockInt4& block, const Scales& scales, const QueryInt4& query, int64_t width, float scale,
                    float* to, const Step& step) {
    score_int4<G>(block, scales.keys, query, width, scale, to, step);
  }
  static float add(const float* weight, const Scales& scales, float by, int64_t entries) {
    return sum_offsets(weight, scales.offsets, by, entries);
  }
  template <typename Run>
  static void with_columns(const BlockInt4& block, int64_t width, const Run& run) {
    for (int64_t d = 0; d < width; d += kChunk) {
      const ValueRows rows{block.value + d / 2, width / 2, block.entries};
      if (width - d < kChunk) return run(ShortChunk(), rows, d);
      run(NibbleColumns(false), rows, d);
      run(NibbleColumns(true), rows, d + 32);
    }
  }
};

using BlockRowsInt4 = BlockQuads<QuadsInt4>;

#else

// Levels of two entries, interleaved: `kWords` words of each, and each nibble of them is a vector of pairs.
struct LevelPairs {
  using V = IntVector::V;
  V words;

#if defined(CPU_CAPABILITY_AVX512)
  static constexpr int64_t kWords = 16;
  static constexpr int kMaxQueries = 6;  // queries that share a pass
  LevelPairs(const uint8_t* a, const uint8_t* b, int64_t count)
      : words(_mm512_or_si512(widen(a, count), _mm512_slli_epi32(widen(b, count), 16))) {}
  template <int N>
  V nibble() const {
    return _mm512_and_si512(_mm512_srli_epi16(words, 4 * N), _mm512_set1_epi16(15));
  }
  static void store(V sums, float by, float add, float* to, int64_t count) {
    const __m512 scaled = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(by), _mm512_set1_ps(add));
    _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), scaled);
  }

 private:
  static V widen(const uint8_t* at, int64_t count) {
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(__mmask16((1u << count) - 1), at));
  }
#else
  static constexpr int64_t kWords = 8;
  static constexpr int kMaxQueries = 3;
  LevelPairs(const uint8_t* a, const uint8_t* b, int64_t)
      : words(_mm256_or_si256(widen(a), _mm256_slli_epi32(widen(b), 16))) {}
  template <int N>
  V nibble() const {
    return _mm256_and_si256(_mm256_srli_epi16(words, 4 * N), _mm256_set1_epi16(15));
  }
  static void store(V sums, float by, float add, float* to, int64_t) {
    _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(by), _mm256_set1_ps(add)));
  }

 private:
  static V widen(const uint8_t* at) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
#endif
};

// What each query's sums become: sum * by + add.
struct Affine {
  const float *by, *add;
};

// out[g * width + n * stride + i] = sum over j of weights[g][j] * nibble n of word i of value[j], for `count` words of
// entries that are `bytes` apart. Prefetches `later`, the next block's keys, if it is not null.
template <int G>
void sum_levels(const int16_t* weights, const Affine& to, const uint8_t* value, const uint8_t* later, int64_t entries,
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
      const auto weight = IntVector::broadcast2(weights + g * kBlock + j);
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) sums[g][n] = IntVector::dot(sums[g][n], levels[n], weight);
    }
  }
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) LevelPairs::store(sums[g][n], to.by[g], to.add[g], out + g * width + n * stride, count);
}

// Attends with G queries.
template <int G>
void attend_group_int4(const BlockInt4& block, const Ranges& keys, const Ranges& values, const Offsets& offsets,
                       const QueryInt4& query, const ExactScores& exact, int64_t width, float scale,
                       const Partial& to) {
  alignas(64) float scores[G * kBlock];
  alignas(64) int16_t weights[G * kBlock];
  float by[G], add[G];
  const int64_t bytes = width / 2;
  const auto prefetch_values = [&](int64_t j, int64_t count) { prefetch<2>(block.value + j * bytes, count, bytes); };
  score_int4<G>(block, keys, query, width, scale, scores, prefetch_values);
  exact.put(G, block.entries, kBlock, scores);
  for (int g = 0; g < G; ++g) {
    float* weight = scores + g * kBlock;
    std::tie(to.top[g], to.sum[g]) = exponentiate_fast(weight, block.entries);
    by[g] = to_weights(weight, values.scale, block.entries, weights + g * kBlock);
    add[g] = sum_offsets(weight, offsets, by[g], block.entries);
  }
  for (int64_t d = 0; d < width; d += kChunk) {
    const int64_t words = words_of(d, width);
    for (int64_t word = 0; word < words; word += LevelPairs::kWords)
      sum_levels<G>(weights, {by, add}, block.value + d / 2 + 2 * word,
                    d + word ? nullptr : block.key + block.entries * bytes, block.entries, bytes,
                    std::min(words, LevelPairs::kWords), words, width, to.out + d + word);
  }
}

// Attends to one block after the other.
class BlockRowsInt4 {
 public:
  BlockRowsInt4(const QueriesInt4& all, int64_t queries, int64_t width, float scale)
      : all_(all), queries_(queries), width_(width), scale_(scale) {}

  void begin(const BlockInt4&) {}
  void attend(const BlockInt4& block, const BlockInt4&, const Partial& to) const {
    const Ranges keys(block.key_scale, block.entries), values(block.value_scale, block.entries);
    const Offsets offsets(values, block.entries);
    const int64_t groups = (queries_ + LevelPairs::kMaxQueries - 1) / LevelPairs::kMaxQueries;
    const int64_t most = (queries_ + groups - 1) / groups;
    const QueryInt4 query = all_.of(block.head);
    for (int64_t from = 0; from < queries_; from += most) {
      const Partial part{to.out + from * width_, to.top + from, to.sum + from};
      const auto run = [&](auto count) {
        attend_group_int4<decltype(count)::value>(block, keys, values, offsets, query.from(from),
                                                  block.exact.from(from), width_, scale_, part);
      };
      for_group_int8(std::min(most, queries_ - from), run);
    }
  }

 private:
  const QueriesInt4& all_;
  const int64_t queries_, width_;
  const float scale_;
};

#endif

}  // namespace ringkv

#endif
