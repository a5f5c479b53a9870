// normalise: the RMSNorm of one row, before a product.

#pragma once

#include "lanes.h"
#include "tiles.h"

namespace ringkv {

// to[0..n) = x * scale * (offset + norm), rounded once.
inline void normalise_wide(const BF16* x, const BF16* norm, Vec scale, Vec offset, int64_t n, BF16* to) {
  using Words = at::vec::Vectorized<BF16>;
  for (int64_t i = 0; i < n; i += kStep) {
    const auto [low, high] = at::vec::convert_to_float<BF16>(Words::loadu(x + i));
    const auto [first, second] = at::vec::convert_to_float<BF16>(Words::loadu(norm + i));
    at::vec::convert_from_float<BF16>(low * scale * (offset + first), high * scale * (offset + second)).store(to + i);
  }
}

// to[0..n) = x / rms(x) * (offset + norm), rounded as norm.py does.
inline void normalise(const BF16* x, const BF16* norm, float eps, float offset, int64_t n, BF16* to) {
  Vec squares(0.f), low, high;
  for (int64_t i = 0; i < n; i += kStep) squares = Row<BF16>::dot(squares, x + i, x + i);
  const Vec scale(1.f / std::sqrt(sum_of(squares) / float(n) + eps));
  using Words = at::vec::Vectorized<BF16>;
  if (offset != 0.f) return normalise_wide(x, norm, scale, Vec(offset), n, to);
  for (int64_t i = 0; i < n; i += kStep) {
    std::tie(low, high) = at::vec::convert_to_float<BF16>(Words::loadu(x + i));
    const Words scaled = at::vec::convert_from_float<BF16>(low * scale, high * scale);
    (scaled * Words::loadu(norm + i)).store(to + i);
  }
}

}  // namespace ringkv
