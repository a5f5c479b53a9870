// decode_attend on the CPU: attend to the slots of a step's rows, in any encoding and reading. See decode_attend.py.

#include "decode_attend.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "attend_entries.h"
#include "constants.h"
#include "encoded_slots.h"
#include "encodings.h"
#include "paged_entries.h"
#include "plain_slots.h"

namespace ringkv {
namespace {

template <typename Stored, typename T>
Results attend(const Step<T>& step, const DecodeArguments& a) {
  Stored stored(step, a);
  const auto run = [&](auto&& entries) {
    attend_entries(step, stored, entries);
    return step.results;
  };
  if (a.places) return run(RaggedEntries<T>(step, a));
  if (!a.pages.empty()) return run(PagedEntries<T>(step, a));
  return run(EveryEntry<T>(step, a));
}

Results attend_plain(const DecodeArguments& a) {
  return with_dtype(a.q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    return attend<PlainSlots<T>>(Step<T>(a), a);
  });
}

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
template <typename Encoding>
Results attend_encoded(const DecodeArguments& a) {
  return with_dtype(a.q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    return attend<EncodedSlots<T, Encoding>>(Step<T>(a), a);
  });
}
#endif

using Signature = Results(const at::Tensor&, const OptionalTensor&, const OptionalTensor&, at::TensorList,
                          const OptionalTensor&, const OptionalTensor&, int64_t, int64_t, const at::Tensor&,
                          const at::Tensor&, const at::Tensor&, std::string_view, double);

Results reference(const DecodeArguments& a) {
  static const auto operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("ringkv::decode_attend", "reference").typed<Signature>();
  const at::TensorList tensors(a.planes.data(), a.planes.size() + a.pages.size() + a.residents.size());
  return operation.call(a.q, a.k, a.v, tensors, a.centers, a.places, a.pages.size(), a.residents.size(), a.slot, a.entry,
                        a.live, a.encoding, a.scale);
}

// Runs the kernel of the arguments, or the reference if there is none for them.
Results run(const DecodeArguments& a) {
  if (!a.residents.empty() || a.q.size(3) % kWidthStep) return reference(a);
  const bool is_plain = a.encoding == "plain";
  [[maybe_unused]] const bool are_latents = a.planes.size() == (is_plain ? 1 : 2);
#if defined(RINGKV_LATENT_TILES)
  if (are_latents && a.q.scalar_type() == at::kBFloat16)
    return is_plain ? attend_plain_latents(a) : attend_encoded_latents(a);
#endif
  if (is_plain) return attend_plain(a);
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  if (a.encoding == "zipcache") return decode_attend_zip(a);
  if (!are_latents && a.encoding == "int8") return attend_encoded<Int8>(a);
  if (!are_latents && a.encoding == "int4") return attend_encoded<Int4>(a);
#endif
  return reference(a);
}

// `tensors`: the planes, then so many of `pages` and of `residents`.
Results decode_attend(const at::Tensor& q, const OptionalTensor& k, const OptionalTensor& v, at::TensorList tensors,
                      const OptionalTensor& centers, const OptionalTensor& places, int64_t pages, int64_t residents,
                      const at::Tensor& slot, const at::Tensor& entry, const at::Tensor& live,
                      std::string_view encoding, double scale) {
  const size_t first = tensors.size() - pages - residents;
  return run({q, k, v, tensors.slice(0, first), centers, places, tensors.slice(first, pages),
              tensors.slice(first + pages, residents), slot, entry, live, encoding, scale});
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("decode_attend", &ringkv::decode_attend); }
