// Rows of e4m3 elements, converted to bfloat16 by table: 5 instructions for 64 elements. bfloat16 represents each
// exactly.

#pragma once

#include <bit>
#include <cstdint>

#include "block.h"
#include "row_e4m3.h"

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__) && defined(__AVX512VBMI__)

namespace ringkv {

constexpr int64_t kLookupElements = 64;

// Lower and upper bytes of e4m3's magnitudes in bfloat16, which is the upper half of a float32. The last one is NaN.
struct BytesOfE4M3 {
  alignas(64) uint8_t lower[128], upper[128];

  constexpr BytesOfE4M3() : lower(), upper() {
    for (int i = 0; i < 128; ++i) {
      float value = i < 8 ? float(i) / 8 : 1 + float(i % 8) / 8;
      for (int e = i < 8 ? 1 : i / 8; e < 7; ++e) value /= 2;
      for (int e = 7; e < i / 8; ++e) value *= 2;
      const uint32_t bits = i < 127 ? std::bit_cast<uint32_t>(value) : 0x7fc00000;
      lower[i] = uint8_t(bits >> 16);
      upper[i] = uint8_t(bits >> 24);
    }
  }
};

// 64 elements as bfloat16, in the order that unpacking makes: `first` has the lower eight of every sixteen.
struct Bf16Row {
  __m512i first, second;
};

inline int64_t lookup_order(int64_t i) { return i / 8 % 4 * 16 + i / 32 * 8 + i % 8; }  // element at place i

class E4M3Lookup {
 public:
  Bf16Row operator()(const E4M3* at, __mmask64 mask) const {
    const __m512i x = _mm512_maskz_loadu_epi8(mask, at);  // a table's index ignores the sign
    const __m512i lower = _mm512_permutex2var_epi8(lower_[0], x, lower_[1]);
    const __m512i magnitude = _mm512_permutex2var_epi8(upper_[0], x, upper_[1]);
    const __m512i upper = _mm512_or_si512(magnitude, _mm512_and_si512(x, _mm512_set1_epi8(int8_t(0x80))));
    return {_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)};
  }
  static __mmask64 mask(int64_t elements) { return elements < 64 ? (__mmask64(1) << elements) - 1 : ~__mmask64(0); }

 private:
  static constexpr BytesOfE4M3 kBytes{};
  const __m512i lower_[2] = {_mm512_load_si512(kBytes.lower), _mm512_load_si512(kBytes.lower + 64)};
  const __m512i upper_[2] = {_mm512_load_si512(kBytes.upper), _mm512_load_si512(kBytes.upper + 64)};
};

inline Vec dot_bf16(Vec sum, const Bf16Row& row, const at::BFloat16* query) {
  const __m512 half = _mm512_dpbf16_ps(sum, (__m512bh)row.first, (__m512bh)_mm512_loadu_si512(query));
  return Vec(_mm512_dpbf16_ps(half, (__m512bh)row.second, (__m512bh)_mm512_loadu_si512(query + 32)));
}

// Queries [parts, queries, padded width] in `lookup_order`: their sum is the query.
struct SplitQueries {
  const at::BFloat16* at;
  int64_t parts, part, width;  // part: stride of parts

  SplitQueries from(int64_t g) const { return {at + g * width, parts, part, width}; }
};

// sums[g][i] += products of row i with query g, for ROWS rows and queries of PARTS parts.
template <int G, int PARTS, int ROWS>
inline void dot_rows(const E4M3Lookup& lookup, const SplitQueries& query, const E4M3* rows, int64_t width,
                     Vec (&sums)[G][ROWS]) {
  for (int64_t d = 0; d < width; d += kLookupElements)
#pragma GCC unroll 4
    for (int i = 0; i < ROWS; ++i) {
      const Bf16Row row = lookup(rows + i * width + d, E4M3Lookup::mask(width - d));
#pragma GCC unroll 4
      for (int part = 0; part < PARTS; ++part)
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g)
          sums[g][i] = dot_bf16(sums[g][i], row, query.at + part * query.part + g * query.width + d);
    }
}

// scores[g * kBlock + j] = q[g] . key[j] * scale. Prefetches `later`, the values of the same entries.
template <int G, int PARTS>
void score_e4m3(const SplitQueries& query, const E4M3* key, const E4M3* later, int64_t entries, int64_t width,
                float scale, float* scores) {
  const E4M3Lookup lookup;
  int64_t j = 0;
  for (; j + 16 <= entries; j += 16) {
    prefetch<2>(later + j * width, 16, width);
    Vec parts[G][4];
    for (int quarter = 0; quarter < 4; ++quarter) {
      Vec sums[G][4];
      for (auto& own : sums) std::fill_n(own, 4, Vec(0.f));
      dot_rows<G, PARTS>(lookup, query, key + (j + 4 * quarter) * width, width, sums);
      for (int g = 0; g < G; ++g) parts[g][quarter] = four_sums(sums[g]);
    }
    for (int g = 0; g < G; ++g) (sixteen_sums(parts[g]) * Vec(scale)).store(scores + g * kBlock + j);
  }
  for (; j < entries; ++j) {
    Vec sums[G][1];
    for (auto& own : sums) own[0] = Vec(0.f);
    dot_rows<G, PARTS>(lookup, query, key + j * width, width, sums);
    for (int g = 0; g < G; ++g) scores[g * kBlock + j] = sum_of(sums[g][0]) * scale;
  }
}

// Stores sums of 64 elements, or of the first 32, from the even and odd places of a Bf16Row.
inline void store_sums(const Vec (&sums)[4], int64_t elements, float* to) {
  alignas(64) float places[kLookupElements];
  Row<at::BFloat16>::join(sums[0], sums[1], places);
  Row<at::BFloat16>::join(sums[2], sums[3], places + 32);
  for (int64_t i = 0; i < kLookupElements; i += 8)
    if (lookup_order(i) < elements) std::copy_n(places + i, 8, to + lookup_order(i));
}

// out[g * width + d] = sum over j of weights[g * kBlock + j] * value[j][d]. Prefetches `later`, the next block's keys.
template <int G>
void sum_e4m3(const float* weights, const E4M3* value, const E4M3* later, int64_t entries, int64_t width, float* out) {
  const E4M3Lookup lookup;
  const __m512i odd = _mm512_set1_epi32(int(0xffff0000));
  for (int64_t d = 0; d < width; d += kLookupElements) {
    const __mmask64 mask = E4M3Lookup::mask(width - d);
    Vec sums[G][4];
    for (auto& own : sums) std::fill_n(own, 4, Vec(0.f));
    for (int64_t j = 0; j < entries; ++j) {
      prefetch<2>(later + j * width + d, 1, kLookupElements);
      const Bf16Row row = lookup(value + j * width + d, mask);
      const Vec x[4] = {Vec(_mm512_castsi512_ps(_mm512_slli_epi32(row.first, 16))),
                        Vec(_mm512_castsi512_ps(_mm512_and_si512(row.first, odd))),
                        Vec(_mm512_castsi512_ps(_mm512_slli_epi32(row.second, 16))),
                        Vec(_mm512_castsi512_ps(_mm512_and_si512(row.second, odd)))};
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        const Vec weight(weights[g * kBlock + j]);
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) sums[g][n] = at::vec::fmadd(weight, x[n], sums[g][n]);
      }
    }
    for (int g = 0; g < G; ++g) store_sums(sums[g], width - d, out + g * width + d);
  }
}

}  // namespace ringkv

#endif
