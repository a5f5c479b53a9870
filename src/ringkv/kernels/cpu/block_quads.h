// Block over encoded keys and values whose weighted sums are computed in quads: see sum_quads.h. An encoding has
//   Block, Queries   its EncodedBlock; its queries of a call
//   kScaleBytes      bytes of a vector's scales; bytes(width) those of its elements
//   Scales           of a block: `value` points to those of values as floats
//   score            the scores of G queries, for sixteen keys at a time; calls its last argument before them
//   add              what is added to all elements of a query's weighted sum
//   with_columns     calls its argument for every 32 elements of values, with their columns, rows and first element

#pragma once

#include "sum_quads.h"

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__) && defined(__AVX512VBMI__)

namespace ringkv {

// Calls `run` with the number of queries in a group, at most kMaxWeighted, as a compile-time constant.
template <typename Run>
void for_scored_group(int64_t count, const Run& run) {
  if (count > 5) return run(std::integral_constant<int, 6>{});
  if (count > 4) return run(std::integral_constant<int, 5>{});
  for_group(count, run);
}

// Attends to one block after the other.
template <typename Encoding>
class BlockQuads {
 public:
  using Block = typename Encoding::Block;

  BlockQuads(const typename Encoding::Queries& all, int64_t queries, int64_t width, float scale)
      : all_(all), queries_(queries), width_(width), scale_(scale) {}

  void begin(const Block&) {}
  void attend(const Block& block, const Block& next, const Partial& to) const {
    BlockAhead ahead = prefetch_while(block, next);
    const typename Encoding::Scales scales(block);
    const auto query = all_.of(block.head);
    for_even_groups(queries_, kMaxWeighted, [&](int64_t from, int64_t count) {
      const Partial part{to.out + from * width_, to.top + from, to.sum + from};
      for_scored_group(count, [&](auto size) {
        attend_group<decltype(size)::value>(block, scales, query.from(from), block.exact.from(from), part, ahead);
      });
    });
  }

 private:
  BlockAhead prefetch_while(const Block& block, const Block& next) const {
    const auto passes = [&](int64_t most) { return (queries_ + most - 1) / most; };
    const int64_t score_steps = (block.entries + 15) / 16 * passes(kMaxWeighted);
    const int64_t sum_steps = (block.entries + 3) / 4 * passes(kMaxQuadQueries) * (width_ / 32);
    const VectorBytes bytes{Encoding::bytes(width_), Encoding::kScaleBytes};
    return BlockAhead(next, bytes, score_steps, sum_steps);
  }

  template <int G, typename Query>
  void attend_group(const Block& block, const typename Encoding::Scales& scales, const Query& query,
                    const ExactScores& exact, const Partial& to, BlockAhead& ahead) const {
    alignas(64) float scores[G * kBlock];
    ByteWeights weights;
    float add[G];
    Encoding::template score<G>(block, scales, query, width_, scale_, scores,
                                [&](int64_t, int64_t) { ahead.score_step(); });
    exact.put(G, block.entries, kBlock, scores);
    for (int g = 0; g < G; ++g) {
      float* own = scores + g * kBlock;
      std::tie(to.top[g], to.sum[g]) = weigh(own, scales.value, block.entries, g, weights);
      add[g] = Encoding::add(own, scales, weights.by[g], block.entries);
    }
    Encoding::with_columns(block, width_, [&](const auto& columns, const ValueRows& rows, int64_t d) {
      for_even_groups(G, kMaxQuadQueries, [&](int64_t from, int64_t count) {
        for_group(count, [&](auto size) {
          sum_quads<decltype(size)::value>(weights, from, add, columns, rows, ahead, width_,
                                           to.out + from * width_ + d);
        });
      });
    });
  }

  const typename Encoding::Queries& all_;
  const int64_t queries_, width_;
  const float scale_;
};

}  // namespace ringkv

#endif
