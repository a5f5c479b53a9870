// Int8Encoding: int8 keys and values, for encoded_attend.h.

#pragma once

#include "block_int8.h"
#include "encoded_attend.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {
namespace {

struct Int8Vectors {
  template <typename T>
  static void encode(const T* x, int64_t width, int8_t* to, float* scale, const float* center) {
    *scale = quantize(x, width, to, center);
  }
};

struct Int8Encoding {
  using Element = int8_t;
  using Scale = float;
  using Keys = Int8Vectors;
  using Values = Int8Vectors;
  using Queries = ringkv::Queries;
  static constexpr const char* name = "decode_attend_int8";

  static BlockRowsInt8 attention(const Queries& all, int64_t queries, int64_t width, float scale) {
    return {all, queries, width, scale};
  }
  static void finish(float* sum, int64_t width) { rotate(sum, width); }
};

}  // namespace
}  // namespace ringkv

#endif
