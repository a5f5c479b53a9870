// Workspace: scratch memory that a thread reuses across calls, so that a call does not wait for page faults.

#pragma once

namespace ringkv {

// Returns room for `count` elements in `buffer`, aligned to a cache line. The buffer grows and never shrinks.
template <typename T>
T* workspace(std::vector<T>& buffer, int64_t count) {
  constexpr int64_t line = 64;
  count += line / int64_t(sizeof(T));
  if (int64_t(buffer.size()) < count) buffer.resize(count);
  return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(buffer.data()) + line - 1) & ~uintptr_t(line - 1));
}

}  // namespace ringkv
