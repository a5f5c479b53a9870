// The headers of torch that every source begins with. native.py compiles them once, before the sources: parsing them
// takes longer than compiling most operators.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>
