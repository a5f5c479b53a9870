// Block over 4-bit keys and values: the partial attention of block_int8.h.
//
// A value's element is (level + offset) * scale. So a weighted sum of values is a sum of levels, plus the weighted sum
// of offsets, which is the same for all elements of the rotated output. Both sums have the same rounded weights.

#pragma once

#include "block_int8.h"
#include "scores_int4.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {

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

// Returns the sum of offsets with weights that are rounded to multiples of `by`, as `to_weights` rounds them.
inline float sum_offsets(const float* weight, const float* offset, float by, int64_t entries) {
  const Vec inverse(by > 0.f ? 1.f / by : 0.f);
  return by * at::vec::map2_reduce_all<float>([inverse](Vec a, Vec b) { return (a * inverse).round() * b; },
                                              [](Vec a, Vec b) { return a + b; }, weight, offset, entries);
}

// Attends with G queries.
template <int G>
void attend_group_int4(const BlockInt4& block, const Ranges& keys, const Ranges& values, const QueryInt4& query,
                       const ExactScores& exact, int64_t width, float scale, const Partial& to) {
  alignas(64) float scores[G * kBlock];
  alignas(64) int16_t weights[G * kBlock];
  float by[G], add[G];
  score_int4<G>(block, keys, query, width, scale, scores);
  exact.put(G, block.entries, kBlock, scores);
  for (int g = 0; g < G; ++g) {
    float* weight = scores + g * kBlock;
    std::tie(to.top[g], to.sum[g]) = exponentiate_fast(weight, block.entries);
    by[g] = to_weights(weight, values.scale, block.entries, weights + g * kBlock);
    add[g] = sum_offsets(weight, values.offset, by[g], block.entries);
  }
  const int64_t bytes = width / 2;
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
    Ranges keys, values;
    keys.load(block.key_scale, block.entries);
    values.load(block.value_scale, block.entries);
    const int64_t groups = (queries_ + LevelPairs::kMaxQueries - 1) / LevelPairs::kMaxQueries;
    const int64_t most = (queries_ + groups - 1) / groups;
    const QueryInt4 query = all_.of(block.head);
    for (int64_t from = 0; from < queries_; from += most) {
      const Partial part{to.out + from * width_, to.top + from, to.sum + from};
      const auto run = [&](auto count) {
        attend_group_int4<decltype(count)::value>(block, keys, values, query.from(from), block.exact.from(from), width_,
                                                  scale_, part);
      };
      for_group_int8(std::min(most, queries_ - from), run);
    }
  }

 private:
  const QueriesInt4& all_;
  const int64_t queries_, width_;
  const float scale_;
};

}  // namespace ringkv

#endif
