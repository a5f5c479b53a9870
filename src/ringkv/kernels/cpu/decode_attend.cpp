// decode_attend on the CPU: attend to the slots of a step's rows, in any encoding and reading. See decode_attend.py.

#include "attend_blocks.h"
#include "attend_run.h"
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
//   most_queries     how many queries of a head an implementation attends with, if a head of a step has some
//   with_attention   calls its argument with the implementation for so many queries; see `attend_blocks`
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
  const auto with_attention = [&](const auto& run) { stored.with_attention(step.shape.queries, run); };
  const auto finish = [&](float* sum) { stored.finish(sum); };
  attend_blocks<T>(step.shape, step.to, blocks_of, block_of, with_attention, finish, [](int64_t) {});
  stored.add_centers();
}

// Calls `run` with the arguments of `each` tokens of all rows after those of others. Those of one token are a step's.
template <typename Each>
Results in_turn(const DecodeArguments& a, int64_t each, const Each& run) {
  const int64_t rows = a.slot.size(0), tokens = a.live.size(1);
  const Results all = new_results(a.q);
  for (int64_t from = 0; from < tokens; from += each) {
    const int64_t count = std::min(each, tokens - from);
    const auto of_tokens = [&](const at::Tensor& x) { return x.unflatten(0, {rows, tokens}).narrow(1, from, count); };
    const auto vectors = [&](const OptionalTensor& x) {
      return x ? OptionalTensor(of_tokens(*x).flatten(0, 1)) : OptionalTensor();
    };
    const auto numbers = [&](const at::Tensor& x) { return count == 1 ? x.select(1, from) : x.narrow(1, from, count); };
    const at::Tensor q = of_tokens(a.q).flatten(0, 1), entry = numbers(a.entry), live = numbers(a.live);
    const OptionalTensor k = vectors(a.k), v = vectors(a.v);
    const auto [out, lse] = run({q, k, v, a.planes, a.centers, a.places, a.pages, a.residents, a.slot, entry, live,
                                 a.encoding, a.scale});
    of_tokens(std::get<0>(all)).copy_(out.unflatten(0, {rows, count}));
    of_tokens(std::get<1>(all)).copy_(lse.unflatten(0, {rows, count}));
  }
  return all;
}

// Attends with several tokens of each row to all live entries.
template <typename T, typename Stored>
Results attend_run(const DecodeArguments& a) {
  const int64_t rows = a.slot.size(0), tokens = a.live.size(1), heads = a.q.size(1);
  const at::Tensor by_head = a.q.unflatten(0, {rows, tokens}).transpose(1, 2).flatten(0, 2).unsqueeze(1);
  const DecodeArguments of_heads{by_head, a.k, a.v, a.planes, a.centers, a.places, a.pages, a.residents, a.slot,
                                 a.entry, a.live, a.encoding, a.scale};
  const Step<T> step(of_heads);
  Stored stored(step, of_heads);
  AttendRun<T, Stored>(step, stored, {rows, heads, tokens, a.q.size(2), a.q.size(3)}).attend();
  const auto by_token = [&](const at::Tensor& x) {  // compiled graphs rely on the layout
    return x.squeeze(1).unflatten(0, {rows, heads, tokens}).transpose(1, 2).flatten(0, 1).contiguous();
  };
  return {by_token(std::get<0>(step.results)), by_token(std::get<1>(step.results))};
}

Results run(const DecodeArguments& a);

// Attends to slots of a class `Stored`, of the dtype of the queries and what else it is a template of.
template <template <typename...> typename Stored, typename... Encoding>
Results attend(const DecodeArguments& a) {
  return with_dtype(a.q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using Slots = Stored<T, Encoding...>;
    if (a.live.dim() == 2) {
      const int64_t tokens = Slots::most_queries(a.q.size(2), a.q.size(3)) / a.q.size(2);
      if (tokens < a.live.size(1)) return in_turn(a, tokens, run);
      return attend_run<T, Slots>(a);
    }
    const Step<T> step(a);
    Slots stored(step, a);
    const auto read = [&](auto&& entries) {
      attend_entries(step, stored, entries);
      return step.results;
    };
    if (a.places) return read(RaggedEntries<T>(step, a));
    if (!a.pages.empty()) return read(PagedEntries<T>(step, a));
    return read(EveryEntry<T>(step, a));
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

// Runs the kernel of the arguments, or the reference if there is none for them. Without a kernel for several tokens of a
// row, these attend in turn.
Results run(const DecodeArguments& a) {
  if (!a.residents.empty() || a.q.size(3) % kWidthStep) return reference(a);
  const bool is_plain = a.encoding == "plain", is_int8 = a.encoding == "int8", is_int4 = a.encoding == "int4";
  const bool are_latents = a.planes.size() == (is_plain ? 1 : 2);
  const bool reads_all = !a.places && a.pages.empty(), has_blocks = !are_latents && a.encoding != "zipcache";
  if (a.live.dim() == 2 && !(reads_all && has_blocks)) return in_turn(a, 1, run);
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
