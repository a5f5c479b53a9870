// Attention scores of 4-bit keys: integer dot products of rotated vectors, as in scores_int8.h.
//
// A key is packed nibbles and {scale, minimum}: an element is level * scale + minimum. Chunks have 64 elements in 32
// bytes, the last one maybe 32 in 16. Nibble n of a chunk's 16-bit word i is its element n * words + i.

#pragma once

#include "half_scales.h"
#include "scores_int8.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {

using BlockInt4 = EncodedBlock<uint8_t, c10::Half>;

// Returns the 16-bit words of the chunk that starts at element `from`.
constexpr int64_t words_of(int64_t from, int64_t width) { return std::min(kChunk, width - from) / 4; }

// Packs the levels of `width` elements.
inline void pack_levels(const uint8_t* level, int64_t width, uint8_t* to) {
  for (int64_t from = 0; from < width; from += kChunk, level += kChunk) {
    const int64_t words = words_of(from, width);
    for (int64_t i = 0; i < words; ++i) {
      *to++ = uint8_t(level[i] | level[words + i] << 4);
      *to++ = uint8_t(level[2 * words + i] | level[3 * words + i] << 4);
    }
  }
}

// Inverts `pack_levels`.
inline void unpack_levels(const uint8_t* from, int64_t width, float* level) {
  for (int64_t d = 0; d < width; d += kChunk, level += kChunk) {
    const int64_t words = words_of(d, width);
    for (int64_t i = 0; i < words; ++i) {
      const uint8_t lower = *from++, upper = *from++;
      level[i] = float(lower & 15);
      level[words + i] = float(lower >> 4);
      level[2 * words + i] = float(upper & 15);
      level[3 * words + i] = float(upper >> 4);
    }
  }
}

// Subtracts `center`, rotates and rounds as `encode` in int4.py does. range: scale and minimum.
template <typename T>
void quantize_int4(const T* x, int64_t count, uint8_t* to, c10::Half* range, const float* center) {
  thread_local std::vector<float> wide;
  thread_local std::vector<uint8_t> levels;
  wide.resize(count);
  levels.resize(count);
  for (int64_t i = 0; i < count; ++i) wide[i] = float(x[i]) - (center ? center[i] : 0.f);
  rotate(wide.data(), count);
  const float low =
      at::vec::reduce_all<float>([](Vec& a, Vec& b) { return at::vec::minimum(a, b); }, wide.data(), count);
  const float high =
      at::vec::reduce_all<float>([](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, wide.data(), count);
  range[0] = c10::Half(limited((high - low) * kClippedStep, kMinHalf, kMaxHalf));
  range[1] = c10::Half(limited(low * kClip, -kMaxHalf, kMaxHalf));
  const float scale = float(range[0]), minimum = float(range[1]);
  for (int64_t i = 0; i < count; ++i)
    levels[i] = uint8_t(limited(std::rint((wide[i] - minimum) / scale), 0.f, kMaxInt4));
  pack_levels(levels.data(), count, to);
}

// Scales and minima of a block's keys or values, as floats.
struct Ranges {
  alignas(64) float scale[kBlock], minimum[kBlock];

  Ranges(const c10::Half* ranges, int64_t entries) {
    alignas(64) float pairs[2 * kBlock];
    widen(ranges, 2 * entries, pairs);
    for (int64_t j = 0; j < entries; ++j) {
      scale[j] = pairs[2 * j];
      minimum[j] = pairs[2 * j + 1];
    }
  }
};

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__)

using QueryElement = int8_t;

// Orders a chunk of a query as its keys' nibbles come: for each four bytes the lower nibbles, then the upper ones.
inline void order_query(const int8_t* from, int64_t words, QueryElement* to) {
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
void multiply_levels(const BlockInt4& block, const QueryElement* query, int64_t width, int32_t* products,
                     const Step& step) {
  const int64_t bytes = width / 2, padded = (width + kChunk - 1) / kChunk * kChunk;
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
          const int8_t* part = query + padded * g + d + 8 * i;
          lower[g] = _mm512_dpbusd_epi32(lower[g], low, broadcast4(part));
          upper[g] = _mm512_dpbusd_epi32(upper[g], high, broadcast4(part + 4));
        }
      }
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g)
      _mm512_storeu_si512(products + g * kBlock + j, _mm512_add_epi32(lower[g], upper[g]));
  }
}

#else

using QueryElement = int16_t;

// Orders a chunk of a query as its keys' nibbles come, 16 elements for each nibble of a word.
inline void order_query(const int8_t* from, int64_t words, QueryElement* to) {
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
inline __m256i load_chunk(const uint8_t* at, bool is_whole) {
  return is_whole ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))
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
void multiply_levels(const BlockInt4& block, const QueryElement* query, int64_t width, int32_t* products,
                     const Step& step) {
  const int64_t bytes = width / 2, padded = (width + kChunk - 1) / kChunk * kChunk;
  for (int64_t j = 0; j < block.entries; j += 8) {
    step(j, 8);
    __m256i sums[G][8];
    for (int64_t i = 0; i < 8; ++i) {
      const uint8_t* key = block.key + std::min(j + i, block.entries - 1) * bytes;
      __m256i own[G];
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) own[g] = _mm256_setzero_si256();
      for (int64_t d = 0; d < width; d += kChunk)
        add_chunk<G>(load_chunk(key + d / 2, width - d >= kChunk), query + d, padded, own);
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) sums[g][i] = own[g];
    }
    for (int g = 0; g < G; ++g)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(products + g * kBlock + j), eight_sums(sums[g]));
  }
}

#endif

// Quantised queries of one head.
struct QueryInt4 {
  const QueryElement* elements;
  int64_t width;              // stride of queries
  const float *scale, *sum;  // sum: of a query's elements, times its scale

  QueryInt4 from(int64_t g) const { return {elements + width * g, width, scale + g, sum + g}; }
};

// The quantised queries of a call [heads, queries, width], in the order of keys, zero-padded to whole chunks.
class QueriesInt4 {
 public:
  QueriesInt4(int64_t heads, int64_t queries, int64_t width)
      : queries_(queries), width_(width), padded_((width + kChunk - 1) / kChunk * kChunk),
        elements_(heads * queries * padded_), scale_(heads * queries), sum_(heads * queries) {}

  template <typename T>
  void set(int64_t head, int64_t g, const T* x) {
    store(head * queries_ + g, [&](int8_t* to) { return quantize(x, width_, to); });
  }
  // Takes a query that is rotated, or whose keys are not.
  void set_rotated(int64_t head, int64_t g, const float* x) {
    store(head * queries_ + g, [&](int8_t* to) { return quantize_rotated(x, width_, to); });
  }
  QueryInt4 of(int64_t head) const {
    const int64_t at = head * queries_;
    return {elements_.data() + at * padded_, padded_, scale_.data() + at, sum_.data() + at};
  }

 private:
  // quantise: writes integers and returns their scale.
  template <typename Quantise>
  void store(int64_t at, const Quantise& quantise) {
    thread_local std::vector<int8_t> plain;
    plain.resize(width_);
    scale_[at] = quantise(plain.data());
    sum_[at] = scale_[at] * float(std::accumulate(plain.begin(), plain.end(), 0));
    for (int64_t d = 0; d < width_; d += kChunk)
      order_query(plain.data() + d, words_of(d, width_), elements_.data() + at * padded_ + d);
  }

  const int64_t queries_, width_, padded_;
  std::vector<QueryElement> elements_;
  std::vector<float> scale_, sum_;
};

// scores[g * kBlock + j] = q[g] . key[j] * scale
template <int G, typename Step>
void score_int4(const BlockInt4& block, const Ranges& keys, const QueryInt4& query, int64_t width, float scale,
                float* scores, const Step& step) {
  alignas(64) int32_t products[G * kBlock];
  multiply_levels<G>(block, query.elements, width, products, step);
  for (int g = 0; g < G; ++g) {
    const float by = scale * query.scale[g], sum = scale * query.sum[g];
    for (int64_t j = 0; j < block.entries; ++j)
      scores[g * kBlock + j] = keys.scale[j] * (float(products[g * kBlock + j]) * by) + keys.minimum[j] * sum;
  }
}

}  // namespace ringkv

#endif
