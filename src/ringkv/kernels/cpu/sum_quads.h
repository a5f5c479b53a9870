// Weighted sums of encoded values, four entries at a time: a 32-bit lane holds a byte of each.

#pragma once

#include "encoded_block.h"
#include "softmax_weights.h"

#if defined(RINGKV_QUADS)

namespace ringkv {

constexpr int64_t kMaxQuadQueries = 4;  // queries whose sums stay in registers

// Prefetches the next block into L2, a few cache lines at every step of the work on this one.
//
// Loads of one core do not saturate the memory bandwidth, and a burst of prefetches delays the work itself. Half of the
// lines are prefetched while keys are scored, the others while values are summed.
class BlockAhead {
 public:
  template <typename Encoding, typename Block>
  BlockAhead(Encoding, const Block& block, const Block& next, int64_t queries, int64_t width) {
    const auto passes = [&](int64_t most) { return (queries + most - 1) / most; };
    const int64_t score_steps = (block.entries + 15) / 16 * passes(Encoding::kQueries);
    const int64_t sum_steps = (block.entries + 3) / 4 * passes(kMaxQuadQueries) * (width / 32);
    const int64_t elements = next.entries * Encoding::bytes(width), scales = next.entries * Encoding::kScaleBytes;
    const auto span = [](const auto* first, int64_t bytes) {
      const auto* from = reinterpret_cast<const char*>(first);
      return Span{from, from + bytes};
    };
    spans_[0] = span(next.key, elements);
    spans_[1] = span(next.key_scale, scales);
    spans_[2] = span(next.value_scale, scales);
    spans_[3] = span(next.value, elements);
    const int64_t half = (elements + scales) / kLine + 1;
    score_lines_ = half / score_steps + 1;
    sum_lines_ = half / sum_steps + 1;
  }

  void score_step(int64_t, int64_t) { step(score_lines_); }
  void sum_step() { step(sum_lines_); }

 private:
  static constexpr int kSpans = 4;
  static constexpr int64_t kLine = 64;
  struct Span {
    const char *at, *end;
  };

  void step(int64_t lines) {
    if (now_ == kSpans) return;
    Span& span = spans_[now_];
    for (const char* stop = span.at + lines * kLine; span.at < stop; span.at += kLine)
      __builtin_prefetch(span.at, 0, 2);
    if (span.at >= span.end) ++now_;
  }

  Span spans_[kSpans];
  int64_t score_lines_, sum_lines_;
  int now_ = 0;
};

// Bytes of values [entries, bytes].
struct ValueRows {
  const uint8_t* at;
  int64_t bytes, entries;
};

// Which bytes of a Quad each lane gets: byte `first` + i * `step` of each entry for lanes 0 to 7; the others begin at
// `upper_first`.
struct LaneOrder {
  alignas(64) uint8_t from[64];

  constexpr LaneOrder(int first, int step, int upper_first) : from() {
    for (int i = 0; i < 64; ++i) {
      const int lane = i / 4, entry = i % 4;
      const int byte = lane < 8 ? first + lane * step : upper_first + (lane - 8) * step;
      from[i] = uint8_t(entry * 32 + byte);
    }
  }
};

// 32 bytes of each of four entries; `mask` excludes those beyond their ends.
struct Quad {
  __m512i first, second;

  Quad(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d, __mmask32 mask)
      : first(pair(a, b, mask)), second(pair(c, d, mask)) {}
  __m512i lanes(__m512i order) const { return _mm512_permutex2var_epi8(first, order, second); }

 private:
  static __m512i pair(const uint8_t* a, const uint8_t* b, __mmask32 mask) {
    const __m256i lower = _mm256_maskz_loadu_epi8(mask, a), upper = _mm256_maskz_loadu_epi8(mask, b);
    return _mm512_inserti64x4(_mm512_castsi256_si512(lower), upper, 1);
  }
};

// The sums of two vectors of values, for G queries and both bytes of their weights.
template <int G>
struct QuadSums {
  __m512i upper[G][2], lower[G][2];

  QuadSums() {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) upper[g][0] = upper[g][1] = lower[g][0] = lower[g][1] = _mm512_setzero_si512();
  }
  void add(const Weights& weights, int64_t from, int64_t j, const __m512i (&x)[2]) {
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const __m512i high = _mm512_set1_epi32(word_of(weights.upper[from + g] + j));
      const __m512i low = _mm512_set1_epi32(word_of(weights.lower[from + g] + j));
#pragma GCC unroll 2
      for (int n = 0; n < 2; ++n) {
        upper[g][n] = _mm512_dpbusd_epi32(upper[g][n], high, x[n]);
        lower[g][n] = _mm512_dpbusd_epi32(lower[g][n], low, x[n]);
      }
    }
  }
  __m512 sum(int g, int n) const {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(upper[g][n]), _mm512_set1_ps(256.f), _mm512_cvtepi32_ps(lower[g][n]));
  }
};

// out[g][...] = sum over j of weights[from + g][j] * value[j] + add[g], for 32 elements of values. `columns` has
//   mask    of the 32 bytes that are read of each value
//   split   makes two vectors of signed bytes of a Quad
//   store   stores their sums as 32 floats
template <int G, typename Columns>
void sum_quads(const Weights& weights, int64_t from, const float* add, const Columns& columns,
               const ValueRows& rows, BlockAhead& ahead, int64_t width, float* out) {
  QuadSums<G> sums;
  __m512i x[2];
  int64_t j = 0;
  const int64_t bytes = rows.bytes;
  for (const uint8_t* at = rows.at; j + 4 <= rows.entries; j += 4, at += 4 * bytes) {
    ahead.sum_step();
    columns.split(Quad(at, at + bytes, at + 2 * bytes, at + 3 * bytes, columns.mask), x);
    sums.add(weights, from, j, x);
  }
  if (j < rows.entries) {  // weights beyond the end are 0
    const auto row = [&](int64_t i) { return rows.at + std::min(j + i, rows.entries - 1) * bytes; };
    columns.split(Quad(row(0), row(1), row(2), row(3), columns.mask), x);
    sums.add(weights, from, j, x);
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
    const __m512 by = _mm512_set1_ps(weights.by[from + g]), more = _mm512_set1_ps(add[from + g]);
    Columns::store(_mm512_fmadd_ps(sums.sum(g, 0), by, more), _mm512_fmadd_ps(sums.sum(g, 1), by, more),
                   out + g * width);
  }
}

// Sums 32 elements of values for G queries; see `sum_quads`.
template <int G, typename Columns>
void sum_all_quads(const Weights& weights, const float* add, const Columns& columns, const ValueRows& rows,
                   BlockAhead& ahead, int64_t width, float* out) {
  for_even_groups(G, kMaxQuadQueries, [&](int64_t from, int64_t count) {
    at_most<kMaxQuadQueries>(count, [&](auto size) {
      sum_quads<decltype(size)::value>(weights, from, add, columns, rows, ahead, width, out + from * width);
    });
  });
}

}  // namespace ringkv

#endif
