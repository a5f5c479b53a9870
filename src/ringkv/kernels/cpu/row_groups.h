// Row groups: the left operand of int8 products, rotated and quantised per row and group of kGroup elements along K.
//
//     H x = scale * q, q int8 from -levels to levels, scale = the group's largest magnitude / levels
//
// H is a Hadamard matrix of kRotation elements, not normalised: it spreads outliers, which would make the others' steps
// coarse (QuaRot, arXiv 2404.00456). Weights are rotated, too, so that products stay the same. A group of 16 rows is
// contiguous. Weights are multiplied as unsigned bytes, which are kOffset larger; `correction` is what this adds to a
// row's sums, negated.

#pragma once

#include "left_rows.h"
#include "workspace.h"

namespace ringkv {

constexpr int64_t kRotation = 32;  // divides every K
constexpr int64_t kGroup = 128;  // K elements that share a scale
constexpr int64_t kGroupBlocks = kGroup / kTileK;
constexpr int32_t kOffset = 128;
constexpr float kTiny = 1e-30f;  // groups whose magnitudes are all smaller are zeros: levels / them may be infinite

struct alignas(64) RowGroup {
  int8_t elements[kTileM][kGroup];
  float scale[kTileM];
  int32_t correction[kTileM];
};

// Two tiles of rows at one group along K. The groups of a tile are contiguous.
struct RowGroups {
  const RowGroup *upper, *lower;
};

#if defined(CPU_CAPABILITY_AVX512)

// A group's elements in float32.
class RotatedGroup {
 public:
  explicit RotatedGroup(const BF16* x) {
    for (int i = 0; i < kVectors; ++i) {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 16 * i));
      of_[i] = rotated(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16)));
    }
    for (int i = 0; i < kVectors; i += 2) {
      const __m512 first = of_[i], second = of_[i + 1];
      of_[i] = _mm512_add_ps(first, second);
      of_[i + 1] = _mm512_sub_ps(first, second);
    }
  }

  // Magnitudes have the order of their bits, and those of NaNs are the largest.
  float largest() const {
    __m512i bits = _mm512_setzero_si512();
    for (const __m512& vector : of_)
      bits = _mm512_max_epi32(bits, _mm512_and_si512((__m512i)vector, _mm512_set1_epi32(0x7fffffff)));
    return std::bit_cast<float>(_mm512_reduce_max_epi32(bits));
  }

  // to[0..kGroup) = the elements times `by`, rounded to nearest even. Returns their sum.
  int32_t round(float by, int8_t* to) const {
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < kVectors; ++i) {
      const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(of_[i], _mm512_set1_ps(by)));
      sum = _mm512_add_epi32(sum, rounded);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * i), _mm512_cvtepi32_epi8(rounded));
    }
    return _mm512_reduce_add_epi32(sum);
  }

 private:
  static constexpr int kVectors = kGroup / 16;

  // Sums and differences of elements that are 1, 2, 4 and 8 apart.
  static __m512 rotated(__m512 x) {
    x = butterfly<0xaaaa>(x, _mm512_permute_ps(x, 0xb1));
    x = butterfly<0xcccc>(x, _mm512_permute_ps(x, 0x4e));
    x = butterfly<0xf0f0>(x, _mm512_shuffle_f32x4(x, x, 0xb1));
    return butterfly<0xff00>(x, _mm512_shuffle_f32x4(x, x, 0x4e));
  }
  template <int kSeconds>
  static __m512 butterfly(__m512 x, __m512 other) {
    return _mm512_mask_sub_ps(_mm512_add_ps(x, other), __mmask16(kSeconds), other, x);
  }

  __m512 of_[kVectors];
};

#else

class RotatedGroup {
 public:
  explicit RotatedGroup(const BF16* x) {
    for (int64_t i = 0; i < kGroup; ++i) of_[i] = float(x[i]);
    butterfly_rounds<1, kRotation>(of_, kGroup);
  }
  float largest() const {
    uint32_t bits = 0;
    for (float element : of_) bits = std::max(bits, std::bit_cast<uint32_t>(element) & 0x7fffffff);
    return std::bit_cast<float>(bits);
  }
  int32_t round(float by, int8_t* to) const {
    int32_t sum = 0;
    for (int64_t i = 0; i < kGroup; ++i) {
      const float exact = of_[i] * by;
      const int32_t rounded = std::isnan(exact) ? 0 : int32_t(std::nearbyint(exact));
      to[i] = int8_t(rounded);
      sum += rounded;
    }
    return sum;
  }

 private:
  float of_[kGroup];
};

#endif

// Quantises kGroup elements as row m of a group, to integers of magnitude `levels` at most.
inline void quantise_group(const BF16* x, float levels, RowGroup& to, int64_t m) {
  const RotatedGroup rotated(x);
  const float largest = rotated.largest();
  const bool is_zero = largest < kTiny;
  to.scale[m] = is_zero ? 0.f : largest / levels;
  const int32_t sum = rotated.round(is_zero ? 0.f : levels / largest, to.elements[m]);
  to.correction[m] = int32_t(0u - uint32_t(kOffset) * uint32_t(sum));  // wraps if elements were not finite
}

// The rows of a product, normalised, rotated and quantised.
class QuantisedRows {
 public:
  static constexpr bool is_packed = true;

  QuantisedRows(const Product& p, int64_t mc) : p_(p), groups_((p.k_size + kGroup - 1) / kGroup) {
    static thread_local std::vector<RowGroup> memory;
    packed_ = workspace(memory, (mc + kTileM - 1) / kTileM * groups_ + groups_);
  }

  // Quantises rows [from, to). `base` is the first row of the pass. The last group is padded with zeros.
  void pack(int64_t from, int64_t to, int64_t base) const {
    static thread_local std::vector<BF16> buffer;
    BF16* row = workspace(buffer, groups_ * kGroup);
    std::fill(row + p_.k_size, row + groups_ * kGroup, BF16(0));
    for (int64_t m = from; m < to; ++m) {
      const BF16* x = p_.row(m);
      if (p_.norm)
        normalise(x, p_.norm, p_.eps, p_.offset, p_.k_size, row);
      else
        std::memcpy(row, x, p_.k_size * sizeof(BF16));
      for (int64_t g = 0; g < groups_; ++g)
        quantise_group(row + g * kGroup, p_.levels, at_tile(m - base)[g], (m - base) % kTileM);
    }
  }

  // Rows from m on, a multiple of kTileM after `base`, from block k on, the first of a group.
  RowGroups at(int64_t m, int64_t base, int64_t k) const {
    const RowGroup* upper = at_tile(m - base) + k / kGroupBlocks;
    return {upper, upper + groups_};
  }

 private:
  RowGroup* at_tile(int64_t row) const { return packed_ + row / kTileM * groups_; }

  const Product& p_;
  const int64_t groups_;
  RowGroup* packed_;
};

}  // namespace ringkv
