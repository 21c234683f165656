// SPDX-License-Identifier: Apache-2.0
#include "whatif/analysis.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "whatif/blend.h"
#include "whatif/causes.h"

namespace hocket::whatif {
namespace {

constexpr size_t kMaxKindsReplayed = 200;  // Op kinds replayed one by one, at most.

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / values.size();
}

/// Returns the middle value, or the mean of the two in the middle. Reorders `values`.
double middle(std::vector<double>* values) {
  const auto mid = values->begin() + values->size() / 2;
  std::nth_element(values->begin(), mid, values->end());
  if (values->size() % 2 == 1) return *mid;
  return (*mid + *std::max_element(values->begin(), mid)) / 2;
}

class Analyst {
 public:
  explicit Analyst(const MeasuredRun& run)
      : run_(run), replayer_(run), ideal_(ideal_durations(run)) {
    const size_t replicas = run.replicas;
    for (size_t cell = 0; cell < ideal_.size() && ideal_alike_; ++cell) {
      ideal_alike_ = ideal_[cell] == ideal_[cell - cell % replicas];
    }
  }

  Analysis analyze() {
    // Replays the baselines (all measured, all ideal), then one part measured and the rest ideal,
    // then one part ideal and the rest measured: the last stage and the slowest workers.
    out_.step_measured = run_.measured_step;
    out_.measured = run_.mean_of_steps(run_.measured_step);
    out_.step_T = replayer_.replay(run_.duration);
    out_.step_ideal = replayer_.replay(ideal_);
    out_.T = run_.mean_of_steps(out_.step_T);
    out_.T_ideal = run_.mean_of_steps(out_.step_ideal);
    if (!(*std::min_element(out_.step_ideal.begin(), out_.step_ideal.end()) > 0)) {
      fail("hocket whatif",
           "got steps of zero length once all ops of a kind take equal times; expected "
           "durations of more ops");
    }
    out_.S = out_.T / out_.T_ideal;
    for (size_t step = 0; step < out_.step_T.size(); ++step) {
      out_.S_step.push_back(out_.step_T[step] / out_.step_ideal[step]);
    }
    for (StageId stage = 0; stage < run_.stages; ++stage) {
      out_.S_stage.push_back(only(
          [&](OpId op, ReplicaId replica) { return run_.worker(op, replica).stage == stage; }));
    }
    for (DataRank dp = 0; dp < num_data_ranks(); ++dp) {
      out_.S_dp.push_back(
          only([&](OpId op, ReplicaId replica) { return run_.worker(op, replica).replica == dp; }));
    }
    kinds();
    workers();
    out_.T_without_last_stage = without([&](OpId op, ReplicaId replica) {
      return run_.worker(op, replica).stage == run_.stages - 1;
    });
    out_.M_S = has_last_stage() ? share(out_.T_without_last_stage) : std::nan("");
    out_.T_without_host = without_host();
    out_.off = run_.has_starts ? out_.T / out_.measured - 1 : 0;
    find_causes(run_, ideal_, &replayer_, &out_);
    for (CauseFound& cause : out_.causes) {
      cause.named = cause.named && !run_.clocks_apart && !out_.is_far_off();
    }
    return std::move(out_);
  }

 private:
  /// Replays each op kind. Beyond kMaxKindsReplayed, keeps the kinds with durations that differ
  /// most from their ideal; the others count as ideal.
  void kinds() {
    std::vector<double> excess(run_.kinds.size(), 0);
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      for (size_t cell = run_.at(op, 0); cell < run_.at(op, run_.samples()); ++cell) {
        excess[run_.kind_of(op)] += std::fabs(run_.duration[cell] - ideal_[cell]);
      }
    }
    std::vector<OpKindId> order(run_.kinds.size());
    std::iota(order.begin(), order.end(), OpKindId());
    std::stable_sort(order.begin(), order.end(),
                     [&](OpKindId a, OpKindId b) { return excess[a] > excess[b]; });
    order.resize(std::min(order.size(), kMaxKindsReplayed));
    out_.S_kind.assign(run_.kinds.size(), {1, std::vector<double>(run_.steps.size(), 1)});
    for (const OpKindId kind : order) {
      out_.S_kind[kind] = only([&](OpId op, ReplicaId) { return run_.kind_of(op) == kind; });
    }
  }

  /// Returns seconds per step if calls of hosts took no time; 0 where the trace has none.
  double without_host() {
    std::vector<double> durations = run_.duration;
    bool any = false;
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      if (!run_.is_of_host(op)) continue;
      any = true;
      std::fill_n(&durations[run_.at(op, 0)], run_.samples(), 0.0);
    }
    return any ? replayer_.mean(durations) : 0;
  }

  bool has_last_stage() const {
    return std::any_of(run_.workers.begin(), run_.workers.end(),
                       [&](const Worker& worker) { return worker.stage == run_.stages - 1; });
  }

  int32_t num_data_ranks() const {
    DataRank end = 0;
    for (const Worker& worker : run_.workers) {
      end = std::max(end, worker.replica + 1);
    }
    return end.value();
  }

  /// Replays with all durations ideal except the chosen ones.
  template <typename Chosen>
  Slowdown only(Chosen&& chosen) {
    Blend durations = blend(run_, run_.duration, ideal_, chosen);
    durations.replicas_alike = ideal_alike_;
    const std::vector<double> steps = replayer_.replay(durations);
    Slowdown slowdown;
    slowdown.mean = run_.mean_of_steps(steps) / out_.T_ideal;
    for (size_t step = 0; step < steps.size(); ++step) {
      slowdown.by_step.push_back(steps[step] / out_.step_ideal[step]);
    }
    return slowdown;
  }

  /// Returns seconds per step with all durations measured except the chosen ones.
  template <typename Chosen>
  double without(Chosen&& chosen) {
    return replayer_.mean(blend(run_, ideal_, run_.duration, chosen));
  }

  double share(double fixed) const {
    constexpr double kRounding = 1e-9;  // of T
    const double loss = out_.T - out_.T_ideal;
    return std::fabs(loss) > kRounding * out_.T ? (out_.T - fixed) / loss : std::nan("");
  }

  /// Replays without the slowest 3 % of workers; of equally slow ones those of the lower rank. A
  /// worker is as slow as its stage and its replica both are.
  void workers() {
    for (const Worker& worker : run_.workers) {
      out_.S_worker.push_back(
          std::min(out_.S_stage[worker.stage].mean, out_.S_dp[worker.replica].mean));
    }
    std::vector<WorkerId> order(run_.workers.size());
    std::iota(order.begin(), order.end(), WorkerId());
    std::sort(order.begin(), order.end(), [&](WorkerId a, WorkerId b) {
      const double x = out_.S_worker[a];
      const double y = out_.S_worker[b];
      return x != y ? x > y : run_.workers[a].rank < run_.workers[b].rank;
    });
    order.resize((order.size() * 3 + 99) / 100);
    out_.slowest = order;
    std::vector<char> slow(run_.workers.size(), 0);
    for (const WorkerId worker : order) {
      slow[worker] = 1;
    }
    out_.T_without_slowest = without([&](OpId op, ReplicaId replica) {
      return slow[run_.worker_id(run_.ops[op].worker, replica)] != 0;
    });
    out_.M_W = share(out_.T_without_slowest);
  }

  const MeasuredRun& run_;
  Replayer replayer_;
  const std::vector<double> ideal_;
  bool ideal_alike_ = true;  ///< in all replicas of a step
  Analysis out_;
};

}  // namespace

std::vector<double> ideal_durations(const MeasuredRun& run) {
  // Elements are blocks by sample: sums of their ops.
  const size_t samples = run.samples();
  std::vector<double> elements(run.blocks.size() * samples, 0);
  const auto elements_of = [&](BlockId block) {
    return std::span(elements).subspan(size_t{block} * samples, samples);
  };
  std::vector<int32_t> ops_of(run.blocks.size(), 0);
  for (OpId op = 0; op < run.ops.size(); ++op) {
    const BlockId block = run.ops[op].block;
    ++ops_of[block];
    const std::span<double> sums = elements_of(block);
    const size_t row = run.at(op, 0);
    for (size_t sample = 0; sample < samples; ++sample) {
      sums[sample] += run.duration[row + sample];
    }
  }
  std::vector<std::vector<double>> values(run.kinds.size());
  for (BlockId block = 0; block < run.blocks.size(); ++block) {
    std::vector<double>& of_kind = values[run.blocks[block].kind];
    const std::span<const double> of_block = elements_of(block);
    for (SampleId sample = 0; sample < of_block.size(); ++sample) {
      if (run.counts(run.step_of(sample))) {
        of_kind.push_back(of_block[sample]);
      }
    }
  }
  std::vector<double> ideal_of_kind(run.kinds.size(), 0);
  for (OpKindId kind = 0; kind < run.kinds.size(); ++kind) {
    if (values[kind].empty()) continue;
    ideal_of_kind[kind] =
        run.kinds[kind].communicates() ? middle(&values[kind]) : mean_of(values[kind]);
  }
  // An op keeps its share of its block.
  std::vector<double> ideal(run.duration.size());
  for (OpId op = 0; op < run.ops.size(); ++op) {
    const BlockId block = run.ops[op].block;
    const double target = ideal_of_kind[run.blocks[block].kind];
    const std::span<const double> sums = elements_of(block);
    const size_t row = run.at(op, 0);
    for (size_t sample = 0; sample < samples; ++sample) {
      const double sum = sums[sample];
      ideal[row + sample] = ops_of[block] == 1 ? target
                            : sum > 0          ? run.duration[row + sample] * (target / sum)
                                               : target / ops_of[block];
    }
  }
  return ideal;
}

Analysis analyze(const MeasuredRun& run) { return Analyst(run).analyze(); }

}  // namespace hocket::whatif
