// Planes of slots that are in files: the system reads the pages that a step has selected before attention needs them.
// See read_ahead.py.

#pragma once

#include <ATen/core/Tensor.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace ringkv {

// A plane in a file, and how many pages of each head were not in memory when a step selected them.
struct FilePlane {
  const char* begin;
  int64_t bytes, head_bytes;
  int32_t* recalled;  // of each head

  bool has(const char* at) const { return begin <= at && at < begin + bytes; }
};

// Returns the plane in a file that has this address, if there is one.
std::shared_ptr<const FilePlane> file_plane(const void* at);

namespace {

// Has the system read pages of a plane [slots, heads, entries, ...], if it is in a file. It does not wait.
class ReadAhead {
 public:
  // `page`: entries of a page.
  ReadAhead(const at::Tensor& plane, int64_t page)
      : at_(static_cast<const char*>(plane.const_data_ptr())), slot_(plane.stride(0) * plane.element_size()),
        head_(plane.stride(1) * plane.element_size()), page_(page * plane.stride(2) * plane.element_size()),
        file_(file_plane(at_)) {}

  // The pages `pages`, in order, of a head of a slot.
  void operator()(int64_t slot, int64_t head, const int32_t* pages, int64_t count) const {
    if (!file_ || count == 0) return;
    const char* first = at_ + slot * slot_ + head * head_;
    const char* from = down(first + pages[0] * page_);
    const auto& held = in_memory(from, first + (pages[count - 1] + 1) * page_);
    const char *start = nullptr, *end = nullptr;
    int32_t missing = 0;
    for (int64_t i = 0; i < count; ++i) {
      const char *low = down(first + pages[i] * page_), *high = first + (pages[i] + 1) * page_;
      const auto has = held.begin() + (low - from) / kSystemPage;
      if (std::all_of(has, held.begin() + (high - 1 - from) / kSystemPage + 1, [](uint8_t one) { return one & 1; }))
        continue;
      ++missing;
      if (start && (low > end || high - start > kMost)) {
        ask(start, end);
        start = nullptr;
      }
      if (!start) start = low;
      end = high;
    }
    if (start) ask(start, end);
    file_->recalled[(first - file_->begin) / file_->head_bytes] += missing;
  }

 private:
  static constexpr int64_t kSystemPage = 4096;
  static constexpr int64_t kMost = 128 * 1024;  // bytes that Linux reads ahead at a time, by default

  static const char* down(const char* at) {
    return reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(at) / kSystemPage * kSystemPage);
  }
  // Whether each of the system's pages from `begin` until `end` is in memory: the lowest bit.
  static const std::vector<uint8_t>& in_memory(const char* begin, const char* end) {
    static thread_local std::vector<uint8_t> held;
    held.assign((end - begin + kSystemPage - 1) / kSystemPage, 1);
    mincore(const_cast<char*>(begin), end - begin, held.data());
    return held;
  }
  static void ask(const char* begin, const char* end) {
    madvise(const_cast<char*>(begin), end - begin, MADV_WILLNEED);
  }

  const char* at_;
  const int64_t slot_, head_, page_;
  const std::shared_ptr<const FilePlane> file_;
};

}  // namespace
}  // namespace ringkv
