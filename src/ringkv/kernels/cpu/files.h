// Planes of slots that are in files: the system reads the pages that a step has selected before attention needs them.
// See read_ahead.py.

#pragma once

#include <sys/mman.h>
#include <unistd.h>

namespace ringkv {

// A plane in a file. fetched: by head, the pages, of this plane or one beside it, that were not in memory when a step
// selected them.
struct FilePlane {
  const char* begin;
  int64_t bytes, head_bytes;
  int32_t* fetched;

  bool has(const char* at) const { return begin <= at && at < begin + bytes; }
};

// Returns the plane in a file that has this address, if there is one.
std::shared_ptr<FilePlane> file_plane(const void* at);

namespace {

const int64_t kSystemPage = sysconf(_SC_PAGESIZE);

// Pages of one head of a plane in a file.
class FilePages {
 public:
  // `first`: of page 0. `page`: bytes of a page.
  FilePages(const char* first, int64_t page) : first_(first), page_(page) {}

  // Has the system read those of the pages, in order, that are not in memory, and marks them in `missing`.
  void read(const int32_t* pages, int64_t count, std::vector<uint8_t>& missing) const {
    const char* from = down(begin(pages[0]));
    const auto& held = in_memory(from, begin(pages[count - 1] + 1));
    const char *start = nullptr, *end = nullptr;
    for (int64_t i = 0; i < count; ++i) {
      const char *low = down(begin(pages[i])), *high = begin(pages[i] + 1);
      const auto has = held.begin() + (low - from) / kSystemPage, last = held.begin() + (high - 1 - from) / kSystemPage;
      if (std::all_of(has, last + 1, [](uint8_t one) { return one & 1; })) continue;
      missing[i] = 1;
      if (start && (low > end || high - start > kMost)) {
        ask(start, end);
        start = nullptr;
      }
      if (!start) start = low;
      end = high;
    }
    if (start) ask(start, end);
  }

 private:
  static constexpr int64_t kMost = 128 * 1024;  // bytes that Linux reads ahead at a time, by default

  const char* begin(int64_t page) const { return first_ + page * page_; }
  static const char* down(const char* at) {
    return at - reinterpret_cast<uintptr_t>(at) % uintptr_t(kSystemPage);
  }
  // Whether each of the system's pages from `begin` until `end` is in memory: the lowest bit. All are if it cannot say.
  static const std::vector<uint8_t>& in_memory(const char* begin, const char* end) {
    static thread_local std::vector<uint8_t> held;
    held.assign((end - begin + kSystemPage - 1) / kSystemPage, 1);
    mincore(const_cast<char*>(begin), end - begin, held.data());
    return held;
  }
  static void ask(const char* begin, const char* end) {
    madvise(const_cast<char*>(begin), end - begin, MADV_WILLNEED);
  }

  const char* first_;
  const int64_t page_;
};

// Has the system read pages of planes [slots, heads, entries, ...] that are in files. It does not wait.
class ReadAhead {
 public:
  // `page`: entries of a page.
  ReadAhead(at::ArrayRef<at::Tensor> planes, int64_t page) {
    for (const at::Tensor& plane : planes) {
      const char* first = static_cast<const char*>(plane.const_data_ptr());
      const int64_t item = plane.element_size();
      if (auto file = file_plane(first))
        planes_.push_back({std::move(file), first, plane.stride(0) * item, plane.stride(1) * item,
                           page * plane.stride(2) * item});
    }
  }

  // Has the system read the pages, in order, that a step has selected of a head of a slot, and counts those that some
  // plane lacks.
  void operator()(int64_t slot, int64_t head, const int32_t* pages, int64_t count) const {
    if (planes_.empty() || count == 0) return;
    static thread_local std::vector<uint8_t> missing;
    missing.assign(count, 0);
    for (const Plane& plane : planes_) FilePages(plane.head_of(slot, head), plane.page).read(pages, count, missing);
    const Plane& keys = planes_.front();
    const int64_t index = (keys.head_of(slot, head) - keys.file->begin) / keys.file->head_bytes;
    keys.file->fetched[index] += int32_t(std::count(missing.begin(), missing.end(), 1));
  }

 private:
  struct Plane {
    std::shared_ptr<FilePlane> file;
    const char* first;
    int64_t slot, head, page;  // bytes

    const char* head_of(int64_t s, int64_t h) const { return first + s * slot + h * head; }
  };

  std::vector<Plane> planes_;
};

}  // namespace
}  // namespace ringkv
