// Widening: int8 and float16 to float vectors, and int8 to bfloat16, which represents -127 to 127 exactly.

#pragma once

#include "lanes.h"
#include "tiles.h"

namespace ringkv {

// Two elements of each of kLanes outputs, from a pair row of a tile.
struct PairOfElements {
  Vec even, odd;
};

// Return kLanes elements.
inline Vec from_halves(const uint8_t* at) {
  Vec wide;
  at::vec::load_fp32_from_fp16(reinterpret_cast<const c10::Half*>(at), wide);
  return wide;
}
inline Vec from_bytes(const uint8_t* at) {
  return at::vec::convert<float>(at::vec::Vectorized<int8_t>::loadu_one_fourth(at));
}

inline PairOfElements pair_of(const uint8_t* row) {
  const Ints words = widened_bytes(row);
  const Ints even = RINGKV_SIMD(srai_epi32)(RINGKV_SIMD(slli_epi32)(words, 16), 16);
  return {Vec(RINGKV_SIMD(cvtepi32_ps)(even)), Vec(RINGKV_SIMD(cvtepi32_ps)(RINGKV_SIMD(srai_epi32)(words, 16)))};
}

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__)

inline __m512bh broadcast_pair(const BF16* at) {
  return (__m512bh)_mm512_set1_epi32(word_of(at));
}

// Returns the first or the last eight elements, each twice: two neighbours in a tile's row belong to one output.
inline Vec twice(Vec of, int half) {
  const __m512i places = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return Vec(_mm512_permutexvar_ps(_mm512_add_epi32(places, _mm512_set1_epi32(8 * half)), of));
}

inline void store_row(BF16* to, __m512 first, __m512 second) {
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

// Two rows of a tile.
struct TwoRows {
  __m512bh first, second;
};

// Converts through int32 and float32.
struct Int8Conversion {
  TwoRows operator()(const uint8_t* rows) const { return {row(rows), row(rows + 32)}; }

 private:
  static __m512bh row(const uint8_t* at) { return _mm512_cvtne2ps_pbh(from_bytes(at + 16), from_bytes(at)); }
};

#if defined(__AVX512VBMI__)

// Lower and upper bytes of 0 to 127 in bfloat16, which is the upper half of a float32.
struct BytesOfBF16 {
  alignas(64) uint8_t lower[128], upper[128];
  constexpr BytesOfBF16() : lower(), upper() {
    for (int i = 0; i < 128; ++i) {
      const auto bits = std::bit_cast<uint32_t>(float(i));
      lower[i] = uint8_t(bits >> 16);
      upper[i] = uint8_t(bits >> 24);
    }
  }
};

// Looks up the bytes of each magnitude: 7 instructions for 64 elements instead of 10. The tables take 4 registers.
class Int8Lookup {
 public:
  TwoRows operator()(const uint8_t* rows) const {
    // Unpacking interleaves the lower halves of 128-bit lanes, so the first row goes there.
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i elements = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(rows));
    const __m512i magnitudes = _mm512_abs_epi8(elements), sign = _mm512_set1_epi8(int8_t(0x80));
    const __m512i lower = _mm512_permutex2var_epi8(lower_[0], magnitudes, lower_[1]);
    const __m512i unsigned_upper = _mm512_permutex2var_epi8(upper_[0], magnitudes, upper_[1]);
    const __m512i upper = _mm512_or_si512(unsigned_upper, _mm512_and_si512(elements, sign));
    return {(__m512bh)_mm512_unpacklo_epi8(lower, upper), (__m512bh)_mm512_unpackhi_epi8(lower, upper)};
  }

 private:
  static constexpr BytesOfBF16 kBytes{};
  const __m512i lower_[2] = {_mm512_load_si512(kBytes.lower), _mm512_load_si512(kBytes.lower + 64)};
  const __m512i upper_[2] = {_mm512_load_si512(kBytes.upper), _mm512_load_si512(kBytes.upper + 64)};
};

#else

using Int8Lookup = Int8Conversion;

#endif
#endif

}  // namespace ringkv
