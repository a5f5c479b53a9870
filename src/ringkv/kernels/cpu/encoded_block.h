// EncodedBlock: a block's input in an encoding: keys and values, and the scales of each.

#pragma once

#include <cmath>
#include <cstdint>

namespace ringkv {

// Scores of a slot's first entries with exact keys, [queries, count]; NaN for an entry that has no exact key.
struct ExactScores {
  const float* at = nullptr;
  int64_t count = 0;

  ExactScores from(int64_t query) const { return {at + query * count, count}; }
  // Replaces scores [queries, stride] of as many queries.
  void put(int64_t queries, int64_t entries, int64_t stride, float* scores) const {
    for (int64_t g = 0; g < queries; ++g)
      for (int64_t j = 0; j < count && j < entries; ++j)
        if (const float exact = at[g * count + j]; !std::isnan(exact)) scores[g * stride + j] = exact;
  }
};

// head: row * heads + head. Keys and values [entries, bytes], scales [entries] or [entries, n].
template <typename Element, typename Scale>
struct EncodedBlock {
  int64_t head;
  const Element *key, *value;
  const Scale *key_scale, *value_scale;
  int64_t entries;
  ExactScores exact;

  EncodedBlock end_of_run() const { return {head, key, value, key_scale, value_scale, 0, {}}; }
};

}  // namespace ringkv
