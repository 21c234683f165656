// SPDX-License-Identifier: Apache-2.0
#include "diagnose/passes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace hocket::diagnose {
namespace {

using program::kNone;
using trace::Trace;
using trace::TraceEvent;

/// Reciprocal of a gap in steps: tasks of one sort with a smaller gap between them are drawn as
/// one.
constexpr int64_t kGapsPerStep = 1000;

struct Pass {
  int64_t begin = INT64_MAX, end = INT64_MIN;
  char kind = 'F';
  int32_t stage = kNone, micro_batch = kNone;
  std::string name, kinds;

  void add(const TraceEvent& event) {
    begin = std::min(begin, event.start_ns);
    end = std::max(end, event.end_ns);
  }
};

/// Work done once per step: `what` is "gradients" or "optimizer".
struct StepWork {
  int64_t begin = 0, end = 0;
  std::string_view what;
};

/// Passes of a rank, and the work in the rest of its step.
class RankPasses {
 public:
  explicit RankPasses(const Trace& trace) : trace_(trace) {}

  void add(const TraceEvent& event) {
    const std::string& phase = trace_.text(event.phase);
    const bool forward = phase == "forward", backward = phase == "backward";
    if (forward || backward) {
      if (event.micro_batch == kNone || trace_.lanes[event.lane] != "compute") return;
      const bool weights = backward && trace_.text(event.kind).ends_with("_dw");
      passes_[{event.micro_batch, event.stage}][weights ? 2 : backward ? 1 : 0].add(event);
    } else if (phase == "grad" || phase == "optimizer") {
      step_work_.push_back({event.start_ns + event.waited_ns, event.end_ns,
                            phase == "grad" ? "gradients" : "optimizer"});
    }
  }

  /// Returns whether the schedule runs gradients of weights separately: another pass begins between
  /// them and the gradients of the inputs.
  bool splits() const {
    std::vector<int64_t> begins;
    for (const auto& [key, parts] : passes_) {
      for (const Pass& part : parts) {
        if (is_there(part)) {
          begins.push_back(part.begin);
        }
      }
    }
    std::sort(begins.begin(), begins.end());
    for (const auto& [key, parts] : passes_) {
      if (!is_there(parts[1]) || !is_there(parts[2])) continue;
      const auto next = std::lower_bound(begins.begin(), begins.end(), parts[1].end);
      if (next != begins.end() && *next < parts[2].begin) return true;
    }
    return false;
  }

  /// Returns the passes in order of time, without overlaps. `split`: gradients of weights are
  /// separate passes where they do not overlap those of inputs.
  std::vector<Pass> passes(bool split) const {
    std::vector<Pass> list = separate(split);
    std::sort(list.begin(), list.end(), [](const Pass& a, const Pass& b) {
      return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
    });
    std::vector<Pass> joined;
    for (Pass& pass : list) {
      pass.name = fmt::format("{}{}{}", std::max(pass.stage, 0), pass.kind, pass.micro_batch);
      pass.kinds = pass.kind;
      if (joined.empty() || joined.back().end <= pass.begin) {
        joined.push_back(std::move(pass));
        continue;
      }
      Pass& beside = joined.back();
      beside.end = std::max(beside.end, pass.end);
      beside.name += ";" + pass.name;
      beside.kinds += ";" + pass.kinds;
    }
    return joined;
  }

  /// Returns the work between and after `passes`, in order of time, without overlaps.
  std::vector<StepWork> step_work(const std::vector<Pass>& passes, int64_t step_ns) const {
    std::vector<StepWork> parts;
    int64_t now = 0;
    size_t pass = 0;
    for (const StepWork& part : merged_step_work(step_ns / kGapsPerStep)) {
      now = std::max(now, part.begin);
      while (now < part.end) {
        while (pass < passes.size() && passes[pass].end <= now) {
          ++pass;
        }
        const bool last = pass == passes.size();
        const int64_t until = last ? part.end : std::min(part.end, passes[pass].begin);
        if (until > now) {
          parts.push_back({now, until, part.what});
        }
        now = last || passes[pass].begin >= part.end ? part.end : passes[pass].end;
      }
    }
    return parts;
  }

 private:
  using Parts = std::array<Pass, 3>;  ///< forward, gradients of inputs, gradients of weights

  static bool is_there(const Pass& pass) { return pass.end >= pass.begin; }

  /// Returns the work done once per step; parts of one sort with gaps of at most `gap` are merged.
  std::vector<StepWork> merged_step_work(int64_t gap) const {
    std::vector<StepWork> list = step_work_;
    std::sort(list.begin(), list.end(), [](const StepWork& a, const StepWork& b) {
      return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
    });
    std::vector<StepWork> merged;
    for (const StepWork& part : list) {
      if (!merged.empty() && merged.back().what == part.what &&
          part.begin - merged.back().end <= gap) {
        merged.back().end = std::max(merged.back().end, part.end);
      } else {
        merged.push_back(part);
      }
    }
    return merged;
  }

  /// Returns the passes before overlapping ones are joined.
  std::vector<Pass> separate(bool split) const {
    std::vector<Pass> list;
    for (const auto& [key, parts] : passes_) {
      const auto put = [&, where = key](Pass pass, char kind) {
        pass.kind = kind;
        std::tie(pass.micro_batch, pass.stage) = where;
        list.push_back(pass);
      };
      const auto& [forward, inputs, weights] = parts;
      if (is_there(forward)) {
        put(forward, 'F');
      }
      const bool both = is_there(inputs) && is_there(weights);
      if (both && split && weights.begin >= inputs.end) {
        put(inputs, 'I');
        put(weights, 'W');
      } else if (is_there(inputs) || is_there(weights)) {
        Pass backward = inputs;
        backward.begin = std::min(inputs.begin, weights.begin);
        backward.end = std::max(inputs.end, weights.end);
        put(backward, 'B');
      }
    }
    return list;
  }

  const Trace& trace_;
  std::map<std::pair<int32_t, int32_t>, Parts> passes_;  ///< by micro-batch and stage
  std::vector<StepWork> step_work_;
};

}  // namespace

Trace passes_of(const Trace& trace) {
  // Tasks are assigned to the passes of their rank. Then every rank draws its passes and, between
  // them, the work done once per step.
  std::map<int32_t, RankPasses> ranks;
  int64_t step_ns = 0;
  for (const TraceEvent& event : trace.events) {
    ranks.try_emplace(event.rank, trace).first->second.add(event);
    step_ns = std::max(step_ns, event.end_ns);
  }
  Trace drawn;
  drawn.title = trace.title;
  drawn.source = trace.source;
  drawn.num_ranks = trace.num_ranks;
  drawn.steps = trace.steps;
  const bool split = std::any_of(ranks.begin(), ranks.end(),
                                 [](const auto& rank) { return rank.second.splits(); });
  bool any = false;
  for (const auto& [rank, of_rank] : ranks) {
    const std::vector<Pass> passes = of_rank.passes(split);
    any = any || !passes.empty();
    TraceEvent event;
    event.rank = rank;
    event.step = trace.steps.empty() ? kNone : trace.steps[0];
    for (const Pass& pass : passes) {
      event.start_ns = pass.begin;
      event.end_ns = pass.end;
      event.name = drawn.intern(pass.name);
      event.kind = drawn.intern(pass.kinds);
      event.stage = pass.stage;
      event.layer = pass.stage == kNone ? 0 : drawn.intern(fmt::format("stage {}", pass.stage));
      event.micro_batch = pass.micro_batch;
      drawn.events.push_back(event);
    }
    event.layer = 0;
    event.stage = event.micro_batch = kNone;
    for (const StepWork& part : of_rank.step_work(passes, step_ns)) {
      event.start_ns = part.begin;
      event.end_ns = part.end;
      event.name = event.kind = drawn.intern(part.what);
      drawn.events.push_back(event);
    }
  }
  return any ? drawn : Trace();
}

}  // namespace hocket::diagnose
