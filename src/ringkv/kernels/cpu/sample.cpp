// sample and top_logprobs on the CPU. Each row computes only what its request needs. See sampling/operators.py.
//
// Sampling with a temperature costs little more than the argmax: no noise is computed for a token whose logit is too
// low to win even with the largest noise.

#include "lanes.h"
#include "noise.h"
#include "truncate.h"
#include "workspace.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <optional>
#include <utility>

namespace ringkv {
namespace {

using Optional = std::optional<at::Tensor>;

constexpr int64_t kBad = -1;    // the token of a row with logits that are not finite
constexpr int64_t kBlock = 64;  // tokens processed together
constexpr int64_t kTop = 20;    // maximum number of reported log-probabilities

enum Tier { kGrammar = 2, kAdjusted = 3, kTruncated = 4 };  // base/sampling.py
enum Param { kTopK, kTopP, kMinP, kRepetition, kPresence, kFrequency, kMinTokens, kParams };

// Returns the highest logit, or NaN if there is one: at::vec's maximum propagates NaN.
float highest(const float* logits, int64_t vocab) {
  return at::vec::reduce_all<float>([](Vec a, Vec b) { return at::vec::maximum(a, b); }, logits, vocab);
}

int64_t first_of(const float* logits, int64_t vocab, float value) {
  return std::find(logits, logits + vocab, value) - logits;
}

// The masks and penalties of one row
struct Adjustments {
  const int32_t* allowed;
  const float *params, *bias;
  const bool *in_prompt, *ends;
  const int32_t* in_output;

  void allow(float* logits, int64_t vocab) const {
    for (int64_t i = 0; i < vocab; ++i)
      logits[i] = uint32_t(allowed[i / 32]) >> i % 32 & 1 ? logits[i] : kForbidden;
  }

  // In vLLM's order: bias, forbidden ends, repetition, frequency and presence.
  void adjust(float* logits, int64_t vocab) const {
    const float repetition = params[kRepetition], presence = params[kPresence], frequency = params[kFrequency];
    const bool holds_ends = is_short(vocab);
    for (int64_t i = 0; i < vocab; ++i) {
      float x = logits[i] + bias[i];
      x = holds_ends && ends[i] ? kForbidden : x;
      x = in_prompt[i] || in_output[i] > 0 ? (x > 0 ? x / repetition : x * repetition) : x;
      x -= frequency * float(in_output[i]);
      logits[i] = x - (in_output[i] > 0 ? presence : 0.f);
    }
  }

 private:
  bool is_short(int64_t vocab) const {
    int64_t sampled = 0;
    if (params[kMinTokens] > 0)
      for (int64_t i = 0; i < vocab; ++i) sampled += in_output[i];
    return float(sampled) < params[kMinTokens];
  }
};

// Returns the token with the highest logit / temperature + noise: a sample of the softmax by the Gumbel-max trick.
int64_t sample_warm(const float* logits, int64_t vocab, float top, float temperature, const Noise& noise) {
  const auto value = [&](int64_t i, float added) { return logits[i] / temperature + added; };
  const int64_t likely = first_of(logits, vocab, top);
  const float bound = value(likely, noise(likely));  // lower bound of the winner's value
  const double slack = 1e-3 + 1e-6 * std::abs(double(bound));  // for rounding
  int64_t winner = likely;
  float best = kForbidden;
  uint32_t bits[kBlock];
  for (int64_t first = 0; first < vocab; first += kBlock) {
    const int64_t count = std::min(kBlock, vocab - first);
    const float high = highest(logits + first, count) / temperature;
    if (high + kMostNoise < bound) continue;
    for (int64_t i = 0; i < count; ++i) bits[i] = noise.bits(first + i);
    const uint32_t least = Noise::at_least(double(bound) - high - slack);
    for (int64_t i = 0; i < count; ++i) {
      if (bits[i] < least) continue;
      if (const float one = value(first + i, Noise::of(bits[i])); one > best) best = one, winner = first + i;
    }
  }
  return winner;
}

// All rows' tensors
struct Rows {
  const float *logits, *temperature;
  const int64_t *forced, *position, *seed;
  const int32_t* tier;
  Adjustments adjustments;  // of the first row
  int64_t vocab;

  int64_t sample(int64_t row) const {
    if (tier[row] < 0) return kBad;
    const float* own = logits + row * vocab;
    float top = highest(own, vocab);
    if (!std::isfinite(top)) return kBad;
    if (forced[row] >= 0) return forced[row];
    if (tier[row] >= kGrammar) {
      own = adjusted(row);
      top = highest(own, vocab);
    }
    if (temperature[row] == 0 || top == kForbidden) return first_of(own, vocab, top);
    return sample_warm(own, vocab, top, temperature[row], Noise(seed[row], position[row]));
  }

 private:
  // Returns a row's logits after masks, penalties and truncation, in the thread's workspace.
  const float* adjusted(int64_t row) const {
    static thread_local std::vector<float> kept;
    static thread_local Truncate truncate;
    float* own = workspace(kept, vocab);
    std::copy_n(logits + row * vocab, vocab, own);
    const Adjustments& all = adjustments;
    const float* params = all.params + row * kParams;
    const int64_t at = row * vocab;
    const Adjustments one{all.allowed + row * ((vocab + 31) / 32), params, all.bias + at, all.in_prompt + at,
                          all.ends + at, all.in_output + at};
    one.allow(own, vocab);
    if (tier[row] >= kAdjusted) one.adjust(own, vocab);
    if (tier[row] >= kTruncated && temperature[row] > 0)
      truncate(own, vocab, highest(own, vocab), {temperature[row], params[kTopK], params[kTopP], params[kMinP]});
    return own;
  }
};

template <typename T>
const T* data(const at::Tensor& tensor, int64_t count, const char* name) {
  TORCH_CHECK(tensor.is_contiguous() && tensor.scalar_type() == c10::CppTypeToScalarType<T>::value &&
                  tensor.numel() == count,
              "sample: wrong dtype, size or layout of ", name);
  return tensor.const_data_ptr<T>();
}

template <typename T>
const T* data(const Optional& tensor, int64_t count, const char* name) {
  return tensor ? data<T>(*tensor, count, name) : nullptr;
}

at::Tensor sample(const at::Tensor& logits, const at::Tensor& forced, const at::Tensor& position,
                  const at::Tensor& seed, const at::Tensor& temperature, const at::Tensor& tier,
                  const Optional& allowed, const Optional& params, const Optional& bias, const Optional& in_prompt,
                  const Optional& in_output, const Optional& ends) {
  const int64_t rows = logits.size(0), vocab = logits.size(1), all = rows * vocab;
  const Rows work{data<float>(logits, all, "logits"),
                  data<float>(temperature, rows, "temperature"),
                  data<int64_t>(forced, rows, "forced"),
                  data<int64_t>(position, rows, "position"),
                  data<int64_t>(seed, rows, "seed"),
                  data<int32_t>(tier, rows, "tier"),
                  {data<int32_t>(allowed, rows * ((vocab + 31) / 32), "allowed"),
                   data<float>(params, rows * kParams, "params"), data<float>(bias, all, "bias"),
                   data<bool>(in_prompt, all, "in_prompt"), data<bool>(ends, all, "ends"),
                   data<int32_t>(in_output, all, "in_output")},
                  vocab};
  for (int64_t row = 0; row < rows; ++row)
    TORCH_CHECK(work.tier[row] < kGrammar || (allowed && params && bias && in_prompt && in_output && ends),
                "sample: a row's tier needs tensors that are absent");
  at::Tensor tokens = at::empty({rows}, logits.options().dtype(at::kLong));
  int64_t* out = tokens.mutable_data_ptr<int64_t>();
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) out[row] = work.sample(row);
  });
  return tokens;
}

// Returns log(sum(exp)) of a row.
double log_sum_exp(const float* logits, int64_t vocab, float top) {
  double sum = 0;
  for (int64_t first = 0; first < vocab; first += kBlock) {
    const int64_t count = std::min(kBlock, vocab - first);
    sum += at::vec::map_reduce_all<float>([=](Vec x) { return (x - Vec(top)).exp(); },
                                          [](Vec a, Vec b) { return a + b; }, logits + first, count);
  }
  return double(top) + std::log(sum);
}

// Writes the ids of the `wanted` highest logits, in order; equal logits by id.
void top_ids(const float* logits, int64_t vocab, int64_t* ids, int64_t wanted) {
  const auto before = [&](int64_t a, int64_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); };
  int64_t count = 0;
  for (int64_t first = 0; first < vocab; first += kBlock) {
    const int64_t stop = std::min(first + kBlock, vocab);
    if (count == wanted && highest(logits + first, stop - first) <= logits[ids[count - 1]]) continue;
    for (int64_t i = first; i < stop; ++i) {
      if (count == wanted && !before(i, ids[count - 1])) continue;
      count += count < wanted;
      int64_t at = count - 1;
      for (; at > 0 && before(i, ids[at - 1]); --at) ids[at] = ids[at - 1];
      ids[at] = i;
    }
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> top_logprobs(const at::Tensor& logits, const at::Tensor& tokens,
                                                            const at::Tensor& scored) {
  const int64_t rows = logits.size(0), vocab = logits.size(1), wanted = std::min(kTop, vocab);
  const float* all = data<float>(logits, rows * vocab, "logits");
  const int64_t* token = data<int64_t>(tokens, rows, "tokens");
  const bool* is_scored = data<bool>(scored, rows, "scored");
  at::Tensor own = at::zeros({rows}, logits.options()), top = at::zeros({rows, wanted}, logits.options());
  at::Tensor ids = at::zeros({rows, wanted}, tokens.options());
  float *own_to = own.mutable_data_ptr<float>(), *top_to = top.mutable_data_ptr<float>();
  int64_t* ids_to = ids.mutable_data_ptr<int64_t>();
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (!is_scored[row]) continue;
      const float* one = all + row * vocab;
      const double sum = log_sum_exp(one, vocab, highest(one, vocab));
      top_ids(one, vocab, ids_to + row * wanted, wanted);
      own_to[row] = float(one[std::max<int64_t>(token[row], 0)] - sum);
      for (int64_t i = row * wanted; i < (row + 1) * wanted; ++i) top_to[i] = float(one[ids_to[i]] - sum);
    }
  });
  return {own, ids, top};
}

at::Tensor truncated(const at::Tensor& logits, const at::Tensor& temperature, const at::Tensor& top_k,
                     const at::Tensor& top_p, const at::Tensor& min_p) {
  at::Tensor out = logits.clone();
  const int64_t rows = out.size(0), vocab = out.size(1);
  float* to = out.mutable_data_ptr<float>();
  const at::Tensor settings = at::stack({temperature, top_k.flatten(), top_p.flatten(), min_p.flatten()}, 1);
  const float* of = data<float>(settings, rows * 4, "settings");
  Truncate truncate;
  for (int64_t row = 0; row < rows; ++row, of += 4)
    truncate(to + row * vocab, vocab, highest(to + row * vocab, vocab), {of[0], of[1], of[2], of[3]});
  return out;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) {
  m.impl("sample", &ringkv::sample);
  m.impl("top_logprobs", &ringkv::top_logprobs);
  m.impl("truncate", &ringkv::truncated);
}
