// EncodedBlock: a block's input in an encoding, and the quantised queries that attend to it.
//
// Keys, values and queries are rotated by a Hadamard matrix, as in hadamard.py.

#pragma once

#include "block.h"
#include "constants.h"

namespace ringkv {

// Multiplies x [width] by a Hadamard matrix in place, as `rotate` in hadamard.py does; width <= 4096.
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

// Scores of a slot's first entries with exact keys, [queries, count]; NaN for an entry that has no exact key.
struct ExactScores {
  const float* at = nullptr;
  int64_t count = 0;

  ExactScores from(int64_t query) const { return {at + query * count, count}; }
  // Replaces scores [queries, stride] of as many queries.
  void put(int64_t queries, int64_t entries, int64_t stride, float* scores) const {
    for (int64_t g = 0; g < queries; ++g)
      for (int64_t j = 0; j < count && j < entries; ++j)
        if (const float exact = at[g * count + j]; !std::isnan(exact)) scores[g * stride + j] = exact;
  }
};

// head: row * heads + head. Keys and values [entries, bytes], scales [entries] or [entries, n].
template <typename Element, typename Scale>
struct EncodedBlock {
  int64_t head;
  const Element *key, *value;
  const Scale *key_scale, *value_scale;
  int64_t entries;
  ExactScores exact;

  EncodedBlock end_of_run() const { return {head, key, value, key_scale, value_scale, 0, {}}; }
};

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__)
using QueryElement = int8_t;
#else
using QueryElement = int16_t;
#endif

// Quantises to integers: the largest element becomes 127. Returns the scale.
inline float quantize_rotated(const float* wide, int64_t count, int8_t* to) {
  const float largest = at::vec::map_reduce_all<float>(
      [](Vec v) { return v.abs(); }, [](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, wide, count);
  const float scale = largest / kMaxInt8, by = largest > 0.f ? kMaxInt8 / largest : 0.f;
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<int8_t>(std::rint(wide[i] * by));
  return scale;
}

// Subtracts `center`, rotates, and quantises. Returns the scale.
template <typename T>
float quantize(const T* x, int64_t count, int8_t* to, const float* center = nullptr) {
  thread_local std::vector<float> wide;
  wide.resize(count);
  for (int64_t i = 0; i < count; ++i) wide[i] = float(x[i]) - (center ? center[i] : 0.f);
  rotate(wide.data(), count);
  return quantize_rotated(wide.data(), count, to);
}

// Quantised queries of one head.
struct Query {
  const QueryElement* elements;
  int64_t width;  // stride of queries
  const float* scale;
  const int32_t* sum;  // of a query's elements

  Query from(int64_t g) const { return {elements + width * g, width, scale + g, sum + g}; }
};

// The quantised queries of a call [heads, queries, width], zero-padded to whole chunks. Encoding::order writes a query
// in the order of an encoding's keys.
template <typename Encoding>
class Queries {
 public:
  Queries(int64_t heads, int64_t queries, int64_t width)
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
  Query of(int64_t head) const {
    const int64_t index = head * queries_;
    return {elements_.data() + index * padded_, padded_, scale_.data() + index, sum_.data() + index};
  }

 private:
  // quantise: writes integers and returns their scale.
  template <typename Quantise>
  void store(int64_t index, const Quantise& quantise) {
    thread_local std::vector<int8_t> plain;
    plain.resize(width_);
    scale_[index] = quantise(plain.data());
    sum_[index] = std::accumulate(plain.begin(), plain.end(), 0);
    Encoding::order(plain.data(), width_, elements_.data() + index * padded_);
  }

  const int64_t queries_, width_, padded_;
  std::vector<QueryElement> elements_;
  std::vector<float> scale_;
  std::vector<int32_t> sum_;
};

}  // namespace ringkv
