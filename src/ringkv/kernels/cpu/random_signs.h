// Signs that look random, and that a vector's width alone determines, as in random_signs.py.

#pragma once

#include <cstdint>
#include <vector>

namespace ringkv {

// Multiplies x [width] by its signs, 1 and -1.
inline void flip_signs(float* x, int64_t width) {
  thread_local std::vector<float> signs;
  if (int64_t(signs.size()) != width) {
    signs.resize(width);
    for (int64_t i = 0; i < width; ++i) {
      uint32_t hash = uint32_t(width) << 16 | uint32_t(i);
      hash = (hash ^ hash >> 16) * 0x7feb352du;
      hash = (hash ^ hash >> 15) * 0x846ca68bu;
      signs[i] = (hash ^ hash >> 16) >> 31 ? -1.f : 1.f;
    }
  }
  for (int64_t i = 0; i < width; ++i) x[i] *= signs[i];
}

}  // namespace ringkv
