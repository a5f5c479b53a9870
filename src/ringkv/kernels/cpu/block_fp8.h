// Block over e4m3 keys and values with a float16 scale each: the partial attention of block.h in float32.

#pragma once

#include <ATen/cpu/vec/functional.h>
#include <c10/util/Float8_e4m3fn.h>

#include <vector>

#include "block.h"
#include "encoded_block.h"
#include "half_scales.h"
#include "row_e4m3.h"

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

// The queries of a call [heads, queries, width] in float32.
class QueriesFloat {
 public:
  QueriesFloat(int64_t heads, int64_t queries, int64_t width)
      : queries_(queries), width_(width), elements_(heads * queries * width) {}

  template <typename T>
  void set(int64_t head, int64_t g, const T* x) {
    std::copy_n(x, width_, elements_.data() + (head * queries_ + g) * width_);
  }
  const float* of(int64_t head) const { return elements_.data() + head * queries_ * width_; }

 private:
  const int64_t queries_, width_;
  std::vector<float> elements_;
};

// The scales of a block as floats. Those of values include the factor that rows of e4m3 leave out.
struct ScalesFp8 {
  alignas(64) float key[kBlock], value[kBlock];

  explicit ScalesFp8(const BlockFp8& block) {
    widen(block.key_scale, block.entries, key);
    widen(block.value_scale, block.entries, value);
    for (int64_t j = 0; j < block.entries; ++j) value[j] *= kE4M3Factor;
  }
};

inline void multiply(float* x, const float* by, int64_t count) {
  for (int64_t j = 0; j < count; ++j) x[j] *= by[j];
}

// Attends with G queries.
template <int G>
void attend_group_fp8(const BlockFp8& block, const ScalesFp8& scales, const float* queries, int64_t width, float scale,
                      const Partial& to) {
  float scores[G * kBlock];
  score_rows<E4M3, G, float>(queries, block.key, block.value, block.entries, width, scale * kE4M3Factor, scores);
  for (int g = 0; g < G; ++g) {
    float* own = scores + g * kBlock;
    multiply(own, scales.key, block.entries);
    std::tie(to.top[g], to.sum[g]) = exponentiate(own, block.entries);
    multiply(own, scales.value, block.entries);
  }
  sum_rows<E4M3, G>(scores, block.value, block.key + block.entries * width, block.entries, width, to.out);
}

// Attends to one block after the other.
class BlockRowsFp8 {
 public:
  BlockRowsFp8(const QueriesFloat& all, int64_t queries, int64_t width, float scale)
      : all_(all), queries_(queries), width_(width), scale_(scale) {}

  void begin(const BlockFp8&) {}
  void attend(const BlockFp8& block, const BlockFp8&, const Partial& to) const {
    const float* queries = all_.of(block.head);
    const ScalesFp8 scales(block);
    for (int64_t from = 0; from < queries_; from += kGroupHeads) {
      const Partial part{to.out + from * width_, to.top + from, to.sum + from};
      const auto run = [&](auto count) {
        attend_group_fp8<decltype(count)::value>(block, scales, queries + from * width_, width_, scale_, part);
      };
      for_group(std::min(kGroupHeads, queries_ - from), run);
    }
  }

 private:
  const QueriesFloat& all_;
  const int64_t queries_, width_;
  const float scale_;
};

}  // namespace ringkv

#endif
