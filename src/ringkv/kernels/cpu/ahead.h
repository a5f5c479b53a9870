// Ahead: prefetches the next block into L2, a few cache lines at every step of the work on this one.
//
// Loads of one core do not saturate the memory bandwidth, and a burst of prefetches delays the work itself. Half of the
// lines are prefetched while keys are scored, the others while values are summed.

#pragma once

#include <cstdint>

#include "encoded_block.h"

namespace ringkv {

// Bytes of an entry: of its key, and of its value; of the scales of each.
struct EntryBytes {
  int64_t vector, key_scale, value_scale;
};

class Ahead {
 public:
  // score_steps, sum_steps: of the work on this block.
  template <typename Element, typename Scale>
  Ahead(const EncodedBlock<Element, Scale>& next, const EntryBytes& bytes, int64_t score_steps, int64_t sum_steps)
      : spans_{span(next.key, next.entries * bytes.vector), span(next.key_scale, next.entries * bytes.key_scale),
               span(next.value_scale, next.entries * bytes.value_scale),
               span(next.value, next.entries * bytes.vector)} {
    const int64_t half = next.entries * (bytes.vector + bytes.value_scale) / kLine + 1;
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
