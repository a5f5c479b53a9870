// Left rows: a product's arguments, and its left operand in bfloat16.

#pragma once

#include "normalise.h"
#include "tiles.h"
#include "weights.h"
#include "workspace.h"

namespace ringkv {

constexpr int64_t kKC = 1536;  // KC: K elements of MC rows that fit in L2

// index: the rows of x to multiply; null is the first `rows` ones. all_rows: rows of the call that the product is a
// part of, which decides how int4 weights are multiplied.
struct Product {
  const BF16* x;
  int64_t rows, k_size, stride;
  const uint8_t* weight;
  int64_t panels;
  const BF16* bias;
  const BF16* norm;
  float eps, offset;
  int64_t all_rows = rows;
  const int64_t* index = nullptr;
  float levels = 127.f;  // the largest integer of rows that are quantised

  const BF16* row(int64_t m) const { return x + (index ? index[m] : m) * stride; }

  template <typename Storage>
  PackedWeight<Storage> weight_of() const {
    return {weight, panels, k_size / kTileK};
  }
};

// The left operand: x in place, or a packed copy, normalised and in tile order. Packing pays if the row stride is so
// large that addresses collide in caches and TLBs.
struct LeftRows {
  LeftRows(const Product& p, int64_t mc)
      : p(p), is_packed(p.norm || p.index || p.k_size > kKC || p.stride % 1024 == 0) {
    if (!is_packed) return;
    static thread_local std::vector<BF16> memory;
    packed = workspace(memory, (mc + kTileM) * p.k_size);
  }
  void pack(int64_t from, int64_t to, int64_t base) const {
    static thread_local std::vector<BF16> normalised;
    normalised.resize(std::max<int64_t>(normalised.size(), p.k_size));
    for (int64_t m = from; m < to; ++m) {
      const BF16* row = p.row(m);
      if (p.norm) {
        normalise(row, p.norm, p.eps, p.offset, p.k_size, normalised.data());
        row = normalised.data();
      }
      BF16* to_packed = packed + (m - base) / kTileM * kTileM * p.k_size + (m - base) % kTileM * kTileK;
      for (int64_t k = 0; k < p.k_size; k += kTileK)
        std::memcpy(to_packed + k * kTileM, row + k, kTileK * sizeof(BF16));
    }
  }
  LeftOperand at(int64_t m, int64_t base, int64_t k) const {
    const BF16* upper = is_packed ? packed + (m - base) * p.k_size + k * kBlockSize : p.x + m * p.stride + k * kTileK;
    if (is_packed) return {upper, upper + kTileM * p.k_size, kTileK, kBlockSize};
    return {upper, upper + kTileM * p.stride, p.stride, kTileK};
  }

  const Product& p;
  const bool is_packed;
  BF16* packed = nullptr;
};

}  // namespace ringkv
