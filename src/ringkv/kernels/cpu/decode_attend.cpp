// decode_attend on the CPU: write one token per slot, attend to its live entries. See decode_attend.py for shapes.
//
// One parallel region per call. A task is one block of one key-value head of one slot. Whoever ends a head's last block
// merges all of its blocks, in order: what a slot computes depends on nothing but its own length, so neighbours and the
// number of threads cannot change its result, and a free slot costs nothing.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "block.h"
#include "block_tiles.h"

namespace ringkv {
namespace {

struct Task {
  int32_t head, block;  // the head counts on through the slots
};

// New keys or values, [slots, heads, width], each head's numbers contiguous
template <typename T>
struct New {
  explicit New(const at::Tensor& x) : at(x.const_data_ptr<T>()), slot(x.stride(0)), head(x.stride(1)) {}
  const T* at;
  int64_t slot, head;
};

// Working memory of the thread that calls: grows to the largest step seen, then never again
struct Workspace {
  std::vector<Task> tasks;
  std::vector<int64_t> first;  // of each head's tasks
  std::vector<float> partial;
  std::unique_ptr<std::atomic<int32_t>[]> left;  // blocks that a head waits for
  int64_t heads = 0;

  void reserve(int64_t count) {
    tasks.clear();
    first.assign(count + 1, 0);
    if (count > heads) left = std::make_unique<std::atomic<int32_t>[]>(heads = count);
  }
  static Workspace& mine() {
    static thread_local Workspace kept;
    return kept;
  }
};

// The blocks of one head, in order: each query head's partial softmaxes become one.
template <typename T>
void merge_blocks(const float* outs, const float* tops, const float* sums, int64_t blocks, int64_t groups,
                  int64_t width, T* result) {
  static thread_local std::vector<float> total;
  total.resize(width);
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

// Calls `run` with the unit that fits these numbers best.
template <typename T, typename Run>
void with_unit(int64_t groups, int64_t width, float scale, const Run& run) {
#if defined(__AMX_BF16__) && defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<T, Half16>)
    if (BlockTiles::fit(groups, width)) return run(BlockTiles(groups, width, scale));
#endif
  run(BlockRows<T>(groups, width, scale));
}

template <typename T>
void decode(const at::Tensor& q, const New<T>& k, const New<T>& v, at::Tensor& keys, at::Tensor& values,
            const int32_t* entry, const int32_t* live, at::Tensor& out) {
  const int64_t slots = q.size(0), heads = q.size(1), groups = q.size(2), width = q.size(3), rows = groups * width;
  T *key = keys.data_ptr<T>(), *value = values.data_ptr<T>(), *result = out.data_ptr<T>();
  const auto plane = [&](int64_t here) { return here / heads * keys.stride(0) + here % heads * keys.stride(1); };

  auto& space = Workspace::mine();
  space.reserve(slots * heads);
  for (int64_t here = 0; here < slots * heads; ++here) {
    const int64_t b = here / heads, h = here % heads, blocks = (live[b] + kBlock - 1) / kBlock;
    for (int64_t i = 0; i < blocks; ++i) space.tasks.push_back({int32_t(here), int32_t(i)});
    space.first[here + 1] = int64_t(space.tasks.size());
    space.left[here].store(int32_t(blocks), std::memory_order_relaxed);
    if (blocks == 0) {
      std::fill_n(result + here * rows, rows, T(0));
      continue;
    }
    const int64_t at = plane(here) + entry[b] * width;
    std::memcpy(key + at, k.at + b * k.slot + h * k.head, width * sizeof(T));
    std::memcpy(value + at, v.at + b * v.slot + h * v.head, width * sizeof(T));
  }

  const int64_t count = int64_t(space.tasks.size());
  space.partial.resize(std::max<int64_t>(space.partial.size(), count * (rows + 2 * groups)));
  float* outs = space.partial.data();
  float* tops = outs + count * rows;
  float* sums = tops + count * groups;
  const T* query = q.const_data_ptr<T>();
  const auto& tasks = space.tasks;
  const auto& first = space.first;
  auto* left = space.left.get();

  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    const auto block = [&](int64_t i) -> Block<T> {
      const auto [head, part] = tasks[i];
      const int64_t at = plane(head) + part * kBlock * width;
      return {query + head * rows, key + at, value + at, std::min<int64_t>(kBlock, live[head / heads] - part * kBlock)};
    };
    const auto run = [&](auto&& unit) {
      Block<T> now = block(begin);
      unit.begin(now);
      for (int64_t i = begin; i < end; ++i) {
        const Block<T> none{now.query, now.key, now.value, 0}, next = i + 1 < end ? block(i + 1) : none;
        unit.attend(now, next, {outs + i * rows, tops + i * groups, sums + i * groups});
        now = next;
        const int32_t head = tasks[i].head;
        if (left[head].fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
        const int64_t from = first[head];
        merge_blocks<T>(outs + from * rows, tops + from * groups, sums + from * groups, first[head + 1] - from, groups,
                        width, result + head * rows);
      }
    };
    with_unit<T>(groups, width, 1.f / std::sqrt(float(width)), run);
  });
}

at::Tensor decode_attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::Tensor keys,
                         at::Tensor values, const at::Tensor& entry, const at::Tensor& live) {
  TORCH_CHECK(q.size(3) % kStep == 0, "decode_attend: head_dim must be a multiple of ", kStep);
  TORCH_CHECK(keys.strides() == values.strides() && keys.stride(3) == 1 && keys.stride(2) == keys.size(3),
              "decode_attend: an entry's numbers must be contiguous, and entries must follow each other");
  TORCH_CHECK(k.stride(2) == 1 && v.stride(2) == 1, "decode_attend: a new key's and value's numbers must be contiguous");
  TORCH_CHECK(entry.scalar_type() == at::kInt && live.scalar_type() == at::kInt, "decode_attend: int32 expected");
  const auto cq = q.contiguous(), ce = entry.contiguous(), cl = live.contiguous();
  auto out = at::empty(q.sizes(), q.options());
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    decode<T>(cq, New<T>(k), New<T>(v), keys, values, ce.const_data_ptr<int32_t>(), cl.const_data_ptr<int32_t>(), out);
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
