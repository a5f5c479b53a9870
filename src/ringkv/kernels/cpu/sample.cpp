// sample and top_logprobs on the CPU. Each row computes only what its request needs. See sampling/operators.py.
//
// Sampling with a temperature costs little more than the argmax: no noise is computed for a token whose logit is too
// low to win even with the largest noise.

#include "noise.h"
#include "row_logits.h"
#include "truncate.h"

namespace ringkv {
namespace {

using Optional = std::optional<at::Tensor>;

constexpr int64_t kBad = -1;  // the token of a row with logits that are not finite
constexpr int64_t kTop = 20;  // maximum number of reported log-probabilities

enum Tier { kGrammar = 2, kAdjusted = 3, kTruncated = 4 };  // base/sampling.py
enum Param { kTopK, kTopP, kMinP, kRepetition, kPresence, kFrequency, kMinTokens, kBiased, kParams };

// The token with the highest value so far; of equal values the lowest id
struct Winner {
  int64_t id;
  float value;

  void offer(int64_t other, float its) {
    if (its > value || (its == value && other < id)) *this = {other, its};
  }
};

// Returns the token with the highest logit / temperature + noise among those ranked before `limit`: a sample of the
// softmax by the Gumbel-max trick. The top token must be one of them.
int64_t sample_warm(const RowLogits& row, float temperature, const Noise& noise, Rank limit) {
  const int64_t top = row.top_token();
  Winner winner{top, row.top() / temperature + noise(top)};
  Block buffer;
  uint32_t bits[kBlock];
  for (int64_t block = 0; block < row.blocks(); ++block) {
    const float high = row.peak(block) / temperature;
    if (row.peak(block) < limit.logit || high + kMostNoise < winner.value) continue;
    const int64_t first = block * kBlock, stop = std::min(kBlock, row.vocab() - first);
    const uint32_t largest = noise.bits<kBlock>(first, bits);
    const double slack = 1e-3 + 1e-6 * std::abs(double(winner.value));  // for rounding
    const uint32_t least = Noise::at_least(double(winner.value) - high - slack);
    if (largest < least) continue;
    const float* x = row.read(block, buffer);
    for (int64_t i = 0; i < stop; ++i)
      if (bits[i] >= least && Rank{x[i], first + i} < limit)
        winner.offer(first + i, x[i] / temperature + Noise::of(bits[i]));
  }
  return winner.id;
}

// All rows' tensors
struct Rows {
  const float *logits, *temperature;
  const int64_t *forced, *position, *seed;
  const int32_t *tier, *allowed;
  const float *params, *bias;
  const uint8_t *in_prompt, *ends;
  const int32_t* in_output;
  int64_t vocab;

  int64_t sample(int64_t row) const {
    const RowLogits adjusted(logits + row * vocab, vocab, adjustments(row));
    if (!std::isfinite(adjusted.model_top())) return kBad;
    if (forced[row] >= 0) return forced[row];
    if (temperature[row] == 0 || adjusted.top() == kForbidden) return adjusted.top_token();
    const Truncated kept(adjusted, truncation(row));
    const Noise noise(seed[row], position[row]);
    for (Rank limit = kept.limit();;) {
      const int64_t token = sample_warm(adjusted, temperature[row], noise, limit);
      limit = {adjusted.at(token), token};
      if (kept.keeps(limit)) return token;
    }
  }

 private:
  // Returns the masks and penalties that a row's parameters need.
  Adjustments adjustments(int64_t row) const {
    Adjustments of;
    if (tier[row] < kGrammar || !allowed) return of;
    of.allowed = allowed + row * ((vocab + 31) / 32);
    if (tier[row] < kAdjusted) return of;
    const float* settings = params + row * kParams;
    const int32_t* counts = in_output + row * vocab;
    if (settings[kBiased] != 0) of.bias = bias + row * vocab;
    if (settings[kMinTokens] > 0 && float(std::accumulate(counts, counts + vocab, int64_t(0))) < settings[kMinTokens])
      of.ends = ends + row * vocab;
    if (settings[kRepetition] == 1 && settings[kPresence] == 0 && settings[kFrequency] == 0) return of;
    of.in_prompt = in_prompt + row * vocab;
    of.in_output = counts;
    of.repetition = settings[kRepetition];
    of.presence = settings[kPresence];
    of.frequency = settings[kFrequency];
    return of;
  }

  Truncation truncation(int64_t row) const {
    if (tier[row] < kTruncated) return {temperature[row]};
    const float* settings = params + row * kParams;
    return {temperature[row], settings[kTopK], settings[kTopP], settings[kMinP]};
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
                  const at::Tensor& params, const Optional& allowed, const Optional& bias, const Optional& in_prompt,
                  const Optional& in_output, const Optional& ends) {
  const int64_t rows = logits.size(0), vocab = logits.size(1), all = rows * vocab;
  const Rows work{data<float>(logits, all, "logits"),
                  data<float>(temperature, rows, "temperature"),
                  data<int64_t>(forced, rows, "forced"),
                  data<int64_t>(position, rows, "position"),
                  data<int64_t>(seed, rows, "seed"),
                  data<int32_t>(tier, rows, "tier"),
                  data<int32_t>(allowed, rows * ((vocab + 31) / 32), "allowed"),
                  data<float>(params, rows * kParams, "params"),
                  data<float>(bias, all, "bias"),
                  reinterpret_cast<const uint8_t*>(data<bool>(in_prompt, all, "in_prompt")),
                  reinterpret_cast<const uint8_t*>(data<bool>(ends, all, "ends")),
                  data<int32_t>(in_output, all, "in_output"),
                  vocab};
  TORCH_CHECK(allowed.has_value() == (bias && in_prompt && in_output && ends), "sample: some planes are absent");
  at::Tensor tokens = at::empty({rows}, logits.options().dtype(at::kLong));
  int64_t* out = tokens.mutable_data_ptr<int64_t>();
  std::vector<int64_t> running;  // threads share these evenly
  for (int64_t row = 0; row < rows; ++row) {
    out[row] = kBad;
    if (work.tier[row] >= 0) running.push_back(row);
  }
  at::parallel_for(0, int64_t(running.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[running[i]] = work.sample(running[i]);
  });
  return tokens;
}

// Returns log(sum(exp)) of a row. Blocks whose weights would be lost to rounding are left out.
double log_sum_exp(const RowLogits& row) {
  constexpr float negligible = 40;
  const Vec top(row.top());
  double sum = 0;
  Block buffer;
  for (int64_t block = 0; block < row.blocks(); ++block) {
    if (row.peak(block) < row.top() - negligible) continue;
    const float* x = row.read(block, buffer);
    Vec part(0);
    for (int64_t i = 0; i < kBlock; i += kLanes) part = part + (Vec::loadu(x + i) - top).exp();
    sum += sum_of(part);
  }
  return double(row.top()) + std::log(sum);
}

// Writes the `wanted` highest tokens, in order; equal logits by id.
void top_tokens(const RowLogits& row, Rank* tokens, int64_t wanted) {
  int64_t count = 0;
  Block buffer;
  for (int64_t block = 0; block < row.blocks(); ++block) {
    if (count == wanted && row.peak(block) <= tokens[count - 1].logit) continue;
    const float* x = row.read(block, buffer);
    const int64_t first = block * kBlock, stop = std::min(kBlock, row.vocab() - first);
    for (int64_t i = 0; i < stop; ++i) {
      const Rank rank{x[i], first + i};
      if (count == wanted && !(rank < tokens[count - 1])) continue;
      count += count < wanted;
      int64_t at = count - 1;
      for (; at > 0 && rank < tokens[at - 1]; --at) tokens[at] = tokens[at - 1];
      tokens[at] = rank;
    }
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> top_logprobs(const at::Tensor& logits, const at::Tensor& tokens,
                                                            const at::Tensor& scored) {
  const int64_t rows = logits.size(0), vocab = logits.size(1), wanted = std::min(kTop, vocab);
  const float* all = data<float>(logits, rows * vocab, "logits");
  const int64_t* token = data<int64_t>(tokens, rows, "tokens");
  const bool* is_scored = data<bool>(scored, rows, "scored");
  at::Tensor logprobs = at::zeros({rows}, logits.options()), top = at::zeros({rows, wanted}, logits.options());
  at::Tensor ids = at::zeros({rows, wanted}, tokens.options());
  float *logprobs_to = logprobs.mutable_data_ptr<float>(), *top_to = top.mutable_data_ptr<float>();
  int64_t* ids_to = ids.mutable_data_ptr<int64_t>();
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (!is_scored[row]) continue;
      const RowLogits logits_of_row(all + row * vocab, vocab);
      const double sum = log_sum_exp(logits_of_row);
      std::array<Rank, kTop> best;
      top_tokens(logits_of_row, best.data(), wanted);
      logprobs_to[row] = float(double(all[row * vocab + std::max<int64_t>(token[row], 0)]) - sum);
      for (int64_t i = 0; i < wanted; ++i) {
        ids_to[row * wanted + i] = best[i].id;
        top_to[row * wanted + i] = float(double(best[i].logit) - sum);
      }
    }
  });
  return {logprobs, ids, top};
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) {
  m.impl("sample", &ringkv::sample);
  m.impl("top_logprobs", &ringkv::top_logprobs);
}
