// Stored groups: int8 weights in groups of 32 elements along K, whose halves may have scales of their own.
//
//     weight = scale * multiple[half] * q + minimum * least_multiple
//
// A block is a group of each of 16 outputs. Its first line has 16 scales in float16, then 16 multiples in int8 for the
// first 16 elements along K and 16 for the others. If groups have minimums, a second line has 16 of them in float16 and
// their 16 multiples in int8. Eight lines of q follow, in tile order.

#pragma once

#include "weights.h"
#include "widen.h"

namespace ringkv {

template <bool kMinimums>
struct StoredGroups {
  static constexpr int64_t kLine = 64, kMultiples = kTileN * sizeof(c10::Half);  // kMultiples: where a line has them
  static constexpr int64_t kHeader = kMinimums ? 2 * kLine : kLine, kHalfPairs = kTileK / 4;  // kHalfPairs: pair rows
  static constexpr int64_t kHeaderBytes = 0, kBlockBytes = kHeader + kBlockSize;
  static constexpr bool kHasScales = false, kHasMinimums = kMinimums;

  static const uint8_t* pair_row(const uint8_t* block, int64_t pair) { return block + kHeader + pair * 2 * kTileN; }

  // Scales of kLanes outputs from `out` on, for half 0 or 1 of K.
  static Vec scale(const uint8_t* block, int64_t half, int64_t out) {
    return from_halves(block + out * sizeof(c10::Half)) * from_bytes(block + kMultiples + half * kTileN + out);
  }
  static Vec minimum(const uint8_t* block, int64_t out) {
    if constexpr (!kMinimums) return Vec(0.f);
    const uint8_t* line = block + kLine;
    return from_halves(line + out * sizeof(c10::Half)) * from_bytes(line + kMultiples + out);
  }
  static void widen(const uint8_t* block, BF16* tile);
};

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__)

template <bool kMinimums>
void StoredGroups<kMinimums>::widen(const uint8_t* block, BF16* tile) {
  const Vec least = minimum(block, 0), minimums[2] = {twice(least, 0), twice(least, 1)};
  for (int64_t half = 0; half < 2; ++half) {
    const Vec by = scale(block, half, 0), scales[2] = {twice(by, 0), twice(by, 1)};
#pragma GCC unroll 8
    for (int64_t pair = half * kHalfPairs; pair < (half + 1) * kHalfPairs; ++pair) {
      const auto widened = [&](int i) {
        return at::vec::fmadd(from_bytes(pair_row(block, pair) + i * kTileN), scales[i], minimums[i]);
      };
      store_row(tile + pair * 2 * kTileN, widened(0), widened(1));
    }
  }
}

#else

template <bool kMinimums>
void StoredGroups<kMinimums>::widen(const uint8_t* block, BF16* tile) {
  for (int64_t out = 0; out < kTileN; out += kLanes) {
    const Vec least = minimum(block, out);
    for (int64_t pair = 0; pair < kTileK / 2; ++pair) {
      const Vec by = scale(block, pair / kHalfPairs, out);
      const auto [even, odd] = pair_of(pair_row(block, pair) + 2 * out);
      const auto [first, second] =
          at::vec::interleave2(at::vec::fmadd(even, by, least), at::vec::fmadd(odd, by, least));
      at::vec::convert_from_float<BF16>(first, second).store(tile + pair * 2 * kTileN + 2 * out);
    }
  }
}

#endif

}  // namespace ringkv
