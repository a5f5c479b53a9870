// Weights: how the panels of a weight are stored, and how their blocks are widened to bfloat16 tiles.
//
// A panel has a header of kHeaderBytes, with a scale per output if the format has scales, and then its blocks.
// Quantised blocks are widened just before they are multiplied, once for all rows that share one pass over the weight.

#pragma once

#include "lanes.h"
#include "tiles.h"
#include "widen.h"
#include "workspace.h"

namespace ringkv {

// bfloat16 in tile order
struct StoredBF16 {
  static constexpr int64_t kHeaderBytes = 0, kBlockBytes = kBlockSize * sizeof(BF16);
  static constexpr bool kHasScales = false;
};

// int8 from -127 to 127 in tile order, exact in bfloat16. The scale per output is applied to the sums.
struct StoredInt8 {
  static constexpr int64_t kHeaderBytes = kTileN * sizeof(float), kBlockBytes = kBlockSize;
  static constexpr bool kHasScales = true;
  static void widen(const uint8_t* block, BF16* tile);
};

// int4 q from 0 to 15 with weight = scale * q + minimum. A block has 16 scales and 16 minimums in float16, one of each
// per output, then four lines of 16 words of 32 bits. A tile row has 32 elements: one nibble of each word of a line is
// its first half, the next nibble its second half.
struct StoredInt4 {
  static constexpr int64_t kHeaderBytes = 0, kBlockBytes = 2 * kTileN * sizeof(c10::Half) + kBlockSize / 2;
  static constexpr bool kHasScales = false;
  static constexpr int64_t kLineBytes = 64, kLines = 4, kHalves = 8;  // kHalves: half rows in a line
  static void widen(const uint8_t* block, BF16* tile);
};

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__)

inline void StoredInt8::widen(const uint8_t* block, BF16* tile) {
  const Int8Lookup widened;
  for (int64_t i = 0; i < kBlockSize; i += 2 * kNR) {
    const auto [first, second] = widened(block + i);
    _mm512_storeu_si512(tile + i, (__m512i)first);
    _mm512_storeu_si512(tile + i + kNR, (__m512i)second);
  }
}

inline void StoredInt4::widen(const uint8_t* block, BF16* tile) {
  const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const uint8_t *minimum_at = block + kTileN * sizeof(c10::Half), *lines = minimum_at + kTileN * sizeof(c10::Half);
  const Vec scales = from_halves(block), minimums = from_halves(minimum_at);
  const __m512 scale[2] = {twice(scales, 0), twice(scales, 1)};
  const __m512 minimum[2] = {twice(minimums, 0), twice(minimums, 1)};
  for (int64_t line = 0; line < kLines; ++line) {
    const __m512i words = _mm512_loadu_si512(lines + line * kLineBytes);
    const auto half = [&](int i) {  // permutexvar uses only the lowest four bits of an index
      const __m512 q = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 4 * i), values);
      return _mm512_fmadd_ps(q, scale[i % 2], minimum[i % 2]);
    };
#pragma GCC unroll 4
    for (int i = 0; i < kHalves; i += 2) store_row(tile + (line * kHalves + i) * kTileN, half(i), half(i + 1));
  }
}

#else

// Stores the upper halves of 16 floats, in order.
inline void store_upper(BF16* to, __m256i first, __m256i second) {
  const __m256i both = _mm256_packus_epi32(_mm256_srli_epi32(first, 16), _mm256_srli_epi32(second, 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(both, 0xd8));
}

inline void StoredInt8::widen(const uint8_t* block, BF16* tile) {
  const auto widened = [](const uint8_t* at) {
    const __m256i integers = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
    return _mm256_castps_si256(_mm256_cvtepi32_ps(integers));
  };
  for (int64_t i = 0; i < kBlockSize; i += 16) store_upper(tile + i, widened(block + i), widened(block + i + 8));
}

// The scales or minimums of eight outputs, each duplicated: two neighbours in a row belong to one output.
struct Duplicated {
  __m256 low, high;
  explicit Duplicated(const uint8_t* at) {
    const __m256 eight = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    const __m256 even = _mm256_unpacklo_ps(eight, eight), odd = _mm256_unpackhi_ps(eight, eight);
    low = _mm256_permute2f128_ps(even, odd, 0x20);
    high = _mm256_permute2f128_ps(even, odd, 0x31);
  }
};

// A block's scales and minimums, for its first and last eight outputs.
struct Scales {
  static constexpr int64_t kHalf = kTileN / 2 * sizeof(c10::Half), kSize = 4 * kHalf;
  Duplicated scale[2], minimum[2];
  explicit Scales(const uint8_t* block)
      : scale{Duplicated(block), Duplicated(block + kHalf)},
        minimum{Duplicated(block + 2 * kHalf), Duplicated(block + 3 * kHalf)} {}
};

inline void StoredInt4::widen(const uint8_t* block, BF16* tile) {
  const auto [scale, minimum] = Scales(block);
  const auto nearest = [](__m256 exact) {  // rounds to nearest even in the upper half
    const __m256i bits = _mm256_castps_si256(exact);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  };
  const auto widened = [&](__m256i words, int i, __m256 scales, __m256 minimums) {
    const __m256i q = _mm256_and_si256(_mm256_srli_epi32(words, 4 * i), _mm256_set1_epi32(15));
    return nearest(_mm256_fmadd_ps(_mm256_cvtepi32_ps(q), scales, minimums));
  };
  const uint8_t* lines = block + Scales::kSize;
  for (int64_t line = 0; line < kLines; ++line, lines += kLineBytes) {
    const auto* words = reinterpret_cast<const __m256i*>(lines);
    const __m256i low = _mm256_loadu_si256(words), high = _mm256_loadu_si256(words + 1);
#pragma GCC unroll 8
    for (int i = 0; i < kHalves; ++i)
      store_upper(tile + (line * kHalves + i) * kTileN, widened(low, i, scale[i % 2].low, minimum[i % 2].low),
                  widened(high, i, scale[i % 2].high, minimum[i % 2].high));
  }
}

#endif

// Prefetch distance in bytes. Quantised lines take so much work that hardware prefetch does not run far enough ahead.
constexpr int64_t kPrefetchBytes = 4096;

// A packed weight: `count` panels of `blocks` blocks along K.
template <typename Storage>
struct PackedWeight {
  const uint8_t* data;
  int64_t count, blocks;

  const uint8_t* panel(int64_t i) const { return data + i * (Storage::kHeaderBytes + blocks * Storage::kBlockBytes); }
  const uint8_t* block(int64_t i, int64_t k) const {
    return panel(i) + Storage::kHeaderBytes + k * Storage::kBlockBytes;
  }
  // Bytes from a block of panel i to what is prefetched. The two panels of a pair are read alternately: the memory after
  // one's end is the other, which was already read.
  int64_t ahead(int64_t i, const uint8_t* block) const {
    return kPrefetchBytes + (panel(i + 1) - block < kPrefetchBytes ? panel(1) - panel(0) : 0);
  }
};

// Returns the sums of kLanes outputs from `out` on, times their scales.
template <typename Storage>
Vec scaled(const PackedWeight<Storage>& weight, int64_t out, Vec sums) {
  if constexpr (!Storage::kHasScales) return sums;
  const int64_t panel = std::min(out / kTileN, weight.count - 1);
  return sums * Vec::loadu(reinterpret_cast<const float*>(weight.panel(panel)) + out % kTileN);
}

// How many pairs of panels, and blocks along K of each, are widened together.
struct PanelExtent {
  int64_t pairs, blocks;
};

// Widens blocks of a weight to bfloat16 tiles: `load` a range, then read them with `at`.
template <typename Storage>
class WidenedPanels {
 public:
  WidenedPanels(const PackedWeight<Storage>& weight, PanelExtent largest) : weight_(weight) {
    static thread_local std::vector<BF16> buffer;
    tiles_ = workspace(buffer, 2 * largest.pairs * largest.blocks * kBlockSize);
  }

  // The extent for at most kMR rows: each tile is read once, so it only needs to fit in L1.
  static PanelExtent few_rows_extent(PanelExtent all) { return {1, std::min<int64_t>(all.blocks, 2)}; }

  // Widens pairs [pair, stop), blocks [from, to) along K.
  void load(int64_t pair, int64_t stop, int64_t from, int64_t to) {
    first_ = 2 * pair;
    from_ = from;
    blocks_ = to - from;
    BF16* tile = tiles_;
    for (int64_t i = first_; i < std::min(2 * stop, weight_.count); ++i) {
      const uint8_t* block = weight_.block(i, from);
      const int64_t ahead = weight_.ahead(i, block);
      for (int64_t k = from; k < to; ++k, block += Storage::kBlockBytes, tile += kBlockSize) {
        for (int64_t line = 0; line < Storage::kBlockBytes; line += 64) __builtin_prefetch(block + ahead + line, 0, 3);
        Storage::widen(block, tile);
      }
    }
  }
  const BF16* at(int64_t panel, int64_t k) const {
    return tiles_ + ((panel - first_) * blocks_ + k - from_) * kBlockSize;
  }

 private:
  const PackedWeight<Storage> weight_;
  BF16* tiles_;
  int64_t first_ = 0, from_ = 0, blocks_ = 0;
};

// Not widened. A pair is multiplied in parts so small that L2 also holds the next part, which is prefetched meanwhile.
template <>
class WidenedPanels<StoredBF16> {
  static constexpr int64_t kPrefetchBlocks = 48;

 public:
  WidenedPanels(const PackedWeight<StoredBF16>& weight, PanelExtent) : weight_(weight) {}
  static PanelExtent few_rows_extent(PanelExtent all) { return {all.pairs, std::min(all.blocks, kPrefetchBlocks)}; }
  void load(int64_t, int64_t, int64_t, int64_t) {}
  const BF16* at(int64_t panel, int64_t k) const { return reinterpret_cast<const BF16*>(weight_.block(panel, k)); }

 private:
  const PackedWeight<StoredBF16> weight_;
};

}  // namespace ringkv
