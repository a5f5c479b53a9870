// Stored groups: int8 weights in groups of 32 elements along K, whose halves may have scales of their own.
//
//     weight = scale * multiple[half] * q + minimum * least_multiple
//
// A block is a group of each of 16 outputs. Its first line has 16 scales in float16, then 16 multiples in int8 for the
// first 16 elements along K and 16 for the others. If groups have minimums, a second line has 16 of them in float16 and
// their 16 multiples in int8. Eight lines of q follow, in tile order.

#pragma once

#include <c10/util/Half.h>

#include <cstring>

#include "lanes.h"
#include "tiles.h"
#include "weights.h"

namespace ringkv {

// Two elements of each of kLanes outputs, from a pair row of a tile.
struct PairOfElements {
  Vec even, odd;
};

#if defined(CPU_CAPABILITY_AVX512)

inline PairOfElements pair_of(const uint8_t* row) {
  const __m512i words = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row)));
  return {Vec(_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 16), 16))),
          Vec(_mm512_cvtepi32_ps(_mm512_srai_epi32(words, 16)))};
}
inline Vec from_halves(const uint8_t* at) {
  return Vec(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
}
inline Vec from_bytes(const uint8_t* at) {
  return Vec(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)))));
}

#elif defined(CPU_CAPABILITY_AVX2)

inline PairOfElements pair_of(const uint8_t* row) {
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)));
  return {Vec(_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 16), 16))),
          Vec(_mm256_cvtepi32_ps(_mm256_srai_epi32(words, 16)))};
}
inline Vec from_halves(const uint8_t* at) {
  return Vec(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}
inline Vec from_bytes(const uint8_t* at) {
  return Vec(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)))));
}

#else

template <typename Element>
Vec each_lane(const Element& element) {
  float of[kLanes];
  for (int i = 0; i < kLanes; ++i) of[i] = element(i);
  return Vec::loadu(of);
}
inline PairOfElements pair_of(const uint8_t* row) {
  return {each_lane([&](int i) { return float(int8_t(row[2 * i])); }),
          each_lane([&](int i) { return float(int8_t(row[2 * i + 1])); })};
}
inline Vec from_halves(const uint8_t* at) {
  c10::Half halves[kLanes];
  std::memcpy(halves, at, sizeof halves);
  return each_lane([&](int i) { return float(halves[i]); });
}
inline Vec from_bytes(const uint8_t* at) {
  return each_lane([&](int i) { return float(int8_t(at[i])); });
}

#endif

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

// Stores two elements of each of kLanes outputs as bfloat16.
inline void store_pairs(BF16* to, Vec even, Vec odd) {
  const auto [first, second] = at::vec::interleave2(even, odd);
  at::vec::convert_from_float<BF16>(first, second).store(to);
}

template <bool kMinimums>
void StoredGroups<kMinimums>::widen(const uint8_t* block, BF16* tile) {
  for (int64_t out = 0; out < kTileN; out += kLanes) {
    const Vec least = minimum(block, out);
    for (int64_t pair = 0; pair < kTileK / 2; ++pair) {
      const Vec by = scale(block, pair / kHalfPairs, out);
      const auto [even, odd] = pair_of(pair_row(block, pair) + 2 * out);
      store_pairs(tile + pair * 2 * kTileN + 2 * out, at::vec::fmadd(even, by, least), at::vec::fmadd(odd, by, least));
    }
  }
}

}  // namespace ringkv
