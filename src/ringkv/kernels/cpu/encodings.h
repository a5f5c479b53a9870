// Encodings of vectors; see encoded_slots.h.

#pragma once

#include "block_int4.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {

struct Int8 {
  using Element = int8_t;
  using Scale = float;
  using Queries = ringkv::Queries;
  using Attention = BlockRowsInt8;

  template <typename T>
  static void encode(const T* x, int64_t width, int8_t* to, float* scale, const float* center) {
    *scale = quantize(x, width, to, center);
  }
  static void decode(const int8_t* from, const float* scale, int64_t width, float* to) {
    for (int64_t d = 0; d < width; ++d) to[d] = float(from[d]) * *scale;
  }
};

struct Int4 {
  using Element = uint8_t;
  using Scale = c10::Half;
  using Queries = QueriesInt4;
  using Attention = BlockRowsInt4;

  template <typename T>
  static void encode(const T* x, int64_t width, uint8_t* to, c10::Half* range, const float* center) {
    quantize_int4(x, width, to, range, center);
  }
  // The product of a level and its scale has few bits, so it is exact.
  static void decode(const uint8_t* from, const c10::Half* range, int64_t width, float* to) {
    unpack_levels(from, width, to);
    const float scale = float(range[0]), minimum = float(range[1]);
    for (int64_t d = 0; d < width; ++d) to[d] = to[d] * scale + minimum;
  }
};

}  // namespace ringkv

#endif
