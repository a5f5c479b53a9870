// Decode attention over any slots: writes the new vectors, if there are any, then attends to what a reading says.
//
// Slots in an encoding have
//   kGrain           heads that a thread prepares, at least
//   write            writes a head's new vectors to a place
//   prepare          called with each head before `block`
//   block            makes a block of entries
//   with_attention   calls its argument with the implementation that attends to blocks; see `attend_blocks`
//   finish           transforms a query's weighted sum of values [width] in place
//   add_centers      adds the scores of centers to the log-sum-exps
//   keys             the decoded keys of some entries, minus their center

#pragma once

#include "attend_blocks.h"
#include "decode_step.h"
#include "entries.h"

namespace ringkv {
namespace {

template <typename T, typename Stored, typename Entries>
void attend_entries(const Step<T>& step, Stored& stored, Entries& entries) {
  entries.select();
  step.each_head(Entries::kSelects ? 1 : Stored::kGrain, [&](const StepHead& to) {
    if (step.k) {
      stored.write(to, entries.newest(to));
      entries.written(stored, to);
    }
    stored.prepare(to);
  });
  const auto block_of = [&](const BlockIndex& at) { return stored.block(at, entries.span(at)); };
  const auto with_attention = [&](const auto& run) { stored.with_attention(run); };
  attend_blocks<T>(step.shape, {step.live, entries.lengths()}, step.to, block_of, with_attention,
                   [&](float* sum) { stored.finish(sum); });
  stored.add_centers();
}

}  // namespace
}  // namespace ringkv
