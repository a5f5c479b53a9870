// Block: attention of one key-value head's queries to a run of entries; partial, to be merged with others.
//
// G query heads share each pass over the keys and values; rows are `width` numbers, a multiple of kStep.

#pragma once

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "lanes.h"

namespace ringkv {

// What a block leaves: unnormalised outputs [groups, width], each query head's maximum score and sum of weights
struct Partial {
  float *out, *top, *sum;
};

// What a block reads: its head's queries, [queries, width], and the keys and values of its entries, [entries, width]
template <typename T>
struct Block {
  const T *query, *key, *value;
  int64_t entries;
  int64_t row, first;  // of the batch; of the block's entries in their slot

  Block none() const { return {query, key, value, 0, 0, 0}; }  // what follows the last block of a run
};

// Entries that queries must not see, int32 [rows, count]: each run of `each` queries sees one less than the run before
struct Holes {
  const int32_t* entries = nullptr;
  int64_t count = 0, each = 1;

  // Hides them from a query's scores of a block.
  void hide(int64_t row, int64_t query, int64_t first, int64_t size, float* scores) const {
    for (int64_t i = 0; entries && i <= query / each; ++i) {
      const int64_t at = entries[row * count + i] - first;
      if (0 <= at && at < size) scores[at] = -std::numeric_limits<float>::infinity();
    }
  }
};

constexpr int64_t kBlock = 256;  // entries a task reads: small enough to balance, large enough to amortise
constexpr int64_t kGroup = 4;    // query heads that share one pass

// Ask for rows that are read later, while something is computed: one core alone does not keep the memory busy. They
// come to the first level of the cache (3), for what is read next, or to the second (2), for a later pass.
template <int kLocality, typename T>
inline void fetch(const T* rows, int64_t count, int64_t width) {
  const char* at = reinterpret_cast<const char*>(rows);
  for (int64_t i = 0; i < count * width * int64_t(sizeof(T)); i += 64) __builtin_prefetch(at + i, 0, kLocality);
}

// scores[g * kBlock + j] = q[g] . key[j] * scale; `later` are the values of the same entries
template <typename T, int G>
void score_rows(const T* q, const T* key, const T* later, int64_t entries, int64_t width, float scale, float* scores) {
  int64_t j = 0;
#if defined(CPU_CAPABILITY_AVX512)
  for (; j + kLanes <= entries; j += kLanes) {
    fetch<2>(later + j * width, kLanes, width);
    Vec parts[G][4];
    for (int quarter = 0; quarter < 4; ++quarter) {
      const T* rows = key + (j + 4 * quarter) * width;
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
#endif
  for (; j < entries; ++j)
    for (int g = 0; g < G; ++g) {
      Vec sum(0.f);
      for (int64_t d = 0; d < width; d += kStep) sum = Row<T>::dot(sum, q + g * width + d, key + j * width + d);
      scores[g * kBlock + j] = sum_of(sum) * scale;
    }
}

// out[g * width + d] = sum over j of weights[g * kBlock + j] * value[j][d], for STEPS steps from d on; `later` are the
// same numbers of the keys that follow this block's
template <typename T, int G, int STEPS>
void sum_columns(const float* weights, const T* value, const T* later, int64_t entries, int64_t width, float* out) {
  Vec low[G][STEPS], high[G][STEPS];
  for (int g = 0; g < G; ++g)
    for (int s = 0; s < STEPS; ++s) low[g][s] = high[g][s] = Vec(0.f);
  for (int64_t j = 0; j < entries; ++j) {
    fetch<2>(later + j * width, 1, STEPS * kStep);
    for (int s = 0; s < STEPS; ++s) {
      Vec a, b;
      Row<T>::split(value + j * width + s * kStep, a, b);
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

template <typename T, int G>
void sum_rows(const float* weights, const T* value, const T* later, int64_t entries, int64_t width, float* out) {
  int64_t d = 0;
  for (; d + 2 * kStep <= width; d += 2 * kStep)
    sum_columns<T, G, 2>(weights, value + d, later + d, entries, width, out + d);
  if (d < width) sum_columns<T, G, 1>(weights, value + d, later + d, entries, width, out + d);
}

// Exponentiates scores in place against their maximum; returns {maximum, sum}. Where all are hidden the sum is 0.
inline std::pair<float, float> soften(float* scores, int64_t entries) {
  const float highest =
      at::vec::reduce_all<float>([](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, scores, entries);
  const float top = highest == -std::numeric_limits<float>::infinity() ? -1e30f : highest;
  at::vec::map<float>([top](Vec x) { return (x - Vec(top)).exp(); }, scores, scores, entries);
  return {top, at::vec::reduce_all<float>([](Vec& a, Vec& b) { return a + b; }, scores, entries)};
}

// G queries from the block's query `from` on
template <typename T, int G>
void attend_group(const Block<T>& block, int64_t from, int64_t width, float scale, const Holes& holes,
                  const Partial& to) {
  float scores[G * kBlock];
  score_rows<T, G>(block.query + from * width, block.key, block.value, block.entries, width, scale, scores);
  for (int g = 0; g < G; ++g) {
    holes.hide(block.row, from + g, block.first, block.entries, scores + g * kBlock);
    std::tie(to.top[from + g], to.sum[from + g]) = soften(scores + g * kBlock, block.entries);
  }
  sum_rows<T, G>(scores, block.value, block.key + block.entries * width, block.entries, width, to.out + from * width);
}

// Calls run with the number of heads in a group, at most kGroup, as a constant.
template <typename Run>
void for_group(int64_t count, const Run& run) {
  switch (count) {
    case 1: return run(std::integral_constant<int, 1>{});
    case 2: return run(std::integral_constant<int, 2>{});
    case 3: return run(std::integral_constant<int, 3>{});
    default: return run(std::integral_constant<int, 4>{});
  }
}

// Blocks one after the other, in vectors
template <typename T>
class BlockRows {
 public:
  BlockRows(int64_t queries, int64_t width, float scale, const Holes& holes)
      : queries_(queries), width_(width), scale_(scale), holes_(holes) {}

  void begin(const Block<T>&) {}
  void attend(const Block<T>& block, const Block<T>&, const Partial& to) const {
    for (int64_t from = 0; from < queries_; from += kGroup) {
      const auto run = [&](auto count) {
        attend_group<T, decltype(count)::value>(block, from, width_, scale_, holes_, to);
      };
      for_group(std::min(kGroup, queries_ - from), run);
    }
  }

 private:
  const int64_t queries_, width_;
  const float scale_;
  const Holes holes_;
};

}  // namespace ringkv
