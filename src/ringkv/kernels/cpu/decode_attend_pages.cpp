// decode_attend_pages on the CPU: attend to some pages of a slot, selected by their digests. See decode_attend_pages.py.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "attend_slots.h"
#include "workspace.h"

namespace ringkv {
namespace {

// Pages that a step reads of a slot: `most` of them, among them the first `leading` and the last `newest`. is_mean: of
// digests, see `write_digest`.
struct PageCounts {
  int32_t most, leading, newest, is_mean;
};

// Bounds of a page's keys [page, width]: upper and lower [width] each. By means they are the middle of the extremes,
// plus and minus the mean distance from it (ArkVale, section 3.2).
template <typename T>
void write_digest(const T* keys, int64_t page, int64_t width, bool is_mean, T* upper, T* lower) {
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

// The pages that each head of each row reads, in order.
class SelectedPages {
 public:
  SelectedPages(int64_t heads, int64_t page) : page_(page), pages_(heads), lengths_(heads, 0) {}

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
  const int32_t* lengths() const { return lengths_.data(); }
  const int32_t* of(int64_t head) const { return pages_[head].data(); }

 private:
  const int64_t page_;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<int32_t> lengths_;
};

// Copies `count` entries in pages to `memory`, for tiles.
template <typename T>
const T* gathered(const T* plane, const int32_t* pages, int64_t page, int64_t count, int64_t width, T* memory) {
  for (int64_t i = 0; i < count; i += page)
    std::memcpy(memory + i * width, plane + pages[i / page] * page * width,
                std::min(page, count - i) * width * sizeof(T));
  return memory;
}

// Makes blocks of a head's selected pages: in place if they follow each other, else in pages, or for tiles copied. A thread
// keeps the copies of its last two blocks.
template <typename T>
class PagedBlocks {
 public:
  PagedBlocks(const T* keys, const T* values, int64_t page, int64_t width, bool copies)
      : keys_(keys), values_(values), page_(page), width_(width), shift_(std::countr_zero(uint64_t(page))),
        copies_(copies) {}

  // `plane`: the element of both planes at which the head begins. `pages`: those of the block.
  Block<T> operator()(const T* query, int64_t plane, const int32_t* pages, const BlockIndex& index) const {
    const int64_t count = (index.entries + page_ - 1) / page_;
    const T *key = keys_ + plane, *value = values_ + plane;
    if (pages[count - 1] - pages[0] == count - 1) {
      const int64_t first = pages[0] * page_ * width_;
      return {query, key + first, value + first, index.entries, index.row, index.first};
    }
    if (!copies_) return {query, key, value, index.entries, index.row, index.first, {pages, int(shift_)}};
    static thread_local std::vector<T> memory;
    static thread_local int64_t turn = 0;
    const int64_t size = kBlock * width_;
    T* own = workspace(memory, 4 * size) + (turn++ % 2) * 2 * size;
    const T* copied = gathered(key, pages, page_, index.entries, width_, own);
    return {query, copied, gathered(value, pages, page_, index.entries, width_, own + size), index.entries, index.row,
            index.first};
  }

 private:
  const T *keys_, *values_;
  const int64_t page_, width_, shift_;
  const bool copies_;
};

template <typename T>
struct Slots {
  T *keys, *values, *digests;
  int64_t of_slot, of_head, digests_of_slot, digests_of_head;
  int64_t page, width;

  int64_t plane(int64_t slot, int64_t head) const { return slot * of_slot + head * of_head; }
  T* upper(int64_t slot, int64_t head, int64_t index) const {
    return digests + slot * digests_of_slot + head * digests_of_head + index * 2 * width;
  }
};

// Writes a row's new vectors. The last entry of a page completes its digest.
template <typename T>
void write(const Slots<T>& slots, const NewVectors<T>& k, const NewVectors<T>& v, int64_t row, int64_t head,
           int64_t slot, int64_t entry, bool is_mean) {
  T* key = slots.keys + slots.plane(slot, head);
  T* value = slots.values + slots.plane(slot, head);
  write_new(k, v, row, head, slots.width, key + entry * slots.width, value + entry * slots.width);
  if ((entry + 1) % slots.page) return;
  const int64_t index = entry / slots.page;
  T* upper = slots.upper(slot, head, index);
  write_digest(key + index * slots.page * slots.width, slots.page, slots.width, is_mean, upper, upper + slots.width);
}

std::tuple<at::Tensor, at::Tensor> decode_attend_pages(const at::Tensor& q, const std::optional<at::Tensor>& k,
                                                       const std::optional<at::Tensor>& v, at::Tensor keys,
                                                       at::Tensor values, at::Tensor digests, const at::Tensor& counts,
                                                       const at::Tensor& slot, const at::Tensor& entry,
                                                       const at::Tensor& live, double scale) {
  check_planes(q, keys, values);
  TORCH_CHECK(keys.size(2) % digests.size(2) == 0 && digests[0][0].is_contiguous(),
              "decode_attend_pages: whole pages expected");
  TORCH_CHECK(keys.size(2) / digests.size(2) % kLanes == 0 && kBlock % (keys.size(2) / digests.size(2)) == 0,
              "decode_attend_pages: a page must be a multiple of ", kLanes, " entries and divide ", kBlock);
  const auto cq = q.contiguous(), cc = int32(counts), cs = int32(slot), ce = int32(entry), cl = int32(live);
  const auto *slot_of = cs.const_data_ptr<int32_t>(), *lives = cl.const_data_ptr<int32_t>();
  const auto* counts_of = reinterpret_cast<const PageCounts*>(cc.const_data_ptr<int32_t>());
  const int64_t rows = q.size(0), heads = q.size(1), queries = q.size(2), width = q.size(3);
  const int64_t page = keys.size(2) / digests.size(2);
  SelectedPages selected(rows * heads, page);
  auto [out, lse] = new_results(cq);
  with_dtype(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Slots<T> slots{keys.data_ptr<T>(), values.data_ptr<T>(), digests.data_ptr<T>(), keys.stride(0),
                         keys.stride(1), digests.stride(0), digests.stride(1), page, width};
    const T* query = cq.const_data_ptr<T>();
    if (k && v) check_new(*k, *v);
    at::parallel_for(0, rows * heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / heads, head = i % heads, own = slot_of[row];
        if (lives[row] <= 0) continue;
        const PageCounts& limits = counts_of[own];
        if (k && v) {
          const int32_t to = ce.const_data_ptr<int32_t>()[row];
          write(slots, NewVectors<T>(*k), NewVectors<T>(*v), row, head, own, to, limits.is_mean);
        }
        if ((lives[row] + page - 1) / page <= limits.most) {
          selected.every(i, lives[row]);
          continue;
        }
        const SummedQueries<T> summed(query + i * queries * width, queries, width);
        selected.best(i, lives[row], limits, [&](int64_t index) {
          const T* upper = slots.upper(own, head, index);
          return summed.score(upper, upper + width);
        });
      }
    });
    const RowSlots lengths{slot_of, lives, selected.lengths()};
    const PagedBlocks<T> blocks(slots.keys, slots.values, page, width, with_tiles<T>(queries, width, {}));
    const auto block_of = [&](const BlockIndex& index) {
      const int64_t plane = slots.plane(slot_of[index.row], index.head % heads);
      return blocks(query + index.head * queries * width, plane, selected.of(index.head) + index.first / page, index);
    };
    const auto with = [&](const auto& run) { with_attention<T>(queries, width, float(scale), {}, run); };
    const Result<T> to{out.template data_ptr<T>(), lse.template data_ptr<float>()};
    attend_blocks<T>({rows, heads, queries, width}, lengths, to, block_of, with, [](float*) {});
  });
  return {out, lse};
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("decode_attend_pages", &ringkv::decode_attend_pages); }
