// prefill_attend on the CPU's tiles: stage a chunk, attend causally to all that is staged. See prefill_attend.py.
//
// FlashAttention (arXiv 2205.14135) turned on its side: keys are a tile's rows as they lie, queries its columns, so that
// a lane is a query and the softmax needs no sums across lanes. A task is some hundred query rows of one key-value head;
// it reads the keys and values once for all of them, kKeys at a time.

#include "scores.h"
#include "workspace.h"

#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <atomic>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

namespace ringkv {
namespace {

constexpr int64_t kKeys = 128;           // a block of keys
constexpr int64_t kTaskNumbers = 49152;  // of queries in a task: its sums stay in the second cache
constexpr float kSlack = 8.f;            // by how much scores may rise before the reference does; as powers of 2
constexpr float kMost = 0x1p64f;         // a sum of weights that shows that scores rose too far
constexpr int64_t kParts = kKeys / kPiece;  // of a block, in which the units take turns

struct Chunk {
  const BF16 *q, *k, *v;
  BF16 *keys, *values, *window, *out;
  float* lse;                                 // of the scores of each row of q
  int64_t tokens, heads, groups, width;       // of q
  int64_t k_token, k_head, v_token, v_head;   // strides
  int64_t head, capacity;                     // a head's staged numbers, and tokens there is room for
  int64_t window_size, start, length;
  float scale;
};

void stage_head(const Chunk& c, int64_t h) {
  for (int64_t t = 0; t < c.tokens; ++t) {
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

// Two vectors of floats as bfloat16, interleaved: the first in the low halves.
__m512i interleaved(__m512 first, __m512 second) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(first), half), 16);
  return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_add_epi32(_mm512_castps_si512(second), half));
}

// One task: query rows [first, first + rows) of one key-value head. Its rows are taken in strips of 32, two lanes of 16
// each.
class Task {
 public:
  Task(const Chunk& c, int64_t h, int64_t first, int64_t rows)
      : c_(c), h_(h), first_(first), rows_(rows), strips_((rows + kStrip - 1) / kStrip) {
    const int64_t numbers = strips_ * kStrip * c.width, lanes = strips_ * kStrip;
    const int64_t sizes[] = {numbers / 2, kKeys * c.width / 2, numbers, (kKeys + 2 * kPiece) * kStrip, kKeys * kStrip,
                             lanes,       lanes,               lanes,   kTall * c.width};
    static thread_local std::vector<float> kept;
    float* at = workspace(kept, std::accumulate(std::begin(sizes), std::end(sizes), int64_t(0)));
    float* parts[9];
    for (int i = 0; i < 9; ++i) parts[i] = std::exchange(at, at + sizes[i]);
    queries_ = reinterpret_cast<BF16*>(parts[0]);
    values_ = reinterpret_cast<BF16*>(parts[1]);
    sums_ = parts[2];
    pieces_ = parts[3];
    scores_ = pieces_ + 2 * kPiece * kStrip;
    shares_ = reinterpret_cast<BF16*>(parts[4]);
    tops_ = parts[5];
    totals_ = parts[6];
    limits_ = reinterpret_cast<int32_t*>(parts[7]);
    edge_ = reinterpret_cast<BF16*>(parts[8]);
  }

  void run() {
    for (int64_t s = 0; s < strips_; ++s) enter(s);
    const int64_t end = highest(strips_ - 1) + 1;
    for (int64_t k = 0; k < end; k += kKeys) {
      turn_values(k, std::min(k + kKeys, end));
      int64_t s = 0;
      for (; s < strips_ && (k == 0 || lowest(s) + 1 < k + kKeys); ++s)
        if (highest(s) >= k) attend(s, k, std::min(highest(s) + 1 - k, kKeys));
      attend_all(s, k);
    }
    for (int64_t s = 0; s < strips_; ++s) leave(s);
  }

 private:
  int64_t row(int64_t lane) const { return std::min(first_ + lane, first_ + rows_ - 1); }
  int64_t lowest(int64_t s) const { return limits_[s * kStrip]; }
  int64_t highest(int64_t s) const { return limits_[s * kStrip + kStrip - 1]; }
  // Where a row of the task's head stands in q [tokens, heads, groups]
  int64_t place_of(int64_t row) const { return (row / c_.groups * c_.heads + h_) * c_.groups + row % c_.groups; }
  int64_t offset(int64_t row) const { return place_of(row) * c_.width; }

  // A strip's queries as right operands, [half][width / 32][16 pairs][16 queries][2]
  void enter(int64_t s) {
    for (int64_t lane = s * kStrip; lane < (s + 1) * kStrip; lane += kWide)
      right_operand([&](int64_t i) { return c_.q + offset(row(lane + i)); }, c_.width, queries_ + lane * c_.width);
    for (int64_t lane = s * kStrip; lane < (s + 1) * kStrip; ++lane)
      limits_[lane] = int32_t(c_.start + row(lane) / c_.groups);
    std::fill_n(tops_ + s * kStrip, kStrip, kHidden);
    std::fill_n(totals_ + s * kStrip, kStrip, 0.f);
    std::fill_n(sums_ + s * kStrip * c_.width, kStrip * c_.width, 0.f);
  }

  // The values of keys [from, to) as left operands, [keys / 32][width / 16][16][32 keys]; 0 beyond `to`
  void turn_values(int64_t from, int64_t to) {
    const BF16* value = c_.values + h_ * c_.head;
    for (int64_t k = from; k < to; k += kDeep)
      for (int64_t d = 0; d < c_.width; d += kTall) {
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
        BF16* tile = values_ + (k - from) * c_.width + d * kDeep;
        for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(tile + i * kDeep, lines[i]);
      }
  }

  // Strips from `first` on see all keys of the block. It is taken in pieces of 32 keys: while the vector unit is at the
  // softmax of one, the tile unit scores the next and sums the strip before.
  void attend_all(int64_t first, int64_t from) {
    if (first == strips_) return;
    const int64_t units = c_.width / kTall / 2;
    score(first, from, piece(first, 0), kPiece);
    for (int64_t s = first; s <= strips_; ++s) {
      if (s < strips_) remember(s);
      for (int64_t part = 0; part < kParts; ++part) {
        const int64_t next = s + (part + 1) / kParts, of_next = (part + 1) % kParts;
        if (next < strips_) score(next, from + of_next * kPiece, piece(next, of_next), kPiece);
        if (s < strips_) soften(s, piece(s, part), part * kPiece, kPiece);
        if (s > first) gather(s - 1, kKeys / kDeep, 2 * (part * units / kParts), 2 * ((part + 1) * units / kParts));
      }
      if (s < strips_) settle(s, from);
    }
  }

  // One strip by itself: some queries do not see all `count` keys, or have no reference score yet
  void attend(int64_t s, int64_t from, int64_t count) {
    const int64_t padded = (count + kDeep - 1) / kDeep * kDeep;
    score(s, from, scores_, padded);
    if (lowest(s) + 1 < from + padded) hide(s, from, padded);
    weigh(s, padded);
    gather(s, padded / kDeep, 0, c_.width / kTall);
  }

  void weigh(int64_t s, int64_t count) {
    raise(s, count);
    shrink(s);
    soften(s, scores_, 0, count);
  }

  void remember(int64_t s) {
    for (int64_t half = 0; half < 2; ++half) before_[half] = _mm512_load_ps(totals_ + s * kStrip + half * kWide);
  }

  // A block's scores are seldom far above all before them; where they are, its shares are computed once more, from a
  // higher reference. So its maxima need not be known: up to such a sum, floats are as exact as they are near 1.
  void settle(int64_t s, int64_t from) {
    const float* totals = totals_ + s * kStrip;
    const __m512 most = _mm512_max_ps(_mm512_load_ps(totals), _mm512_load_ps(totals + kWide));
    if (!_mm512_cmp_ps_mask(most, _mm512_set1_ps(kMost), _CMP_GT_OQ)) return;
    for (int64_t half = 0; half < 2; ++half) _mm512_store_ps(totals_ + s * kStrip + half * kWide, before_[half]);
    score(s, from, scores_, kKeys);
    weigh(s, kKeys);
  }

  // A block's scores [key tile][half][16 keys][16 queries], and before them those of two pieces in work. Two strips'
  // shares [half][pairs][16][16][2].
  float* piece(int64_t s, int64_t part) const { return pieces_ + (s * kParts + part) % 2 * kPiece * kStrip; }
  BF16* shares(int64_t s) const { return shares_ + s % 2 * kKeys * kStrip; }

  // `count` keys from `from` on times a strip's queries, two tiles at a time
  void score(int64_t s, int64_t from, float* to, int64_t count) {
    const auto keys = [&](int64_t key, int64_t side) {
      return sixteen_keys(c_.keys + h_ * c_.head + key * c_.width, c_.capacity - key, c_.width,
                          edge_ + side * kTall * c_.width);
    };
    for (int64_t key = from; key < from + count; key += kPiece, to += kPiece * kStrip)
      score_keys(keys(key, 0), keys(key + kTall, 1), queries_ + s * kStrip * c_.width, c_.width, to);
  }

  void hide(int64_t s, int64_t from, int64_t count) {
    for (int64_t half = 0; half < 2; ++half) {
      const __m512i limits = _mm512_load_si512(limits_ + s * kStrip + half * kWide);
      for (int64_t j = 0; j < count; ++j) {
        const __mmask16 seen = _mm512_cmpge_epi32_mask(limits, _mm512_set1_epi32(int(from + j)));
        float* score = scores_ + place(j, half);
        _mm512_store_ps(score, _mm512_mask_mov_ps(_mm512_set1_ps(kHidden), seen, _mm512_load_ps(score)));
      }
    }
  }

  // Each query's reference score: the highest so far, or a little less, since sums need not shrink at every new one.
  // Remembers by how much it rose with this block's `count` keys.
  void raise(int64_t s, int64_t count) {
    for (int64_t half = 0; half < 2; ++half) {
      __m512 highest = _mm512_set1_ps(kHidden), other = highest;
      for (int64_t j = 0; j < count; j += kTall)
        for (const float *at = scores_ + place(j, half), *end = at + kSquare; at < end; at += 2 * kWide) {
          highest = _mm512_max_ps(highest, _mm512_load_ps(at));
          other = _mm512_max_ps(other, _mm512_load_ps(at + kWide));
        }
      highest = _mm512_max_ps(highest, other);
      float *top = tops_ + s * kStrip + half * kWide, *total = totals_ + s * kStrip + half * kWide;
      const __m512 before = _mm512_load_ps(top), now = _mm512_mul_ps(highest, scale_);
      rose_[half] = _mm512_cmp_ps_mask(now, _mm512_add_ps(before, _mm512_set1_ps(kSlack)), _CMP_GT_OQ);
      if (!rose_[half]) continue;
      ratio_[half] = _mm512_mask_mov_ps(_mm512_set1_ps(1.f), rose_[half], exp2_of(_mm512_sub_ps(before, now)));
      _mm512_mask_store_ps(top, rose_[half], now);
      _mm512_store_ps(total, _mm512_mul_ps(_mm512_load_ps(total), ratio_[half]));
    }
  }

  // Earlier blocks' sums, where the reference rose
  void shrink(int64_t s) {
    for (int64_t half = 0; half < 2; ++half) {
      float* sums = sums_ + (s * 2 + half) * kWide * c_.width;
      for (int64_t d = 0; rose_[half] && d < c_.width; ++d)
        _mm512_store_ps(sums + d * kWide, _mm512_mul_ps(_mm512_load_ps(sums + d * kWide), ratio_[half]));
    }
  }

  // `count` keys' scores become shares of the softmax: right operands [pairs][16 pairs of keys][16 queries][2], from the
  // block's key `from` on
  void soften(int64_t s, const float* scores, int64_t from, int64_t count) {
    for (int64_t half = 0; half < 2; ++half) {
      BF16* share = shares(s) + half * kKeys * kWide + from * kWide;
      const __m512 scale = scale_, top = _mm512_load_ps(tops_ + s * kStrip + half * kWide);
      float* kept = totals_ + s * kStrip + half * kWide;
      __m512 total = _mm512_load_ps(kept), other = _mm512_setzero_ps();
      for (int64_t j = 0; j < count; j += kTall) {
        const float* at = scores + place(j, half);
        BF16* to_share = share + j * kWide;
        for (int64_t i = 0; i < kSquare; i += 2 * kWide) {
          const __m512 a = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(at + i), scale, top));
          const __m512 b = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(at + i + kWide), scale, top));
          total = _mm512_add_ps(total, a);
          other = _mm512_add_ps(other, b);
          _mm512_store_si512(to_share + i, interleaved(a, b));
        }
      }
      _mm512_store_ps(kept, _mm512_add_ps(total, other));
    }
  }

  // sums [half][width][16 queries] += values * shares, for tiles [tile, stop) of the width, two by two
  void gather(int64_t s, int64_t pairs, int64_t tile, int64_t stop) {
    const BF16* share = shares(s);
    for (; tile < stop; tile += 2) {
      const BF16* value = values_ + tile * kBlockSize;
      multiply_four({value, value + kBlockSize, kDeep, c_.width * kDeep}, share, share + kKeys * kWide, pairs,
                    {sums_ + s * kStrip * c_.width + tile * kSquare, kWide, kWide * c_.width, kSquare}, true);
    }
  }

  void leave(int64_t s) {
    for (int64_t lane = s * kStrip; lane < (s + 1) * kStrip; lane += kWide) {
      const __m512 scale = _mm512_div_ps(_mm512_set1_ps(1.f), _mm512_load_ps(totals_ + lane));
      for (int64_t d = 0; d < c_.width; d += kTall) {
        const float* sums = sums_ + lane * c_.width + d * kWide;
        __m512i lines[16];
        for (int64_t i = 0; i < 16; ++i)
          lines[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(sums + i * kWide), scale));
        transpose(lines);
        for (int64_t i = 0; i < 16 && lane + i < rows_; ++i)
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(c_.out + offset(row(lane + i)) + d),
                              (__m256i)_mm512_cvtneps_pbh(_mm512_castsi512_ps(lines[i])));
      }
      for (int64_t i = lane; i < lane + kWide && i < rows_; ++i)
        c_.lse[place_of(row(i))] = (tops_[i] + std::log2(totals_[i])) * float(M_LN2);
    }
  }

  const Chunk& c_;
  const int64_t h_, first_, rows_, strips_;
  BF16 *queries_, *values_, *shares_, *edge_;
  float *sums_, *pieces_, *scores_, *tops_, *totals_;
  int32_t* limits_;
  const __m512 scale_ = _mm512_set1_ps(float(M_LOG2E) * c_.scale);
  __m512 ratio_[2] = {}, before_[2] = {};
  __mmask16 rose_[2] = {};
};

void attend_all(const Chunk& c) {
  const int64_t rows = c.tokens * c.groups, tall = std::max<int64_t>(kTaskNumbers / c.width / kStrip, 1) * kStrip;
  const int64_t parts = (rows + tall - 1) / tall, size = ((rows + parts - 1) / parts + kStrip - 1) / kStrip * kStrip;
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(at::in_parallel_region() ? 1 : at::get_num_threads())
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t h = 0; h < c.heads; ++h) stage_head(c, h);
    const Tiles tiles(2 * kTall);
    const NoSubnormals flushed;
    // Later rows see more keys: they go first, so that no thread is left alone with a long task.
    for (int64_t task; (task = next++) < parts * c.heads;) {
      const int64_t part = parts - 1 - task / c.heads, first = part * size;
      if (first < rows) Task(c, task % c.heads, first, std::min(size, rows - first)).run();
    }
  }
}

std::tuple<at::Tensor, at::Tensor> prefill_attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                  at::Tensor keys, at::Tensor values, at::Tensor window,
                                                  const at::Tensor& span, double scale) {
  const auto* numbers = span.const_data_ptr<int64_t>();
  const int64_t start = numbers[0], length = numbers[1];
  TORCH_CHECK(q.scalar_type() == at::kBFloat16 && q.size(3) % kDeep == 0, "prefill_attend: unfit numbers");
  TORCH_CHECK(k.stride(2) == 1 && v.stride(2) == 1 && window.is_contiguous(), "prefill_attend: unfit strides");
  TORCH_CHECK(keys.strides() == values.strides() && keys.stride(1) == keys.size(2) && keys.stride(2) == 1,
              "prefill_attend: staged tokens must follow each other");
  TORCH_CHECK(start + q.size(0) <= keys.size(1), "prefill_attend: the chunk ends beyond the staging");
  const auto rows = q.contiguous();
  auto out = at::empty_like(rows), lse = at::empty(rows.sizes().slice(0, 3), rows.options().dtype(at::kFloat));
  attend_all({rows.const_data_ptr<BF16>(), k.const_data_ptr<BF16>(), v.const_data_ptr<BF16>(),
              keys.data_ptr<BF16>(), values.data_ptr<BF16>(), window.data_ptr<BF16>(), out.data_ptr<BF16>(),
              lse.data_ptr<float>(), q.size(0), q.size(1), q.size(2), q.size(3), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
              keys.stride(0), keys.size(1), window.size(2), start, length, float(scale)});
  return {out, lse};
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("prefill_attend_tiles", &ringkv::prefill_attend); }

#endif
