// add_unread_pages on the CPU: attention to the pages that a step does not read, by their digests. See unread_pages.py.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "encoded_attend.h"
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
    const int64_t stop = int64_t(is_read.size());
    tops_.assign(queries, kNone);
    sums_.assign(queries, 0.f);
    scores_.resize(kGroupHeads * kBlock);
    for (int64_t from = 0; from < queries; from += kGroupHeads)
      for_group(std::min(kGroupHeads, queries - from), [&](auto count) {
        constexpr int G = decltype(count)::value;
        for (int64_t at = 0; at < stop; at += kBlock) {
          const int64_t size = std::min(kBlock, stop - at);
          const T* rows = digests + at * 2 * width;
          score_rows<T, G>(halves_.data() + from * 2 * width, rows, rows, size, 2 * width, scale, scores_.data());
          for (int g = 0; g < G; ++g) add(scores_.data() + g * kBlock, is_read.data() + at, size, from + g);
        }
      });
    for (int64_t g = 0; g < queries; ++g)
      to[g] = sums_[g] > 0.f ? tops_[g] + std::log(sums_[g]) + std::log(float(page)) : kNone;
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
  // Adds the scores of a block to the sum of one query.
  void add(float* scores, const uint8_t* is_read, int64_t size, int64_t query) {
    for (int64_t i = 0; i < size; ++i)
      if (is_read[i] || !std::isfinite(scores[i])) scores[i] = kNone;
    const auto [top, sum] = exponentiate(scores, size);
    if (sum == 0.f) return;
    const float highest = std::max(top, tops_[query]);
    sums_[query] = sums_[query] * std::exp(tops_[query] - highest) + sum * std::exp(top - highest);
    tops_[query] = highest;
  }

  std::vector<T> halves_;
  std::vector<float> tops_, sums_, scores_;
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

// The log-sum-exp of each query over the pages that its head does not read.
template <typename T>
class UnreadPages {
 public:
  // `centers`: what digests lack, if anything.
  UnreadPages(int64_t heads, const std::optional<at::Tensor>& centers, const at::Tensor& digests,
              const at::Tensor& pins, int64_t page, double scale)
      : digests_(digests), pins_(pins), selected_(heads, page, scale), page_(page), scale_(float(scale)) {
    if (centers) centers_.emplace(*centers, digests_.width);
  }

  // `head`: row * heads + head of the queries [queries, width]; `s` and `h`: its slot and its head there.
  void sums(int64_t head, int64_t s, int64_t h, int32_t live, const PageCounts& counts, const T* query, int64_t queries,
            float* to) {
    const int64_t total = (live + page_ - 1) / page_;
    std::fill_n(to, queries, kNone);
    if (total <= counts.most) return;
    static thread_local MiddleScores<T> middles;
    static thread_local std::vector<uint8_t> is_read;
    selected_.select(head, live, counts, query, queries, digests_, pins_, s, h);
    is_read.assign(total - counts.newest, 0);
    for (int64_t i = 0; i < counts.most - counts.newest; ++i) is_read[selected_.of(head)[i]] = 1;
    middles(query, queries, digests_.width, digests_.upper(s, h, 0), is_read, page_, scale_, to);
    if (centers_) add(centers_->of(s, h), query, queries, to);
  }

 private:
  // Adds the score of a center to the log-sum-exp of each query.
  void add(const float* center, const T* query, int64_t queries, float* to) const {
    for (int64_t g = 0; g < queries; ++g)
      if (to[g] != kNone) to[g] += scale_ * dot(query + g * digests_.width, center, digests_.width);
  }

  std::optional<Centers> centers_;
  const Digests<T> digests_;
  const Pins pins_;
  SelectedPages selected_;
  const int64_t page_;
  const float scale_;
};

// Merges one query's output [width] and log-sum-exp with those of unread pages, whose values are all `value`.
template <typename T>
void merge_value(const float* value, float unread, int64_t width, const T* read, float lse, T* out, float* to) {
  *to = lse;
  std::copy_n(read, width, out);
  if (unread == kNone) return;
  const float share = 1.f / (1.f + std::exp(lse - unread));
  for (int64_t d = 0; d < width; ++d) out[d] = T(float(read[d]) + share * (value[d] - float(read[d])));
  *to = std::max(lse, unread) + std::log1p(std::exp(-std::abs(lse - unread)));
}

std::tuple<at::Tensor, at::Tensor> add_unread_pages(const at::Tensor& read, const at::Tensor& read_lse,
                                                    const at::Tensor& q, const std::optional<at::Tensor>& v,
                                                    at::Tensor means, const std::optional<at::Tensor>& centers,
                                                    const at::Tensor& digests, const at::Tensor& pins,
                                                    const at::Tensor& counts, const at::Tensor& slot,
                                                    const at::Tensor& live, int64_t page, double scale) {
  TORCH_CHECK(q.size(-1) % kStep == 0, "add_unread_pages: head_dim must be a multiple of ", kStep);
  TORCH_CHECK(means.scalar_type() == at::kFloat && means[0][0].is_contiguous() && digests[0][0].is_contiguous(),
              "add_unread_pages: float32 means and contiguous digests expected");
  TORCH_CHECK((!v || v->stride(2) == 1) && (!centers || centers->stride(2) == 1),
              "add_unread_pages: the elements of a new value and of a center must be contiguous");
  const auto cq = q.contiguous(), cc = int32(counts), cs = int32(slot), cl = int32(live);
  const auto *slot_of = cs.const_data_ptr<int32_t>(), *lives = cl.const_data_ptr<int32_t>();
  const auto* counts_of = reinterpret_cast<const PageCounts*>(cc.const_data_ptr<int32_t>());
  const int64_t rows = q.size(0), heads = q.size(1), queries = q.size(2), width = q.size(3);
  auto [out, lse] = new_results(cq);
  const auto from = read.contiguous(), from_lse = read_lse.contiguous();
  const float* logs = from_lse.const_data_ptr<float>();
  const Means mean_of(means);
  with_dtype(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    UnreadPages<T> pages(rows * heads, centers, digests, pins, page, scale);
    const T *query = cq.const_data_ptr<T>(), *before = from.const_data_ptr<T>();
    T* to = out.template data_ptr<T>();
    float* to_lse = lse.template data_ptr<float>();
    at::parallel_for(0, rows * heads, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> unread(queries);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / heads, head = i % heads, s = slot_of[row], first = i * queries;
        if (v && lives[row] > 0)
          mean_of.add(s, head, lives[row], v->const_data_ptr<T>() + row * v->stride(0) + head * v->stride(1));
        const float* mean = mean_of.of(s, head, lives[row]);
        pages.sums(i, s, head, lives[row], counts_of[s], query + first * width, queries, unread.data());
        for (int64_t g = 0; g < queries; ++g) {
          const int64_t at = (first + g) * width;
          merge_value(mean, unread[g], width, before + at, logs[first + g], to + at, to_lse + first + g);
        }
      }
    });
  });
  return {out, lse};
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("add_unread_pages", &ringkv::add_unread_pages); }
