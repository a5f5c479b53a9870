// product: a GEMM of rows with a packed weight, with the RMSNorm before it and an epilogue behind it.
//
// Each call has one parallel region. Threads divide N, so each weight is read by one thread, once per kMC rows. A
// thread processes one pair of panels at a time and runs the epilogue (bias, gate, residual, rounding) while the sums
// are in cache. A row's result depends only on the row and, if the storage has a kernel for few rows, on whether
// `all_rows` is more than that kernel takes.

#pragma once

#include "byte_panels.h"
#include "byte_tiles.h"
#include "bytes.h"
#include "few_rows.h"
#include "lanes.h"
#include "left_rows.h"
#include "row_groups.h"
#include "tiles.h"
#include "weights.h"
#include "workspace.h"

namespace ringkv {

constexpr int64_t kMicroTile = kMR * kNR;
constexpr int64_t kMC = 256;        // MC: rows per pass over the weights; twice as many if K is small
constexpr int64_t kInnerKC = 256;   // K elements of MR rows that fit in L1
constexpr int64_t kUnsplitK = 640;  // up to this K, kInnerKC does not split it
constexpr int64_t kNCPairs = 4;     // NC, in pairs of panels
constexpr int64_t kFewRows = 2;     // rows for which hardware prefetch is enough

struct TileSums {
  int64_t row, rows, pair;
  const float* at;
};

// The operands and microkernels of a storage's products.
template <typename Storage, bool quantises = kQuantisesRows<Storage>>
struct Operands {
  using Left = LeftRows;
  using Right = WidenedPanels<Storage>;
  using Kernel = Tiles;
  static constexpr int64_t kStoredRows = kHasByteKernel<Storage> ? kByteRows : 0;  // rows that need no `Right`

  template <int M>
  static void multiply_stored(const LeftOperand& x, const uint8_t* left, const uint8_t* right, int64_t blocks,
                              float* c) {
    multiply_bytes<M>(x, left, right, blocks, c);
  }
};

template <typename Storage>
struct Operands<Storage, true> {
  using Left = QuantisedRows;
  using Right = BytePanels<Storage>;
  using Kernel = ByteTiles<Storage::kHasGroupScales>;
  static constexpr int64_t kStoredRows = Storage::kHasGroupScales ? 0 : kByteQuadRows;

  template <int M>
  static void multiply_stored(const RowGroups& x, const uint8_t* left, const uint8_t* right, int64_t blocks,
                              float* c) {
    ringkv::multiply_stored<M>(x, left, right, blocks, c);
  }
};

// One thread's part of a product. It processes kNCPairs pairs of panels at a time, which stay in L2 for all rows; kMR
// rows stay in L1 for all of these pairs. The epilogue of one piece of rows overlaps the tile products of the next.
template <typename Storage, typename Epilogue>
class ThreadProduct {
  using Of = Operands<Storage>;

 public:
  ThreadProduct(const Product& p, const typename Of::Left& x, const Epilogue& epilogue, int64_t mc, int64_t begin,
                int64_t end)
      : p_(p), x_(x), epilogue_(epilogue), begin_(begin), end_(end), splits_k_(p.k_size > kKC && mc > kMR),
        tiles_(std::min(kMR, mc)), widened_(p.weight_of<Storage>(), extent(mc)) {
    size_ = splits_k_ ? (mc + kMR) / kMR : 2;
    static thread_local std::vector<float> memory;
    scratch_ = workspace(memory, size_ * kMicroTile * (splits_k_ ? end - begin : kNCPairs));
  }

  // Computes all of this thread's outputs for rows [first, first + count).
  void run(int64_t first, int64_t count) {
    if constexpr (FewRows<Storage>::kMost > 0)
      if (p_.all_rows <= FewRows<Storage>::kMost) return multiply_few(first, count);
    if constexpr (Of::kStoredRows > 0)
      if (count <= Of::kStoredRows) return multiply_stored(first, count);
    const int64_t kc = splits_k_ ? kKC / kTileK : blocks_, pairs = extent(count).pairs;
    for (int64_t k = 0; k < blocks_; k += kc)
      for (int64_t pair = begin_; pair < end_; pair += pairs)
        multiply(first, count, pair, std::min(pair + pairs, end_), k, std::min(k + kc, blocks_));
    flush();
  }

 private:
  // How much of the weight is widened at a time: NC x KC for many rows, less for up to kMR rows.
  PanelExtent extent(int64_t rows) const {
    const PanelExtent all{kNCPairs, splits_k_ ? kKC / kTileK : blocks_};
    return rows > kMR ? all : Of::Right::few_rows_extent(all);
  }

  void multiply_few(int64_t first, int64_t count) {
    const auto weight = p_.weight_of<Storage>();
    typename FewRows<Storage>::Rows x(count, blocks_);
    x.pack(x_.at(first, first, 0), blocks_);
    for (int64_t pair = begin_; pair < end_; ++pair) {
      for (int64_t i = 2 * pair; i < std::min(2 * pair + 2, p_.panels); ++i)
        FewRows<Storage>::multiply(weight.block(i, 0), x, count, blocks_, scratch_ + i % 2 * kTileN);
      epilogue_({first, count, pair, scratch_});
    }
  }

  void multiply_stored(int64_t first, int64_t count) {
    const auto weight = p_.weight_of<Storage>();
    for (int64_t pair = begin_; pair < end_; ++pair) {
      const uint8_t *left = weight.block(2 * pair, 0), *right = weight.block(std::min(2 * pair + 1, p_.panels - 1), 0);
      const auto run = [&](auto rows) {
        Of::template multiply_stored<decltype(rows)::value>(x_.at(first, first, 0), left, right, blocks_, scratch_);
      };
      at_most<Of::kStoredRows>(count, run);
      epilogue_({first, count, pair, scratch_});
    }
  }

  // Multiplies pairs [pair, stop), over blocks [from, to) along K.
  void multiply(int64_t first, int64_t count, int64_t pair, int64_t stop, int64_t from, int64_t to) {
    const bool is_small = count <= kMR;
    if (!is_small) widened_.load(pair, stop, from, to);
    const int64_t inner_kc =
        is_small ? extent(count).blocks : to - from <= kUnsplitK / kTileK ? to - from : kInnerKC / kTileK;
    for (int64_t m = 0; m < count; m += kMR) {
      const int64_t rows = std::min(kMR, count - m);
      tiles_.shape(rows);
      for (int64_t k = from; k < to; k += inner_kc) {
        const int64_t blocks = std::min(inner_kc, to - k);
        if (is_small) widened_.load(pair, stop, k, k + blocks);
        for (int64_t i = pair; i < stop; ++i) {
          const auto left = widened_.at(2 * i, k), right = widened_.at(std::min(2 * i + 1, p_.panels - 1), k);
          const Ahead ahead = m == 0 && rows > kFewRows ? after(i, k, {pair, stop, from, to, inner_kc}) : Ahead();
          tiles_.multiply(x_.at(first + m, first, k), left, right, blocks, sums(i, m, buffer_), k > 0, ahead);
          if (k == from) flush();
        }
      }
      if (to == blocks_) pending_ = {first, m, rows, pair, stop, buffer_};
      buffer_ = 1 - buffer_;
    }
  }

  // Pairs [pair, stop) and blocks [from, to) along K, `step` at a time.
  struct Piece {
    int64_t pair, stop, from, to, step;
  };

  // What the first rows read after blocks k to k + step of pair i: the same blocks of the next pair, the next blocks of
  // the first pair, or the next piece. Other rows find it in L2. Widening has a prefetch of its own.
  Ahead after(int64_t i, int64_t k, const Piece& piece) const {
    if constexpr (!std::is_same_v<Storage, StoredBF16>) return {};
    if (i + 1 < piece.stop) return blocks_of(i + 1, k);
    if (k + piece.step < piece.to) return blocks_of(piece.pair, k + piece.step);
    return piece.stop < end_ ? blocks_of(piece.stop, piece.from) : Ahead();
  }
  Ahead blocks_of(int64_t pair, int64_t k) const {
    const auto weight = p_.weight_of<Storage>();
    return {weight.block(2 * pair, k), weight.block(std::min(2 * pair + 1, p_.panels - 1), k), Storage::kBlockBytes,
            Storage::kBlockBytes};
  }

  float* sums(int64_t pair, int64_t m, int64_t buffer) const {
    const int64_t place = splits_k_ ? (pair - begin_) * size_ + m / kMR : (pair - begin_) % kNCPairs * 2 + buffer;
    return scratch_ + place * kMicroTile;
  }

  void flush() {
    for (int64_t i = pending_.pair; i < pending_.stop; ++i)
      epilogue_({pending_.first + pending_.m, pending_.rows, i, sums(i, pending_.m, pending_.buffer)});
    pending_.stop = pending_.pair;
  }

  const Product& p_;
  const typename Of::Left& x_;
  const Epilogue& epilogue_;
  const int64_t begin_, end_, blocks_ = p_.k_size / kTileK;
  const bool splits_k_;  // K is processed KC at a time, and the sums of all pairs are kept between
  typename Of::Kernel tiles_;
  typename Of::Right widened_;
  int64_t size_;
  float* scratch_;
  struct {
    int64_t first, m, rows, pair, stop, buffer;
  } pending_{};  // sums whose epilogue has not run
  int64_t buffer_ = 0;  // which of two buffers the current rows use
};

template <typename Storage, typename Epilogue>
void product(const Product& p, const Epilogue& epilogue) {
  if constexpr (requires { typename Storage::Stored; })
    if (p.all_rows <= FewRows<typename Storage::Stored>::kMost) return product<typename Storage::Stored>(p, epilogue);
  const int64_t pairs = (p.panels + 1) / 2, limit = kQuantisesRows<Storage> || p.k_size <= kUnsplitK ? 2 * kMC : kMC;
  const int64_t mc = std::min(p.rows, limit);
  const typename Operands<Storage>::Left x(p, mc);
#pragma omp parallel num_threads(at::in_parallel_region() ? 1 : at::get_num_threads())
  {
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    ThreadProduct<Storage, Epilogue> part(p, x, epilogue, mc, pairs * thread / threads, pairs * (thread + 1) / threads);
    for (int64_t first = 0; first < p.rows; first += mc) {
      const int64_t count = std::min(mc, p.rows - first);
      if (x.is_packed) {
        if (first > 0) {
#pragma omp barrier
        }
        x.pack(first + count * thread / threads, first + count * (thread + 1) / threads, first);
#pragma omp barrier
      }
      part.run(first, count);
    }
  }
}

}  // namespace ringkv
