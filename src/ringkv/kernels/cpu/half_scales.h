// Scales in float16: limited to its normal numbers, so that rounding changes a scale by at most 2^-11 of it.

#pragma once

#include <c10/util/Half.h>

#include <algorithm>

#include "constants.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
#include <immintrin.h>

namespace ringkv {

// Limits x; NaN stays.
inline float limited(float x, float low, float high) { return std::min(std::max(x, low), high); }

// Converts float16 to float.
inline void widen(const c10::Half* from, int64_t count, float* to) {
  int64_t i = 0;
#if defined(CPU_CAPABILITY_AVX512)
  for (; i + 16 <= count; i += 16)
    _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
#else
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
#endif
  for (; i < count; ++i) to[i] = float(from[i]);
}

}  // namespace ringkv

#endif
