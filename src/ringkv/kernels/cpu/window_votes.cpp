// window_votes on the CPU's tiles: the attention that each key gets from a prompt's last queries. See window_votes.py.
//
// A key's share needs each query's sum over all keys. So a strip of queries first leaves the weights of all keys, each
// batch of keys relative to its own highest scores, in bfloat16; what those are worth is known when all have left theirs.
// A thread takes one strip of one head at a time, whose weights, 64 bytes a key, mostly stay in the second cache.

#include "lanes.h"
#include "scores.h"
#include "workspace.h"

#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace ringkv {
namespace {

constexpr int64_t kBatch = 128;  // keys that are scored at once

struct Window {
  const BF16 *q, *keys;
  int64_t heads, rows, window, width, head, length, first, last;  // rows of q a head; keys [first, last) are summed over
  float scale;

  int64_t strips() const { return (rows + kStrip - 1) / kStrip; }
  int64_t batches() const { return (last - first + kBatch - 1) / kBatch; }
  int64_t key(int64_t batch) const { return first + batch * kBatch; }
  int64_t limit(int64_t row) const { return std::min(length - window + row % window, last - 1); }
};

// What a batch leaves: weights [2][kBatch][16], one half of the strip's lanes after the other, relative to their highest
// scores in the batch, these [kStrip], and the sums of weights [kStrip]
struct BatchWeights {
  BF16* weights;
  float *tops, *sums;

  BatchWeights at(int64_t batch) const {
    return {weights + batch * kStrip * kBatch, tops + batch * kStrip, sums + batch * kStrip};
  }
};

// One strip of a head's queries
class Strip {
 public:
  Strip(const Window& w, int64_t h, int64_t strip) : w_(w), head_(w.keys + h * w.head), lane_(strip * kStrip) {
    static thread_local std::vector<BF16> kept, weights;
    static thread_local std::vector<float> numbers;
    const int64_t size = kStrip * w.width, batches = w.batches();
    queries_ = workspace(kept, 2 * size);
    edge_ = queries_ + size;
    scores_ = workspace(numbers, kBatch * kStrip + 2 * batches * kStrip);
    float* tops = scores_ + kBatch * kStrip;
    all_ = {workspace(weights, batches * kStrip * kBatch), tops, tops + batches * kStrip};
    const BF16* q = w.q + h * w.rows * w.width;
    for (int64_t i = 0; i < kStrip; i += kWide)
      right_operand([&](int64_t j) { return q + std::min(lane_ + i + j, w.rows - 1) * w.width; }, w.width,
                    queries_ + i * w.width);
  }

  // votes[j] = sum over the strip's queries of the weight of key first + j
  void vote(float* votes) {
    float levels[kStrip];
    for (int64_t i = 0; i < w_.batches(); ++i) leave(w_.key(i), all_.at(i));
    level(levels);
    for (int64_t i = 0; i < w_.batches(); ++i)
      count(all_.at(i), levels, std::min(kBatch, w_.last - w_.key(i)), votes + i * kBatch);
  }

 private:
  void leave(int64_t k, const BatchWeights& to) {
    for (int64_t j = 0; j < kBatch; j += 2 * kTall)
      score_keys(keys_at(k + j, 0), keys_at(k + j + kTall, 1), queries_, w_.width, scores_ + place(j, 0));
    for (int64_t half = 0; half < 2; ++half) {
      hide(half, k);
      soften(half, to);
    }
  }

  const BF16* keys_at(int64_t key, int64_t which) {
    return sixteen_keys(head_ + key * w_.width, w_.length - key, w_.width, edge_ + which * kTall * w_.width);
  }

  __mmask16 seen(int64_t lane, int64_t key) const {
    __mmask16 mask = 0;
    for (int64_t i = 0; i < kWide; ++i)
      mask |= __mmask16(lane + i < w_.rows && key <= w_.limit(lane + i)) << i;
    return mask;
  }

  // Hides from each query the keys after it; all see all keys of a batch, but near the prompt's end.
  void hide(int64_t half, int64_t k) {
    if (k + kBatch <= std::min(w_.last, w_.length - w_.window + 1)) return;
    const int64_t lane = lane_ + half * kWide;
    for (int64_t j = 0; j < kBatch; ++j) {
      float* score = scores_ + place(j, half);
      _mm512_store_ps(score, _mm512_mask_mov_ps(_mm512_set1_ps(kHidden), seen(lane, k + j), _mm512_load_ps(score)));
    }
  }

  void soften(int64_t half, const BatchWeights& to) const {
    const float* scores = scores_ + half * kSquare;
    const __m512 scale = _mm512_set1_ps(float(M_LOG2E) * w_.scale);
    __m512 highest = _mm512_set1_ps(kHidden), other = highest;
    for (int64_t tile = 0; tile < kBatch / kTall; ++tile)
      for (const float *at = scores + tile * 2 * kSquare, *end = at + kSquare; at < end; at += 2 * kWide) {
        highest = _mm512_max_ps(highest, _mm512_load_ps(at));
        other = _mm512_max_ps(other, _mm512_load_ps(at + kWide));
      }
    // Where all are hidden, the top is far above them, that their weights be nothing.
    const __m512 top = _mm512_max_ps(_mm512_mul_ps(_mm512_max_ps(highest, other), scale), _mm512_set1_ps(kHidden / 1e9f));
    __m512 sum = _mm512_setzero_ps(), rest = sum;
    BF16* weight = to.weights + half * kWide * kBatch;
    for (int64_t tile = 0; tile < kBatch / kTall; ++tile)
      for (const float *at = scores + tile * 2 * kSquare, *end = at + kSquare; at < end; at += 2 * kWide) {
        const __m512 a = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(at), scale, top));
        const __m512 b = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(at + kWide), scale, top));
        sum = _mm512_add_ps(sum, a);
        rest = _mm512_add_ps(rest, b);
        _mm512_storeu_si512(weight, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        weight += 2 * kWide;
      }
    _mm512_store_ps(to.tops + half * kWide, top);
    _mm512_store_ps(to.sums + half * kWide, _mm512_add_ps(sum, rest));
  }

  // Each query's level over all batches: its highest score and the log of its sum. One that sees no key, or is none, is
  // so high that it votes for none.
  void level(float* levels) const {
    std::fill_n(levels, kStrip, 1e30f);
    for (int64_t lane = 0; lane < kStrip; lane += kWide) {
      __m512 top = _mm512_set1_ps(kHidden), sum = _mm512_setzero_ps();
      for (int64_t i = 0; i < w_.batches(); ++i) top = _mm512_max_ps(top, _mm512_load_ps(all_.at(i).tops + lane));
      for (int64_t i = 0; i < w_.batches(); ++i) {
        const __m512 worth = exp2_of(_mm512_sub_ps(_mm512_load_ps(all_.at(i).tops + lane), top));
        sum = _mm512_fmadd_ps(_mm512_load_ps(all_.at(i).sums + lane), worth, sum);
      }
      float tops[16], sums[16];
      _mm512_storeu_ps(tops, top);
      _mm512_storeu_ps(sums, sum);
      for (int64_t i = 0; i < std::min(kWide, w_.rows - lane_ - lane); ++i)
        if (w_.limit(lane_ + lane + i) >= w_.first) levels[lane + i] = tops[i] + std::log2(sums[i]);
    }
  }

  // A batch's votes: its weights, times what they are worth
  static void count(const BatchWeights& batch, const float* levels, int64_t keys, float* votes) {
    Vec worth[2];
    for (int64_t half = 0; half < 2; ++half)
      worth[half] = exp2_of(
          _mm512_sub_ps(_mm512_load_ps(batch.tops + half * kWide), _mm512_loadu_ps(levels + half * kWide)));
    const auto weight = [&](int64_t half, int64_t j) {
      const auto* at = reinterpret_cast<const __m256i*>(batch.weights + (half * kBatch + j) * kWide);
      return Vec(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at)), 16)));
    };
    for (int64_t j = 0; j < keys; j += kWide) {
      Vec quarters[4];
      for (int64_t quarter = 0; quarter < 4; ++quarter) {
        Vec four[4];
        for (int64_t i = 0; i < 4; ++i) {
          const int64_t key = j + 4 * quarter + i;
          four[i] = at::vec::fmadd(weight(0, key), worth[0], weight(1, key) * worth[1]);
        }
        quarters[quarter] = four_sums(four);
      }
      sixteen_sums(quarters).store(votes + j, int(std::min<int64_t>(keys - j, kWide)));
    }
  }

  const Window& w_;
  const BF16* head_;
  const int64_t lane_;
  BF16 *queries_, *edge_;
  float* scores_;
  BatchWeights all_;
};

// Strips vote alone, and are added up in their order: the number of threads changes nothing.
void vote_all(const Window& w, float* votes) {
  const int64_t keys = w.last - w.first, strips = w.strips();
  static thread_local std::vector<float> kept;
  float* parts = workspace(kept, w.heads * strips * keys);
#pragma omp parallel num_threads(at::in_parallel_region() ? 1 : at::get_num_threads())
  {
    const Tiles tiles(kPiece);
    const NoSubnormals flushed;
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < w.heads * strips; ++task)
      Strip(w, task / strips, task % strips).vote(parts + task * keys);
#pragma omp for
    for (int64_t h = 0; h < w.heads; ++h) {
      float* sums = votes + h * keys;
      std::fill_n(sums, keys, 0.f);
      for (int64_t s = 0; s < strips; ++s)
        for (int64_t j = 0; j < keys; ++j) sums[j] += parts[(h * strips + s) * keys + j];
    }
  }
}

at::Tensor window_votes(const at::Tensor& q, const at::Tensor& keys, int64_t first, int64_t last, double scale) {
  TORCH_CHECK(q.scalar_type() == at::kBFloat16 && keys.scalar_type() == at::kBFloat16 && q.size(3) % kDeep == 0,
              "window_votes: unfit numbers");
  TORCH_CHECK(keys.stride(1) == keys.size(2) && keys.stride(2) == 1 && 0 <= first && first < last &&
                  last <= keys.size(1),
              "window_votes: unfit keys");
  const auto rows = q.contiguous();
  const Window w{rows.const_data_ptr<BF16>(), keys.const_data_ptr<BF16>(), q.size(0), q.size(1) * q.size(2),
                 q.size(2), q.size(3), keys.stride(0), keys.size(1), first, last, float(scale)};
  auto votes = at::empty({w.heads, last - first}, q.options().dtype(at::kFloat));
  vote_all(w, votes.data_ptr<float>());
  return votes;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("window_votes", &ringkv::window_votes); }

#endif
