// Attention scores of int8 keys: integer dot products of rotated vectors.
//
// A key is int8 elements and one float32 scale. Queries are quantised too. Products are exact with 32-bit sums, so
// every processor gets the same sums.

#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "block.h"
#include "constants.h"
#include "encoded_block.h"
#include "int_vectors.h"
#include "key_columns.h"
#include "rotate.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {

using BlockInt8 = EncodedBlock<int8_t, float>;

// Quantises to integers: the largest element becomes 127. Returns the scale.
template <typename To>
float quantize_rotated(const float* wide, int64_t count, To* to) {
  const float largest = at::vec::map_reduce_all<float>(
      [](Vec v) { return v.abs(); }, [](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, wide, count);
  const float scale = largest / kMaxInt8, by = largest > 0.f ? kMaxInt8 / largest : 0.f;
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(std::rint(wide[i] * by));
  return scale;
}

// Subtracts `center`, rotates, and quantises. Returns the scale.
template <typename To, typename T>
float quantize(const T* x, int64_t count, To* to, const float* center = nullptr) {
  thread_local std::vector<float> wide;
  wide.resize(count);
  for (int64_t i = 0; i < count; ++i) wide[i] = float(x[i]) - (center ? center[i] : 0.f);
  rotate(wide.data(), count);
  return quantize_rotated(wide.data(), count, to);
}

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__)

// Quantised queries of one head.
struct Query {
  const int8_t* elements;
  int64_t width;              // stride of queries
  const int32_t* correction;  // what the keys' offset of 128 adds to a query's products
  const float* scale;

  Query from(int64_t g) const { return {elements + width * g, width, correction + g, scale + g}; }
};

// The quantised queries of a call [heads, queries, width].
class Queries {
 public:
  Queries(int64_t heads, int64_t queries, int64_t width)
      : queries_(queries), width_(width), elements_(heads * queries * width), corrections_(heads * queries),
        scale_(heads * queries) {}

  template <typename T>
  void set(int64_t head, int64_t g, const T* x) {
    const int64_t at = head * queries_ + g;
    int8_t* to = elements_.data() + at * width_;
    scale_[at] = quantize(x, width_, to);
    corrections_[at] = 128 * std::accumulate(to, to + width_, 0);
  }
  Query of(int64_t head) const {
    const int64_t at = head * queries_;
    return {elements_.data() + at * width_, width_, corrections_.data() + at, scale_.data() + at};
  }

 private:
  const int64_t queries_, width_;
  std::vector<int8_t> elements_;
  std::vector<int32_t> corrections_;
  std::vector<float> scale_;
};

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
          even[g] = _mm512_dpbusd_epi32(even[g], first, broadcast4(part));
          odd[g] = _mm512_dpbusd_epi32(odd[g], second, broadcast4(part + 4));
        }
      }
    }
    const __m512 scales = _mm512_maskz_loadu_ps(__mmask16((2u << last) - 1), block.key_scale + j);
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const __m512i sum = _mm512_add_epi32(even[g], odd[g]);
      const __m512 products = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_set1_epi32(query.correction[g])));
      const __m512 by = _mm512_mul_ps(scales, _mm512_set1_ps(scale * query.scale[g]));
      _mm512_storeu_ps(scores + g * kBlock + j, _mm512_mul_ps(products, by));
    }
  }
}

#else

// Quantised queries of one head.
struct Query {
  const int16_t* elements;
  int64_t width;
  const float* scale;

  Query from(int64_t g) const { return {elements + width * g, width, scale + g}; }
};

// The quantised queries of a call [heads, queries, width].
class Queries {
 public:
  Queries(int64_t heads, int64_t queries, int64_t width)
      : queries_(queries), width_(width), elements_(heads * queries * width), scale_(heads * queries) {}

  template <typename T>
  void set(int64_t head, int64_t g, const T* x) {
    const int64_t at = head * queries_ + g;
    scale_[at] = quantize(x, width_, elements_.data() + at * width_);
  }
  Query of(int64_t head) const {
    return {elements_.data() + head * queries_ * width_, width_, scale_.data() + head * queries_};
  }

 private:
  const int64_t queries_, width_;
  std::vector<int16_t> elements_;
  std::vector<float> scale_;
};

// Computes the partial sums of two keys with each query. Two keys at a time keep all sums in registers.
template <int G>
inline void dot_two_rows(const int8_t* a, const int8_t* b, const int16_t* query, int64_t width, IntVector::V* sums) {
  IntVector::V first[G], second[G];
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) first[g] = second[g] = IntVector::zero();
  for (int64_t d = 0; d < width; d += IntVector::kElements) {
    const auto x = IntVector::widen(a + d), y = IntVector::widen(b + d);
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const auto elements = IntVector::load(query + g * width + d);
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
                        query.elements, width, sums[i / 2]);
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

}  // namespace ringkv

#endif
