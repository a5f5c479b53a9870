// Scores of int8 keys: products of rotated vectors in whole numbers.
//
// A key is 8-bit elements and one float32 scale, and so becomes a query. Products are exact and add up in 32 bits: every
// processor gets the same sums.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "block.h"
#include "whole_vectors.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {

constexpr float kMost = 127.f;

// What a block reads: 8-bit keys and values [entries, width] with a scale each; `head` counts on through the rows
struct BlockInt8 {
  int64_t head;
  const int8_t *key, *value;
  const float *key_scale, *value_scale;
  int64_t entries;

  BlockInt8 none() const { return {head, key, value, key_scale, value_scale, 0}; }
};

// One stage of `rotate`, with a constant that compilers vectorize
template <int64_t kHalf>
inline void butterflies(float* x, int64_t width) {
  for (int64_t i = 0; i < width; i += 2 * kHalf)
    for (int64_t j = i; j < i + kHalf; ++j) {
      const float first = x[j], second = x[j + kHalf];
      x[j] = first + second;
      x[j + kHalf] = first - second;
    }
}

// As `rotate` in decode_attend_int8.py: float32 [width] times a Hadamard matrix, in place; width <= 4096
template <int64_t kHalf = 1>
inline void rotate(float* x, int64_t width) {
  const int64_t block = width & -width;
  if constexpr (kHalf < 4096) {
    if (kHalf < block) {
      butterflies<kHalf>(x, width);
      return rotate<2 * kHalf>(x, width);
    }
  }
  const float by = float(1 / std::sqrt(double(block)));
  for (int64_t i = 0; i < width; ++i) x[i] *= by;
}

// The rotated x[i] / scale, rounded; returns the scale, which makes the largest element 127. `less` is subtracted first.
template <typename To, typename T>
float to_whole(const T* x, int64_t count, To* to, const float* less = nullptr) {
  thread_local std::vector<float> wide;
  wide.resize(count);
  for (int64_t i = 0; i < count; ++i) wide[i] = float(x[i]) - (less ? less[i] : 0.f);
  rotate(wide.data(), count);
  const float largest = at::vec::map_reduce_all<float>(
      [](Vec v) { return v.abs(); }, [](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, wide.data(), count);
  const float scale = largest / kMost, by = largest > 0.f ? kMost / largest : 0.f;
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(std::rint(wide[i] * by));
  return scale;
}

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__)

constexpr int64_t kPiece = 64;  // elements of a key that a vector holds

// Some queries of one head, as Queries keeps them
struct Query {
  const int8_t* elements;
  int64_t width;        // from one query to the next
  const int32_t* less;  // what making keys unsigned adds to a query's products
  const float* scale;

  Query from(int64_t g) const { return {elements + width * g, width, less + g, scale + g}; }
};

// Queries of a call: [heads, queries, width], the width made whole pieces by zeros
class Queries {
 public:
  Queries(int64_t heads, int64_t queries, int64_t width)
      : queries_(queries), width_(width), padded_((width + kPiece - 1) / kPiece * kPiece),
        elements_(heads * queries * padded_), less_(heads * queries), scale_(heads * queries) {}

  template <typename T>
  void set(int64_t head, int64_t g, const T* x) {
    const int64_t at = head * queries_ + g;
    int8_t* to = elements_.data() + at * padded_;
    scale_[at] = to_whole(x, width_, to);
    less_[at] = 128 * std::accumulate(to, to + width_, 0);
  }
  Query of(int64_t head) const {
    const int64_t at = head * queries_;
    return {elements_.data() + at * padded_, padded_, less_.data() + at, scale_.data() + at};
  }

 private:
  const int64_t queries_, width_, padded_;
  std::vector<int8_t> elements_;
  std::vector<int32_t> less_;
  std::vector<float> scale_;
};

inline __m512i everywhere(const int8_t* four) {  // the same four numbers everywhere
  int32_t all;
  std::memcpy(&all, four, sizeof(all));
  return _mm512_set1_epi32(all);
}

// Sixteen rows of 64 bytes become sixteen columns of four bytes
inline void transpose(__m512i* x) {
  __m512i y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      x[i + 2 * j] = _mm512_unpacklo_epi64(y[i + j], y[i + j + 2]);
      x[i + 2 * j + 1] = _mm512_unpackhi_epi64(y[i + j], y[i + j + 2]);
    }
#pragma GCC unroll 2
  for (int i = 0; i < 16; i += 8)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      y[i + j] = _mm512_shuffle_i32x4(x[i + j], x[i + j + 4], 0x88);
      y[i + j + 4] = _mm512_shuffle_i32x4(x[i + j], x[i + j + 4], 0xdd);
    }
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    x[j] = _mm512_shuffle_i32x4(y[j], y[j + 8], 0x88);
    x[j + 8] = _mm512_shuffle_i32x4(y[j], y[j + 8], 0xdd);
  }
}

// scores[g * kBlock + j] = q[g] . key[j]: sixteen keys side by side, so that no sum runs across a vector
template <int G>
void score_int8(const BlockInt8& block, const Query& query, int64_t width, float scale, float* scores) {
  for (int64_t j = 0; j < block.entries; j += 16) {
    fetch<2>(block.value + j * width, 16, width);
    const int64_t last = std::min<int64_t>(15, block.entries - 1 - j);
    __m512i even[G], odd[G];  // two sums each, so that fewer wait for the one before
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) even[g] = odd[g] = _mm512_setzero_si512();
    for (int64_t d = 0; d < width; d += kPiece) {
      const __mmask64 here = width - d < kPiece ? (__mmask64(1) << (width - d)) - 1 : ~__mmask64(0);
      const int8_t* key = block.key + j * width + d;
      __m512i keys[16];
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; ++i) {
        const __m512i row = _mm512_maskz_loadu_epi8(here, key + std::min(i, last) * width);
        keys[i] = _mm512_xor_si512(row, _mm512_set1_epi8(-128));  // plus 128
      }
      transpose(keys);
#pragma GCC unroll 8
      for (int i = 0; i < 16; i += 2)
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) {
          const int8_t* part = query.elements + query.width * g + d + 4 * i;
          even[g] = _mm512_dpbusd_epi32(even[g], keys[i], everywhere(part));
          odd[g] = _mm512_dpbusd_epi32(odd[g], keys[i + 1], everywhere(part + 4));
        }
    }
    const __m512 scales = _mm512_maskz_loadu_ps(__mmask16((2u << last) - 1), block.key_scale + j);
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const __m512i both = _mm512_add_epi32(even[g], odd[g]);
      const __m512 whole = _mm512_cvtepi32_ps(_mm512_sub_epi32(both, _mm512_set1_epi32(query.less[g])));
      const __m512 by = _mm512_mul_ps(scales, _mm512_set1_ps(scale * query.scale[g]));
      _mm512_storeu_ps(scores + g * kBlock + j, _mm512_mul_ps(whole, by));
    }
  }
}

#else

// Some queries of one head, as Queries keeps them
struct Query {
  const int16_t* elements;
  int64_t width;
  const float* scale;

  Query from(int64_t g) const { return {elements + width * g, width, scale + g}; }
};

// Queries of a call: [heads, queries, width]
class Queries {
 public:
  Queries(int64_t heads, int64_t queries, int64_t width)
      : queries_(queries), width_(width), elements_(heads * queries * width), scale_(heads * queries) {}

  template <typename T>
  void set(int64_t head, int64_t g, const T* x) {
    const int64_t at = head * queries_ + g;
    scale_[at] = to_whole(x, width_, elements_.data() + at * width_);
  }
  Query of(int64_t head) const {
    return {elements_.data() + head * queries_ * width_, width_, scale_.data() + head * queries_};
  }

 private:
  const int64_t queries_, width_;
  std::vector<int16_t> elements_;
  std::vector<float> scale_;
};

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
void score_int8(const BlockInt8& block, const Query& query, int64_t width, float scale, float* scores) {
  constexpr int kRows = Whole::kRows;
  for (int64_t j = 0; j < block.entries; j += kRows) {
    fetch<2>(block.value + j * width, kRows, width);
    Whole::V fours[G][Whole::kFours];
    for (int four = 0; four < Whole::kFours; ++four) {
      Whole::V sums[2][G];
      for (int i = 0; i < 4; i += 2) {
        const int64_t first = j + 4 * four + i, last = block.entries - 1;
        two_rows<G>(block.key + std::min(first, last) * width, block.key + std::min(first + 1, last) * width,
                    query.elements, width, sums[i / 2]);
      }
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) fours[g][four] = Whole::four(sums[0][g], sums[1][g]);
    }
    const int64_t rows = std::min<int64_t>(kRows, block.entries - j);
    for (int g = 0; g < G; ++g) {
      const auto sums = Whole::sums(fours[g]);
      const float by = scale * query.scale[g];
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

#endif

}  // namespace ringkv

#endif
