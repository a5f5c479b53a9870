// Block over e4m3 keys and values with a float16 scale each: the partial attention of block.h in float32. With
// byte permutations elements are converted by table, and queries are split so that their products stay exact.

#pragma once

#include <ATen/cpu/vec/functional.h>
#include <c10/util/Float8_e4m3fn.h>

#include <vector>

#include "block.h"
#include "encoded_block.h"
#include "half_scales.h"
#include "lookup_e4m3.h"
#include "row_e4m3.h"
#include "softmax_bytes.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {

using BlockFp8 = EncodedBlock<E4M3, c10::Half>;

constexpr float kMaxE4M3 = 448.f;

// Subtracts `center` and rounds as `encode` in decode_attend_fp8.py does.
template <typename T>
void to_e4m3(const T* x, int64_t count, E4M3* to, c10::Half* scale, const float* center) {
  thread_local std::vector<float> wide;
  wide.resize(count);
  for (int64_t i = 0; i < count; ++i) wide[i] = float(x[i]) - (center ? center[i] : 0.f);
  const float largest = at::vec::map_reduce_all<float>(
      [](Vec v) { return v.abs(); }, [](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, wide.data(), count);
  *scale = c10::Half(limited(largest / kMaxE4M3, kMinHalf, kMaxHalf));
  const float by = float(*scale);
  for (int64_t i = 0; i < count; ++i)
    to[i].bits = c10::Float8_e4m3fn(limited(wide[i] / by, -kMaxE4M3, kMaxE4M3)).x;
}

// The scales of a block as floats. Those of values are multiplied with what their conversion leaves out.
struct ScalesFp8 {
  alignas(64) float key[kBlock], value[kBlock];

  ScalesFp8(const BlockFp8& block, float factor) {
    widen(block.key_scale, block.entries, key);
    widen(block.value_scale, block.entries, value);
    for (int64_t j = 0; j < block.entries; ++j) value[j] *= factor;
  }
};

inline void multiply(float* x, const float* by, int64_t count) {
  for (int64_t j = 0; j < count; ++j) x[j] *= by[j];
}

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__) && defined(__AVX512VBMI__)

constexpr float kValueFactor = 1.f;
constexpr int kMostParts = 3;  // of a query

// The queries of a call [heads, queries, width], each as a sum of bfloat16: one is enough for bfloat16, three for
// float32. In `lookup_order`, zero-padded to whole vectors.
class QueriesFp8 {
 public:
  QueriesFp8(int64_t heads, int64_t queries, int64_t width)
      : queries_(queries), width_(width), padded_((width + kLookupElements - 1) / kLookupElements * kLookupElements),
        part_(heads * queries * padded_), parts_(heads), elements_(kMostParts * part_) {}

  template <typename T>
  void set(int64_t head, int64_t g, const T* x) {
    parts_[head] = parts<T>();
    at::BFloat16* to = elements_.data() + (head * queries_ + g) * padded_;
    for (int64_t i = 0; i < padded_; ++i) {
      const int64_t element = i / kLookupElements * kLookupElements + lookup_order(i % kLookupElements);
      float rest = element < width_ ? float(x[element]) : 0.f;
      for (int64_t part = 0; part < parts<T>(); ++part) {
        to[part * part_ + i] = at::BFloat16(rest);
        rest -= float(to[part * part_ + i]);
      }
    }
  }
  SplitQueries of(int64_t head) const {
    return {elements_.data() + head * queries_ * padded_, parts_[head], part_, padded_};
  }

 private:
  template <typename T>
  static constexpr int64_t parts() {
    return std::is_same_v<T, at::BFloat16> ? 1 : kMostParts;
  }

  const int64_t queries_, width_, padded_, part_;
  std::vector<int64_t> parts_;  // of each head's queries
  std::vector<at::BFloat16> elements_;
};

// Attends with G queries.
template <int G>
void attend_group_fp8(const BlockFp8& block, const ScalesFp8& scales, const SplitQueries& queries,
                      const ExactScores& exact, int64_t width, float scale, const Partial& to) {
  alignas(64) float scores[G * kBlock];
  const auto score = queries.parts == 1 ? score_e4m3<G, 1> : score_e4m3<G, kMostParts>;
  score(queries, block.key, block.value, block.entries, width, scale, scores);
  for (int g = 0; g < G; ++g) multiply(scores + g * kBlock, scales.key, block.entries);
  exact.put(G, block.entries, kBlock, scores);
  for (int g = 0; g < G; ++g) {
    float* own = scores + g * kBlock;
    to.top[g] = highest_of(own, block.entries);
    to.sum[g] = weigh(own, scales.value, to.top[g], block.entries).first;
  }
  sum_e4m3<G>(scores, block.value, block.key + block.entries * width, block.entries, width, to.out);
}

#else

constexpr float kValueFactor = kE4M3Factor;

// Queries of one head, in float32.
struct FloatQueries {
  const float* at;
  int64_t width;

  FloatQueries from(int64_t g) const { return {at + g * width, width}; }
};

// The queries of a call [heads, queries, width] in float32.
class QueriesFp8 {
 public:
  QueriesFp8(int64_t heads, int64_t queries, int64_t width)
      : queries_(queries), width_(width), elements_(heads * queries * width) {}

  template <typename T>
  void set(int64_t head, int64_t g, const T* x) {
    std::copy_n(x, width_, elements_.data() + (head * queries_ + g) * width_);
  }
  FloatQueries of(int64_t head) const { return {elements_.data() + head * queries_ * width_, width_}; }

 private:
  const int64_t queries_, width_;
  std::vector<float> elements_;
};

// Attends with G queries.
template <int G>
void attend_group_fp8(const BlockFp8& block, const ScalesFp8& scales, const FloatQueries& queries,
                      const ExactScores& exact, int64_t width, float scale, const Partial& to) {
  float scores[G * kBlock];
  score_rows<E4M3, G, float>(queries.at, block.key, block.value, block.entries, width, scale * kE4M3Factor, scores);
  for (int g = 0; g < G; ++g) multiply(scores + g * kBlock, scales.key, block.entries);
  exact.put(G, block.entries, kBlock, scores);
  for (int g = 0; g < G; ++g) {
    float* own = scores + g * kBlock;
    std::tie(to.top[g], to.sum[g]) = exponentiate(own, block.entries);
    multiply(own, scales.value, block.entries);
  }
  sum_rows<E4M3, G>(scores, block.value, block.key + block.entries * width, block.entries, width, to.out);
}

#endif

// Attends to one block after the other.
class BlockRowsFp8 {
 public:
  BlockRowsFp8(const QueriesFp8& all, int64_t queries, int64_t width, float scale)
      : all_(all), queries_(queries), width_(width), scale_(scale) {}

  void begin(const BlockFp8&) {}
  void attend(const BlockFp8& block, const BlockFp8&, const Partial& to) const {
    const auto queries = all_.of(block.head);
    const ScalesFp8 scales(block, kValueFactor);
    for_even_groups(queries_, kGroupHeads, [&](int64_t from, int64_t count) {
      const Partial part{to.out + from * width_, to.top + from, to.sum + from};
      for_group(count, [&](auto size) {
        attend_group_fp8<decltype(size)::value>(block, scales, queries.from(from), block.exact.from(from), width_,
                                                scale_, part);
      });
    });
  }

 private:
  const QueriesFp8& all_;
  const int64_t queries_, width_;
  const float scale_;
};

}  // namespace ringkv

#endif
