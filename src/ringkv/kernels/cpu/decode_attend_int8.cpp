// decode_attend_int8 on the CPU: attend to a slot's live int8 entries. See decode_attend_int8.py.

#include <torch/library.h>

#include "encoding_int8.h"

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

TORCH_LIBRARY_IMPL(ringkv, CPU, m) {
  m.impl("decode_attend_int8", &ringkv::attend_encoded<ringkv::Int8Encoding>);
}

#endif
