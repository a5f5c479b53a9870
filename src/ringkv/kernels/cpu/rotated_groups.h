// Rotated groups: a block of int8 weights in groups, rotated as the rows of int8 products are. See rotated_int4.h.

#pragma once

#include <algorithm>

#include "rotated_int4.h"
#include "stored_groups.h"

namespace ringkv {

// Replaces elements that are `distance` apart by their sums and differences, in runs of `count` elements.
template <int64_t distance>
void butterflies(Vec* of, int64_t count) {
#pragma GCC unroll 32
  for (int64_t k = 0; k < count; ++k) {
    if (k & distance) continue;
    const Vec first = of[k], second = of[k + distance];
    of[k] = first + second;
    of[k + distance] = first - second;
  }
}

// Writes a block's rotated weights, and raises `largest` to their magnitudes by output. The integers of each half are
// rotated exactly, and scaled before the last step.
template <bool kMinimums>
void rotate_block(const StoredGroups<kMinimums>&, const uint8_t* block, BlockFloats& to, float (&largest)[kTileN]) {
  using Storage = StoredGroups<kMinimums>;
  static_assert(kRotation == kTileK);
  for (int64_t out = 0; out < kTileN; out += kLanes) {
    Vec of[kTileK];
#pragma GCC unroll 16
    for (int64_t pair = 0; pair < kTileK / 2; ++pair) {
      const auto [even, odd] = pair_of(Storage::pair_row(block, pair) + 2 * out);
      of[2 * pair] = even;
      of[2 * pair + 1] = odd;
    }
    butterflies<1>(of, kTileK);
    butterflies<2>(of, kTileK);
    butterflies<4>(of, kTileK);
    butterflies<8>(of, kTileK);
    const Vec part(1.f / kRotation);
    const Vec scale[] = {Storage::scale(block, 0, out) * part, Storage::scale(block, 1, out) * part};
#pragma GCC unroll 32
    for (int64_t k = 0; k < kTileK; ++k) of[k] = of[k] * scale[k / (kTileK / 2)];
    butterflies<kTileK / 2>(of, kTileK);
    of[0] = of[0] + Storage::minimum(block, out);
    Vec most = Vec::loadu(largest + out);
#pragma GCC unroll 32
    for (int64_t k = 0; k < kTileK; ++k) {
      most = at::vec::maximum(most, of[k].abs());
      of[k].store(to[k] + out);
    }
    most.store(largest + out);
  }
}

inline void rotate_block(const StoredInt4&, const uint8_t* block, BlockFloats& to, float (&largest)[kTileN]) {
  rotate_block(block, to, largest);
}

}  // namespace ringkv
