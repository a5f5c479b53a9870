// Tiles on AMX, the processor's matrix unit. The system must have granted it (processor.py).

#pragma once

#include <immintrin.h>

#include "tiles.h"

namespace ringkv {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, unused[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  // Compilers believe that the intrinsic reads eight bytes, and may leave the others unwritten.
  void load() const {
    asm volatile("" : : "r"(this) : "memory");
    _tile_loadconfig(this);
  }
};

// Before tiles are loaded from what vectors wrote: compilers do not know that the intrinsic reads memory at all.
inline void written() { asm volatile("" : : : "memory"); }

// Nothing is asked for ahead.
struct Nothing {
  static void fetch(const BF16*, int64_t) {}
};

// Tiles of 32 rows, times two strips: squares (+)= x . (first, second), over `blocks` blocks
template <typename Ahead = Nothing>
inline void multiply_four(const Left& x, const BF16* first, const BF16* second, int64_t blocks, const Squares& c,
                          bool add) {
  const int64_t across = c.row * sizeof(float), row = x.row * sizeof(BF16);
  float *right = c.at + c.beside, *below = c.at + c.below, *last = below + c.beside;
  written();
  if (add) {
    _tile_loadd(0, c.at, across);
    _tile_loadd(1, right, across);
    _tile_loadd(2, below, across);
    _tile_loadd(3, last, across);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < blocks; ++k) {
    _tile_loadd(6, first + k * kBlockSize, 64);
    _tile_loadd(4, x.upper + k * x.block, row);
    _tile_dpbf16ps(0, 4, 6);
    Ahead::fetch(first, k);
    _tile_loadd(7, second + k * kBlockSize, 64);
    _tile_dpbf16ps(1, 4, 7);
    Ahead::fetch(second, k);
    _tile_loadd(5, x.lower + k * x.block, row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c.at, across);
  _tile_stored(1, right, across);
  _tile_stored(2, below, across);
  _tile_stored(3, last, across);
}

// Asks for the block of a weight so many after the one at work.
template <int64_t kBlocks>
struct Soon {
  static void fetch(const BF16* strip, int64_t k) {
    const BF16* block = strip + (k + kBlocks) * kBlockSize;
    for (int64_t i = 0; i < kBlockSize; i += kDeep) __builtin_prefetch(block + i);
  }
};

// The tile registers' shapes, for a thread's products of `rows` rows (at most 32): 0-3 sums, 4-5 rows, 6-7 weights.
class Tiles {
 public:
  explicit Tiles(int64_t rows) { shape(rows); }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;

  void shape(int64_t rows) {
    if (rows == rows_) return;
    rows_ = rows;
    const int64_t upper = std::min(rows, kTall), lower = std::max<int64_t>(rows - kTall, 1);
    for (int i = 0; i < 8; ++i) config_.bytes[i] = 64;
    for (int i : {0, 1, 4}) config_.rows[i] = uint8_t(upper);
    for (int i : {2, 3, 5}) config_.rows[i] = uint8_t(lower);
    for (int i : {6, 7}) config_.rows[i] = 16;
    config_.load();
  }

  // c[m][0..31] (+)= x[m] . two strips, over `blocks` blocks; c has kPair numbers a row. With few rows the memory is what
  // takes the time, and the next block is asked for; with many the one after it, when it comes from the second cache.
  void multiply(const Left& x, const BF16* first, const BF16* second, int64_t blocks, float* c,
                bool add) const {
    if (rows_ > kTall)
      multiply_four<Soon<2>>(x, first, second, blocks, {c, kPair, kWide, kTall * kPair}, add);
    else
      two(x, first, second, blocks, c, add);
  }

 private:
  static void two(const Left& x, const BF16* first, const BF16* second, int64_t blocks, float* c,
                  bool add) {
    constexpr int64_t across = kPair * sizeof(float);
    written();
    if (add) {
      _tile_loadd(0, c, across);
      _tile_loadd(1, c + kWide, across);
    } else {
      _tile_zero(0);
      _tile_zero(1);
    }
    for (int64_t k = 0; k < blocks; ++k) {
      _tile_loadd(4, x.upper + k * x.block, x.row * sizeof(BF16));
      _tile_loadd(6, first + k * kBlockSize, 64);
      _tile_dpbf16ps(0, 4, 6);
      Soon<1>::fetch(first, k);
      _tile_loadd(7, second + k * kBlockSize, 64);
      _tile_dpbf16ps(1, 4, 7);
      Soon<1>::fetch(second, k);
    }
    _tile_stored(0, c, across);
    _tile_stored(1, c + kWide, across);
  }

  TileConfig config_;
  int64_t rows_ = 0;
};

}  // namespace ringkv
