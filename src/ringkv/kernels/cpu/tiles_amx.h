// Tiles on AMX. The operating system must have granted permission for its registers (processor.py).

#pragma once

#include "tiles.h"

namespace ringkv {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, unused[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  // Compilers assume that the intrinsic reads eight bytes, and may omit the stores of the others.
  void load() const {
    asm volatile("" : : "r"(this) : "memory");
    _tile_loadconfig(this);
  }
};

// Call before tiles are loaded from memory that was just written: compilers assume that the intrinsic reads no memory.
inline void compiler_barrier() { asm volatile("" : : : "memory"); }

// Prefetches nothing.
struct NoPrefetch {
  static void fetch(const BF16*, int64_t) {}
};

// Microkernel of 2 x 2 tiles: c (+)= x . (first, second), over `blocks` blocks.
template <typename Prefetch = NoPrefetch>
inline void multiply_four(const LeftOperand& x, const BF16* first, const BF16* second, int64_t blocks,
                          const OutputTiles& c, bool add) {
  const int64_t row_bytes = c.row * sizeof(float), row = x.row * sizeof(BF16);
  float *upper_right = c.at + c.next_panel, *lower_left = c.at + c.next_tile, *lower_right = lower_left + c.next_panel;
  compiler_barrier();
  if (add) {
    _tile_loadd(0, c.at, row_bytes);
    _tile_loadd(1, upper_right, row_bytes);
    _tile_loadd(2, lower_left, row_bytes);
    _tile_loadd(3, lower_right, row_bytes);
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
    Prefetch::fetch(first, k);
    _tile_loadd(7, second + k * kBlockSize, 64);
    _tile_dpbf16ps(1, 4, 7);
    Prefetch::fetch(second, k);
    _tile_loadd(5, x.lower + k * x.block, row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c.at, row_bytes);
  _tile_stored(1, upper_right, row_bytes);
  _tile_stored(2, lower_left, row_bytes);
  _tile_stored(3, lower_right, row_bytes);
}

// Prefetches the weight block that is kBlocks after the current one.
template <int64_t kBlocks>
struct PrefetchBlocks {
  static void fetch(const BF16* panel, int64_t k) {
    const BF16* block = panel + (k + kBlocks) * kBlockSize;
    for (int64_t i = 0; i < kBlockSize; i += kTileK) __builtin_prefetch(block + i);
  }
};

// A thread's tile configuration for products of `rows` rows (at most kMR). Registers 0-3 are sums, 4-5 rows, 6-7
// weights.
class Tiles {
 public:
  explicit Tiles(int64_t rows) { shape(rows); }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;

  void shape(int64_t rows) {
    if (rows == rows_) return;
    rows_ = rows;
    const int64_t upper = std::min(rows, kTileM), lower = std::max<int64_t>(rows - kTileM, 1);
    for (int i = 0; i < 8; ++i) config_.bytes[i] = 64;
    for (int i : {0, 1, 4}) config_.rows[i] = uint8_t(upper);
    for (int i : {2, 3, 5}) config_.rows[i] = uint8_t(lower);
    for (int i : {6, 7}) config_.rows[i] = 16;
    config_.load();
  }

  // c[m][0..31] (+)= x[m] . two panels, over `blocks` blocks; a row of c has kNR elements. Few rows are memory-bound
  // and prefetch one block ahead; many rows read the weight from L2 and prefetch two blocks ahead.
  void multiply(const LeftOperand& x, const BF16* first, const BF16* second, int64_t blocks, float* c, bool add,
                const Ahead&) const {
    if (rows_ > kTileM)
      multiply_four<PrefetchBlocks<2>>(x, first, second, blocks, {c, kNR, kTileN, kTileM * kNR}, add);
    else
      multiply_upper(x, first, second, blocks, c, add);
  }

 private:
  static void multiply_upper(const LeftOperand& x, const BF16* first, const BF16* second, int64_t blocks, float* c,
                             bool add) {
    constexpr int64_t row_bytes = kNR * sizeof(float);
    compiler_barrier();
    if (add) {
      _tile_loadd(0, c, row_bytes);
      _tile_loadd(1, c + kTileN, row_bytes);
    } else {
      _tile_zero(0);
      _tile_zero(1);
    }
    for (int64_t k = 0; k < blocks; ++k) {
      _tile_loadd(4, x.upper + k * x.block, x.row * sizeof(BF16));
      _tile_loadd(6, first + k * kBlockSize, 64);
      _tile_dpbf16ps(0, 4, 6);
      PrefetchBlocks<1>::fetch(first, k);
      _tile_loadd(7, second + k * kBlockSize, 64);
      _tile_dpbf16ps(1, 4, 7);
      PrefetchBlocks<1>::fetch(second, k);
    }
    _tile_stored(0, c, row_bytes);
    _tile_stored(1, c + kTileN, row_bytes);
  }

  TileConfig config_;
  int64_t rows_ = 0;
};

}  // namespace ringkv
