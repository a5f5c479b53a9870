// Block over int8 keys and values: the partial attention of block.h in integer arithmetic.
//
// Keys, values and queries are rotated; outputs stay rotated until all blocks are merged. Softmax weights are rounded
// to two bytes (sum_quads.h), or to int16 without AVX-512's byte permutations: an error of at most 1 / 65534 of the
// largest of their block.

#pragma once

#include "block_quads.h"
#include "scores_int8.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__) && defined(__AVX512VBMI__)

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

struct QuadsInt8 {
  using Block = BlockInt8;
  using Queries = ringkv::Queries;
  struct Scales {
    const float* value;
    explicit Scales(const BlockInt8& block) : value(block.value_scale) {}
  };

  static constexpr int64_t kScaleBytes = sizeof(float);
  static int64_t bytes(int64_t width) { return width; }
  template <int G, typename Step>
  static void score(const BlockInt8& block, const Scales&, const Query& query, int64_t width, float scale, float* to,
                    const Step& step) {
    score_int8<G>(block, query, width, scale, to, step);
  }
  static float add(const float*, const Scales&, float, int64_t) { return 0.f; }
  template <typename Run>
  static void with_columns(const BlockInt8& block, int64_t width, const Run& run) {
    const auto* value = reinterpret_cast<const uint8_t*>(block.value);
    for (int64_t d = 0; d < width; d += 32) run(ByteColumns(), ValueRows{value + d, width, block.entries}, d);
  }
};

using BlockRowsInt8 = BlockQuads<QuadsInt8>;

#else

constexpr int64_t kLineElements = 64;  // elements in a cache line

// out[g][d] = sum over j of weights[g][j] * value[j][d], two entries at a time, for STEPS vectors of d. Prefetches
// `later`, the next block's keys.
template <int G, int STEPS>
void sum_columns_int8(const int16_t* weights, const float* by, const int8_t* value, const int8_t* later,
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
        const auto weight = IntVector::broadcast2(weights + g * kBlock + j);
        low[g][s] = IntVector::dot(low[g][s], first, weight);
        high[g][s] = IntVector::dot(high[g][s], second, weight);
      }
    }
  }
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 2
    for (int s = 0; s < STEPS; ++s)
      IntVector::store(low[g][s], high[g][s], by[g], out + g * width + s * IntVector::kElements);
}

// Does what `exponentiate` does with an exponential of 20 ulp: the weights are rounded to 16 bits anyway.
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

// Multiplies each weight by its value's scale and quantises the products to int16: the largest becomes 32767. Pads with
// zeros to a whole vector. Returns the scale. Overwrites `weight`, of kBlock elements.
inline float to_weights(float* weight, const float* value_scale, int64_t entries, int16_t* to) {
  at::vec::map2<float>([](Vec a, Vec b) { return a * b; }, weight, weight, value_scale, entries);
  const float largest =
      at::vec::reduce_all<float>([](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, weight, entries);
  const int64_t padded = (entries + kLanes - 1) / kLanes * kLanes;
  std::fill(weight + entries, weight + padded, 0.f);
  const float by = largest > 0.f ? 32767.f / largest : 0.f;
  for (int64_t j = 0; j < padded; j += kLanes) IntVector::quantize16(weight + j, by, to + j);
  return largest / 32767.f;
}

// Attends with G queries.
template <int G>
void attend_group_int8(const BlockInt8& block, const Query& query, const ExactScores& exact, int64_t width, float scale,
                       const Partial& to) {
  alignas(64) float scores[G * kBlock];
  alignas(64) int16_t weights[G * kBlock];
  float by[G];
  const auto prefetch_values = [&](int64_t j, int64_t count) { prefetch<2>(block.value + j * width, count, width); };
  score_int8<G>(block, query, width, scale, scores, prefetch_values);
  exact.put(G, block.entries, kBlock, scores);
  for (int g = 0; g < G; ++g) {
    float* weight = scores + g * kBlock;
    std::tie(to.top[g], to.sum[g]) = exponentiate_fast(weight, block.entries);
    by[g] = to_weights(weight, block.value_scale, block.entries, weights + g * kBlock);
  }
  int64_t d = 0;
  float* out = to.out;
  const int8_t* later = block.key + block.entries * width;
  constexpr int kSteps = IntVector::accumulators(G);
  for (; d + kSteps * IntVector::kElements <= width; d += kSteps * IntVector::kElements)
    sum_columns_int8<G, kSteps>(weights, by, block.value + d, later + d, block.entries, width, d % kLineElements == 0,
                                out + d);
  if (d < width)
    sum_columns_int8<G, 1>(weights, by, block.value + d, later + d, block.entries, width, d % kLineElements == 0,
                           out + d);
}

// Calls `run` with the number of queries in a group, at most 6, as a compile-time constant.
template <typename Run>
void for_group_int8(int64_t count, const Run& run) {
  if (count > 5) return run(std::integral_constant<int, 6>{});
  if (count > 4) return run(std::integral_constant<int, 5>{});
  for_group(count, run);
}

// Attends to one block after the other.
class BlockRowsInt8 {
 public:
  BlockRowsInt8(const Queries& all, int64_t queries, int64_t width, float scale)
      : all_(all), queries_(queries), width_(width), scale_(scale) {}

  void begin(const BlockInt8&) {}
  void attend(const BlockInt8& block, const BlockInt8&, const Partial& to) const {
    const int64_t groups = (queries_ + IntVector::kMaxQueries - 1) / IntVector::kMaxQueries;
    const int64_t most = (queries_ + groups - 1) / groups;
    const Query query = all_.of(block.head);
    for (int64_t from = 0; from < queries_; from += most) {
      const Partial part{to.out + from * width_, to.top + from, to.sum + from};
      const auto run = [&](auto count) {
        attend_group_int8<decltype(count)::value>(block, query.from(from), block.exact.from(from), width_, scale_,
                                                  part);
      };
      for_group_int8(std::min(most, queries_ - from), run);
    }
  }

 private:
  const Queries& all_;
  const int64_t queries_, width_;
  const float scale_;
};

#endif

}  // namespace ringkv

#endif
