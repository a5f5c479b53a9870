// route on the CPU: scores, groups and the best experts of one row after the other. See route.py.

#include "lanes.h"

namespace ringkv {
namespace {

constexpr int64_t kRowsOfTask = 16;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

struct Settings {
  int64_t experts, chosen;
  bool is_sigmoid, normalised;
  float scale;
  int64_t groups, kept_groups, best;
};

// Buffers of one row. All have whole vectors, so that an element's exponential does not depend on its place.
struct RowBuffers {
  explicit RowBuffers(const Settings& s)
      : scores((s.experts + Vec::size() - 1) / Vec::size() * Vec::size()), ranked(scores.size()), sums(s.groups),
        order(std::max(s.experts, s.groups)) {}
  std::vector<float> scores, ranked, sums;
  std::vector<int64_t> order;
};

float sigmoid(float x) { return 1.f / (1.f + std::exp(-x)); }

void score(const Settings& s, const float* logits, std::vector<float>& scores) {
  std::copy_n(logits, s.experts, scores.begin());
  std::fill(scores.begin() + s.experts, scores.end(), kLowest);
  const Vec unit(1.f), top(s.is_sigmoid ? 0.f : *std::max_element(scores.begin(), scores.end()));
  for (size_t i = 0; i < scores.size(); i += Vec::size()) {
    const Vec x = Vec::loadu(scores.data() + i);
    (s.is_sigmoid ? unit / (unit + x.neg().exp()) : (x - top).exp()).store(scores.data() + i);
  }
  if (s.is_sigmoid) return;
  const float sum = std::accumulate(scores.begin(), scores.begin() + s.experts, 0.f);
  for (float& each : scores) each /= sum;
}

// Moves the places of the `count` highest values to the front of `order`; of equal values the first place wins.
void highest(const float* values, int64_t size, int64_t count, std::vector<int64_t>& order) {
  std::iota(order.begin(), order.begin() + size, 0);
  std::partial_sort(order.begin(), order.begin() + count, order.begin() + size,
                    [&](int64_t a, int64_t b) { return values[a] > values[b] || (values[a] == values[b] && a < b); });
}

// Leaves only the experts of the groups with the highest sums of their `best` values.
void keep_groups(const Settings& s, RowBuffers& row) {
  const int64_t size = s.experts / s.groups;
  for (int64_t g = 0; g < s.groups; ++g) {
    highest(row.ranked.data() + g * size, size, s.best, row.order);
    row.sums[g] = 0.f;
    for (int64_t i = 0; i < s.best; ++i) row.sums[g] += row.ranked[g * size + row.order[i]];
  }
  highest(row.sums.data(), s.groups, s.kept_groups, row.order);
  for (int64_t i = s.kept_groups; i < s.groups; ++i)
    std::fill_n(row.ranked.begin() + row.order[i] * size, size, kLowest);
}

void route_row(const Settings& s, const float* logits, const float* correction, RowBuffers& row, int64_t* experts,
               float* weights) {
  score(s, logits, row.scores);
  for (int64_t i = 0; i < s.experts; ++i) row.ranked[i] = row.scores[i] + (correction ? correction[i] : 0.f);
  if (s.groups > 1) keep_groups(s, row);
  highest(row.ranked.data(), s.experts, s.chosen, row.order);
  std::sort(row.order.begin(), row.order.begin() + s.chosen);
  float sum = 1e-20f;
  for (int64_t i = 0; i < s.chosen; ++i) {
    experts[i] = row.order[i], weights[i] = row.scores[row.order[i]];
    sum += weights[i];
  }
  for (int64_t i = 0; i < s.chosen; ++i) weights[i] = (s.normalised ? weights[i] / sum : weights[i]) * s.scale;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> route(const at::Tensor& logits,
                                                     const std::optional<at::Tensor>& correction, int64_t experts,
                                                     int64_t chosen, bool is_sigmoid, bool normalised, double scale,
                                                     int64_t groups, int64_t kept_groups, int64_t best,
                                                     int64_t gates) {
  TORCH_CHECK(logits.scalar_type() == at::kFloat && logits.stride(1) == 1 && experts + gates <= logits.size(1) &&
                  chosen <= experts && experts % groups == 0 && best <= experts / groups && kept_groups <= groups,
              "route: shapes or dtypes do not match");
  const Settings s{experts, chosen, is_sigmoid, normalised, float(scale), groups, kept_groups, best};
  const int64_t rows = logits.size(0);
  auto indices = at::empty({rows, chosen}, logits.options().dtype(at::kLong));
  auto weights = at::empty({rows, chosen}, logits.options()), gated = at::empty({rows, gates}, logits.options());
  const float* added = correction ? correction->const_data_ptr<float>() : nullptr;
  at::parallel_for(0, rows, kRowsOfTask, [&](int64_t begin, int64_t end) {
    RowBuffers buffers(s);
    for (int64_t row = begin; row < end; ++row) {
      const float* at = logits.const_data_ptr<float>() + row * logits.stride(0);
      route_row(s, at, added, buffers, indices.data_ptr<int64_t>() + row * chosen,
                weights.data_ptr<float>() + row * chosen);
      for (int64_t i = 0; i < gates; ++i) gated.data_ptr<float>()[row * gates + i] = sigmoid(at[experts + i]);
    }
  });
  return {indices, weights, gated};
}

}  // namespace
}  // namespace ringkv

TORCH_LIBRARY_IMPL(ringkv, CPU, m) { m.impl("route", &ringkv::route); }
