// take_rows on the CPU: gathers rows, with software prefetch. See take_rows.py.

namespace ringkv {
namespace {

constexpr int64_t kLine = 64;          // bytes of a cache line
constexpr int64_t kPrefetchRows = 16;  // software prefetch distance: the rows are scattered
constexpr int64_t kTaskRows = 1024;    // rows of a task

// Copies with non-temporal stores: the result is not read soon, and a fully written line need not be loaded first.
inline void stream_row(uint8_t* to, const uint8_t* from, int64_t bytes) {
#if defined(__AVX512F__)
  if (bytes % kLine == 0 && reinterpret_cast<uintptr_t>(to) % kLine == 0) {
    for (int64_t at = 0; at < bytes; at += kLine)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

struct Plane {
  const uint8_t* staged;
  const int64_t* source;
  uint8_t* to;
  int64_t row, staged_rows;  // bytes of a row; number of staged rows

  void prefetch(int64_t i) const {
    for (int64_t at = 0; at < row; at += kLine) __builtin_prefetch(staged + source[i] * row + at);
  }
  void copy(int64_t from, int64_t stop) const {
    for (int64_t i = from; i < std::min(from + kPrefetchRows, stop); ++i) prefetch(i);
    for (int64_t i = from; i < stop; ++i) {
      if (i + kPrefetchRows < stop) prefetch(i + kPrefetchRows);
      TORCH_CHECK(0 <= source[i] && source[i] < staged_rows, "take_rows: there is no staged token ", source[i]);
      stream_row(to + i * row, staged + source[i] * row, row);
    }
  }
};

void take_rows(const at::Tensor& staged, int64_t lane, const at::Tensor& source, at::Tensor out) {
  const int64_t layers = staged.size(0), lanes = staged.size(1), heads = staged.size(2), staged_rows = staged.size(3);
  const int64_t row = staged.size(4) * staged.element_size(), count = source.size(2), capacity = out.size(2);
  TORCH_CHECK(staged.is_contiguous() && 0 <= lane && lane < lanes,
              "take_rows: staged must be contiguous and have this lane");
  TORCH_CHECK(source.scalar_type() == at::kLong && source.size(0) == layers && source.size(1) == heads &&
                  count <= capacity,
              "take_rows: source must be int64 [layers, heads, n], with n at most the capacity");
  TORCH_CHECK(out.stride(3) == 1 && out.stride(2) == out.size(3) && out.scalar_type() == staged.scalar_type() &&
                  out.size(0) == layers && out.size(1) == heads && out.size(3) == staged.size(4),
              "take_rows: out must match staged, and the rows of a head must be contiguous");
  const auto rows = source.contiguous();
  const auto* from = static_cast<const uint8_t*>(staged.const_data_ptr());
  auto* to = static_cast<uint8_t*>(out.mutable_data_ptr());
  const int64_t to_layer = out.stride(0) * out.element_size(), to_head = out.stride(1) * out.element_size();
  const int64_t chunks = std::max<int64_t>((count + kTaskRows - 1) / kTaskRows, 1);
  at::parallel_for(0, layers * heads * chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / chunks, first = task % chunks * kTaskRows, stop = std::min(first + kTaskRows, count);
      const int64_t staged_head = (head / heads * lanes + lane) * heads + head % heads;
      const Plane plane{from + staged_head * staged_rows * row, rows.const_data_ptr<int64_t>() + head * count,
                        to + head / heads * to_layer + head % heads * to_head, row, staged_rows};
      plane.copy(first, stop);
      if (stop == count) std::memset(plane.to + count * row, 0, (capacity - count) * row);
    }
    _mm_sfence();  // non-temporal stores are weakly ordered
  });
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("take_rows", &ringkv::take_rows); }
