// Rotated int4: a block of int4 weights, rotated as the rows of int8 products are and rounded to int8.
//
// A block along K is a group of the format, so only the integers q need sums and differences:
//
//     H (scale q + minimum) / kRotation = scale H q / kRotation, plus minimum for the first element

#pragma once

#include "quads.h"
#include "row_groups.h"
#include "weights.h"

namespace ringkv {

static_assert(kRotation == kTileK);

using BlockFloats = float[kTileK][kTileN];

#if defined(CPU_CAPABILITY_AVX512)

// Writes a block's rotated weights, and raises `largest` to their magnitudes by output.
inline void rotate_block(const uint8_t* block, BlockFloats& to, float (&largest)[kTileN]) {
  const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const __m512i shift = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
  __m512 q[kTileK];
#pragma GCC unroll 4
  for (int64_t line = 0; line < StoredInt4::kLines; ++line) {
    const uint8_t* at = block + 2 * kTileN * sizeof(c10::Half) + line * StoredInt4::kLineBytes;
    const __m512i words = _mm512_loadu_si512(at);
    const __m512i first = _mm512_srlv_epi32(_mm512_permutexvar_epi32(even, words), shift);
    const __m512i second = _mm512_srlv_epi32(_mm512_permutexvar_epi32(odd, words), shift);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // permutexvar uses only the lowest four bits of an index
      q[8 * line + 2 * i] = _mm512_permutexvar_ps(_mm512_srli_epi32(first, 8 * i), values);
      q[8 * line + 2 * i + 1] = _mm512_permutexvar_ps(_mm512_srli_epi32(second, 8 * i), values);
    }
  }
#pragma GCC unroll 5
  for (int64_t half = 1; half < kRotation; half *= 2)
#pragma GCC unroll 32
    for (int64_t k = 0; k < kTileK; ++k) {
      if (k & half) continue;
      const __m512 first = q[k], second = q[k + half];
      q[k] = _mm512_add_ps(first, second);
      q[k + half] = _mm512_sub_ps(first, second);
    }
  const auto load = [](const uint8_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  };
  const __m512 scale = _mm512_mul_ps(load(block), _mm512_set1_ps(1.f / kRotation));
  __m512 minimum = load(block + kTileN * sizeof(c10::Half)), magnitudes = _mm512_loadu_ps(largest);
#pragma GCC unroll 32
  for (int64_t k = 0; k < kTileK; ++k) {
    const __m512 weight = _mm512_fmadd_ps(q[k], scale, minimum);
    minimum = _mm512_setzero_ps();
    magnitudes = _mm512_max_ps(magnitudes, _mm512_abs_ps(weight));
    _mm512_store_ps(to[k], weight);
  }
  _mm512_storeu_ps(largest, magnitudes);
}

// Rounds weights times `by` to int8, and writes their quads.
inline void round_block(const BlockFloats& weights, const float (&by)[kTileN], uint8_t* to) {
  const __m512 factor = _mm512_loadu_ps(by);
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  for (int64_t k = 0; k < kTileK; k += 4) {
    __m512i four[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      four[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(weights[k + i]), factor));
    const __m512i first = _mm512_packs_epi32(four[0], four[1]), second = _mm512_packs_epi32(four[2], four[3]);
    const __m512i quads = _mm512_shuffle_epi8(_mm512_packs_epi16(first, second), order);
    _mm512_storeu_si512(to + k * kTileN, _mm512_xor_si512(quads, _mm512_set1_epi8(int8_t(0x80))));
  }
}

#else

inline void rotate_block(const uint8_t* block, BlockFloats& to, float (&largest)[kTileN]) {
  c10::Half stored[2 * kTileN];
  std::memcpy(stored, block, sizeof stored);
  for (int64_t k = 0; k < kTileK; ++k)
    for (int64_t n = 0; n < kTileN; ++n) {
      const uint8_t* at = block + sizeof stored + k / 8 * StoredInt4::kLineBytes + (n % 8 * 2 + k % 2) * 4;
      to[k][n] = float(word_of(at) >> (k % 8 / 2 * 8 + n / 8 * 4) & 15);
    }
  butterfly_rounds<kTileN, kRotation * kTileN>(to[0], kBlockSize);
  for (int64_t k = 0; k < kTileK; ++k)
    for (int64_t n = 0; n < kTileN; ++n) {
      to[k][n] = std::fma(to[k][n], float(stored[n]) * (1.f / kRotation), k ? 0.f : float(stored[kTileN + n]));
      largest[n] = std::max(largest[n], std::abs(to[k][n]));
    }
}

inline void round_block(const BlockFloats& weights, const float (&by)[kTileN], uint8_t* to) {
  for (int64_t k = 0; k < kTileK; ++k)
    for (int64_t n = 0; n < kTileN; ++n)
      to[k / 4 * kQuadLine + 4 * n + k % 4] = uint8_t(int32_t(std::nearbyint(weights[k][n] * by[n])) + kOffset);
}

#endif

}  // namespace ringkv
