// decode_attend over slots in chunks: add a token to each slot and attend to the slot. See zip_tokens.py.
//
// A slot is runs: its plain entries, and the salient and the other entries of each chunk. A run's blocks are those of
// int4 (block_encoded.h); those of 2 bits are widened to 4 first. Scales and minima of a chunk's channels move to the
// query: q . (scale * level + minimum) = (q * scale) . level + q . minimum. Factors of a chunk's values multiply the
// weighted sum. Levels are counted from the middle of their range, so that rounding q * scale does not shift a chunk.

#include "attend_blocks.h"
#include "block_encoded.h"
#include "decode_step.h"
#include "zip_slots.h"

namespace ringkv {
namespace {

enum Bits { kPlain, kHigh, kLow };

// A block of a head: `entries` from `first` on. set: its queries.
struct ZipTask {
  int64_t head;
  Bits bits;
  int64_t chunk, first, entries, set;

  ZipTask end_of_run() const { return {head, kPlain, 0, 0, 0, 0}; }
};

constexpr float middle_of(bool is_high) { return is_high ? 7.5f : 1.5f; }

// Ranges of keys whose scales and minima are in the query.
struct UnitRanges {
  c10::Half at[2 * kBlock];
  explicit UnitRanges(float middle) {
    for (int64_t j = 0; j < kBlock; ++j) {
      at[2 * j] = c10::Half(1.f);
      at[2 * j + 1] = c10::Half(-middle);
    }
  }
  static const c10::Half* of(bool is_high) {
    static const UnitRanges high(middle_of(true)), low(middle_of(false));
    return is_high ? high.at : low.at;
  }
};

// Widens entries of 2 bits [entries, width / 4] to 4 bits [entries, width / 2].
inline void widen_entries(const uint8_t* from, int64_t entries, int64_t width, uint8_t* to) {
  const int64_t quarter = width / 4;  // a multiple of 8
  for (int64_t j = 0; j < entries; ++j, from += quarter, to += 2 * quarter)
    for (int64_t i = 0; i < quarter; i += 8) {
      uint64_t pairs;
      std::memcpy(&pairs, from + i, 8);
      const uint64_t lower = pairs & 0x3333333333333333, upper = pairs >> 2 & 0x3333333333333333;
      std::memcpy(to + i, &lower, 8);
      std::memcpy(to + quarter + i, &upper, 8);
    }
}

template <typename T>
class ZipAttention {
 public:
  ZipAttention(const Step<T>& step, const ZipPlanes& planes)
      : step_(step), planes_(planes), all_(step.shape.rows * step.shape.heads), queries_(step.shape.queries),
        width_(step.shape.width), scale_(step.scale), to_(step.to) {}

  void run() {
    const auto first_set = sets();
    Queries<Int4> folded(first_set.back(), queries_, width_);
    constants_.assign(first_set.back() * queries_, 0.f);
    step_.each_head(1, [&](const StepHead& to) {
      const auto head = head_of(to.index);
      append(head, planes_, step_.k->of(to.row, to.head), step_.v->of(to.row, to.head), to.live);
      fold(to.index, head, first_set[to.index], folded);
    });
    plan(first_set);
    attend(folded);
  }

 private:
  ZipHead<T> head_of(int64_t i) const {
    return planes_.of<T>(step_.slot[i / step_.shape.heads], i % step_.shape.heads);
  }
  bool is_free(int64_t i) const { return step_.live[i / step_.shape.heads] == 0; }

  // Returns the first set of queries of each head, two for each chunk that it may have after this step, and their sum.
  std::vector<int64_t> sets() const {
    std::vector<int64_t> first(all_ + 1, 0);
    for (int64_t i = 0; i < all_; ++i)
      first[i + 1] = first[i] + (is_free(i) ? 0 : 2 * (2 + head_of(i).counts[kChunks]));
    return first;
  }

  // Multiplies the queries of a head with the scales of each chunk's channels, and sums what its minima add.
  void fold(int64_t i, const ZipHead<T>& head, int64_t set, Queries<Int4>& to) {
    const T* query = step_.queries(i);
    const std::vector<float> plain(query, query + queries_ * width_);
    std::vector<float> scale(width_), minimum(width_), wide(width_);
    for (int64_t part = 0; part < 2 * (1 + head.counts[kChunks]); ++part, ++set) {
      const c10::Half* channels = head.key_channels + part * 2 * width_;
      const Vec middle(middle_of(part % 2 == 0));
      widen(channels, width_, scale.data());
      widen(channels + width_, width_, minimum.data());
      at::vec::map2<float>([=](Vec a, Vec b) { return at::vec::fmadd(middle, b, a); }, minimum.data(), minimum.data(),
                           scale.data(), width_);
      for (int64_t g = 0; g < queries_; ++g) {
        const float* vector = plain.data() + g * width_;
        const auto times = [](Vec a, Vec b) { return a * b; };
        at::vec::map2<float>(times, wide.data(), vector, scale.data(), width_);
        to.set_rotated(set, g, wide.data());
        constants_[set * queries_ + g] =
            scale_ * at::vec::map2_reduce_all<float>(times, [](Vec a, Vec b) { return a + b; }, vector, minimum.data(),
                                                     width_);
      }
    }
  }

  // Lists the blocks of each head, in order.
  void plan(const std::vector<int64_t>& first_set) {
    first_.assign(all_ + 1, 0);
    for (int64_t i = 0; i < all_; ++i) {
      if (!is_free(i)) list(i, head_of(i).counts, first_set[i]);
      first_[i + 1] = int64_t(tasks_.size());
    }
  }
  void list(int64_t i, const int32_t* counts, int64_t set) {
    tasks_.push_back({i, kPlain, 0, 0, counts[kFirst] + counts[kBuffered], 0});
    for (int64_t chunk = 0; chunk <= counts[kChunks]; ++chunk) {
      const ZipPlace at(counts, chunk);
      list_run({i, kHigh, chunk, at.high, at.highs, set + 2 * chunk});
      list_run({i, kLow, chunk, at.low, at.lows, set + 2 * chunk + 1});
    }
  }
  void list_run(const ZipTask& run) {
    for (int64_t from = 0; from < run.entries; from += kBlock) {
      const int64_t entries = std::min(kBlock, run.entries - from);
      tasks_.push_back({run.head, run.bits, run.chunk, run.first + from, entries, run.set});
    }
  }

  // Attends to blocks of any number of bits.
  struct Attention {
    const ZipAttention& zip;
    const BlockEncoded<Int4> encoded;

    void begin(const ZipTask&) {}
    void attend(const ZipTask& task, const ZipTask& next, const Partial& to) const {
      zip.attend_task(task, next, encoded, to);
    }
  };
  void attend(const Queries<Int4>& folded) {
    const auto blocks_of = [&](int64_t head) { return first_[head + 1] - first_[head]; };
    const auto block_of = [&](int64_t head, int64_t block) { return tasks_[first_[head] + block]; };
    const auto with_attention = [&](const auto& run) { run(Attention{*this, {folded, queries_, width_, scale_}}); };
    const auto merged = [&](int64_t head) { add_attention(head, head_of(head)); };
    attend_blocks<T>(step_.shape, to_, blocks_of, block_of, with_attention, [](float*) {}, merged);
  }

  void attend_task(const ZipTask& task, const ZipTask& next, const BlockEncoded<Int4>& encoded,
                   const Partial& to) const {
    const auto head = head_of(task.head);
    if (task.bits == kPlain) return attend_plain(task, head, to);
    BlockInt4 block = block_of(task, head);
    const BlockInt4 later = next.bits != kPlain ? packed(next) : block.end_of_run();
    thread_local std::vector<uint8_t> keys, values;
    if (task.bits == kLow) {
      const int64_t bytes = kBlock * width_ / 2;
      keys.resize(bytes);
      values.resize(bytes);
      widen_entries(block.key, task.entries, width_, keys.data());
      widen_entries(block.value, task.entries, width_, values.data());
      block.key = keys.data();
      block.value = values.data();
    }
    encoded.attend(block, later, to);
    scale_outputs(head.value_factors + task.chunk * width_, to.out);
    for (int64_t g = 0; g < queries_; ++g) to.top[g] += constants_[task.set * queries_ + g];
  }

  void attend_plain(const ZipTask& task, const ZipHead<T>& head, const Partial& to) const {
    const Block<T> block{step_.queries(task.head), head.plain_keys, head.plain_values, task.entries};
    BlockRows<T>(queries_, width_, scale_).attend(block, block.end_of_run(), to);
  }

  // Returns a block as it is stored.
  BlockInt4 block_of(const ZipTask& task, const ZipHead<T>& head) const {
    const bool is_high = task.bits == kHigh;
    const int64_t at = task.first * width_ / (is_high ? 2 : 4);
    const c10::Half* ranges = head.value_ranges + 2 * (task.first + (is_high ? 0 : planes_.salient));
    return {task.set,
            (is_high ? head.high_keys : head.low_keys) + at,
            (is_high ? head.high_values : head.low_values) + at,
            UnitRanges::of(is_high),
            ranges,
            task.entries,
            {}};
  }
  // Returns a block to prefetch: of 2 bits it has as many bytes as half its entries in 4 bits.
  BlockInt4 packed(const ZipTask& task) const {
    BlockInt4 block = block_of(task, head_of(task.head));
    if (task.bits == kLow) block.entries = (block.entries + 1) / 2;
    return block;
  }

  void scale_outputs(const c10::Half* factors, float* out) const {
    thread_local std::vector<float> by;
    by.resize(width_);
    widen(factors, width_, by.data());
    for (int64_t g = 0; g < queries_; ++g)
      at::vec::map2<float>([](Vec a, Vec b) { return a * b; }, out + g * width_, out + g * width_, by.data(), width_);
  }

  // Adds what the buffer's keys get: the mean over queries of exp(score - lse).
  void add_attention(int64_t i, const ZipHead<T>& head) const {
    const int64_t tokens = head.counts[kBuffered];
    const T* keys = head.plain_keys + head.counts[kFirst] * width_;
    const Vec by(1.f / float(queries_));
    alignas(64) float scores[kBlock];
    for (int64_t g = 0; g < queries_; ++g) {
      score_rows<T, 1>(step_.queries(i) + g * width_, keys, keys, tokens, width_, scale_, scores);
      const Vec lse(to_.lse[i * queries_ + g]);
      at::vec::map2<float>([&](Vec sum, Vec score) { return sum + (score - lse).exp() * by; }, head.attention,
                           head.attention, scores, tokens);
    }
  }

  const Step<T>& step_;
  const ZipPlanes& planes_;
  const int64_t all_, queries_, width_;  // all_: heads of all rows
  const float scale_;
  const Result<T> to_;
  std::vector<float> constants_;
  std::vector<ZipTask> tasks_;
  std::vector<int64_t> first_;  // index of each head's first task
};

}  // namespace

Results decode_attend_zip(const DecodeArguments& a) {
  TORCH_CHECK(a.k && a.v && a.planes.size() == kZipTensors && a.planes[0].scalar_type() == a.q.scalar_type() &&
                  a.planes[5].scalar_type() == a.q.scalar_type(),
              "decode_attend: chunks have a new key and value in each step, and all plain vectors one dtype");
  const ZipPlanes planes(a.planes);
  return with_dtype(a.q.scalar_type(), [&](auto zero) {
    const Step<decltype(zero)> step(a);
    ZipAttention(step, planes).run();
    return step.results;
  });
}

}  // namespace ringkv
