// decode_attend and cache_attend on the CPU: attend to a slot's live entries. See decode_attend.py for shapes.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstring>
#include <tuple>

#include "attend_blocks.h"
#include "block.h"
#include "block_tiles.h"

namespace ringkv {
namespace {

// Calls `run` with the fastest implementation for these shapes.
template <typename T, typename Run>
void with_attention(int64_t queries, int64_t width, float scale, const Holes& holes, const Run& run) {
#if defined(__AMX_BF16__) && defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<T, BF16>)
    if (!holes.entries && BlockTiles::fit(queries, width)) return run(BlockTiles(queries, width, scale));
#endif
  run(BlockRows<T>(queries, width, scale, holes));
}

// Attention of q [rows, heads, queries, width] to the live entries of each row's slot.
template <typename T>
void attend(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values, const RowSlots& slots, double scale,
            const Holes& holes, const Result<T>& to) {
  const int64_t heads = q.size(1), queries = q.size(2), width = q.size(3);
  const T *key = keys.const_data_ptr<T>(), *value = values.const_data_ptr<T>(), *query = q.const_data_ptr<T>();
  const auto block_of = [&](const BlockIndex& index) -> Block<T> {
    const int64_t plane = slots.slot[index.row] * keys.stride(0) + index.head % heads * keys.stride(1);
    const int64_t at = plane + index.first * width;
    return {query + index.head * queries * width, key + at, value + at, index.entries, index.row, index.first};
  };
  const auto with = [&](const auto& run) { with_attention<T>(queries, width, float(scale), holes, run); };
  attend_blocks<T>({q.size(0), heads, queries, width}, slots, to, block_of, with, [](float*) {});
}

void check_planes(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values) {
  TORCH_CHECK(q.size(-1) % kStep == 0, "decode_attend: head_dim must be a multiple of ", kStep);
  TORCH_CHECK(keys.strides() == values.strides() && keys.stride(3) == 1 && keys.stride(2) == keys.size(3),
              "decode_attend: an entry's elements must be contiguous, and entries must follow each other");
}

std::tuple<at::Tensor, at::Tensor> decode_attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                 at::Tensor keys, at::Tensor values, const at::Tensor& slot,
                                                 const at::Tensor& entry, const at::Tensor& live, double scale) {
  check_planes(q, keys, values);
  TORCH_CHECK(k.stride(2) == 1 && v.stride(2) == 1,
              "decode_attend: a new key's and value's elements must be contiguous");
  const auto cq = q.contiguous(), cs = int32(slot), ce = int32(entry), cl = int32(live);
  const RowSlots slots{cs.const_data_ptr<int32_t>(), cl.const_data_ptr<int32_t>()};
  auto [out, lse] = new_results(cq);
  with_dtype(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const NewVectors<T> nk(k), nv(v);
    const int64_t heads = q.size(1), width = q.size(3);
    for (int64_t b = 0; b < q.size(0); ++b)
      for (int64_t h = 0; h < heads && slots.live[b] > 0; ++h) {
        const int64_t plane = slots.slot[b] * keys.stride(0) + h * keys.stride(1);
        const int64_t at = plane + ce.const_data_ptr<int32_t>()[b] * width;
        std::memcpy(keys.data_ptr<T>() + at, nk.at + b * nk.row + h * nk.head, width * sizeof(T));
        std::memcpy(values.data_ptr<T>() + at, nv.at + b * nv.row + h * nv.head, width * sizeof(T));
      }
    attend<T>(cq, keys, values, slots, scale, {}, {out.template data_ptr<T>(), lse.template data_ptr<float>()});
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
  const Holes masked{ch.const_data_ptr<int32_t>(), ch.size(1), q.size(2) / ch.size(1)};
  auto [out, lse] = new_results(cq);
  with_dtype(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    attend<T>(cq, keys, values, slots, scale, masked, {out.template data_ptr<T>(), lse.template data_ptr<float>()});
  });
  return {out, lse};
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) {
  m.impl("decode_attend", &ringkv::decode_attend);
  m.impl("cache_attend", &ringkv::cache_attend);
}
