// SPDX-License-Identifier: Apache-2.0
#include "program/finalize.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "base/stop.h"
#include "program/largest_first.h"
#include "program/memory.h"
#include "program/views.h"

namespace hocket::program {

void merge(Clock& into, const Clock& other) {
  for (size_t lane = 0; lane < into.size(); ++lane) {
    into[lane] = std::max(into[lane], other[lane]);
  }
}

namespace {

Clock before_everything() {
  Clock clock;
  clock.fill(-1);
  return clock;
}

/// Builds clocks task by task, in issue order.
class ClockBuilder {
 public:
  explicit ClockBuilder(size_t n) : at_(n), position_(n) { last_.fill(kNone); }

  /// Returns the events before a task of this lane without dependencies.
  Clock lane_start(size_t lane) const {
    if (last_[lane] == kNone) return before_everything();
    return done(last_[lane], lane);
  }
  Clock done(TaskId task, size_t lane) const {
    Clock clock = at_[task];
    clock[lane] = position_[task];
    return clock;
  }
  void add(TaskId task, size_t lane, const Clock& start) {
    position_[task] = last_[lane] == kNone ? 0 : position_[last_[lane]] + 1;
    at_[task] = start;
    last_[lane] = task;
  }
  int32_t position(TaskId task) const { return position_[task]; }
  std::vector<Clock> take() { return std::move(at_); }

 private:
  std::vector<Clock> at_;
  std::vector<int32_t> position_;
  std::array<TaskId, kNumLanes> last_;
};

}  // namespace

void add_dependencies(const Program& program, RankClass& cls) {
  // Walks the tasks in issue order. A task depends, in other lanes only, on the last writer of its
  // inputs, and on its outputs' last writer and all readers since. One reader per lane is enough:
  // the last one implies the others. Dependencies that the clock of its lane or the kept ones imply
  // are dropped, given ones too.
  const size_t n = cls.tasks.size();
  std::vector<TaskId> writer(cls.buffers.size(), kNone);
  std::vector<std::array<TaskId, kNumLanes>> readers(cls.buffers.size());
  for (auto& last_readers : readers) {
    last_readers.fill(kNone);
  }
  ClockBuilder clock(n);
  const Views views(program, &cls - program.classes.data());
  std::vector<TaskId> wanted;
  for (size_t i = 0; i < n; ++i) {
    stop_if_asked();
    Task& task = cls.tasks[i];
    const size_t lane = place_of(task.lane);
    wanted = task.deps;
    const auto want = [&](TaskId other) {
      if (other != kNone && place_of(cls.tasks[other].lane) != lane) {
        wanted.push_back(other);
      }
    };
    const auto want_readers = [&](BufferId buffer) {
      for (TaskId reader : readers[buffer]) {
        want(reader);
      }
    };
    for (BufferId input : task.in) {
      want(writer[input]);
      for (BufferId other : views.meets(input)) {
        want(writer[other]);
      }
    }
    for (BufferId output : task.out) {
      want(writer[output]);
      want_readers(output);
      for (BufferId other : views.meets(output)) {
        want(writer[other]);
        want_readers(other);
      }
    }
    // Latest first, since a later dependency may imply an earlier one.
    std::sort(wanted.begin(), wanted.end(), std::greater<>());
    Clock start = clock.lane_start(lane);
    task.deps.clear();
    for (TaskId dep : wanted) {
      const size_t dep_lane = place_of(cls.tasks[dep].lane);
      HOCKET_CHECK(dep < i, "task {} depends on the later task {}", i, dep);
      if (start[dep_lane] >= clock.position(dep)) continue;
      task.deps.push_back(dep);
      merge(start, clock.done(dep, dep_lane));
    }
    std::sort(task.deps.begin(), task.deps.end());
    clock.add(i, lane, start);
    for (BufferId input : task.in) {
      readers[input][lane] = i;
    }
    for (BufferId output : task.out) {
      writer[output] = i;
      readers[output].fill(kNone);
    }
  }
}

std::vector<Clock> clocks(const RankClass& cls) {
  ClockBuilder clock(cls.tasks.size());
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    const Task& task = cls.tasks[i];
    Clock start = clock.lane_start(place_of(task.lane));
    for (TaskId dep : task.deps) {
      HOCKET_CHECK(dep >= 0 && dep < i, "task {} depends on {}", i, dep);
      merge(start, clock.done(dep, place_of(cls.tasks[dep].lane)));
    }
    clock.add(i, place_of(task.lane), start);
  }
  return clock.take();
}

std::vector<int32_t> lane_positions(const RankClass& cls) {
  std::array<int32_t, kNumLanes> next{};
  std::vector<int32_t> positions;
  for (const Task& task : cls.tasks) {
    positions.push_back(next[place_of(task.lane)]++);
  }
  return positions;
}

namespace {

constexpr int64_t kAlign = 64;
int64_t align(int64_t bytes) { return round_up(bytes, kAlign); }
/// Keeps the events that both know to have finished.
void take_common(Clock& into, const Clock& other) {
  for (size_t lane = 0; lane < into.size(); ++lane) {
    into[lane] = std::min(into[lane], other[lane]);
  }
}
/// Addresses that a step buffer takes.
int64_t bytes_of(const Buffer& buffer) { return align(std::max<int64_t>(buffer.type.bytes(), 1)); }

/// Best-fit allocator over one address range. A free block carries the events that must precede its
/// reuse.
class Arena {
 public:
  int64_t allocate(int64_t bytes, const Clock& now) {
    auto best = fit(bytes, now);
    if (best == by_size_.end()) {
      join(now);
      best = fit(bytes, now);
    }
    if (best == by_size_.end()) return grow(bytes, now);
    const int64_t offset = best->second;
    Block block = blocks_.at(offset);
    erase(offset);
    if (block.bytes > bytes) {
      insert(offset + bytes, {block.bytes - bytes, block.needs});
    }
    return offset;
  }

  void release(int64_t offset, int64_t bytes, const Clock& needs) {
    insert(offset, {bytes, needs});
  }

  int64_t top() const { return top_; }

 private:
  struct Block {
    int64_t bytes;
    Clock needs;
  };
  using Sizes = std::set<std::pair<int64_t, int64_t>>;

  /// The smallest free block that is large enough and may be used now.
  Sizes::iterator fit(int64_t bytes, const Clock& now) const {
    auto it = by_size_.lower_bound({bytes, -1});
    while (it != by_size_.end() && !happened(blocks_.at(it->second).needs, now)) {
      ++it;
    }
    return it;
  }
  /// Joins free neighbours that may be used now; one that waits for another lane would make its
  /// neighbours wait. Requires: no block fits. A block that keeps its size fits the next buffer of
  /// that size.
  void join(const Clock& now) {
    for (auto it = blocks_.begin(); it != blocks_.end();) {
      auto next = std::next(it);
      if (next == blocks_.end()) break;
      const bool neighbours = it->first + it->second.bytes == next->first;
      if (neighbours && happened(it->second.needs, now) && happened(next->second.needs, now)) {
        const int64_t offset = it->first;
        Block joined{it->second.bytes + next->second.bytes, it->second.needs};
        merge(joined.needs, next->second.needs);
        erase(next->first);
        erase(offset);
        insert(offset, joined);
        it = blocks_.find(offset);
      } else {
        it = next;
      }
    }
  }
  int64_t grow(int64_t bytes, const Clock& now) {
    // A free block at the end of the range is extended.
    if (!blocks_.empty()) {
      auto last = std::prev(blocks_.end());
      if (last->first + last->second.bytes == top_ && happened(last->second.needs, now)) {
        const int64_t offset = last->first;
        erase(offset);
        top_ = offset + bytes;
        return offset;
      }
    }
    const int64_t offset = top_;
    top_ += bytes;
    return offset;
  }
  void insert(int64_t offset, Block block) {
    by_size_.insert({block.bytes, offset});
    blocks_[offset] = block;
  }
  void erase(int64_t offset) {
    auto it = blocks_.find(offset);
    by_size_.erase({it->second.bytes, offset});
    blocks_.erase(it);
  }
  std::map<int64_t, Block> blocks_;
  Sizes by_size_;
  int64_t top_ = 0;
};

/// Slots of ragged buffers. A slot is taken and released whole, and its tenants have equal bound
/// and expected size, so each reuses the pages of the previous one. (A slot shared by large and
/// small buffers would be held by a small one while a large one creates another: 30 % more for a
/// pipeline that keeps one size for its backward passes.)
class Slots {
 public:
  /// The slot of this size that has been free for longest and may be used; a new one if there is
  /// none.
  size_t allocate(int64_t bound, int64_t expected, const Clock& now) {
    std::vector<size_t>& free = free_[{bound, expected}];
    for (auto it = free.begin(); it != free.end(); ++it) {
      const size_t slot = *it;
      if (!happened(slots_[slot].needs, now)) continue;
      free.erase(it);
      return slot;
    }
    slots_.push_back({bound, expected, before_everything()});
    return slots_.size() - 1;
  }
  void release(size_t slot, const Clock& needs) {
    slots_[slot].needs = needs;
    free_[{slots_[slot].bound, slots_[slot].expected}].push_back(slot);
  }
  /// Address of every slot, one after the other from `begin` on, and last the end of them all.
  std::vector<int64_t> addresses(int64_t begin) const {
    std::vector<int64_t> list{begin};
    for (const Slot& slot : slots_) {
      list.push_back(list.back() + slot.bound);
    }
    return list;
  }

 private:
  struct Slot {
    int64_t bound, expected;
    Clock needs;  ///< events before its reuse
  };
  std::vector<Slot> slots_;
  std::map<std::pair<int64_t, int64_t>, std::vector<size_t>> free_;  // by bound and expected size
};

/// Dense buffers of a space, in the order of their first uses.
struct Dense {
  std::vector<Lifetime> lifetimes;
  std::vector<BufferId> ids;
  int64_t live = 0, most_live = 0;  ///< bytes in use, in issue order

  void add(const Lifetime& lifetime, BufferId id) {
    lifetimes.push_back(lifetime);
    ids.push_back(id);
    live += lifetime.bytes;
    most_live = std::max(most_live, live);
  }
};

/// Places dense buffers, those of at least `large` bytes first, the others behind them. Returns an
/// address for each, and the end of all; empty: too many meet.
std::pair<std::vector<int64_t>, int64_t> placed_by_size(const Dense& dense, int64_t large) {
  constexpr int64_t kMaxPairs = int64_t{8} << 20;  // of 8 bytes
  std::vector<int64_t> offsets(dense.ids.size(), 0);
  int64_t end = 0;
  for (const bool is_large : {true, false}) {
    std::vector<Lifetime> lifetimes;
    std::vector<size_t> which;
    for (size_t i = 0; i < dense.ids.size(); ++i) {
      if ((dense.lifetimes[i].bytes >= large) != is_large) continue;
      lifetimes.push_back(dense.lifetimes[i]);
      which.push_back(i);
    }
    const std::vector<int64_t> at = place_largest_first(lifetimes, kMaxPairs);
    if (at.size() < which.size()) return {};
    const int64_t begin = end;
    for (size_t i = 0; i < which.size(); ++i) {
      offsets[which[i]] = begin + at[i];
      end = std::max(end, begin + at[i] + lifetimes[i].bytes);
    }
  }
  return {std::move(offsets), end};
}

/// Places the dense buffers of a space again, the largest first, if their arena has large gaps, and
/// keeps that if it is smaller. Returns the size of the arena, `arena_bytes` before.
int64_t without_gaps(const Dense& dense, int64_t arena_bytes, RankClass& cls) {
  // Small arenas, and those without much to gain, are not worth the time.
  constexpr int64_t kMinBytes = int64_t{16} << 20;
  constexpr double kLargeGaps = 1.1;
  // Buffers below such a share of the arena are many, and take little; the second share where the
  // first leaves too many.
  constexpr int64_t kSmallShares[] = {1 << 14, 1 << 12};
  const double worthwhile = kLargeGaps * static_cast<double>(dense.most_live);
  if (arena_bytes < kMinBytes || static_cast<double>(arena_bytes) <= worthwhile) {
    return arena_bytes;
  }
  for (const int64_t share : kSmallShares) {
    const auto [offsets, end] = placed_by_size(dense, arena_bytes / share);
    if (offsets.empty()) continue;
    if (end >= arena_bytes) return arena_bytes;
    for (size_t i = 0; i < offsets.size(); ++i) {
      cls.buffers[dense.ids[i]].offset = offsets[i];
    }
    return end;
  }
  return arena_bytes;
}

/// Workspace of a kind in the arena: a collective's is the transport's.
int64_t arena_workspace(const Kind& kind) { return is_communication(kind) ? 0 : kind.workspace; }

}  // namespace

void plan_memory(const Program& program, RankClass& cls) {
  // Addresses, in each space from 0: dense buffers, cut and joined as they come and go; for each
  // lane that works there, the workspace that its kernels share, since they run one after the
  // other; slots of ragged buffers.
  // Tasks are walked in issue order: a buffer is placed when it is first written and freed after
  // its last use, with the clock of all its uses, its views' too. The next buffer there must know
  // them finished, in every lane in which it is used: views of one base may be written in several,
  // none after the other.
  const size_t num_tasks = cls.tasks.size();
  const size_t num_buffers = cls.buffers.size();
  const std::vector<Clock> at = clocks(cls);
  const std::vector<int32_t> position = lane_positions(cls);
  std::vector<TaskId> last_use(num_buffers, kNone);
  std::vector<Clock> used(num_buffers, before_everything());
  std::vector<Clock> known(num_buffers);  // when the first use in any lane starts
  std::array<int64_t, kNumLanes> workspace = {};
  for (size_t i = 0; i < num_tasks; ++i) {
    const Task& task = cls.tasks[i];
    int64_t& of_lane = workspace[place_of(task.lane)];
    of_lane = std::max(of_lane, arena_workspace(program.kind(task)));
    for (const auto* list : {&task.in, &task.out}) {
      for (BufferId buffer : *list) {
        const BufferId root = cls.root(buffer);
        int32_t& latest = used[root][place_of(task.lane)];
        if (last_use[root] == kNone) {
          known[root] = at[i];
        } else if (latest < 0) {
          take_common(known[root], at[i]);
        }
        last_use[root] = i;
        latest = position[i];
      }
    }
  }

  std::array<Arena, kNumSpaces> arenas;
  std::array<Slots, kNumSpaces> slots;
  std::array<Dense, kNumSpaces> dense;
  std::vector<size_t> slot_of(num_buffers, SIZE_MAX);
  for (Buffer& buffer : cls.buffers) {
    buffer.offset = kNone;
  }
  for (size_t i = 0; i < num_tasks; ++i) {
    stop_if_asked();
    const Task& task = cls.tasks[i];
    for (BufferId id : task.out) {
      const size_t index = static_cast<size_t>(cls.root(id));
      Buffer& buffer = cls.buffers[index];
      if (buffer.kind != BufferKind::step || buffer.offset != kNone || slot_of[index] != SIZE_MAX) {
        continue;
      }
      if (buffer.expected_bytes != kNone) {
        slot_of[index] = slots[place_of(buffer.space)].allocate(
            bytes_of(buffer), buffer.expected_bytes, known[index]);
      } else {
        buffer.offset = arenas[place_of(buffer.space)].allocate(bytes_of(buffer), known[index]);
        dense[place_of(buffer.space)].add({bytes_of(buffer), known[index], used[index]}, index);
      }
    }
    for (const auto* list : {&task.in, &task.out}) {
      for (BufferId id : *list) {
        const size_t index = static_cast<size_t>(cls.root(id));
        const Buffer& buffer = cls.buffers[index];
        if (last_use[index] != i || buffer.kind != BufferKind::step) continue;
        last_use[index] = kNone;  // a buffer may occur twice in one task
        if (slot_of[index] != SIZE_MAX) {
          slots[place_of(buffer.space)].release(slot_of[index], used[index]);
          continue;
        }
        HOCKET_CHECK(buffer.offset != kNone, "{} reads a buffer that nothing wrote",
                     program.kind(task).op);
        arenas[place_of(buffer.space)].release(buffer.offset, bytes_of(buffer), used[index]);
        dense[place_of(buffer.space)].live -= bytes_of(buffer);
      }
    }
  }

  std::array<int64_t, kNumSpaces> end = {};
  for (size_t space = 0; space < kNumSpaces; ++space) {
    end[space] = without_gaps(dense[space], arenas[space].top(), cls);
  }
  std::array<int64_t, kNumLanes> workspace_at = {};
  for (size_t lane = 0; lane < workspace.size(); ++lane) {
    int64_t& at = end[place_of(workspace_space(static_cast<Lane>(lane)))];
    workspace_at[lane] = at;
    at += align(workspace[lane]);
  }
  for (Task& task : cls.tasks) {
    const bool has = arena_workspace(program.kind(task)) > 0;
    task.workspace = has ? workspace_at[place_of(task.lane)] : kNone;
  }
  const std::vector<int64_t> address[kNumSpaces] = {slots[0].addresses(end[0]),
                                                    slots[1].addresses(end[1])};
  for (size_t index = 0; index < num_buffers; ++index) {
    Buffer& buffer = cls.buffers[index];
    if (slot_of[index] != SIZE_MAX) {
      buffer.offset = address[place_of(buffer.space)][slot_of[index]];
    }
  }
  cls.arena_bytes = address[place_of(Space::device)].back();
  cls.host_arena_bytes = address[place_of(Space::host)].back();
}

void finalize(Program& program) {
  for (RankClass& cls : program.classes) {
    add_dependencies(program, cls);
    plan_memory(program, cls);
  }
}

}  // namespace hocket::program
