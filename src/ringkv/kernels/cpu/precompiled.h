// The headers of torch that every source begins with. native.py compiles them once, before the sources: parsing them
// takes longer than compiling most operators.

#if !defined(CPU_CAPABILITY_AVX512) && !defined(CPU_CAPABILITY_AVX2)
#error "the C++ kernels need a processor with AVX2"
#endif

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>
