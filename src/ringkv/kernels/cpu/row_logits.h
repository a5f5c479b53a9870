// RowLogits: the logits of one slot in blocks of tokens, after grammar masks and penalties. Blocks that need neither are
// read in place, the others are computed when they are read: a row is never copied.

#pragma once

#include "lanes.h"
#include "workspace.h"

namespace ringkv {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();
constexpr int64_t kBlock = 64;  // tokens processed together

using Block = std::array<float, kBlock>;

// Returns the highest logit, or NaN if there is one: at::vec's maximum propagates NaN.
inline float highest(const float* logits, int64_t count) {
  return at::vec::reduce_all<float>([](Vec a, Vec b) { return at::vec::maximum(a, b); }, logits, count);
}

// The same for a whole block.
inline float highest(const float* block) {
  Vec high = Vec::loadu(block);
  for (int64_t i = kLanes; i < kBlock; i += kLanes) high = at::vec::maximum(high, Vec::loadu(block + i));
  return at::vec::vec_reduce_all<float>([](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, high);
}

// The masks and penalties of one row. A pointer is null if the row does not need it.
struct Adjustments {
  const int32_t* allowed = nullptr;  // a bit for each token
  const float* bias = nullptr;
  const uint8_t *ends = nullptr, *in_prompt = nullptr;  // 0 or 1; loops over bool are not vectorised
  const int32_t* in_output = nullptr;
  float repetition = 1, presence = 0, frequency = 0;

  bool none() const { return !allowed && !has_amounts(); }
  bool has_amounts() const { return bias || ends || in_output; }

  // Returns a block's bits.
  uint64_t mask(int64_t first, int64_t vocab) const {
    if (!allowed) return ~uint64_t(0);
    const auto word = [&](int64_t at) { return at * 32 < vocab ? uint64_t(uint32_t(allowed[at])) : 0; };
    return word(first / 32) | word(first / 32 + 1) << 32;
  }

  // In vLLM's order: bias, forbidden ends, repetition, frequency and presence; in place. Count: a constant for a whole
  // block, so that the loops are vectorised.
  template <typename Count>
  void apply(float* __restrict x, int64_t first, Count count) const {
    if (bias)
      for (int64_t i = 0; i < count; ++i) x[i] += bias[first + i];
    if (ends)
      for (int64_t i = 0; i < count; ++i) x[i] = ends[first + i] ? kForbidden : x[i];
    if (in_output) penalize(x, in_prompt + first, in_output + first, count);
  }

 private:
  template <typename Count>
  void penalize(float* __restrict x, const uint8_t* prompt, const int32_t* output, Count count) const {
    for (int64_t i = 0; i < count; ++i) {
      const float divided = x[i] / repetition, multiplied = x[i] * repetition;
      const float repeated = x[i] > 0 ? divided : multiplied;
      const float kept = prompt[i] + output[i] > 0 ? repeated : x[i];
      x[i] = kept - frequency * float(output[i]) - (output[i] > 0 ? presence : 0.f);
    }
  }
};

class RowLogits {
 public:
  // Reads the whole row once.
  RowLogits(const float* logits, int64_t vocab, const Adjustments& adjustments = {})
      : logits_(logits), vocab_(vocab), adjustments_(adjustments) {
    static thread_local std::vector<float> kept;
    peaks_ = workspace(kept, blocks());
    scan();
    top_ = adjustments_.none() ? model_top_ : highest(peaks_, blocks());
  }

  int64_t vocab() const { return vocab_; }
  int64_t blocks() const { return (vocab_ + kBlock - 1) / kBlock; }

  // Returns the model's highest logit, NaN if any is NaN.
  float model_top() const { return model_top_; }

  // Returns the highest logit after masks and penalties.
  float top() const { return top_; }
  int64_t top_token() const {
    const int64_t block = std::find(peaks_, peaks_ + blocks(), top_) - peaks_;
    Block buffer;
    const float* x = read(block, buffer);
    return block * kBlock + (std::find(x, x + kBlock - 1, top_) - x);
  }

  float at(int64_t token) const {
    Block buffer;
    return read(token / kBlock, buffer)[token % kBlock];
  }

  // Returns the highest logit of a block.
  float peak(int64_t block) const { return peaks_[block]; }
  const float* peaks() const { return peaks_; }

  // Returns the logits of a block, kForbidden beyond the vocabulary: in the model's memory, or computed into `buffer`.
  const float* read(int64_t block, Block& buffer) const {
    const int64_t first = block * kBlock, count = std::min(kBlock, vocab_ - first);
    const uint64_t mask = adjustments_.mask(first, vocab_);
    if (count == kBlock && mask == ~uint64_t(0) && !adjustments_.has_amounts()) return logits_ + first;
    std::copy_n(logits_ + first, count, buffer.data());
    std::fill(buffer.begin() + count, buffer.end(), kForbidden);
    for (int64_t i = 0; i < kBlock; ++i) buffer[i] = mask >> i & 1 ? buffer[i] : kForbidden;
    if (count == kBlock)
      adjustments_.apply(buffer.data(), first, std::integral_constant<int64_t, kBlock>());
    else
      adjustments_.apply(buffer.data(), first, count);
    return buffer.data();
  }

 private:
  void scan() {
    Block buffer;
    Vec high(kForbidden);
    for (int64_t block = 0; block < blocks(); ++block) {
      const int64_t first = block * kBlock, count = std::min(kBlock, vocab_ - first);
      const float model = count == kBlock ? highest(logits_ + first) : highest(logits_ + first, count);
      high = at::vec::maximum(high, Vec(model));
      peaks_[block] = adjustments_.none()                        ? model
                      : adjustments_.mask(first, vocab_) == 0 ? kForbidden
                                                                 : highest(read(block, buffer));
    }
    float all[kLanes];
    high.store(all);
    model_top_ = all[0];
  }

  const float* logits_;
  int64_t vocab_;
  Adjustments adjustments_;
  float* peaks_;
  float model_top_ = kForbidden, top_ = kForbidden;
};

}  // namespace ringkv
