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

/// Tokens of a prompt before its last one.
int64_t before_last(const Item& item) { return std::ssize(item.prompt->ids) - 1; }
int64_t sampled(const Item& item) { return std::ssize(item.sample->tokens); }
int64_t places_of(const Item& item) { return before_last(item) + sampled(item); }

/// Numbers of micro-batches, and of their rows, grow in steps of an eighth, so that updates of like
/// sizes share a program.
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

RowLimits RowLimits::of(const engine::Run& run, int64_t multiple) {
  const parallel::Plan& plan = run.plan;
  return {.seq_len = run.config.train.seq_len,
          .ranks = plan.dp,
          .most = plan.sequences(),
          .fewer = plan.dp_samples.empty(),
          .multiple = multiple,
          .shares = plan.cp == 1};
}

/// Rows by the places that they have left.
class Packing::Rows {
 public:
  explicit Rows(int64_t seq_len) : seq_len_(seq_len) {}

  const std::vector<int64_t>& used() const { return used_; }
  /// Returns the fullest row that has room; -1: none has.
  int64_t fullest(int64_t room) const {
    const auto at = free_.lower_bound(room);
    return at == free_.end() ? -1 : at->second;
  }
  int64_t emptiest() const { return free_.empty() ? -1 : free_.rbegin()->second; }
  int64_t room(int64_t row) const { return seq_len_ - used_[static_cast<size_t>(row)]; }
  int64_t add() {
    const int64_t row = std::ssize(used_);
    used_.push_back(0);
    free_.emplace(seq_len_, row);
    return row;
  }
  /// Takes places of a row; returns the first.
  int64_t take(int64_t row, int64_t places) {
    const auto [begin, end] = free_.equal_range(room(row));
    free_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == row; }));
    int64_t& used = used_[static_cast<size_t>(row)];
    const int64_t at = used;
    used += places;
    free_.emplace(room(row), row);
    return at;
  }

 private:
  const int64_t seq_len_;
  std::vector<int64_t> used_;
  std::multimap<int64_t, int64_t> free_;
};

Packing::Packing(std::span<const Item> items, const RowLimits& limits)
    : items_(items.begin(), items.end()), limits_(limits), packed_at_(items.size()) {
  struct Group {
    std::vector<size_t> samples;  ///< the longest first
    int64_t places = 0;
  };
  std::vector<Group> groups;
  for (size_t i = 0; i < items_.size(); ++i) {
    if (const int64_t need = places_of(items_[i]); need > limits.seq_len) {
      fail("rl", "a prompt and its answer take {} places; a row has train.seq_len {}", need,
           limits.seq_len);
    }
    if (i == 0 || !limits.shares || items_[i].prompt != items_[i - 1].prompt) {
      groups.push_back({{}, before_last(items_[i])});
    }
    groups.back().samples.push_back(i);
    groups.back().places += sampled(items_[i]);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.places > b.places; });
  Rows rows(limits.seq_len);
  for (Group& group : groups) {
    std::stable_sort(group.samples.begin(), group.samples.end(),
                     [&](size_t a, size_t b) { return sampled(items_[a]) > sampled(items_[b]); });
    place(rows, group.samples);
  }
  distribute(rows);
}

/// Places the samples of a prompt, the longest first.
void Packing::place(Rows& rows, std::span<const size_t> samples) {
  const int64_t before = before_last(items_[samples.front()]);
  std::vector<size_t> left(samples.begin(), samples.end());
  while (!left.empty()) {
    // The samples that a row with this room takes; their places.
    const auto taken = [&](int64_t room, std::vector<size_t>* rest) {
      int64_t places = 0;
      std::vector<size_t> some;
      for (const size_t i : left) {
        const bool fits = before + places + sampled(items_[i]) <= room;
        places += fits ? sampled(items_[i]) : 0;
        (fits ? some : *rest).push_back(i);
      }
      return std::pair(std::move(some), places);
    };
    int64_t all = before;
    for (const size_t i : left) {
      all += sampled(items_[i]);
    }
    int64_t row = rows.fullest(all);
    if (row < 0 && rows.emptiest() >= 0) {
      std::vector<size_t> rest;
      const auto [some, places] = taken(rows.room(rows.emptiest()), &rest);
      row = !some.empty() && places >= before ? rows.emptiest() : -1;
    }
    if (row < 0) {
      row = rows.add();
    }
    std::vector<size_t> rest;
    const auto [some, places] = taken(rows.room(row), &rest);
    int64_t at = rows.take(row, before + places) + before, standing = before;
    for (const size_t i : some) {
      packed_at_[i] = {row, at, standing};
      at += sampled(items_[i]);
      standing = 0;
    }
    tokens_ += before + places;
    left = std::move(rest);
  }
}

/// Distributes rows, in the order of their tokens, round-robin over micro-batches.
void Packing::distribute(const Rows& rows) {
  const std::vector<int64_t>& used = rows.used();
  const int64_t count = std::max<int64_t>(std::ssize(used), 1);
  micro_batches_ = rounded_up(ceil_div(count, limits_.most), limits_.multiple);
  rows_at_once_ = limits_.most;
  if (limits_.fewer) {
    const int64_t of_rank = rounded_up(ceil_div(count, micro_batches_ * limits_.ranks), 1);
    rows_at_once_ = std::min(limits_.most, of_rank * limits_.ranks);
  }
  std::vector<size_t> order(used.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return used[a] > used[b]; });
  std::vector<int64_t> to(used.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const auto n = static_cast<int64_t>(i);
    to[order[i]] = n % micro_batches_ * rows_at_once_ + n / micro_batches_;
  }
  for (PackedAt& at : packed_at_) {
    at.row = to[static_cast<size_t>(at.row)];
  }
}

engine::Batch Packing::batch() const {
  engine::Batch batch(rows(), limits_.seq_len);
  for (size_t i = 0; i < items_.size(); ++i) {
    const std::vector<int32_t>& prompt = items_[i].prompt->ids;
    const std::vector<int32_t>& answer = items_[i].sample->tokens;
    const data::SequenceOut row = batch.row(packed_at_[i].row);
    const int64_t last = before_last(items_[i]), first = last - packed_at_[i].before;
    auto at = static_cast<size_t>(packed_at_[i].begin - packed_at_[i].before);
    for (int64_t p = first; p < places_of(items_[i]); ++p, ++at) {
      row.tokens[at] =
          p <= last ? prompt[static_cast<size_t>(p)] : answer[static_cast<size_t>(p - last - 1)];
      row.targets[at] = p < last ? data::kIgnoredTarget : answer[static_cast<size_t>(p - last)];
      row.positions[at] = static_cast<int32_t>(p);
    }
  }
  return batch;
}

template <class Get>
std::vector<double> Packing::spread(const Get& values) const {
  std::vector<double> all(static_cast<size_t>(rows() * limits_.seq_len), 0);
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
    std::vector<int32_t> routes(static_cast<size_t>(rows() * limits_.seq_len * k));
    for (size_t i = 0; i < routes.size(); ++i) {
      routes[i] = static_cast<int32_t>(i) % static_cast<int32_t>(k);  // of padding
    }
    for (size_t i = 0; i < items_.size(); ++i) {
      const PackedAt& to = packed_at_[i];
      const std::vector<int32_t>& from = items_[i].sample->routes;
      HOCKET_CHECK(std::ssize(from) == places_of(items_[i]) * width,
                   "{} experts of a sample of {} tokens, expected {} a token", from.size(),
                   places_of(items_[i]), width);
      const int64_t last = before_last(items_[i]);
      int64_t at = to.row * limits_.seq_len + to.begin - to.before;
      for (int64_t p = last - to.before; p < places_of(items_[i]); ++p, ++at) {
        std::copy_n(from.begin() + p * width + before, k, routes.begin() + at * k);
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
  std::vector<int32_t> of_token(static_cast<size_t>(rows() * limits_.seq_len), -1);
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
