// The entries of slots that a step reads. A reading has
//   kGrain     heads that a thread prepares, at least
//   select     called before new vectors are written
//   newest     the entry that a head's new vectors take
//   written    called after a head's new vectors are written
//   lengths    how many entries of each head are read; null if these are all live ones
//   span       where the entries of a block are

#pragma once

#include "decode_step.h"
#include "files.h"
#include "pages.h"

namespace ringkv {
namespace {

// A block of a head of a row: `entries` of those that are attended to, from `first` on.
struct BlockIndex {
  int64_t head, row, first, entries;  // head: row * heads + head
};

// An entry of planes [slots, heads, entries, ...].
struct Place {
  int64_t slot, head, entry;
};

// The entries of a block: from a place on, or in pages that count from there. has_first: the slot's first entry is the
// block's first.
struct Span {
  Place from;
  bool has_first;
  PageList in = {};
};

// All live entries.
template <typename T>
class EveryEntry {
 public:
  static constexpr int64_t kGrain = kAlone;

  EveryEntry(const Step<T>& step, const DecodeArguments&) : step_(step) {}

  void select() {}
  Place newest(const StepHead& to) const { return {to.slot, to.head, to.entry}; }
  template <typename Stored>
  void written(const Stored&, const StepHead&) {}
  const int32_t* lengths() const { return nullptr; }
  Span span(const BlockIndex& at) const {
    return {{step_.slot[at.row], at.head % step_.shape.heads, at.first}, at.first == 0};
  }

 private:
  const Step<T>& step_;
};

// All entries of heads that divide planes [slots, 1, entries, ...], by `places` [slots, heads, 2].
template <typename T>
class RaggedEntries {
 public:
  static constexpr int64_t kGrain = kAlone;

  RaggedEntries(const Step<T>& step, const DecodeArguments& a)
      : step_(step), places_(int32(*a.places)), lengths_(step.shape.rows * step.shape.heads, 0) {
    step.each_head(kAlone, [&](const StepHead& to) {
      lengths_[to.index] = int32_t(to.live + of_head(to.slot, to.head).more);
    });
  }

  void select() {}
  Place newest(const StepHead& to) const {
    const OfHead& head = of_head(to.slot, to.head);
    return {to.slot, 0, head.first + head.more + to.entry};
  }
  template <typename Stored>
  void written(const Stored&, const StepHead&) {}
  const int32_t* lengths() const { return lengths_.data(); }
  Span span(const BlockIndex& at) const {
    const int64_t slot = step_.slot[at.row];
    return {{slot, 0, of_head(slot, at.head % step_.shape.heads).first + at.first}, at.first == 0};
  }

 private:
  // The first entry of a head, and how many more than the live entries of its row it has.
  struct OfHead {
    int32_t first, more;
  };
  const OfHead& of_head(int64_t slot, int64_t head) const {
    return reinterpret_cast<const OfHead*>(places_.template const_data_ptr<int32_t>())[slot * step_.shape.heads + head];
  }

  const Step<T>& step_;
  const at::Tensor places_;
  std::vector<int32_t> lengths_;
};

// The entries of some pages of each head, selected by their digests.
template <typename T>
class PagedEntries {
 public:
  static constexpr int64_t kGrain = kFew;

  PagedEntries(const Step<T>& step, const DecodeArguments& a)
      : step_(step), page_(page_of(a.planes[0], a.pages[0])), digests_(a.pages[0]), pins_(a.pages[1]),
        counts_(int32(a.pages[2])), selected_(step.shape.rows * step.shape.heads, page_, step.scale),
        read_ahead_(a.planes, page_) {
    TORCH_CHECK(counts_.size(1) * sizeof(int32_t) == sizeof(PageCounts),
                "decode_attend: three counts of a slot expected");
  }

  // Selects before anything is written: a write to a page that is in no memory has the system read those around it.
  void select() {
    const auto* counts = reinterpret_cast<const PageCounts*>(counts_.const_data_ptr<int32_t>());
    step_.each_head(kGrain, [&](const StepHead& to) {
      selected_.select(to, counts[to.slot], step_.queries(to.index), step_.shape, digests_, pins_);
      read_ahead_(to.slot, to.head, selected_.of(to.index), selected_.count(to.index));
    });
  }
  Place newest(const StepHead& to) const { return {to.slot, to.head, to.entry}; }
  // The last entry of a page completes its digest.
  template <typename Stored>
  void written(const Stored& stored, const StepHead& to) {
    if ((to.entry + 1) % page_) return;
    const int64_t index = to.entry / page_, width = step_.shape.width;
    T* upper = digests_.of(to.slot, to.head) + index * 2 * width;
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
  const OfHeads<T> digests_;
  const OfHeads<float> pins_;
  const at::Tensor counts_;
  SelectedPages selected_;
  const ReadAhead read_ahead_;
};

}  // namespace
}  // namespace ringkv
