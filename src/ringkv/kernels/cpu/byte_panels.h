// Byte panels: quantised weights as the right operand of int8 products.
//
// A block of kTileK elements along K is [kTileK / 4 quads][16 outputs][4] unsigned bytes, kOffset larger than the
// weights: a line of 64 bytes is an operand of dot products of bytes, and two blocks are a tile of AMX. Weights in groups
// of 32 are rotated and rounded to int8 with a scale per output and kGroup elements; int4's own steps are much coarser.

#pragma once

#include "quads.h"
#include "row_groups.h"
#include "rotated_groups.h"
#include "weights.h"
#include "workspace.h"

namespace ringkv {

// Storage whose products quantise their rows. The bytes are those of the base, `Stored`.
struct StoredInt8Rows : StoredInt8 {
  static constexpr bool kHasGroupScales = false;
};
template <typename Base>
struct WithRoundedRows : Base {
  using Stored = Base;
  static constexpr bool kHasGroupScales = true;
};
using StoredInt4Rows = WithRoundedRows<StoredInt4>;

template <typename Storage>
constexpr bool kQuantisesRows = requires { Storage::kHasGroupScales; };

// A panel from some block on, the first of a group. scales: those of its groups, [groups][16]; null if there are none.
struct BytePanel {
  const uint8_t* blocks;
  const float* scales;
};

// Writes the quads of up to kGroupBlocks blocks of int8 weights, which are rotated already.
inline void write_group(const StoredInt8Rows&, const uint8_t* block, int64_t blocks, uint8_t* to, float*) {
  for (int64_t k = 0; k < blocks; ++k) write_quads(block + k * StoredInt8::kBlockBytes, to + k * kBlockSize);
}

// Writes the quads of up to kGroupBlocks blocks of weights in groups, rotated and rounded to int8, and their 16 scales.
template <typename Stored>
void write_group(const WithRoundedRows<Stored>& storage, const uint8_t* block, int64_t blocks, uint8_t* to,
                 float* scales) {
  alignas(64) BlockFloats rotated[kGroupBlocks];
  float by[kTileN] = {};
  for (int64_t k = 0; k < blocks; ++k) rotate_block(storage, block + k * Stored::kBlockBytes, rotated[k], by);
  for (int64_t n = 0; n < kTileN; ++n) {
    scales[n] = by[n] < kTiny ? 0.f : by[n] / 127.f;
    by[n] = by[n] < kTiny ? 0.f : 127.f / by[n];
  }
  for (int64_t k = 0; k < blocks; ++k) round_block(rotated[k], by, to + k * kBlockSize);
}

// Blocks of a weight as bytes: `load` a range, then read them with `at`.
template <typename Storage>
class BytePanels {
 public:
  BytePanels(const PackedWeight<Storage>& weight, PanelExtent largest) : weight_(weight) {
    static thread_local std::vector<uint8_t> bytes;
    static thread_local std::vector<float> floats;
    blocks_at_ = workspace(bytes, (2 * largest.pairs * largest.blocks + 1) * kBlockSize);  // AMX reads whole tiles
    scales_ = workspace(floats, 2 * largest.pairs * groups_of(largest.blocks) * kTileN);
  }

  // The extent for at most kMR rows: each block is read once, so it only needs to fit in L1.
  static PanelExtent few_rows_extent(PanelExtent all) { return {1, std::min(all.blocks, 2 * kGroupBlocks)}; }

  // Loads pairs [pair, stop), blocks [from, to) along K; whole groups, except for the weight's last one.
  void load(int64_t pair, int64_t stop, int64_t from, int64_t to) {
    first_ = 2 * pair;
    from_ = from;
    blocks_ = to - from;
    for (int64_t i = first_; i < std::min(2 * stop, weight_.count); ++i)
      for (int64_t k = from; k < to; k += kGroupBlocks) {
        const uint8_t* block = weight_.block(i, k);
        const int64_t blocks = std::min(kGroupBlocks, to - k);
        for (int64_t line = 0; line < blocks * Storage::kBlockBytes; line += 64)
          __builtin_prefetch(block + weight_.ahead(i, block) + line, 0, 3);
        write_group(Storage(), block, blocks, blocks_at_ + place(i, k) * kBlockSize, scales_ + group(i, k) * kTileN);
      }
  }

  BytePanel at(int64_t panel, int64_t k) const {
    return {blocks_at_ + place(panel, k) * kBlockSize, scales_ + group(panel, k) * kTileN};
  }

 private:
  static int64_t groups_of(int64_t blocks) { return (blocks + kGroupBlocks - 1) / kGroupBlocks; }
  int64_t place(int64_t panel, int64_t k) const { return (panel - first_) * blocks_ + k - from_; }
  int64_t group(int64_t panel, int64_t k) const {
    return (panel - first_) * groups_of(blocks_) + (k - from_) / kGroupBlocks;
  }

  const PackedWeight<Storage> weight_;
  uint8_t* blocks_at_;
  float* scales_;
  int64_t first_ = 0, from_ = 0, blocks_ = 0;
};

}  // namespace ringkv
