// Kernels of decode_attend for slots that are no planes of keys and values. See decode_attend.py for shapes.

#pragma once

#include "decode_step.h"

namespace ringkv {

#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)
#define RINGKV_LATENT_TILES  // latents in bfloat16 are attended to with tiles
Results attend_plain_latents(const DecodeArguments& a);
Results attend_encoded_latents(const DecodeArguments& a);
#endif

Results decode_attend_zip(const DecodeArguments& a);

}  // namespace ringkv
