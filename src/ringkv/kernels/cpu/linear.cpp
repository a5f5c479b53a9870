// linear on the CPU for a few rows: x [M, in] times weight [out, in] transposed, plus bias. See linear.py.
//
// Weights are read once, as they lie, by one parallel region; a row's result does not depend on the other rows.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "block.h"

namespace ringkv {
namespace {

constexpr int64_t kRows = 64;  // of the weight, in a task: they stay in the nearest cache for the next rows of x

template <typename T>
void multiply(const T* x, int64_t rows, const T* weight, const T* bias, int64_t out, int64_t in, T* y) {
  at::parallel_for(0, (out + kRows - 1) / kRows, 1, [&](int64_t begin, int64_t end) {
    float sums[kGroup * kBlock];
    for (int64_t task = begin; task < end; ++task) {
      const int64_t from = task * kRows, count = std::min(kRows, out - from);
      const T* here = weight + from * in;
      const T* later = here + count * in;  // the next task's rows, asked for while the first rows of x are at work
      for (int64_t m = 0; m < rows; m += kGroup) {
        const int64_t group = std::min(kGroup, rows - m);
        const auto run = [&](auto g) {
          score_rows<T, decltype(g)::value>(x + m * in, here, m == 0 ? later : here, count, in, 1.f, sums);
        };
        for_group(group, run);
        for (int64_t g = 0; g < group; ++g)
          for (int64_t j = 0; j < count; ++j)
            y[(m + g) * out + from + j] =
                static_cast<T>(sums[g * kBlock + j] + (bias ? float(bias[from + j]) : 0.f));
      }
    }
  });
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1), "linear: shapes do not match");
  TORCH_CHECK(x.size(1) % kStep == 0, "linear: the inner size must be a multiple of ", kStep);
  TORCH_CHECK(weight.is_contiguous() && x.scalar_type() == weight.scalar_type(), "linear: unlike or strided weights");
  const auto cx = x.contiguous();
  const int64_t rows = x.size(0), out = weight.size(0), in = weight.size(1);
  auto y = at::empty({rows, out}, x.options());
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    const T* added = bias ? bias->data_ptr<T>() : nullptr;
    multiply<T>(cx.data_ptr<T>(), rows, weight.data_ptr<T>(), added, out, in, y.data_ptr<T>());
  };
  if (x.scalar_type() == at::kBFloat16)
    run(at::BFloat16{});
  else if (x.scalar_type() == at::kHalf)
    run(at::Half{});
  else
    run(float{});
  return y;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("linear", &ringkv::linear); }
