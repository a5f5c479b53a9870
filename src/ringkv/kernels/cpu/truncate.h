// Truncates one row of logits by top_k, top_p and min_p. See sampling/truncate.py.
//
// Tokens are ranked by logit, ties by id. top_k and top_p keep a prefix of that order. Its end is found by partitioning
// around pivots, as in Floyd and Rivest's selection (CACM 1975): a row is read two or three times and never sorted.

#pragma once

#include "lanes.h"
#include "workspace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace ringkv {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

struct Truncation {
  float temperature, top_k, top_p, min_p;

  bool is_neutral(int64_t vocab) const { return !ranks(vocab) && min_p == 0; }
  bool limits_count(int64_t vocab) const { return top_k > 0 && top_k < float(vocab); }
  bool ranks(int64_t vocab) const { return limits_count(vocab) || top_p < 1; }
  float divisor() const { return temperature > 0 ? temperature : 1; }
};

// Keeps all logits above `last`, and the first `ties` of those that equal it.
struct Kept {
  float last;
  int64_t ties;
};

struct Ranked {
  float logit, weight;
};

// Partitions tokens into those that are kept, those still to be decided, and those that are not kept.
class Partition {
 public:
  // weight: the sum over all tokens
  Partition(std::vector<Ranked>& tokens, double weight) : tokens_(tokens), rest_(weight) {}

  // Returns the end of the shortest prefix whose weight reaches `target`, or of the whole order if rounding keeps its
  // weight below that.
  Kept reach(double target) {
    int64_t first = 0, stop = int64_t(tokens_.size()), margin = kMargin;
    while (true) {
      const float pivot = pivot_of(first, stop, target / rest_, margin);
      const int64_t equal = split(first, stop, [pivot](float x) { return x > pivot; });
      const double above = weight_of(first, equal);
      if (above >= target) {
        stop = equal;
        rest_ = above;
        margin = -kMargin;
        continue;
      }
      const int64_t below = split(equal, stop, [pivot](float x) { return x == pivot; }), ties = below - equal;
      const double one = tokens_[equal].weight;
      target -= above;
      if (target <= one * double(ties) || below == stop)
        return {pivot, one > 0 ? std::clamp(int64_t(std::ceil(target / one)), int64_t(1), ties) : ties};
      target -= one * double(ties);
      rest_ -= above + one * double(ties);
      first = below;
      margin = kMargin;
    }
  }

 private:
  // Returns a pivot: the logit at which a sample of the tokens reaches this share of the sample's weight. With many
  // tokens it is a few samples further, so that two pivots soon enclose the end.
  float pivot_of(int64_t first, int64_t stop, double part, int64_t margin) const {
    std::array<Ranked, kSampleSize> some;
    const int64_t count = std::min(kSampleSize, stop - first);
    for (int64_t i = 0; i < count; ++i) some[i] = tokens_[first + i * (stop - first) / count];
    std::sort(some.data(), some.data() + count, [](Ranked a, Ranked b) { return a.logit > b.logit; });
    double all = 0, reached = 0;
    for (int64_t i = 0; i < count; ++i) all += some[i].weight;
    int64_t at = 0;
    while (at < count - 1 && (reached += some[at].weight) < part * all) ++at;
    return some[count < kSampleSize ? at : std::clamp(at + margin, int64_t(0), count - 1)].logit;
  }

  // Moves tokens for which `is_first` holds to the front and returns where the others begin.
  template <typename Test>
  int64_t split(int64_t first, int64_t stop, Test is_first) {
    int64_t end = first;
    for (int64_t i = first; i < stop; ++i) {
      const Ranked one = tokens_[i];
      tokens_[i] = tokens_[end];
      tokens_[end] = one;
      end += is_first(one.logit);
    }
    return end;
  }

  double weight_of(int64_t first, int64_t stop) const {
    double sum = 0;
    for (int64_t i = first; i < stop; ++i) sum += tokens_[i].weight;
    return sum;
  }

  static constexpr int64_t kSampleSize = 64, kMargin = 3;

  std::vector<Ranked>& tokens_;
  double rest_;  // weight of the tokens still to be decided
};

class Truncate {
 public:
  // Sets logits[vocab] that are not kept to -inf, in place. `top` is the highest logit.
  void operator()(float* logits, int64_t vocab, float top, const Truncation& settings) {
    if (settings.is_neutral(vocab)) return;
    const float* weights = weigh(logits, vocab, top, settings.divisor());
    Kept kept{kForbidden, vocab};
    if (settings.ranks(vocab)) kept = rank(logits, weights, vocab, settings);
    for (int64_t i = 0; i < vocab; ++i)
      logits[i] = logits[i] < kept.last || weights[i] < settings.min_p ? kForbidden : logits[i];
    for (int64_t i = 0, ties = kept.ties; i < vocab; ++i)
      if (logits[i] == kept.last && ties-- <= 0) logits[i] = kForbidden;
  }

 private:
  // Returns probabilities, scaled so that the highest is 1.
  const float* weigh(const float* logits, int64_t vocab, float top, float divisor) {
    float* weights = workspace(weights_, vocab);
    const float highest = top / divisor;
    at::vec::map<float>([=](Vec x) { return (x / Vec(divisor) - Vec(highest)).exp_u20(); }, weights, logits, vocab);
    return weights;
  }

  Kept rank(const float* logits, const float* weights, int64_t vocab, const Truncation& settings) {
    Kept kept{kForbidden, vocab};
    if (settings.limits_count(vocab)) {
      tokens_.resize(vocab);
      for (int64_t i = 0; i < vocab; ++i) tokens_[i] = {logits[i], 1};
      kept = Partition(tokens_, double(vocab)).reach(double(settings.top_k));
    }
    if (settings.top_p == 1) return kept;
    int64_t ties = kept.ties;
    double all = 0;
    tokens_.clear();
    for (int64_t i = 0; i < vocab; ++i)
      if (logits[i] > kept.last || (logits[i] == kept.last && ties-- > 0)) {
        tokens_.push_back({logits[i], weights[i]});
        all += weights[i];
      }
    return Partition(tokens_, all).reach(std::max(double(settings.top_p) * all, kMinMass));
  }

  static constexpr double kMinMass = 1e-300;  // below any token's weight
  std::vector<float> weights_;
  std::vector<Ranked> tokens_;
};

}  // namespace ringkv
