// Slots whose keys and values are plain: elements of the engine's dtype.

#pragma once

#include "block.h"
#include "block_tiles.h"
#include "decode_step.h"
#include "entries.h"

namespace ringkv {
namespace {

// Latents have one plane, of keys that are values, too.
template <typename T>
class PlainSlots {
 public:
  static constexpr int64_t kGrain = kAlone;  // its heads are not worth a parallel region

  PlainSlots(const Step<T>& step, const DecodeArguments& a)
      : step_(step), width_(step.shape.width), keys_(a.planes.front().data_ptr<T>()),
        values_(a.planes.back().data_ptr<T>()), slot_(a.planes[0].stride(0)), head_(a.planes[0].stride(1)) {
    const at::Tensor& keys = a.planes.front();
    TORCH_CHECK(keys.strides() == a.planes.back().strides() && keys.stride(3) == 1 && keys.stride(2) == keys.size(3),
                "decode_attend: an entry's elements must be contiguous, and entries must follow each other");
  }

  void write(const StepHead& from, const Place& to) const {
    std::memcpy(keys_ + element(to), step_.k->of(from.row, from.head), width_ * sizeof(T));
    std::memcpy(values_ + element(to), step_.v->of(from.row, from.head), width_ * sizeof(T));
  }
  void prepare(const StepHead&) const {}
  Block<T> block(const BlockIndex& at, const Span& span) const {
    const int64_t first = element(span.from);
    return {step_.queries(at.head), keys_ + first, values_ + first, at.entries, span.in};
  }
  // As many queries of a head have the same bits as all of them.
  static int64_t most_queries(int64_t queries, int64_t width) {
#if defined(__AMX_BF16__) && defined(CPU_CAPABILITY_AVX512)
    if (std::is_same_v<T, BF16> && BlockTiles::fit(queries, width)) return kTileM;
#endif
    return std::numeric_limits<int64_t>::max();
  }
  template <typename Run>
  void with_attention(int64_t queries, const Run& run) const {
#if defined(__AMX_BF16__) && defined(CPU_CAPABILITY_AVX512)
    if constexpr (std::is_same_v<T, BF16>)
      if (BlockTiles::fit(queries, width_)) return run(BlockTiles(queries, width_, step_.scale));
#endif
    run(BlockRows<T>(queries, width_, step_.scale));
  }
  void finish(float*) const {}
  void add_centers() const {}
  const T* keys(const Place& from, int64_t) const { return keys_ + element(from); }

 private:
  int64_t element(const Place& at) const { return at.slot * slot_ + at.head * head_ + at.entry * width_; }

  const Step<T>& step_;
  const int64_t width_;
  T *keys_, *values_;
  const int64_t slot_, head_;
};

}  // namespace
}  // namespace ringkv
