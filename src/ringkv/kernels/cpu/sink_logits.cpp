// add_sink_logits on the CPU: one factor for each row and query head. See sink_logits.py.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cmath>

namespace ringkv {
namespace {

constexpr int64_t kHeadsOfTask = 512;

template <typename T>
void scale_heads(const T* out, const float* lse, const float* sinks, int64_t heads, int64_t width, int64_t begin,
                 int64_t end, T* y) {
  for (int64_t at = begin; at < end; ++at) {
    const float share = 1.f / (1.f + std::exp(sinks[at % heads] - lse[at]));
    for (int64_t i = at * width; i < (at + 1) * width; ++i) y[i] = T(float(out[i]) * share);
  }
}

at::Tensor add_sink_logits(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& sinks) {
  const int64_t heads = sinks.numel(), width = out.size(-1);
  TORCH_CHECK(out.dim() == 4 && lse.numel() * width == out.numel() && out.size(1) * out.size(2) == heads &&
                  lse.scalar_type() == at::kFloat && sinks.scalar_type() == at::kFloat && sinks.is_contiguous(),
              "add_sink_logits: shapes or dtypes do not match");
  const at::Tensor from = out.contiguous(), logs = lse.contiguous();
  at::Tensor y = at::empty_like(from);
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, logs.numel(), kHeadsOfTask, [&](int64_t begin, int64_t end) {
      scale_heads(from.const_data_ptr<T>(), logs.const_data_ptr<float>(), sinks.const_data_ptr<float>(), heads, width,
                  begin, end, y.data_ptr<T>());
    });
  };
  if (out.scalar_type() == at::kFloat) {
    run(0.f);
  } else {
    TORCH_CHECK(out.scalar_type() == at::kBFloat16, "add_sink_logits: bfloat16 or float32 expected");
    run(at::BFloat16(0.f));
  }
  return y;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("add_sink_logits", &ringkv::add_sink_logits); }
