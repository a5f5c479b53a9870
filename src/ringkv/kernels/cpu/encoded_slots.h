// Slots whose keys and values are encoded. An encoding has
//   Element, Scale   the types of its planes
//   Queries          the queries of a call [heads, queries, width]; `set` takes one
//   Attention        attends to blocks
//   encode           writes a vector's elements and scales, and subtracts a center if there is one
//   decode           restores a vector, still rotated

#pragma once

#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "decode_step.h"
#include "encoded_block.h"
#include "entries.h"
#include "rotate.h"
#include "workspace.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {
namespace {

// Copies that a thread keeps: of the keys and values of its last two blocks, because the next block is prefetched while
// one is attended to.
constexpr int64_t kCopies = 4;

// The elements of a plane [slots, heads, entries, each], or [slots, heads, entries] of one element each.
template <typename E>
struct PlaneElements {
  explicit PlaneElements(const at::Tensor& x)
      : at(static_cast<E*>(x.data_ptr())), slot(x.stride(0)), head(x.stride(1)), each(x.dim() == 4 ? x.size(3) : 1) {
    TORCH_CHECK(x.element_size() == sizeof(E) && x.stride(2) == each && (x.dim() == 3 || x.stride(3) == 1),
                "decode_attend: an entry's elements must be contiguous, and entries must follow each other");
  }
  E* of(const Place& p) const { return at + p.slot * slot + p.head * head + p.entry * each; }

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

  E* at;
  int64_t slot, head, each;
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

// Vectors [slots, heads, (1 + exact) * width]: what is subtracted from a slot's keys, and its first keys minus that.
struct Centers {
  Centers(const at::Tensor& x, int64_t width)
      : at(x.const_data_ptr<float>()), slot(x.stride(0)), head(x.stride(1)), exact(x.size(2) / width - 1) {
    TORCH_CHECK(x.stride(2) == 1, "decode_attend: the elements of a center must be contiguous");
  }
  const float* of(int64_t s, int64_t h) const { return at + s * slot + h * head; }

  const float* at;
  int64_t slot, head, exact;
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
  static constexpr int64_t kGrain = 4;
  using Element = typename Encoding::Element;
  using Scale = typename Encoding::Scale;

  EncodedSlots(const Step<T>& step, const DecodeArguments& a)
      : step_(step), keys_{PlaneElements<Element>(a.planes[0]), PlaneElements<Scale>(a.planes[1])},
        values_{PlaneElements<Element>(a.planes[2]), PlaneElements<Scale>(a.planes[3])},
        centers_(*a.centers, step.shape.width),
        queries_(step.shape.rows * step.shape.heads, step.shape.queries, step.shape.width),
        center_scores_(step.shape.rows * step.shape.heads * step.shape.queries),
        exact_scores_(center_scores_.size() * centers_.exact) {}

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
      for (int64_t j = 0; j < centers_.exact; ++j)
        exact_scores_[i * centers_.exact + j] = step_.scale * dot(query, center + (1 + j) * width, width);
    }
  }
  EncodedBlock<Element, Scale> block(const BlockIndex& at, const Span& span) const {
    static thread_local int64_t place = 0;
    place = (place + 2) % kCopies;
    const ExactScores exact{exact_scores_.data(), centers_.exact};
    return {at.head,
            keys_.elements.of(span, at.entries, place),
            values_.elements.of(span, at.entries, place + 1),
            keys_.scales.of(span, at.entries, place),
            values_.scales.of(span, at.entries, place + 1),
            at.entries,
            span.has_first ? exact.from(at.head * step_.shape.queries) : ExactScores{}};
  }
  template <typename Run>
  void with_attention(const Run& run) const {
    run(typename Encoding::Attention(queries_, step_.shape.queries, step_.shape.width, step_.scale));
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
  const Centers centers_;
  typename Encoding::Queries queries_;
  std::vector<float> center_scores_, exact_scores_;  // what the center adds to all scores of a query; of exact keys
};

}  // namespace
}  // namespace ringkv

#endif
