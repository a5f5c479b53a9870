// Scales in float16: limited to its normal numbers, so that rounding changes a scale by at most 2^-11 of it.

#pragma once

#include <c10/util/Half.h>

#include <algorithm>

namespace ringkv {

constexpr float kMinHalf = 0x1p-14f, kMaxHalf = 65504.f;

// Limits x; NaN stays.
inline float limited(float x, float low, float high) { return std::min(std::max(x, low), high); }

}  // namespace ringkv
