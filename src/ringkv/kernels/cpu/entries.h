// The entries of slots that a step reads. A reading has
//   kSelects   whether `select` does anything; it is called before new vectors are written
//   newest     the entry that a head's new vectors take
//   written    called after a head's new vectors are written
//   lengths    how many entries of each head are read; null if these are all live ones
//   span       where the entries of a block are
// `PagedEntries` of paged_entries.h reads some pages.

#pragma once

#include <vector>

#include "attend_blocks.h"
#include "decode_step.h"

namespace ringkv {
namespace {

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
  static constexpr bool kSelects = false;

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
  static constexpr bool kSelects = false;

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

}  // namespace
}  // namespace ringkv
