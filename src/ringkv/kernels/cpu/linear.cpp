// linear and gated on the CPU: x [M, in] times a packed weight, with what surrounds it in a decoder. See linear.py.
//
// One parallel region a call. A thread owns a run of outputs, so that each weight is read by one thread and once for
// kTallest rows; it walks them a pair of strips at a time, and finishes each pair (bias, gate, residual, rounding)
// while its sums are near. A row's result depends on nothing but the row (in four bits: and on whether there are many).

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <vector>

#include "lanes.h"
#include "nibbles.h"
#include "tiles.h"
#include "weights.h"
#include "workspace.h"

namespace ringkv {
namespace {

constexpr int64_t kPieceSums = kPiece * kPair;
constexpr int64_t kTallest = 256;                // rows that one reading of the weights serves; twice, if few inner numbers
constexpr int64_t kFar = 1536;                   // inner numbers of so many rows that stay in the second cache
constexpr int64_t kNear = 256;                   // inner numbers of a piece that stay in the first
constexpr int64_t kWhole = 640;                  // so few are taken at once
constexpr int64_t kPairs = 4;                    // pairs of strips that are taken together

struct Product {
  const BF16* x;
  int64_t rows, inner, stride;
  const uint8_t* weight;
  int64_t strips;
  const BF16* bias;
  const BF16* norm;
  float eps, offset;

  template <typename Kind>
  Strips<Kind> weight_of() const {
    return {weight, strips, inner / kDeep};
  }
};

// to[0..n) = x * scale * (offset + norm), rounded once
void normalise_wide(const BF16* x, const BF16* norm, Vec scale, Vec offset, int64_t n, BF16* to) {
  using Words = at::vec::Vectorized<BF16>;
  for (int64_t i = 0; i < n; i += kStep) {
    const auto [low, high] = at::vec::convert_to_float<BF16>(Words::loadu(x + i));
    const auto [first, second] = at::vec::convert_to_float<BF16>(Words::loadu(norm + i));
    at::vec::convert_from_float<BF16>(low * scale * (offset + first), high * scale * (offset + second)).store(to + i);
  }
}

// to[0..n) = x / rms(x) * (offset + norm), rounded as norm.py does
void normalise(const BF16* x, const BF16* norm, float eps, float offset, int64_t n, BF16* to) {
  Vec squares(0.f), low, high;
  for (int64_t i = 0; i < n; i += kStep) squares = Row<BF16>::dot(squares, x + i, x + i);
  const Vec scale(1.f / std::sqrt(sum_of(squares) / float(n) + eps));
  using Words = at::vec::Vectorized<BF16>;
  if (offset != 0.f) return normalise_wide(x, norm, scale, Vec(offset), n, to);
  for (int64_t i = 0; i < n; i += kStep) {
    std::tie(low, high) = at::vec::convert_to_float<BF16>(Words::loadu(x + i));
    const Words scaled = at::vec::convert_from_float<BF16>(low * scale, high * scale);
    (scaled * Words::loadu(norm + i)).store(to + i);
  }
}

// Rows as the product takes them: as they are, or as a copy, normalised and with each tile's numbers side by side.
// Copies are worth it where rows lie so far apart that their addresses collide in caches and page tables.
struct Rows {
  Rows(const Product& p, int64_t tall) : p(p), copied(p.norm || p.inner > kFar || p.stride % 1024 == 0) {
    if (!copied) return;
    static thread_local std::vector<BF16> kept;
    own = workspace(kept, (tall + kTall) * p.inner);
  }
  void prepare(int64_t from, int64_t to, int64_t base) const {
    static thread_local std::vector<BF16> line;
    line.resize(std::max<int64_t>(line.size(), p.inner));
    for (int64_t m = from; m < to; ++m) {
      const BF16* row = p.x + m * p.stride;
      if (p.norm) {
        normalise(row, p.norm, p.eps, p.offset, p.inner, line.data());
        row = line.data();
      }
      BF16* into = own + (m - base) / kTall * kTall * p.inner + (m - base) % kTall * kDeep;
      for (int64_t k = 0; k < p.inner; k += kDeep) std::memcpy(into + k * kTall, row + k, kDeep * sizeof(BF16));
    }
  }
  Left at(int64_t m, int64_t base, int64_t k) const {
    const BF16* upper = copied ? own + (m - base) * p.inner + k * kBlockSize : p.x + m * p.stride + k * kDeep;
    if (copied) return {upper, upper + kTall * p.inner, kDeep, kBlockSize};
    return {upper, upper + kTall * p.stride, p.stride, kDeep};
  }

  const Product& p;
  const bool copied;
  BF16* own = nullptr;
};

struct Sums {
  int64_t row, rows, pair;
  const float* at;
};

// One thread's part of a product. It takes a few pairs of strips at a time, which stay in the second cache for all rows;
// 32 rows stay in the first for all of these pairs. Sums are finished while the tiles are at work on the next rows.
template <typename Kind, typename Finish>
class Part {
 public:
  Part(const Product& p, const Rows& x, const Finish& finish, int64_t tall, int64_t begin, int64_t end)
      : p_(p), x_(x), finish_(finish), begin_(begin), end_(end), deep_(p.inner > kFar && tall > kPiece),
        tiles_(std::min(kPiece, tall)), panel_(p.weight_of<Kind>(), share(tall)) {
    size_ = deep_ ? (tall + kPiece) / kPiece : 2;
    static thread_local std::vector<float> kept;
    scratch_ = workspace(kept, size_ * kPieceSums * (deep_ ? end - begin : kPairs));
  }

  // All of this thread's outputs for rows [first, first + count)
  void run(int64_t first, int64_t count) {
    if constexpr (kTakesNibbles<Kind>)
      if (p_.rows <= kFew) return take_nibbles(first, count);
    const int64_t far = deep_ ? kFar / kDeep : blocks_, pairs = share(count).pairs;
    for (int64_t k = 0; k < blocks_; k += far)
      for (int64_t pair = begin_; pair < end_; pair += pairs)
        multiply(first, count, pair, std::min(pair + pairs, end_), k, std::min(k + far, blocks_));
    flush();
  }

 private:
  // What is widened together: for many rows all that they share, for few what they take next.
  Share share(int64_t rows) const {
    const Share all{kPairs, deep_ ? kFar / kDeep : blocks_};
    return rows > kPiece ? all : Panel<Kind>::few(all);
  }

  void take_nibbles(int64_t first, int64_t count) {
    const auto weight = p_.weight_of<Kind>();
    Turned x(count, blocks_);
    x.take(x_.at(first, first, 0), blocks_);
    for (int64_t pair = begin_; pair < end_; ++pair) {
      for (int64_t i = 2 * pair; i < std::min(2 * pair + 2, p_.strips); ++i)
        multiply_nibbles(weight.block(i, 0), x, count, blocks_, scratch_ + i % 2 * kWide);
      finish_({first, count, pair, scratch_});
    }
  }

  // Pairs [pair, stop), over inner blocks [from, to)
  void multiply(int64_t first, int64_t count, int64_t pair, int64_t stop, int64_t from, int64_t to) {
    const bool few = count <= kPiece;
    if (!few) panel_.take(pair, stop, from, to);
    const int64_t near = few ? share(count).blocks : to - from <= kWhole / kDeep ? to - from : kNear / kDeep;
    for (int64_t m = 0; m < count; m += kPiece) {
      const int64_t rows = std::min(kPiece, count - m);
      tiles_.shape(rows);
      for (int64_t k = from; k < to; k += near) {
        const int64_t deep = std::min(near, to - k);
        if (few) panel_.take(pair, stop, k, k + deep);
        for (int64_t i = pair; i < stop; ++i) {
          const BF16 *left = panel_.at(2 * i, k), *right = panel_.at(std::min(2 * i + 1, p_.strips - 1), k);
          tiles_.multiply(x_.at(first + m, first, k), left, right, deep, sums(i, m, turn_), k > 0);
          if (k == from) flush();
        }
      }
      if (to == blocks_) waiting_ = {first, m, rows, pair, stop, turn_};
      turn_ = 1 - turn_;
    }
  }

  float* sums(int64_t pair, int64_t m, int64_t turn) const {
    const int64_t place = deep_ ? (pair - begin_) * size_ + m / kPiece : (pair - begin_) % kPairs * 2 + turn;
    return scratch_ + place * kPieceSums;
  }

  void flush() {
    for (int64_t i = waiting_.pair; i < waiting_.stop; ++i)
      finish_({waiting_.first + waiting_.m, waiting_.rows, i, sums(i, waiting_.m, waiting_.turn)});
    waiting_.stop = waiting_.pair;
  }

  const Product& p_;
  const Rows& x_;
  const Finish& finish_;
  const int64_t begin_, end_, blocks_ = p_.inner / kDeep;
  const bool deep_;  // the sums of all pairs are kept while the rows' inner numbers are taken a part at a time
  Tiles tiles_;
  Panel<Kind> panel_;
  int64_t size_;
  float* scratch_;
  struct {
    int64_t first, m, rows, pair, stop, turn;
  } waiting_{};  // to be finished
  int64_t turn_ = 0;  // of the two places that pieces alternate between
};

template <typename Kind, typename Finish>
void product(const Product& p, const Finish& finish) {
  const int64_t pairs = (p.strips + 1) / 2, tall = std::min(p.rows, p.inner <= kWhole ? 2 * kTallest : kTallest);
  const Rows x(p, tall);
#pragma omp parallel num_threads(at::in_parallel_region() ? 1 : at::get_num_threads())
  {
#ifdef _OPENMP
    const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
#else
    const int64_t threads = 1, me = 0;
#endif
    Part<Kind, Finish> part(p, x, finish, tall, pairs * me / threads, pairs * (me + 1) / threads);
    for (int64_t first = 0; first < p.rows; first += tall) {
      const int64_t count = std::min(tall, p.rows - first);
      if (x.copied) {
        if (first > 0) {
#pragma omp barrier
        }
        x.prepare(first + count * me / threads, first + count * (me + 1) / threads, first);
#pragma omp barrier
      }
      part.run(first, count);
    }
  }
}

struct Two {
  Vec low, high;
};

Two read(const float* at) { return {Vec::loadu(at), Vec::loadu(at + kLanes)}; }
Two read(const BF16* at, int64_t n) {
  Two both;
  using Words = at::vec::Vectorized<BF16>;
  std::tie(both.low, both.high) = at::vec::convert_to_float<BF16>(n < kStep ? Words::loadu(at, n) : Words::loadu(at));
  return both;
}
Two operator+(Two a, Two b) { return {a.low + b.low, a.high + b.high}; }

void write(BF16* at, Two numbers, int64_t n) {
  const auto words = at::vec::convert_from_float<BF16>(numbers.low, numbers.high);
  n < kStep ? words.store(at, n) : words.store(at);
}
void write(float* at, Two numbers, int64_t n) {
  numbers.low.store(at);
  if (n > kLanes) numbers.high.store(at + kLanes);
}

// y = sums (+ bias) (+ residual)
template <typename Kind, typename T>
struct FinishLinear {
  const Product& p;
  const BF16* residual;
  T* y;
  int64_t out = p.strips * kWide;
  Strips<Kind> weight = p.weight_of<Kind>();

  void operator()(const Sums& sums) const {
    const auto [first, rows, pair, at] = sums;
    for (int64_t i = 0; i < kPair; i += kStep) {
      const int64_t from = pair * kPair + i, n = std::min<int64_t>(kStep, out - from);
      if (n <= 0) return;
      const Two bias = p.bias ? read(p.bias + from, n) : Two{Vec(0.f), Vec(0.f)};
      for (int64_t m = 0; m < rows; ++m) {
        const Two plain = read(at + m * kPair + i);
        Two sum = Two{scaled(weight, from, plain.low), scaled(weight, from + kLanes, plain.high)} + bias;
        const int64_t to = (first + m) * out + from;
        if (residual) sum = sum + read(residual + to, n);
        write(y + to, sum, n);
      }
    }
  }
};

enum class Activation { silu, gelu_tanh };

Activation activation_of(c10::string_view name) {
  if (name == "silu") return Activation::silu;
  TORCH_CHECK(name == "gelu_tanh", "gated: the activation is silu or gelu_tanh, not ", name);
  return Activation::gelu_tanh;
}

// An activation of g is g * sigmoid(logit). GELU: (1 + tanh(u)) / 2 = sigmoid(2 u), u = sqrt(2 / pi) (g + 0.044715 g^3)
Vec logit(Activation activation, Vec gate) {
  constexpr float kFactor = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  if (activation == Activation::silu) return gate;
  return gate * (Vec(kFactor) + Vec(kFactor * 0.044715f) * gate * gate);
}

// y = activation(gate) * up; a pair of strips holds 16 gates and their 16 ups
template <typename Kind>
struct FinishGated {
  const Product& p;
  const Activation activation;
  BF16* y;
  int64_t out = p.strips / 2 * kWide;
  Strips<Kind> weight = p.weight_of<Kind>();

  void operator()(const Sums& sums) const {
    const auto [first, rows, pair, at] = sums;
    for (int64_t i = 0; i < kWide; i += kLanes)
      for (int64_t m = 0; m < rows; ++m) {
        Vec gate = scaled(weight, pair * kPair + i, Vec::loadu(at + m * kPair + i));
        Vec up = scaled(weight, pair * kPair + kWide + i, Vec::loadu(at + m * kPair + kWide + i));
        if (p.bias) {
          gate = gate + read(p.bias + pair * kWide + i, kLanes).low;
          up = up + read(p.bias + out + pair * kWide + i, kLanes).low;
        }
        const Vec shaped = up * gate / (Vec(1.f) + logit(activation, gate).neg().exp_u20());
        write(y + (first + m) * out + pair * kWide + i, {shaped, shaped}, kLanes);
      }
  }
};

using Maybe = std::optional<at::Tensor>;

const BF16* data_of(const Maybe& t) { return t ? t->const_data_ptr<BF16>() : nullptr; }

// Run `with` on the kind of weight that this type of number stands for.
template <typename With>
void as_stored(at::ScalarType stored, const With& with) {
  if (stored == at::kBFloat16) return with(Sixteen());
  if (stored == at::kChar) return with(Eight());
  TORCH_CHECK(stored == at::kByte, "linear: the weight is of no kind that is known");
  with(Four());
}

Product product_of(const at::Tensor& x, const at::Tensor& weight, const Maybe& bias, const Maybe& norm, double eps,
                   double offset) {
  TORCH_CHECK(x.scalar_type() == at::kBFloat16, "linear: bfloat16 expected");
  const int64_t inner = x.size(1), strip = weight.stride(0) * weight.element_size();
  as_stored(weight.scalar_type(), [&](auto kind) {
    TORCH_CHECK(weight.dim() > 2 && weight.is_contiguous() && x.dim() == 2 && x.stride(1) == 1 &&
                    inner % kDeep == 0 && strip == kind.kHead + inner / kDeep * kind.kBlock,
                "linear: shapes do not match, or the weight is not packed");
  });
  return {x.const_data_ptr<BF16>(), x.size(0), inner, x.stride(0), static_cast<const uint8_t*>(weight.const_data_ptr()),
          weight.size(0), data_of(bias), data_of(norm), float(eps), float(offset)};
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const Maybe& bias, const Maybe& norm, double eps,
                  const Maybe& residual, at::ScalarType dtype, double offset) {
  const Product p = product_of(x, weight, bias, norm, eps, offset);
  TORCH_CHECK(!residual || residual->is_contiguous(), "linear: the residual must be contiguous");
  auto y = at::empty({p.rows, p.strips * kWide}, x.options().dtype(dtype));
  as_stored(weight.scalar_type(), [&](auto kind) {
    const auto run = [&](auto* to) {
      using Finish = FinishLinear<decltype(kind), std::remove_pointer_t<decltype(to)>>;
      product<decltype(kind)>(p, Finish{p, data_of(residual), to});
    };
    if (dtype == at::kFloat)
      run(y.data_ptr<float>());
    else
      run(y.data_ptr<BF16>());
  });
  return y;
}

at::Tensor gated(const at::Tensor& x, const at::Tensor& weight, const Maybe& bias, const at::Tensor& norm, double eps,
                 c10::string_view activation, double offset) {
  const Product p = product_of(x, weight, bias, norm, eps, offset);
  auto y = at::empty({p.rows, p.strips / 2 * kWide}, x.options());
  const Activation shape = activation_of(activation);
  as_stored(weight.scalar_type(), [&](auto kind) {
    product<decltype(kind)>(p, FinishGated<decltype(kind)>{p, shape, y.data_ptr<BF16>()});
  });
  return y;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) {
  m.impl("linear", &ringkv::linear);
  m.impl("gated", &ringkv::gated);
}
