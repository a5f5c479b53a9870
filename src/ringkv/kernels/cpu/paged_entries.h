// The entries of some pages of each head, selected by their digests.

#pragma once

#include <bit>

#include "decode_step.h"
#include "entries.h"
#include "files.h"
#include "pages.h"

namespace ringkv {
namespace {

template <typename T>
class PagedEntries {
 public:
  static constexpr bool kSelects = true;

  PagedEntries(const Step<T>& step, const DecodeArguments& a)
      : step_(step), page_(page_of(a.planes[0], a.pages[0])), digests_(a.pages[0]), pins_(a.pages[1]),
        counts_(a.pages[2]), selected_(step.shape.rows * step.shape.heads, page_, step.scale),
        read_ahead_(a.planes, page_) {}

  // Selects before anything is written: a write to a page that is in no memory has the system read those around it.
  void select() {
    step_.each_head(1, [&](const StepHead& to) {
      selected_.select(to, counts_.of(to.slot), step_.queries(to.index), step_.shape.queries, digests_, pins_);
      read_ahead_(to.slot, to.head, selected_.of(to.index), selected_.count(to.index));
    });
  }
  Place newest(const StepHead& to) const { return {to.slot, to.head, to.entry}; }
  // The last entry of a page completes its digest.
  template <typename Stored>
  void written(const Stored& stored, const StepHead& to) {
    if ((to.entry + 1) % page_) return;
    const int64_t index = to.entry / page_, width = step_.shape.width;
    T* upper = digests_.upper(to.slot, to.head, index);
    write_digest(stored.keys({to.slot, to.head, index * page_}, page_), page_, width, upper, upper + width);
  }
  const int32_t* lengths() const { return selected_.lengths(); }
  // Pages that follow each other are read in place.
  Span span(const BlockIndex& at) const {
    const int64_t slot = step_.slot[at.row], head = at.head % step_.shape.heads;
    const int32_t* pages = selected_.of(at.head) + at.first / page_;
    const bool has_first = pages[0] == 0;
    if (follow_each_other(pages, (at.entries + page_ - 1) / page_))
      return {{slot, head, pages[0] * page_}, has_first};
    return {{slot, head, 0}, has_first, {pages, std::countr_zero(uint64_t(page_))}};
  }

 private:
  const Step<T>& step_;
  const int64_t page_;
  const Digests<T> digests_;
  const Pins pins_;
  const CountsOfSlots counts_;
  SelectedPages selected_;
  const ReadAhead read_ahead_;
};

}  // namespace
}  // namespace ringkv
