// decode_attend on the CPU: attend to the slots of a step's rows, in any encoding and reading. See decode_attend.py.

#include "attend_blocks.h"
#include "constants.h"
#include "encoded_slots.h"
#include "entries.h"
#include "plain_slots.h"

namespace ringkv {
namespace {

// Writes the new vectors, if there are any, then attends to what a reading says. Slots in an encoding have
//   kGrain           heads that a thread prepares, at least
//   write            writes a head's new vectors to a place
//   prepare          called with each head before `block`
//   block            makes a block of entries
//   with_attention   calls its argument with the implementation that attends to blocks; see `attend_blocks`
//   finish           transforms a query's weighted sum of values [width] in place
//   add_centers      adds the scores of centers to the log-sum-exps
//   keys             the decoded keys of some entries, minus their center
template <typename T, typename Stored, typename Entries>
void attend_entries(const Step<T>& step, Stored& stored, Entries& entries) {
  entries.select();
  step.each_head(std::min(Stored::kGrain, Entries::kGrain), [&](const StepHead& to) {
    if (step.k) {
      stored.write(to, entries.newest(to));
      entries.written(stored, to);
    }
    stored.prepare(to);
  });
  const int32_t* lengths = entries.lengths();
  const int64_t heads = step.shape.heads;
  const auto count = [&](int64_t head) { return int64_t(lengths ? lengths[head] : step.live[head / heads]); };
  const auto blocks_of = [&](int64_t head) { return (count(head) + kBlock - 1) / kBlock; };
  const auto block_of = [&](int64_t head, int64_t block) {
    const int64_t first = block * kBlock;
    const BlockIndex index{head, head / heads, first, std::min(kBlock, count(head) - first)};
    return stored.block(index, entries.span(index));
  };
  const auto with_attention = [&](const auto& run) { stored.with_attention(run); };
  const auto finish = [&](float* sum) { stored.finish(sum); };
  attend_blocks<T>(step.shape, step.to, blocks_of, block_of, with_attention, finish, [](int64_t) {});
  stored.add_centers();
}

// Attends to slots of a class `Stored`, of the dtype of the queries and what else it is a template of.
template <template <typename...> typename Stored, typename... Encoding>
Results attend(const DecodeArguments& a) {
  return with_dtype(a.q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Step<T> step(a);
    Stored<T, Encoding...> stored(step, a);
    const auto run = [&](auto&& entries) {
      attend_entries(step, stored, entries);
      return step.results;
    };
    if (a.places) return run(RaggedEntries<T>(step, a));
    if (!a.pages.empty()) return run(PagedEntries<T>(step, a));
    return run(EveryEntry<T>(step, a));
  });
}

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
  const bool is_plain = a.encoding == "plain", is_int8 = a.encoding == "int8", is_int4 = a.encoding == "int4";
  const bool are_latents = a.planes.size() == (is_plain ? 1 : 2);
#if defined(RINGKV_LATENT_TILES)
  if (are_latents && a.q.scalar_type() == at::kBFloat16) {
    if (is_plain) return attend_plain_latents(a);
    if (is_int8 || is_int4) return attend_encoded_latents(a);
  }
#endif
  if (is_plain) return attend<PlainSlots>(a);
  if (a.encoding == "zipcache") return decode_attend_zip(a);
  if (is_int8 && !are_latents) return attend<EncodedSlots, Int8>(a);
  if (is_int4 && !are_latents) return attend<EncodedSlots, Int4>(a);
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
