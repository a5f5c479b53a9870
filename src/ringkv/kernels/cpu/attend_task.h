// Attend task: causal attention of some query rows of one head to runs of keys and values, with tiles.
//
// FlashAttention (arXiv 2205.14135) that computes K Q^T instead of Q K^T: keys are the left operand, read in place, and
// each SIMD lane runs one query's softmax, without reductions across lanes. A task reads the keys and values once for
// all of its rows, kKeyBlock at a time.

#pragma once

#include "scores.h"
#include "workspace.h"

#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)

namespace ringkv {
namespace {

constexpr int64_t kKeyBlock = 128;          // keys of a block
constexpr int64_t kTaskElements = 49152;    // query elements of a task: its sums fit in L2
constexpr float kSlack = 8.f;               // rise of scores above the reference that is tolerated, in powers of 2
constexpr float kMaxSum = 0x1p64f;          // a larger sum of weights means that scores rose too far
constexpr int64_t kParts = kKeyBlock / kMR;  // parts of a block, pipelined between the tile and vector units

// The queries of a piece [tokens, heads, groups, width] and their results: out [tokens, heads, groups, value_width] and
// the log-sum-exp of the scores. Those of token t see keys 0 to start + t.
struct TaskQueries {
  const BF16* q;
  BF16* out;
  float* lse;
  int64_t heads, groups, width, value_width, start;
  float scale;
};

// Keys first .. stop-1 [stop - first, width] and their values [stop - first, value_width].
struct KeyRun {
  const BF16 *keys, *values;
  int64_t first, stop;
};

// Returns the rows of a task if `rows` rows of one head are divided evenly, in whole query blocks.
inline int64_t rows_of_task(int64_t rows, int64_t width) {
  const int64_t most = std::max<int64_t>(kTaskElements / width / kQueryBlock, 1) * kQueryBlock;
  const int64_t parts = (rows + most - 1) / most;
  return ((rows + parts - 1) / parts + kQueryBlock - 1) / kQueryBlock * kQueryBlock;
}

// Rounds two vectors of floats to bfloat16 and interleaves them: the first in the low halves.
__m512i interleaved(__m512 first, __m512 second) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(first), half), 16);
  return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_add_epi32(_mm512_castps_si512(second), half));
}

// One task: query rows [first, first + rows) of one key-value head, in blocks of kQueryBlock rows. Call `begin`, then
// `attend` with runs of keys that follow each other, all but the last of whole blocks, then `end`. A thread has one
// task at a time.
class AttendTask {
 public:
  AttendTask(const TaskQueries& c, int64_t h, int64_t first, int64_t rows)
      : c_(c), h_(h), first_(first), rows_(rows), query_blocks_((rows + kQueryBlock - 1) / kQueryBlock) {
    const int64_t lanes = query_blocks_ * kQueryBlock;
    const int64_t sizes[] = {lanes * c.width / 2, kKeyBlock * c.value_width / 2, lanes * c.value_width,
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

  // Returns how many keys the last row sees.
  int64_t begin() {
    for (int64_t s = 0; s < query_blocks_; ++s) load_queries(s);
    return highest(query_blocks_ - 1) + 1;
  }

  void attend(const KeyRun& run) {
    run_ = run;
    const int64_t end = std::min(highest(query_blocks_ - 1) + 1, run.stop);
    for (int64_t k = run.first; k < end; k += kKeyBlock) {
      pack_values(k, std::min(k + kKeyBlock, end));
      int64_t s = 0;
      for (; s < query_blocks_ && (k == 0 || lowest(s) + 1 < k + kKeyBlock); ++s)
        if (highest(s) >= k) attend(s, k, std::min(highest(s) + 1 - k, kKeyBlock));
      attend_all(s, k);
    }
  }

  void end() {
    for (int64_t s = 0; s < query_blocks_; ++s) store_output(s);
  }

 private:
  int64_t row(int64_t lane) const { return std::min(first_ + lane, first_ + rows_ - 1); }
  int64_t lowest(int64_t s) const { return limits_[s * kQueryBlock]; }
  int64_t highest(int64_t s) const { return limits_[s * kQueryBlock + kQueryBlock - 1]; }
  // Index of a row of the task's head in q [tokens, heads, groups].
  int64_t index_of(int64_t row) const { return (row / c_.groups * c_.heads + h_) * c_.groups + row % c_.groups; }

  // Packs a query block as right operands [half][width / 32][16 pairs][16 queries][2], and resets its softmax.
  void load_queries(int64_t s) {
    for (int64_t lane = s * kQueryBlock; lane < (s + 1) * kQueryBlock; lane += kTileN)
      pack_vnni([&](int64_t i) { return c_.q + index_of(row(lane + i)) * c_.width; }, c_.width,
                queries_ + lane * c_.width);
    for (int64_t lane = s * kQueryBlock; lane < (s + 1) * kQueryBlock; ++lane)
      limits_[lane] = int32_t(c_.start + row(lane) / c_.groups);
    std::fill_n(references_ + s * kQueryBlock, kQueryBlock, kMasked);
    std::fill_n(totals_ + s * kQueryBlock, kQueryBlock, 0.f);
    std::fill_n(sums_ + s * kQueryBlock * c_.value_width, kQueryBlock * c_.value_width, 0.f);
  }

  // Packs the values of keys [from, to) as left operands [keys / 32][width / 16][16][32 keys]; 0 beyond `to`.
  void pack_values(int64_t from, int64_t to) {
    const int64_t width = c_.value_width;
    const BF16* value = run_.values - run_.first * width;
    for (int64_t k = from; k < to; k += kTileK)
      for (int64_t d = 0; d < width; d += kTileM) {
        __m512i lines[16];
        for (int64_t i = 0; i < 16; ++i) {
          const auto read = [&](int64_t j) {
            return j < to ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(value + j * width + d))
                          : _mm256_setzero_si256();
          };
          const __m512i even = _mm512_cvtepu16_epi32(read(k + 2 * i)), odd = _mm512_cvtepu16_epi32(read(k + 2 * i + 1));
          lines[i] = _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
        }
        transpose(lines);
        BF16* tile = values_ + (k - from) * width + d * kTileK;
        for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(tile + i * kTileK, lines[i]);
      }
  }

  // Attends with query blocks from `first` on, which see all keys of the block. It is pipelined in parts of kMR keys:
  // while the vector unit computes the softmax of one part, the tile unit scores the next and accumulates the previous
  // query block.
  void attend_all(int64_t first, int64_t from) {
    if (first == query_blocks_) return;
    const int64_t units = c_.value_width / kTileM / 2;
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
    accumulate(s, padded / kTileK, 0, c_.value_width / kTileM);
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
      return key_tile(run_.keys + (key - run_.first) * c_.width, run_.stop - key, c_.width,
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
      float* sums = sums_ + (s * 2 + half) * kTileN * c_.value_width;
      for (int64_t d = 0; rose_[half] && d < c_.value_width; ++d)
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
    const int64_t width = c_.value_width;
    for (; tile < stop; tile += 2) {
      const BF16* value = values_ + tile * kBlockSize;
      float* sums = sums_ + s * kQueryBlock * width + tile * kTileSums;
      multiply_four({value, value + kBlockSize, kTileK, width * kTileK}, weight, weight + kKeyBlock * kTileN, pairs,
                    {sums, kTileN, kTileN * width, kTileSums}, true);
    }
  }

  void store_output(int64_t s) {
    for (int64_t lane = s * kQueryBlock; lane < (s + 1) * kQueryBlock; lane += kTileN) {
      const __m512 scale = _mm512_div_ps(_mm512_set1_ps(1.f), _mm512_load_ps(totals_ + lane));
      for (int64_t d = 0; d < c_.value_width; d += kTileM) {
        const float* sums = sums_ + lane * c_.value_width + d * kTileN;
        __m512i lines[16];
        for (int64_t i = 0; i < 16; ++i)
          lines[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(sums + i * kTileN), scale));
        transpose(lines);
        for (int64_t i = 0; i < 16 && lane + i < rows_; ++i)
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(c_.out + index_of(row(lane + i)) * c_.value_width + d),
                              (__m256i)_mm512_cvtneps_pbh(_mm512_castsi512_ps(lines[i])));
      }
      for (int64_t i = lane; i < lane + kTileN && i < rows_; ++i)
        c_.lse[index_of(row(i))] = (references_[i] + std::log2(totals_[i])) * float(M_LN2);
    }
  }

  const TaskQueries& c_;
  const int64_t h_, first_, rows_, query_blocks_;
  BF16 *queries_, *values_, *weights_, *padded_keys_;
  float *sums_, *part_scores_, *scores_, *references_, *totals_;
  int32_t* limits_;
  KeyRun run_{};
  const __m512 scale_ = _mm512_set1_ps(float(M_LOG2E) * c_.scale);
  __m512 ratio_[2] = {}, saved_totals_[2] = {};
  __mmask16 rose_[2] = {};
};

}  // namespace
}  // namespace ringkv

#endif
