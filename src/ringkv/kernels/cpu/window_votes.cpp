// window_votes on the CPU's tile unit: the attention that each key gets from a prompt's last queries. See window_votes.py.
//
// Scores are computed twice, since the tile unit is faster than memory: once for each query's maximum and sum, once for
// the weights. A task is a run of keys of one key-value head.

#include "scores.h"

#if defined(__AMX_BF16__) && defined(CPU_CAPABILITY_AVX512)

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <vector>

namespace ringkv {
namespace {

constexpr int64_t kRun = 1024;  // keys of a task
constexpr int64_t kBatch = 128;  // keys that are scored at once

struct Window {
  const Half16 *q, *keys;
  int64_t heads, rows, window, width, head, length, first, last;  // rows of q a head; keys [first, last) are summed over

  int64_t strips() const { return (rows + kStrip - 1) / kStrip; }
  int64_t lanes() const { return strips() * kStrip; }
  int64_t runs() const { return (last - first + kRun - 1) / kRun; }
  int64_t limit(int64_t row) const { return std::min(length - window + row % window, last - 1); }
};

// Highest scores and sums of weights of all lanes, for one run of one head
struct Totals {
  float *tops, *sums;
};

class Run {
 public:
  Run(const Window& w, int64_t h, int64_t run) : w_(w), h_(h), from_(w.first + run * kRun) {
    to_ = std::min(from_ + kRun, w.last);
    static thread_local std::vector<float> kept;
    const int64_t need = w.lanes() * w.width / 2 + kBatch * kStrip + kTall * w.width + kBatch * kWide + 16;
    if (int64_t(kept.size()) < need) kept.resize(need);
    float* at = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(kept.data()) + 63) & ~uintptr_t(63));
    queries_ = reinterpret_cast<Half16*>(at);
    scores_ = at + w.lanes() * w.width / 2;
    edge_ = reinterpret_cast<Half16*>(scores_ + kBatch * kStrip);
    sums_ = scores_ + kBatch * kStrip + kTall * w.width;
    const Half16* q = w.q + h * w.rows * w.width;
    for (int64_t lane = 0; lane < w.lanes(); lane += kWide)
      right_operand([&](int64_t i) { return q + std::min(lane + i, w.rows - 1) * w.width; }, w.width,
                    queries_ + lane * w.width);
  }

  void total(const Totals& totals) {
    std::fill_n(totals.tops, w_.lanes(), kHidden);
    std::fill_n(totals.sums, w_.lanes(), 0.f);
    for (int64_t k = from_; k < to_; k += kBatch)
      for (int64_t s = 0; s < w_.strips(); ++s) {
        score(s, k);
        for (int64_t half = 0; half < 2; ++half) add(s * kStrip + half * kWide, half, k, totals);
      }
  }

  // votes[j] = sum over all queries of exp(score - level), where a level is a query's maximum and the log of its sum
  void vote(const float* levels, float* votes) {
    for (int64_t k = from_; k < to_; k += kBatch) {
      std::fill_n(sums_, kBatch * kWide, 0.f);
      for (int64_t s = 0; s < w_.strips(); ++s) {
        score(s, k);
        for (int64_t half = 0; half < 2; ++half) weigh(s * kStrip + half * kWide, half, k, levels);
      }
      for (int64_t j = 0; j < kBatch; j += kWide) {
        __m512i lines[16];
        for (int64_t i = 0; i < 16; ++i) lines[i] = _mm512_load_si512(sums_ + (j + i) * kWide);
        transpose(lines);
        __m512 sum = _mm512_castsi512_ps(lines[0]);
        for (int64_t i = 1; i < 16; ++i) sum = _mm512_add_ps(sum, _mm512_castsi512_ps(lines[i]));
        const int64_t left = std::clamp<int64_t>(to_ - k - j, 0, 16);
        _mm512_mask_storeu_ps(votes + k + j, __mmask16((1u << left) - 1), sum);
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

  // All lanes see all of the 32 keys, but near the prompt's end
  bool open(int64_t k, int64_t lane) const {
    return k + kBatch <= std::min(w_.last, w_.length - w_.window + 1) && lane + kWide <= w_.rows;
  }

  // Hides what a lane does not see; the scores stay unscaled
  void settle(int64_t lane, int64_t half, int64_t k) {
    if (open(k, lane)) return;
    for (int64_t j = 0; j < kBatch; ++j) {
      float* score = scores_ + place(j, half);
      _mm512_store_ps(score, _mm512_mask_mov_ps(_mm512_set1_ps(kHidden), seen(lane, k + j), _mm512_load_ps(score)));
    }
  }

  void add(int64_t lane, int64_t half, int64_t k, const Totals& totals) {
    settle(lane, half, k);
    const float* scores = scores_ + half * kSquare;
    const __m512 scale = scale_, before = _mm512_load_ps(totals.tops + lane);
    __m512 highest = _mm512_set1_ps(kHidden), other = highest;
    for (int64_t tile = 0; tile < kBatch / kTall; ++tile)
      for (const float *at = scores + tile * 2 * kSquare, *end = at + kSquare; at < end; at += 2 * kWide) {
        highest = _mm512_max_ps(highest, _mm512_load_ps(at));
        other = _mm512_max_ps(other, _mm512_load_ps(at + kWide));
      }
    const __m512 top = _mm512_max_ps(before, _mm512_mul_ps(_mm512_max_ps(highest, other), scale));
    __m512 sum = _mm512_mul_ps(_mm512_load_ps(totals.sums + lane), exp2_of(_mm512_sub_ps(before, top)));
    __m512 rest = _mm512_setzero_ps();
    for (int64_t tile = 0; tile < kBatch / kTall; ++tile)
      for (const float *at = scores + tile * 2 * kSquare, *end = at + kSquare; at < end; at += 2 * kWide) {
        sum = _mm512_add_ps(sum, exp2_of(_mm512_fmsub_ps(_mm512_load_ps(at), scale, top)));
        rest = _mm512_add_ps(rest, exp2_of(_mm512_fmsub_ps(_mm512_load_ps(at + kWide), scale, top)));
      }
    _mm512_store_ps(totals.tops + lane, top);
    _mm512_store_ps(totals.sums + lane, _mm512_add_ps(sum, rest));
  }

  void weigh(int64_t lane, int64_t half, int64_t k, const float* levels) {
    settle(lane, half, k);
    const __m512 scale = scale_, level = _mm512_loadu_ps(levels + lane);
    const float* scores = scores_ + half * kSquare;
    float* sums = sums_;
    for (int64_t tile = 0; tile < kBatch / kTall; ++tile, sums += kSquare) {
      const float* at = scores + tile * 2 * kSquare;
      for (int64_t i = 0; i < kSquare; i += kWide) {
        const __m512 weight = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(at + i), scale, level));
        _mm512_store_ps(sums + i, _mm512_add_ps(_mm512_load_ps(sums + i), weight));
      }
    }
  }

  const Window& w_;
  const int64_t h_, from_;
  int64_t to_;
  Half16 *queries_, *edge_;
  float *scores_, *sums_;
  const __m512 scale_ = _mm512_set1_ps(float(M_LOG2E) / std::sqrt(float(w_.width)));
};

// Each lane's level over all runs of a head; a query that sees no key votes for none
std::vector<float> levels_of(const Window& w, const float* tops, const float* sums) {
  std::vector<float> levels(w.lanes(), 1e30f);
  for (int64_t lane = 0; lane < w.rows; ++lane) {
    if (w.limit(lane) < w.first) continue;
    float top = kHidden, sum = 0.f;
    for (int64_t run = 0; run < w.runs(); ++run) top = std::max(top, tops[run * w.lanes() + lane]);
    for (int64_t run = 0; run < w.runs(); ++run)
      sum += sums[run * w.lanes() + lane] * std::exp2(tops[run * w.lanes() + lane] - top);
    levels[lane] = top + std::log2(sum);
  }
  return levels;
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
  float* out = votes.data_ptr<float>();
  const int64_t tasks = w.heads * w.runs();
  const auto store = at::empty({2, tasks, w.lanes()}, votes.options());
  float *tops = store.data_ptr<float>(), *sums = tops + tasks * w.lanes();
#pragma omp parallel num_threads(at::in_parallel_region() ? 1 : at::get_num_threads())
  {
    const Tiles tiles(kPiece);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < tasks; ++i)
      Run(w, i / w.runs(), i % w.runs()).total({tops + i * w.lanes(), sums + i * w.lanes()});
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < tasks; ++i) {
      const int64_t h = i / w.runs(), at = h * w.runs() * w.lanes();
      Run(w, h, i % w.runs()).vote(levels_of(w, tops + at, sums + at).data(), out + h * (last - first) - first);
    }
  }
  return votes;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("window_votes", &ringkv::window_votes); }

#endif
