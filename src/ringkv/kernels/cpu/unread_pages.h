// Attention to the pages that a step does not read, estimated from their digests. See unread_pages.py.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "pages.h"

namespace ringkv {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// Scores of pages by the middles of their digests, and the log-sum-exp of some of them. A thread has one.
template <typename T>
class MiddleScores {
 public:
  // Writes the log-sum-exp of each of the queries [queries, width] over all entries of the first pages that are not
  // read. `digests`: of page 0.
  void operator()(const T* query, int64_t queries, int64_t width, const T* digests, const std::vector<uint8_t>& is_read,
                  int64_t page, float scale, float* to) {
    halves(query, queries, width);
    const int64_t stop = int64_t(is_read.size()), padded = (stop + kLanes - 1) / kLanes * kLanes;
    scores_.resize(queries * padded);
    score_pages(halves_.data(), queries, 2 * width, digests, stop, scale, scores_.data(), padded);
    for (int64_t g = 0; g < queries; ++g) {
      float* own = scores_.data() + g * padded;
      for (int64_t i = 0; i < stop; ++i)
        if (is_read[i] || !std::isfinite(own[i])) own[i] = kNone;
      const auto [top, sum] = exponentiate(own, stop);
      to[g] = sum > 0.f ? top + std::log(sum) + std::log(float(page)) : kNone;
    }
  }

 private:
  // Half of each query twice: its product with an upper and a lower bound is that with their middle.
  void halves(const T* query, int64_t queries, int64_t width) {
    halves_.resize(queries * 2 * width);
    for (int64_t i = 0; i < queries * width; ++i) {
      T* to = halves_.data() + i / width * 2 * width + i % width;
      to[0] = to[width] = T(float(query[i]) * 0.5f);
    }
  }
  std::vector<T> halves_;
  std::vector<float> scores_;
};

// The means of the first values of slots, float32 [slots, heads, count, width]: that of n values at n modulo count.
class Means {
 public:
  explicit Means(const at::Tensor& x)
      : at_(x.data_ptr<float>()), slot_(x.stride(0)), head_(x.stride(1)), count_(x.size(2)), width_(x.size(3)) {}
  float* of(int64_t s, int64_t h, int64_t values) const {
    return at_ + s * slot_ + h * head_ + (values + count_) % count_ * width_;
  }
  // Writes the mean of so many values, of which `value` is the newest.
  template <typename T>
  void add(int64_t s, int64_t h, int64_t values, const T* value) const {
    const float* older = of(s, h, values - 1);
    float* to = of(s, h, values);
    for (int64_t d = 0; d < width_; ++d) to[d] = older[d] + (float(value[d]) - older[d]) / float(values);
  }

 private:
  float* at_;
  int64_t slot_, head_, count_, width_;
};

// Merges one query's output [width] and log-sum-exp with those of unread pages, whose values are all `value`.
template <typename T>
void merge_value(const float* value, float unread, int64_t width, T* out, float* lse) {
  if (unread == kNone) return;
  const float share = 1.f / (1.f + std::exp(*lse - unread));
  for (int64_t d = 0; d < width; ++d) out[d] = T(float(out[d]) + share * (value[d] - float(out[d])));
  *lse = std::max(*lse, unread) + std::log1p(std::exp(-std::abs(*lse - unread)));
}

// What each head of a step does not read. Without means it is not estimated.
class UnreadPages {
 public:
  UnreadPages(const OptionalTensor& means, const QueryShape& shape, int64_t page, float scale)
      : queries_(shape.queries), page_(page), scale_(scale) {
    if (!means) return;
    TORCH_CHECK(means->scalar_type() == at::kFloat && (*means)[0][0].is_contiguous(),
                "decode_attend: contiguous float32 means expected");
    means_.emplace(*means);
    values_.assign(shape.rows * shape.heads, nullptr);
    sums_.resize(shape.rows * shape.heads * queries_);
  }

  // Adds the newest value to the mean of its slot.
  template <typename T>
  void add(const StepHead& head, const T* value) const {
    if (means_) means_->add(head.slot, head.head, head.live, value);
  }
  // Sums up the pages before the newest that are not among `read`, for the head's queries [queries, width].
  template <typename T>
  void sum(const StepHead& head, const PageCounts& counts, const T* query, const Digests<T>& digests,
           const int32_t* read) {
    const int64_t total = (head.live + page_ - 1) / page_;
    if (!means_ || total <= counts.limit) return;
    static thread_local MiddleScores<T> middles;
    static thread_local std::vector<uint8_t> is_read;
    is_read.assign(total - counts.newest, 0);
    for (int64_t i = 0; i < counts.limit - counts.newest; ++i) is_read[read[i]] = 1;
    middles(query, queries_, digests.width, digests.upper(head.slot, head.head, 0), is_read, page_, scale_,
            &sums_[head.index * queries_]);
    values_[head.index] = means_->of(head.slot, head.head, head.live);
  }
  // Merges the outputs [heads, queries, width] and log-sum-exps of what was read with the sums.
  template <typename T>
  void merge(int64_t width, T* out, float* lse) const {
    at::parallel_for(0, int64_t(values_.size()), kHeads, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head)
        for (int64_t i = head * queries_; values_[head] && i < (head + 1) * queries_; ++i)
          merge_value(values_[head], sums_[i], width, out + i * width, lse + i);
    });
  }

 private:
  static constexpr int64_t kHeads = 32;  // of a thread, at least

  std::optional<Means> means_;
  const int64_t queries_, page_;
  const float scale_;
  std::vector<const float*> values_;  // the mean value of each head with unread pages
  std::vector<float> sums_;           // the log-sum-exp of each query over unread pages
};

}  // namespace
}  // namespace ringkv
