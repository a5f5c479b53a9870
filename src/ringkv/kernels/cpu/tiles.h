// Tiles: products of up to 32 rows with 32 outputs of a packed weight, on the best unit that the processor has.
//
// A strip is 16 outputs of a weight. It lies as blocks of kDeep inner numbers, each [kDeep / 2][16][2]: the order in
// which AMX and the bfloat16 dot products take their right operand, so that one copy serves every processor.
//
// Each unit gives a class Tiles, for a thread's products with a weight, and multiply_four, for attention.

#pragma once

#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace ringkv {

using BF16 = at::BFloat16;

constexpr int64_t kWide = 16;               // outputs in a strip
constexpr int64_t kDeep = 32;               // inner numbers in a block
constexpr int64_t kBlockSize = kWide * kDeep;
constexpr int64_t kTall = 16;               // rows in a tile
constexpr int64_t kPiece = 2 * kTall;       // rows that the tiles take at once
constexpr int64_t kPair = 2 * kWide;        // outputs that are computed together
constexpr int64_t kSquare = kTall * kWide;  // sums of a tile of rows and a strip

// Two tiles of rows at an inner block: where they begin, and how far apart rows and blocks are.
struct Left {
  const BF16 *upper, *lower;
  int64_t row, block;
};

// Sums of two tiles of rows with two strips: where the first tile's begin, and how far apart rows are, the other strip's
// sums, and the other tile's.
struct Squares {
  float* at;
  int64_t row, beside, below;
};

// Calls run with the number of rows, at most MOST, as a constant.
template <int MOST, typename Run, int M = 1>
void at_most(int64_t rows, const Run& run) {
  if constexpr (M < MOST)
    if (rows > M) return at_most<MOST, Run, M + 1>(rows, run);
  run(std::integral_constant<int, M>());
}

}  // namespace ringkv

#if defined(__AMX_BF16__)
#include "tiles_amx.h"
#else
#include "tiles_vectors.h"
#endif
