// decode_attend and cache_attend on the CPU: attend to a slot's live entries. See decode_attend.py for shapes.
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
#include <tuple>
#include <vector>

#include "block.h"
#include "block_tiles.h"

namespace ringkv {
namespace {

struct Task {
  int32_t head, block;  // the head counts on through the slots
};

// New keys or values, [rows, heads, width], each head's elements contiguous
template <typename T>
struct New {
  explicit New(const at::Tensor& x) : at(x.const_data_ptr<T>()), row(x.stride(0)), head(x.stride(1)) {}
  const T* at;
  int64_t row, head;
};

// Where each row of the batch stands, int32 [rows]: its slot, and how many of the slot's entries are live
struct Where {
  const int32_t *slot, *live;
};

// What is left: outputs [rows, heads, queries, width], and each query's log-sum-exp [rows, heads, queries]
template <typename T>
struct Result {
  T* out;
  float* lse;
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

// The blocks of one head, in order: each query's partial softmaxes become one. One that sees no entry gives 0 and -inf.
template <typename T>
void merge_blocks(const float* outs, const float* tops, const float* sums, int64_t blocks, int64_t groups,
                  int64_t width, const Result<T>& to) {
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
    to.lse[g] = sum == 0.f ? -std::numeric_limits<float>::infinity() : top + std::log(sum);
    if (sum == 0.f) sum = 1.f;
    for (int64_t d = 0; d < width; ++d) to.out[g * width + d] = static_cast<T>(total[d] / sum);
  }
}

// Calls `run` with the unit that fits these shapes best.
template <typename T, typename Run>
void with_unit(int64_t queries, int64_t width, float scale, const Holes& holes, const Run& run) {
#if defined(__AMX_BF16__) && defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<T, Half16>)
    if (!holes.entries && BlockTiles::fit(queries, width)) return run(BlockTiles(queries, width, scale));
#endif
  run(BlockRows<T>(queries, width, scale, holes));
}

// Attention of q [rows, heads, queries, width] to the live entries of each row's slot.
template <typename T>
void attend(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values, const Where& where, double scale,
            const Holes& holes, const Result<T>& to) {
  const int64_t heads = q.size(1), queries = q.size(2), width = q.size(3), all = q.size(0) * heads;
  const int64_t size = queries * width;
  const T *key = keys.const_data_ptr<T>(), *value = values.const_data_ptr<T>(), *query = q.const_data_ptr<T>();
  const auto plane = [&](int64_t here) {
    return where.slot[here / heads] * keys.stride(0) + here % heads * keys.stride(1);
  };

  auto& space = Workspace::mine();
  space.reserve(all);
  for (int64_t here = 0; here < all; ++here) {
    const int64_t blocks = (where.live[here / heads] + kBlock - 1) / kBlock;
    for (int64_t i = 0; i < blocks; ++i) space.tasks.push_back({int32_t(here), int32_t(i)});
    space.first[here + 1] = int64_t(space.tasks.size());
    space.left[here].store(int32_t(blocks), std::memory_order_relaxed);
    if (blocks > 0) continue;
    std::fill_n(to.out + here * size, size, T(0));
    std::fill_n(to.lse + here * queries, queries, -std::numeric_limits<float>::infinity());
  }

  const int64_t count = int64_t(space.tasks.size());
  space.partial.resize(std::max<int64_t>(space.partial.size(), count * (size + 2 * queries)));
  float* outs = space.partial.data();
  float* tops = outs + count * size;
  float* sums = tops + count * queries;
  const auto& tasks = space.tasks;
  const auto& first = space.first;
  auto* left = space.left.get();

  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    const auto block = [&](int64_t i) -> Block<T> {
      const auto [head, part] = tasks[i];
      const int64_t row = head / heads, from = part * kBlock, at = plane(head) + from * width;
      return {query + head * size, key + at, value + at, std::min<int64_t>(kBlock, where.live[row] - from), row, from};
    };
    const auto run = [&](auto&& unit) {
      Block<T> now = block(begin);
      unit.begin(now);
      for (int64_t i = begin; i < end; ++i) {
        const Block<T> none{now.query, now.key, now.value, 0, 0, 0}, next = i + 1 < end ? block(i + 1) : none;
        unit.attend(now, next, {outs + i * size, tops + i * queries, sums + i * queries});
        now = next;
        const int32_t head = tasks[i].head;
        if (left[head].fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
        const int64_t from = first[head];
        merge_blocks<T>(outs + from * size, tops + from * queries, sums + from * queries, first[head + 1] - from,
                        queries, width, {to.out + head * size, to.lse + head * queries});
      }
    };
    with_unit<T>(queries, width, float(scale), holes, run);
  });
}

template <typename Run>
void with_type(at::ScalarType type, const Run& run) {
  if (type == at::kBFloat16) return run(at::BFloat16{});
  if (type == at::kHalf) return run(at::Half{});
  run(float{});
}

void check_planes(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values) {
  TORCH_CHECK(q.size(-1) % kStep == 0, "decode_attend: head_dim must be a multiple of ", kStep);
  TORCH_CHECK(keys.strides() == values.strides() && keys.stride(3) == 1 && keys.stride(2) == keys.size(3),
              "decode_attend: an entry's elements must be contiguous, and entries must follow each other");
}

at::Tensor int32(const at::Tensor& x) {
  TORCH_CHECK(x.scalar_type() == at::kInt, "decode_attend: int32 expected");
  return x.contiguous();
}

std::tuple<at::Tensor, at::Tensor> results(const at::Tensor& q) {
  return {at::empty(q.sizes(), q.options()), at::empty(q.sizes().slice(0, 3), q.options().dtype(at::kFloat))};
}

std::tuple<at::Tensor, at::Tensor> decode_attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                 at::Tensor keys, at::Tensor values, const at::Tensor& slot,
                                                 const at::Tensor& entry, const at::Tensor& live, double scale) {
  check_planes(q, keys, values);
  TORCH_CHECK(k.stride(2) == 1 && v.stride(2) == 1, "decode_attend: a new key's and value's elements must be contiguous");
  const auto cq = q.contiguous(), cs = int32(slot), ce = int32(entry), cl = int32(live);
  const Where where{cs.const_data_ptr<int32_t>(), cl.const_data_ptr<int32_t>()};
  auto [out, lse] = results(cq);
  with_type(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const New<T> nk(k), nv(v);
    const int64_t heads = q.size(1), width = q.size(3);
    for (int64_t b = 0; b < q.size(0); ++b)
      for (int64_t h = 0; h < heads && where.live[b] > 0; ++h) {
        const int64_t at = where.slot[b] * keys.stride(0) + h * keys.stride(1) + ce.const_data_ptr<int32_t>()[b] * width;
        std::memcpy(keys.data_ptr<T>() + at, nk.at + b * nk.row + h * nk.head, width * sizeof(T));
        std::memcpy(values.data_ptr<T>() + at, nv.at + b * nv.row + h * nv.head, width * sizeof(T));
      }
    attend<T>(cq, keys, values, where, scale, {}, {out.template data_ptr<T>(), lse.template data_ptr<float>()});
  });
  return {out, lse};
}

std::tuple<at::Tensor, at::Tensor> cache_attend(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                                const at::Tensor& slot, const at::Tensor& holes, const at::Tensor& live,
                                                double scale) {
  check_planes(q, keys, values);
  TORCH_CHECK(q.size(2) % holes.size(1) == 0, "cache_attend: as many queries for each hole expected");
  const auto cq = q.contiguous(), cs = int32(slot), ch = int32(holes), cl = int32(live);
  const Where where{cs.const_data_ptr<int32_t>(), cl.const_data_ptr<int32_t>()};
  const Holes hidden{ch.const_data_ptr<int32_t>(), ch.size(1), q.size(2) / ch.size(1)};
  auto [out, lse] = results(cq);
  with_type(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    attend<T>(cq, keys, values, where, scale, hidden, {out.template data_ptr<T>(), lse.template data_ptr<float>()});
  });
  return {out, lse};
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) {
  m.impl("decode_attend", &ringkv::decode_attend);
  m.impl("cache_attend", &ringkv::cache_attend);
}
