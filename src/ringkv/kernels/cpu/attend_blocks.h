// Divides an attention call into blocks and merges them, for every encoding.
//
// Each call has one parallel region. A task is one block of one key-value head of one row. The thread that finishes a
// head's last block merges all of its blocks, in order. So a slot's result depends only on its own length, not on its
// neighbours or on the number of threads, and a free slot costs nothing.

#pragma once

#include "block.h"
#include "decode_step.h"

namespace ringkv {
namespace {

struct BlockTask {
  int32_t head, block;  // head: row * heads + head
};

// Workspace of the calling thread. It grows to the largest step so far and never shrinks.
struct Workspace {
  std::vector<BlockTask> tasks;
  std::vector<int64_t> first;  // index of each head's first task
  std::vector<float> partial;
  std::unique_ptr<std::atomic<int32_t>[]> pending;  // unfinished blocks of each head
  int64_t heads = 0;

  void reserve(int64_t count) {
    tasks.clear();
    first.assign(count + 1, 0);
    if (count > heads) pending = std::make_unique<std::atomic<int32_t>[]>(heads = count);
  }
  static Workspace& of_thread() {
    static thread_local Workspace workspace;
    return workspace;
  }
};

// Merges the partial softmaxes of one head's blocks, in order. A query that sees no entry gets out 0 and lse -inf.
// `finish` transforms a query's weighted sum of values [width] in place.
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

// Attends to the blocks of each head of each row: `blocks_of` returns how many a head has, and `block_of` the input of one
// of them. `with_attention` calls its argument with an implementation, whose `begin` receives the first block of a run,
// and `attend` a block and the next one. `finish`: see `merge_blocks`. `merged` is called after a head's blocks are merged.
template <typename T, typename BlocksOf, typename BlockOf, typename WithAttention, typename Finish, typename Merged>
void attend_blocks(const QueryShape& shape, const Result<T>& to, const BlocksOf& blocks_of, const BlockOf& block_of,
                   const WithAttention& with_attention, const Finish& finish, const Merged& merged) {
  const auto [rows, heads, queries, width] = shape;
  const int64_t all = rows * heads, size = queries * width;
  auto& space = Workspace::of_thread();
  space.reserve(all);
  for (int64_t head = 0; head < all; ++head) {
    const int64_t blocks = blocks_of(head);
    for (int64_t i = 0; i < blocks; ++i) space.tasks.push_back({int32_t(head), int32_t(i)});
    space.first[head + 1] = int64_t(space.tasks.size());
    space.pending[head].store(int32_t(blocks), std::memory_order_relaxed);
    if (blocks == 0) clear<T>({to.out + head * size, to.lse + head * queries}, queries, width);
  }

  const int64_t count = int64_t(space.tasks.size());
  space.partial.resize(std::max<int64_t>(space.partial.size(), count * (size + 2 * queries)));
  float* outs = space.partial.data();
  float* tops = outs + count * size;
  float* sums = tops + count * queries;
  const auto& tasks = space.tasks;
  const auto& first = space.first;
  auto* pending = space.pending.get();

  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    const auto block = [&](int64_t i) { return block_of(tasks[i].head, tasks[i].block); };
    const auto run = [&](auto&& attention) {
      auto now = block(begin);
      attention.begin(now);
      for (int64_t i = begin; i < end; ++i) {
        const auto next = i + 1 < end ? block(i + 1) : now.end_of_run();
        attention.attend(now, next, {outs + i * size, tops + i * queries, sums + i * queries});
        now = next;
        const int32_t head = tasks[i].head;
        if (pending[head].fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
        const int64_t from = first[head];
        merge_blocks<T>(outs + from * size, tops + from * queries, sums + from * queries, first[head + 1] - from,
                        queries, width, {to.out + head * size, to.lse + head * queries}, finish);
        merged(head);
      }
    };
    with_attention(run);
  });
}

}  // namespace
}  // namespace ringkv
