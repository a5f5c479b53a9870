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

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__)

// Products of up to kByteQuadRows rows convert weights to lines of quads in registers.
constexpr int64_t kByteQuadRows = ByteDots::kRows;

// Loads lines of stored weights, and prefetches those that are kPrefetchBytes after them.
struct StoredLines {
  static ByteDots::V load(const uint8_t* line) {
    __builtin_prefetch(line + kPrefetchBytes, 0, 3);
    return quads_of(line);
  }
};

// c[m][0..31] = x[m] . two panels, for M rows over `blocks` blocks; a row of c has kNR elements.
template <int M>
void multiply_stored(const RowGroups& x, const uint8_t* first, const uint8_t* second, int64_t blocks, float* c) {
  const uint8_t* lines[] = {first, second};
  for (int64_t k = 0; k < blocks; k += kGroupBlocks) {
    const int64_t quads = std::min(kGroupBlocks, blocks - k) * kBlockLines;
    multiply_group<M, false, StoredLines>(x.upper[k / kGroupBlocks], 0, lines, nullptr, quads, c, k > 0);
    for (const uint8_t*& line : lines) line += kGroupBlocks * StoredInt8::kBlockBytes;
  }
}

#else

constexpr int64_t kByteQuadRows = 0;

template <int M>
void multiply_stored(const RowGroups&, const uint8_t*, const uint8_t*, int64_t, float*) {}

#endif

}  // namespace ringkv

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
#include "byte_tiles_amx.h"
#else

namespace ringkv {

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

// Without AMX: broadcasts four K elements of each row, for the outputs of a vector at once.
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

#endif
