// SPDX-License-Identifier: Apache-2.0
#include "whatif/kineto_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace hocket::whatif::kineto {

RankOps::RankOps(const Profile& profile, int32_t worker,
                 const std::map<int64_t, double>& first_start, Names* names)
    : profile_(profile), worker_(worker), first_start_(first_start), names_(*names) {
  for (const Activity& call : profile.host) {
    if (call.step != kNone && call_of(call.name) != Call::makes_streams_wait) {
      threads_.try_emplace(call.thread, threads_.size());
    }
  }
}

void RankOps::add_ops(const std::set<int64_t>& steps, std::vector<Observed>* seen) {
  seen_ = seen;
  go(steps);
  seen_ = nullptr;
}

void RankOps::add_waits(int64_t step, Waits* waits) {
  waits_ = waits;
  go({step});
  waits_ = nullptr;
}

void RankOps::go(const std::set<int64_t>& steps) {
  count_.clear();
  step_ = kNone;
  for (const Activity& call : profile_.host) {
    if (!steps.count(call.step)) continue;
    if (call.step != step_) {
      begin_step(call);
    }
    if (call_of(call.name) == Call::makes_streams_wait) {
      for (auto& [number, stream] : streams_) {
        stream.may_meet = true;
      }
      continue;
    }
    const Place place = add_call(call);
    if (call.launches != kNone) {
      add_launched(call, place);
    }
  }
}

/// What the host does before its first call, and how much later than others it begins.
void RankOps::begin_step(const Activity& call) {
  step_ = call.step;
  streams_.clear();
  running_.clear();
  last_by_.clear();
  ended_ = {};
  const auto first = first_start_.find(step_);
  if (first == first_start_.end()) return;
  Observed begins = observed("host start", kCallStream);
  begins.start = first->second;
  begins.duration = std::max(call.start - first->second, 0.0);
  ended_ = {begins.name, begins.sequence, call.start};
  add(begins, {});
}

/// A call of the host, with the time since the one that it waits for.
Place RankOps::add_call(const Activity& call) {
  const size_t thread = threads_.at(call.thread);
  Observed op =
      observed(thread == 0 ? "host " + call.name : fmt::format("host {} ({})", call.name, thread),
               kCallStream - static_cast<int32_t>(thread));
  std::vector<Place> waits = calls_before(call);
  double begin = waits.empty() ? call.start : std::min(waits.front().end, call.end);
  if (call_of(call.name) == Call::waits_for_device) {
    for (const auto& [number, stream] : streams_) {
      if (stream.last.end <= call.end + kClockError) {
        begin = std::max(begin, std::min(stream.last.end, call.end));
        waits.push_back(stream.last);
      }
    }
  }
  op.start = begin;
  op.duration = std::max(call.end - begin, 0.0);
  const Place place{op.name, op.sequence, call.end};
  running_.push_back(place);
  last_by_[call.thread] = place;
  add(op, std::move(waits));
  return place;
}

/// What a call waits for on the host: the last one of any thread that had ended when it began,
/// since threads hand over to each other (PyTorch's backward pass has its own), and the one
/// before in its thread. Calls of two threads at once do not wait for each other.
std::vector<Place> RankOps::calls_before(const Activity& call) {
  std::erase_if(running_, [&](const Place& other) {
    if (other.end > call.start + kClockError) return false;
    if (ended_.name == kNone || other.end >= ended_.end) {
      ended_ = other;
    }
    return true;
  });
  std::vector<Place> before;
  if (ended_.name != kNone) {
    before.push_back(ended_);
  }
  const auto own = last_by_.find(call.thread);
  if (own != last_by_.end() && own->second.end <= call.start + kClockError) {
    before.push_back(own->second);
  }
  return before;
}

/// What a call launches waits for it, for the last op of its stream, and where the host made
/// streams wait, for those of others.
void RankOps::add_launched(const Activity& call, const Place& launch) {
  const Activity& activity = profile_.device[static_cast<size_t>(call.launches)];
  Observed kernel = observed(activity.name, activity.stream);
  kernel.start = activity.start;
  kernel.duration = activity.end - activity.start;
  if (activity.number != kNone) {
    kernel.sequence = activity.number;
  }
  if (waits_ != nullptr && is_collective(activity.name)) {
    waits_->sent[{worker_, kernel.name, kernel.sequence}] = {
        activity.bytes > 0 ? activity.bytes : marked_bytes(profile_, call),
        threads_.at(call.thread) > 0 && is_sum(activity.name)};
  }
  std::vector<Place> waits = {launch};
  for (const auto& [number, stream] : streams_) {
    if (number == activity.stream ||
        (stream.may_meet && stream.last.end <= activity.start + kClockError)) {
      waits.push_back(stream.last);
    }
  }
  streams_[activity.stream] = {{kernel.name, kernel.sequence, activity.end}, false};
  add(kernel, std::move(waits));
}

void RankOps::add(const Observed& op, std::vector<Place> waits) {
  if (seen_ != nullptr) {
    seen_->push_back(op);
  }
  if (waits_ != nullptr) {
    waits_->of[{worker_, op.name, op.sequence}] = std::move(waits);
  }
}

/// The next op of a name in the step.
Observed RankOps::observed(const std::string& name, int32_t stream) {
  const auto [id, added] = names_.ids.try_emplace(name, static_cast<int32_t>(names_.list.size()));
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
