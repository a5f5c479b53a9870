// Nibbles: products of a few rows with int4 blocks, without widening them to bfloat16.
//
//     sum x (scale q + minimum) = scale sum x q + minimum sum x
//
// The sums of x are computed once per row. The weights are not rounded to bfloat16, so results are slightly
// closer to those of the stored weights.
//
// Each instruction set defines kNibbleRows (the maximum number of rows), a class NibbleRows (the packed rows) and
// multiply_nibbles<M> (the microkernel for M rows).

#pragma once

#include <type_traits>

#include "weights.h"

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__)
#include "nibbles_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "nibbles_avx2.h"
#else
namespace ringkv {

// Stubs, so that templates compile without a kernel.
constexpr int64_t kNibbleRows = 0, kNibbleMR = 1;

struct NibbleRows {
  NibbleRows(int64_t, int64_t) {}
  void pack(const LeftOperand&, int64_t) {}
};

template <int M>
void multiply_nibbles(const uint8_t*, const NibbleRows&, int64_t, int64_t, float*) {}

}  // namespace ringkv
#endif

namespace ringkv {

// c = x . a panel, for all rows of x, over `blocks` blocks; a row of c has kNR elements.
inline void multiply_nibbles(const uint8_t* block, const NibbleRows& x, int64_t rows, int64_t blocks, float* c) {
  for (int64_t m = 0; m < rows; m += kNibbleMR) {
    const auto run = [&](auto count) {
      multiply_nibbles<decltype(count)::value>(block, x, m, blocks, c + m * kNR);
    };
    at_most<kNibbleMR>(rows - m, run);
  }
}

}  // namespace ringkv
