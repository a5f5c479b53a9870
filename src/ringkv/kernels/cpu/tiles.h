// Tiles: the GEMM microkernels, up to kMR x kNR = 32 x 32, on AMX, AVX-512 BF16 or AVX2.
//
// A panel is 16 outputs (N) of a packed weight, stored as blocks of kTileK elements along K, each [kTileK / 2][16][2].
// This is the VNNI layout of the right operand of AMX and of bfloat16 dot products, so one copy serves every processor.
//
// Each instruction set defines a class Tiles, for a thread's products with a weight, and multiply_four, for attention.

#pragma once

namespace ringkv {

using BF16 = at::BFloat16;

constexpr int64_t kTileN = 16;                    // outputs of a panel
constexpr int64_t kTileK = 32;                    // K elements of a block
constexpr int64_t kBlockSize = kTileN * kTileK;  // elements of a block
constexpr int64_t kTileM = 16;                    // rows of a tile
constexpr int64_t kMR = 2 * kTileM;               // rows of the microkernel
constexpr int64_t kNR = 2 * kTileN;               // outputs of the microkernel: a pair of panels
constexpr int64_t kTileSums = kTileM * kTileN;  // elements of an output tile

// The left operand: two tiles of rows at one block along K, with the strides of rows and blocks.
struct LeftOperand {
  const BF16 *upper, *lower;
  int64_t row, block;
};

// The output: 2 x 2 tiles, from `at` on, with the strides of rows, of panels and of row tiles.
struct OutputTiles {
  float* at;
  int64_t row, next_panel, next_tile;
};

// What to prefetch to L2 during a product: `bytes` of each block of two panels, whose blocks are `stride` bytes apart.
// Without it the memory is idle while rows after the first ones multiply what is in L2.
struct Ahead {
  const uint8_t *first = nullptr, *second = nullptr;
  int64_t bytes = 0, stride = 0;

  // Returns what to prefetch in one of `parts` passes over the blocks.
  Ahead part(int64_t i, int64_t parts) const {
    const int64_t share = (bytes + parts - 1) / parts;
    return {first + i * share, second + i * share, share, stride};
  }
  Ahead from(int64_t block) const { return {first + block * stride, second + block * stride, bytes, stride}; }
  void fetch_block() {
    for (int64_t line = 0; line < bytes; line += 64) {
      __builtin_prefetch(first + line, 0, 2);
      __builtin_prefetch(second + line, 0, 2);
    }
    first += stride;
    second += stride;
  }
};

// Calls `run` with the number of rows, at most MOST, as a compile-time constant.
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
