// Float rows: a few rows of a product as floats, and sums of each block's elements.

#pragma once

#include "tiles.h"
#include "workspace.h"

namespace ringkv {

// kSums: sums of a block, each of the elements whose place has the same remainder.
template <int64_t kSums>
class FloatRows {
 public:
  FloatRows(int64_t rows, int64_t blocks) : rows_(rows) {
    static thread_local std::vector<float> buffer, totals;
    elements_ = workspace(buffer, rows * blocks * kTileK);
    sums_ = workspace(totals, rows * blocks * kSums);
  }

  void pack(const LeftOperand& x, int64_t blocks) {
    for (int64_t k = 0; k < blocks; ++k)
      for (int64_t m = 0; m < rows_; ++m) {
        float *to = elements_ + (k * rows_ + m) * kTileK, *sums = sums_ + (k * rows_ + m) * kSums;
        std::fill_n(sums, kSums, 0.f);
        for (int64_t i = 0; i < kTileK; ++i) {
          to[i] = float(x.upper[m * x.row + k * x.block + i]);
          sums[i % kSums] += to[i];
        }
      }
  }

  // Both start at row m of block k.
  const float* elements(int64_t k, int64_t m) const { return elements_ + (k * rows_ + m) * kTileK; }
  const float* sums(int64_t k, int64_t m) const { return sums_ + (k * rows_ + m) * kSums; }

 private:
  const int64_t rows_;
  float *elements_, *sums_;
};

}  // namespace ringkv
