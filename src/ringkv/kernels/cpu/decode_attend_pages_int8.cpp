// decode_attend_pages_int8 on the CPU: attend to some pages of a slot's int8 entries. See decode_attend_pages_int8.py.

#include <torch/library.h>

#include <vector>

#include "encoding_int8.h"
#include "files.h"
#include "pages.h"
#include "unread_pages.h"
#include "workspace.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {
namespace {

// Writes the digest of a page of int8 keys [page, width], as they are decoded, minus their center.
template <typename T>
void write_digest_int8(const int8_t* keys, const float* scales, int64_t page, int64_t width, bool is_mean, T* upper) {
  static thread_local std::vector<float> decoded;
  decoded.resize(page * width);
  for (int64_t j = 0; j < page; ++j) {
    float* to = decoded.data() + j * width;
    for (int64_t d = 0; d < width; ++d) to[d] = float(keys[j * width + d]) * scales[j];
    rotate(to, width);
  }
  write_digest(decoded.data(), page, width, is_mean, upper, upper + width);
}

// Entries in place or in a thread's copies.
struct CopiedPlane {
  const int8_t* elements;
  const float* scales;
};

// The selected pages of each head. A block whose pages do not follow each other is copied. A thread keeps the copies of
// its last two blocks.
class PagedEntries {
 public:
  using Block = BlockInt8;
  using Plane = EncodedPlane<Int8Encoding>;
  static constexpr bool kSelects = true;

  PagedEntries(const ReadAhead& read_ahead, const at::Tensor& digests, const at::Tensor& pins,
               const at::Tensor& counts, int64_t page, int64_t rows, int64_t heads, int64_t queries, double scale,
               const std::optional<at::Tensor>& means)
      : digests_(digests), pins_(pins), counts_(page_counts(counts)),
        page_(page), queries_(queries), selected_(rows * heads, heads, page, scale),
        unread_(means, rows * heads, queries, page, scale), read_ahead_(read_ahead) {}

  template <typename T, typename EachHead>
  void choose(const EachHead& each_head, const T* query) {
    const Digests<T> digests(digests_);
    selected_.select(each_head, counts_, query, queries_, digests, pins_,
                     [&](int64_t head, const Destination& to, int64_t live) {
      read_ahead_(to.slot, to.head, selected_.of(head), selected_.count(head));
      unread_.sum(head, to.slot, to.head, live, counts_[to.slot], query + head * queries_ * digests.width, digests,
                  selected_.of(head));
    });
  }
  template <typename T>
  void written(const Plane& key, const Destination& to, int64_t live, const T* value) {
    unread_.add(to.slot, to.head, live, value);
    if ((to.entry + 1) % page_) return;
    const int64_t index = to.entry / page_, first = index * page_;
    write_digest_int8(key.entry(to.slot, to.head, first), key.scale_of(to.slot, to.head, first), page_, key.bytes,
                      counts_[to.slot].is_mean, Digests<T>(digests_).upper(to.slot, to.head, index));
  }
  const int32_t* lengths() const { return selected_.lengths(); }

  Block block(const Plane& key, const Plane& value, int64_t s, int64_t h, const BlockIndex& at,
              const ExactScores& exact) const {
    const int32_t* pages = selected_.of(at.head) + at.first / page_;
    const auto [keys, key_scales] = entries(key, s, h, pages, at.entries, 0);
    const auto [values, value_scales] = entries(value, s, h, pages, at.entries, 1);
    turn_ ^= 1;
    return {at.head, keys, values, key_scales, value_scales, at.entries, pages[0] ? ExactScores{} : exact};
  }
  template <typename T>
  void attended(int64_t width, T* out, float* lse) const {
    unread_.merge(width, out, lse);
  }

 private:
  CopiedPlane entries(const Plane& plane, int64_t s, int64_t h, const int32_t* pages, int64_t count, int plane_at) const {
    if (are_in_place(pages, page_, count)) {
      const int64_t first = pages[0] * page_;
      return {plane.entry(s, h, first), plane.scale_of(s, h, first)};
    }
    static thread_local std::vector<int8_t> elements;
    static thread_local std::vector<float> scales;
    const int64_t place = turn_ * 2 + plane_at, size = kBlock * plane.bytes;
    int8_t* own = workspace(elements, 4 * size) + place * size;
    float* own_scales = workspace(scales, 4 * kBlock) + place * kBlock;
    return {gathered<int8_t>(plane.entry(s, h, 0), pages, page_, count, plane.bytes, own),
            gathered<float>(plane.scale_of(s, h, 0), pages, page_, count, 1, own_scales)};
  }

  const at::Tensor digests_;
  const Pins pins_;
  const PageCounts* counts_;
  const int64_t page_, queries_;
  SelectedPages selected_;
  UnreadPages unread_;
  const ReadAhead& read_ahead_;
  static thread_local int turn_;
};

thread_local int PagedEntries::turn_ = 0;

std::tuple<at::Tensor, at::Tensor> decode_attend_pages_int8(
    const at::Tensor& q, const std::optional<at::Tensor>& k, const std::optional<at::Tensor>& v, at::Tensor keys,
    at::Tensor key_scales, at::Tensor values, at::Tensor value_scales, const at::Tensor& centers, at::Tensor digests,
    const at::Tensor& pins, const at::Tensor& counts, const at::Tensor& slot, const at::Tensor& entry,
    const at::Tensor& live, double scale, const std::optional<at::Tensor>& means) {
  const auto own = int32(counts);
  const int64_t page = page_of(keys, digests);
  const ReadAhead read_ahead({keys, key_scales, values, value_scales}, page);
  PagedEntries entries(read_ahead, digests, pins, own, page, q.size(0), q.size(1), q.size(2), scale, means);
  return attend_entries<Int8Encoding, PagedEntries&>(q, k, v, keys, key_scales, values, value_scales, centers, slot,
                                                     entry, live, scale, entries);
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("decode_attend_pages_int8", &ringkv::decode_attend_pages_int8); }

#endif
