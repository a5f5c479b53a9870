// Attends to the live entries of slots whose keys and values are plain.

#pragma once

#include <ATen/core/Tensor.h>

#include <cstring>
#include <type_traits>

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

// Attention of q [rows, heads, queries, width] to the live entries of each row's slot. `start` returns the element of
// both planes at which a head begins, for a row and the head among its heads.
template <typename T, typename Start>
void attend_slots(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values, const RowSlots& slots,
                  double scale, const Holes& holes, const Start& start, const Result<T>& to) {
  const int64_t heads = q.size(1), queries = q.size(2), width = q.size(3);
  const T *key = keys.const_data_ptr<T>(), *value = values.const_data_ptr<T>(), *query = q.const_data_ptr<T>();
  const auto block_of = [&](const BlockIndex& index) -> Block<T> {
    const int64_t at = start(index.row, index.head % heads) + index.first * width;
    return {query + index.head * queries * width, key + at, value + at, index.entries, index.row, index.first};
  };
  const auto with = [&](const auto& run) { with_attention<T>(queries, width, float(scale), holes, run); };
  attend_blocks<T>({q.size(0), heads, queries, width}, slots, to, block_of, with, [](float*) {});
}

inline void check_planes(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values) {
  TORCH_CHECK(q.size(-1) % kStep == 0, "decode_attend: head_dim must be a multiple of ", kStep);
  TORCH_CHECK(keys.strides() == values.strides() && keys.stride(3) == 1 && keys.stride(2) == keys.size(3),
              "decode_attend: an entry's elements must be contiguous, and entries must follow each other");
}

inline void check_new(const at::Tensor& k, const at::Tensor& v) {
  TORCH_CHECK(k.stride(2) == 1 && v.stride(2) == 1,
              "decode_attend: a new key's and value's elements must be contiguous");
}

// Writes the new key and value of a row's head at an element of both planes.
template <typename T>
void write_new(const NewVectors<T>& k, const NewVectors<T>& v, int64_t row, int64_t head, int64_t width, T* key,
               T* value) {
  std::memcpy(key, k.of(row, head), width * sizeof(T));
  std::memcpy(value, v.of(row, head), width * sizeof(T));
}

}  // namespace
}  // namespace ringkv
