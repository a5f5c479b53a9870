// Decode attention over encoded entries, for every encoding: write the new vectors, if any, then attend. See
// encoded_attend.py.
//
// An encoding has
//   Element, Scale    the types of its planes
//   name              of its operator, for errors
//   Keys, Values      how each of them is encoded: `encode` writes a vector's elements and scales, and subtracts a
//                     center if there is one
//   Queries           the queries of a call [heads, queries, width]; `set` takes one
//   attention         makes the implementation that attends to an EncodedBlock; see `attend_blocks`
//   finish            transforms a query's weighted sum of values [width] in place
// `EveryEntry` says what is attended to; `PagedEntries` of decode_attend_pages_int8.cpp does so for some pages.

#pragma once

#include <ATen/core/Tensor.h>

#include <numeric>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "attend_blocks.h"
#include "encoded_block.h"

namespace ringkv {
namespace {

// A plane of a cache [slots, heads, entries, bytes], and its scales [slots, heads, entries] or [..., n].
template <typename Encoding>
struct EncodedPlane {
  using Element = typename Encoding::Element;
  using Scale = typename Encoding::Scale;

  EncodedPlane(const at::Tensor& plane, const at::Tensor& scales)
      : at(static_cast<Element*>(plane.data_ptr())), scale(static_cast<Scale*>(scales.data_ptr())),
        slot(plane.stride(0)), head(plane.stride(1)), slot_scales(scales.stride(0)), head_scales(scales.stride(1)),
        bytes(plane.size(3)), each(scales.dim() == 4 ? scales.size(3) : 1) {
    TORCH_CHECK(plane.element_size() == sizeof(Element) && scales.element_size() == sizeof(Scale) &&
                    plane.stride(3) == 1 && plane.stride(2) == bytes && scales.stride(2) == each,
                Encoding::name, ": an entry's elements must be contiguous, and entries must follow each other");
  }
  Element* entry(int64_t s, int64_t h, int64_t e) const { return at + s * slot + h * head + e * bytes; }
  Scale* scale_of(int64_t s, int64_t h, int64_t e) const {
    return scale + s * slot_scales + h * head_scales + e * each;
  }

  Element* at;
  Scale* scale;
  int64_t slot, head, slot_scales, head_scales, bytes, each;
};

// Vectors [slots, heads, (1 + exact) * width]: what is subtracted from a slot's keys, and its first keys minus that.
struct Centers {
  Centers(const at::Tensor& x, int64_t width)
      : at(x.const_data_ptr<float>()), slot(x.stride(0)), head(x.stride(1)), exact(x.size(2) / width - 1) {}
  const float* of(int64_t s, int64_t h) const { return at + s * slot + h * head; }

  const float* at;
  int64_t slot, head, exact;
};

// Encodes and writes a new vector, minus `center` if it is not null.
template <typename Vectors, typename Encoding, typename T>
void write(const EncodedPlane<Encoding>& plane, const NewVectors<T>& vectors, int64_t width, const Destination& to,
           const float* center) {
  Vectors::encode(vectors.of(to.row, to.head), width, plane.entry(to.slot, to.head, to.entry),
                  plane.scale_of(to.slot, to.head, to.entry), center);
}

// Returns x . y; the count is a multiple of kLanes.
template <typename T>
float dot(const T* x, const float* y, int64_t count) {
  float sums[kLanes] = {};
  for (int64_t d = 0; d < count; d += kLanes)
    for (int i = 0; i < kLanes; ++i) sums[i] += float(x[d + i]) * y[d + i];
  return std::accumulate(sums, sums + kLanes, 0.f);
}

// Which entries of a slot are attended to: all that are live.
template <typename Encoding>
struct EveryEntry {
  using Block = EncodedBlock<typename Encoding::Element, typename Encoding::Scale>;
  using Plane = EncodedPlane<Encoding>;
  static constexpr bool kSelects = false;

  // Called with all queries before any new vectors are written. `each_head` calls a function of the number of a head
  // among all heads of all rows, its destination and its live entries.
  template <typename T, typename EachHead>
  void choose(const EachHead&, const T*) {}
  // Called after a head's new vectors are written. `value`: the new one.
  template <typename T>
  void written(const Plane&, const Destination&, int64_t, const T*) {}
  // The entries of each head that are attended to; null if these are all live ones.
  const int32_t* lengths() const { return nullptr; }
  // The block of a slot's head. `exact`: scores of the slot's first entries.
  Block block(const Plane& key, const Plane& value, int64_t s, int64_t h, const BlockIndex& at,
              const ExactScores& exact) const {
    return {at.head,
            key.entry(s, h, at.first),
            value.entry(s, h, at.first),
            key.scale_of(s, h, at.first),
            value.scale_of(s, h, at.first),
            at.entries,
            at.first ? ExactScores{} : exact};
  }
  // Called with the results [heads, queries, width], whose log-sum-exps lack the scores of centers.
  template <typename T>
  void attended(int64_t, T*, float*) const {}
};

template <typename Encoding, typename Entries>
std::tuple<at::Tensor, at::Tensor> attend_entries(const at::Tensor& q, const std::optional<at::Tensor>& k,
                                                  const std::optional<at::Tensor>& v, at::Tensor keys,
                                                  at::Tensor key_scales, at::Tensor values,
                                                  at::Tensor value_scales, const at::Tensor& centers,
                                                  const at::Tensor& slot, const at::Tensor& entry,
                                                  const at::Tensor& live, double scale, Entries entries) {
  const int64_t heads = q.size(1), queries = q.size(2), width = q.size(3);
  TORCH_CHECK(width % kStep == 0, Encoding::name, ": head_dim must be a multiple of ", kStep);
  const auto cq = q.contiguous(), cs = int32(slot), ce = int32(entry), cl = int32(live);
  const RowSlots slots{cs.const_data_ptr<int32_t>(), cl.const_data_ptr<int32_t>(), entries.lengths()};
  const EncodedPlane<Encoding> key(keys, key_scales), value(values, value_scales);
  TORCH_CHECK(centers.stride(2) == 1 && (!k || (k->stride(2) == 1 && v->stride(2) == 1)), Encoding::name,
              ": the elements of a center, a new key and a new value must be contiguous");
  const Centers center(centers, width);
  auto [out, lse] = new_results(cq);
  with_dtype(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    typename Encoding::Queries queries_of_call(q.size(0) * heads, queries, width);
    const int64_t count = q.size(0) * heads;
    std::vector<float> center_scores(count * queries);  // what the center adds to all scores of a query
    std::vector<float> exact_scores(count * queries * center.exact);
    const auto each_head = [&](const auto& run) {
      at::parallel_for(0, count, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = i / heads;
          if (slots.live[row] == 0) continue;
          run(i, Destination{row, slots.slot[row], i % heads, ce.const_data_ptr<int32_t>()[row]}, slots.live[row]);
        }
      });
    };
    const T* every_query = cq.const_data_ptr<T>();
    if constexpr (std::remove_reference_t<Entries>::kSelects)
      entries.choose(each_head, every_query);
    each_head([&](int64_t i, const Destination& to, int64_t live) {
      const float* center_row = center.of(to.slot, to.head);
      if (k) {
        write<typename Encoding::Keys>(key, NewVectors<T>(*k), width, to, center_row);
        write<typename Encoding::Values>(value, NewVectors<T>(*v), width, to, nullptr);
        entries.written(key, to, live, NewVectors<T>(*v).of(to.row, to.head));
      }
      for (int64_t g = 0; g < queries; ++g) {
        const T* query = every_query + (i * queries + g) * width;
        queries_of_call.set(i, g, query);
        center_scores[i * queries + g] = float(scale) * dot(query, center_row, width);
        for (int64_t j = 0; j < center.exact; ++j)
          exact_scores[(i * queries + g) * center.exact + j] =
              float(scale) * dot(query, center_row + (1 + j) * width, width);
      }
    });
    const ExactScores exact{exact_scores.data(), center.exact};
    const auto block_of = [&](const BlockIndex& at) {
      return entries.block(key, value, slots.slot[at.row], at.head % heads, at, exact.from(at.head * queries));
    };
    const auto with = [&](const auto& run) {
      run(Encoding::attention(queries_of_call, queries, width, float(scale)));
    };
    attend_blocks<T>({q.size(0), heads, queries, width}, slots,
                     {out.template data_ptr<T>(), lse.template data_ptr<float>()}, block_of, with,
                     [&](float* sum) { Encoding::finish(sum, width); });
    entries.attended(width, out.template data_ptr<T>(), lse.template data_ptr<float>());
    for (int64_t i = 0; i < count * queries; ++i) lse.template data_ptr<float>()[i] += center_scores[i];
  });
  return {out, lse};
}

template <typename Encoding>
std::tuple<at::Tensor, at::Tensor> attend_encoded(const at::Tensor& q, const std::optional<at::Tensor>& k,
                                                  const std::optional<at::Tensor>& v, at::Tensor keys,
                                                  at::Tensor key_scales, at::Tensor values,
                                                  at::Tensor value_scales, const at::Tensor& centers,
                                                  const at::Tensor& slot, const at::Tensor& entry,
                                                  const at::Tensor& live, double scale) {
  return attend_entries<Encoding>(q, k, v, keys, key_scales, values, value_scales, centers, slot, entry, live, scale,
                                  EveryEntry<Encoding>());
}

}  // namespace
}  // namespace ringkv
