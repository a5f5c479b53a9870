// Scores of pages: the products of their digests with vectors of queries.

#pragma once

#include <algorithm>
#include <cstdint>

#include "block.h"

namespace ringkv {
namespace {

constexpr int64_t kAhead = 64;  // digests that are prefetched before they are read, also those of the next head

// Scores rows with G vectors; to[g * stride + j].
template <typename T, int G>
void score_some_pages(const T* vectors, int64_t width, const T* rows, int64_t count, float scale, float* to,
                      int64_t stride) {
  float block[G * kBlock];
  const auto score = [&](int64_t at, int64_t some) {
    score_rows<T, G>(vectors, rows + at * width, rows + (at + kAhead) * width, some, width, scale, block);
    for (int g = 0; g < G; ++g) std::copy_n(block + g * kBlock, some, to + g * stride + at);
  };
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t some = std::min(kBlock, count - at), whole = some / kLanes * kLanes;
    score(at, whole);
    // The last ones in a vector with others, so that equal digests have equal scores.
    if (whole < some) at + some < kLanes ? score(at, some) : score(at + some - kLanes, kLanes);
  }
}

// Scores pages by their digests [pages, width] with vectors [count, width]; to[i * stride + j].
template <typename T>
void score_pages(const T* vectors, int64_t count, int64_t width, const T* digests, int64_t pages, float scale,
                 float* to, int64_t stride) {
  for (int64_t from = 0; from < count; from += kGroupHeads)
    for_group(std::min(kGroupHeads, count - from), [&](auto size) {
      constexpr int G = decltype(size)::value;
      score_some_pages<T, G>(vectors + from * width, width, digests, pages, scale, to + from * stride, stride);
    });
}

}  // namespace
}  // namespace ringkv
