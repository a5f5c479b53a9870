// prefill_attend with tiles on the CPU: stages pieces of prompts and attends causally to all staged tokens of each. See
// prefill_attend.py.
//
// FlashAttention (arXiv 2205.14135) that computes K Q^T instead of Q K^T: keys are the left operand, read in place, and
// each SIMD lane runs one query's softmax, without reductions across lanes. A task is a few hundred query rows of one
// key-value head. It reads the keys and values once for all of them, kKeyBlock at a time.
//
// Pieces start at whole query blocks of their prompt, so a query block has the same rows however the prompt is cut.

#include "scores.h"
#include "workspace.h"

#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

namespace ringkv {
namespace {

constexpr int64_t kKeyBlock = 128;          // keys of a block
constexpr int64_t kTaskElements = 49152;    // query elements of a task: its sums fit in L2
constexpr float kSlack = 8.f;               // rise of scores above the reference that is tolerated, in powers of 2
constexpr float kMaxSum = 0x1p64f;          // a larger sum of weights means that scores rose too far
constexpr int64_t kParts = kKeyBlock / kMR;  // parts of a block, pipelined between the tile and vector units

// One piece of a prompt.
struct Chunk {
  const BF16 *q, *k, *v;                      // k and v are null if they are staged already
  BF16 *keys, *values, *window, *out;
  float* lse;                                 // log-sum-exp of the scores of each row of q
  int64_t tokens, heads, groups, width;       // of q
  int64_t k_token, k_head, v_token, v_head;   // strides
  int64_t head, capacity;                     // stride of staged heads; staged entries from the lane's first on
  int64_t window_size, start, length;
  float scale;
};

void stage_head(const Chunk& c, int64_t h) {
  for (int64_t t = 0; c.k && t < c.tokens; ++t) {
    const int64_t to = h * c.head + (c.start + t) * c.width;
    std::memcpy(c.keys + to, c.k + t * c.k_token + h * c.k_head, c.width * sizeof(BF16));
    std::memcpy(c.values + to, c.v + t * c.v_token + h * c.v_head, c.width * sizeof(BF16));
  }
  const int64_t first = c.length - c.window_size;
  const int64_t from = std::max(c.start, first), to = std::min(c.start + c.tokens, c.length);
  for (int64_t t = from; t < to; ++t)
    for (int64_t g = 0; g < c.groups; ++g) {
      const int64_t row = (h * c.groups + g) * c.window_size + t - first;
      std::memcpy(c.window + row * c.width, c.q + (((t - c.start) * c.heads + h) * c.groups + g) * c.width,
                  c.width * sizeof(BF16));
    }
}

// Rounds two vectors of floats to bfloat16 and interleaves them: the first in the low halves.
__m512i interleaved(__m512 first, __m512 second) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(first), half), 16);
  return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_add_epi32(_mm512_castps_si512(second), half));
}

// One task: query rows [first, first + rows) of one key-value head, in blocks of kQueryBlock rows.
class AttendTask {
 public:
  AttendTask(const Chunk& c, int64_t h, int64_t first, int64_t rows)
      : c_(c), h_(h), first_(first), rows_(rows), query_blocks_((rows + kQueryBlock - 1) / kQueryBlock) {
    const int64_t elements = query_blocks_ * kQueryBlock * c.width, lanes = query_blocks_ * kQueryBlock;
    const int64_t sizes[] = {elements / 2, kKeyBlock * c.width / 2, elements,
                             (kKeyBlock + 2 * kMR) * kQueryBlock, kKeyBlock * kQueryBlock,
                             lanes, lanes, lanes, kTileM * c.width};
    static thread_local std::vector<float> memory;
    float* at = workspace(memory, std::accumulate(std::begin(sizes), std::end(sizes), int64_t(0)));
    float* parts[9];
    for (int i = 0; i < 9; ++i) parts[i] = std::exchange(at, at + sizes[i]);
    queries_ = reinterpret_cast<BF16*>(parts[0]);
    values_ = reinterpret_cast<BF16*>(parts[1]);
    sums_ = parts[2];
    part_scores_ = parts[3];
    scores_ = part_scores_ + 2 * kMR * kQueryBlock;
    weights_ = reinterpret_cast<BF16*>(parts[4]);
    references_ = parts[5];
    totals_ = parts[6];
    limits_ = reinterpret_cast<int32_t*>(parts[7]);
    padded_keys_ = reinterpret_cast<BF16*>(parts[8]);
  }

  void run() {
    for (int64_t s = 0; s < query_blocks_; ++s) load_queries(s);
    const int64_t end = highest(query_blocks_ - 1) + 1;
    for (int64_t k = 0; k < end; k += kKeyBlock) {
      pack_values(k, std::min(k + kKeyBlock, end));
      int64_t s = 0;
      for (; s < query_blocks_ && (k == 0 || lowest(s) + 1 < k + kKeyBlock); ++s)
        if (highest(s) >= k) attend(s, k, std::min(highest(s) + 1 - k, kKeyBlock));
      attend_all(s, k);
    }
    for (int64_t s = 0; s < query_blocks_; ++s) store_output(s);
  }

 private:
  int64_t row(int64_t lane) const { return std::min(first_ + lane, first_ + rows_ - 1); }
  int64_t lowest(int64_t s) const { return limits_[s * kQueryBlock]; }
  int64_t highest(int64_t s) const { return limits_[s * kQueryBlock + kQueryBlock - 1]; }
  // Index of a row of the task's head in q [tokens, heads, groups].
  int64_t index_of(int64_t row) const { return (row / c_.groups * c_.heads + h_) * c_.groups + row % c_.groups; }
  int64_t offset(int64_t row) const { return index_of(row) * c_.width; }

  // Packs a query block as right operands [half][width / 32][16 pairs][16 queries][2], and resets its softmax.
  void load_queries(int64_t s) {
    for (int64_t lane = s * kQueryBlock; lane < (s + 1) * kQueryBlock; lane += kTileN)
      pack_vnni([&](int64_t i) { return c_.q + offset(row(lane + i)); }, c_.width, queries_ + lane * c_.width);
    for (int64_t lane = s * kQueryBlock; lane < (s + 1) * kQueryBlock; ++lane)
      limits_[lane] = int32_t(c_.start + row(lane) / c_.groups);
    std::fill_n(references_ + s * kQueryBlock, kQueryBlock, kMasked);
    std::fill_n(totals_ + s * kQueryBlock, kQueryBlock, 0.f);
    std::fill_n(sums_ + s * kQueryBlock * c_.width, kQueryBlock * c_.width, 0.f);
  }

  // Packs the values of keys [from, to) as left operands [keys / 32][width / 16][16][32 keys]; 0 beyond `to`.
  void pack_values(int64_t from, int64_t to) {
    const BF16* value = c_.values + h_ * c_.head;
    for (int64_t k = from; k < to; k += kTileK)
      for (int64_t d = 0; d < c_.width; d += kTileM) {
        __m512i lines[16];
        for (int64_t i = 0; i < 16; ++i) {
          const auto read = [&](int64_t j) {
            return j < to ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(value + j * c_.width + d))
                          : _mm256_setzero_si256();
          };
          const __m512i even = _mm512_cvtepu16_epi32(read(k + 2 * i)), odd = _mm512_cvtepu16_epi32(read(k + 2 * i + 1));
          lines[i] = _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
        }
        transpose(lines);
        BF16* tile = values_ + (k - from) * c_.width + d * kTileK;
        for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(tile + i * kTileK, lines[i]);
      }
  }

  // Attends with query blocks from `first` on, which see all keys of the block. It is pipelined in parts of kMR keys:
  // while the vector unit computes the softmax of one part, the tile unit scores the next and accumulates the previous
  // query block.
  void attend_all(int64_t first, int64_t from) {
    if (first == query_blocks_) return;
    const int64_t units = c_.width / kTileM / 2;
    score(first, from, part_scores(first, 0), kMR);
    for (int64_t s = first; s <= query_blocks_; ++s) {
      if (s < query_blocks_) save_totals(s);
      for (int64_t part = 0; part < kParts; ++part) {
        const int64_t next = s + (part + 1) / kParts, of_next = (part + 1) % kParts;
        if (next < query_blocks_) score(next, from + of_next * kMR, part_scores(next, of_next), kMR);
        if (s < query_blocks_) exponentiate(s, part_scores(s, part), part * kMR, kMR);
        if (s > first)
          accumulate(s - 1, kKeyBlock / kTileK, 2 * (part * units / kParts), 2 * ((part + 1) * units / kParts));
      }
      if (s < query_blocks_) check_totals(s, from);
    }
  }

  // Attends with one query block if some of its queries do not see all `count` keys, or have no reference score yet.
  void attend(int64_t s, int64_t from, int64_t count) {
    const int64_t padded = (count + kTileK - 1) / kTileK * kTileK;
    score(s, from, scores_, padded);
    if (lowest(s) + 1 < from + padded) mask(s, from, padded);
    softmax(s, padded);
    accumulate(s, padded / kTileK, 0, c_.width / kTileM);
  }

  void softmax(int64_t s, int64_t count) {
    raise_references(s, count);
    rescale_sums(s);
    exponentiate(s, scores_, 0, count);
  }

  void save_totals(int64_t s) {
    for (int64_t half = 0; half < 2; ++half)
      saved_totals_[half] = _mm512_load_ps(totals_ + s * kQueryBlock + half * kTileN);
  }

  // Recomputes a block's weights with a higher reference if its scores were far above all earlier ones, which is rare.
  // So no maximum is computed for most blocks: up to kMaxSum, floats have the same relative precision.
  void check_totals(int64_t s, int64_t from) {
    const float* totals = totals_ + s * kQueryBlock;
    const __m512 most = _mm512_max_ps(_mm512_load_ps(totals), _mm512_load_ps(totals + kTileN));
    if (!_mm512_cmp_ps_mask(most, _mm512_set1_ps(kMaxSum), _CMP_GT_OQ)) return;
    for (int64_t half = 0; half < 2; ++half)
      _mm512_store_ps(totals_ + s * kQueryBlock + half * kTileN, saved_totals_[half]);
    score(s, from, scores_, kKeyBlock);
    softmax(s, kKeyBlock);
  }

  // scores_: a block's scores [key tile][half][16 keys][16 queries]. part_scores_: those of two parts of the pipeline.
  // weights_: two query blocks' weights [half][pairs][16][16][2].
  float* part_scores(int64_t s, int64_t part) const {
    return part_scores_ + (s * kParts + part) % 2 * kMR * kQueryBlock;
  }
  BF16* weights(int64_t s) const { return weights_ + s % 2 * kKeyBlock * kQueryBlock; }

  // Scores `count` keys from `from` on for a query block, two tiles at a time.
  void score(int64_t s, int64_t from, float* to, int64_t count) {
    const auto keys = [&](int64_t key, int64_t side) {
      return key_tile(c_.keys + h_ * c_.head + key * c_.width, c_.capacity - key, c_.width,
                      padded_keys_ + side * kTileM * c_.width);
    };
    for (int64_t key = from; key < from + count; key += kMR, to += kMR * kQueryBlock)
      score_keys(keys(key, 0), keys(key + kTileM, 1), queries_ + s * kQueryBlock * c_.width, c_.width, to);
  }

  void mask(int64_t s, int64_t from, int64_t count) {
    for (int64_t half = 0; half < 2; ++half) {
      const __m512i limits = _mm512_load_si512(limits_ + s * kQueryBlock + half * kTileN);
      for (int64_t j = 0; j < count; ++j) {
        const __mmask16 seen = _mm512_cmpge_epi32_mask(limits, _mm512_set1_epi32(int(from + j)));
        float* score = scores_ + score_offset(j, half);
        _mm512_store_ps(score, _mm512_mask_mov_ps(_mm512_set1_ps(kMasked), seen, _mm512_load_ps(score)));
      }
    }
  }

  // Raises each query's reference score to the highest so far if that exceeds it by more than kSlack: so sums are not
  // rescaled at every new maximum. Sets rose_ and ratio_, the factor for earlier sums.
  void raise_references(int64_t s, int64_t count) {
    for (int64_t half = 0; half < 2; ++half) {
      __m512 highest = _mm512_set1_ps(kMasked), other = highest;
      for (int64_t j = 0; j < count; j += kTileM)
        for (const float *at = scores_ + score_offset(j, half), *end = at + kTileSums; at < end; at += 2 * kTileN) {
          highest = _mm512_max_ps(highest, _mm512_load_ps(at));
          other = _mm512_max_ps(other, _mm512_load_ps(at + kTileN));
        }
      highest = _mm512_max_ps(highest, other);
      float* reference = references_ + s * kQueryBlock + half * kTileN;
      float* total = totals_ + s * kQueryBlock + half * kTileN;
      const __m512 before = _mm512_load_ps(reference), now = _mm512_mul_ps(highest, scale_);
      rose_[half] = _mm512_cmp_ps_mask(now, _mm512_add_ps(before, _mm512_set1_ps(kSlack)), _CMP_GT_OQ);
      if (!rose_[half]) continue;
      ratio_[half] = _mm512_mask_mov_ps(_mm512_set1_ps(1.f), rose_[half], exp2_of(_mm512_sub_ps(before, now)));
      _mm512_mask_store_ps(reference, rose_[half], now);
      _mm512_store_ps(total, _mm512_mul_ps(_mm512_load_ps(total), ratio_[half]));
    }
  }

  // Rescales the sums of earlier blocks if the reference rose.
  void rescale_sums(int64_t s) {
    for (int64_t half = 0; half < 2; ++half) {
      float* sums = sums_ + (s * 2 + half) * kTileN * c_.width;
      for (int64_t d = 0; rose_[half] && d < c_.width; ++d)
        _mm512_store_ps(sums + d * kTileN, _mm512_mul_ps(_mm512_load_ps(sums + d * kTileN), ratio_[half]));
    }
  }

  // Turns the scores of `count` keys, from the block's key `from` on, into softmax weights: right operands [pairs][16
  // pairs of keys][16 queries][2].
  void exponentiate(int64_t s, const float* scores, int64_t from, int64_t count) {
    for (int64_t half = 0; half < 2; ++half) {
      BF16* weight = weights(s) + half * kKeyBlock * kTileN + from * kTileN;
      const __m512 scale = scale_, reference = _mm512_load_ps(references_ + s * kQueryBlock + half * kTileN);
      float* totals = totals_ + s * kQueryBlock + half * kTileN;
      __m512 total = _mm512_load_ps(totals), other = _mm512_setzero_ps();
      for (int64_t j = 0; j < count; j += kTileM) {
        const float* at = scores + score_offset(j, half);
        BF16* to = weight + j * kTileN;
        for (int64_t i = 0; i < kTileSums; i += 2 * kTileN) {
          const __m512 a = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(at + i), scale, reference));
          const __m512 b = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(at + i + kTileN), scale, reference));
          total = _mm512_add_ps(total, a);
          other = _mm512_add_ps(other, b);
          _mm512_store_si512(to + i, interleaved(a, b));
        }
      }
      _mm512_store_ps(totals, _mm512_add_ps(total, other));
    }
  }

  // sums [half][width][16 queries] += values * weights, for tiles [tile, stop) of the width, two at a time.
  void accumulate(int64_t s, int64_t pairs, int64_t tile, int64_t stop) {
    const BF16* weight = weights(s);
    for (; tile < stop; tile += 2) {
      const BF16* value = values_ + tile * kBlockSize;
      multiply_four({value, value + kBlockSize, kTileK, c_.width * kTileK}, weight, weight + kKeyBlock * kTileN, pairs,
                    {sums_ + s * kQueryBlock * c_.width + tile * kTileSums, kTileN, kTileN * c_.width, kTileSums},
                    true);
    }
  }

  void store_output(int64_t s) {
    for (int64_t lane = s * kQueryBlock; lane < (s + 1) * kQueryBlock; lane += kTileN) {
      const __m512 scale = _mm512_div_ps(_mm512_set1_ps(1.f), _mm512_load_ps(totals_ + lane));
      for (int64_t d = 0; d < c_.width; d += kTileM) {
        const float* sums = sums_ + lane * c_.width + d * kTileN;
        __m512i lines[16];
        for (int64_t i = 0; i < 16; ++i)
          lines[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(sums + i * kTileN), scale));
        transpose(lines);
        for (int64_t i = 0; i < 16 && lane + i < rows_; ++i)
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(c_.out + offset(row(lane + i)) + d),
                              (__m256i)_mm512_cvtneps_pbh(_mm512_castsi512_ps(lines[i])));
      }
      for (int64_t i = lane; i < lane + kTileN && i < rows_; ++i)
        c_.lse[index_of(row(i))] = (references_[i] + std::log2(totals_[i])) * float(M_LN2);
    }
  }

  const Chunk& c_;
  const int64_t h_, first_, rows_, query_blocks_;
  BF16 *queries_, *values_, *weights_, *padded_keys_;
  float *sums_, *part_scores_, *scores_, *references_, *totals_;
  int32_t* limits_;
  const __m512 scale_ = _mm512_set1_ps(float(M_LOG2E) * c_.scale);
  __m512 ratio_[2] = {}, saved_totals_[2] = {};
  __mmask16 rose_[2] = {};
};

// Query rows [first, first + rows) of one head of a piece.
struct RowsOfHead {
  const Chunk* chunk;
  int64_t head, first, rows;

  // Keys that its last row sees.
  int64_t keys() const { return chunk->start + (first + rows - 1) / chunk->groups + 1; }
};

void add_tasks(const Chunk& c, std::vector<RowsOfHead>& tasks) {
  const int64_t rows = c.tokens * c.groups;
  const int64_t task_rows = std::max<int64_t>(kTaskElements / c.width / kQueryBlock, 1) * kQueryBlock;
  const int64_t parts = (rows + task_rows - 1) / task_rows;
  const int64_t size = ((rows + parts - 1) / parts + kQueryBlock - 1) / kQueryBlock * kQueryBlock;
  for (int64_t first = 0; first < rows; first += size)
    for (int64_t h = 0; h < c.heads; ++h) tasks.push_back({&c, h, first, std::min(size, rows - first)});
}

void attend_all(const std::vector<Chunk>& chunks) {
  static thread_local std::vector<RowsOfHead> tasks;
  tasks.clear();
  for (const Chunk& c : chunks) add_tasks(c, tasks);
  // Tasks that see more keys go first, so that no thread ends with a long task.
  std::stable_sort(tasks.begin(), tasks.end(), [](const RowsOfHead& a, const RowsOfHead& b) {
    return a.keys() * a.rows > b.keys() * b.rows;
  });
  const int64_t heads = chunks.empty() ? 0 : chunks[0].heads, all = int64_t(chunks.size()) * heads;
  const RowsOfHead* const task_at = tasks.data();
  const int64_t count = int64_t(tasks.size());
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(at::in_parallel_region() ? 1 : at::get_num_threads())
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < all; ++i) stage_head(chunks[i / heads], i % heads);
    const Tiles tiles(2 * kTileM);
    const NoSubnormals no_subnormals;
    for (int64_t i; (i = next++) < count;) {
      const auto [chunk, head, first, rows] = task_at[i];
      AttendTask(*chunk, head, first, rows).run();
    }
  }
}

using OptionalTensor = std::optional<at::Tensor>;

const BF16* row_of(const OptionalTensor& t, int64_t row) {
  return t ? t->const_data_ptr<BF16>() + row * t->stride(0) : nullptr;
}
int64_t stride_of(const OptionalTensor& t, int64_t dimension) { return t ? t->stride(dimension) : 0; }

// Rows [from, to) belong to no piece.
void clear_rows(const at::Tensor& out, const at::Tensor& lse, int64_t from, int64_t to) {
  if (from >= to) return;
  out.narrow(0, from, to - from).zero_();
  lse.narrow(0, from, to - from).fill_(-std::numeric_limits<float>::infinity());
}

std::tuple<at::Tensor, at::Tensor> prefill_attend(const at::Tensor& q, const OptionalTensor& k,
                                                  const OptionalTensor& v, at::Tensor keys, at::Tensor values, at::Tensor window,
                                                  const at::Tensor& segments, double scale) {
  TORCH_CHECK(q.scalar_type() == at::kBFloat16 && q.size(3) % kTileK == 0,
              "prefill_attend: q must be bfloat16, with head_dim a multiple of 32");
  TORCH_CHECK((!k || (k->stride(2) == 1 && v->stride(2) == 1)) && window.is_contiguous(),
              "prefill_attend: rows of k and v, and the window, must be contiguous");
  TORCH_CHECK(keys.strides() == values.strides() && keys.stride(1) == keys.size(2) && keys.stride(2) == 1,
              "prefill_attend: staged tokens must follow each other");
  TORCH_CHECK(segments.scalar_type() == at::kLong && segments.is_contiguous() && segments.size(1) == 6,
              "prefill_attend: segments must be int64 [M, 6]");
  const auto rows = q.contiguous();
  auto out = at::empty_like(rows), lse = at::empty(rows.sizes().slice(0, 3), rows.options().dtype(at::kFloat));
  const int64_t heads = q.size(1), groups = q.size(2), width = q.size(3), row_size = heads * groups * width;
  std::vector<Chunk> chunks;
  int64_t done = 0;
  for (int64_t i = 0; i < segments.size(0); ++i) {
    const int64_t* s = segments.const_data_ptr<int64_t>() + 6 * i;
    const int64_t row = s[0], count = s[1], lane = s[2], first = s[3], start = s[4], length = s[5];
    if (count == 0) continue;
    TORCH_CHECK(done <= row && row + count <= q.size(0) && 0 <= lane && lane < window.size(0) && 0 <= first &&
                    0 <= start && first + start + count <= keys.size(1),
                "prefill_attend: a piece lies outside the rows, the lanes or the staging, or overlaps another");
    clear_rows(out, lse, done, row);
    done = row + count;
    chunks.push_back({rows.const_data_ptr<BF16>() + row * row_size, row_of(k, row), row_of(v, row), keys.data_ptr<BF16>() + first * width,
                      values.data_ptr<BF16>() + first * width, window.data_ptr<BF16>() + lane * window.stride(0),
                      out.data_ptr<BF16>() + row * row_size, lse.data_ptr<float>() + row * heads * groups, count, heads,
                      groups, width, stride_of(k, 0), stride_of(k, 1), stride_of(v, 0), stride_of(v, 1), keys.stride(0),
                      keys.size(1) - first, window.size(3), start, length, float(scale)});
  }
  clear_rows(out, lse, done, q.size(0));
  if (!chunks.empty()) attend_all(chunks);
  return {out, lse};
}

// The queries of a row are those of the last token of a piece of one token, whose lane is the row's slot.
std::tuple<at::Tensor, at::Tensor> decode_attend_latent(const at::Tensor& q, const at::Tensor& k, at::Tensor keys,
                                                        const at::Tensor& slot, const at::Tensor& entry,
                                                        const at::Tensor& live, double scale) {
  TORCH_CHECK(q.scalar_type() == at::kBFloat16 && q.size(1) == 1 && q.size(3) % kTileK == 0 && k.stride(2) == 1 &&
                  keys.stride(2) == keys.size(3) && keys.stride(3) == 1 && slot.scalar_type() == at::kInt,
              "decode_attend_latent: shapes or dtypes do not match");
  const auto rows = q.contiguous(), cs = slot.contiguous(), ce = entry.contiguous(), cl = live.contiguous();
  auto out = at::empty_like(rows), lse = at::empty(rows.sizes().slice(0, 3), rows.options().dtype(at::kFloat));
  const int64_t groups = q.size(2), width = q.size(3), row_size = groups * width;
  std::vector<Chunk> chunks;
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t seen = cl.const_data_ptr<int32_t>()[row];
    if (seen == 0) {
      clear_rows(out, lse, row, row + 1);
      continue;
    }
    BF16* plane = keys.data_ptr<BF16>() + cs.const_data_ptr<int32_t>()[row] * keys.stride(0);
    std::memcpy(plane + ce.const_data_ptr<int32_t>()[row] * width, k.const_data_ptr<BF16>() + row * k.stride(0),
                width * sizeof(BF16));
    chunks.push_back({rows.const_data_ptr<BF16>() + row * row_size, nullptr, nullptr, plane, plane, nullptr,
                      out.data_ptr<BF16>() + row * row_size, lse.data_ptr<float>() + row * groups, 1, 1, groups, width,
                      0, 0, 0, 0, keys.stride(1), keys.size(2), 0, seen - 1, 0, float(scale)});
  }
  if (!chunks.empty()) attend_all(chunks);
  return {out, lse};
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) {
  m.impl("prefill_attend_tiles", &ringkv::prefill_attend);
  m.impl("decode_attend_latent_tiles", &ringkv::decode_attend_latent);
}

#endif
