// Lanes: the vector operations that attention needs, for any stored type, with fast paths for AVX-512 and bfloat16.
//
// A vector has kLanes floats. A step is kStep elements of a row, which are processed together.

#pragma once

namespace ringkv {

using Vec = at::vec::Vectorized<float>;
constexpr int kLanes = Vec::size();
constexpr int kStep = 2 * kLanes;

// Integers in a vector as long as Vec, and in one of half its length. RINGKV_SIMD(add_epi32) is the intrinsic that adds
// two such vectors.
#if defined(CPU_CAPABILITY_AVX512)
#define RINGKV_SIMD(name) _mm512_##name
using Ints = __m512i;
using HalfInts = __m256i;
#else
#define RINGKV_SIMD(name) _mm256_##name
using Ints = __m256i;
using HalfInts = __m128i;
#endif

// Returns what is stored from an address on: a vector, or a word.
template <typename T>
inline T loaded(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline int32_t word_of(const void* from) { return loaded<int32_t>(from); }

// Returns the 16-bit integers of as many bytes from an address on.
inline Ints widened_bytes(const void* from) { return RINGKV_SIMD(cvtepi8_epi16)(loaded<HalfInts>(from)); }

// One round of a Hadamard transform: each run of kHalf of `count` elements and the next become their sum and their
// difference. kHalf is a compile-time constant, so that compilers vectorise.
template <int64_t kHalf>
inline void butterflies(float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += 2 * kHalf)
    for (int64_t j = i; j < i + kHalf; ++j) {
      const float first = x[j], second = x[j + kHalf];
      x[j] = first + second;
      x[j + kHalf] = first - second;
    }
}

// The rounds with kHalf, twice as many, and so on below kStop.
template <int64_t kHalf, int64_t kStop>
inline void butterfly_rounds(float* x, int64_t count) {
  if constexpr (kHalf < kStop) {
    butterflies<kHalf>(x, count);
    butterfly_rounds<2 * kHalf, kStop>(x, count);
  }
}

// Loads and multiplies rows of stored type T, kStep elements at a time. `split` loads a step into two float vectors, in
// an order that depends on T; `join` stores such a pair in the row's order.
template <typename T>
struct Row {
  static Vec dot(Vec sum, const T* a, const T* b) {
    Vec a_low, a_high, b_low, b_high;
    split(a, a_low, a_high);
    split(b, b_low, b_high);
    return at::vec::fmadd(a_high, b_high, at::vec::fmadd(a_low, b_low, sum));
  }
  static void split(const T* at, Vec& low, Vec& high) {
    std::tie(low, high) = at::vec::convert_to_float<T>(at::vec::Vectorized<T>::loadu(at));
  }
  static void join(Vec low, Vec high, float* at) {
    low.store(at);
    high.store(at + kLanes);
  }
};

template <>
inline void Row<float>::split(const float* at, Vec& low, Vec& high) {
  low = Vec::loadu(at);
  high = Vec::loadu(at + kLanes);
}

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__)
// A bfloat16 is the upper half of a float: a mask extracts a step's odd elements, a shift its even ones.
template <>
struct Row<at::BFloat16> {
  static Vec dot(Vec sum, const at::BFloat16* a, const at::BFloat16* b) {
    return Vec(_mm512_dpbf16_ps(sum, (__m512bh)_mm512_loadu_si512(a), (__m512bh)_mm512_loadu_si512(b)));
  }
  static void split(const at::BFloat16* at, Vec& even, Vec& odd) {
    const __m512i both = _mm512_loadu_si512(at);
    even = Vec(_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)));
    odd = Vec(_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(int(0xffff0000)))));
  }
  static void join(Vec even, Vec odd, float* at) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    _mm512_storeu_ps(at, _mm512_permutex2var_ps(even, first, odd));
    _mm512_storeu_ps(at + kLanes, _mm512_permutex2var_ps(even, _mm512_add_epi32(first, _mm512_set1_epi32(8)), odd));
  }
};
#endif

#if defined(CPU_CAPABILITY_AVX512)
// Reduces four vectors at a time: lane i of each 128-bit quarter of the result holds a part of vector i's sum.
inline Vec four_sums(const Vec* v) {
  const auto pair = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  };
  const __m512d ab = _mm512_castps_pd(pair(v[0], v[1])), cd = _mm512_castps_pd(pair(v[2], v[3]));
  return Vec(_mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd))));
}

// Returns the sums of sixteen vectors, from four results of `four_sums`.
inline Vec sixteen_sums(const Vec* v) {
  const auto pair = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  return Vec(pair(pair(v[0], v[1]), pair(v[2], v[3])));
}
#else
// Returns the sums of eight vectors.
inline Vec eight_sums(const Vec* v) {
  const auto four = [](const Vec* x) { return _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3])); };
  const __m256 first = four(v), last = four(v + 4);  // in both halves the sums of these halves
  return Vec(_mm256_add_ps(_mm256_permute2f128_ps(first, last, 0x20), _mm256_permute2f128_ps(first, last, 0x31)));
}
#endif

inline float sum_of(Vec v) {
  return at::vec::vec_reduce_all<float>([](Vec& a, Vec& b) { return a + b; }, v);
}

}  // namespace ringkv
