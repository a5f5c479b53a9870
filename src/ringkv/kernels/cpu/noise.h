// Gumbel noise of (seed, position, token), the same as in sampling/noise.py.

#pragma once

namespace ringkv {

constexpr float kMostNoise = 16.64f;  // upper bound of the noise
constexpr int kNoiseBits = 23;

// SplitMix64's mixer (Steele, Lea and Flood, OOPSLA 2014)
inline uint64_t mix(uint64_t x) {
  x *= 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

struct Noise {
  uint64_t key;

  Noise(int64_t seed, int64_t position) : key(mix(mix(uint64_t(seed)) + uint64_t(position))) {}

  uint32_t bits(int64_t token) const { return uint32_t(mix(key + uint64_t(token)) >> (64 - kNoiseBits)); }

  // Writes the bits of `count` tokens and returns the highest.
  template <int64_t count>
  uint32_t bits(int64_t first, uint32_t* to) const {
    uint32_t high = 0;
    for (int64_t i = 0; i < count; ++i) to[i] = bits(first + i);
    for (int64_t i = 0; i < count; ++i) high = std::max(high, to[i]);
    return high;
  }

  float operator()(int64_t token) const { return of(bits(token)); }

  // Increases with `bits`.
  static float of(uint32_t bits) { return -std::log(-std::log((float(bits) + 0.5f) * 0x1p-23f)); }

  // Returns the least bits whose noise may reach `noise`, rounded down so that no token is missed.
  static uint32_t at_least(double noise) {
    return uint32_t(std::max(0.0, std::exp(-std::exp(-noise)) * (1 << kNoiseBits) - 2));
  }
};

}  // namespace ringkv
