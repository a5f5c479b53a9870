// Bytes: products of a few rows with int8 blocks, which are widened in registers.
//
// Elements are multiplied in the order of tiles_vectors.h, so a row has the same bits as among many rows, whose blocks
// are widened in memory. With AMX tiles all rows are multiplied that way.

#pragma once

#include <type_traits>

#include "weights.h"

namespace ringkv {

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__) && !defined(__AMX_BF16__)

constexpr int64_t kByteRows = kRowsInRegisters;  // maximum number of rows

// c[m][0..31] = x[m] . two panels, for M rows over `blocks` blocks; a row of c has kNR elements.
template <int M>
void multiply_bytes(const LeftOperand& x, const uint8_t* first, const uint8_t* second, int64_t blocks, float* c) {
  __m512 sums[M][2];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) sums[m][0] = sums[m][1] = _mm512_setzero_ps();
  const BF16* rows = x.upper;
  const int64_t panel = second - first;
  for (; blocks > 0; --blocks, rows += x.block, first += StoredInt8::kBlockBytes, second += StoredInt8::kBlockBytes) {
    // The memory after one panel's end is the other, which was already read.
    const int64_t ahead = kPrefetchBytes + (blocks * StoredInt8::kBlockBytes < kPrefetchBytes ? panel : 0);
    for (int64_t line = 0; line < StoredInt8::kBlockBytes; line += 64) {
      __builtin_prefetch(first + ahead + line, 0, 3);
      __builtin_prefetch(second + ahead + line, 0, 3);
    }
    for (int64_t k = 0; k < kTileK; k += 2) {
      const __m512bh left = StoredInt8::widened(first + k * kTileN), right = StoredInt8::widened(second + k * kTileN);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        int32_t two;
        std::memcpy(&two, rows + m * x.row + k, sizeof two);
        const auto both = (__m512bh)_mm512_set1_epi32(two);
        sums[m][0] = _mm512_dpbf16_ps(sums[m][0], left, both);
        sums[m][1] = _mm512_dpbf16_ps(sums[m][1], right, both);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
    for (int s = 0; s < 2; ++s) _mm512_storeu_ps(c + m * kNR + s * kTileN, sums[m][s]);
}

#else

constexpr int64_t kByteRows = 0;

template <int M>
void multiply_bytes(const LeftOperand&, const uint8_t*, const uint8_t*, int64_t, float*) {}

#endif

template <typename Storage>
constexpr bool kHasByteKernel = kByteRows > 0 && std::is_same_v<Storage, StoredInt8>;

}  // namespace ringkv
