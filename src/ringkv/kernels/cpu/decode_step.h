// A step of decode attention: its arguments, and what they say of each row. See decode_attend.py for shapes.

#pragma once

namespace ringkv {

using OptionalTensor = std::optional<at::Tensor>;
using Results = std::tuple<at::Tensor, at::Tensor>;

struct DecodeArguments {
  const at::Tensor& q;
  const OptionalTensor &k, &v;
  at::TensorList planes;
  const OptionalTensor &centers, &places;
  at::TensorList pages, residents;
  const at::Tensor &slot, &entry, &live;
  std::string_view encoding;
  double scale;
};

inline at::Tensor int32(const at::Tensor& x) {
  TORCH_CHECK(x.scalar_type() == at::kInt, "decode_attend: int32 expected");
  return x.contiguous();
}

inline Results new_results(const at::Tensor& q) {
  return {at::empty(q.sizes(), q.options()), at::empty(q.sizes().slice(0, 3), q.options().dtype(at::kFloat))};
}

// What heads of rows or of slots have: [rows, heads, ...].
template <typename T>
struct OfHeads {
  explicit OfHeads(const at::Tensor& x) : data(static_cast<T*>(x.data_ptr())), row(x.stride(0)), head(x.stride(1)) {
    TORCH_CHECK(x.element_size() == sizeof(T) && x.stride(-1) == 1,
                "decode_attend: a vector has another dtype, or its elements are not contiguous");
  }
  T* of(int64_t r, int64_t h) const { return data + r * row + h * head; }

  T* data;
  int64_t row, head;
};

// The shape of the queries; `heads` are key-value heads.
struct QueryShape {
  int64_t rows, heads, queries, width;
};

// The result: outputs [rows, heads, queries, width], and each query's log-sum-exp [rows, heads, queries].
template <typename T>
struct Result {
  T* out;
  float* lse;
};

// A head of a row. index: row * heads + head. entry: that of the row's new token.
struct StepHead {
  int64_t index, row, head, slot, entry, live;
};

// Heads that a thread runs, at least. Four write or select as fast as a second thread wakes up.
constexpr int64_t kFew = 4, kAlone = std::numeric_limits<int64_t>::max();

// Writes the results of queries that see no entry.
template <typename T>
void clear(const Result<T>& to, int64_t queries, int64_t width) {
  std::fill_n(to.out, queries * width, T(0));
  std::fill_n(to.lse, queries, -std::numeric_limits<float>::infinity());
}

template <typename T>
class Step {
 public:
  explicit Step(const DecodeArguments& a)
      : q_(a.q.contiguous()), slot_(int32(a.slot)), entry_(int32(a.entry)), live_(int32(a.live)),
        results(new_results(q_)), shape{q_.size(0), q_.size(1), q_.size(2), q_.size(3)}, scale(float(a.scale)),
        slot(slot_.const_data_ptr<int32_t>()), entry(entry_.const_data_ptr<int32_t>()),
        live(live_.const_data_ptr<int32_t>()),
        to{std::get<0>(results).template data_ptr<T>(), std::get<1>(results).template data_ptr<float>()} {
    if (!a.k) return;
    k.emplace(*a.k);
    v.emplace(a.v ? *a.v : *a.k);  // a latent is a value, too
  }

  // The queries [queries, width] of a head, by its index.
  const T* queries(int64_t index) const {
    return q_.const_data_ptr<T>() + index * shape.queries * shape.width;
  }
  // Calls `run` for each head of each row that is not free. A thread runs at least `grain` heads.
  template <typename Run>
  void each_head(int64_t grain, const Run& run) const {
    at::parallel_for(0, shape.rows * shape.heads, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin / shape.heads; row * shape.heads < end; ++row) {
        const int64_t first = row * shape.heads, stop = std::min(end, first + shape.heads);
        for (int64_t i = std::max(begin, first); i < stop && live[row] > 0; ++i)
          run(StepHead{i, row, i - first, slot[row], entry[row], live[row]});
      }
    });
  }
  // Writes the results of rows without live entries.
  void clear_free_rows() const {
    const int64_t queries = shape.heads * shape.queries;
    for (int64_t row = 0; row < shape.rows; ++row) {
      if (live[row] == 0) clear<T>({to.out + row * queries * shape.width, to.lse + row * queries}, queries, shape.width);
    }
  }

 private:
  const at::Tensor q_, slot_, entry_, live_;

 public:
  const Results results;
  const QueryShape shape;
  const float scale;
  const int32_t *slot, *entry, *live;
  std::optional<OfHeads<const T>> k, v;  // none if another layer has written them
  const Result<T> to;
};

// Calls `run` with a value of the C++ type of a dtype.
template <typename Run>
auto with_dtype(at::ScalarType type, const Run& run) {
  if (type == at::kBFloat16) return run(at::BFloat16{});
  if (type == at::kHalf) return run(at::Half{});
  return run(float{});
}

// Kernels for slots that are no planes of keys and values.
#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)
#define RINGKV_LATENT_TILES  // latents in bfloat16 are attended to with tiles
Results attend_plain_latents(const DecodeArguments& a);
Results attend_encoded_latents(const DecodeArguments& a);
#endif

Results decode_attend_zip(const DecodeArguments& a);

}  // namespace ringkv
