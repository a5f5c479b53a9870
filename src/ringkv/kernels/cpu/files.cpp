// read_ahead on the CPU: notes which planes are in files. See read_ahead.py.

#include "files.h"

namespace ringkv {
namespace {

// The planes that are in files, as long as their memory lives.
class FilePlanes {
 public:
  void add(const at::Tensor& plane, const at::Tensor& fetched) {
    const std::lock_guard lock(mutex_);
    std::erase_if(planes_, [](const auto& one) { return one.memory.expired(); });
    const int64_t bytes = plane.nbytes();
    const FilePlane file{static_cast<const char*>(plane.const_data_ptr()), bytes, bytes / fetched.numel(),
                         fetched.data_ptr<int32_t>()};
    planes_.push_back({plane.storage().getWeakStorageImpl(), fetched, std::make_shared<FilePlane>(file)});
  }
  std::shared_ptr<FilePlane> find(const char* at) {
    const std::lock_guard lock(mutex_);
    for (const auto& one : planes_)
      if (one.plane->has(at) && !one.memory.expired()) return one.plane;
    return nullptr;
  }

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
    at::Tensor fetched;
    std::shared_ptr<FilePlane> plane;
  };

  std::mutex mutex_;
  std::vector<Known> planes_;
};

FilePlanes& planes() {
  static FilePlanes own;
  return own;
}

void read_ahead(const at::TensorList all, at::Tensor fetched) {
  TORCH_CHECK(fetched.is_contiguous() && fetched.numel() > 0, "read_ahead: contiguous counts expected");
  for (const at::Tensor& plane : all) {
    TORCH_CHECK(plane.is_contiguous() && plane.nbytes() % fetched.numel() == 0,
                "read_ahead: a contiguous plane expected, with as many heads as counts");
    planes().add(plane, fetched);
  }
}

}  // namespace

std::shared_ptr<FilePlane> file_plane(const void* at) { return planes().find(static_cast<const char*>(at)); }

}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("read_ahead", &ringkv::read_ahead); }
