// decode_attend_heads on the CPU: attend to slots whose heads have different numbers of entries. See
// decode_attend_heads.py for shapes.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "attend_slots.h"

namespace ringkv {
namespace {

// The place of each row's heads, from `places` [slots, heads, 2].
class HeadPlaces {
 public:
  HeadPlaces(const at::Tensor& places, const int32_t* slot, const int32_t* live, int64_t rows, int64_t slot_elements,
             int64_t width)
      : heads_(places.size(1)), slot_elements_(slot_elements), width_(width), slot_(slot), lengths_(rows * heads_),
        of_(rows * heads_) {
    const int32_t* all = places.const_data_ptr<int32_t>();
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t head = 0; head < heads_; ++head) {
        const int32_t* own = all + (slot[row] * heads_ + head) * 2;
        of_[row * heads_ + head] = {own[0], own[1]};
        lengths_[row * heads_ + head] = live[row] > 0 ? live[row] + own[1] : 0;
      }
  }
  const int32_t* lengths() const { return lengths_.data(); }

  // The element of a plane [slots, 1, entries, width] at which a head begins, and the one of an entry of its ring.
  int64_t operator()(int64_t row, int64_t head) const {
    return slot_[row] * slot_elements_ + of_[row * heads_ + head].first * width_;
  }
  int64_t in_ring(int64_t row, int64_t head, int32_t entry) const {
    return (*this)(row, head) + (entry + of_[row * heads_ + head].more) * width_;
  }

 private:
  struct Place {
    int64_t first, more;
  };
  int64_t heads_, slot_elements_, width_;
  const int32_t* slot_;
  std::vector<int32_t> lengths_;
  std::vector<Place> of_;
};

std::tuple<at::Tensor, at::Tensor> decode_attend_heads(const at::Tensor& q, const std::optional<at::Tensor>& k,
                                                       const std::optional<at::Tensor>& v, at::Tensor keys,
                                                       at::Tensor values, const at::Tensor& places,
                                                       const at::Tensor& slot, const at::Tensor& entry,
                                                       const at::Tensor& live, double scale) {
  check_planes(q, keys, values);
  const auto cq = q.contiguous(), cp = int32(places), cs = int32(slot), ce = int32(entry), cl = int32(live);
  const int32_t* lives = cl.const_data_ptr<int32_t>();
  const int64_t rows = q.size(0), heads = q.size(1), width = q.size(3);
  const HeadPlaces at(cp, cs.const_data_ptr<int32_t>(), lives, rows, keys.stride(0), width);
  const RowSlots slots{cs.const_data_ptr<int32_t>(), lives, at.lengths()};
  auto [out, lse] = new_results(cq);
  with_dtype(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    if (k && v) {
      check_new(*k, *v);
      const NewVectors<T> nk(*k), nv(*v);
      T *key = keys.data_ptr<T>(), *value = values.data_ptr<T>();
      for (int64_t b = 0; b < rows; ++b)
        for (int64_t h = 0; h < heads && lives[b] > 0; ++h) {
          const int64_t to = at.in_ring(b, h, ce.const_data_ptr<int32_t>()[b]);
          write_new(nk, nv, b, h, width, key + to, value + to);
        }
    }
    const Result<T> to{out.template data_ptr<T>(), lse.template data_ptr<float>()};
    attend_slots<T>(cq, keys, values, slots, scale, {}, at, to);
  });
  return {out, lse};
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("decode_attend_heads", &ringkv::decode_attend_heads); }
