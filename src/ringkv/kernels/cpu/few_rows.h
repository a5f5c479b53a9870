// Few rows: which storage has a kernel of its own for few rows, and its operands.
//
//     sum x (scale q + minimum) = scale sum x q + minimum sum x
//
// Blocks are not widened to bfloat16 in memory, and the sums of x are computed once per row. The weights are not rounded,
// so results are slightly closer to those of the stored weights.

#pragma once

#include "group_dots.h"
#include "weights.h"

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__)
#include "nibbles_avx512.h"
#else
#include "nibbles_avx2.h"
#endif

namespace ringkv {

// kMost: the maximum number of rows. multiply: c = x . a panel, for all rows of x over `blocks` blocks; a row of c has
// kNR elements.
template <typename Storage>
struct FewRows {
  static constexpr int64_t kMost = 0;
};

template <>
struct FewRows<StoredInt4> {
  static constexpr int64_t kMost = kNibbleRows;
  using Rows = NibbleRows;
  static void multiply(const uint8_t* block, const Rows& x, int64_t rows, int64_t blocks, float* c) {
    for (int64_t m = 0; m < rows; m += kNibbleMR)
      at_most<kNibbleMR>(rows - m, [&](auto count) {
        multiply_nibbles<decltype(count)::value>(block, x, m, blocks, c + m * kNR);
      });
  }
};

template <bool kMinimums>
struct FewRows<StoredGroups<kMinimums>> {
  static constexpr int64_t kMost = kGroupRows;
  using Rows = GroupRows;
  static void multiply(const uint8_t* block, const Rows& x, int64_t rows, int64_t blocks, float* c) {
    for (int64_t m = 0; m < rows; m += kGroupMR)
      at_most<kGroupMR>(rows - m, [&](auto count) {
        multiply_groups<StoredGroups<kMinimums>, decltype(count)::value>(block, x, m, blocks, c + m * kNR);
      });
  }
};

}  // namespace ringkv
