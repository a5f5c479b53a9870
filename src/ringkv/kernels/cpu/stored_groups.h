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

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__)

template <bool kMinimums>
void StoredGroups<kMinimums>::widen(const uint8_t* block, BF16* tile) {
  const __m512i duplicate[2] = {_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
                                _mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15)};
  const auto part = [&](Vec of, int i) { return Vec(_mm512_permutexvar_ps(duplicate[i], of)); };
  const Vec least = minimum(block, 0), minimums[2] = {part(least, 0), part(least, 1)};
  for (int64_t half = 0; half < 2; ++half) {
    const Vec by = scale(block, half, 0), scales[2] = {part(by, 0), part(by, 1)};
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
