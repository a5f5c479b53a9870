// Byte rows: int8 products of a few rows, whose weights are converted to lines of quads in registers.

#pragma once

#include "byte_tiles.h"

namespace ringkv {

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__)

constexpr int64_t kByteQuadRows = ByteDots::kRows;  // maximum number of rows

// Loads lines of stored weights, and prefetches those that are kPrefetchBytes after them.
struct StoredLines {
  static ByteDots::V load(const uint8_t* line) {
    __builtin_prefetch(line + kPrefetchBytes, 0, 3);
    return quads_of(line);
  }
};

// c[m][0..31] = x[m] . two panels, for M rows over `blocks` blocks; a row of c has kNR elements.
template <int M>
void multiply_stored(const RowGroups& x, const uint8_t* first, const uint8_t* second, int64_t blocks, float* c) {
  const uint8_t* lines[] = {first, second};
  for (int64_t k = 0; k < blocks; k += kGroupBlocks) {
    const int64_t quads = std::min(kGroupBlocks, blocks - k) * kBlockLines;
    multiply_group<M, false, StoredLines>(x.upper[k / kGroupBlocks], 0, lines, nullptr, quads, c, k > 0);
    for (const uint8_t*& line : lines) line += kGroupBlocks * StoredInt8::kBlockBytes;
  }
}

#else

constexpr int64_t kByteQuadRows = 0;

template <int M>
void multiply_stored(const RowGroups&, const uint8_t*, const uint8_t*, int64_t, float*) {}

#endif

}  // namespace ringkv
