// Workspace: memory that a thread keeps from call to call, that no call need wait for pages of its own.

#pragma once

#include <cstdint>
#include <vector>

namespace ringkv {

// Room for `count` numbers in `kept`, which grows to the most that was ever asked for; at the beginning of a cache line
template <typename T>
T* workspace(std::vector<T>& kept, int64_t count) {
  constexpr int64_t line = 64;
  count += line / int64_t(sizeof(T));
  if (int64_t(kept.size()) < count) kept.resize(count);
  return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(kept.data()) + line - 1) & ~uintptr_t(line - 1));
}

}  // namespace ringkv
