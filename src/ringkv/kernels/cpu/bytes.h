// Bytes: products of a few rows with int8 blocks, which are widened in registers.
//
// Elements are multiplied in the order of tiles_vectors.h, so a row has the same bits as among many rows, whose blocks
// are widened in memory. With AMX tiles all rows are multiplied that way.

#pragma once

#include "weights.h"

namespace ringkv {

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__) && !defined(__AMX_BF16__)

constexpr int64_t kByteRows = kRowsInRegisters;  // maximum number of rows
constexpr int kRowsWithLookup = 4;               // maximum number of rows whose sums leave registers for its tables

// c[m][0..31] = x[m] . two panels, for M rows over `blocks` blocks; a row of c has kNR elements.
template <int M>
void multiply_bytes(const LeftOperand& x, const uint8_t* first, const uint8_t* second, int64_t blocks, float* c) {
  using Storage = StoredInt8;
  const std::conditional_t<M <= kRowsWithLookup, Int8Lookup, Int8Conversion> widened;
  __m512 sums[M][2];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) sums[m][0] = sums[m][1] = _mm512_setzero_ps();
  const BF16* rows = x.upper;
  const int64_t panel = second - first;
  for (; blocks > 0; --blocks, rows += x.block, first += Storage::kBlockBytes, second += Storage::kBlockBytes) {
    // The memory after one panel's end is the other, which was already read.
    const int64_t ahead = kPrefetchBytes + (blocks * Storage::kBlockBytes < kPrefetchBytes ? panel : 0);
    for (int64_t k = 0; k < kTileK; k += 4) {
      const uint8_t *left_at = first + k * kTileN, *right_at = second + k * kTileN;
      __builtin_prefetch(left_at + ahead, 0, 3);
      __builtin_prefetch(right_at + ahead, 0, 3);
      const TwoRows left = widened(left_at), right = widened(right_at);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const BF16* at = rows + m * x.row + k;
        const __m512bh pair = broadcast_pair(at), next = broadcast_pair(at + 2);
        sums[m][0] = _mm512_dpbf16_ps(sums[m][0], left.first, pair);
        sums[m][1] = _mm512_dpbf16_ps(sums[m][1], right.first, pair);
        sums[m][0] = _mm512_dpbf16_ps(sums[m][0], left.second, next);
        sums[m][1] = _mm512_dpbf16_ps(sums[m][1], right.second, next);
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
