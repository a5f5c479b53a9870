// Groups of encoded latents, widened to bfloat16. See encoding.py.
//
// An encoding of encodings.h also has
//   kScales   scales of a group
//   bytes     of `width` elements
//   widen     restores a group, still rotated; its width is a multiple of 32

#pragma once

#include "attend_task.h"

#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)

#include "constants.h"
#include "encodings.h"

namespace ringkv {
namespace {

inline void store_bf16(__m512 first, __m512 second, BF16* to) {
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

struct LatentInt8 : Int8 {
  static constexpr int64_t kScales = 1;

  static int64_t bytes(int64_t width) { return width; }
  static void widen(const int8_t* from, const float* scale, int64_t width, BF16* to) {
    const __m512 by = _mm512_set1_ps(*scale);
    const auto floats = [&](const int8_t* at) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
      return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), by);
    };
    for (int64_t d = 0; d < width; d += 32) store_bf16(floats(from + d), floats(from + d + 16), to + d);
  }
};

struct LatentInt4 : Int4 {
  static constexpr int64_t kScales = 2;

  static int64_t bytes(int64_t width) { return width / 2; }
  // Nibble n of word i of a chunk is its element n * words + i.
  static void widen(const uint8_t* from, const c10::Half* range, int64_t width, BF16* to) {
    const __m512 scale = _mm512_set1_ps(float(range[0])), minimum = _mm512_set1_ps(float(range[1]));
    const auto floats = [&](__m512i words) {
      const __m512i levels = _mm512_and_si512(words, _mm512_set1_epi32(15));
      return _mm512_fmadd_ps(_mm512_cvtepi32_ps(levels), scale, minimum);
    };
    int64_t d = 0;
    for (; d + 64 <= width; d += 64) {
      const auto* at = reinterpret_cast<const __m256i*>(from + d / 2);
      const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at));
      store_bf16(floats(words), floats(_mm512_srli_epi32(words, 4)), to + d);
      store_bf16(floats(_mm512_srli_epi32(words, 8)), floats(_mm512_srli_epi32(words, 12)), to + d + 32);
    }
    if (d == width) return;
    const __m256i eight = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + d / 2)));
    const __m512i words = _mm512_inserti64x4(_mm512_castsi256_si512(eight), _mm256_srli_epi32(eight, 4), 1);
    store_bf16(floats(words), floats(_mm512_srli_epi32(words, 8)), to + d);
  }
};

// Calls run(group, first element, width) for each group of `width` elements.
template <typename Run>
void for_groups(int64_t width, const Run& run) {
  for (int64_t d = 0; d < width; d += kLatentGroup) run(d / kLatentGroup, d, std::min(kLatentGroup, width - d));
}

}  // namespace
}  // namespace ringkv

#endif
