// expanded_attend on the CPU: causal attention to latents, which are expanded block by block. See expanded_attend.py.
//
// A task is rows of one head of one piece. It expands kExpanded latents at a time to the head's keys and values, in a
// workspace of fixed size that stays in L2, and attends to them with all of its rows.

#include "attend_task.h"

#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)

#include "epilogues.h"

namespace ringkv {
namespace {

constexpr int64_t kExpanded = 2 * kKeyBlock;           // latents that are expanded at a time
constexpr int64_t kLeastRows = 256, kMostRows = 1024;  // rows of a task; each task expands all latents

// A piece of a prompt: its queries, and the latents of its lane [length, latent].
struct Piece {
  TaskQueries queries;
  const BF16* latents;
  int64_t tokens;
};

// The matrices of all heads. latent, rank: elements of an entry, and those before the rotated key.
struct Matrices {
  const uint8_t *key_up, *value_up;
  int64_t heads, latent, rank, nope, value;
};

// Multiplies a row of bfloat16 elements by a scale and rounds once.
__m512i scaled_row(__m512i row, float scale) {
  const auto wide = [&](__m256i half) {
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(scale));
  };
  const __m512 first = wide(_mm512_castsi512_si256(row)), second = wide(_mm512_extracti64x4_epi64(row, 1));
  return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

// Writes two rows of kTileK elements as a line each of two blocks `next` elements apart: pairs of an element of both.
void store_pairs(__m512i even, __m512i odd, BF16* to, int64_t next) {
  alignas(64) static constexpr auto from = [] {
    std::array<int16_t, 2 * kTileK> words{};
    for (int64_t i = 0; i < 2 * kTileK; ++i) words[i] = int16_t(i % 2 * kTileK + i / 2);
    return words;
  }();
  _mm512_store_si512(to, _mm512_permutex2var_epi16(even, _mm512_load_si512(from.data()), odd));
  _mm512_store_si512(to + next, _mm512_permutex2var_epi16(even, _mm512_load_si512(from.data() + kTileK), odd));
}

// Packs the transpose of a packed matrix, with its scales. A block's rows become halves of two blocks.
template <typename Storage>
void pack_transposed(const PackedWeight<Storage>& weight, BF16* to) {
  const int64_t panel_size = weight.count * kTileN / kTileK * kBlockSize;
  WidenedPanels<Storage> widened(weight, {1, weight.blocks});
  for (int64_t panel = 0; panel < weight.count; ++panel) {
    if (panel % 2 == 0) widened.load(panel / 2, panel / 2 + 1, 0, weight.blocks);
    BF16* half = to + panel * kBlockSize / 2;
    for (int64_t k = 0; k < weight.blocks; ++k, half += 2 * panel_size) {
      __m512i rows[kTileN];  // first lines of pairs of elements, then rows of kTileK elements
      for (int64_t i = 0; i < kTileN; ++i) rows[i] = _mm512_loadu_si512(widened.at(panel, k) + i * kNR);
      transpose(rows);
      if constexpr (Storage::kHasScales) {
        const auto* scales = reinterpret_cast<const float*>(weight.panel(panel));
        for (int64_t i = 0; i < kTileN; ++i) rows[i] = scaled_row(rows[i], scales[i]);
      }
      for (int64_t i = 0; i < kTileN; i += 2) store_pairs(rows[i], rows[i + 1], half + i / 2 * kNR, panel_size);
    }
  }
}

template <typename Storage>
class ExpandedTask {
 public:
  ExpandedTask(const Piece& piece, const Matrices& matrices, int64_t head, int64_t first, int64_t rows)
      : piece_(piece), m_(matrices), width_(piece.queries.width), task_(piece.queries, head, first, rows) {
    static thread_local std::vector<BF16> memory;
    key_up_ = workspace(memory, m_.nope * m_.rank + kExpanded * (width_ + m_.value));
    keys_ = key_up_ + m_.nope * m_.rank;
    values_ = keys_ + kExpanded * width_;
    pack_transposed(head_of(m_.key_up, head, m_.rank, m_.nope), key_up_);
    value_up_ = head_of(m_.value_up, head, m_.value, m_.rank).data;
  }

  void run() {
    const int64_t end = task_.begin();
    for (int64_t from = 0; from < end; from += kExpanded) {
      const int64_t stop = std::min(from + kExpanded, end);
      expand(from, stop - from);
      const Tiles tiles(2 * kTileM);
      task_.attend({keys_, values_, from, stop});
    }
    task_.end();
  }

 private:
  // The matrix of a head, of those of all heads [out, inner] each.
  PackedWeight<Storage> head_of(const uint8_t* all, int64_t head, int64_t out, int64_t inner) const {
    const int64_t panels = out / kTileN, blocks = inner / kTileK;
    return {PackedWeight<Storage>{all, panels * m_.heads, blocks}.panel(head * panels), panels, blocks};
  }

  // Expands `count` latents from `from` on: a key is the product with the latent, then the rotated key.
  void expand(int64_t from, int64_t count) {
    const BF16* latents = piece_.latents + from * m_.latent;
    multiply<StoredBF16>(latents, count, key_up_, m_.nope, keys_, width_);
    multiply<Storage>(latents, count, value_up_, m_.value, values_, m_.value);
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(keys_ + i * width_ + m_.nope, latents + i * m_.latent + m_.rank, (width_ - m_.nope) * sizeof(BF16));
  }

  // Multiplies as for many rows, so that an entry's bits do not depend on how many are expanded with it.
  template <typename Stored>
  void multiply(const BF16* latents, int64_t count, const void* weight, int64_t out, BF16* to, int64_t stride) const {
    const auto* panels = static_cast<const uint8_t*>(weight);
    const Product p{latents, count, m_.rank, m_.latent, panels, out / kTileN, nullptr, nullptr, 0.f, 0.f, kExpanded};
    product<Stored>(p, LinearEpilogue<Stored, BF16>{p, nullptr, to, out, stride});
  }

  const Piece& piece_;
  const Matrices& m_;
  const int64_t width_;
  AttendTask task_;
  BF16 *key_up_, *keys_, *values_;
  const uint8_t* value_up_;
};

// Rows [first, first + rows) of one head of a piece.
struct ExpandedRows {
  const Piece* piece;
  int64_t head, first, rows;
};

// Divides the rows of a head only if there are fewer heads than threads.
std::vector<ExpandedRows> expanded_tasks(const std::vector<Piece>& pieces, int64_t heads) {
  std::vector<ExpandedRows> tasks;
  for (const Piece& piece : pieces) {
    const int64_t least = (piece.tokens + kMostRows - 1) / kMostRows, most = std::max(least, piece.tokens / kLeastRows);
    const int64_t parts = std::clamp(at::get_num_threads() / heads, least, most);
    const int64_t size = (piece.tokens + parts * kQueryBlock - 1) / (parts * kQueryBlock) * kQueryBlock;
    for (int64_t first = 0; first < piece.tokens; first += size)
      for (int64_t head = 0; head < heads; ++head)
        tasks.push_back({&piece, head, first, std::min(size, piece.tokens - first)});
  }
  return tasks;
}

template <typename Storage>
void attend_expanded(const std::vector<Piece>& pieces, const Matrices& matrices) {
  const auto tasks = expanded_tasks(pieces, matrices.heads);
  const int64_t count = int64_t(tasks.size());
#pragma omp parallel num_threads(at::in_parallel_region() ? 1 : at::get_num_threads())
  {
    const NoSubnormals no_subnormals;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; ++i) {
      const auto [piece, head, first, rows] = tasks[i];
      ExpandedTask<Storage>(*piece, matrices, head, first, rows).run();
    }
  }
}

Matrices matrices_of(const at::Tensor& q, const at::Tensor& latents, const at::Tensor& key_up,
                     const at::Tensor& value_up) {
  const int64_t heads = q.size(1), latent = latents.size(2), rank = key_up.size(0) * kTileN / heads;
  const int64_t nope = q.size(2) - (latent - rank), value = value_up.size(0) * kTileN / heads;
  with_storage(key_up.scalar_type(), [&](auto storage) {
    const auto fits = [&](const at::Tensor& packed, int64_t inner) {
      return packed.dim() > 2 && !quantises_rows(packed) && packed.is_contiguous() && packed.size(0) % heads == 0 &&
             packed.stride(0) * packed.element_size() == storage.kHeaderBytes + inner / kTileK * storage.kBlockBytes;
    };
    TORCH_CHECK(q.scalar_type() == at::kBFloat16 && q.size(2) % kTileK == 0 && nope > 0 && nope % kTileK == 0 &&
                    rank % kTileK == 0 && value % kTileK == 0 && key_up.scalar_type() == value_up.scalar_type() &&
                    fits(key_up, nope) && fits(value_up, rank),
                "expanded_attend: shapes or dtypes do not match, or a matrix is not packed");
  });
  return {static_cast<const uint8_t*>(key_up.const_data_ptr()), static_cast<const uint8_t*>(value_up.const_data_ptr()),
          heads, latent, rank, nope, value};
}

std::tuple<at::Tensor, at::Tensor> expanded_attend(const at::Tensor& q, const at::Tensor& latents,
                                                   const at::Tensor& segments, const at::Tensor& key_up,
                                                   const at::Tensor& value_up, double scale) {
  TORCH_CHECK(latents.stride(1) == latents.size(2) && latents.stride(2) == 1,
              "expanded_attend: staged latents must follow each other");
  TORCH_CHECK(segments.scalar_type() == at::kLong && segments.is_contiguous() && segments.size(1) == 6,
              "expanded_attend: segments must be int64 [M, 6]");
  const Matrices m = matrices_of(q, latents, key_up, value_up);
  const auto rows = q.contiguous();
  auto out = at::zeros({q.size(0), m.heads, m.value}, q.options());
  auto lse = at::full({q.size(0), m.heads}, -std::numeric_limits<float>::infinity(), q.options().dtype(at::kFloat));
  std::vector<Piece> pieces;
  for (int64_t i = 0; i < segments.size(0); ++i) {
    const int64_t* s = segments.const_data_ptr<int64_t>() + 6 * i;
    const int64_t row = s[0], count = s[1], first = s[3], start = s[4];
    if (count == 0) continue;
    TORCH_CHECK(0 <= row && row + count <= q.size(0) && 0 <= first && 0 <= start &&
                    first + start + count <= latents.size(1),
                "expanded_attend: a piece lies outside the rows or the staging");
    const BF16* piece = rows.const_data_ptr<BF16>() + row * rows.stride(0);
    const TaskQueries queries{piece, out.data_ptr<BF16>() + row * out.stride(0), lse.data_ptr<float>() + row * m.heads,
                          m.heads, 1, q.size(2), m.value, start, float(scale)};
    pieces.push_back({queries, latents.const_data_ptr<BF16>() + first * m.latent, count});
  }
  with_storage(key_up.scalar_type(), [&](auto storage) { attend_expanded<decltype(storage)>(pieces, m); });
  return {out, lse};
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("expanded_attend", &ringkv::expanded_attend); }

#endif
