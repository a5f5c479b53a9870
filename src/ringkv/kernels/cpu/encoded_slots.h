// Slots whose keys and values are encoded, as block_encoded.h says.

#pragma once

#include "block_encoded.h"
#include "decode_step.h"
#include "entries.h"
#include "workspace.h"

namespace ringkv {
namespace {

// Copies that a thread keeps: of the keys and values of its last two blocks, because the next block is prefetched while
// one is attended to.
constexpr int64_t kCopies = 4;

// The elements of a plane [slots, heads, entries, each], or [slots, heads, entries] of one element each.
template <typename E>
struct PlaneElements {
  explicit PlaneElements(const at::Tensor& x) : heads(x), each(x.dim() == 4 ? x.size(3) : 1) {
    TORCH_CHECK(x.stride(2) == each, "decode_attend: entries must follow each other");
  }
  E* of(const Place& p) const { return heads.of(p.slot, p.head) + p.entry * each; }

  // The entries of a block. Those in pages are copied to memory of the calling thread, at `place` of kCopies.
  const E* of(const Span& span, int64_t entries, int64_t place) const {
    const E* first = of(span.from);
    if (!span.in.pages) return first;
    static thread_local std::vector<E> memory;
    E* to = workspace(memory, kCopies * kBlock * each) + place * kBlock * each;
    const int64_t page = int64_t(1) << span.in.shift;
    for (int64_t i = 0; i < entries; i += page)
      std::memcpy(to + i * each, first + span.in.place(i) * each, std::min(page, entries - i) * each * sizeof(E));
    return to;
  }

  OfHeads<E> heads;
  int64_t each;
};

template <typename Encoding>
struct EncodedPlane {
  using Element = typename Encoding::Element;
  using Scale = typename Encoding::Scale;

  const PlaneElements<Element> elements;
  const PlaneElements<Scale> scales;

  template <typename T>
  void write(const T* x, int64_t width, const Place& to, const float* center) const {
    Encoding::encode(x, width, elements.of(to), scales.of(to), center);
  }
};

// Returns x . y; the count is a multiple of kLanes.
template <typename T>
float dot(const T* x, const float* y, int64_t count) {
  float sums[kLanes] = {};
  for (int64_t d = 0; d < count; d += kLanes)
    for (int i = 0; i < kLanes; ++i) sums[i] += float(x[d + i]) * y[d + i];
  return std::accumulate(sums, sums + kLanes, 0.f);
}

template <typename T, typename Encoding>
class EncodedSlots {
 public:
  static constexpr int64_t kGrain = kFew;
  using Element = typename Encoding::Element;
  using Scale = typename Encoding::Scale;

  EncodedSlots(const Step<T>& step, const DecodeArguments& a)
      : step_(step), keys_{PlaneElements<Element>(a.planes[0]), PlaneElements<Scale>(a.planes[1])},
        values_{PlaneElements<Element>(a.planes[2]), PlaneElements<Scale>(a.planes[3])},
        centers_(*a.centers), exact_(a.centers->size(2) / step.shape.width - 1),
        queries_(step.shape.rows * step.shape.heads, step.shape.queries, step.shape.width),
        center_scores_(step.shape.rows * step.shape.heads * step.shape.queries),
        exact_scores_(center_scores_.size() * exact_) {}

  void write(const StepHead& from, const Place& to) const {
    const int64_t width = step_.shape.width;
    keys_.write(step_.k->of(from.row, from.head), width, to, centers_.of(from.slot, from.head));
    values_.write(step_.v->of(from.row, from.head), width, to, nullptr);
  }
  void prepare(const StepHead& head) {
    const int64_t width = step_.shape.width, queries = step_.shape.queries;
    const float* center = centers_.of(head.slot, head.head);
    for (int64_t g = 0; g < queries; ++g) {
      const T* query = step_.queries(head.index) + g * width;
      const int64_t i = head.index * queries + g;
      queries_.set(head.index, g, query);
      center_scores_[i] = step_.scale * dot(query, center, width);
      for (int64_t j = 0; j < exact_; ++j)
        exact_scores_[i * exact_ + j] = step_.scale * dot(query, center + (1 + j) * width, width);
    }
  }
  EncodedBlock<Element, Scale> block(const BlockIndex& at, const Span& span) const {
    static thread_local int64_t place = 0;
    place = (place + 2) % kCopies;
    const ExactScores exact{exact_scores_.data(), exact_};
    return {at.head,
            keys_.elements.of(span, at.entries, place),
            values_.elements.of(span, at.entries, place + 1),
            keys_.scales.of(span, at.entries, place),
            values_.scales.of(span, at.entries, place + 1),
            at.entries,
            span.has_first ? exact.from(at.head * step_.shape.queries) : ExactScores{}};
  }
  static int64_t most_queries(int64_t, int64_t) { return std::numeric_limits<int64_t>::max(); }
  template <typename Run>
  void with_attention(int64_t queries, const Run& run) const {
    run(BlockEncoded<Encoding>(queries_, queries, step_.shape.width, step_.scale));
  }
  void finish(float* sum) const { rotate(sum, step_.shape.width); }
  void add_centers() const {
    for (size_t i = 0; i < center_scores_.size(); ++i) step_.to.lse[i] += center_scores_[i];
  }
  const float* keys(const Place& from, int64_t count) const {
    const int64_t width = step_.shape.width;
    static thread_local std::vector<float> decoded;
    decoded.resize(count * width);
    for (int64_t j = 0; j < count; ++j) {
      const Place at{from.slot, from.head, from.entry + j};
      float* to = decoded.data() + j * width;
      Encoding::decode(keys_.elements.of(at), keys_.scales.of(at), width, to);
      rotate(to, width);
    }
    return decoded.data();
  }

 private:
  const Step<T>& step_;
  const EncodedPlane<Encoding> keys_, values_;
  const OfHeads<const float> centers_;  // [(1 + exact_) * width]: what is subtracted from keys, and first keys less it
  const int64_t exact_;
  Queries<Encoding> queries_;
  std::vector<float> center_scores_, exact_scores_;  // what the center adds to all scores of a query; of exact keys
};

}  // namespace
}  // namespace ringkv
