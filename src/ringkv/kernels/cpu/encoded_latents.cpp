// decode_attend over encoded latents with tiles: attend to a slot's live latents. See decode_attend.py and encoding.py.
//
// A task is some query heads of one row. It widens kKeyBlock latents at a time into a workspace that stays in L2, and
// attends to them. Latents are widened without their center, and still rotated: queries are rotated alike, and the
// weighted sums are rotated back.

#include "attend_task.h"

#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)

#include "constants.h"
#include "encoded_slots.h"

namespace ringkv {
namespace {

inline void store_bf16(__m512 first, __m512 second, BF16* to) {
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

// An encoding, with which a group also has kScales scales, and `widen` restores a group as bfloat16, still rotated; its
// width is a multiple of 32.
struct LatentInt8 : Int8 {
  static constexpr int64_t kScales = 1;

  static void widen(const int8_t* from, const float* scale, int64_t width, BF16* to) {
    const __m512 by = _mm512_set1_ps(*scale);
    const auto floats = [&](const int8_t* at) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
      return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), by);
    };
    for (int64_t d = 0; d < width; d += 32) store_bf16(floats(from + d), floats(from + d + 16), to + d);
  }
};

struct LatentInt4 : Int4 {
  static constexpr int64_t kScales = 2;

  // Nibble n of word i of a chunk is its element n * words + i.
  static void widen(const uint8_t* from, const c10::Half* range, int64_t width, BF16* to) {
    const __m512 scale = _mm512_set1_ps(float(range[0])), minimum = _mm512_set1_ps(float(range[1]));
    const auto floats = [&](__m512i words) {
      const __m512i levels = _mm512_and_si512(words, _mm512_set1_epi32(15));
      return _mm512_fmadd_ps(_mm512_cvtepi32_ps(levels), scale, minimum);
    };
    int64_t d = 0;
    for (; d + 64 <= width; d += 64) {
      const auto* at = reinterpret_cast<const __m256i*>(from + d / 2);
      const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at));
      store_bf16(floats(words), floats(_mm512_srli_epi32(words, 4)), to + d);
      store_bf16(floats(_mm512_srli_epi32(words, 8)), floats(_mm512_srli_epi32(words, 12)), to + d + 32);
    }
    if (d == width) return;
    const __m256i eight = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + d / 2)));
    const __m512i words = _mm512_inserti64x4(_mm512_castsi256_si512(eight), _mm256_srli_epi32(eight, 4), 1);
    store_bf16(floats(words), floats(_mm512_srli_epi32(words, 8)), to + d);
  }
};

// Calls run(group, first element, width) for each group of `width` elements.
template <typename Run>
void for_groups(int64_t width, const Run& run) {
  for (int64_t d = 0; d < width; d += kLatentGroup) run(d / kLatentGroup, d, std::min(kLatentGroup, width - d));
}

// The latents of a slot: elements and scales [entries, ...], and float32 [(1 + exact) * width]: their center, and the
// first latents exactly, minus the center. One that is not kept so is NaN.
template <typename Encoding>
struct SlotLatents {
  typename Encoding::Element* elements;
  typename Encoding::Scale* scales;
  const float* center;
  int64_t width, bytes, each, exact;  // each: scales of an entry

  void write(const BF16* x, int64_t entry) const {
    for_groups(width, [&](int64_t group, int64_t d, int64_t size) {
      Encoding::encode(x + d, size, elements + entry * bytes + Encoding::bytes(d),
                       scales + entry * each + group * Encoding::kScales, center + d);
    });
  }

  // Widens entries [from, stop).
  void widen(int64_t from, int64_t stop, BF16* to) const {
    for (int64_t j = from; j < stop; ++j, to += width) {
      if (j < exact && !std::isnan(center[(1 + j) * width])) {
        rotate(center + (1 + j) * width, to);
        continue;
      }
      for_groups(width, [&](int64_t group, int64_t d, int64_t size) {
        Encoding::widen(elements + j * bytes + Encoding::bytes(d), scales + j * each + group * Encoding::kScales, size,
                        to + d);
      });
    }
  }

  // Rotates a vector by groups.
  template <typename T>
  void rotate(const T* x, BF16* to) const {
    float wide[kLatentGroup];
    for_groups(width, [&](int64_t, int64_t d, int64_t size) {
      std::copy_n(x + d, size, wide);
      ringkv::rotate(wide, size);
      std::copy_n(wide, size, to + d);
    });
  }

  // Rotates a weighted sum back, and adds the center.
  void finish(BF16* sum) const {
    float wide[kLatentGroup];
    for_groups(width, [&](int64_t, int64_t d, int64_t size) {
      std::copy_n(sum + d, size, wide);
      ringkv::rotate(wide, size);
      for (int64_t i = 0; i < size; ++i) sum[d + i] = BF16(wide[i] + center[d + i]);
    });
  }
};

// Query heads [first, first + rows) of one row of the step, which has `heads`. The first task writes the new latent.
template <typename Encoding>
struct LatentTask {
  SlotLatents<Encoding> latents;
  const BF16 *query, *key;
  BF16 *rotated, *out;
  float* lse;
  int64_t entry, seen, heads, first, rows;

  void prepare() const {
    if (first == 0) latents.write(key, entry);
    for (int64_t g = first; g < first + rows; ++g)
      latents.rotate(query + g * latents.width, rotated + g * latents.width);
  }

  void run(float scale) const {
    static thread_local std::vector<BF16> memory;
    BF16* widened = workspace(memory, kKeyBlock * latents.width);
    const TaskQueries queries{rotated, out, lse, 1, heads, latents.width, latents.width, seen - 1, scale};
    AttendTask task(queries, 0, first, rows);
    task.begin();
    for (int64_t from = 0; from < seen; from += kKeyBlock) {
      const int64_t stop = std::min(from + kKeyBlock, seen);
      latents.widen(from, stop, widened);
      task.attend({widened, widened, from, stop});
    }
    task.end();
    for (int64_t g = first; g < first + rows; ++g) {
      latents.finish(out + g * latents.width);
      lse[g] += scale * dot(query + g * latents.width, latents.center, latents.width);
    }
  }
};

template <typename Encoding>
void run_all(std::vector<LatentTask<Encoding>>& tasks, float scale) {
  // Tasks that see more entries go first, so that no thread ends with a long task.
  std::stable_sort(tasks.begin(), tasks.end(), [](const auto& a, const auto& b) { return a.seen > b.seen; });
  const int64_t count = int64_t(tasks.size());
#pragma omp parallel num_threads(at::in_parallel_region() ? 1 : at::get_num_threads())
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; ++i) tasks[i].prepare();
    const Tiles tiles(2 * kTileM);
    const NoSubnormals no_subnormals;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; ++i) tasks[i].run(scale);
  }
}

template <typename Encoding>
Results attend_latents(const DecodeArguments& a) {
  const at::Tensor &latents = a.planes[0], &scales = a.planes[1], &centers = *a.centers;
  const int64_t width = a.q.size(3);
  const int64_t each = (width + kLatentGroup - 1) / kLatentGroup * Encoding::kScales;  // scales of an entry
  TORCH_CHECK(a.q.size(1) == 1 && a.k && latents.size(3) == Encoding::bytes(width) &&
                  latents.stride(2) == latents.size(3) && latents.stride(3) == 1 && scales.stride(2) == each &&
                  centers.stride(2) == 1 && latents.element_size() == sizeof(typename Encoding::Element) &&
                  scales.element_size() == sizeof(typename Encoding::Scale),
              "decode_attend: shapes or dtypes of latents do not match");
  const Step<BF16> step(a);
  step.clear_free_rows();
  const auto rotated = at::empty_like(std::get<0>(step.results));
  const int64_t heads = step.shape.queries, size = rows_of_task(heads, width);
  std::vector<LatentTask<Encoding>> tasks;
  step.each_head(kAlone, [&](const StepHead& to) {
    const SlotLatents<Encoding> of_slot{
        static_cast<typename Encoding::Element*>(latents.data_ptr()) + to.slot * latents.stride(0),
        static_cast<typename Encoding::Scale*>(scales.data_ptr()) + to.slot * scales.stride(0),
        centers.const_data_ptr<float>() + to.slot * centers.stride(0), width, latents.size(3), each,
        centers.size(2) / width - 1};
    const int64_t first = to.row * heads;
    LatentTask<Encoding> task{of_slot,
                              step.queries(to.row),
                              step.k->of(to.row, 0),
                              rotated.data_ptr<BF16>() + first * width,
                              step.to.out + first * width,
                              step.to.lse + first,
                              to.entry,
                              to.live,
                              heads};
    for (; task.first < heads; task.first += size) {
      task.rows = std::min(size, heads - task.first);
      tasks.push_back(task);
    }
  });
  run_all(tasks, step.scale);
  return step.results;
}

}  // namespace

Results attend_encoded_latents(const DecodeArguments& a) {
  return a.encoding == "int8" ? attend_latents<LatentInt8>(a) : attend_latents<LatentInt4>(a);
}

}  // namespace ringkv

#endif
