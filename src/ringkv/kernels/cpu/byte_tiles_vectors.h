// Byte tiles without AMX: broadcasts four K elements of each row, for the outputs of a vector at once.

#pragma once

#include "byte_tiles.h"

namespace ringkv {

template <bool kScaled>
class ByteTiles {
 public:
  explicit ByteTiles(int64_t rows) : rows_(rows) {}
  void shape(int64_t rows) { rows_ = rows; }

  // c[m][0..31] (+)= x[m] . two panels, over `blocks` blocks; a row of c has kNR elements.
  void multiply(const RowGroups& x, BytePanel first, BytePanel second, int64_t blocks, float* c, bool add,
                const Ahead&) const {
    for (int64_t k = 0; k < blocks; k += kGroupBlocks) {
      const int64_t quads = std::min(kGroupBlocks, blocks - k) * kBlockLines;
      multiply_rows(x.upper[k / kGroupBlocks], std::min(rows_, kTileM), first, second, quads, c, add || k > 0);
      if (rows_ > kTileM)
        multiply_rows(x.lower[k / kGroupBlocks], rows_ - kTileM, first, second, quads, c + kTileM * kNR, add || k > 0);
      for (BytePanel* panel : {&first, &second})
        *panel = {panel->blocks + kGroupBlocks * kBlockSize, panel->scales + kTileN};
    }
  }

 private:
  static void multiply_rows(const RowGroup& x, int64_t rows, const BytePanel& first, const BytePanel& second,
                            int64_t quads, float* c, bool add) {
    each_vectors(first, second, [&](const uint8_t* const* lines, const float* const* scales, int64_t column) {
      for (int64_t m = 0; m < rows; m += ByteDots::kRows)
        at_most<ByteDots::kRows>(rows - m, [&](auto count) {
          multiply_group<decltype(count)::value, kScaled>(x, m, lines, scales, quads, c + m * kNR + column, add);
        });
    });
  }

  int64_t rows_;
};

}  // namespace ringkv
