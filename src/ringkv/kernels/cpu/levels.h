// Levels: vectors of 4-bit integers, packed, and their scales and minima in float16.
//
// Chunks have 64 elements in 32 bytes, the last one maybe 32 in 16. Nibble n of a chunk's 16-bit word i is its element
// n * words + i. Scales are limited to normal numbers, so that rounding changes a scale by at most 2^-11 of it.

#pragma once

#include "encoded_block.h"

namespace ringkv {

// Limits x; NaN stays.
inline float limited(float x, float low, float high) { return std::min(std::max(x, low), high); }

// Converts float16 to float.
inline void widen(const c10::Half* from, int64_t count, float* to) {
  int64_t i = 0;
  for (Vec wide; i + kLanes <= count; i += kLanes) {
    at::vec::load_fp32_from_fp16(from + i, wide);
    wide.store(to + i);
  }
  for (; i < count; ++i) to[i] = float(from[i]);
}

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

}  // namespace ringkv
