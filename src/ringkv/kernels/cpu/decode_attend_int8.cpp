// decode_attend_int8 on the CPU: attend to a slot's live int8 entries. See decode_attend_int8.py for shapes.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstring>
#include <tuple>
#include <vector>

#include "attend_blocks.h"
#include "block_int8.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {
namespace {

// A plane of a cache [slots, heads, entries, width], and its scales [slots, heads, entries].
struct PlaneInt8 {
  PlaneInt8(const at::Tensor& plane, const at::Tensor& scales)
      : at(plane.data_ptr<int8_t>()), scale(scales.data_ptr<float>()), slot(plane.stride(0)), head(plane.stride(1)),
        slot_scales(scales.stride(0)), head_scales(scales.stride(1)), width(plane.size(3)) {
    TORCH_CHECK(plane.stride(3) == 1 && plane.stride(2) == width && scales.stride(2) == 1,
                "decode_attend_int8: an entry's elements must be contiguous, and entries must follow each other");
  }
  int8_t* entry(int64_t s, int64_t h, int64_t e) const { return at + s * slot + h * head + e * width; }
  float* scale_of(int64_t s, int64_t h, int64_t e) const { return scale + s * slot_scales + h * head_scales + e; }

  int8_t* at;
  float* scale;
  int64_t slot, head, slot_scales, head_scales, width;
};

// The centers that are subtracted from a slot's keys, [slots, heads, width].
struct Centers {
  explicit Centers(const at::Tensor& x) : at(x.const_data_ptr<float>()), slot(x.stride(0)), head(x.stride(1)) {}
  const float* of(int64_t s, int64_t h) const { return at + s * slot + h * head; }

  const float* at;
  int64_t slot, head;
};

// Quantises and writes each row's new vector, minus its center if there are centers.
template <typename T>
void write(const PlaneInt8& plane, const Centers* centers, const at::Tensor& vectors, const RowSlots& slots,
           const int32_t* entry) {
  TORCH_CHECK(vectors.stride(2) == 1, "decode_attend_int8: a new key's and value's elements must be contiguous");
  const NewVectors<T> from(vectors);
  for (int64_t b = 0; b < vectors.size(0); ++b)
    for (int64_t h = 0; h < vectors.size(1) && slots.live[b] > 0; ++h) {
      const int64_t s = slots.slot[b];
      *plane.scale_of(s, h, entry[b]) = quantize(from.at + b * from.row + h * from.head, plane.width,
                                                 plane.entry(s, h, entry[b]), centers ? centers->of(s, h) : nullptr);
    }
}

std::tuple<at::Tensor, at::Tensor> decode_attend_int8(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                      at::Tensor keys, at::Tensor key_scales, at::Tensor values,
                                                      at::Tensor value_scales, const at::Tensor& centers,
                                                      const at::Tensor& slot, const at::Tensor& entry,
                                                      const at::Tensor& live, double scale) {
  const int64_t heads = q.size(1), queries = q.size(2), width = q.size(3);
  TORCH_CHECK(width % kStep == 0, "decode_attend_int8: head_dim must be a multiple of ", kStep);
  const auto cq = q.contiguous(), cs = int32(slot), ce = int32(entry), cl = int32(live);
  const RowSlots slots{cs.const_data_ptr<int32_t>(), cl.const_data_ptr<int32_t>()};
  const PlaneInt8 key(keys, key_scales), value(values, value_scales);
  TORCH_CHECK(centers.stride(2) == 1, "decode_attend_int8: a center's elements must be contiguous");
  const Centers center(centers);
  auto [out, lse] = new_results(cq);
  with_dtype(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    write<T>(key, &center, k, slots, ce.const_data_ptr<int32_t>());
    write<T>(value, nullptr, v, slots, ce.const_data_ptr<int32_t>());
    Queries queries_of_call(q.size(0) * heads, queries, width);
    const int64_t count = q.size(0) * heads * queries;
    std::vector<float> center_scores(count);  // what the center adds to all scores of a query
    at::parallel_for(0, count, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / queries;
        const T* query = cq.const_data_ptr<T>() + i * width;
        const float* center_row = center.of(slots.slot[head / heads], head % heads);
        queries_of_call.set(head, i % queries, query);
        for (int64_t d = 0; d < width; ++d) center_scores[i] += float(scale) * float(query[d]) * center_row[d];
      }
    });
    const auto block_of = [&](const BlockIndex& at) -> BlockInt8 {
      const int64_t s = slots.slot[at.row], h = at.head % heads;
      return {at.head,
              key.entry(s, h, at.first),
              value.entry(s, h, at.first),
              key.scale_of(s, h, at.first),
              value.scale_of(s, h, at.first),
              at.entries};
    };
    const auto with = [&](const auto& run) { run(BlockRowsInt8(queries_of_call, queries, width, float(scale))); };
    attend_blocks<T>({q.size(0), heads, queries, width}, slots,
                     {out.template data_ptr<T>(), lse.template data_ptr<float>()}, block_of, with,
                     [&](float* sum) { rotate(sum, width); });
    for (int64_t i = 0; i < count; ++i) lse.template data_ptr<float>()[i] += center_scores[i];
  });
  return {out, lse};
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("decode_attend_int8", &ringkv::decode_attend_int8); }

#endif
