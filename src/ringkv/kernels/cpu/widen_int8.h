// widen_int8: int8 from -127 to 127 to bfloat16, two rows of a tile at a time. bfloat16 represents each exactly.

#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>

namespace ringkv {

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__)

struct TwoRows {
  __m512bh first, second;
};

// Converts through int32 and float32.
struct Int8Conversion {
  TwoRows operator()(const uint8_t* rows) const { return {row(rows), row(rows + 32)}; }

 private:
  static __m512bh row(const uint8_t* at) { return _mm512_cvtne2ps_pbh(half(at + 16), half(at)); }
  static __m512 half(const uint8_t* at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
  }
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
