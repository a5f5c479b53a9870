// prefill_attend with tiles on the CPU: stages pieces of prompts and attends causally to all staged tokens of each. See
// prefill_attend.py. A task is a few hundred query rows of one key-value head.
//
// Pieces start at whole query blocks of their prompt, so a query block has the same rows however the prompt is cut.

#include "attend_task.h"

#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)

#include "decode_step.h"

namespace ringkv {
namespace {

// One piece of a prompt.
struct Chunk {
  const BF16 *q, *k, *v;                      // k and v are null if they are staged already
  BF16 *keys, *values, *window, *out;
  float* lse;                                 // log-sum-exp of the scores of each row of q
  int64_t tokens, heads, groups, width;       // of q
  int64_t k_token, k_head, v_token, v_head;   // strides
  int64_t head, capacity;                     // stride of staged heads; staged entries from the lane's first on
  int64_t window_size, start, length;
  float scale;
  const int64_t* begins;                      // of each head its first place in the lane; null if that is 0

  int64_t begin(int64_t h) const { return begins ? begins[h] : 0; }
  // Places count from the head's first.
  TaskQueries queries(int64_t h) const { return {q, out, lse, heads, groups, width, width, start - begin(h), scale}; }
  // The staged keys and values of a head.
  KeyRun staged(int64_t h) const {
    const int64_t first = h * head + begin(h) * width;
    return {keys + first, values + first, 0, capacity - begin(h)};
  }
};

void stage_head(const Chunk& c, int64_t h) {
  for (int64_t t = 0; c.k && t < c.tokens; ++t) {
    const int64_t to = h * c.head + (c.start + t) * c.width;
    std::memcpy(c.keys + to, c.k + t * c.k_token + h * c.k_head, c.width * sizeof(BF16));
    std::memcpy(c.values + to, c.v + t * c.v_token + h * c.v_head, c.width * sizeof(BF16));
  }
  const int64_t first = c.length - c.window_size;
  const int64_t from = std::max(c.start, first), to = std::min(c.start + c.tokens, c.length);
  for (int64_t t = from; t < to; ++t)
    for (int64_t g = 0; g < c.groups; ++g) {
      const int64_t row = (h * c.groups + g) * c.window_size + t - first;
      std::memcpy(c.window + row * c.width, c.q + (((t - c.start) * c.heads + h) * c.groups + g) * c.width,
                  c.width * sizeof(BF16));
    }
}

// Query rows [first, first + rows) of one head of a piece.
struct RowsOfHead {
  const Chunk* chunk;
  int64_t head, first, rows;

  // Keys that its last row sees.
  int64_t keys() const { return chunk->start - chunk->begin(head) + (first + rows - 1) / chunk->groups + 1; }
};

void add_tasks(const Chunk& c, std::vector<RowsOfHead>& tasks) {
  const int64_t rows = c.tokens * c.groups, size = rows_of_task(rows, c.width);
  for (int64_t first = 0; first < rows; first += size)
    for (int64_t h = 0; h < c.heads; ++h) tasks.push_back({&c, h, first, std::min(size, rows - first)});
}

void attend_all(const std::vector<Chunk>& chunks) {
  static thread_local std::vector<RowsOfHead> tasks;
  tasks.clear();
  for (const Chunk& c : chunks) add_tasks(c, tasks);
  // Tasks that see more keys go first, so that no thread ends with a long task.
  std::stable_sort(tasks.begin(), tasks.end(), [](const RowsOfHead& a, const RowsOfHead& b) {
    return a.keys() * a.rows > b.keys() * b.rows;
  });
  const int64_t heads = chunks.empty() ? 0 : chunks[0].heads, all = int64_t(chunks.size()) * heads;
  const RowsOfHead* const task_at = tasks.data();
  const int64_t count = int64_t(tasks.size());
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(at::in_parallel_region() ? 1 : at::get_num_threads())
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < all; ++i) stage_head(chunks[i / heads], i % heads);
    const Tiles tiles(2 * kTileM);
    const NoSubnormals no_subnormals;
    for (int64_t i; (i = next++) < count;) {
      const auto [chunk, head, first, rows] = task_at[i];
      const TaskQueries queries = chunk->queries(head);
      AttendTask task(queries, head, first, rows);
      task.begin();
      task.attend(chunk->staged(head));
      task.end();
    }
  }
}

const BF16* row_of(const OptionalTensor& t, int64_t row) {
  return t ? t->const_data_ptr<BF16>() + row * t->stride(0) : nullptr;
}
int64_t stride_of(const OptionalTensor& t, int64_t dimension) { return t ? t->stride(dimension) : 0; }

// Rows [from, to) belong to no piece.
void clear_rows(const at::Tensor& out, const at::Tensor& lse, int64_t from, int64_t to) {
  if (from >= to) return;
  out.narrow(0, from, to - from).zero_();
  lse.narrow(0, from, to - from).fill_(-std::numeric_limits<float>::infinity());
}

std::tuple<at::Tensor, at::Tensor> prefill_attend(const at::Tensor& q, const OptionalTensor& k,
                                                  const OptionalTensor& v, at::Tensor keys, at::Tensor values, at::Tensor window,
                                                  const at::Tensor& segments, double scale) {
  TORCH_CHECK(q.scalar_type() == at::kBFloat16 && q.size(3) % kTileK == 0,
              "prefill_attend: q must be bfloat16, with head_dim a multiple of 32");
  TORCH_CHECK((!k || (k->stride(2) == 1 && v->stride(2) == 1)) && window.is_contiguous(),
              "prefill_attend: rows of k and v, and the window, must be contiguous");
  TORCH_CHECK(keys.strides() == values.strides() && keys.stride(1) == keys.size(2) && keys.stride(2) == 1,
              "prefill_attend: staged tokens must follow each other");
  const int64_t fields = segments.size(1);
  TORCH_CHECK(segments.scalar_type() == at::kLong && segments.is_contiguous() && (fields == 6 || fields == 6 + q.size(1)),
              "prefill_attend: segments must be int64 [M, 6], or [M, 6 + H]");
  const auto rows = q.contiguous();
  auto out = at::empty_like(rows), lse = at::empty(rows.sizes().slice(0, 3), rows.options().dtype(at::kFloat));
  const int64_t heads = q.size(1), groups = q.size(2), width = q.size(3), row_size = heads * groups * width;
  std::vector<Chunk> chunks;
  int64_t done = 0;
  for (int64_t i = 0; i < segments.size(0); ++i) {
    const int64_t* s = segments.const_data_ptr<int64_t>() + fields * i;
    const int64_t row = s[0], count = s[1], lane = s[2], first = s[3], start = s[4], length = s[5];
    if (count == 0) continue;
    TORCH_CHECK(done <= row && row + count <= q.size(0) && 0 <= lane && lane < window.size(0) && 0 <= first &&
                    0 <= start && first + start + count <= keys.size(1),
                "prefill_attend: a piece lies outside the rows, the lanes or the staging, or overlaps another");
    const int64_t* begins = fields > 6 ? s + 6 : nullptr;
    TORCH_CHECK(!begins || std::all_of(begins, begins + heads, [&](int64_t one) { return 0 <= one && one <= start; }),
                "prefill_attend: a head begins after its piece");
    clear_rows(out, lse, done, row);
    done = row + count;
    chunks.push_back({rows.const_data_ptr<BF16>() + row * row_size, row_of(k, row), row_of(v, row), keys.data_ptr<BF16>() + first * width,
                      values.data_ptr<BF16>() + first * width, window.data_ptr<BF16>() + lane * window.stride(0),
                      out.data_ptr<BF16>() + row * row_size, lse.data_ptr<float>() + row * heads * groups, count, heads,
                      groups, width, stride_of(k, 0), stride_of(k, 1), stride_of(v, 0), stride_of(v, 1), keys.stride(0),
                      keys.size(1) - first, window.size(3), start, length, float(scale), begins});
  }
  clear_rows(out, lse, done, q.size(0));
  if (!chunks.empty()) attend_all(chunks);
  return {out, lse};
}

}  // namespace

// The queries of a row are those of the last token of a piece of one token, whose lane is the row's slot.
Results attend_plain_latents(const DecodeArguments& a) {
  const at::Tensor& latents = a.planes[0];
  TORCH_CHECK(a.q.size(1) == 1 && a.k && latents.stride(2) == latents.size(3) && latents.stride(3) == 1,
              "decode_attend: shapes of latents do not match");
  const Step<BF16> step(a);
  const int64_t groups = step.shape.queries, width = step.shape.width;
  step.clear_free_rows();
  std::vector<Chunk> chunks;
  step.each_head(kAlone, [&](const StepHead& to) {
    BF16* plane = latents.data_ptr<BF16>() + to.slot * latents.stride(0);
    std::memcpy(plane + to.entry * width, step.k->of(to.row, 0), width * sizeof(BF16));
    chunks.push_back({step.queries(to.row), nullptr, nullptr, plane, plane, nullptr,
                      step.to.out + to.row * groups * width, step.to.lse + to.row * groups, 1, 1, groups, width,
                      0, 0, 0, 0, latents.stride(1), latents.size(2), 0, to.live - 1, 0, step.scale, nullptr});
  });
  if (!chunks.empty()) attend_all(chunks);
  return step.results;
}

}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("prefill_attend_tiles", &ringkv::prefill_attend); }

#endif
