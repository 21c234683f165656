// SPDX-License-Identifier: Apache-2.0
#include "rl/batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/math.h"
#include "graph/names.h"

namespace hocket::rl {

namespace names = graph::names;

namespace {

int64_t places_of(const Item& item) {
  return std::ssize(item.prompt->ids) + std::ssize(item.sample->tokens) - 1;
}

/// Numbers of micro-batches grow in steps of an eighth, so that updates of like sizes share a
/// program.
int64_t rounded_up(int64_t count, int64_t multiple) {
  int64_t step = multiple;
  while (step * 16 <= count) {
    step *= 2;
  }
  return round_up(count, step);
}

}  // namespace

int64_t most_micro_batches(int64_t samples, int64_t places, int64_t seq_len, int64_t rows_at_once,
                           int64_t multiple) {
  // A row of fewer samples than fit at their longest has room for one more: only the last is.
  const int64_t in_row = std::max<int64_t>(seq_len / std::max<int64_t>(places, 1), 1);
  const int64_t rows = ceil_div(samples, in_row);
  return rounded_up(std::max<int64_t>(ceil_div(rows, rows_at_once), 1), multiple);
}

Packing::Packing(std::span<const Item> items, int64_t seq_len, int64_t rows_at_once,
                 int64_t multiple)
    : items_(items.begin(), items.end()),
      seq_len_(seq_len),
      rows_at_once_(rows_at_once),
      packed_at_(items.size()) {
  std::vector<size_t> order(items_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return places_of(items_[a]) > places_of(items_[b]); });
  std::vector<int64_t> used;            // of every row
  std::multimap<int64_t, size_t> free;  // rows by the places that they have left
  for (const size_t i : order) {
    const int64_t need = places_of(items_[i]);
    if (need > seq_len) {
      fail("rl", "a prompt and its answer take {} places; a row has train.seq_len {}", need,
           seq_len);
    }
    tokens_ += need;
    auto row = free.lower_bound(need);
    if (row == free.end()) {
      row = free.emplace(seq_len, used.size());
      used.push_back(0);
    }
    const size_t r = row->second;
    packed_at_[i] = {static_cast<int64_t>(r), used[r]};
    used[r] += need;
    free.erase(row);
    free.emplace(seq_len - used[r], r);
  }
  micro_batches_ =
      rounded_up(std::max<int64_t>(ceil_div(std::ssize(used), rows_at_once), 1), multiple);
  // Rows in the order of their tokens, distributed round-robin over micro-batches.
  std::vector<size_t> rows(used.size());
  std::iota(rows.begin(), rows.end(), size_t{0});
  std::stable_sort(rows.begin(), rows.end(), [&](size_t a, size_t b) { return used[a] > used[b]; });
  std::vector<int64_t> to(used.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto n = static_cast<int64_t>(i);
    to[rows[i]] = n % micro_batches_ * rows_at_once + n / micro_batches_;
  }
  for (PackedAt& place : packed_at_) {
    place.row = to[static_cast<size_t>(place.row)];
  }
}

engine::Batch Packing::batch() const {
  engine::Batch batch(rows(), seq_len_);
  for (size_t i = 0; i < items_.size(); ++i) {
    const std::vector<int32_t>& prompt = items_[i].prompt->ids;
    const std::vector<int32_t>& sampled = items_[i].sample->tokens;
    const data::SequenceOut row = batch.row(packed_at_[i].row);
    auto at = static_cast<size_t>(packed_at_[i].begin);
    for (int64_t p = 0; p < places_of(items_[i]); ++p, ++at) {
      const auto n = static_cast<size_t>(p);
      row.tokens[at] = n < prompt.size() ? prompt[n] : sampled[n - prompt.size()];
      row.targets[at] =
          n + 1 < prompt.size() ? data::kIgnoredTarget : sampled[n + 1 - prompt.size()];
      row.positions[at] = static_cast<int32_t>(p);
    }
  }
  return batch;
}

size_t Packing::first_target(size_t i) const {
  return static_cast<size_t>(packed_at_[i].row * seq_len_ + packed_at_[i].begin +
                             std::ssize(items_[i].prompt->ids) - 1);
}

template <class Get>
std::vector<double> Packing::spread(const Get& values) const {
  std::vector<double> all(static_cast<size_t>(rows() * seq_len_), 0);
  for (size_t i = 0; i < items_.size(); ++i) {
    const std::vector<double>& of_item = values(*items_[i].inputs);
    std::copy(of_item.begin(), of_item.end(), all.begin() + static_cast<int64_t>(first_target(i)));
  }
  return all;
}

void Packing::add_inputs(engine::Batch& batch, int64_t samples_per_row) const {
  batch.more.keep(names::kOldLogprobs,
                  spread([](const LossInputs& inputs) -> const auto& { return inputs.old; }));
  batch.more.keep(names::kReferenceOfTokens,
                  spread([](const LossInputs& inputs) -> const auto& { return inputs.reference; }));
  batch.more.keep(names::kAdvantages, spread([](const LossInputs& inputs) {
                    std::vector<double> advantages(inputs.advantages.size());
                    for (size_t t = 0; t < advantages.size(); ++t) {
                      advantages[t] = inputs.loss_advantage(t);
                    }
                    return advantages;
                  }));
  batch.more.keep(names::kTokenWeights,
                  spread([](const LossInputs& inputs) -> const auto& { return inputs.weights; }));
  if (samples_per_row > 0) {
    add_samples(batch, samples_per_row);
  }
}

void Packing::add_routes(engine::Batch& batch, const models::ModelConfig& model) const {
  const int64_t k = model.top_k;
  const auto width = k * std::count(model.moe_layer.begin(), model.moe_layer.end(), true);
  int64_t before = 0;  // experts of earlier layers
  for (size_t layer = 0; layer < model.moe_layer.size(); ++layer) {
    if (!model.moe_layer[layer]) continue;
    std::vector<int32_t> routes(static_cast<size_t>(rows() * seq_len_ * k));
    for (size_t i = 0; i < routes.size(); ++i) {
      routes[i] = static_cast<int32_t>(i) % static_cast<int32_t>(k);  // of padding
    }
    for (size_t i = 0; i < items_.size(); ++i) {
      const std::vector<int32_t>& from = items_[i].sample->routes;
      HOCKET_CHECK(std::ssize(from) == places_of(items_[i]) * width,
                   "{} experts of a sample of {} tokens, expected {} a token", from.size(),
                   places_of(items_[i]), width);
      const int64_t begin = packed_at_[i].row * seq_len_ + packed_at_[i].begin;
      for (int64_t p = 0; p < places_of(items_[i]); ++p) {
        std::copy_n(from.begin() + p * width + before, k, routes.begin() + (begin + p) * k);
      }
    }
    batch.more.keep(fmt::format("{}{}", names::kRoutesOf, layer), std::move(routes));
    before += k;
  }
}

void Packing::add_critic_inputs(engine::Batch& batch) const {
  batch.more.keep(names::kOldValues,
                  spread([](const LossInputs& inputs) -> const auto& { return inputs.values; }));
  batch.more.keep(names::kReturns,
                  spread([](const LossInputs& inputs) -> const auto& { return inputs.returns; }));
  batch.more.keep(names::kTokenWeights,
                  spread([](const LossInputs& inputs) -> const auto& { return inputs.weights; }));
}

/// Adds the samples. Their advantage is that of their tokens, which all have the same; their weight
/// is the tokens' sum.
void Packing::add_samples(engine::Batch& batch, int64_t samples_per_row) const {
  const auto size = static_cast<size_t>(rows() * samples_per_row);
  std::vector<double> old(size, 0), advantages(size, 0), weights(size, 0), lengths(size, 1);
  std::vector<int32_t> of_token(static_cast<size_t>(rows() * seq_len_), -1);
  std::vector<int64_t> in_row(static_cast<size_t>(rows()), 0);
  for (size_t i = 0; i < items_.size(); ++i) {
    const LossInputs& inputs = *items_[i].inputs;
    const int64_t row = packed_at_[i].row;
    const int64_t number = in_row[static_cast<size_t>(row)]++;
    HOCKET_CHECK(number < samples_per_row, "a row has more than {} samples", samples_per_row);
    const auto at = static_cast<size_t>(row * samples_per_row + number);
    const size_t first = first_target(i);
    int64_t length = 0;
    for (size_t t = 0; t < inputs.old.size(); ++t) {
      if (inputs.weights[t] == 0) continue;  // left out
      ++length;
      old[at] += inputs.old[t];
      weights[at] += inputs.weights[t];
      of_token[first + t] = static_cast<int32_t>(row % rows_at_once_ * samples_per_row + number);
    }
    advantages[at] = inputs.advantages.empty() ? 0 : inputs.loss_advantage(0);
    lengths[at] = static_cast<double>(std::max<int64_t>(length, 1));
  }
  batch.more.keep(names::kAnswers, std::move(of_token));
  batch.more.keep(names::kSampleOldLogprobs, std::move(old));
  batch.more.keep(names::kSampleAdvantages, std::move(advantages));
  batch.more.keep(names::kSampleWeights, std::move(weights));
  batch.more.keep(names::kSampleLengths, std::move(lengths));
}

std::vector<std::vector<double>> Packing::by_item(std::span<const double> values) const {
  std::vector<std::vector<double>> lists;
  for (size_t i = 0; i < items_.size(); ++i) {
    const auto begin = values.begin() + static_cast<int64_t>(first_target(i));
    lists.emplace_back(begin, begin + std::ssize(items_[i].sample->tokens));
  }
  return lists;
}

}  // namespace hocket::rl
