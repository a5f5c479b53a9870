// add_sink_logits on the CPU: one factor for each row and query head. See sink_logits.py.

namespace ringkv {
namespace {

constexpr int64_t kHeadsOfTask = 512;

at::Tensor add_sink_logits(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& sinks) {
  const int64_t heads = sinks.numel(), width = out.size(-1);
  TORCH_CHECK(out.dim() == 4 && lse.numel() * width == out.numel() && out.size(1) * out.size(2) == heads &&
                  lse.scalar_type() == at::kFloat && sinks.scalar_type() == at::kFloat && sinks.is_contiguous(),
              "add_sink_logits: shapes or dtypes do not match");
  const at::Tensor from = out.contiguous(), logs = lse.contiguous();
  at::Tensor y = at::empty_like(from);
  const float *log = logs.const_data_ptr<float>(), *sink = sinks.const_data_ptr<float>();
  const auto run = [&]<typename T>(const T* values, T* to) {
    at::parallel_for(0, logs.numel(), kHeadsOfTask, [=](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        const float share = 1.f / (1.f + std::exp(sink[head % heads] - log[head]));
        for (int64_t i = head * width; i < (head + 1) * width; ++i) to[i] = T(float(values[i]) * share);
      }
    });
  };
  if (out.scalar_type() == at::kFloat) {
    run(from.const_data_ptr<float>(), y.data_ptr<float>());
  } else {
    TORCH_CHECK(out.scalar_type() == at::kBFloat16, "add_sink_logits: bfloat16 or float32 expected");
    run(from.const_data_ptr<at::BFloat16>(), y.data_ptr<at::BFloat16>());
  }
  return y;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("add_sink_logits", &ringkv::add_sink_logits); }
