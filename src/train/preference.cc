// SPDX-License-Identifier: Apache-2.0
#include "train/preference.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "graph/names.h"
#include "models/config.h"
#include "run/describe.h"
#include "train/weight_files.h"

namespace hocket::train {

namespace names = graph::names;

namespace {

constexpr int32_t kChosen = 1, kRejected = -1;

}  // namespace

AnswerPlaces::AnswerPlaces(const engine::Run& run, int64_t rows, int64_t micro_batches)
    : config_(run.config),
      rows_(rows),
      micro_batches_(micro_batches),
      per_row_(engine::answers_per_sequence(run)) {
  HOCKET_CHECK(config_.prefers() && rows % micro_batches == 0, "{} rows in {} micro-batches", rows,
               micro_batches);
}

int64_t AnswerPlaces::place_in_row(int32_t answer) const {
  const bool pairs = config_.objective == engine::Objective::dpo;
  const int64_t place = pairs ? answer : answer / 2;
  if (place >= per_row_) {
    fail("train", "a sequence has more than {}; expected at most preference.answers_per_sequence",
         counted(config_.preference.answers_per_sequence, pairs ? "pair" : "answer"));
  }
  return place;
}

void AnswerPlaces::number(engine::Batch& batch) {
  const engine::PreferenceSection& preference = config_.preference;
  const auto n = static_cast<size_t>(size());
  weights_.assign(n, 0);
  lengths_.assign(n, 1);
  sides_.assign(n, 0);
  std::vector<int32_t> answers(batch.answers.size(), -1);
  const int64_t rows_at_once = rows_ / micro_batches_;
  std::vector<double> tokens(n, 0);
  for (int64_t row = 0; row < rows_; ++row) {
    for (int64_t i = row * batch.seq_len; i < (row + 1) * batch.seq_len; ++i) {
      const int32_t answer = batch.answers[static_cast<size_t>(i)];
      if (answer == -1) continue;
      const int64_t place = place_in_row(answer);
      answers[static_cast<size_t>(i)] = static_cast<int32_t>(row % rows_at_once * per_row_ + place);
      const auto at = static_cast<size_t>(row * per_row_ + place);
      tokens[at] += 1;
      sides_[at] = answer % 2 == 0 ? kChosen : kRejected;
    }
  }
  const bool pairs = config_.objective == engine::Objective::dpo;
  for (size_t at = 0; at < n; ++at) {
    if (sides_[at] == 0) continue;
    lengths_[at] = tokens[at];
    if (pairs && sides_[at ^ 1] == 0) {
      fail("train", "a pair of answers lacks one; expected both in one sequence");
    }
    if (pairs) {
      weights_[at] = 1;
    } else {
      weights_[at] =
          sides_[at] == kChosen ? preference.desirable_weight : preference.undesirable_weight;
    }
  }
  batch.more.keep(names::kAnswers, std::move(answers));
  batch.more.keep(names::kAnswerWeights, weights_);
  batch.more.keep(names::kAnswerLengths, lengths_);
  batch.more.keep(names::kAnswerSides, sides_);
}

int64_t AnswerPlaces::count(const std::vector<bool>& of_rows) const {
  int64_t count = 0;
  const bool pairs = config_.objective == engine::Objective::dpo;
  for (size_t at = 0; at < sides_.size(); ++at) {
    const bool counts = of_rows.empty() || of_rows[at / static_cast<size_t>(per_row_)];
    const bool one =
        pairs ? sides_[at] == kChosen : sides_[at] == kChosen || sides_[at] == kRejected;
    count += counts && one ? 1 : 0;
  }
  return count;
}

void PreferenceStats::add(const PreferenceInputs& inputs, const AnswerOutputs& outputs) {
  const AnswerPlaces& places = inputs.places;
  const std::vector<double>&policy = outputs.logprobs, &reference = inputs.reference;
  divergence_ = inputs.divergence;
  const double beta = config_.preference.beta;
  const bool pairs = config_.objective == engine::Objective::dpo;
  for (size_t at = 0; at < places.sides().size(); ++at) {
    const int32_t side = places.sides()[at];
    const double ratio = policy[at] - reference[at];
    if (side == 0) continue;
    Sum& sum = side == kChosen ? chosen_ : rejected_;
    sum.logps += policy[at];
    sum.rewards += beta * ratio;
    sum.logits += outputs.logits[at];
    sum.entropies += outputs.entropies[at];
    sum.misses += outputs.misses[at];
    sum.tokens += places.lengths()[at];
    ++sum.count;
    if (pairs && side == kChosen) {
      const double margin = beta * (ratio - (policy[at + 1] - reference[at + 1]));
      margins_ += margin;
      right_ += margin > 0 ? 1 : 0;
    }
  }
}

void PreferenceStats::Sum::put(const char* side, Values* values) const {
  if (count == 0) return;
  const auto n = static_cast<double>(count);
  values->push_back({fmt::format("rewards/{}", side), rewards / n});
  values->push_back({fmt::format("logps/{}", side), logps / n});
  values->push_back({fmt::format("logits/{}", side), logits / tokens});
}

Values PreferenceStats::means() const {
  Values values;
  chosen_.put("chosen", &values);
  rejected_.put("rejected", &values);
  if (config_.objective == engine::Objective::dpo && chosen_.count > 0) {
    const auto pairs = static_cast<double>(chosen_.count);
    values.push_back({"rewards/accuracies", static_cast<double>(right_) / pairs});
    values.push_back({"rewards/margins", margins_ / pairs});
  } else if (chosen_.count > 0 && rejected_.count > 0) {
    values.push_back({"rewards/margins", chosen_.mean_reward() - rejected_.mean_reward()});
  }
  if (divergence_) {
    values.push_back({"kl", *divergence_});
  }
  if (const double tokens = chosen_.tokens + rejected_.tokens; tokens > 0) {
    values.push_back({"entropy", (chosen_.entropies + rejected_.entropies) / tokens});
  }
  if (chosen_.tokens > 0) {
    values.push_back({"mean_token_accuracy", 1 - chosen_.misses / chosen_.tokens});
  }
  return values;
}

Preferences::Preferences(const engine::Run& run, engine::Programs& policy)
    : run_(run),
      policy_(policy),
      readers_(policy),
      reference_(run, run.config.preference.reference, policy, readers_) {}

const engine::Compiled* Preferences::compiled() {
  const bool lasts = !reference_.shares_store() && !run_.config.preference.precompute_ref_log_probs;
  return !lasts ? nullptr
                : &reference_.compiled({.num_micro_batches = run_.plan.num_micro_batches});
}

void Preferences::load() { reference_.load({.num_micro_batches = run_.plan.num_micro_batches}); }

namespace {

/// Returns an output of every place in the session's last step.
std::vector<double> of_places(const engine::Session& session, const char* name) {
  std::vector<double> all;
  for (int32_t m = 0; m < session.program().num_micro_batches; ++m) {
    const std::vector<double> some = session.collect_as<double>(name, m);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::vector<double> run_on(engine::Session& session, const engine::Batch& batch) {
  session.feed(batch);
  session.step();
  return of_places(session, names::kAnswerLogprobs);
}

}  // namespace

std::vector<double> Preferences::of_reference(const engine::Batch& batch, int64_t micro_batches) {
  return run_on(reference_.session({.num_micro_batches = micro_batches}), batch);
}

std::vector<double> Preferences::of_policy(const engine::Batch& batch, int64_t micro_batches) {
  return run_on(readers_.now(engine::logprobs(run_, {.num_micro_batches = micro_batches})), batch);
}

PreferenceInputs Preferences::prepare(engine::Batch& batch, std::optional<double> divergence,
                                      int64_t micro_batches, const RowNumbers& numbers) {
  PreferenceInputs inputs{AnswerPlaces(run_, batch.rows, micro_batches), {}, divergence};
  inputs.places.number(batch);
  inputs.reference = values_of(batch, micro_batches, numbers.table, numbers.rows);
  batch.more.keep(names::kReference, inputs.reference);
  if (divergence) {
    batch.more.keep(names::kDivergence,
                    std::vector<double>(static_cast<size_t>(micro_batches), *divergence));
  }
  return inputs;
}

Divergence Preferences::divergence_of(engine::Batch& mismatched, int64_t micro_batches,
                                      const RowNumbers& numbers) {
  AnswerPlaces places(run_, mismatched.rows, micro_batches);
  places.number(mismatched);
  const std::vector<double> reference =
      values_of(mismatched, micro_batches, numbers.mismatched(), numbers.rows);
  const std::vector<double> policy = of_policy(mismatched, micro_batches);
  Divergence divergence;
  for (size_t at = 0; at < policy.size(); ++at) {
    if (places.sides()[at] == 0) continue;
    divergence.sum += policy[at] - reference[at];
    ++divergence.answers;
  }
  return divergence;
}

std::vector<double> Preferences::values_of(const engine::Batch& batch, int64_t micro_batches,
                                           const std::string& table,
                                           const std::vector<int64_t>& rows) {
  return stored_ ? stored_->of(table, rows) : of_reference(batch, micro_batches);
}

/// Names all that the reference's values depend on beside the rows.
std::string Preferences::identity() const {
  Hasher hasher;
  const engine::Run& frozen = reference_.run();
  hasher.add(reference_.described())
      .add(frozen.config.model.dtype)
      .add(engine::describe(frozen.model));
  hasher.add(models::values_of(frozen.model).dump());
  hasher.add(static_cast<uint64_t>(run_.config.train.seed));
  for (const std::string& file : weight_files(frozen.weights, frozen.adapter)) {
    hasher.add(file).add("\n");
  }
  return hasher.finish().hex();
}

void Preferences::begin_computing(const std::string& path, const std::vector<std::string>& tables) {
  comm::Processes& processes = policy_.ranks().processes();
  const bool first = processes.index() == 0;
  // Times of files differ between hosts: the first process says which reference it is.
  const std::string key = processes.broadcast(first ? identity() : "");
  stored_in_ = path;
  written_ns_ = now_ns();
  stored_ = std::make_unique<ReferenceLogprobs>(key, AnswerPlaces(run_, 1, 1).per_micro_batch());
  const std::string bytes = processes.broadcast(first && file_exists(path) ? read_file(path) : "");
  if (bytes.empty()) return;
  const bool taken = stored_->take(bytes, path);
  const bool of_others = taken && stored_->keep_only(tables);
  if (first && (!taken || of_others)) {
    fmt::print("{} is of {}: computed again\n", path,
               taken ? "other rows (data, masks, packing or order)" : "another reference");
  }
}

bool Preferences::knows(const RowNumbers& numbers, bool mismatched) const {
  return stored_->has(numbers.table, numbers.rows) &&
         (!mismatched || stored_->has(numbers.mismatched(), numbers.rows));
}

void Preferences::compute_table(engine::Batch& batch, int64_t micro_batches,
                                const std::string& table, const std::vector<int64_t>& rows) {
  if (stored_->has(table, rows)) return;
  load();
  AnswerPlaces(run_, batch.rows, micro_batches).number(batch);
  stored_->put(table, rows, of_reference(batch, micro_batches));
  new_values_ = true;
}

void Preferences::compute(engine::Batch& batch, engine::Batch* mismatched, int64_t micro_batches,
                          const RowNumbers& numbers) {
  compute_table(batch, micro_batches, numbers.table, numbers.rows);
  if (mismatched) {
    compute_table(*mismatched, micro_batches, numbers.mismatched(), numbers.rows);
  }
  const double minutes = run_.config.train.save_minutes;
  if (minutes > 0 && seconds_since(written_ns_) >= minutes * 60) {
    write_values();
  }
}

void Preferences::write_values() {
  if (new_values_ && policy_.ranks().processes().index() == 0) {
    write_file_atomic(stored_in_, stored_->to_bytes());
  }
  new_values_ = false;
  written_ns_ = now_ns();
}

void Preferences::end_computing() {
  write_values();
  readers_.clear();
  reference_.release();
}

AnswerOutputs answer_outputs(const engine::Session& session) {
  return {of_places(session, names::kAnswerLogprobs), of_places(session, names::kAnswerLogits),
          of_places(session, names::kAnswerEntropies), of_places(session, names::kAnswerMisses)};
}

}  // namespace hocket::train
