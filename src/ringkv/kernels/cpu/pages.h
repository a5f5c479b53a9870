// Pages of a slot: their digests, and which of them a step reads. See pages.py.

#pragma once

#include "block.h"
#include "decode_step.h"
#include "workspace.h"

namespace ringkv {
namespace {

// Pages that a step reads of a slot: `limit` of them, among them the first `leading` and the last `newest`.
struct PageCounts {
  int32_t limit, leading, newest;
};

// Writes the digest of a page's keys [page, width]: upper and lower [width] are the middle of the extremes, plus and
// minus the mean distance from it (ArkVale, section 3.2).
template <typename Key, typename T>
void write_digest(const Key* keys, int64_t page, int64_t width, T* upper, T* lower) {
  for (int64_t d = 0; d < width; ++d) {
    float high = float(keys[d]), low = high;
    for (int64_t i = 1; i < page; ++i) {
      high = std::max(high, float(keys[i * width + d]));
      low = std::min(low, float(keys[i * width + d]));
    }
    const float middle = (high + low) * 0.5f;
    float sum = 0.f;
    for (int64_t i = 0; i < page; ++i) sum += std::abs(middle - float(keys[i * width + d]));
    const float radius = sum / float(page);
    upper[d] = T(middle + radius);
    lower[d] = T(middle - radius);
  }
}

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
    at_most<kGroupHeads>(count - from, [&](auto size) {
      constexpr int G = decltype(size)::value;
      score_some_pages<T, G>(vectors + from * width, width, digests, pages, scale, to + from * stride, stride);
    });
}

// The shares of attention that a head's queries promise to pages, as logarithms: what q . k may be, times `scale`,
// minus the logarithm of the sum over the pages that are no newest ones. The best query counts. A thread has one.
template <typename T>
class PromisedShares {
 public:
  // `digests`: of page 0. Returns a share for each of the pages 0 .. stop - 1.
  float* operator()(const T* query, int64_t queries, int64_t width, const T* digests, int64_t stop, float scale) {
    split(query, queries, width);
    padded_ = (stop + kLanes - 1) / kLanes * kLanes;
    best_.assign(padded_, kNothing);
    scores_.resize(queries * padded_);
    score_pages(parts_.data(), queries, 2 * width, digests, stop, scale, scores_.data(), padded_);
    for (int64_t g = 0; g < queries; ++g) {
      float* row = scores_.data() + g * padded_;
      std::fill(row + stop, row + padded_, kNothing);
      take(row);
    }
    return best_.data();
  }

 private:
  static constexpr float kNothing = -std::numeric_limits<float>::infinity();

  // The positive and the negative part of each query, whose products with upper and lower sum up to what q . k may be.
  void split(const T* query, int64_t queries, int64_t width) {
    parts_.resize(queries * 2 * width);
    for (int64_t g = 0; g < queries; ++g)
      for (int64_t d = 0; d < width; ++d) {
        const T element = query[g * width + d];
        parts_[g * 2 * width + d] = float(element) > 0 ? element : T(0.f);
        parts_[(g * 2 + 1) * width + d] = float(element) > 0 ? T(0.f) : element;
      }
  }
  // Raises the best shares to those of one query. NaN promises nothing, infinity the most that a float can.
  void take(float* scores) {
    const Vec nothing(kNothing), most(std::numeric_limits<float>::max());
    Vec tops = nothing, sums(0.f);
    for (int64_t i = 0; i < padded_; i += kLanes) {
      const Vec share = Vec::loadu(scores + i), real = Vec::blendv(share, nothing, share != share);
      const Vec finite = at::vec::minimum(real, most);
      finite.store(scores + i);
      tops = at::vec::maximum(tops, finite);
    }
    const float top = at::vec::vec_reduce_all<float>([](Vec& x, Vec& y) { return at::vec::maximum(x, y); }, tops);
    if (std::isinf(top)) return;
    for (int64_t i = 0; i < padded_; i += kLanes) sums = sums + (Vec::loadu(scores + i) - Vec(top)).exp();
    const Vec all(top + std::log(sum_of(sums)));
    for (int64_t i = 0; i < padded_; i += kLanes)
      at::vec::maximum(Vec::loadu(best_.data() + i), Vec::loadu(scores + i) - all).store(best_.data() + i);
  }

  int64_t padded_ = 0;
  std::vector<T> parts_;
  std::vector<float> scores_, best_;
};

// The `wanted` highest of shares, of equal ones the first. The lowest of them is found bit by bit: its place in the
// order of all floats is the highest that so many shares reach. No share is NaN.
class HighestShares {
 public:
  HighestShares(const float* shares, int64_t count, int64_t wanted) : count_(count), wanted_(wanted) {
    places_ = workspace(memory(), count);
    for (int64_t i = 0; i < count; ++i) places_[i] = place(shares[i]);
    for (uint32_t bit = uint32_t(1) << 31; bit; bit >>= 1)
      if (reaching(least_ | bit) >= wanted) least_ |= bit;
  }
  // Writes their indices, plus `first`, in order.
  void write(int32_t first, int32_t* to) const {
    int64_t equal = wanted_ - (least_ == UINT32_MAX ? 0 : reaching(least_ + 1));
    for (int64_t i = 0; i < count_; ++i)
      if (places_[i] > least_ || (places_[i] == least_ && equal-- > 0)) *to++ = first + int32_t(i);
  }

 private:
  static std::vector<uint32_t>& memory() {
    static thread_local std::vector<uint32_t> places;
    return places;
  }
  static uint32_t place(float share) {
    uint32_t bits;
    share += 0.f;  // -0 becomes 0
    std::memcpy(&bits, &share, sizeof bits);
    return bits ^ (bits >> 31 ? UINT32_MAX : uint32_t(1) << 31);
  }
  int64_t reaching(uint32_t least) const {
    int32_t reached = 0;
    for (int64_t i = 0; i < count_; ++i) reached += places_[i] >= least;
    return reached;
  }

  const int64_t count_, wanted_;
  uint32_t* places_;
  uint32_t least_ = 0;
};

// The pages that each head of a step reads, in order. `heads`: those of all rows.
class SelectedPages {
 public:
  SelectedPages(int64_t heads, int64_t page, float scale)
      : page_(page), scale_(scale), pages_(heads), lengths_(heads, 0) {}

  // Selects all of a head's live entries if they are few enough, else pinned pages, and those whose digests promise the
  // most attention to its queries [queries, width]. digests [slots, heads, pages, 2, width]: upper and lower. pins
  // [slots, heads, pages]: infinite for pages that are read before others, else -infinite.
  template <typename T>
  void select(const StepHead& head, const PageCounts& counts, const T* query, const QueryShape& shape,
              const OfHeads<T>& digests, const OfHeads<float>& pins) {
    if ((head.live + page_ - 1) / page_ <= counts.limit) return every(head);
    static thread_local PromisedShares<T> promised;
    const int64_t stop = (head.live + page_ - 1) / page_ - counts.newest;
    float* shares = promised(query, shape.queries, shape.width, digests.of(head.slot, head.head), stop, scale_);
    const float* pinned = pins.of(head.slot, head.head);
    for (int64_t i = 0; i < stop; ++i) shares[i] = std::max(shares[i], pinned[i]);
    best(head, counts, shares);
  }
  const int32_t* lengths() const { return lengths_.data(); }
  const int32_t* of(int64_t head) const { return pages_[head].data(); }
  int64_t count(int64_t head) const { return int64_t(pages_[head].size()); }

 private:
  void every(const StepHead& head) {
    auto& pages = pages_[head.index];
    pages.resize((head.live + page_ - 1) / page_);
    std::iota(pages.begin(), pages.end(), 0);
    lengths_[head.index] = int32_t(head.live);
  }
  // The leading and newest pages, and those between with the highest shares. Of equal ones the first wins.
  void best(const StepHead& head, const PageCounts& counts, const float* shares) {
    const int32_t total = int32_t((head.live + page_ - 1) / page_), stop = total - counts.newest;
    const int64_t wanted = counts.limit - counts.leading - counts.newest;
    const HighestShares highest(shares + counts.leading, stop - counts.leading, wanted);
    auto& pages = pages_[head.index];
    pages.resize(counts.limit);
    std::iota(pages.begin(), pages.begin() + counts.leading, 0);
    highest.write(counts.leading, pages.data() + counts.leading);
    std::iota(pages.end() - counts.newest, pages.end(), stop);
    lengths_[head.index] = int32_t(counts.limit * page_ - (total * page_ - head.live));
  }

  const int64_t page_;
  const float scale_;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<int32_t> lengths_;
};

// Checks the shape of pages and returns the entries of one.
inline int64_t page_of(const at::Tensor& keys, const at::Tensor& digests) {
  const int64_t page = keys.size(2) / digests.size(2);
  TORCH_CHECK(keys.size(2) % digests.size(2) == 0 && digests[0][0].is_contiguous(),
              "decode_attend: whole pages expected");
  TORCH_CHECK(page % kLanes == 0 && kBlock % page == 0, "decode_attend: a page must be a multiple of ", kLanes,
              " entries and divide ", kBlock);
  return page;
}

// Whether so many pages, at least one, follow each other.
inline bool follow_each_other(const int32_t* pages, int64_t count) { return pages[count - 1] - pages[0] == count - 1; }

}  // namespace
}  // namespace ringkv
