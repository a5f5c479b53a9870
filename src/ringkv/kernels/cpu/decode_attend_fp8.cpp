// decode_attend_fp8 on the CPU: attend to a slot's live e4m3 entries. See decode_attend_fp8.py.

#include <torch/library.h>

#include "block_fp8.h"
#include "encoded_attend.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

namespace ringkv {
namespace {

struct Fp8Vectors {
  template <typename T>
  static void encode(const T* x, int64_t width, E4M3* to, c10::Half* scale, const float* center) {
    to_e4m3(x, width, to, scale, center);
  }
};

struct Fp8Encoding {
  using Element = E4M3;
  using Scale = c10::Half;
  using Keys = Fp8Vectors;
  using Values = Fp8Vectors;
  using Queries = QueriesFp8;
  static constexpr const char* name = "decode_attend_fp8";

  static BlockRowsFp8 attention(const Queries& all, int64_t queries, int64_t width, float scale) {
    return {all, queries, width, scale};
  }
  static void finish(float*, int64_t) {}
};

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("decode_attend_fp8", &ringkv::attend_encoded<ringkv::Fp8Encoding>); }

#endif
