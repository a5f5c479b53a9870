// decode_attend on the CPU: write one token per slot, attend to its live entries. See decode_attend.py for shapes.
//
// One parallel region per call. A task is one block of one key-value head of one slot, and the blocks of a slot are
// merged in order: what a slot computes depends on nothing but its own length, so neighbours and the number of threads
// cannot change its result, and a free slot costs nothing.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace {

using Vec = at::vec::Vectorized<float>;
constexpr int64_t kLanes = Vec::size();
constexpr int64_t kBlock = 256;  // entries a task reads: small enough to balance, large enough to amortise
constexpr int64_t kGroup = 4;    // query heads that share one pass over the keys

// Two vectors of float from 2 * kLanes numbers of any stored type.
inline void load2(const float* at, Vec& low, Vec& high) {
  low = Vec::loadu(at);
  high = Vec::loadu(at + kLanes);
}

template <typename T>
inline void load2(const T* at, Vec& low, Vec& high) {
  std::tie(low, high) = at::vec::convert_to_float<T>(at::vec::Vectorized<T>::loadu(at));
}

// scores[g][j] = q[g] . key[j]; q is float and already scaled, [groups, width].
template <typename T, int G>
void dot_block(const float* q, const T* key, int64_t entries, int64_t width, float* scores, int64_t stride) {
  for (int64_t j = 0; j < entries; ++j) {
    Vec sum[G];
    for (int g = 0; g < G; ++g) sum[g] = Vec(0.f);
    for (int64_t d = 0; d < width; d += 2 * kLanes) {
      Vec low, high;
      load2(key + j * width + d, low, high);
      for (int g = 0; g < G; ++g) {
        sum[g] = at::vec::fmadd(Vec::loadu(q + g * width + d), low, sum[g]);
        sum[g] = at::vec::fmadd(Vec::loadu(q + g * width + d + kLanes), high, sum[g]);
      }
    }
    for (int g = 0; g < G; ++g)
      scores[g * stride + j] = at::vec::vec_reduce_all<float>([](Vec& a, Vec& b) { return a + b; }, sum[g]);
  }
}

// out[g] += sum over j of weights[g][j] * value[j]; out is float [groups, width].
template <typename T, int G>
void sum_block(const float* weights, int64_t stride, const T* value, int64_t entries, int64_t width, float* out) {
  for (int64_t d = 0; d < width; d += 2 * kLanes) {
    Vec low_sum[G], high_sum[G];
    for (int g = 0; g < G; ++g) low_sum[g] = high_sum[g] = Vec(0.f);
    for (int64_t j = 0; j < entries; ++j) {
      Vec low, high;
      load2(value + j * width + d, low, high);
      for (int g = 0; g < G; ++g) {
        const Vec weight(weights[g * stride + j]);
        low_sum[g] = at::vec::fmadd(weight, low, low_sum[g]);
        high_sum[g] = at::vec::fmadd(weight, high, high_sum[g]);
      }
    }
    for (int g = 0; g < G; ++g) {
      low_sum[g].store(out + g * width + d);
      high_sum[g].store(out + g * width + d + kLanes);
    }
  }
}

// Exponentiates scores in place against their maximum; returns {maximum, sum}.
inline std::pair<float, float> soften(float* scores, int64_t entries) {
  const float top = at::vec::reduce_all<float>([](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, scores, entries);
  at::vec::map<float>([top](Vec x) { return (x - Vec(top)).exp(); }, scores, scores, entries);
  return {top, at::vec::reduce_all<float>([](Vec& a, Vec& b) { return a + b; }, scores, entries)};
}

template <typename T, int G>
void attend_group(const float* q, const T* key, const T* value, int64_t entries, int64_t width, float* out, float* top,
                  float* sum) {
  float scores[G * kBlock];
  dot_block<T, G>(q, key, entries, width, scores, kBlock);
  for (int g = 0; g < G; ++g) std::tie(top[g], sum[g]) = soften(scores + g * kBlock, entries);
  sum_block<T, G>(scores, kBlock, value, entries, width, out);
}

// One block for all groups of one head, `kGroup` query heads at a time.
template <typename T>
void attend_block(const float* q, const T* key, const T* value, int64_t entries, int64_t groups, int64_t width,
                  float* out, float* top, float* sum) {
  for (int64_t g = 0; g < groups; g += kGroup) {
    const auto run = [&](auto n) {
      attend_group<T, decltype(n)::value>(q + g * width, key, value, entries, width, out + g * width, top + g, sum + g);
    };
    switch (std::min(kGroup, groups - g)) {
      case 1: run(std::integral_constant<int, 1>{}); break;
      case 2: run(std::integral_constant<int, 2>{}); break;
      case 3: run(std::integral_constant<int, 3>{}); break;
      default: run(std::integral_constant<int, 4>{}); break;
    }
  }
}

struct Task {
  int32_t slot, head, block;
};

// Blocks in order: each query head's partial softmaxes become one.
template <typename T>
void merge_blocks(const float* outs, const float* tops, const float* sums, int64_t blocks, int64_t groups,
                  int64_t width, T* result) {
  std::vector<float> total(width);
  for (int64_t g = 0; g < groups; ++g) {
    float top = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < blocks; ++i) top = std::max(top, tops[i * groups + g]);
    float sum = 0.f;
    std::fill(total.begin(), total.end(), 0.f);
    for (int64_t i = 0; i < blocks; ++i) {
      const float scale = std::exp(tops[i * groups + g] - top);
      sum += scale * sums[i * groups + g];
      const float* out = outs + (i * groups + g) * width;
      at::vec::map2<float>([scale](Vec a, Vec b) { return at::vec::fmadd(Vec(scale), b, a); }, total.data(),
                           total.data(), out, width);
    }
    for (int64_t d = 0; d < width; ++d) result[g * width + d] = static_cast<T>(total[d] / sum);
  }
}

template <typename T>
void decode(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::Tensor& keys, at::Tensor& values,
            const int32_t* entry, const int32_t* live, at::Tensor& out) {
  const int64_t slots = q.size(0), heads = q.size(1), groups = q.size(2), width = q.size(3);
  const int64_t slot_stride = keys.stride(0), head_stride = keys.stride(1);
  T* key = keys.data_ptr<T>();
  T* value = values.data_ptr<T>();

  std::vector<Task> tasks;
  std::vector<int64_t> first(slots * heads + 1, 0);
  for (int64_t b = 0; b < slots; ++b)
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t blocks = (live[b] + kBlock - 1) / kBlock;
      for (int64_t i = 0; i < blocks; ++i) tasks.push_back({int32_t(b), int32_t(h), int32_t(i)});
      first[b * heads + h + 1] = int64_t(tasks.size());
      if (live[b] > 0) {
        const int64_t at = b * slot_stride + h * head_stride + entry[b] * width, from = (b * heads + h) * width;
        std::memcpy(key + at, k.data_ptr<T>() + from, width * sizeof(T));
        std::memcpy(value + at, v.data_ptr<T>() + from, width * sizeof(T));
      }
    }

  const int64_t count = int64_t(tasks.size());
  static thread_local std::vector<float> scratch;  // grows to the largest step seen, then never again
  const int64_t rows = groups * (width + 2);
  scratch.resize(std::max<int64_t>(scratch.size(), count * rows + slots * heads * groups * width));
  float* outs = scratch.data();
  float* tops = outs + count * groups * width;
  float* sums = tops + count * groups;
  float* query = sums + count * groups;
  const float scale = 1.f / std::sqrt(float(width));
  const T* asked = q.data_ptr<T>();
  for (int64_t i = 0; i < slots * heads * groups * width; ++i) query[i] = float(asked[i]) * scale;

  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto [b, h, block] = tasks[i];
      const int64_t from = block * kBlock, at = b * slot_stride + h * head_stride + from * width;
      attend_block<T>(query + (b * heads + h) * groups * width, key + at, value + at,
                      std::min<int64_t>(kBlock, live[b] - from), groups, width, outs + i * groups * width,
                      tops + i * groups, sums + i * groups);
    }
  });

  T* result = out.data_ptr<T>();
  for (int64_t i = 0; i < slots * heads; ++i) {
    const int64_t from = first[i], blocks = first[i + 1] - from;
    T* row = result + i * groups * width;
    if (blocks == 0) std::fill(row, row + groups * width, T(0));
    else merge_blocks<T>(outs + from * groups * width, tops + from * groups, sums + from * groups, blocks, groups, width, row);
  }
}

at::Tensor decode_attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::Tensor keys,
                         at::Tensor values, const at::Tensor& entry, const at::Tensor& live) {
  TORCH_CHECK(q.size(3) % (2 * kLanes) == 0, "decode_attend: head_dim must be a multiple of ", 2 * kLanes);
  TORCH_CHECK(keys.strides() == values.strides() && keys.stride(3) == 1 && keys.stride(2) == keys.size(3),
              "decode_attend: an entry's numbers must be contiguous, and entries must follow each other");
  TORCH_CHECK(entry.scalar_type() == at::kInt && live.scalar_type() == at::kInt, "decode_attend: int32 expected");
  const auto cq = q.contiguous(), ck = k.contiguous(), cv = v.contiguous();
  const auto ce = entry.contiguous(), cl = live.contiguous();
  auto out = at::empty(q.sizes(), q.options());
  const auto run = [&](auto zero) {
    decode<decltype(zero)>(cq, ck, cv, keys, values, ce.data_ptr<int32_t>(), cl.data_ptr<int32_t>(), out);
  };
  if (q.scalar_type() == at::kBFloat16) run(at::BFloat16{});
  else if (q.scalar_type() == at::kHalf) run(at::Half{});
  else run(float{});
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("decode_attend", &decode_attend); }
