// BlockAhead: prefetches the next block into L2, a few cache lines at every step of the work on this one.
//
// Loads of one core do not saturate the memory bandwidth, and a burst of prefetches delays the work itself. Half of the
// lines are prefetched while keys are scored, the others while values are summed.

#pragma once

#include <cstdint>

#include "encoded_block.h"

namespace ringkv {

// Bytes of a key or a value, and of its scales.
struct VectorBytes {
  int64_t elements, scales;
};

class BlockAhead {
 public:
  // score_steps, sum_steps: of the work on this block.
  template <typename Element, typename Scale>
  BlockAhead(const EncodedBlock<Element, Scale>& next, const VectorBytes& bytes, int64_t score_steps, int64_t sum_steps)
      : spans_{span(next.key, next.entries * bytes.elements), span(next.key_scale, next.entries * bytes.scales),
               span(next.value_scale, next.entries * bytes.scales), span(next.value, next.entries * bytes.elements)} {
    const int64_t half = next.entries * (bytes.elements + bytes.scales) / kLine + 1;
    score_lines_ = half / score_steps + 1;
    sum_lines_ = half / sum_steps + 1;
  }

  void score_step() { step(score_lines_); }
  void sum_step() { step(sum_lines_); }

 private:
  static constexpr int kSpans = 4;
  static constexpr int64_t kLine = 64;
  struct Span {
    const char *at, *end;
  };
  template <typename T>
  static Span span(const T* at, int64_t bytes) {
    const auto* first = reinterpret_cast<const char*>(at);
    return {first, first + bytes};
  }

  void step(int64_t lines) {
    if (now_ == kSpans) return;
    Span& span = spans_[now_];
    for (const char* stop = span.at + lines * kLine; span.at < stop; span.at += kLine)
      __builtin_prefetch(span.at, 0, 2);
    if (span.at >= span.end) ++now_;
  }

  Span spans_[kSpans];
  int64_t score_lines_, sum_lines_;
  int now_ = 0;
};

}  // namespace ringkv
