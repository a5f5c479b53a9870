// linear and gated on the CPU: a product of x [M, in] with a packed weight, fused with the RMSNorm before and the bias,
// gate or residual after. See linear.py.

#include "epilogues.h"

namespace ringkv {
namespace {

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias, const OptionalTensor& norm,
                  double eps, const OptionalTensor& residual, at::ScalarType dtype, double offset) {
  const Product p = product_of(x, weight, bias, norm, eps, offset);
  TORCH_CHECK(!residual || residual->is_contiguous(), "linear: the residual must be contiguous");
  auto y = at::empty({p.rows, p.panels * kTileN}, x.options().dtype(dtype));
  with_any_storage(weight, [&](auto storage) {
    const auto run = [&](auto* to) {
      using Epilogue = LinearEpilogue<decltype(storage), std::remove_pointer_t<decltype(to)>>;
      product<decltype(storage)>(p, Epilogue{p, data_of(residual), to});
    };
    if (dtype == at::kFloat)
      run(y.data_ptr<float>());
    else
      run(y.data_ptr<BF16>());
  });
  return y;
}

at::Tensor gated(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias, const OptionalTensor& norm,
                 double eps, c10::string_view activation, double offset) {
  const Product p = product_of(x, weight, bias, norm, eps, offset);
  auto y = at::empty({p.rows, p.panels / 2 * kTileN}, x.options());
  const Activation shape = activation_of(activation);
  with_any_storage(weight, [&](auto storage) {
    product<decltype(storage)>(p, GatedEpilogue<decltype(storage)>{p, shape, y.data_ptr<BF16>()});
  });
  return y;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) {
  m.impl("linear", &ringkv::linear);
  m.impl("gated", &ringkv::gated);
}
