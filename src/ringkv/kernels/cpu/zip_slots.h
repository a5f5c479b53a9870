// Slots in the format zipcache: what a new token does to one head of one. See zip_slots.py and zip_tokens.py.
//
// Everything that is written is computed in the same float32 operations as in zip_codes.py, so the bytes are the same.

#pragma once

#include "constants.h"
#include "levels.h"

namespace ringkv {
namespace {

constexpr size_t kZipTensors = 11;  // of a slot

// One head of one slot: the tensors of `ZipSlots` without their first two dimensions.
template <typename T>
struct ZipHead {
  T* plain_keys;
  uint8_t *high_keys, *low_keys;
  c10::Half* key_channels;
  float* attention;
  T* plain_values;
  uint8_t *high_values, *low_values;
  c10::Half *value_factors, *value_ranges;
  int32_t* counts;
};

// Where a chunk is in a slot: its first salient and other entry, and how many it has of each.
struct ZipPlace {
  int64_t chunk, high, low, highs, lows;

  ZipPlace(const int32_t* counts, int64_t chunk) : chunk(chunk) {
    const int64_t fixed = counts[kFixed], salient = (fixed * kSalient + 99) / 100;
    high = chunk ? salient + (chunk - 1) * kSalient : 0;
    low = chunk ? fixed - salient + (chunk - 1) * (kChunkTokens - kSalient) : 0;
    highs = chunk ? kSalient : salient;
    lows = chunk ? kChunkTokens - kSalient : fixed - salient;
  }
};

// A tensor [slots, heads, ...] whose heads are contiguous.
struct ZipTensor {
  explicit ZipTensor(const at::Tensor& x) : at(static_cast<char*>(x.data_ptr())), item(x.element_size()),
        slot(x.stride(0) * item), head(x.stride(1) * item) {
    int64_t inner = 1;
    for (int64_t d = x.dim() - 1; d > 1; inner *= x.size(d--))
      TORCH_CHECK(x.stride(d) == inner, "decode_attend: a head's elements must be contiguous");
  }
  template <typename E>
  E* of(int64_t s, int64_t h) const {
    TORCH_CHECK(sizeof(E) == size_t(item), "decode_attend: a tensor has another dtype");
    return reinterpret_cast<E*>(at + s * slot + h * head);
  }

  char* at;
  int64_t item, slot, head;
};

// Slots, and the sizes that all have.
class ZipPlanes {
 public:
  explicit ZipPlanes(at::TensorList all)
      : salient(all[1].size(2)), chunks(all[3].size(2)), width(all[0].size(3)) {
    tensors_.reserve(all.size());
    for (const auto& x : all) tensors_.emplace_back(x);
  }
  template <typename T>
  ZipHead<T> of(int64_t s, int64_t h) const {
    const auto& t = tensors_;
    using Half = c10::Half;
    return {t[0].of<T>(s, h),     t[1].of<uint8_t>(s, h), t[2].of<uint8_t>(s, h), t[3].of<Half>(s, h),
            t[4].of<float>(s, h), t[5].of<T>(s, h),       t[6].of<uint8_t>(s, h), t[7].of<uint8_t>(s, h),
            t[8].of<Half>(s, h),  t[9].of<Half>(s, h),    t[10].of<int32_t>(s, h)};
  }

  const int64_t salient, chunks, width;  // entries in 4 bits; chunks with parameters; elements of a vector

 private:
  std::vector<ZipTensor> tensors_;
};

// What a level becomes: scale * level + minimum. See `range_of` in zip_codes.py.
struct ZipRange {
  c10::Half scale, minimum;

  ZipRange(float low, float high, float levels)
      : minimum(limited(low * (low < 0.f ? 1.f + kOutward : 1.f - kOutward), -kMaxHalf, kMaxHalf)) {
    const float by = float((1.0 + kOutward) / double(levels));
    scale = c10::Half(limited((high - float(minimum)) * by, kMinHalf, kMaxHalf));
  }
};

inline uint8_t zip_level(float x, float scale, float minimum, float levels) {
  return uint8_t(limited(std::rint((x - minimum) / scale), 0.f, levels));
}

// Packs the levels of an entry of as many bits: 4, or 2 as pairs of packed bytes that are half a vector apart.
inline void pack_zip(const uint8_t* level, int64_t width, bool is_high, uint8_t* to) {
  if (is_high) return pack_levels(level, width, to);
  thread_local std::vector<uint8_t> pairs;
  pairs.resize(width / 2);
  pack_levels(level, width, pairs.data());
  for (int64_t i = 0; i < width / 4; ++i) to[i] = uint8_t(pairs[i] | pairs[i + width / 4] << 2);
}

// Turns the rows `index` of a chunk's keys [tokens, width] into entries and parameters of channels [2, width].
inline void encode_zip_keys(const float* x, const std::vector<int64_t>& index, int64_t width, bool is_high,
                            uint8_t* to, c10::Half* channels) {
  const float levels = is_high ? 15.f : 3.f;
  for (int64_t d = 0; d < width; ++d) {
    float low = x[index[0] * width + d], high = low;
    for (const int64_t row : index) {
      low = std::min(low, x[row * width + d]);
      high = std::max(high, x[row * width + d]);
    }
    const ZipRange range(low, high, levels);
    channels[d] = range.scale;
    channels[width + d] = range.minimum;
  }
  std::vector<uint8_t> level(width);
  for (const int64_t row : index) {
    for (int64_t d = 0; d < width; ++d)
      level[d] = zip_level(x[row * width + d], float(channels[d]), float(channels[width + d]), levels);
    pack_zip(level.data(), width, is_high, to);
    to += is_high ? width / 2 : width / 4;
  }
}

// Turns the rows `index` of a chunk's values, divided by their channels' factors, into entries and ranges.
inline void encode_zip_values(const float* x, const std::vector<int64_t>& index, int64_t width, bool is_high,
                              uint8_t* to, c10::Half* ranges) {
  const float levels = is_high ? 15.f : 3.f;
  std::vector<uint8_t> level(width);
  for (const int64_t row : index) {
    const float* from = x + row * width;
    const auto [low, high] = std::minmax_element(from, from + width);
    const ZipRange range(*low, *high, levels);
    *ranges++ = range.scale;
    *ranges++ = range.minimum;
    for (int64_t d = 0; d < width; ++d) level[d] = zip_level(from[d], float(range.scale), float(range.minimum), levels);
    pack_zip(level.data(), width, is_high, to);
    to += is_high ? width / 2 : width / 4;
  }
}

// Divides the buffer's tokens into salient ones and others, both in order.
inline std::array<std::vector<int64_t>, 2> divide_by_saliency(const float* attention) {
  std::array<float, kChunkTokens> mean;
  for (int64_t j = 0; j < kChunkTokens; ++j) mean[j] = attention[j] / float(kChunkTokens - j);
  std::vector<int64_t> order(kChunkTokens);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return mean[a] > mean[b]; });
  std::sort(order.begin(), order.begin() + kSalient);
  std::sort(order.begin() + kSalient, order.end());
  return {std::vector(order.begin(), order.begin() + kSalient), std::vector(order.begin() + kSalient, order.end())};
}

// Divides values [tokens, width] by their channels' factors, which it writes.
inline void normalise_values(float* x, int64_t tokens, int64_t width, c10::Half* factors) {
  for (int64_t d = 0; d < width; ++d) {
    float most = 0.f;
    for (int64_t j = 0; j < tokens; ++j) most = std::max(most, std::abs(x[j * width + d]));
    factors[d] = c10::Half(limited(float(std::sqrt(double(most))), kMinHalf, kMaxHalf));
    for (int64_t j = 0; j < tokens; ++j) x[j * width + d] /= float(factors[d]);
  }
}

// Returns where the full buffer goes: to a free place, or to that of the oldest chunk if `live` tokens remain.
inline int64_t next_chunk(int32_t* counts, int64_t live, int64_t places) {
  const int64_t chunks = counts[kChunks], tokens = counts[kFirst] + counts[kFixed] + chunks * kChunkTokens;
  if (chunks == 0 || (tokens + 1 < live && chunks + 1 < places)) return ++counts[kChunks];
  const int64_t oldest = counts[kOldest];
  counts[kOldest] = int32_t((oldest + 1) % chunks);
  return 1 + oldest;
}

// Turns a head's full buffer into a chunk.
template <typename T>
void encode_buffer(const ZipHead<T>& head, const ZipPlanes& planes, int64_t live) {
  const int64_t width = planes.width, first = head.counts[kFirst] * width, elements = kChunkTokens * width;
  const ZipPlace to(head.counts, next_chunk(head.counts, live, planes.chunks));
  const auto parts = divide_by_saliency(head.attention);
  std::vector<float> keys(head.plain_keys + first, head.plain_keys + first + elements);
  std::vector<float> values(head.plain_values + first, head.plain_values + first + elements);
  normalise_values(values.data(), kChunkTokens, width, head.value_factors + to.chunk * width);
  c10::Half *channels = head.key_channels + to.chunk * 4 * width, *ranges = head.value_ranges;
  encode_zip_keys(keys.data(), parts[0], width, true, head.high_keys + to.high * width / 2, channels);
  encode_zip_keys(keys.data(), parts[1], width, false, head.low_keys + to.low * width / 4, channels + 2 * width);
  encode_zip_values(values.data(), parts[0], width, true, head.high_values + to.high * width / 2,
                    ranges + 2 * to.high);
  encode_zip_values(values.data(), parts[1], width, false, head.low_values + to.low * width / 4,
                    ranges + 2 * (planes.salient + to.low));
  head.counts[kBuffered] = 0;
}

// Adds a token to a head.
template <typename T>
void append(const ZipHead<T>& head, const ZipPlanes& planes, const T* key, const T* value, int64_t live) {
  if (head.counts[kBuffered] == kChunkTokens) encode_buffer(head, planes, live);
  const int64_t at = head.counts[kFirst] + head.counts[kBuffered];
  std::copy_n(key, planes.width, head.plain_keys + at * planes.width);
  std::copy_n(value, planes.width, head.plain_values + at * planes.width);
  head.attention[head.counts[kBuffered]++] = 0.f;
}

}  // namespace
}  // namespace ringkv
