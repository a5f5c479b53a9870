// window_votes on the CPU's tile unit: the attention that each key gets from a prompt's last queries. See window_votes.py.
//
// A key's share needs each query's sum over all keys. So a batch of keys first leaves its weights relative to its own
// highest scores, in bfloat16; what those are worth is known when all batches of the head have left theirs.

#include "scores.h"
#include "workspace.h"

#if defined(__AMX_BF16__) && defined(CPU_CAPABILITY_AVX512)

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace ringkv {
namespace {

constexpr int64_t kBatch = 128;              // keys that are scored at once
constexpr int64_t kKept = int64_t(1) << 23;  // weights that are kept at a time, unless one head's are more

struct Window {
  const Half16 *q, *keys;
  int64_t heads, rows, window, width, head, length, first, last;  // rows of q a head; keys [first, last) are summed over

  int64_t strips() const { return (rows + kStrip - 1) / kStrip; }
  int64_t lanes() const { return strips() * kStrip; }
  int64_t batches() const { return (last - first + kBatch - 1) / kBatch; }
  int64_t key(int64_t batch) const { return first + batch * kBatch; }
  int64_t limit(int64_t row) const { return std::min(length - window + row % window, last - 1); }
};

// What batches leave, one after the other: weights [lanes / 16][kBatch][16] relative to the batch's highest scores, these
// [lanes], and sums of weights [lanes]
struct BatchWeights {
  Half16* weights;
  float *tops, *sums;
  int64_t lanes;

  BatchWeights at(int64_t batch) const {
    return {weights + batch * lanes * kBatch, tops + batch * lanes, sums + batch * lanes, lanes};
  }
};

// Batches of one head, scored
class Scores {
 public:
  Scores(const Window& w, int64_t h) : w_(w), h_(h) {
    static thread_local std::vector<float> kept;
    float* at = workspace(kept, w.lanes() * w.width / 2 + kBatch * kStrip + kTall * w.width);
    queries_ = reinterpret_cast<Half16*>(at);
    scores_ = at + w.lanes() * w.width / 2;
    edge_ = reinterpret_cast<Half16*>(scores_ + kBatch * kStrip);
    const Half16* q = w.q + h * w.rows * w.width;
    for (int64_t lane = 0; lane < w.lanes(); lane += kWide)
      right_operand([&](int64_t i) { return q + std::min(lane + i, w.rows - 1) * w.width; }, w.width,
                    queries_ + lane * w.width);
  }

  void leave(int64_t batch, const BatchWeights& to) {
    const int64_t k = w_.key(batch);
    for (int64_t s = 0; s < w_.strips(); ++s) {
      score(s, k);
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t lane = s * kStrip + half * kWide;
        hide(lane, half, k);
        soften(lane, half, to);
      }
    }
  }

 private:
  void score(int64_t s, int64_t k) {
    for (int64_t j = 0; j < kBatch; j += 2 * kTall)
      score_keys(keys_at(k + j, 0), keys_at(k + j + kTall, 1), queries_ + s * kStrip * w_.width, w_.width,
                 scores_ + place(j, 0));
  }

  const Half16* keys_at(int64_t key, int64_t which) {
    return sixteen_keys(w_.keys + h_ * w_.head + key * w_.width, w_.length - key, w_.width,
                        edge_ + which * kTall * w_.width);
  }

  __mmask16 seen(int64_t lane, int64_t key) const {
    __mmask16 mask = 0;
    for (int64_t i = 0; i < kWide; ++i)
      mask |= __mmask16(lane + i < w_.rows && key <= w_.limit(lane + i)) << i;
    return mask;
  }

  // All lanes see all keys of a batch, but near the prompt's end
  bool open(int64_t k, int64_t lane) const {
    return k + kBatch <= std::min(w_.last, w_.length - w_.window + 1) && lane + kWide <= w_.rows;
  }

  void hide(int64_t lane, int64_t half, int64_t k) {
    if (open(k, lane)) return;
    for (int64_t j = 0; j < kBatch; ++j) {
      float* score = scores_ + place(j, half);
      _mm512_store_ps(score, _mm512_mask_mov_ps(_mm512_set1_ps(kHidden), seen(lane, k + j), _mm512_load_ps(score)));
    }
  }

  void soften(int64_t lane, int64_t half, const BatchWeights& to) {
    const float* scores = scores_ + half * kSquare;
    const __m512 scale = _mm512_set1_ps(float(M_LOG2E) / std::sqrt(float(w_.width)));
    __m512 highest = _mm512_set1_ps(kHidden), other = highest;
    for (int64_t tile = 0; tile < kBatch / kTall; ++tile)
      for (const float *at = scores + tile * 2 * kSquare, *end = at + kSquare; at < end; at += 2 * kWide) {
        highest = _mm512_max_ps(highest, _mm512_load_ps(at));
        other = _mm512_max_ps(other, _mm512_load_ps(at + kWide));
      }
    // Where all are hidden, the top is far above them, that their weights be nothing.
    const __m512 top = _mm512_max_ps(_mm512_mul_ps(_mm512_max_ps(highest, other), scale), _mm512_set1_ps(kHidden / 1e9f));
    __m512 sum = _mm512_setzero_ps(), rest = sum;
    Half16* weight = to.weights + lane * kBatch;
    for (int64_t tile = 0; tile < kBatch / kTall; ++tile)
      for (const float *at = scores + tile * 2 * kSquare, *end = at + kSquare; at < end; at += 2 * kWide) {
        const __m512 a = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(at), scale, top));
        const __m512 b = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(at + kWide), scale, top));
        sum = _mm512_add_ps(sum, a);
        rest = _mm512_add_ps(rest, b);
        _mm512_storeu_si512(weight, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        weight += 2 * kWide;
      }
    _mm512_storeu_ps(to.tops + lane, top);
    _mm512_storeu_ps(to.sums + lane, _mm512_add_ps(sum, rest));
  }

  const Window& w_;
  const int64_t h_;
  Half16 *queries_, *edge_;
  float* scores_;
};

// Each lane's level over all batches of a head: its highest score and the log of its sum. A query that sees no key, or is
// none, is so high that it votes for none.
void level(const Window& w, const BatchWeights& head, float* levels) {
  std::fill_n(levels, w.lanes(), 1e30f);
  for (int64_t lane = 0; lane < w.lanes(); lane += kWide) {
    __m512 top = _mm512_set1_ps(kHidden), sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < w.batches(); ++i) top = _mm512_max_ps(top, _mm512_loadu_ps(head.at(i).tops + lane));
    for (int64_t i = 0; i < w.batches(); ++i) {
      const __m512 worth = exp2_of(_mm512_sub_ps(_mm512_loadu_ps(head.at(i).tops + lane), top));
      sum = _mm512_fmadd_ps(_mm512_loadu_ps(head.at(i).sums + lane), worth, sum);
    }
    float tops[16], sums[16];
    _mm512_storeu_ps(tops, top);
    _mm512_storeu_ps(sums, sum);
    for (int64_t i = lane; i < std::min(lane + kWide, w.rows); ++i)
      if (w.limit(i) >= w.first) levels[i] = tops[i - lane] + std::log2(sums[i - lane]);
  }
}

// votes[j] = sum over all lanes of the weight of key j, times what the batch's weights are worth
void vote(const BatchWeights& batch, const float* levels, int64_t keys, float* votes) {
  static thread_local std::vector<float> kept;
  float* worth = workspace(kept, batch.lanes);
  for (int64_t lane = 0; lane < batch.lanes; lane += kWide) {
    const __m512 above = _mm512_sub_ps(_mm512_loadu_ps(batch.tops + lane), _mm512_loadu_ps(levels + lane));
    _mm512_store_ps(worth + lane, exp2_of(above));
  }
  for (int64_t j = 0; j < keys; j += kWide) {
    __m512 sums[16];
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    for (int64_t lane = 0; lane < batch.lanes; lane += kWide) {
      const __m512 factor = _mm512_load_ps(worth + lane);
      const auto* weights = reinterpret_cast<const __m256i*>(batch.weights + lane * kBatch + j * kWide);
      for (int64_t i = 0; i < 16; ++i) {
        const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(weights + i)), 16);
        sums[i] = _mm512_fmadd_ps(_mm512_castsi512_ps(wide), factor, sums[i]);
      }
    }
    __m512i lines[16];
    for (int64_t i = 0; i < 16; ++i) lines[i] = _mm512_castps_si512(sums[i]);
    transpose(lines);
    __m512 sum = _mm512_castsi512_ps(lines[0]);
    for (int64_t i = 1; i < 16; ++i) sum = _mm512_add_ps(sum, _mm512_castsi512_ps(lines[i]));
    _mm512_mask_storeu_ps(votes + j, __mmask16((1u << std::min<int64_t>(keys - j, 16)) - 1), sum);
  }
}

// Heads [from, to), whose weights are there at once
void vote_heads(const Window& w, int64_t from, int64_t to, float* votes) {
  const int64_t batches = w.batches(), count = (to - from) * batches, size = w.lanes() * kBatch;
  static thread_local std::vector<Half16> weights;
  static thread_local std::vector<float> numbers;
  const int64_t runs = std::min<int64_t>(batches, 8), heads = to - from;
  float *tops = workspace(numbers, (2 * count + heads) * w.lanes()), *levels = tops + 2 * count * w.lanes();
  const BatchWeights all{workspace(weights, count * size), tops, tops + count * w.lanes(), w.lanes()};
  const auto begin = [&](int64_t run) { return batches * run / runs; };
#pragma omp parallel num_threads(at::in_parallel_region() ? 1 : at::get_num_threads())
  {
    const Tiles tiles(kPiece);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < heads * runs; ++task) {
      const int64_t h = task / runs, run = task % runs;
      Scores scores(w, from + h);
      for (int64_t i = begin(run); i < begin(run + 1); ++i) scores.leave(i, all.at(h * batches + i));
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t h = 0; h < heads; ++h) level(w, all.at(h * batches), levels + h * w.lanes());
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < heads * runs; ++task) {
      const int64_t h = task / runs, run = task % runs;
      for (int64_t i = begin(run); i < begin(run + 1); ++i)
        vote(all.at(h * batches + i), levels + h * w.lanes(), std::min(kBatch, w.last - w.key(i)),
             votes + (from + h) * (w.last - w.first) + i * kBatch);
    }
  }
}

at::Tensor window_votes(const at::Tensor& q, const at::Tensor& keys, int64_t first, int64_t last) {
  TORCH_CHECK(q.scalar_type() == at::kBFloat16 && keys.scalar_type() == at::kBFloat16 && q.size(3) % kDeep == 0,
              "window_votes: unfit numbers");
  TORCH_CHECK(keys.stride(1) == keys.size(2) && keys.stride(2) == 1 && 0 <= first && first < last &&
                  last <= keys.size(1),
              "window_votes: unfit keys");
  const auto rows = q.contiguous();
  const Window w{rows.const_data_ptr<Half16>(), keys.const_data_ptr<Half16>(), q.size(0), q.size(1) * q.size(2),
                 q.size(2), q.size(3), keys.stride(0), keys.size(1), first, last};
  auto votes = at::empty({w.heads, last - first}, q.options().dtype(at::kFloat));
  const int64_t each = w.batches() * kBatch * w.lanes(), together = std::max<int64_t>(kKept / each, 1);
  for (int64_t h = 0; h < w.heads; h += together)
    vote_heads(w, h, std::min(h + together, w.heads), votes.data_ptr<float>());
  return votes;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("window_votes", &ringkv::window_votes); }

#endif
