// read_ahead on the CPU: notes which planes are in files. See read_ahead.py.

#include "files.h"

#include <c10/core/Storage.h>
#include <torch/library.h>

#include <mutex>
#include <utility>

namespace ringkv {
namespace {

// The planes that are in files, as long as their memory lives.
class FilePlanes {
 public:
  void add(const at::Tensor& plane, const at::Tensor& recalled) {
    const std::lock_guard lock(mutex_);
    std::erase_if(planes_, [](const auto& one) { return one.memory.expired(); });
    const int64_t heads = recalled.numel(), bytes = plane.nbytes();
    const FilePlane own{static_cast<const char*>(plane.const_data_ptr()), bytes, bytes / heads,
                        recalled.data_ptr<int32_t>()};
    planes_.push_back({plane.storage().getWeakStorageImpl(), recalled, std::make_shared<const FilePlane>(own)});
  }
  std::shared_ptr<const FilePlane> find(const char* at) {
    const std::lock_guard lock(mutex_);
    for (const auto& one : planes_)
      if (one.plane->has(at) && !one.memory.expired()) return one.plane;
    return nullptr;
  }

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
    at::Tensor recalled;
    std::shared_ptr<const FilePlane> plane;
  };

  std::mutex mutex_;
  std::vector<Known> planes_;
};

FilePlanes& planes() {
  static FilePlanes own;
  return own;
}

void read_ahead(const at::TensorList all, at::Tensor recalled) {
  TORCH_CHECK(recalled.is_contiguous() && recalled.numel() > 0, "read_ahead: contiguous counts expected");
  for (const at::Tensor& plane : all) {
    TORCH_CHECK(plane.is_contiguous() && plane.nbytes() % recalled.numel() == 0,
                "read_ahead: a contiguous plane expected, with as many heads as counts");
    planes().add(plane, recalled);
  }
}

}  // namespace

std::shared_ptr<const FilePlane> file_plane(const void* at) { return planes().find(static_cast<const char*>(at)); }

}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("read_ahead", &ringkv::read_ahead); }
