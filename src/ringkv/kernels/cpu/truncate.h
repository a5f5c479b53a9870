// Truncation of one row's logits by top_k, top_p and min_p. See sampling/truncate.py.
//
// Tokens are ranked by logit, ties by id. top_k and top_p keep a prefix of that order. Its end is not needed to sample:
// a token that was sampled from all is kept with a probability of top_p, and the mass ranked before it says whether it
// is. If it is not, only the tokens ranked before it remain.

#pragma once

#include "row_logits.h"

namespace ringkv {

struct Truncation {
  float temperature = 0, top_k = 0, top_p = 1, min_p = 0;

  bool limits_count(int64_t vocab) const { return top_k > 0 && top_k < float(vocab); }
  float divisor() const { return temperature > 0 ? temperature : 1; }
};

// A place in the order of tokens
struct Rank {
  float logit;
  int64_t id;

  bool operator<(Rank other) const { return logit > other.logit || (logit == other.logit && id < other.id); }
};

class Truncated {
 public:
  Truncated(const RowLogits& row, const Truncation& settings)
      : row_(row), settings_(settings), highest_(row.top() / settings.divisor()), limit_{kForbidden, row.vocab()} {
    if (settings.limits_count(row.vocab())) limit_ = after(int64_t(settings.top_k));
    if (settings.top_p < 1) target_ = std::max(double(settings.top_p) * mass_before(limit_), kMinMass);
  }

  // Returns the rank before which top_k keeps tokens.
  Rank limit() const { return limit_; }

  // Whether a token is kept. The top token always is, even if penalties made it infinite and its weight NaN.
  bool keeps(Rank token) const {
    return token < limit_ && !(settings_.min_p > 0 && weight(token.logit) < settings_.min_p) &&
           !(settings_.top_p < 1 && mass_before(token) >= target_);
  }

 private:
  // Returns probabilities, scaled so that the highest is 1.
  Vec weights(Vec logits) const { return (logits / Vec(settings_.divisor()) - Vec(highest_)).exp_u20(); }

  float weight(float logit) const {
    float all[kLanes];
    weights(Vec(logit)).store(all);
    return all[0];
  }

  // Returns the sum of the weights of the tokens ranked before `end`.
  double mass_before(Rank end) const {
    double sum = 0;
    int64_t ties = 0;
    Block buffer;
    for (int64_t block = 0; block < row_.blocks(); ++block) {
      const float peak = row_.peak(block);
      if (peak < end.logit || peak / settings_.divisor() < highest_ - kNegligible) continue;
      const float* x = row_.read(block, buffer);
      sum += sum_above(x, end.logit);
      if (end.logit > kForbidden) ties += ties_before(x, {end.logit, end.id - block * kBlock});
    }
    return sum + double(ties) * weight(end.logit);
  }

  float sum_above(const float* block, float bound) const {
    Vec sum(0);
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      const Vec x = Vec::loadu(block + i);
      sum = sum + Vec::blendv(Vec(0), weights(x), x > Vec(bound));
    }
    return sum_of(sum);
  }

  static int64_t ties_before(const float* block, Rank end) {
    int ties = 0;
    for (int i = 0; i < kBlock; ++i) ties += block[i] == end.logit && i < end.id;
    return ties;
  }

  // Returns the rank after `count` tokens. The logit of the last one is found by bisection over all floats.
  Rank after(int64_t count) const {
    int64_t low = order_of(count_th_peak(count)), high = order_of(row_.top());
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (count_at_least(float_of(middle), count) >= count)
        low = middle;
      else
        high = middle - 1;
    }
    const float last = float_of(low);
    const float above = std::nextafter(last, std::numeric_limits<float>::infinity());
    return after_ties(last, count - count_at_least(above, count));
  }

  // Returns a lower bound: as many tokens as there are peaks above it have its logit or more.
  float count_th_peak(int64_t count) const {
    static thread_local std::vector<float> peaks;
    if (count > row_.blocks()) return kForbidden;
    peaks.assign(row_.peaks(), row_.peaks() + row_.blocks());
    std::nth_element(peaks.begin(), peaks.begin() + (count - 1), peaks.end(), std::greater<>());
    return peaks[count - 1];
  }

  // Returns the number of tokens with this logit or more. Stops counting at `enough`.
  int64_t count_at_least(float logit, int64_t enough) const {
    int64_t count = 0;
    Block buffer;
    for (int64_t block = 0; block < row_.blocks() && count < enough; ++block)
      if (row_.peak(block) >= logit) count += count_at_least(row_.read(block, buffer), logit);
    return count;
  }

  static int count_at_least(const float* block, float logit) {
    int count = 0;
    for (int i = 0; i < kBlock; ++i) count += block[i] >= logit;
    return count;
  }

  // Returns the rank after the first `ties` tokens with this logit.
  Rank after_ties(float logit, int64_t ties) const {
    Block buffer;
    for (int64_t block = 0; block < row_.blocks(); ++block) {
      if (row_.peak(block) < logit) continue;
      const float* x = row_.read(block, buffer);
      for (int64_t i = 0; i < kBlock; ++i)
        if (x[i] == logit && --ties == 0) return {logit, block * kBlock + i + 1};
    }
    return {logit, row_.vocab()};
  }

  // Integers are ordered as the floats that they stand for.
  static int64_t order_of(float x) { return reordered(std::bit_cast<int32_t>(x)); }
  static float float_of(int64_t order) { return std::bit_cast<float>(reordered(int32_t(order))); }
  static int32_t reordered(int32_t bits) { return bits < 0 ? bits ^ 0x7FFFFFFF : bits; }

  static constexpr double kMinMass = 1e-300;  // below any token's weight
  static constexpr float kNegligible = 32;    // exp(-32) times any vocabulary is below a float's rounding of 1

  const RowLogits& row_;
  Truncation settings_;
  float highest_;
  Rank limit_;
  double target_ = 0;
};

}  // namespace ringkv
