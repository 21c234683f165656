// SPDX-License-Identifier: Apache-2.0
#include "whatif/kineto_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "whatif/kineto_steps.h"

namespace hocket::whatif::kineto {
namespace {

/// Returns how many of the first `count` ops of a stream, which end in their order, had ended.
size_t ended_by(double time, const std::vector<OpEnd>& ops, size_t count) {
  const auto after =
      std::upper_bound(ops.begin(), ops.begin() + count, time + kClockError,
                       [](double seconds, const OpEnd& place) { return seconds < place.end; });
  return after - ops.begin();
}

double last_end(const std::vector<OpEnd>& places) {
  double end = -1e300;
  for (const OpEnd& place : places) {
    end = std::max(end, place.end);
  }
  return end;
}

std::vector<OpEnd> values(const std::map<int32_t, OpEnd>& places) {
  std::vector<OpEnd> list;
  for (const auto& [key, place] : places) {
    list.push_back(place);
  }
  return list;
}

}  // namespace

RankOps::RankOps(const Profile& profile, PatternWorkerId worker,
                 const std::map<int64_t, double>& begins, double least_idle, Names* names)
    : profile_(profile), worker_(worker), begins_(begins), least_idle_(least_idle), names_(*names) {
  for (const Activity& call : profile.host) {
    if (call.step != kNone && call_of(call.name) != Call::makes_streams_wait) {
      threads_.try_emplace(call.thread, threads_.size());
    }
  }
}

void RankOps::add_ops(const std::set<int64_t>& steps, std::vector<Observed>* seen) {
  seen_ = seen;
  run(steps);
  seen_ = nullptr;
}

void RankOps::add_waits(const std::set<int64_t>& steps, int64_t step, Waits* waits) {
  waits_ = waits;
  step_of_waits_ = step;
  run(steps.count(step - 1) ? std::set<int64_t>{step - 1, step} : std::set<int64_t>{step});
  waits_ = nullptr;
}

void RankOps::run(const std::set<int64_t>& steps) {
  count_.clear();
  untold_.clear();
  step_ = kNone;
  for (const Activity& call : profile_.host) {
    if (!steps.count(call.step)) continue;
    if (call.step != step_) {
      begin_step(call);
    }
    if (call_of(call.name) == Call::makes_streams_wait) {
      let_streams_meet();
      continue;
    }
    const OpEnd place = add_call(call);
    if (call.launches != kNone) {
      add_launched(call, place);
    }
  }
}

/// Adds the host's time before its first call. If the step before is present, the call follows that
/// step's last call, and streams finish its ops first.
void RankOps::begin_step(const Activity& call) {
  const bool follows = step_ != kNone && call.step == step_ + 1;
  std::vector<OpEnd> last = follows ? calls_before(call) : std::vector<OpEnd>();
  last.resize(std::min<size_t>(last.size(), 1));  // of any thread the one that ended last
  for (OpEnd& place : last) {
    place.of_last_step = true;
  }
  left_ = follows ? std::move(streams_) : Streams();
  for (auto& [number, stream] : left_) {
    for (OpEnd& place : stream.ops) {
      place.of_last_step = true;
    }
  }
  step_ = call.step;
  streams_.clear();
  running_.clear();
  last_by_.clear();
  ended_ = {};
  const auto begins = begins_.find(step_);
  earlier_ = follows ? std::map<int32_t, double>() : ends_of_earlier(profile_, step_);
  if (begins == begins_.end()) return;
  Observed start = observed(kHostStart, kCallStream);
  start.start = !last.empty() ? last[0].end : follows ? call.start : begins->second;
  start.start = std::min(start.start, call.start);
  start.duration = call.start - start.start;
  ended_ = {start.name, start.sequence, call.start};
  add(start, std::move(last));
}

/// Returns the ops that a call that waits for the device waits for: the last ops of streams, if
/// they had ended; for a call that waits for an event, the last ones that had.
std::vector<OpEnd> RankOps::waits_of_host(const Activity& call) const {
  const bool for_event = call_of(call.name) == Call::waits_for_event;
  std::map<int32_t, OpEnd> found;
  for (const Streams* streams : {&left_, &streams_}) {
    for (const auto& [number, stream] : *streams) {
      const size_t ended = ended_by(call.end, stream.ops, stream.ops.size());
      if (ended == stream.ops.size() || (for_event && ended > 0)) {
        found[number] = stream.ops[ended - 1];
      } else {
        found.erase(number);
      }
    }
  }
  return values(found);
}

/// Ops that an activity waits for: the last one of its stream, and perhaps one of every other
/// stream. It waits for those if it is the first of its stream since the host made streams wait.
/// They are the last ones launched before that call that had ended when the activity began.
std::vector<OpEnd> RankOps::stream_waits(const Activity& activity) const {
  std::map<int32_t, OpEnd> found;
  for (const Streams* streams : {&left_, &streams_}) {
    for (const auto& [number, stream] : *streams) {
      if (number == activity.stream) {
        found[number] = stream.ops.back();
        continue;
      }
      if (untold_.count(activity.stream)) continue;
      if (const size_t ended = ended_by(activity.start, stream.ops, stream.met); ended > 0) {
        found[number] = stream.ops[ended - 1];
      }
    }
  }
  return values(found);
}

/// Adds ops of other streams after which an activity began at once, although it could have begun
/// earlier: a profile need not show the reason of its stream's wait.
void RankOps::add_unseen(const Activity& activity, std::vector<OpEnd>* waits) const {
  constexpr double kLatency = 1.5e-5;  // of a launch
  constexpr double kAtOnce = 1e-5;
  if (activity.start - last_end(*waits) <= kLatency) return;
  for (const Streams* streams : {&left_, &streams_}) {
    for (const auto& [number, stream] : *streams) {
      const size_t ended = ended_by(activity.start, stream.ops, stream.ops.size());
      if (ended > 0 && stream.ops[ended - 1].end >= activity.start - kAtOnce) {
        waits->push_back(stream.ops[ended - 1]);
      }
    }
  }
}

/// Adds a call of the host, with the time since the one that it waits for.
OpEnd RankOps::add_call(const Activity& call) {
  const int32_t thread = threads_.at(call.thread);
  Observed op =
      observed(thread == 0 ? "host " + call.name : fmt::format("host {} ({})", call.name, thread),
               kCallStream - thread);
  std::vector<OpEnd> waits = calls_before(call);
  const double end = call.end;
  double begin = waits.empty() ? call.start : std::min(waits.front().end, end);
  const Call kind = call_of(call.name);
  if (kind == Call::waits_for_device || kind == Call::waits_for_event) {
    for (const OpEnd& place : waits_of_host(call)) {
      begin = std::max(begin, std::min(place.end, end));
      waits.push_back(place);
    }
  }
  op.start = begin;
  op.duration = std::max(end - begin, 0.0);
  const OpEnd place{op.name, op.sequence, end};
  running_.push_back(place);
  last_by_[call.thread] = place;
  add(op, std::move(waits));
  return place;
}

/// Returns the calls that a call depends on: the one before it in its thread, and the last call of
/// any thread that had ended when it began. Threads hand over to each other, as PyTorch's backward
/// pass does to its own thread. Concurrent calls do not depend on each other.
std::vector<OpEnd> RankOps::calls_before(const Activity& call) {
  std::erase_if(running_, [&](const OpEnd& other) {
    if (other.end > call.start + kClockError) return false;
    if (ended_.name == kNone || other.end >= ended_.end) {
      ended_ = other;
    }
    return true;
  });
  std::vector<OpEnd> before;
  if (ended_.name != kNone) {
    before.push_back(ended_);
  }
  const auto own = last_by_.find(call.thread);
  if (own != last_by_.end() && own->second.end <= call.start + kClockError) {
    before.push_back(own->second);
  }
  return before;
}

/// Adds the ops that a call launches: one, or those of a graph. A graph's first ops depend on all
/// streams that had ended before, and its branches on each other; so do the ops behind it.
void RankOps::add_launched(const Activity& call, const OpEnd& launch) {
  const bool is_graph = profile_.device[call.launches].next != kNone;
  if (is_graph) {
    let_streams_meet();
  }
  for (ActivityIndex at = call.launches; at != kNone; at = profile_.device[at].next) {
    add_activity(call, profile_.device[at], launch);
    if (is_graph) {
      let_streams_meet();
    }
  }
}

/// Adds an op that depends on its launch and on the last op of its stream. It also depends on ops
/// of other streams that its stream was made to wait for.
void RankOps::add_activity(const Activity& call, const Activity& activity, const OpEnd& launch) {
  Observed kernel = observed(activity.name, activity.stream);
  kernel.start = activity.start;
  kernel.duration = activity.end - activity.start;
  if (activity.number != kNone) {
    kernel.sequence = activity.number;
  }
  if (waits_ != nullptr && step_ == step_of_waits_ && is_collective(activity.name)) {
    waits_->sent[{worker_, kernel.name, kernel.sequence}] = {
        activity.bytes > 0 ? activity.bytes : marked_bytes(profile_, call),
        threads_.at(call.thread) > 0 && is_sum(activity.name)};
  }
  std::vector<OpEnd> waits = stream_waits(activity);
  waits.push_back(launch);
  add_unseen(activity, &waits);
  untold_.insert(activity.stream);
  streams_[activity.stream].ops.push_back({kernel.name, kernel.sequence, activity.end});
  add_idle(activity, &waits);
  add(kernel, std::move(waits));
}

/// Adds the time before an activity in which it waited for none of `waits`. A collective waits for
/// other ranks, and on a rank with lost records an activity may wait for a lost one.
void RankOps::add_idle(const Activity& activity, std::vector<OpEnd>* waits) {
  if (is_collective(activity.name) || profile_.lost_records()) return;
  double ready = last_end(*waits);
  for (const auto& [stream, end] : earlier_) {
    ready = end <= activity.start + kClockError ? std::max(ready, end) : ready;
  }
  Observed idle = observed(kDeviceIdle, activity.stream);
  idle.start = ready;
  idle.duration = activity.start - ready;
  const OpEnd place{idle.name, idle.sequence, activity.start};
  if (waits_ != nullptr && step_ == step_of_waits_) {
    waits_->of[{worker_, idle.name, idle.sequence}] = *waits;
  }
  waits->push_back(place);
  if (seen_ != nullptr && idle.duration >= least_idle_) {
    seen_->push_back(idle);
  }
}

void RankOps::let_streams_meet() {
  untold_.clear();
  for (auto* streams : {&streams_, &left_}) {
    for (auto& [number, stream] : *streams) {
      stream.met = stream.ops.size();
    }
  }
}

void RankOps::add(const Observed& op, std::vector<OpEnd> waits) {
  if (seen_ != nullptr) {
    seen_->push_back(op);
  }
  if (waits_ != nullptr && step_ == step_of_waits_) {
    waits_->of[{worker_, op.name, op.sequence}] = std::move(waits);
  }
}

/// Returns the next op of a name in the step.
Observed RankOps::observed(const std::string& name, int32_t stream) {
  const auto [id, added] = names_.ids.try_emplace(name, names_.list.size());
  if (added) {
    names_.list.push_back(name);
  }
  Observed op;
  op.worker = worker_;
  op.step = step_;
  op.name = id->second;
  op.stream = stream;
  op.sequence = count_[{step_, op.name}]++;
  return op;
}

}  // namespace hocket::whatif::kineto
