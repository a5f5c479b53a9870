// EncodedBlock: a block's input in an encoding: keys and values, and the scales of each.

#pragma once

#include <cstdint>

namespace ringkv {

// head: row * heads + head. Keys and values [entries, bytes], scales [entries] or [entries, n].
template <typename Element, typename Scale>
struct EncodedBlock {
  int64_t head;
  const Element *key, *value;
  const Scale *key_scale, *value_scale;
  int64_t entries;

  EncodedBlock end_of_run() const { return {head, key, value, key_scale, value_scale, 0}; }
};

}  // namespace ringkv
