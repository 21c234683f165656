// SPDX-License-Identifier: Apache-2.0
#include "whatif/even_stages.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

namespace hocket::whatif {
namespace {

using ByStage = std::vector<double>;  // seconds of all steps and workers

double mean_of(const ByStage& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / seconds.size();
}

/// Evens out three times that move with layers. Passes of a kind take their mean over the stages.
/// So does each kind of a stage's work per step on its parameters: optimizer, gathers and
/// reductions. Longer passes and reductions do not change their count, however. Take n reductions
/// of s seconds behind parts of b seconds of the last pass: the last ends b + n s after the pass
/// began, or n b + s if parts are longer. A stage with m < n of its own, each n / m times longer,
/// ends (n / m - 1) min(b, s) later. Its reductions are shortened by that.
class Mover {
 public:
  Mover(const MeasuredRun& run, const BlockTimes& times)
      : run_(run), times_(times), stages_(run.stages) {}

  EvenStages move() {
    out_.duration = run_.duration;
    out_.passes.assign(stages_, 0);
    passes();
    last_passes();
    parameters();
    return std::move(out_);
  }

 private:
  StageId stage_of(PatternWorkerId worker, SampleId sample) const {
    return run_.workers[run_.worker_id(worker, run_.replica_of(sample))].stage;
  }

  void passes() {
    std::map<OpKindId, ByStage> kinds;
    const auto each = [&](auto&& f) {
      for (const Pass& pass : times_.passes()) {
        const Block& at = run_.blocks[pass.block];
        ByStage& of_kind = kinds.try_emplace(at.kind, stages_, 0.0).first->second;
        for (SampleId sample = 0; sample < run_.samples(); ++sample) {
          f(pass.block, sample, stage_of(at.worker, sample), of_kind);
        }
      }
    };
    each([&](BlockId block, SampleId sample, StageId stage, ByStage& of_kind) {
      of_kind[stage] += times_.time(block, sample);
      out_.passes[stage] += times_.time(block, sample);
    });
    each([&](BlockId block, SampleId sample, StageId stage, const ByStage& of_kind) {
      if (of_kind[stage] > 0) {
        times_.set(block, sample, times_.time(block, sample) * (mean_of(of_kind) / of_kind[stage]),
                   &out_.duration);
      }
    });
  }

  /// Finds the pass that ends last on a worker, in each sample, and how long it takes now.
  void last_passes() {
    last_ends_.assign(run_.pattern_workers * run_.samples(), 0);
    std::vector<double> seconds(last_ends_.size(), 0);
    for (const Pass& pass : times_.passes()) {
      for (SampleId sample = 0; sample < run_.samples(); ++sample) {
        double ends = 0, takes = 0;
        for (const OpId op : times_.ops(pass.block)) {
          const size_t cell = run_.at(op, sample);
          ends = std::max(ends, run_.start[cell] + run_.duration[cell]);
          takes += out_.duration[cell];
        }
        const size_t at = place(run_.blocks[pass.block].worker, sample);
        if (ends > last_ends_[at]) {
          last_ends_[at] = ends;
          seconds[at] = takes;
        }
      }
    }
    last_passes_.assign(stages_, 0);
    samples_of_.assign(stages_, 0);
    for (PatternWorkerId worker = 0; worker < run_.pattern_workers; ++worker) {
      for (SampleId sample = 0; sample < run_.samples(); ++sample) {
        last_passes_[stage_of(worker, sample)] += seconds[place(worker, sample)];
        ++samples_of_[stage_of(worker, sample)];
      }
    }
  }

  size_t place(PatternWorkerId worker, SampleId sample) const {
    return size_t{worker} * run_.samples() + sample;
  }

  /// Returns whether an op runs once a step for the parameters of a stage: its optimizer, and the
  /// gathers and reductions among its own workers.
  bool is_of_parameters(OpId op) const {
    if (run_.ops[op].micro_batch != kNone) return false;
    const OpKind& kind = run_.kind(op);
    if (!kind.communicates()) return std::string_view(kind.name).starts_with("optimizer");
    if (kind.traffic == Traffic::message || run_.ops[op].group == kNone) return false;
    const std::vector<OpId>& members = run_.groups[run_.ops[op].group].ops;
    return std::all_of(members.begin(), members.end(), [&](OpId member) {
      return run_.worker(member, 0).stage == run_.worker(op, 0).stage;
    });
  }

  void parameters() {
    std::map<Traffic, ByStage> sorts;
    ByStage sums_of_worker(stages_, 0);
    bool beside_passes = false;
    const auto each = [&](auto&& f) {
      for (OpId op = 0; op < run_.ops.size(); ++op) {
        if (!is_of_parameters(op)) continue;
        ByStage& of_sort = sorts.try_emplace(run_.kind(op).traffic, stages_, 0.0).first->second;
        for (SampleId sample = 0; sample < run_.samples(); ++sample) {
          f(op, sample, stage_of(run_.ops[op].worker, sample), of_sort);
        }
      }
    };
    each([&](OpId op, SampleId sample, StageId stage, ByStage& of_sort) {
      const size_t cell = run_.at(op, sample);
      of_sort[stage] += run_.duration[cell];
      if (run_.kind(op).traffic != Traffic::gradients) return;
      sums_of_worker[stage] += 1 / samples_of_[stage];
      beside_passes |= run_.start[cell] < last_ends_[place(run_.ops[op].worker, sample)];
    });
    each([&](OpId op, SampleId sample, StageId stage, const ByStage& of_sort) {
      const double own = of_sort[stage], added = mean_of(of_sort) - own;
      if (own <= 0) return;
      double less = 0;
      if (beside_passes && run_.kind(op).traffic == Traffic::gradients && added > 0) {
        less = std::min(added, arrived(stage)) / sums_of_worker[stage];
      }
      out_.duration[run_.at(op, sample)] *= (own + added - less) / own;
    });
  }

  /// Returns the seconds of the last passes that belong to layers moved to the stage.
  double arrived(StageId stage) const {
    return last_passes_[stage] * std::max(1 - out_.passes[stage] / mean_of(out_.passes), 0.0);
  }

  const MeasuredRun& run_;
  const BlockTimes& times_;
  const size_t stages_;
  std::vector<double> last_ends_;   ///< of passes as measured, by worker and sample
  ByStage last_passes_;             ///< how long they take when stages are even
  std::vector<double> samples_of_;  ///< workers of a stage, in all steps
  EvenStages out_;
};

}  // namespace

EvenStages even_stages(const MeasuredRun& run, const BlockTimes& times) {
  return Mover(run, times).move();
}

}  // namespace hocket::whatif
