// Byte tiles: the microkernels of int8 products, up to kMR x kNR. Sums of a group of K elements are exact integers.
// They are scaled and added in float32, one group after the other, so every kernel gives a row the same bits.

#pragma once

#include "byte_panels.h"
#include "dots.h"
#include "row_groups.h"

namespace ringkv {

// Loads prepared lines.
struct QuadLines {
  static ByteDots::V load(const uint8_t* line) { return ByteDots::load(line); }
};

// c[m][..] (+)= rows m to m + M of a group . kVectors vectors of outputs, over `quads` quads; a row of c has kNR
// elements. lines, scales: of each vector; `scales` is used if kScaled.
template <int M, bool kScaled, typename Lines = QuadLines>
inline void multiply_group(const RowGroup& x, int64_t m, const uint8_t* const* lines, const float* const* scales,
                           int64_t quads, float* c, bool add) {
  constexpr int S = ByteDots::kVectors;
  ByteDots::V sums[M][S];
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i)
    for (int s = 0; s < S; ++s) sums[i][s] = ByteDots::all(x.correction[m + i]);
  const int8_t* elements = x.elements[m];
  for (int64_t q = 0; q < quads; ++q) {
    ByteDots::V weights[S];
    for (int s = 0; s < S; ++s) weights[s] = Lines::load(lines[s] + q * kQuadLine);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      const auto four = ByteDots::broadcast(elements + i * kGroup + 4 * q);
      for (int s = 0; s < S; ++s) sums[i][s] = ByteDots::dot(sums[i][s], weights[s], four);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i)
    for (int s = 0; s < S; ++s) {
      Vec by(x.scale[m + i]);
      if constexpr (kScaled) by = by * Vec::loadu(scales[s]);
      float* to = c + i * kNR + s * kLanes;
      const Vec sum = ByteDots::wide(sums[i][s]);
      (add ? at::vec::fmadd(sum, by, Vec::loadu(to)) : sum * by).store(to);
    }
}

// Calls run(lines, scales, columns of c) for each set of kVectors vectors of two panels.
template <typename Run>
inline void each_vectors(const BytePanel& first, const BytePanel& second, const Run& run) {
  constexpr int kParts = kTileN / kLanes, S = ByteDots::kVectors;  // vectors of a panel, and of a set
  for (int part = 0; part < 2 * kParts; part += S) {
    const uint8_t* lines[S];
    const float* scales[S];
    for (int s = 0; s < S; ++s) {
      const BytePanel& panel = (part + s) / kParts ? second : first;
      lines[s] = panel.blocks + (part + s) % kParts * kLanes * 4;
      scales[s] = panel.scales + (part + s) % kParts * kLanes;
    }
    run(lines, scales, part * kLanes);
  }
}

}  // namespace ringkv

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
#include "byte_tiles_amx.h"
#else
#include "byte_tiles_vectors.h"
#endif
