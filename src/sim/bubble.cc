// SPDX-License-Identifier: Apache-2.0
#include "sim/bubble.h"

#include <algorithm>
#include <map>

namespace hocket::sim {

using program::kNone;

Bubbles::Bubbles(const Tables& tables) : t_(tables), ranks_(tables.num_ranks()) {
  std::map<std::vector<int32_t>, StageSet> stage_sets;
  for (const ClassId cls : tables.cls) {
    const std::vector<int32_t> stages = program::stages_of(tables.program->classes[cls]);
    stage_set_of_.push_back(stage_sets.emplace(stages, stage_sets.size()).first->second);
  }
  one_stage_set_ = stage_sets.size() < 2;
}

void Bubbles::start(RankIndex rank, TaskId task, int64_t now, int64_t idle_ns) {
  if (one_stage_set_) return;
  Rank& here = ranks_[rank];
  Running& running = here.running[place_of(t_.of(rank).tasks[task].lane)];
  running = {now, idle_ns, here.settled_ns, bubble_behind(rank, task, now)};
}

Bubbles::Late Bubbles::late(std::span<const RankIndex> members, program::Lane lane,
                            int64_t now) const {
  Late late;
  if (one_stage_set_) return late;
  for (const RankIndex member : members) {
    if (ranks_[member].running[place_of(lane)].since_ns < now) continue;
    late.mixed |= late.stage_set != kNone && late.stage_set != stage_set_of_[member];
    late.stage_set = stage_set_of_[member];
  }
  return late;
}

void Bubbles::collective_begins(RankIndex rank, program::Lane lane, const Late& late,
                                int64_t idle_ns) {
  if (one_stage_set_) return;
  if (late.mixed || late.stage_set != stage_set_of_[rank]) {
    hold(ranks_[rank], lane, idle_ns);
  }
}

void Bubbles::message_begins(RankIndex rank, TaskId receive, RankIndex sender, TaskId send,
                             int64_t idle_ns) {
  if (one_stage_set_) return;
  // In a bidirectional schedule two neighbouring stages may share both of their ranks. The tasks at
  // the two ends of the message then give the stages that it connects.
  const program::Program& p = *t_.program;
  const bool between_stages =
      p.classes[t_.cls[rank]].tasks[receive].stage != p.classes[t_.cls[sender]].tasks[send].stage;
  if (between_stages || stage_set_of_[rank] != stage_set_of_[sender]) {
    hold(ranks_[rank], t_.of(rank).tasks[receive].lane, idle_ns);
  }
}

void Bubbles::hold(Rank& rank, program::Lane lane, int64_t idle_ns) {
  Running& running = rank.running[place_of(lane)];
  if (running.settled_ns != rank.settled_ns) {
    // The rank has computed since the task started. Only the idle time after that is still to be
    // attributed.
    running.settled_ns = running.since_idle_ns = rank.settled_ns;
    running.bubble_ns = 0;
  }
  running.bubble_ns += idle_ns - running.since_idle_ns;
}

void Bubbles::end(RankIndex rank, TaskId task, bool computes, int64_t now) {
  if (one_stage_set_) return;
  Rank& here = ranks_[rank];
  if (here.ended_ns != now) {
    here.ended_ns = now;
    here.ended.clear();
  }
  if (computes) return;
  const Running& running = here.running[place_of(t_.of(rank).tasks[task].lane)];
  if (running.bubble_ns > 0 && running.settled_ns == here.settled_ns) {
    here.ended.push_back({task, running.bubble_ns});
  }
}

int64_t Bubbles::bubble_behind(RankIndex rank, TaskId task, int64_t now) const {
  // Among tasks that ended at the same time, each would have delayed this one equally. The bubble
  // takes precedence.
  const Rank& here = ranks_[rank];
  if (here.ended_ns != now || here.ended.empty()) return 0;
  const std::vector<TaskId>& deps = t_.program->classes[t_.cls[rank]].tasks[task].deps;
  const TaskId before = t_.of(rank).before[task];
  int64_t most = 0;
  for (const Ended& ended : here.ended) {
    if (ended.task == before || std::find(deps.begin(), deps.end(), ended.task) != deps.end()) {
      most = std::max(most, ended.bubble_ns);
    }
  }
  return most;
}

int64_t Bubbles::before_compute(RankIndex rank, TaskId task, int64_t now, int64_t idle_ns) {
  Rank& here = ranks_[rank];
  if (one_stage_set_ || idle_ns == here.settled_ns) return 0;
  const int64_t bubble_ns = bubble_behind(rank, task, now);
  here.settled_ns = idle_ns;
  here.ended.clear();
  return bubble_ns;
}

std::vector<int64_t> Bubbles::after_all(int64_t now) const {
  std::vector<int64_t> bubbles(ranks_.size(), 0);
  if (one_stage_set_) return bubbles;
  Late last;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].ended_ns < now) continue;
    last.mixed |= last.stage_set != kNone && last.stage_set != stage_set_of_[i];
    last.stage_set = stage_set_of_[i];
  }
  for (size_t i = 0; i < ranks_.size(); ++i) {
    for (const Ended& ended : ranks_[i].ended) {
      bubbles[i] = std::max(bubbles[i], ended.bubble_ns);
    }
    if (last.mixed || last.stage_set != stage_set_of_[i]) {
      bubbles[i] += now - ranks_[i].ended_ns;
    }
  }
  return bubbles;
}

}  // namespace hocket::sim
