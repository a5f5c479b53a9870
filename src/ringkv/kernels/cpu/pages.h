// Pages of a slot: their digests, and which of them a step reads. See decode_attend_pages.py.

#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "block.h"

namespace ringkv {
namespace {

// Pages that a step reads of a slot: `most` of them, among them the first `leading` and the last `newest`. is_mean: of
// digests, see `write_digest`.
struct PageCounts {
  int32_t most, leading, newest, is_mean;
};

// Bounds of a page's keys [page, width]: upper and lower [width] each. By means they are the middle of the extremes,
// plus and minus the mean distance from it (ArkVale, section 3.2).
template <typename Key, typename T>
void write_digest(const Key* keys, int64_t page, int64_t width, bool is_mean, T* upper, T* lower) {
  for (int64_t d = 0; d < width; ++d) {
    float high = float(keys[d]), low = high;
    for (int64_t i = 1; i < page; ++i) {
      high = std::max(high, float(keys[i * width + d]));
      low = std::min(low, float(keys[i * width + d]));
    }
    if (is_mean) {
      const float middle = (high + low) * 0.5f;
      float sum = 0.f;
      for (int64_t i = 0; i < page; ++i) sum += std::abs(middle - float(keys[i * width + d]));
      const float radius = sum / float(page);
      high = middle + radius;
      low = middle - radius;
    }
    upper[d] = T(high);
    lower[d] = T(low);
  }
}

// The positive and the negative parts of a head's queries, each summed over the queries: the score of a page is their
// product with its upper and lower bounds. Vectors are in the order of `Row::split`.
template <typename T>
class SummedQueries {
 public:
  SummedQueries(const T* q, int64_t queries, int64_t width) : steps_(width / kStep), parts_(4 * steps_, Vec(0.f)) {
    const Vec zero(0.f);
    for (int64_t g = 0; g < queries; ++g)
      for (int64_t s = 0; s < steps_; ++s) {
        Vec halves[2];
        Row<T>::split(q + g * width + s * kStep, halves[0], halves[1]);
        for (int i = 0; i < 2; ++i) {
          parts_[4 * s + i] = parts_[4 * s + i] + at::vec::maximum(halves[i], zero);
          parts_[4 * s + 2 + i] = parts_[4 * s + 2 + i] + at::vec::minimum(halves[i], zero);
        }
      }
  }
  float score(const T* upper, const T* lower) const {
    Vec sum(0.f);
    for (int64_t s = 0; s < steps_; ++s) {
      Vec low, high;
      Row<T>::split(upper + s * kStep, low, high);
      sum = at::vec::fmadd(parts_[4 * s + 1], high, at::vec::fmadd(parts_[4 * s], low, sum));
      Row<T>::split(lower + s * kStep, low, high);
      sum = at::vec::fmadd(parts_[4 * s + 3], high, at::vec::fmadd(parts_[4 * s + 2], low, sum));
    }
    return sum_of(sum);
  }

 private:
  const int64_t steps_;
  std::vector<Vec> parts_;
};

// The digests of slots: upper and lower bounds [slots, heads, pages, 2, width].
template <typename T>
struct Digests {
  explicit Digests(const at::Tensor& x) : at(x.data_ptr<T>()), slot(x.stride(0)), head(x.stride(1)), width(x.size(4)) {}
  T* upper(int64_t s, int64_t h, int64_t index) const { return at + s * slot + h * head + index * 2 * width; }

  T* at;
  int64_t slot, head, width;
};

// The pages that each head of each row reads, in order.
class SelectedPages {
 public:
  SelectedPages(int64_t heads, int64_t page) : page_(page), pages_(heads), lengths_(heads, 0) {}

  // All of `live` entries if they are few enough, else those whose digests promise the most to the queries
  // [queries, width].
  template <typename T>
  void select(int64_t head, int64_t live, const PageCounts& counts, const T* query, int64_t queries,
              const Digests<T>& digests, int64_t slot, int64_t slot_head) {
    if ((live + page_ - 1) / page_ <= counts.most) return every(head, live);
    const SummedQueries<T> summed(query, queries, digests.width);
    best(head, live, counts, [&](int64_t index) {
      const T* upper = digests.upper(slot, slot_head, index);
      return summed.score(upper, upper + digests.width);
    });
  }
  const int32_t* lengths() const { return lengths_.data(); }
  const int32_t* of(int64_t head) const { return pages_[head].data(); }

 private:
  // All of `live` entries.
  void every(int64_t head, int64_t live) {
    pages_[head].resize((live + page_ - 1) / page_);
    std::iota(pages_[head].begin(), pages_[head].end(), 0);
    lengths_[head] = int32_t(live);
  }
  // The leading and newest pages, and those between with the highest scores. Of equal scores the first wins.
  template <typename Score>
  void best(int64_t head, int64_t live, const PageCounts& counts, const Score& score) {
    const int32_t total = int32_t((live + page_ - 1) / page_), stop = total - counts.newest;
    static thread_local std::vector<float> scores;
    static thread_local std::vector<int32_t> order;
    scores.resize(total);
    order.resize(stop - counts.leading);
    std::iota(order.begin(), order.end(), counts.leading);
    for (int32_t i : order) {
      const float found = score(i);
      scores[i] = std::isnan(found) ? -std::numeric_limits<float>::infinity() : found;  // NaNs have no order
    }
    const auto above = [of = scores.data()](int32_t a, int32_t b) { return of[a] > of[b] || (of[a] == of[b] && a < b); };
    const int64_t wanted = counts.most - counts.leading - counts.newest;
    std::nth_element(order.begin(), order.begin() + wanted, order.end(), above);
    auto& own = pages_[head];
    own.resize(counts.most);
    std::iota(own.begin(), own.begin() + counts.leading, 0);
    std::copy(order.begin(), order.begin() + wanted, own.begin() + counts.leading);
    std::sort(own.begin() + counts.leading, own.begin() + counts.leading + wanted);
    std::iota(own.end() - counts.newest, own.end(), stop);
    lengths_[head] = int32_t(counts.most * page_ - (total * page_ - live));
  }

  const int64_t page_;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<int32_t> lengths_;
};

// Checks the shape of pages and returns the entries of one.
inline int64_t page_of(const at::Tensor& keys, const at::Tensor& digests) {
  const int64_t page = keys.size(2) / digests.size(2);
  TORCH_CHECK(keys.size(2) % digests.size(2) == 0 && digests[0][0].is_contiguous(),
              "decode_attend_pages: whole pages expected");
  TORCH_CHECK(page % kLanes == 0 && kBlock % page == 0, "decode_attend_pages: a page must be a multiple of ", kLanes,
              " entries and divide ", kBlock);
  return page;
}

// Copies `count` entries in pages to `memory`; an entry has `width` elements.
template <typename T>
const T* gathered(const T* plane, const int32_t* pages, int64_t page, int64_t count, int64_t width, T* memory) {
  for (int64_t i = 0; i < count; i += page)
    std::memcpy(memory + i * width, plane + pages[i / page] * page * width,
                std::min(page, count - i) * width * sizeof(T));
  return memory;
}

// Whether the pages of so many entries follow each other.
inline bool are_in_place(const int32_t* pages, int64_t page, int64_t entries) {
  const int64_t last = (entries + page - 1) / page - 1;
  return pages[last] - pages[0] == last;
}

}  // namespace
}  // namespace ringkv
