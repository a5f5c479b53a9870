// Block over encoded keys and values: the partial attention of block.h in integer arithmetic. An encoding has
//   Element, Scale   the types of its planes
//   kScaleBytes      bytes of a vector's scales; bytes(width) those of its elements
//   kQueries         queries that share a pass
//   Scales           of a block: `value` points to those of values as floats
//   encode           writes a vector's elements and scales, and subtracts a center if there is one
//   decode           restores a vector, still rotated
//   order            writes a quantised query in the order of its keys
//   score            the scores of G queries, for some keys at a time; calls its last argument before them
//   add              what is added to all elements of a query's weighted sum
//   sum              the weighted sums of values for G queries

#pragma once

#include "int4.h"

namespace ringkv {

#if !defined(RINGKV_QUADS)

// Prefetches a block's values while its keys are scored.
struct BlockAhead {
  const char* values;
  int64_t bytes;  // of a value

  template <typename Encoding, typename Block>
  BlockAhead(Encoding, const Block& block, const Block&, int64_t, int64_t width)
      : values(reinterpret_cast<const char*>(block.value)), bytes(Encoding::bytes(width)) {}
  void score_step(int64_t j, int64_t count) { prefetch<2>(values + j * bytes, count, bytes); }
};

#endif

// Attends to one block after the other.
template <typename Encoding>
class BlockEncoded {
 public:
  using Block = EncodedBlock<typename Encoding::Element, typename Encoding::Scale>;

  BlockEncoded(const Queries<Encoding>& all, int64_t queries, int64_t width, float scale)
      : all_(all), queries_(queries), width_(width), scale_(scale) {}

  void begin(const Block&) {}
  void attend(const Block& block, const Block& next, const Partial& to) const {
    BlockAhead ahead(Encoding(), block, next, queries_, width_);
    const typename Encoding::Scales scales(block);
    const Query query = all_.of(block.head);
    for_even_groups(queries_, Encoding::kQueries, [&](int64_t from, int64_t count) {
      const Partial part{to.out + from * width_, to.top + from, to.sum + from};
      at_most<Encoding::kQueries>(count, [&](auto size) {
        attend_group<decltype(size)::value>(block, scales, query.from(from), block.exact.from(from), part, ahead);
      });
    });
  }

 private:
  template <int G>
  void attend_group(const Block& block, const typename Encoding::Scales& scales, const Query& query,
                    const ExactScores& exact, const Partial& to, BlockAhead& ahead) const {
    alignas(64) float scores[G * kBlock];
    Weights weights;
    float add[G];
    Encoding::template score<G>(block, scales, query, width_, scale_, scores,
                                [&](int64_t j, int64_t count) { ahead.score_step(j, count); });
    exact.put(G, block.entries, kBlock, scores);
    for (int g = 0; g < G; ++g) {
      float* weight = scores + g * kBlock;
      std::tie(to.top[g], to.sum[g]) = weigh(weight, scales.value, block.entries, g, weights);
      add[g] = Encoding::add(weight, scales, weights.by[g], block.entries);
    }
    Encoding::template sum<G>(block, weights, add, width_, ahead, to.out);
  }

  const Queries<Encoding>& all_;
  const int64_t queries_, width_;
  const float scale_;
};

}  // namespace ringkv
