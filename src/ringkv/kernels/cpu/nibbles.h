// Nibbles: dot products of a few rows with blocks of four bits, which are never widened.
//
//     sum x (scale q + least) = scale sum x q + least sum x
//
// The sums of x are known before. They are float32's, a little nearer the stored weights than widened ones are.
//
// Each unit gives kFew, so many rows, a class Turned, the rows as it takes them, and multiply_nibbles<M>, for M of them.

#pragma once

#include <type_traits>

#include "weights.h"

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__)
#include "nibbles_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "nibbles_avx2.h"
#else
namespace ringkv {

// Names that a template must find where it is not taken.
constexpr int64_t kFew = 0, kInRegisters = 1;

struct Turned {
  Turned(int64_t, int64_t) {}
  void take(const Left&, int64_t) {}
};

template <int M>
void multiply_nibbles(const uint8_t*, const Turned&, int64_t, int64_t, float*) {}

}  // namespace ringkv
#endif

namespace ringkv {

template <typename Kind>
constexpr bool kTakesNibbles = kFew > 0 && std::is_same_v<Kind, Four>;

// All of x's rows . a strip's outputs, over `blocks` blocks; c has kPair numbers a row
inline void multiply_nibbles(const uint8_t* block, const Turned& x, int64_t rows, int64_t blocks, float* c) {
  for (int64_t m = 0; m < rows; m += kInRegisters) {
    const auto run = [&](auto count) {
      multiply_nibbles<decltype(count)::value>(block, x, m, blocks, c + m * kPair);
    };
    at_most<kInRegisters>(rows - m, run);
  }
}

}  // namespace ringkv
