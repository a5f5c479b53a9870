// decode_attend_int4 on the CPU: attend to a slot's live 4-bit entries. See decode_attend_int4.py.

#include <torch/library.h>

#include "block_int4.h"
#include "encoded_attend.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {
namespace {

struct Int4Encoding {
  using Element = uint8_t;
  using Scale = c10::Half;
  using Keys = UniformLevels;
  using Values = UniformLevels;
  using Queries = UniformLevels::Queries;
  static constexpr const char* name = "decode_attend_int4";

  static BlockRowsInt4<Keys> attention(const Queries& all, int64_t queries, int64_t width, float scale) {
    return {all, queries, width, scale};
  }
  static void finish(float* sum, int64_t width) { rotate(sum, width); }
};

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) {
  m.impl("decode_attend_int4", &ringkv::attend_encoded<ringkv::Int4Encoding>);
}

#endif
