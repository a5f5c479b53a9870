// hadamard on the CPU: sums and differences of a row's elements, then signs. Threads divide the rows. See mix.py.

#include "lanes.h"

namespace ringkv {
namespace {

void wide_round(float* x, int64_t count, int64_t half) {
  for (int64_t at = 0; at < count; at += 2 * half) {
    float *low = x + at, *high = low + half;
#pragma GCC ivdep
    for (int64_t i = 0; i < half; ++i) {
      const float first = low[i], second = high[i];
      low[i] = first + second, high[i] = first - second;
    }
  }
}

void one_round(float* x, int64_t count, int64_t half) {
  switch (half) {
    case 1: return butterflies<1>(x, count);
    case 2: return butterflies<2>(x, count);
    case 4: return butterflies<4>(x, count);
    case 8: return butterflies<8>(x, count);
    default: return wide_round(x, count, half);
  }
}

// What each element of a row is multiplied by: the Rudin-Shapiro sequence over the blocks, normalised.
std::vector<float> factors(int64_t width, int64_t block, int64_t stride) {
  const float by = 1.f / std::sqrt(float(block));
  std::vector<float> result(width);
  for (int64_t i = 0; i < width; ++i) {
    const uint64_t at = i / stride % block;
    result[i] = std::popcount(at & at >> 1) % 2 ? -by : by;
  }
  return result;
}

at::Tensor hadamard(const at::Tensor& given, int64_t block, int64_t stride) {
  const auto x = given.contiguous();
  const int64_t rows = x.size(0), width = x.size(1);
  TORCH_CHECK(x.dim() == 2 && block > 0 && (block & (block - 1)) == 0 && width % (block * stride) == 0,
              "hadamard: rows of ", width, " elements are not blocks of ", block, " at distance ", stride);
  auto y = at::empty({rows, width}, x.options());
  const auto by = factors(width, block, stride);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "hadamard", [&] {
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> row(width);
      for (int64_t at = begin; at < end; ++at) {
        const auto* from = x.const_data_ptr<scalar_t>() + at * width;
        auto* to = y.data_ptr<scalar_t>() + at * width;
        for (int64_t i = 0; i < width; ++i) row[i] = float(from[i]);
        for (int64_t half = stride; half < block * stride; half *= 2) one_round(row.data(), width, half);
        for (int64_t i = 0; i < width; ++i) to[i] = scalar_t(row[i] * by[i]);
      }
    });
  });
  return y;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("hadamard", &ringkv::hadamard); }
