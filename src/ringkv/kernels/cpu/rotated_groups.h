// Rotated groups: a block of int8 weights in groups, rotated as the rows of int8 products are. See rotated_int4.h.
//
// Steps of a rotation may be in any order. Those between pairs of elements come first, on 16-bit integers.

#pragma once

#include "rotated_int4.h"
#include "stored_groups.h"

namespace ringkv {

// A pair row of a tile: two elements of each of kLanes outputs, or sums of such pairs, in 16 bits.
struct PairWords {
  Ints words;
  static PairWords load(const uint8_t* row) { return {widened_bytes(row)}; }
  PairWords operator+(PairWords b) const { return {RINGKV_SIMD(add_epi16)(words, b.words)}; }
  PairWords operator-(PairWords b) const { return {RINGKV_SIMD(sub_epi16)(words, b.words)}; }
  Vec sums() const { return dot(RINGKV_SIMD(set1_epi16)(1)); }
  Vec differences() const { return dot(RINGKV_SIMD(set1_epi32)(int(0xffff0001))); }

 private:
  Vec dot(Ints by) const { return Vec(RINGKV_SIMD(cvtepi32_ps)(RINGKV_SIMD(madd_epi16)(words, by))); }
};

// Writes a block's rotated weights, and raises `largest` to their magnitudes by output. The integers of each half are
// rotated exactly, and scaled before the last step, between halves.
template <bool kMinimums>
void rotate_block(const StoredGroups<kMinimums>&, const uint8_t* block, BlockFloats& to, float (&largest)[kTileN]) {
  using Storage = StoredGroups<kMinimums>;
  static_assert(kRotation == kTileK);
  constexpr int64_t kPairs = kTileK / 2, kHalf = Storage::kHalfPairs;
  for (int64_t out = 0; out < kTileN; out += kLanes) {
    PairWords pairs[kPairs];
#pragma GCC unroll 16
    for (int64_t i = 0; i < kPairs; ++i) pairs[i] = PairWords::load(Storage::pair_row(block, i) + 2 * out);
#pragma GCC unroll 3
    for (int64_t distance = 1; distance < kHalf; distance *= 2)
#pragma GCC unroll 16
      for (int64_t i = 0; i < kPairs; ++i) {
        if (i & distance) continue;
        const PairWords first = pairs[i], second = pairs[i + distance];
        pairs[i] = first + second;
        pairs[i + distance] = first - second;
      }
    const Vec part(1.f / kRotation), first = Storage::scale(block, 0, out) * part;
    const Vec second = Storage::scale(block, 1, out) * part;
    Vec magnitudes = Vec::loadu(largest + out);
    const auto write = [&](int64_t k, Vec weight) {
      magnitudes = at::vec::maximum(magnitudes, weight.abs());
      weight.store(to[k] + out);
    };
    const auto write_both = [&](int64_t k, Vec of_first, Vec of_second) {
      const Vec scaled = of_second * second, sum = at::vec::fmadd(of_first, first, scaled);
      write(k, k ? sum : sum + Storage::minimum(block, out));
      write(k + kTileK / 2, at::vec::fmadd(of_first, first, scaled.neg()));
    };
#pragma GCC unroll 8
    for (int64_t i = 0; i < kHalf; ++i) {
      write_both(2 * i, pairs[i].sums(), pairs[i + kHalf].sums());
      write_both(2 * i + 1, pairs[i].differences(), pairs[i + kHalf].differences());
    }
    magnitudes.store(largest + out);
  }
}

inline void rotate_block(const StoredInt4&, const uint8_t* block, BlockFloats& to, float (&largest)[kTileN]) {
  rotate_block(block, to, largest);
}

}  // namespace ringkv
