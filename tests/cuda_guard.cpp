// A device guard for CUDA that does nothing: torch for the CPU has none, and asks for one to index a fake CUDA tensor.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
using Guard = c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>;
}

C10_REGISTER_GUARD_IMPL(CUDA, Guard)
