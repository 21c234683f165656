// SPDX-License-Identifier: Apache-2.0
#include "train/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/math.h"
#include "base/text.h"
#include "check/check.h"
#include "comm/run_on_all.h"
#include "engine/batch.h"
#include "engine/params.h"
#include "graph/elements.h"
#include "graph/names.h"
#include "models/rope_length.h"
#include "parallel/schedules/schedule.h"
#include "train/preference.h"
#include "train/token_metrics.h"

namespace hocket::train {

std::string HeldOut::read_text() const {
  const char* const what = name.empty() ? "held-out " : "";
  if (!complete()) return fmt::format("{} of {} {}sequences", sequences, of, what);
  return name.empty() ? "all held-out files" : "all " + counted(of, "sequence");
}

const std::string& HeldOut::title() const {
  static const std::string own = "held-out";
  return name.empty() ? own : name;
}

std::vector<int64_t> chosen_of(const HeldOutSet& set, int64_t sequences) {
  const int64_t all = set.rows->size();
  return set.rows->sample(sequences > 0 ? std::min(sequences, all) : all);
}

std::string fingerprint_of(const HeldOutSet& set, int64_t sequences) {
  Hasher hasher;
  return hasher.add(set.fingerprint).add(std::ssize(chosen_of(set, sequences))).finish().hex();
}

std::string table_of(const HeldOutSet& set) {
  return fmt::format("{} {}", set.name, set.fingerprint);
}

void for_each_batch(const HeldOutSet& set, const std::vector<int64_t>& which,
                    const engine::Compiled& program, bool answers,
                    const std::function<void(HeldOutBatch&)>& take) {
  for (size_t next = 0; next < which.size();) {
    HeldOutBatch of{engine::empty_batch(program, set.rows->seq_len()), std::nullopt, {}};
    if (answers) {
      of.batch.add_answers();
    }
    if (set.mismatched) {
      of.mismatched = of.batch;
    }
    of.numbers.table = table_of(set);
    of.numbers.rows.assign(static_cast<size_t>(of.batch.rows), -1);
    for (int64_t r = 0; r < of.batch.rows && next < which.size(); ++r, ++next) {
      of.bytes += set.rows->fill(which[next], of.batch.row(r));
      of.numbers.rows[static_cast<size_t>(r)] = which[next];
      if (of.mismatched) {
        set.mismatched->fill(which[next], of.mismatched->row(r));
      }
    }
    take(of);
  }
}

struct Evaluator::Impl {
  const engine::Run& run;
  engine::ParameterReader reader;
  std::vector<HeldOutSet> sets;
  Preferences* const preferences;

  HeldOut evaluate(const HeldOutSet& set, const std::vector<int64_t>& which,
                   const std::function<void(int64_t)>& progress);
  std::optional<double> divergence_of(const HeldOutSet& set, const std::vector<int64_t>& which);
};

Evaluator::Evaluator(const engine::Run& run, const TrainingData& data, engine::Programs& programs,
                     const engine::Compiled* trained, Preferences* preferences) {
  if (!data.holds_out()) fail("eval", "{} has no validation split", data.name());
  impl_.reset(
      new Impl{run, {programs, engine::evaluation(run), trained}, data.held_out(), preferences});
}

Evaluator::~Evaluator() = default;

std::vector<HeldOut> Evaluator::run(int64_t sequences,
                                    const std::function<void(int64_t, int64_t)>& progress) {
  impl_->reader.update();
  std::vector<std::vector<int64_t>> which;
  int64_t total = 0, done = 0;
  for (const HeldOutSet& set : impl_->sets) {
    which.push_back(chosen_of(set, sequences));
    total += std::ssize(which.back());
  }
  std::vector<HeldOut> results;
  for (size_t i = 0; i < which.size(); ++i) {
    results.push_back(impl_->evaluate(impl_->sets[i], which[i], [&](int64_t of_set) {
      if (progress) {
        progress(done + of_set, total);
      }
    }));
    done += std::ssize(which[i]);
  }
  return results;
}

/// Returns the divergence on all these sequences, for kto.
std::optional<double> Evaluator::Impl::divergence_of(const HeldOutSet& set,
                                                     const std::vector<int64_t>& which) {
  if (!preferences || !set.mismatched) return std::nullopt;
  const engine::Compiled& program = reader.session().compiled();
  Divergence divergence;
  for_each_batch(set, which, program, true, [&](HeldOutBatch& of) {
    divergence.add(
        preferences->divergence_of(*of.mismatched, program.program.num_micro_batches, of.numbers));
  });
  return divergence.value();
}

/// Sequences of one set, a batch after the other.
HeldOut Evaluator::Impl::evaluate(const HeldOutSet& set, const std::vector<int64_t>& which,
                                  const std::function<void(int64_t)>& progress) {
  engine::Session& session = reader.session();
  HeldOut result;
  result.name = set.name;
  result.sequences = std::ssize(which);
  result.of = set.rows->size();
  PreferenceStats stats(run.config);
  TokenMetrics of_tokens;
  const std::optional<double> divergence = divergence_of(set, which);
  int64_t done = 0;
  const auto run_batch = [&](HeldOutBatch& of) {
    result.bytes += of.bytes;
    std::optional<PreferenceInputs> inputs;
    if (preferences) {
      inputs.emplace(preferences->prepare(of.batch, divergence, session.program().num_micro_batches,
                                          of.numbers));
    }
    session.feed(of.batch);
    session.step();
    result.targets += inputs ? inputs->places.count() : of.batch.num_targets();
    if (inputs) {
      stats.add(*inputs, answer_outputs(session));
    } else {
      of_tokens.add(session);
    }
    result.nats += session.loss();
    done = std::min(done + of.batch.rows, result.sequences);
    progress(done);
  };
  for_each_batch(set, which, session.compiled(), preferences != nullptr, run_batch);
  if (preferences) {
    result.bytes = 0;
    result.values = stats.means();
  } else {
    result.values = of_tokens.means(static_cast<double>(result.targets));
  }
  return result;
}

std::vector<std::vector<int32_t>> read_ids(const std::string& path, int64_t vocab_size) {
  nlohmann::json json = parse_json(read_file(path), path);
  if (!json.is_array() || json.empty()) {
    fail(path, "expected a non-empty list of token lists, e.g. [[1, 2], [3]]");
  }
  std::vector<std::vector<int32_t>> lists;
  for (size_t i = 0; i < json.size(); ++i) {
    if (!json[i].is_array() || json[i].empty()) {
      fail(path, "entry {} is {}; expected a non-empty list of token ids", i,
           json[i].dump().substr(0, 40));
    }
    std::vector<int32_t> list;
    for (const auto& id : json[i]) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size) {
        fail(path, "entry {} has {}; expected token ids of 0 to {}", i, id.dump().substr(0, 40),
             vocab_size - 1);
      }
      list.push_back(id.get<int32_t>());
    }
    lists.push_back(std::move(list));
  }
  return lists;
}

namespace {

/// Returns the number of lists per rank and step: one, or enough that each expert rank has one.
int64_t lists_per_rank(const parallel::Plan& plan) {
  return ceil_div(std::max(plan.dp, plan.expert_ranks), plan.dp);
}

int64_t lists_at_once(const parallel::Plan& plan) { return plan.dp * lists_per_rank(plan); }

/// Returns the common row length: the longest list, padded to a multiple for the ranks.
int64_t row_length(const engine::Run& run, const std::vector<std::vector<int32_t>>& ids) {
  int64_t longest = 1;
  for (const auto& list : ids) {
    longest = std::max(longest, static_cast<int64_t>(list.size()));
  }
  return round_up(longest, run.plan.cp);
}

/// Batch of these lists as rows of a length, padded.
engine::Batch pack(std::span<const std::vector<int32_t>> ids, int64_t rows, int64_t length) {
  engine::Batch batch(rows, length);
  for (size_t i = 0; i < ids.size(); ++i) {
    const data::SequenceOut row = batch.row(static_cast<int64_t>(i));
    for (size_t k = 0; k < ids[i].size(); ++k) {
      row.tokens[k] = ids[i][k];
      row.positions[k] = static_cast<int32_t>(k);
      if (k + 1 < ids[i].size()) {
        row.targets[k] = ids[i][k + 1];
      }
    }
  }
  return batch;
}

/// Packs all lists, in a number of micro-batches that a schedule with a backward pass takes.
engine::Batch pack_all(const engine::Run& run, const std::vector<std::vector<int32_t>>& ids) {
  const int64_t at_once = lists_at_once(run.plan);
  const int64_t micro_batches = parallel::fitting_micro_batches(
      run.plan.pp_schedule, static_cast<int>(run.plan.pp), static_cast<int>(run.plan.pp_chunks),
      static_cast<int>(ceil_div(static_cast<int64_t>(ids.size()), at_once)));
  return pack(ids, micro_batches * at_once, row_length(run, ids));
}

/// Micro-batches of a step that goes forward only: at most a few for every stage of a pipeline,
/// however many lists there are. A program with one for each would grow with their number.
int64_t forward_micro_batches(const parallel::Plan& plan, int64_t lists) {
  constexpr int64_t kPerStage = 4;
  const int64_t all = ceil_div(lists, lists_at_once(plan));
  const int64_t steps = ceil_div(all, kPerStage * plan.pp);
  return ceil_div(all, steps);
}

engine::Sizes sizes_for(const engine::Run& run, const engine::Batch& batch) {
  return {lists_per_rank(run.plan), batch.seq_len, batch.rows / lists_at_once(run.plan)};
}

}  // namespace

namespace {

/// Returns the numbers of the lists whose rotary frequencies are equal, group by group: those of a
/// graph follow its longest list.
std::vector<std::vector<size_t>> groups_of(const engine::Run& run,
                                           const std::vector<std::vector<int32_t>>& ids) {
  std::map<std::array<int64_t, 2>, std::vector<size_t>> groups;
  for (size_t i = 0; i < ids.size(); ++i) {
    groups[models::rope_length(run.model, std::ssize(ids[i]))].push_back(i);
  }
  std::vector<std::vector<size_t>> result;
  for (auto& [length, numbers] : groups) {
    result.push_back(std::move(numbers));
  }
  return result;
}

std::vector<std::vector<int32_t>> chosen(const std::vector<std::vector<int32_t>>& ids,
                                         const std::vector<size_t>& numbers) {
  std::vector<std::vector<int32_t>> lists;
  for (const size_t number : numbers) {
    lists.push_back(ids[number]);
  }
  return lists;
}

/// Calls `run_group` with the lists of each group and a function that gives their numbers in `ids`.
void for_each_group(const engine::Run& run, const std::vector<std::vector<int32_t>>& ids,
                    const std::function<void(const std::vector<std::vector<int32_t>>& lists,
                                             const std::vector<size_t>& numbers)>& run_group) {
  const std::vector<std::vector<size_t>> groups = groups_of(run, ids);
  for (const std::vector<size_t>& numbers : groups) {
    if (groups.size() == 1) {
      run_group(ids, numbers);
    } else {
      run_group(chosen(ids, numbers), numbers);
    }
  }
}

/// Runs step after step over groups of lists, a micro-batch of one list per rank; `take` gets the
/// number of a list, its row in a micro-batch, and the session behind it.
void run_lists(const engine::Run& run, const std::vector<std::vector<int32_t>>& ids,
               engine::Programs& programs,
               engine::ProgramSpec (*spec)(const engine::Run&, const engine::Sizes&),
               const std::function<void(size_t list, int64_t row, int32_t micro_batch,
                                        engine::Session& session)>& take) {
  const int64_t per = lists_at_once(run.plan);
  const int64_t rows = per * forward_micro_batches(run.plan, std::ssize(ids));
  const int64_t length = row_length(run, ids);
  for (size_t first = 0; first < ids.size(); first += static_cast<size_t>(rows)) {
    const std::span<const std::vector<int32_t>> lists =
        std::span(ids).subspan(first, std::min(static_cast<size_t>(rows), ids.size() - first));
    const engine::Batch batch = pack(lists, rows, length);
    engine::Session& session = programs.session(spec(run, sizes_for(run, batch)));
    session.feed(batch);
    session.step();
    for (size_t i = 0; i < lists.size(); ++i) {
      take(first + i, static_cast<int64_t>(i) % per,
           static_cast<int32_t>(i) / static_cast<int32_t>(per), session);
    }
  }
}

}  // namespace

void for_each_logits(const engine::Run& run, const std::vector<std::vector<int32_t>>& ids,
                     engine::Programs& programs,
                     const std::function<void(size_t list, std::vector<float> logits)>& take) {
  const int64_t vocab = run.model.vocab_size;
  const graph::DType dtype = graph::parse_dtype(run.config.model.dtype);
  for_each_group(run, ids, [&](const auto& lists, const auto& numbers) {
    const int64_t length = row_length(run, lists);
    std::vector<std::byte> raw;  // padded logits of a micro-batch, [lists, seq_len, vocab]
    run_lists(run, lists, programs, engine::logits,
              [&](size_t list, int64_t row, int32_t micro_batch, engine::Session& session) {
                if (row == 0) {
                  raw = session.collect(graph::names::kLogits, micro_batch);
                }
                std::vector<float> out(lists[list].size() * static_cast<size_t>(vocab));
                const int64_t begin = row * length * vocab;
                graph::read_numbers(dtype, raw.data() + begin * graph::size_of(dtype),
                                    std::span(out));
                take(numbers[list], std::move(out));
              });
  });
}

void for_each_logprobs(
    const engine::Run& run, const std::vector<std::vector<int32_t>>& ids,
    engine::Programs& programs,
    const std::function<void(size_t list, std::span<const double> logprobs)>& take) {
  std::vector<std::vector<double>> kept;  // of several groups, by list
  for_each_group(run, ids, [&](const auto& lists, const auto& numbers) {
    const bool all = lists.size() == ids.size();
    kept.resize(all ? 0 : ids.size());
    const int64_t length = row_length(run, lists);
    std::vector<double> raw;  // of a micro-batch, [lists, seq_len]
    run_lists(run, lists, programs, engine::logprobs,
              [&](size_t list, int64_t row, int32_t micro_batch, engine::Session& session) {
                if (row == 0) {
                  raw = session.collect_as<double>(graph::names::kLogprobs, micro_batch);
                }
                const auto row_of = std::span(raw).subspan(static_cast<size_t>(row * length),
                                                           lists[list].size() - 1);
                if (all) {
                  take(list, row_of);
                } else {
                  kept[numbers[list]].assign(row_of.begin(), row_of.end());
                }
              });
  });
  for (size_t list = 0; list < kept.size(); ++list) {
    take(list, kept[list]);
  }
}

engine::ProgramSpec gradient_spec(const engine::Run& run,
                                  const std::vector<std::vector<int32_t>>& ids) {
  const std::vector<size_t> first = groups_of(run, ids).front();
  return engine::gradients(run, sizes_for(run, pack_all(run, chosen(ids, first))));
}

namespace {

/// Adds numbers of a floating-point type to others of it.
void add_numbers(graph::DType dtype, const std::vector<std::byte>& from,
                 std::vector<std::byte>* to) {
  const size_t count = from.size() / static_cast<size_t>(graph::size_of(dtype));
  if (dtype == graph::DType::f64) {
    for (size_t i = 0; i < count; ++i) {
      double one, other;
      std::memcpy(&one, from.data() + i * sizeof one, sizeof one);
      std::memcpy(&other, to->data() + i * sizeof other, sizeof other);
      other += one;
      std::memcpy(to->data() + i * sizeof other, &other, sizeof other);
    }
    return;
  }
  std::vector<float> one(count), other(count);
  graph::read_numbers(dtype, from.data(), std::span(one));
  graph::read_numbers(dtype, to->data(), std::span(other));
  for (size_t i = 0; i < count; ++i) {
    other[i] += one[i];
  }
  graph::write_numbers(other, dtype, to->data());
}

/// Gradients of lists whose rotary frequencies are equal.
Gradients gradients_of_group(const engine::Run& run, engine::Batch& batch,
                             engine::Programs& programs) {
  engine::Session& session = programs.session(engine::gradients(run, sizes_for(run, batch)));
  session.feed(batch);
  session.step();
  Gradients gradients;
  gradients.loss = session.loss();
  for (const auto& grad : session.graph().grads) {
    graph::Tensor param = session.graph().tensor(grad.param);
    param.type.dtype = session.graph().tensor(grad.total).type.dtype;
    std::vector<std::byte> sum = session.collect(graph::names::kGradOf + param.name);
    gradients.grads.push_back({std::move(param), std::move(sum)});
  }
  return gradients;
}

}  // namespace

Gradients gradients_of(const engine::Run& run, const std::vector<std::vector<int32_t>>& ids,
                       engine::Programs& programs) {
  const int64_t targets = pack_all(run, ids).num_targets();
  if (targets == 0) fail("eval", "no list has two tokens: there is no next token to predict");
  Gradients all;
  for_each_group(run, ids, [&](const auto& lists, const auto& /*numbers*/) {
    engine::Batch batch = pack_all(run, lists);
    batch.loss_scale = 1.0 / static_cast<double>(targets);
    Gradients some = gradients_of_group(run, batch, programs);
    if (all.grads.empty()) {
      all = std::move(some);
      return;
    }
    all.loss += some.loss;
    for (size_t i = 0; i < some.grads.size(); ++i) {
      add_numbers(some.grads[i].first.type.dtype, some.grads[i].second, &all.grads[i].second);
    }
  });
  return all;
}

}  // namespace hocket::train
