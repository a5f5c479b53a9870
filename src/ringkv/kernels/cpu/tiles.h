// Tiles: products of up to 32 rows with 32 outputs of a packed weight, on the best unit that the processor has.
//
// A strip is 16 outputs of a weight. It lies as blocks of kDeep inner numbers, each [kDeep / 2][16][2]: the order in
// which AMX and the bfloat16 dot products take their right operand, so that one copy serves every processor.

#pragma once

#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>

#include <cstdint>
#include <cstring>

#if defined(__AMX_BF16__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ringkv {

using Half16 = at::BFloat16;

constexpr int64_t kWide = 16;               // outputs in a strip
constexpr int64_t kDeep = 32;               // inner numbers in a block
constexpr int64_t kBlockSize = kWide * kDeep;
constexpr int64_t kTall = 16;               // rows in a tile
constexpr int64_t kPiece = 2 * kTall;       // rows that the tiles take at once
constexpr int64_t kPair = 2 * kWide;        // outputs that are computed together

// The numbers of 32 rows at an inner block: where they begin, and how far apart rows, tiles and blocks are.
struct Left {
  const Half16* at;
  int64_t row, tile, block;
};

#if defined(__AMX_BF16__)

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

// The tile registers' shapes, for a thread's products of `rows` rows (at most 32): 0-3 sums, 4-5 rows, 6-7 weights.
class Tiles {
 public:
  explicit Tiles(int64_t rows) {
    allow();
    shape(rows);
  }
  static void allow() {
    static const bool granted = syscall(SYS_arch_prctl, 0x1023 /* ask for */, 18 /* tile data */) == 0;
    TORCH_CHECK(granted, "the system does not allow AMX");
  }
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

  // c[m][0..31] (+)= x[m] . two strips, over `blocks` blocks; c has kPair numbers a row
  void multiply(const Left& x, const Half16* first, const Half16* second, int64_t blocks, float* c,
                bool add) const {
    written();
    if (rows_ > kTall)
      four(x, first, second, blocks, c, add);
    else
      two(x, first, second, blocks, c, add);
  }

 private:
  // Asks for a block of a weight: the next one with few rows, when the memory is what takes the time; the one after it
  // with many, when it comes from the second cache.
  static void fetch(const Half16* block) {
    for (int64_t i = 0; i < kBlockSize; i += kDeep) __builtin_prefetch(block + i);
  }

  static void two(const Left& x, const Half16* first, const Half16* second, int64_t blocks, float* c,
                  bool add) {
    constexpr int64_t across = kPair * sizeof(float);
    if (add) {
      _tile_loadd(0, c, across);
      _tile_loadd(1, c + kWide, across);
    } else {
      _tile_zero(0);
      _tile_zero(1);
    }
    for (int64_t k = 0; k < blocks; ++k) {
      _tile_loadd(4, x.at + k * x.block, x.row * sizeof(Half16));
      _tile_loadd(6, first + k * kBlockSize, 64);
      _tile_dpbf16ps(0, 4, 6);
      fetch(first + (k + 1) * kBlockSize);
      _tile_loadd(7, second + k * kBlockSize, 64);
      _tile_dpbf16ps(1, 4, 7);
      fetch(second + (k + 1) * kBlockSize);
    }
    _tile_stored(0, c, across);
    _tile_stored(1, c + kWide, across);
  }

  static void four(const Left& x, const Half16* first, const Half16* second, int64_t blocks, float* c,
                   bool add) {
    constexpr int64_t across = kPair * sizeof(float);
    float* below = c + kTall * kPair;
    if (add) {
      _tile_loadd(0, c, across);
      _tile_loadd(1, c + kWide, across);
      _tile_loadd(2, below, across);
      _tile_loadd(3, below + kWide, across);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t k = 0; k < blocks; ++k) {
      _tile_loadd(6, first + k * kBlockSize, 64);
      _tile_loadd(4, x.at + k * x.block, x.row * sizeof(Half16));
      _tile_dpbf16ps(0, 4, 6);
      fetch(first + (k + 2) * kBlockSize);
      _tile_loadd(7, second + k * kBlockSize, 64);
      _tile_dpbf16ps(1, 4, 7);
      fetch(second + (k + 2) * kBlockSize);
      _tile_loadd(5, x.at + x.tile + k * x.block, x.row * sizeof(Half16));
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, across);
    _tile_stored(1, c + kWide, across);
    _tile_stored(2, below, across);
    _tile_stored(3, below + kWide, across);
  }

  TileConfig config_;
  int64_t rows_ = 0;
};

#else

// The same in vectors: one pair of inner numbers of each row at a time, for the 16 outputs of a strip at once.
class Tiles {
 public:
  explicit Tiles(int64_t rows) : rows_(rows) {}
  void shape(int64_t rows) { rows_ = rows; }

  void multiply(const Left& x, const Half16* first, const Half16* second, int64_t blocks, float* c,
                bool add) const {
    int64_t m = 0;
    for (; m + 4 <= rows_; m += 4) rows<4>(down(x, m), first, second, blocks, c + m * kPair, add);
    for (; m < rows_; ++m) rows<1>(down(x, m), first, second, blocks, c + m * kPair, add);
  }

 private:
  // Rows from m on; a group of rows never spans two tiles.
  static Left down(const Left& x, int64_t m) {
    return {x.at + m / kTall * x.tile + m % kTall * x.row, x.row, x.tile, x.block};
  }

#if defined(__AVX512BF16__)
  template <int M>
  static void rows(const Left& x, const Half16* first, const Half16* second, int64_t blocks, float* c,
                   bool add) {
    __m512 sums[M][2];
    for (int m = 0; m < M; ++m)
      for (int s = 0; s < 2; ++s)
        sums[m][s] = add ? _mm512_loadu_ps(c + m * kPair + s * kWide) : _mm512_setzero_ps();
    for (int64_t k = 0; k < blocks * kDeep; k += 2) {
      const auto left = (__m512bh)_mm512_loadu_si512(first + k * kWide);
      const auto right = (__m512bh)_mm512_loadu_si512(second + k * kWide);
      for (int m = 0; m < M; ++m) {
        int32_t two;
        std::memcpy(&two, x.at + m * x.row + k / kDeep * x.block + k % kDeep, sizeof two);
        const auto both = (__m512bh)_mm512_set1_epi32(two);
        sums[m][0] = _mm512_dpbf16_ps(sums[m][0], both, left);
        sums[m][1] = _mm512_dpbf16_ps(sums[m][1], both, right);
      }
    }
    for (int m = 0; m < M; ++m)
      for (int s = 0; s < 2; ++s) _mm512_storeu_ps(c + m * kPair + s * kWide, sums[m][s]);
  }
#else
  template <int M>
  static void rows(const Left& x, const Half16* first, const Half16* second, int64_t blocks, float* c,
                   bool add) {
    for (int s = 0; s < 2; ++s) {
      const Half16* strip = s ? second : first;
      float sums[M][kWide];
      for (int m = 0; m < M; ++m)
        for (int i = 0; i < kWide; ++i) sums[m][i] = add ? c[m * kPair + s * kWide + i] : 0.f;
      for (int64_t k = 0; k < blocks * kDeep; k += 2) {
        float even[kWide], odd[kWide];
        for (int i = 0; i < kWide; ++i) {
          even[i] = float(strip[k * kWide + 2 * i]);
          odd[i] = float(strip[k * kWide + 2 * i + 1]);
        }
        for (int m = 0; m < M; ++m) {
          const Half16* two = x.at + m * x.row + k / kDeep * x.block + k % kDeep;
          const float a = float(two[0]), b = float(two[1]);
          for (int i = 0; i < kWide; ++i) sums[m][i] += a * even[i] + b * odd[i];
        }
      }
      for (int m = 0; m < M; ++m)
        for (int i = 0; i < kWide; ++i) c[m * kPair + s * kWide + i] = sums[m][i];
    }
  }
#endif
  int64_t rows_;
};

#endif

}  // namespace ringkv
