// Weights: how the strips of a weight are stored, and how their blocks become tiles of bfloat16.
//
// A strip is kHead bytes, which hold a scale for each of its outputs if there are any, and then its blocks. Blocks of
// fewer bits are widened shortly before the tiles take them, and once for all rows that one reading serves.

#pragma once

#include <c10/util/Half.h>

#include <algorithm>
#include <vector>

#include "lanes.h"
#include "tiles.h"
#include "workspace.h"

namespace ringkv {

// bfloat16, as the tiles take it
struct Sixteen {
  static constexpr int64_t kHead = 0, kBlock = kBlockSize * sizeof(BF16);
  static constexpr bool kScaled = false;
};

// Integers from -127 to 127 in the order of a tile, which are exact in bfloat16; an output's sums are scaled
struct Eight {
  static constexpr int64_t kHead = kWide * sizeof(float), kBlock = kBlockSize;
  static constexpr bool kScaled = true;
  static void widen(const uint8_t* block, BF16* tile);
};

// Integers q from 0 to 15 that mean scale * q + least. A block: 16 scales and 16 least values, one of each an output,
// in float16; then four lines of 16 words of 32 bits. A row of a tile is 32 numbers: its first half is four bits of
// each word of a line, its second half the next four.
struct Four {
  static constexpr int64_t kHead = 0, kBlock = 2 * kWide * sizeof(c10::Half) + kBlockSize / 2;
  static constexpr bool kScaled = false;
  static constexpr int64_t kLine = 64, kLines = 4, kHalves = 8;  // bytes; halves of rows that a line holds
  static void widen(const uint8_t* block, BF16* tile);
};

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__)

inline void store_row(BF16* to, __m512 first, __m512 second) {
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

inline void Eight::widen(const uint8_t* block, BF16* tile) {
  const auto numbers = [](const uint8_t* at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
  };
  for (int64_t i = 0; i < kBlockSize; i += kPair)
    store_row(tile + i, numbers(block + i), numbers(block + i + kWide));
}

inline void Four::widen(const uint8_t* block, BF16* tile) {
  const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i twice[2] = {_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
                            _mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15)};
  const auto outputs = [&](const uint8_t* at, int half) {  // two neighbours of a row belong to one output
    return _mm512_permutexvar_ps(twice[half], _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
  };
  const uint8_t *least_at = block + kWide * sizeof(c10::Half), *lines = least_at + kWide * sizeof(c10::Half);
  const __m512 scale[2] = {outputs(block, 0), outputs(block, 1)}, least[2] = {outputs(least_at, 0), outputs(least_at, 1)};
  for (int64_t line = 0; line < kLines; ++line) {
    const __m512i words = _mm512_loadu_si512(lines + line * kLine);
    const auto half = [&](int i) {  // a permutation looks at an index's lowest four bits only
      const __m512 q = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 4 * i), values);
      return _mm512_fmadd_ps(q, scale[i % 2], least[i % 2]);
    };
#pragma GCC unroll 4
    for (int i = 0; i < kHalves; i += 2) store_row(tile + (line * kHalves + i) * kWide, half(i), half(i + 1));
  }
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

// The upper halves of 16 numbers, in their order
inline void store_upper(BF16* to, __m256i first, __m256i second) {
  const __m256i both = _mm256_packus_epi32(_mm256_srli_epi32(first, 16), _mm256_srli_epi32(second, 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(both, 0xd8));
}

inline void Eight::widen(const uint8_t* block, BF16* tile) {
  const auto numbers = [](const uint8_t* at) {
    const __m256i whole = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
    return _mm256_castps_si256(_mm256_cvtepi32_ps(whole));
  };
  for (int64_t i = 0; i < kBlockSize; i += 16) store_upper(tile + i, numbers(block + i), numbers(block + i + 8));
}

// Eight outputs' scales or least values, each for the two neighbours of a row that belong to it
struct Twice {
  __m256 low, high;
  explicit Twice(const uint8_t* at) {
    const __m256 eight = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    const __m256 even = _mm256_unpacklo_ps(eight, eight), odd = _mm256_unpackhi_ps(eight, eight);
    low = _mm256_permute2f128_ps(even, odd, 0x20);
    high = _mm256_permute2f128_ps(even, odd, 0x31);
  }
};

// A block's, for its first eight outputs and its last
struct Scales {
  static constexpr int64_t kHalf = kWide / 2 * sizeof(c10::Half), kSize = 4 * kHalf;
  Twice scale[2], least[2];
  explicit Scales(const uint8_t* block)
      : scale{Twice(block), Twice(block + kHalf)}, least{Twice(block + 2 * kHalf), Twice(block + 3 * kHalf)} {}
};

inline void Four::widen(const uint8_t* block, BF16* tile) {
  const auto [scale, least] = Scales(block);
  const auto nearest = [](__m256 numbers) {  // the upper half is then what it rounds to, of two as near the even one
    const __m256i bits = _mm256_castps_si256(numbers);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  };
  const auto numbers = [&](__m256i words, int i, __m256 by, __m256 plus) {
    const __m256i q = _mm256_and_si256(_mm256_srli_epi32(words, 4 * i), _mm256_set1_epi32(15));
    return nearest(_mm256_fmadd_ps(_mm256_cvtepi32_ps(q), by, plus));
  };
  const uint8_t* lines = block + Scales::kSize;
  for (int64_t line = 0; line < kLines; ++line, lines += kLine) {
    const auto* words = reinterpret_cast<const __m256i*>(lines);
    const __m256i low = _mm256_loadu_si256(words), high = _mm256_loadu_si256(words + 1);
#pragma GCC unroll 8
    for (int i = 0; i < kHalves; ++i)
      store_upper(tile + (line * kHalves + i) * kWide, numbers(low, i, scale[i % 2].low, least[i % 2].low),
                  numbers(high, i, scale[i % 2].high, least[i % 2].high));
  }
}

#else

inline void Eight::widen(const uint8_t* block, BF16* tile) {
  for (int64_t i = 0; i < kBlockSize; ++i) tile[i] = BF16(float(int8_t(block[i])));
}

inline void Four::widen(const uint8_t* block, BF16* tile) {
  c10::Half stored[2 * kWide];
  float scale[kPair], least[kPair];
  std::memcpy(stored, block, sizeof stored);
  for (int64_t i = 0; i < kPair; ++i) {
    scale[i] = stored[i / 2];
    least[i] = stored[kWide + i / 2];
  }
  for (int64_t line = 0; line < kLines; ++line) {
    uint32_t words[kWide];
    std::memcpy(words, block + sizeof stored + line * kLine, sizeof words);
    for (int64_t i = 0; i < kHalves; ++i) {
      const float *by = scale + i % 2 * kWide, *plus = least + i % 2 * kWide;
      BF16* to = tile + (line * kHalves + i) * kWide;
      for (int64_t j = 0; j < kWide; ++j) to[j] = BF16(float(words[j] >> 4 * i & 15) * by[j] + plus[j]);
    }
  }
}

#endif

// Bytes. Numbers of few bits are so much work a line that the processor would not see far enough ahead by itself.
constexpr int64_t kAhead = 4096;

// A weight's bytes.
template <typename Kind>
struct Strips {
  const uint8_t* data;
  int64_t count, blocks;

  const uint8_t* strip(int64_t i) const { return data + i * (Kind::kHead + blocks * Kind::kBlock); }
  const uint8_t* block(int64_t i, int64_t k) const { return strip(i) + Kind::kHead + k * Kind::kBlock; }
};

// Sums of kLanes outputs from `out` on, times the outputs' scales.
template <typename Kind>
Vec scaled(const Strips<Kind>& weight, int64_t out, Vec sums) {
  if constexpr (!Kind::kScaled) return sums;
  const int64_t strip = std::min(out / kWide, weight.count - 1);
  return sums * Vec::loadu(reinterpret_cast<const float*>(weight.strip(strip)) + out % kWide);
}

// The pairs of strips, and the inner blocks of each, that are widened together.
struct Share {
  int64_t pairs, blocks;
};

// Blocks of a weight as tiles: taken first, then read.
template <typename Kind>
class Panel {
 public:
  Panel(const Strips<Kind>& weight, Share most) : weight_(weight) {
    static thread_local std::vector<BF16> kept;
    tiles_ = workspace(kept, 2 * most.pairs * most.blocks * kBlockSize);
  }

  // How few rows walk a weight: each tile is read once, so it need not outlive the first cache.
  static Share few(Share all) { return {1, std::min<int64_t>(all.blocks, 2)}; }

  // Pairs [pair, stop), inner blocks [from, to)
  void take(int64_t pair, int64_t stop, int64_t from, int64_t to) {
    first_ = 2 * pair;
    from_ = from;
    blocks_ = to - from;
    BF16* tile = tiles_;
    for (int64_t i = first_; i < std::min(2 * stop, weight_.count); ++i) {
      const uint8_t* block = weight_.block(i, from);
      // The two strips of a pair are walked side by side: behind one's end lies what has been read.
      const int64_t ahead = kAhead + (weight_.strip(i + 1) - block < kAhead ? weight_.strip(1) - weight_.strip(0) : 0);
      for (int64_t k = from; k < to; ++k, block += Kind::kBlock, tile += kBlockSize) {
        for (int64_t line = 0; line < Kind::kBlock; line += 64) __builtin_prefetch(block + ahead + line, 0, 3);
        Kind::widen(block, tile);
      }
    }
  }
  const BF16* at(int64_t strip, int64_t k) const {
    return tiles_ + ((strip - first_) * blocks_ + k - from_) * kBlockSize;
  }

 private:
  const Strips<Kind> weight_;
  BF16* tiles_;
  int64_t first_ = 0, from_ = 0, blocks_ = 0;
};

template <>
class Panel<Sixteen> {
 public:
  Panel(const Strips<Sixteen>& weight, Share) : weight_(weight) {}
  static Share few(Share all) { return all; }
  void take(int64_t, int64_t, int64_t, int64_t) {}
  const BF16* at(int64_t strip, int64_t k) const { return reinterpret_cast<const BF16*>(weight_.block(strip, k)); }

 private:
  const Strips<Sixteen> weight_;
};

}  // namespace ringkv
