// Block: partial attention of one key-value head's queries to a run of entries.
//
// G query heads share each pass over the keys and values. Rows have `width` elements, a multiple of kStep.

#pragma once

#include "lanes.h"
#include "tiles.h"
#include "workspace.h"

namespace ringkv {

// A block's result: unnormalised outputs [queries, width], and each query's maximum score and sum of weights.
struct Partial {
  float *out, *top, *sum;
};

// Entries that are not in place, but in pages of 1 << shift entries, at least kLanes; null is in place.
struct PageList {
  const int32_t* pages = nullptr;
  int shift = 0;

  // The place of entry j.
  int64_t place(int64_t j) const {
    return pages ? (int64_t(pages[j >> shift]) << shift) + (j & ((int64_t(1) << shift) - 1)) : j;
  }
};

// A block's input: its head's queries [queries, width], and the keys and values of its entries [entries, width]. If
// they are in pages, `key` and `value` are those of page 0.
template <typename T>
struct Block {
  const T *query, *key, *value;
  int64_t entries;
  PageList in = {};

  Block end_of_run() const { return {query, key, value, 0}; }  // a block without entries, which ends a run
};

// Rows [entries, width] that follow each other, or that are in pages; those of a group of kLanes always do.
template <typename T>
struct RowsInPlace {
  const T* at;
  int64_t width;
  const T* operator()(int64_t j) const { return at + j * width; }
  RowsInPlace from(int64_t d) const { return {at + d, width}; }
};
template <typename T>
struct RowsInPages {
  const T* at;
  int64_t width;
  PageList in;
  const T* operator()(int64_t j) const {
    return at + in.place(j) * width;
  }
  RowsInPages from(int64_t d) const { return {at + d, width, in}; }
};

constexpr int64_t kBlock = 256;     // entries per task: few enough to balance the load, enough to amortise its overhead
constexpr int64_t kGroupHeads = 4;  // query heads that share one pass
constexpr float kNoScore = -1e30f;  // the highest score of a query that sees no entry

// Prefetches rows while others are computed: demand loads of one core do not saturate the memory bandwidth. kLocality 3
// prefetches into L1, for the next reads; 2 into L2, for a later pass.
template <int kLocality, typename T>
inline void prefetch(const T* rows, int64_t count, int64_t width) {
  const char* at = reinterpret_cast<const char*>(rows);
  for (int64_t i = 0; i < count * width * int64_t(sizeof(T)); i += 64) __builtin_prefetch(at + i, 0, kLocality);
}

#if !defined(CPU_CAPABILITY_AVX512)
// The queries of a group [G, width] as floats, which are converted once, not for each key.
template <int G, typename T>
const float* widened(const T* q, int64_t width) {
  if constexpr (std::is_same_v<T, float>) return q;
  static thread_local std::vector<float> memory;
  float* to = workspace(memory, G * width);
  for (int64_t d = 0; d < G * width; d += kStep) {
    Vec low, high;
    Row<T>::split(q + d, low, high);
    low.store(to + d);
    high.store(to + d + kLanes);
  }
  return to;
}

// parts[g * kLanes + i]: a vector whose sum is q[g] . key[i], for ROWS keys.
template <typename T, int G, int ROWS>
void dot_rows(const float* q, const T* key, int64_t width, Vec* parts) {
  Vec sums[G][ROWS];
  for (int g = 0; g < G; ++g)
    for (int i = 0; i < ROWS; ++i) sums[g][i] = Vec(0.f);
  for (int64_t d = 0; d < width; d += kStep)
    for (int i = 0; i < ROWS; ++i) {
      Vec low, high;
      Row<T>::split(key + i * width + d, low, high);
      for (int g = 0; g < G; ++g) {
        const float* part = q + g * width + d;
        sums[g][i] = at::vec::fmadd(Vec::loadu(part + kLanes), high, at::vec::fmadd(Vec::loadu(part), low, sums[g][i]));
      }
    }
  for (int g = 0; g < G; ++g) std::copy_n(sums[g], ROWS, parts + g * kLanes);
}
#endif

// scores[g * kBlock + j] = q[g] . key[j] * scale. Prefetches `later`, the values of the same entries.
template <typename T, int G, typename Rows>
void score_rows_of(const T* q, const Rows& key, const Rows& later, int64_t entries, int64_t width, float scale,
                   float* scores) {
  int64_t j = 0;
#if defined(CPU_CAPABILITY_AVX512)
  for (; j + kLanes <= entries; j += kLanes) {
    prefetch<2>(later(j), kLanes, width);
    Vec parts[G][4];
    for (int quarter = 0; quarter < 4; ++quarter) {
      const T* rows = key(j + 4 * quarter);
      Vec sums[G][4];
      for (int g = 0; g < G; ++g)
        for (int i = 0; i < 4; ++i) sums[g][i] = Vec(0.f);
      for (int64_t d = 0; d < width; d += kStep)
        for (int i = 0; i < 4; ++i)
          for (int g = 0; g < G; ++g) sums[g][i] = Row<T>::dot(sums[g][i], q + g * width + d, rows + i * width + d);
      for (int g = 0; g < G; ++g) parts[g][quarter] = four_sums(sums[g]);
    }
    for (int g = 0; g < G; ++g) (sixteen_sums(parts[g]) * Vec(scale)).store(scores + g * kBlock + j);
  }
#else
  constexpr int kRows = G > 2 ? 2 : 4;  // their sums fit into registers
  const float* wide = widened<G>(q, width);
  for (; j + kLanes <= entries; j += kLanes) {
    prefetch<2>(later(j), kLanes, width);
    Vec parts[G * kLanes];
    for (int i = 0; i < kLanes; i += kRows) dot_rows<T, G, kRows>(wide, key(j + i), width, parts + i);
    for (int g = 0; g < G; ++g) (eight_sums(parts + g * kLanes) * Vec(scale)).store(scores + g * kBlock + j);
  }
#endif
  for (; j < entries; ++j)
    for (int g = 0; g < G; ++g) {
      Vec sum(0.f);
      for (int64_t d = 0; d < width; d += kStep) sum = Row<T>::dot(sum, q + g * width + d, key(j) + d);
      scores[g * kBlock + j] = sum_of(sum) * scale;
    }
}

template <typename T, int G>
void score_rows(const T* q, const T* key, const T* later, int64_t entries, int64_t width, float scale, float* scores) {
  score_rows_of<T, G>(q, RowsInPlace<T>{key, width}, RowsInPlace<T>{later, width}, entries, width, scale, scores);
}

// out[g * width + d] = sum over j of weights[g * kBlock + j] * value[j][d], for STEPS steps from d on. Prefetches
// `later`, the same columns of the next block's keys.
template <typename T, int G, int STEPS, typename Rows, typename Later>
void sum_columns(const float* weights, const Rows& value, const Later& later, int64_t entries, int64_t width,
                 float* out) {
  Vec low[G][STEPS], high[G][STEPS];
  for (int g = 0; g < G; ++g)
    for (int s = 0; s < STEPS; ++s) low[g][s] = high[g][s] = Vec(0.f);
  for (int64_t j = 0; j < entries; ++j) {
    prefetch<2>(later(j), 1, STEPS * kStep);
    const T* row = value(j);
    for (int s = 0; s < STEPS; ++s) {
      Vec a, b;
      Row<T>::split(row + s * kStep, a, b);
      for (int g = 0; g < G; ++g) {
        const Vec weight(weights[g * kBlock + j]);
        low[g][s] = at::vec::fmadd(weight, a, low[g][s]);
        high[g][s] = at::vec::fmadd(weight, b, high[g][s]);
      }
    }
  }
  for (int g = 0; g < G; ++g)
    for (int s = 0; s < STEPS; ++s) Row<T>::join(low[g][s], high[g][s], out + g * width + s * kStep);
}

template <typename T, int G, typename Rows, typename Later>
void sum_rows_of(const float* weights, const Rows& value, const Later& later, int64_t entries, int64_t width,
                 float* out) {
#if defined(CPU_CAPABILITY_AVX512)
  constexpr int kSteps = 2;
#else
  constexpr int kSteps = G > 3 ? 1 : 2;  // their sums fit into registers
#endif
  int64_t d = 0;
  for (; d + kSteps * kStep <= width; d += kSteps * kStep)
    sum_columns<T, G, kSteps>(weights, value.from(d), later.from(d), entries, width, out + d);
  if (d < width) sum_columns<T, G, 1>(weights, value.from(d), later.from(d), entries, width, out + d);
}

// Replaces scores by exp(score - maximum) and returns {maximum, sum}. If all scores are masked, the sum is 0.
inline std::pair<float, float> exponentiate(float* scores, int64_t entries) {
  const float highest =
      at::vec::reduce_all<float>([](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, scores, entries);
  const float top = highest == -std::numeric_limits<float>::infinity() ? kNoScore : highest;
  at::vec::map<float>([top](Vec x) { return (x - Vec(top)).exp(); }, scores, scores, entries);
  return {top, at::vec::reduce_all<float>([](Vec& a, Vec& b) { return a + b; }, scores, entries)};
}

// Attends with G queries, from the block's query `from` on. Prefetches `next`, the keys that are probably read next.
template <typename T, int G, typename Rows, typename Next>
void attend_group(const Block<T>& block, const Rows& key, const Rows& value, const Next& next, int64_t from,
                  int64_t width, float scale, const Partial& to) {
  float scores[G * kBlock];
  score_rows_of<T, G>(block.query + from * width, key, value, block.entries, width, scale, scores);
  for (int g = 0; g < G; ++g)
    std::tie(to.top[from + g], to.sum[from + g]) = exponentiate(scores + g * kBlock, block.entries);
  sum_rows_of<T, G>(scores, value, next, block.entries, width, to.out + from * width);
}

template <typename T, int G>
void attend_group(const Block<T>& block, const Block<T>& next, int64_t from, int64_t width, float scale,
                  const Partial& to) {
  if (!block.in.pages) {
    const RowsInPlace<T> key{block.key, width}, value{block.value, width};
    const RowsInPlace<T> after{block.key + block.entries * width, width};
    return attend_group<T, G>(block, key, value, after, from, width, scale, to);
  }
  const RowsInPages<T> key{block.key, width, block.in}, value{block.value, width, block.in};
  if (next.in.pages && next.entries >= block.entries)
    return attend_group<T, G>(block, key, value, RowsInPages<T>{next.key, width, next.in}, from, width, scale, to);
  attend_group<T, G>(block, key, value, RowsInPlace<T>{next.key, width}, from, width, scale, to);
}

// Divides `queries` into as few groups of at most `most` as possible, of about the same size. Calls run(first, count).
template <typename Run>
void for_even_groups(int64_t queries, int64_t most, const Run& run) {
  const int64_t groups = (queries + most - 1) / most, size = (queries + groups - 1) / groups;
  for (int64_t from = 0; from < queries; from += size) run(from, std::min(size, queries - from));
}

// Attends to one block after the other, with vectors.
template <typename T>
class BlockRows {
 public:
  BlockRows(int64_t queries, int64_t width, float scale) : queries_(queries), width_(width), scale_(scale) {}

  void begin(const Block<T>&) {}
  void attend(const Block<T>& block, const Block<T>& next, const Partial& to) const {
    for (int64_t from = 0; from < queries_; from += kGroupHeads) {
      const auto run = [&](auto count) {
        attend_group<T, decltype(count)::value>(block, next, from, width_, scale_, to);
      };
      at_most<kGroupHeads>(queries_ - from, run);
    }
  }

 private:
  const int64_t queries_, width_;
  const float scale_;
};

}  // namespace ringkv
