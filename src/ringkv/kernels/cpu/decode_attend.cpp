// decode_attend on the CPU: write one token per slot, attend to its live entries. See decode_attend.py for shapes.
//
// One parallel region per call. A task is one block of one key-value head of one slot, and the blocks of a slot are
// merged in order: what a slot computes depends on nothing but its own length, so neighbours and the number of threads
// cannot change its result, and a free slot costs nothing.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "block.h"
#include "block_tiles.h"

namespace ringkv {
namespace {

struct Task {
  int32_t slot, head, block;
};

// The blocks of one head, in order: each query head's partial softmaxes become one.
template <typename T>
void merge_blocks(const float* outs, const float* tops, const float* sums, int64_t blocks, int64_t groups,
                  int64_t width, T* result) {
  std::vector<float> total(width);
  for (int64_t g = 0; g < groups; ++g) {
    float top = -std::numeric_limits<float>::infinity(), sum = 0.f;
    for (int64_t i = 0; i < blocks; ++i) top = std::max(top, tops[i * groups + g]);
    std::fill(total.begin(), total.end(), 0.f);
    for (int64_t i = 0; i < blocks; ++i) {
      const float scale = std::exp(tops[i * groups + g] - top);
      sum += scale * sums[i * groups + g];
      at::vec::map2<float>([scale](Vec a, Vec b) { return at::vec::fmadd(Vec(scale), b, a); }, total.data(),
                           total.data(), outs + (i * groups + g) * width, width);
    }
    for (int64_t d = 0; d < width; ++d) result[g * width + d] = static_cast<T>(total[d] / sum);
  }
}

// Calls `run` with a block's attention on the unit that fits these numbers best.
template <typename T, typename Run>
void with_unit(int64_t groups, int64_t width, float scale, const Run& run) {
#if defined(__AMX_BF16__) && defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<T, Half16>)
    if (BlockTiles::fit(groups, width)) {
      BlockTiles tiles(groups, width);
      return run([&](const T* q, const T* key, const T* value, int64_t entries, float* out, float* top, float* sum) {
        tiles.attend(q, key, value, entries, scale, out, top, sum);
      });
    }
#endif
  run([&](const T* q, const T* key, const T* value, int64_t entries, float* out, float* top, float* sum) {
    attend_block<T>(q, key, value, entries, groups, width, scale, out, top, sum);
  });
}

template <typename T>
void decode(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::Tensor& keys, at::Tensor& values,
            const int32_t* entry, const int32_t* live, at::Tensor& out) {
  const int64_t slots = q.size(0), heads = q.size(1), groups = q.size(2), width = q.size(3);
  const int64_t slot_stride = keys.stride(0), head_stride = keys.stride(1), rows = groups * width;
  T* key = keys.data_ptr<T>();
  T* value = values.data_ptr<T>();

  std::vector<Task> tasks;
  std::vector<int64_t> first(slots * heads + 1, 0);  // of each head's tasks
  for (int64_t b = 0; b < slots; ++b)
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t blocks = (live[b] + kBlock - 1) / kBlock, here = b * heads + h;
      for (int64_t i = 0; i < blocks; ++i) tasks.push_back({int32_t(b), int32_t(h), int32_t(i)});
      first[here + 1] = int64_t(tasks.size());
      if (live[b] == 0) continue;
      const int64_t at = b * slot_stride + h * head_stride + entry[b] * width;
      std::memcpy(key + at, k.data_ptr<T>() + here * width, width * sizeof(T));
      std::memcpy(value + at, v.data_ptr<T>() + here * width, width * sizeof(T));
    }

  const int64_t count = int64_t(tasks.size());
  static thread_local std::vector<float> scratch;  // grows to the largest step seen, then never again
  scratch.resize(std::max<int64_t>(scratch.size(), count * (rows + 2 * groups)));
  float* outs = scratch.data();
  float* tops = outs + count * rows;
  float* sums = tops + count * groups;
  const T* query = q.data_ptr<T>();
  const float scale = 1.f / std::sqrt(float(width));

  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    const auto run = [&](auto&& attend) {
      for (int64_t i = begin; i < end; ++i) {
        const auto [b, h, block] = tasks[i];
        const int64_t from = block * kBlock, at = b * slot_stride + h * head_stride + from * width;
        attend(query + (b * heads + h) * rows, key + at, value + at, std::min<int64_t>(kBlock, live[b] - from),
               outs + i * rows, tops + i * groups, sums + i * groups);
      }
    };
    with_unit<T>(groups, width, scale, run);
  });

  T* result = out.data_ptr<T>();
  for (int64_t i = 0; i < slots * heads; ++i) {
    const int64_t from = first[i], blocks = first[i + 1] - from;
    if (blocks == 0)
      std::fill(result + i * rows, result + (i + 1) * rows, T(0));
    else
      merge_blocks<T>(outs + from * rows, tops + from * groups, sums + from * groups, blocks, groups, width,
                      result + i * rows);
  }
}

at::Tensor decode_attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::Tensor keys,
                         at::Tensor values, const at::Tensor& entry, const at::Tensor& live) {
  TORCH_CHECK(q.size(3) % kStep == 0, "decode_attend: head_dim must be a multiple of ", kStep);
  TORCH_CHECK(keys.strides() == values.strides() && keys.stride(3) == 1 && keys.stride(2) == keys.size(3),
              "decode_attend: an entry's numbers must be contiguous, and entries must follow each other");
  TORCH_CHECK(entry.scalar_type() == at::kInt && live.scalar_type() == at::kInt, "decode_attend: int32 expected");
  const auto cq = q.contiguous(), ck = k.contiguous(), cv = v.contiguous();
  const auto ce = entry.contiguous(), cl = live.contiguous();
  auto out = at::empty(q.sizes(), q.options());
  const auto run = [&](auto zero) {
    decode<decltype(zero)>(cq, ck, cv, keys, values, ce.data_ptr<int32_t>(), cl.data_ptr<int32_t>(), out);
  };
  if (q.scalar_type() == at::kBFloat16)
    run(at::BFloat16{});
  else if (q.scalar_type() == at::kHalf)
    run(at::Half{});
  else
    run(float{});
  return out;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("decode_attend", &ringkv::decode_attend); }
