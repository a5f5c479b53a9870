// What follows a product's sums, while they are in cache: bias, residual or gate. And its arguments as tensors.

#pragma once

#include "product.h"

namespace ringkv {

struct TwoVectors {
  Vec low, high;
};

inline TwoVectors read(const float* at) { return {Vec::loadu(at), Vec::loadu(at + kLanes)}; }
inline TwoVectors read(const BF16* at, int64_t n) {
  TwoVectors pair;
  using Words = at::vec::Vectorized<BF16>;
  std::tie(pair.low, pair.high) = at::vec::convert_to_float<BF16>(n < kStep ? Words::loadu(at, n) : Words::loadu(at));
  return pair;
}
inline TwoVectors operator+(TwoVectors a, TwoVectors b) { return {a.low + b.low, a.high + b.high}; }

inline void write(BF16* at, TwoVectors pair, int64_t n) {
  const auto words = at::vec::convert_from_float<BF16>(pair.low, pair.high);
  n < kStep ? words.store(at, n) : words.store(at);
}
inline void write(float* at, TwoVectors pair, int64_t n) {
  pair.low.store(at);
  if (n > kLanes) pair.high.store(at + kLanes);
}

// y = sums (+ bias) (+ residual). Rows of y and of the residual are `stride` elements apart.
template <typename Storage, typename T>
struct LinearEpilogue {
  const Product& p;
  const BF16* residual;
  T* y;
  int64_t out = p.panels * kTileN, stride = out;
  PackedWeight<Storage> weight = p.weight_of<Storage>();

  void operator()(const TileSums& sums) const {
    const auto [first, rows, pair, at] = sums;
    for (int64_t i = 0; i < kNR; i += kStep) {
      const int64_t from = pair * kNR + i, n = std::min<int64_t>(kStep, out - from);
      if (n <= 0) return;
      const TwoVectors bias = p.bias ? read(p.bias + from, n) : TwoVectors{Vec(0.f), Vec(0.f)};
      for (int64_t m = 0; m < rows; ++m) {
        const TwoVectors plain = read(at + m * kNR + i);
        TwoVectors sum =
            TwoVectors{scaled(weight, from, plain.low), scaled(weight, from + kLanes, plain.high)} + bias;
        const int64_t to = (first + m) * stride + from;
        if (residual) sum = sum + read(residual + to, n);
        write(y + to, sum, n);
      }
    }
  }
};

enum class Activation { silu, gelu_tanh, clamped_swiglu };

inline Activation activation_of(c10::string_view name) {
  if (name == "silu") return Activation::silu;
  if (name == "clamped_swiglu") return Activation::clamped_swiglu;
  TORCH_CHECK(name == "gelu_tanh", "gated: the activation is silu, gelu_tanh or clamped_swiglu, not ", name);
  return Activation::gelu_tanh;
}

// Returns the logit of activation(g) = g * sigmoid(logit).
// GELU: (1 + tanh(u)) / 2 = sigmoid(2 u) with u = sqrt(2 / pi) (g + 0.044715 g^3).
inline Vec logit(Activation activation, Vec gate) {
  constexpr float kFactor = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  if (activation == Activation::silu) return gate;
  if (activation == Activation::clamped_swiglu) return gate * Vec(1.702f);
  return gate * (Vec(kFactor) + Vec(kFactor * 0.044715f) * gate * gate);
}

// y = activation(gate) * up. A pair of panels is 16 gates and their 16 ups.
template <typename Storage>
struct GatedEpilogue {
  const Product& p;
  const Activation activation;
  BF16* y;
  int64_t out = p.panels / 2 * kTileN;
  PackedWeight<Storage> weight = p.weight_of<Storage>();

  void operator()(const TileSums& sums) const {
    const auto [first, rows, pair, at] = sums;
    for (int64_t i = 0; i < kTileN; i += kLanes)
      for (int64_t m = 0; m < rows; ++m) {
        Vec gate = scaled(weight, pair * kNR + i, Vec::loadu(at + m * kNR + i));
        Vec up = scaled(weight, pair * kNR + kTileN + i, Vec::loadu(at + m * kNR + kTileN + i));
        if (p.bias) {
          gate = gate + read(p.bias + pair * kTileN + i, kLanes).low;
          up = up + read(p.bias + out + pair * kTileN + i, kLanes).low;
        }
        if (activation == Activation::clamped_swiglu) {
          const Vec limit(7.f);
          gate = at::vec::minimum(gate, limit);
          up = at::vec::maximum(at::vec::minimum(up, limit), limit.neg()) + Vec(1.f);
        }
        const Vec shaped = up * gate / (Vec(1.f) + logit(activation, gate).neg().exp_u20());
        write(y + (first + m) * out + pair * kTileN + i, {shaped, shaped}, kLanes);
      }
  }
};

using OptionalTensor = std::optional<at::Tensor>;

inline const BF16* data_of(const OptionalTensor& t) { return t ? t->const_data_ptr<BF16>() : nullptr; }

// Calls `run` with the storage class of a weight of this dtype, whose products have bfloat16 rows.
template <typename Run>
void with_storage(at::ScalarType stored, const Run& run) {
  if (stored == at::kBFloat16) return run(StoredBF16());
  if (stored == at::kChar) return run(StoredInt8());
  TORCH_CHECK(stored == at::kByte, "linear: the weight must be bfloat16, int8 or uint8 (packed int4)");
  run(StoredInt4());
}

// Whether products with a packed weight quantise rows: its lines are words of four bytes, or of twice two.
inline bool quantises_rows(const at::Tensor& weight) {
  return weight.scalar_type() != at::kBFloat16 && weight.size(-1) <= 4;
}

// The largest integer of quantised rows: that of four bits if words are twice two bytes, else of eight.
inline float levels_of(const at::Tensor& weight) { return weight.size(-1) == 2 ? 7.f : 127.f; }

// Whether a packed weight is int8 in groups: a block is [lines][4][16], or [lines][4][4][4] if products quantise rows.
inline bool has_groups(const at::Tensor& weight) { return weight.scalar_type() == at::kChar && weight.dim() > 4; }

// Calls `run` with the storage class of a weight in groups.
template <typename Run>
void with_groups(const at::Tensor& weight, const Run& run) {
  const auto of = [&](auto stored) {
    if (quantises_rows(weight)) return run(WithRoundedRows<decltype(stored)>());
    run(stored);
  };
  const int64_t bytes = weight.stride(1);
  if (bytes == StoredGroups<false>::kBlockBytes) return of(StoredGroups<false>());
  TORCH_CHECK(bytes == StoredGroups<true>::kBlockBytes, "linear: blocks of int8 groups have 9 or 10 lines of 64 bytes");
  of(StoredGroups<true>());
}

// Calls `run` with the storage class of any packed weight.
template <typename Run>
void with_any_storage(const at::Tensor& weight, const Run& run) {
  const auto stored = weight.scalar_type();
  if (has_groups(weight)) return with_groups(weight, run);
  if (!quantises_rows(weight)) return with_storage(stored, run);
  if (stored == at::kChar) return run(StoredInt8Rows());
  TORCH_CHECK(stored == at::kByte, "linear: the weight must be int8 or uint8 (packed int4) if rows are quantised");
  run(StoredInt4Rows());
}

inline Product product_of(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                   const OptionalTensor& norm, double eps, double offset) {
  TORCH_CHECK(x.scalar_type() == at::kBFloat16, "linear: bfloat16 expected");
  const int64_t k_size = x.size(1), panel = weight.stride(0) * weight.element_size();
  with_any_storage(weight, [&](auto storage) {
    TORCH_CHECK(weight.dim() > 2 && weight.is_contiguous() && x.dim() == 2 && x.stride(1) == 1 &&
                    k_size % kTileK == 0 && panel == storage.kHeaderBytes + k_size / kTileK * storage.kBlockBytes,
                "linear: shapes do not match, or the weight is not packed");
  });
  return {x.const_data_ptr<BF16>(), x.size(0), k_size, x.stride(0),
          static_cast<const uint8_t*>(weight.const_data_ptr()), weight.size(0), data_of(bias), data_of(norm),
          float(eps), float(offset), x.size(0), nullptr, levels_of(weight)};
}

}  // namespace ringkv
