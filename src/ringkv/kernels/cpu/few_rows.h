// Few rows: which storage has a kernel of its own for few rows, and its operands.

#pragma once

#include "group_dots.h"
#include "nibbles.h"
#include "weights.h"

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
    multiply_nibbles(block, x, rows, blocks, c);
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
