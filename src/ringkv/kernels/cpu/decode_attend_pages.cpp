// decode_attend_pages on the CPU: attend to some pages of a slot, selected by their digests. See decode_attend_pages.py.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <bit>
#include <optional>
#include <tuple>

#include "attend_slots.h"
#include "files.h"
#include "pages.h"
#include "unread_pages.h"

namespace ringkv {
namespace {

// Makes blocks of a head's selected pages, in place if these follow each other.
template <typename T>
class PagedBlocks {
 public:
  PagedBlocks(const T* keys, const T* values, int64_t page, int64_t width)
      : keys_(keys), values_(values), page_(page), width_(width), shift_(std::countr_zero(uint64_t(page))) {}

  // `plane`: the element of both planes at which the head begins. `pages`: those of the block.
  Block<T> operator()(const T* query, int64_t plane, const int32_t* pages, const BlockIndex& index) const {
    const T *key = keys_ + plane, *value = values_ + plane;
    if (!are_in_place(pages, page_, index.entries))
      return {query, key, value, index.entries, index.row, index.first, {pages, int(shift_)}};
    const int64_t first = pages[0] * page_ * width_;
    return {query, key + first, value + first, index.entries, index.row, index.first};
  }

 private:
  const T *keys_, *values_;
  const int64_t page_, width_, shift_;
};

template <typename T>
struct Slots {
  T *keys, *values;
  int64_t of_slot, of_head, page, width;
  Digests<T> digests;

  int64_t plane(int64_t slot, int64_t head) const { return slot * of_slot + head * of_head; }
};

// Writes a row's new vectors. The last entry of a page completes its digest.
template <typename T>
void write(const Slots<T>& slots, const NewVectors<T>& k, const NewVectors<T>& v, const Destination& to, bool is_mean) {
  T* key = slots.keys + slots.plane(to.slot, to.head);
  T* value = slots.values + slots.plane(to.slot, to.head);
  write_new(k, v, to.row, to.head, slots.width, key + to.entry * slots.width, value + to.entry * slots.width);
  if ((to.entry + 1) % slots.page) return;
  const int64_t index = to.entry / slots.page;
  T* upper = slots.digests.upper(to.slot, to.head, index);
  write_digest(key + index * slots.page * slots.width, slots.page, slots.width, is_mean, upper, upper + slots.width);
}

std::tuple<at::Tensor, at::Tensor> decode_attend_pages(const at::Tensor& q, const std::optional<at::Tensor>& k,
                                                       const std::optional<at::Tensor>& v, at::Tensor keys,
                                                       at::Tensor values, at::Tensor digests, const at::Tensor& pins,
                                                       const at::Tensor& counts, const at::Tensor& slot,
                                                       const at::Tensor& entry, const at::Tensor& live, double scale,
                                                       const std::optional<at::Tensor>& means) {
  check_planes(q, keys, values);
  const auto cq = q.contiguous(), cc = int32(counts), cs = int32(slot), ce = int32(entry), cl = int32(live);
  const auto *slot_of = cs.const_data_ptr<int32_t>(), *lives = cl.const_data_ptr<int32_t>();
  const auto* counts_of = page_counts(cc);
  const int64_t rows = q.size(0), heads = q.size(1), queries = q.size(2), width = q.size(3);
  const int64_t page = page_of(keys, digests);
  SelectedPages selected(rows * heads, heads, page, scale);
  UnreadPages unread(means, rows * heads, queries, page, scale);
  const Pins pinned(pins);
  const ReadAhead read_ahead({keys, values}, page);
  auto [out, lse] = new_results(cq);
  with_dtype(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Slots<T> slots{keys.data_ptr<T>(), values.data_ptr<T>(), keys.stride(0),    keys.stride(1),
                         page,               width,                Digests<T>(digests)};
    const T* query = cq.const_data_ptr<T>();
    if (k && v) check_new(*k, *v);
    const auto each_head = [&](const auto& run) {
      at::parallel_for(0, rows * heads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          if (const int64_t row = i / heads; lives[row] > 0)
            run(i, Destination{row, slot_of[row], i % heads, ce.const_data_ptr<int32_t>()[row]}, lives[row]);
      });
    };
    const auto use = [&](int64_t i, const Destination& to, int64_t own_live) {
      read_ahead(to.slot, to.head, selected.of(i), selected.count(i));
      const T* first = query + i * queries * width;
      unread.sum(i, to.slot, to.head, own_live, counts_of[to.slot], first, slots.digests, selected.of(i));
    };
    selected.select(each_head, counts_of, query, queries, slots.digests, pinned, use);
    // Afterwards, because a write to a page that is in no memory has the system read those around it, too.
    if (k && v)
      each_head([&](int64_t, const Destination& to, int64_t own_live) {
        write(slots, NewVectors<T>(*k), NewVectors<T>(*v), to, counts_of[to.slot].is_mean);
        unread.add(to.slot, to.head, own_live, NewVectors<T>(*v).of(to.row, to.head));
      });
    const RowSlots lengths{slot_of, lives, selected.lengths()};
    const PagedBlocks<T> blocks(slots.keys, slots.values, page, width);
    const auto block_of = [&](const BlockIndex& index) {
      const int64_t plane = slots.plane(slot_of[index.row], index.head % heads);
      return blocks(query + index.head * queries * width, plane, selected.of(index.head) + index.first / page, index);
    };
    const auto with = [&](const auto& run) { with_attention<T>(queries, width, float(scale), {}, run); };
    const Result<T> to{out.template data_ptr<T>(), lse.template data_ptr<float>()};
    attend_blocks<T>({rows, heads, queries, width}, lengths, to, block_of, with, [](float*) {});
    unread.merge(width, to.out, to.lse);
  });
  return {out, lse};
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("decode_attend_pages", &ringkv::decode_attend_pages); }
