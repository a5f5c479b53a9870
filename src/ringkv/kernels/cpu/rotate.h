// Rotation of a vector by a Hadamard matrix, as in hadamard.py.

#pragma once

#include <cmath>
#include <cstdint>

namespace ringkv {

// One stage of `rotate`. kHalf is a compile-time constant, so that compilers vectorise.
template <int64_t kHalf>
inline void butterflies(float* x, int64_t width) {
  for (int64_t i = 0; i < width; i += 2 * kHalf)
    for (int64_t j = i; j < i + kHalf; ++j) {
      const float first = x[j], second = x[j + kHalf];
      x[j] = first + second;
      x[j + kHalf] = first - second;
    }
}

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

}  // namespace ringkv
