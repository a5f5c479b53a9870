// decode_attend and cache_attend on the CPU: attend to a slot's live entries. See decode_attend.py for shapes.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstring>
#include <tuple>

#include "attend_slots.h"

namespace ringkv {
namespace {

// Where each head of each row begins, in elements of a plane [slots, heads, entries, width].
struct HeadStart {
  const int32_t* slot;
  int64_t of_slot, of_head;
  int64_t operator()(int64_t row, int64_t head) const { return slot[row] * of_slot + head * of_head; }
};

std::tuple<at::Tensor, at::Tensor> decode_attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                 at::Tensor keys, at::Tensor values, const at::Tensor& slot,
                                                 const at::Tensor& entry, const at::Tensor& live, double scale) {
  check_planes(q, keys, values);
  check_new(k, v);
  const auto cq = q.contiguous(), cs = int32(slot), ce = int32(entry), cl = int32(live);
  const RowSlots slots{cs.const_data_ptr<int32_t>(), cl.const_data_ptr<int32_t>()};
  const HeadStart start{slots.slot, keys.stride(0), keys.stride(1)};
  auto [out, lse] = new_results(cq);
  with_dtype(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const NewVectors<T> nk(k), nv(v);
    const int64_t heads = q.size(1), width = q.size(3);
    T *key = keys.data_ptr<T>(), *value = values.data_ptr<T>();
    for (int64_t b = 0; b < q.size(0); ++b)
      for (int64_t h = 0; h < heads && slots.live[b] > 0; ++h) {
        const int64_t at = start(b, h) + ce.const_data_ptr<int32_t>()[b] * width;
        write_new(nk, nv, b, h, width, key + at, value + at);
      }
    const Result<T> to{out.template data_ptr<T>(), lse.template data_ptr<float>()};
    attend_slots<T>(cq, keys, values, slots, scale, {}, start, to);
  });
  return {out, lse};
}

std::tuple<at::Tensor, at::Tensor> cache_attend(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                                const at::Tensor& slot, const at::Tensor& holes, const at::Tensor& live,
                                                double scale) {
  check_planes(q, keys, values);
  TORCH_CHECK(q.size(2) % holes.size(1) == 0, "cache_attend: as many queries for each hole expected");
  const auto cq = q.contiguous(), cs = int32(slot), ch = int32(holes), cl = int32(live);
  const RowSlots slots{cs.const_data_ptr<int32_t>(), cl.const_data_ptr<int32_t>()};
  const HeadStart start{slots.slot, keys.stride(0), keys.stride(1)};
  const Holes masked{ch.const_data_ptr<int32_t>(), ch.size(1), q.size(2) / ch.size(1)};
  auto [out, lse] = new_results(cq);
  with_dtype(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Result<T> to{out.template data_ptr<T>(), lse.template data_ptr<float>()};
    attend_slots<T>(cq, keys, values, slots, scale, masked, start, to);
  });
  return {out, lse};
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) {
  m.impl("decode_attend", &ringkv::decode_attend);
  m.impl("cache_attend", &ringkv::cache_attend);
}
