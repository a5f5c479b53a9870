// prefetch_pages on the CPU: the system reads pages that a layer will probably select in this step. See
// prefetch_pages.py.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "files.h"
#include "pages.h"

namespace ringkv {
namespace {

at::Tensor prefetch_pages(const at::Tensor& q, at::TensorList planes, const at::Tensor& digests, const at::Tensor& pins,
                          const at::Tensor& counts, const at::Tensor& slot, const at::Tensor& live, double scale) {
  const auto cq = q.contiguous(), cc = int32(counts), cs = int32(slot), cl = int32(live);
  const auto* counts_of = page_counts(cc);
  const int64_t rows = q.size(0), heads = q.size(1), queries = q.size(2), page = page_of(planes[0], digests);
  SelectedPages selected(rows * heads, heads, page, scale);
  const Pins pinned(pins);
  const ReadAhead read_ahead(planes, page);
  const auto selected_pages = at::zeros({rows, heads}, cc.options());
  const auto each_head = [&](const auto& run) {
    at::parallel_for(0, rows * heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        if (const int32_t own = cl.const_data_ptr<int32_t>()[i / heads]; own > 0)
          run(i, Destination{i / heads, cs.const_data_ptr<int32_t>()[i / heads], i % heads, -1}, own);
    });
  };
  const auto fetch = [&](int64_t i, const Destination& to, int64_t) {
    read_ahead.prefetch(to.slot, to.head, selected.of(i), selected.count(i));
    selected_pages.data_ptr<int32_t>()[i] = int32_t(selected.count(i));
  };
  with_dtype(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    selected.select(each_head, counts_of, cq.const_data_ptr<T>(), queries, Digests<T>(digests), pinned, fetch);
  });
  return selected_pages;
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("prefetch_pages", &ringkv::prefetch_pages); }
