// experts on the CPU: two products for each expert that some row has chosen, then the weighted sum of each row. See
// experts.py.

#include "epilogues.h"

namespace ringkv {
namespace {

constexpr int64_t kRowsOfTask = 8;  // rows that a thread sums at a time

// The rows of each expert, one expert after the other. A choice is a row and one of its K experts. Choices of experts
// that are on another rank, outside 0 .. count - 1, are not among the sorted ones.
struct Sorted {
  static constexpr int64_t kElsewhere = -1;
  std::vector<int64_t> first;  // of each expert, and the end
  std::vector<int64_t> rows;   // the row of each sorted choice
  std::vector<int64_t> place;  // of each choice among the sorted ones, or kElsewhere

  Sorted(const int64_t* chosen, int64_t rows_of_x, int64_t each, int64_t count)
      : first(count + 1), rows(rows_of_x * each), place(rows_of_x * each, kElsewhere) {
    const auto is_here = [&](size_t i) { return chosen[i] >= 0 && chosen[i] < count; };
    for (size_t i = 0; i < place.size(); ++i)
      if (is_here(i)) ++first[chosen[i] + 1];
    for (int64_t expert = 0; expert < count; ++expert) first[expert + 1] += first[expert];
    std::vector<int64_t> next(first.begin(), first.end() - 1);
    for (size_t i = 0; i < place.size(); ++i) {
      if (!is_here(i)) continue;
      place[i] = next[chosen[i]]++;
      rows[place[i]] = int64_t(i) / each;
    }
  }

  // Returns the experts that some row has chosen.
  std::vector<int64_t> chosen() const {
    std::vector<int64_t> experts;
    for (size_t expert = 0; expert + 1 < first.size(); ++expert)
      if (first[expert] < first[expert + 1]) experts.push_back(int64_t(expert));
    return experts;
  }
};

// y = residual + the sum over a row's experts of weight * out.
void add_up(const Sorted& sorted, const float* out, const float* weights, const BF16* residual, int64_t each,
            int64_t hidden, int64_t from, int64_t to, BF16* y) {
  for (int64_t row = from; row < to; ++row)
    for (int64_t i = 0; i < hidden; i += kStep) {
      const int64_t n = std::min<int64_t>(kStep, hidden - i);
      TwoVectors sum = read(residual + row * hidden + i, n);
      for (int64_t k = row * each; k < (row + 1) * each; ++k) {
        if (sorted.place[k] == Sorted::kElsewhere) continue;
        const Vec weight(weights[k]);
        const TwoVectors part = read(out + sorted.place[k] * hidden + i);
        sum = {at::vec::fmadd(weight, part.low, sum.low), at::vec::fmadd(weight, part.high, sum.high)};
      }
      write(y + row * hidden + i, sum, n);
    }
}

at::Tensor experts(const at::Tensor& x, const at::Tensor& chosen, const at::Tensor& weights, const at::Tensor& gate_up,
                   const at::Tensor& down, int64_t count, c10::string_view activation,
                   const OptionalTensor& gate_up_bias, const OptionalTensor& down_bias, const at::Tensor& residual,
                   const OptionalTensor& norm, double eps, double offset) {
  const int64_t rows = x.size(0), each = chosen.size(1), hidden = down.size(0) / count * kTileN;
  TORCH_CHECK(chosen.scalar_type() == at::kLong && weights.scalar_type() == at::kFloat && chosen.is_contiguous() &&
                  weights.is_contiguous() && residual.is_contiguous() && x.is_contiguous() &&
                  gate_up.size(0) % (2 * count) == 0 && down.size(0) % count == 0,
              "experts: shapes or dtypes do not match");
  const Sorted sorted(chosen.const_data_ptr<int64_t>(), rows, each, count);
  const Activation shape = activation_of(activation);
  const auto first = product_of(x, gate_up, gate_up_bias, norm, eps, offset);
  auto between = at::empty({rows * each, gate_up.size(0) / count / 2 * kTileN}, x.options());
  auto out = at::empty({rows * each, hidden}, x.options().dtype(at::kFloat));
  auto y = at::empty({rows, hidden}, x.options());
  const auto second = product_of(between, down, down_bias, {}, 0., 0.);
  const auto chosen_experts = sorted.chosen();
  const auto part = [&](auto storage, Product p, int64_t expert) {
    p.panels /= count, p.all_rows = rows, p.rows = sorted.first[expert + 1] - sorted.first[expert];
    if (p.bias) p.bias += expert * p.panels * kTileN;
    p.weight = p.weight_of<decltype(storage)>().block(expert * p.panels, 0) - storage.kHeaderBytes;
    return p;
  };
  const auto rows_between = [&](int64_t expert) {
    return between.data_ptr<BF16>() + sorted.first[expert] * between.size(1);
  };
  std::function<void(int64_t)> multiply_first, multiply_second;  // the two weights may be stored in different formats
  with_any_storage(gate_up, [&](auto storage) {
    multiply_first = [&, storage](int64_t expert) {
      Product p = part(storage, first, expert);
      p.index = sorted.rows.data() + sorted.first[expert];
      product<decltype(storage)>(p, GatedEpilogue<decltype(storage)>{p, shape, rows_between(expert)});
    };
  });
  with_any_storage(down, [&](auto storage) {
    multiply_second = [&, storage](int64_t expert) {
      Product p = part(storage, second, expert);
      p.x = rows_between(expert);
      float* to = out.data_ptr<float>() + sorted.first[expert] * hidden;
      product<decltype(storage)>(p, LinearEpilogue<decltype(storage), float>{p, nullptr, to});
    };
  });
  const auto run = [&](int64_t expert) {
    multiply_first(expert);
    multiply_second(expert);
  };
  const int64_t threads = at::get_num_threads(), last = int64_t(chosen_experts.size());
  const int64_t alone = last / threads * threads;  // experts of one thread each; all threads share the others
  std::atomic<int64_t> next{0};
  at::parallel_for(0, alone ? threads : 0, 1, [&](int64_t, int64_t) {
    for (int64_t i; (i = next++) < alone;) run(chosen_experts[i]);
  });
  for (int64_t i = alone; i < last; ++i) run(chosen_experts[i]);
  at::parallel_for(0, rows, kRowsOfTask, [&](int64_t begin, int64_t end) {
    add_up(sorted, out.const_data_ptr<float>(), weights.const_data_ptr<float>(), residual.const_data_ptr<BF16>(), each,
           hidden, begin, end, y.data_ptr<BF16>());
  });
  return y;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("experts", &ringkv::experts); }
