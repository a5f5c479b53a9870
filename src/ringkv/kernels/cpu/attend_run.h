// Several tokens of each slot in one step, with the bits of as many steps.
//
// Each token attends to what those before it wrote. But most of a slot's entries are the same for all of them. So only the
// blocks that a token writes to, or of which tokens see different numbers of entries, are attended to token by token. Each
// other block is read once, for the queries of all tokens. Then the blocks of each query are merged in order.

#pragma once

#include "attend_blocks.h"
#include "entries.h"

namespace ringkv {
namespace {

// R rows of `tokens` tokens, with `queries` queries for each of H heads. The queries and the results of the step are
// [R * H * tokens, 1, queries, width], its numbers [R] and [R, tokens].
struct RunShape {
  int64_t rows, heads, tokens, queries, width;

  int64_t all_heads() const { return rows * heads; }
  int64_t all_queries() const { return tokens * queries; }
};

template <typename T, typename Stored>
class AttendRun {
 public:
  AttendRun(const Step<T>& step, Stored& stored, const RunShape& shape)
      : step_(step), stored_(stored), shape_(shape), blocks_(shape.rows), first_(shape.all_heads() + 1),
        is_shared_(shape.rows) {
    for (int64_t row = 0; row < shape.rows; ++row) divide(row);
    for (int64_t head = 0; head < shape.all_heads(); ++head)
      first_[head + 1] = first_[head] + blocks_[head / shape.heads];
    const int64_t count = first_.back(), queries = shape.all_queries();
    static thread_local std::vector<float> memory;
    outs_ = workspace(memory, count * queries * (shape.width + 2));
    tops_ = outs_ + count * queries * shape.width;
    sums_ = tops_ + count * queries;
  }

  void attend() {
    attend_in_turn();
    attend_together();
    merge();
    stored_.add_centers();
  }

 private:
  int64_t live(int64_t row, int64_t token) const { return step_.live[row * shape_.tokens + token]; }
  int64_t entry(int64_t row, int64_t token) const { return step_.entry[row * shape_.tokens + token]; }
  int64_t entries_of(int64_t row, int64_t token, int64_t block) const {
    return std::min(live(row, token) - block * kBlock, kBlock);
  }

  // Counts a row's blocks, and finds those that are the same for all tokens that run.
  void divide(int64_t row) {
    int64_t most = 0;
    for (int64_t t = 0; t < shape_.tokens; ++t) most = std::max(most, live(row, t));
    blocks_[row] = (most + kBlock - 1) / kBlock;
    is_shared_[row].assign(blocks_[row], true);
    for (int64_t block = 0; block < blocks_[row]; ++block)
      for (int64_t t = 0; t < shape_.tokens; ++t)
        if (live(row, t) > 0 && (entry(row, t) / kBlock == block || entries_of(row, t, block) != seen(row, block)))
          is_shared_[row][block] = false;
  }
  // The entries of a block that the first token that runs sees.
  int64_t seen(int64_t row, int64_t block) const {
    int64_t t = 0;
    while (live(row, t) == 0) ++t;
    return entries_of(row, t, block);
  }

  auto block_of(int64_t head, int64_t token, int64_t block, int64_t entries) const {
    const int64_t row = head / shape_.heads, from = block * kBlock;
    return stored_.block({head * shape_.tokens + token, row, from, entries},
                         {{step_.slot[row], head % shape_.heads, from}, from == 0});
  }
  Partial partial(int64_t head, int64_t block, int64_t token) const {
    const int64_t query = (first_[head] + block) * shape_.all_queries() + token * shape_.queries;
    return {outs_ + query * shape_.width, tops_ + query, sums_ + query};
  }

  // Writes the tokens of each head one after the other. Each attends to the blocks that are not shared.
  void attend_in_turn() {
    at::parallel_for(0, shape_.all_heads(), 1, [&](int64_t begin, int64_t end) {
      stored_.with_attention(shape_.queries, [&](auto&& attention) {
        for (int64_t head = begin; head < end; ++head)
          for (int64_t t = 0; t < shape_.tokens; ++t) {
            const int64_t row = head / shape_.heads;
            if (live(row, t) > 0) write(head, t);
            for (int64_t block = 0; block < blocks_[row]; ++block)
              if (!is_shared_[row][block]) attend_to(attention, head, t, block);
          }
      });
    });
  }
  void write(int64_t head, int64_t t) {
    const int64_t row = head / shape_.heads, slot = step_.slot[row];
    const StepHead to{head * shape_.tokens + t, row * shape_.tokens + t, head % shape_.heads, slot, entry(row, t),
                      live(row, t)};
    if (step_.k) stored_.write(to, {slot, to.head, to.entry});
    stored_.prepare(to);
  }
  template <typename Attention>
  void attend_to(Attention& attention, int64_t head, int64_t t, int64_t block) const {
    const int64_t entries = entries_of(head / shape_.heads, t, block);
    const Partial to = partial(head, block, t);
    if (entries <= 0) {
      std::fill_n(to.out, shape_.queries * shape_.width, 0.f);
      std::fill_n(to.top, shape_.queries, kNoScore);
      std::fill_n(to.sum, shape_.queries, 0.f);
      return;
    }
    const auto input = block_of(head, t, block, entries);
    attention.begin(input);
    attention.attend(input, input.end_of_run(), to);
  }

  void attend_together() const {
    std::vector<BlockTask> tasks;
    for (int64_t head = 0; head < shape_.all_heads(); ++head)
      for (int64_t block = 0; block < blocks_[head / shape_.heads]; ++block)
        if (is_shared_[head / shape_.heads][block]) tasks.push_back({int32_t(head), int32_t(block)});
    at::parallel_for(0, int64_t(tasks.size()), 1, [&](int64_t begin, int64_t end) {
      const auto block = [&](int64_t i) {
        return block_of(tasks[i].head, 0, tasks[i].block, seen(tasks[i].head / shape_.heads, tasks[i].block));
      };
      stored_.with_attention(shape_.all_queries(), [&](auto&& attention) {
        auto now = block(begin);
        attention.begin(now);
        for (int64_t i = begin; i < end; ++i) {
          const auto next = i + 1 < end ? block(i + 1) : now.end_of_run();
          attention.attend(now, next, partial(tasks[i].head, tasks[i].block, 0));
          now = next;
        }
      });
    });
  }

  void merge() const {
    const int64_t queries = shape_.all_queries(), width = shape_.width;
    const auto finish = [&](float* sum) { stored_.finish(sum); };
    at::parallel_for(0, shape_.all_heads(), kFew, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        const Partial from = partial(head, 0, 0);
        const Result<T> to{step_.to.out + head * queries * width, step_.to.lse + head * queries};
        merge_blocks<T>(from.out, from.top, from.sum, blocks_[head / shape_.heads], queries, width, to, finish);
        for (int64_t t = 0; t < shape_.tokens; ++t)
          if (live(head / shape_.heads, t) == 0)
            clear<T>({to.out + t * shape_.queries * width, to.lse + t * shape_.queries}, shape_.queries, width);
      }
    });
  }

  const Step<T>& step_;
  Stored& stored_;
  const RunShape shape_;
  std::vector<int64_t> blocks_;                // of each row
  std::vector<int64_t> first_;                 // number of each head's first block
  std::vector<std::vector<bool>> is_shared_;  // of each block of a row
  float *outs_, *tops_, *sums_;
};

}  // namespace
}  // namespace ringkv
