// Keys of turbo4: a norm, and elements that are places in a codebook. See decode_attend_turbo4.py.

#pragma once

#include "random_signs.h"
#include "scores_int4.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {

constexpr int kLevels = 16;
constexpr double kUnit = 38.125;
constexpr int32_t kLevelOffset = 128;  // of levels as unsigned bytes
alignas(16) constexpr uint8_t kLevelBytes[kLevels] = {
    128 - 104, 128 - 79, 128 - 62, 128 - 48, 128 - 36, 128 - 25, 128 - 15, 128 - 5,
    128 + 5,   128 + 15, 128 + 25, 128 + 36, 128 + 48, 128 + 62, 128 + 79, 128 + 104};

// Returns the norm of levels that a key of norm 1 has if its elements are exact.
inline double levels_of_norm(int64_t width) { return kUnit * std::sqrt(double(width)); }

// Adds halves until they are odd, as `_sum_of_squares` in decode_attend_turbo4.py does: both get the same bits. The
// product of two floats is exact in double, so a fused multiply-add changes nothing.
inline double sum_of_squares(const float* x, int64_t count) {
  thread_local std::vector<double> squares;
  squares.resize(count);
  for (int64_t i = 0; i < count; ++i) squares[i] = double(x[i]) * double(x[i]);
  while (count % 2 == 0) {
    count /= 2;
    for (int64_t i = 0; i < count; ++i) squares[i] += squares[count + i];
  }
  return std::accumulate(squares.begin() + 1, squares.begin() + count, squares[0]);
}

// Writes the place of the nearest level of x / step to `place`. Returns the sum of their squares.
inline int64_t nearest_levels(const float* x, int64_t count, float step, uint8_t* place) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float level = x[i] / step;
    int32_t above = 0;
    for (int n = 1; n < kLevels; ++n)
      above += level > float(kLevelBytes[n - 1] + kLevelBytes[n] - 2 * kLevelOffset) / 2;
    place[i] = uint8_t(above);
  }
  for (int64_t i = 0; i < count; ++i) {
    const int32_t level = kLevelBytes[place[i]] - kLevelOffset;
    sum += level * level;
  }
  return sum;
}

class QueriesTurbo4 : public QueriesInt4 {
 public:
  using QueriesInt4::QueriesInt4;

  template <typename T>
  void set(int64_t head, int64_t g, const T* x) {
    thread_local std::vector<float> flipped;
    flipped.assign(x, x + width());
    flip_signs(flipped.data(), width());
    QueriesInt4::set(head, g, flipped.data());
  }
};

// Levels of a codebook: the nibbles of a key are places in it.
struct CodebookLevels {
  using Queries = QueriesTurbo4;
  static constexpr int64_t kScaleBytes = sizeof(c10::Half);

  struct Ranges {
    alignas(64) float scale[kBlock], minimum[kBlock];

    Ranges(const c10::Half* norms, int64_t entries) {
      widen(norms, entries, scale);
      for (int64_t j = 0; j < entries; ++j) minimum[j] = scale[j] * -float(kLevelOffset);
    }
  };

  template <typename T>
  static void encode(const T* x, int64_t count, uint8_t* to, c10::Half* norm, const float* center) {
    thread_local std::vector<float> wide;
    thread_local std::vector<uint8_t> places;
    wide.resize(count);
    places.resize(count);
    for (int64_t i = 0; i < count; ++i) wide[i] = float(x[i]) - (center ? center[i] : 0.f);
    flip_signs(wide.data(), count);
    rotate(wide.data(), count);
    const double found = std::sqrt(sum_of_squares(wide.data(), count)), levels = levels_of_norm(count);
    const float step = std::max(float(found / levels), std::numeric_limits<float>::min());
    const double chosen = std::sqrt(double(nearest_levels(wide.data(), count, step, places.data())));
    *norm = c10::Half(limited(float(found * levels / chosen), -kMaxHalf, kMaxHalf));
    pack_levels(places.data(), count, to);
  }

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__)
  static LevelVector levels(LevelVector nibbles) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table()), nibbles);
  }
#else
  static LevelVector levels(LevelVector nibbles) {
    const __m256i upper_is_zero = _mm256_set1_epi16(int16_t(0x8000));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table()), _mm256_or_si256(nibbles, upper_is_zero));
  }
#endif

 private:
  static __m128i table() { return _mm_load_si128(reinterpret_cast<const __m128i*>(kLevelBytes)); }
};

}  // namespace ringkv

#endif
