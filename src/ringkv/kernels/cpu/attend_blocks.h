// One attention call in blocks: whatever a cache stores, the work is divided and merged in the same way.
//
// One parallel region per call. A task is one block of one key-value head of one slot. Whoever ends a head's last block
// merges all of its blocks, in order: what a slot computes depends on nothing but its own length, so neighbours and the
// number of threads cannot change its result, and a free slot costs nothing.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include "block.h"

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
// `finish` changes the sum of a query's values, [width].
template <typename T, typename Finish>
void merge_blocks(const float* outs, const float* tops, const float* sums, int64_t blocks, int64_t groups,
                  int64_t width, const Result<T>& to, const Finish& finish) {
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
    finish(total.data());
    to.lse[g] = sum == 0.f ? -std::numeric_limits<float>::infinity() : top + std::log(sum);
    if (sum == 0.f) sum = 1.f;
    for (int64_t d = 0; d < width; ++d) to.out[g * width + d] = static_cast<T>(total[d] / sum);
  }
}

// One head of one row, and which of its slot's entries a block holds
struct Place {
  int64_t head, row, part, first, entries;  // the head counts on through the rows
};

// How many queries a call has: `heads` of each of the rows, `queries` of each head
struct Extent {
  int64_t rows, heads, queries, width;
};

// Attention to the live entries of each row's slot. `block_of` gives what a unit reads of a place; `with_unit` calls its
// argument with a unit: `begin` takes the first block of a run, `attend` a block and the one after it. `finish`: see
// `merge_blocks`.
template <typename T, typename BlockOf, typename WithUnit, typename Finish>
void attend_blocks(const Extent& extent, const Where& where, const Result<T>& to, const BlockOf& block_of,
                   const WithUnit& with_unit, const Finish& finish) {
  const auto [rows, heads, queries, width] = extent;
  const int64_t all = rows * heads, size = queries * width;
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
    const auto block = [&](int64_t i) {
      const auto [head, part] = tasks[i];
      const int64_t row = head / heads, from = part * kBlock;
      return block_of(Place{head, row, part, from, std::min<int64_t>(kBlock, where.live[row] - from)});
    };
    const auto run = [&](auto&& unit) {
      auto now = block(begin);
      unit.begin(now);
      for (int64_t i = begin; i < end; ++i) {
        const auto next = i + 1 < end ? block(i + 1) : now.none();
        unit.attend(now, next, {outs + i * size, tops + i * queries, sums + i * queries});
        now = next;
        const int32_t head = tasks[i].head;
        if (left[head].fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
        const int64_t from = first[head];
        merge_blocks<T>(outs + from * size, tops + from * queries, sums + from * queries, first[head + 1] - from,
                        queries, width, {to.out + head * size, to.lse + head * queries}, finish);
      }
    };
    with_unit(run);
  });
}

template <typename Run>
void with_type(at::ScalarType type, const Run& run) {
  if (type == at::kBFloat16) return run(at::BFloat16{});
  if (type == at::kHalf) return run(at::Half{});
  run(float{});
}

inline at::Tensor int32(const at::Tensor& x) {
  TORCH_CHECK(x.scalar_type() == at::kInt, "decode_attend: int32 expected");
  return x.contiguous();
}

inline std::tuple<at::Tensor, at::Tensor> results(const at::Tensor& q) {
  return {at::empty(q.sizes(), q.options()), at::empty(q.sizes().slice(0, 3), q.options().dtype(at::kFloat))};
}

}  // namespace
}  // namespace ringkv
