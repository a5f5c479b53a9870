// window_votes with tiles on the CPU: the attention that each key gets from a prompt's last queries. See
// window_votes.py.
//
// A key's vote needs each query's softmax sum over all keys. So a query block first stores the weights of all keys in
// bfloat16, each batch of keys relative to its own highest scores; after the last batch they are scaled and summed. A
// thread processes one query block of one head at a time, whose weights, 64 bytes per key, mostly stay in L2.

#include "lanes.h"
#include "scores.h"
#include "workspace.h"

#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)

namespace ringkv {
namespace {

constexpr int64_t kKeyBatch = 128;  // keys scored together

struct Window {
  const BF16 *q, *keys;
  int64_t heads, rows, window, width, head, length;  // rows: of q per head
  float scale;

  int64_t query_blocks() const { return (rows + kQueryBlock - 1) / kQueryBlock; }
  int64_t batches() const { return (length + kKeyBatch - 1) / kKeyBatch; }
  int64_t last_visible(int64_t row) const { return length - window + row % window; }
};

// A batch's result: weights [2 halves][kKeyBatch][16 queries], relative to each query's highest score in the batch;
// these highest scores [kQueryBlock]; and the sums of weights [kQueryBlock].
struct BatchWeights {
  BF16* weights;
  float *tops, *sums;

  BatchWeights at(int64_t batch) const {
    return {weights + batch * kQueryBlock * kKeyBatch, tops + batch * kQueryBlock, sums + batch * kQueryBlock};
  }
};

// One block of a head's queries.
class QueryBlock {
 public:
  QueryBlock(const Window& w, int64_t h, int64_t query_block)
      : w_(w), head_(w.keys + h * w.head), lane_(query_block * kQueryBlock) {
    static thread_local std::vector<BF16> memory, weights;
    static thread_local std::vector<float> scores;
    const int64_t size = kQueryBlock * w.width, batches = w.batches();
    queries_ = workspace(memory, 2 * size);
    padded_keys_ = queries_ + size;
    scores_ = workspace(scores, kKeyBatch * kQueryBlock + 2 * batches * kQueryBlock);
    float* tops = scores_ + kKeyBatch * kQueryBlock;
    all_ = {workspace(weights, batches * kQueryBlock * kKeyBatch), tops, tops + batches * kQueryBlock};
    const BF16* q = w.q + h * w.rows * w.width;
    for (int64_t i = 0; i < kQueryBlock; i += kTileN)
      pack_vnni([&](int64_t j) { return q + std::min(lane_ + i + j, w.rows - 1) * w.width; }, w.width,
                queries_ + i * w.width);
  }

  // votes[j] = sum over the block's queries of the softmax weight of key j.
  void vote(float* votes) {
    float lse[kQueryBlock];
    for (int64_t i = 0; i < w_.batches(); ++i) score_batch(i * kKeyBatch, all_.at(i));
    log_sum_exp(lse);
    for (int64_t i = 0; i < w_.batches(); ++i)
      add_votes(all_.at(i), lse, std::min(kKeyBatch, w_.length - i * kKeyBatch), votes + i * kKeyBatch);
  }

 private:
  void score_batch(int64_t k, const BatchWeights& to) {
    for (int64_t j = 0; j < kKeyBatch; j += 2 * kTileM)
      score_keys(keys_at(k + j, 0), keys_at(k + j + kTileM, 1), queries_, w_.width, scores_ + score_offset(j, 0));
    for (int64_t half = 0; half < 2; ++half) {
      mask(half, k);
      exponentiate(half, to);
    }
  }

  const BF16* keys_at(int64_t key, int64_t which) {
    return key_tile(head_ + key * w_.width, w_.length - key, w_.width, padded_keys_ + which * kTileM * w_.width);
  }

  __mmask16 visible(int64_t lane, int64_t key) const {
    __mmask16 mask = 0;
    for (int64_t i = 0; i < kTileN; ++i)
      mask |= __mmask16(lane + i < w_.rows && key <= w_.last_visible(lane + i)) << i;
    return mask;
  }

  // Masks the keys after each query. Only batches near the prompt's end have any.
  void mask(int64_t half, int64_t k) {
    if (k + kKeyBatch <= w_.length - w_.window + 1) return;
    const int64_t lane = lane_ + half * kTileN;
    for (int64_t j = 0; j < kKeyBatch; ++j) {
      float* score = scores_ + score_offset(j, half);
      _mm512_store_ps(score, _mm512_mask_mov_ps(_mm512_set1_ps(kMasked), visible(lane, k + j), _mm512_load_ps(score)));
    }
  }

  void exponentiate(int64_t half, const BatchWeights& to) const {
    const float* scores = scores_ + half * kTileSums;
    const __m512 scale = _mm512_set1_ps(float(M_LOG2E) * w_.scale);
    __m512 highest = _mm512_set1_ps(kMasked), other = highest;
    for (int64_t tile = 0; tile < kKeyBatch / kTileM; ++tile)
      for (const float *at = scores + tile * 2 * kTileSums, *end = at + kTileSums; at < end; at += 2 * kTileN) {
        highest = _mm512_max_ps(highest, _mm512_load_ps(at));
        other = _mm512_max_ps(other, _mm512_load_ps(at + kTileN));
      }
    // If all keys are masked, the top is far above their scores, so that their weights are 0.
    const __m512 scaled = _mm512_mul_ps(_mm512_max_ps(highest, other), scale);
    const __m512 top = _mm512_max_ps(scaled, _mm512_set1_ps(kMasked / 1e9f));
    __m512 sum = _mm512_setzero_ps(), rest = sum;
    BF16* weight = to.weights + half * kTileN * kKeyBatch;
    for (int64_t tile = 0; tile < kKeyBatch / kTileM; ++tile)
      for (const float *at = scores + tile * 2 * kTileSums, *end = at + kTileSums; at < end; at += 2 * kTileN) {
        const __m512 a = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(at), scale, top));
        const __m512 b = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(at + kTileN), scale, top));
        sum = _mm512_add_ps(sum, a);
        rest = _mm512_add_ps(rest, b);
        _mm512_storeu_si512(weight, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        weight += 2 * kTileN;
      }
    _mm512_store_ps(to.tops + half * kTileN, top);
    _mm512_store_ps(to.sums + half * kTileN, _mm512_add_ps(sum, rest));
  }

  // Computes each query's log2-sum-exp over all batches. It is 1e30, so that all votes are 0, for padding.
  void log_sum_exp(float* lse) const {
    std::fill_n(lse, kQueryBlock, 1e30f);
    for (int64_t lane = 0; lane < kQueryBlock; lane += kTileN) {
      __m512 top = _mm512_set1_ps(kMasked), sum = _mm512_setzero_ps();
      for (int64_t i = 0; i < w_.batches(); ++i) top = _mm512_max_ps(top, _mm512_load_ps(all_.at(i).tops + lane));
      for (int64_t i = 0; i < w_.batches(); ++i) {
        const __m512 factor = exp2_of(_mm512_sub_ps(_mm512_load_ps(all_.at(i).tops + lane), top));
        sum = _mm512_fmadd_ps(_mm512_load_ps(all_.at(i).sums + lane), factor, sum);
      }
      float tops[16], sums[16];
      _mm512_storeu_ps(tops, top);
      _mm512_storeu_ps(sums, sum);
      for (int64_t i = 0; i < std::min(kTileN, w_.rows - lane_ - lane); ++i)
        lse[lane + i] = tops[i] + std::log2(sums[i]);
    }
  }

  // Sums a batch's weights over the queries, each scaled to its query's softmax over all batches.
  static void add_votes(const BatchWeights& batch, const float* lse, int64_t keys, float* votes) {
    Vec factor[2];
    for (int64_t half = 0; half < 2; ++half)
      factor[half] = exp2_of(
          _mm512_sub_ps(_mm512_load_ps(batch.tops + half * kTileN), _mm512_loadu_ps(lse + half * kTileN)));
    const auto weight = [&](int64_t half, int64_t j) {
      const auto* at = reinterpret_cast<const __m256i*>(batch.weights + (half * kKeyBatch + j) * kTileN);
      return Vec(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at)), 16)));
    };
    for (int64_t j = 0; j < keys; j += kTileN) {
      Vec quarters[4];
      for (int64_t quarter = 0; quarter < 4; ++quarter) {
        Vec four[4];
        for (int64_t i = 0; i < 4; ++i) {
          const int64_t key = j + 4 * quarter + i;
          four[i] = at::vec::fmadd(weight(0, key), factor[0], weight(1, key) * factor[1]);
        }
        quarters[quarter] = four_sums(four);
      }
      sixteen_sums(quarters).store(votes + j, int(std::min<int64_t>(keys - j, kTileN)));
    }
  }

  const Window& w_;
  const BF16* head_;
  const int64_t lane_;
  BF16 *queries_, *padded_keys_;
  float* scores_;
  BatchWeights all_;
};

// Query blocks vote independently and are summed in order: the number of threads does not change the result.
void vote_all(const Window& w, float* votes) {
  const int64_t keys = w.length, query_blocks = w.query_blocks();
  static thread_local std::vector<float> memory;
  float* parts = workspace(memory, w.heads * query_blocks * keys);
#pragma omp parallel num_threads(at::in_parallel_region() ? 1 : at::get_num_threads())
  {
    const Tiles tiles(kMR);
    const NoSubnormals no_subnormals;
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < w.heads * query_blocks; ++task)
      QueryBlock(w, task / query_blocks, task % query_blocks).vote(parts + task * keys);
#pragma omp for
    for (int64_t h = 0; h < w.heads; ++h) {
      float* sums = votes + h * keys;
      std::fill_n(sums, keys, 0.f);
      for (int64_t s = 0; s < query_blocks; ++s)
        for (int64_t j = 0; j < keys; ++j) sums[j] += parts[(h * query_blocks + s) * keys + j];
    }
  }
}

at::Tensor window_votes(const at::Tensor& q, const at::Tensor& keys, double scale) {
  TORCH_CHECK(q.scalar_type() == at::kBFloat16 && keys.scalar_type() == at::kBFloat16 && q.size(3) % kTileK == 0,
              "window_votes: q and keys must be bfloat16, with head_dim a multiple of 32");
  TORCH_CHECK(keys.stride(1) == keys.size(2) && keys.stride(2) == 1 && q.size(2) <= keys.size(1),
              "window_votes: the keys of a head must be contiguous, and at least as many as its queries");
  const auto rows = q.contiguous();
  const Window w{rows.const_data_ptr<BF16>(), keys.const_data_ptr<BF16>(), q.size(0), q.size(1) * q.size(2),
                 q.size(2), q.size(3), keys.stride(0), keys.size(1), float(scale)};
  auto votes = at::empty({w.heads, w.length}, q.options().dtype(at::kFloat));
  vote_all(w, votes.data_ptr<float>());
  return votes;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("window_votes", &ringkv::window_votes); }

#endif
