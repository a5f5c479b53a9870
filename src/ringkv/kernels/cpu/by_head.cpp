// by_head on the CPU: a small product for each head. Threads divide the heads. See by_head.py.

#include "epilogues.h"

namespace ringkv {
namespace {

// among: rows of the call that x is a part of.
at::Tensor by_head(const at::Tensor& x, const at::Tensor& weight, std::optional<int64_t> among) {
  const int64_t rows = x.size(0), heads = x.size(1), panels = weight.size(0) / heads, out = panels * kTileN;
  TORCH_CHECK(x.dim() == 3 && x.stride(2) == 1 && weight.size(0) % heads == 0 && !quantises_rows(weight),
              "by_head: shapes do not match");
  auto y = at::empty({rows, heads, out}, x.options());
  Product all = product_of(x.select(1, 0), weight, {}, {}, 0., 0.);
  all.all_rows = among.value_or(rows);
  with_storage(weight.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    at::parallel_for(0, heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        Product p = all;
        p.x += head * x.stride(1), p.panels = panels;
        p.weight = all.weight_of<Storage>().block(head * panels, 0) - Storage::kHeaderBytes;
        BF16* to = y.data_ptr<BF16>() + head * out;
        product<Storage>(p, LinearEpilogue<Storage, BF16>{p, nullptr, to, out, heads * out});
      }
    });
  });
  return y;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("by_head", &ringkv::by_head); }
