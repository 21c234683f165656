// SPDX-License-Identifier: Apache-2.0
#include "program/finalize.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/math.h"

namespace hocket::program {

namespace {

size_t lane_of(const Task& t) { return static_cast<size_t>(t.lane); }

void merge(Clock& into, const Clock& other) {
  for (int l = 0; l < kNumLanes; ++l)
    into[static_cast<size_t>(l)] =
        std::max(into[static_cast<size_t>(l)], other[static_cast<size_t>(l)]);
}

Clock before_everything() {
  Clock c;
  c.fill(-1);
  return c;
}

/// Builds clocks task by task, in issue order.
class ClockBuilder {
 public:
  explicit ClockBuilder(size_t n) : at_(n), position_(n) { last_.fill(kNone); }

  /// What happened before a task of this lane that has no dependencies.
  Clock lane_start(size_t lane) const {
    if (last_[lane] == kNone) return before_everything();
    return done(last_[lane], lane);
  }
  Clock done(TaskId t, size_t lane) const {
    Clock c = at_[static_cast<size_t>(t)];
    c[lane] = position_[static_cast<size_t>(t)];
    return c;
  }
  void add(TaskId t, size_t lane, const Clock& start) {
    position_[static_cast<size_t>(t)] =
        last_[lane] == kNone ? 0 : position_[static_cast<size_t>(last_[lane])] + 1;
    at_[static_cast<size_t>(t)] = start;
    last_[lane] = t;
  }
  int32_t position(TaskId t) const { return position_[static_cast<size_t>(t)]; }
  std::vector<Clock> take() { return std::move(at_); }

 private:
  std::vector<Clock> at_;
  std::vector<int32_t> position_;
  std::array<TaskId, kNumLanes> last_;
};

}  // namespace

void add_dependencies(RankClass& cls) {
  const size_t n = cls.tasks.size();
  // Per buffer: last writer, and the last reader since in each lane.
  std::vector<TaskId> writer(cls.buffers.size(), kNone);
  std::vector<std::array<TaskId, kNumLanes>> readers(cls.buffers.size());
  for (auto& r : readers) r.fill(kNone);
  ClockBuilder clock(n);
  std::vector<TaskId> wanted;
  for (size_t i = 0; i < n; ++i) {
    Task& task = cls.tasks[i];
    const size_t lane = lane_of(task);
    wanted = task.deps;
    auto want = [&](TaskId t) {
      if (t != kNone && lane_of(cls.tasks[static_cast<size_t>(t)]) != lane) wanted.push_back(t);
    };
    for (BufferId b : task.in) want(writer[static_cast<size_t>(b)]);
    for (BufferId b : task.out) {
      want(writer[static_cast<size_t>(b)]);
      for (TaskId r : readers[static_cast<size_t>(b)]) want(r);
    }
    // Latest first: what an earlier one proves is then already known.
    std::sort(wanted.begin(), wanted.end(), std::greater<>());
    Clock start = clock.lane_start(lane);
    task.deps.clear();
    for (TaskId t : wanted) {
      const size_t l = lane_of(cls.tasks[static_cast<size_t>(t)]);
      HOCKET_CHECK(t < static_cast<TaskId>(i), "task {} depends on the later task {}", i, t);
      if (start[l] >= clock.position(t)) continue;
      task.deps.push_back(t);
      merge(start, clock.done(t, l));
    }
    std::sort(task.deps.begin(), task.deps.end());
    clock.add(static_cast<TaskId>(i), lane, start);
    for (BufferId b : task.in) readers[static_cast<size_t>(b)][lane] = static_cast<TaskId>(i);
    for (BufferId b : task.out) {
      writer[static_cast<size_t>(b)] = static_cast<TaskId>(i);
      readers[static_cast<size_t>(b)].fill(kNone);
    }
  }
}

std::vector<Clock> clocks(const RankClass& cls) {
  ClockBuilder clock(cls.tasks.size());
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    const Task& task = cls.tasks[i];
    Clock start = clock.lane_start(lane_of(task));
    for (TaskId t : task.deps) {
      HOCKET_CHECK(t >= 0 && t < static_cast<TaskId>(i), "task {} depends on {}", i, t);
      merge(start, clock.done(t, lane_of(cls.tasks[static_cast<size_t>(t)])));
    }
    clock.add(static_cast<TaskId>(i), lane_of(task), start);
  }
  return clock.take();
}

std::vector<int32_t> lane_positions(const RankClass& cls) {
  std::array<int32_t, kNumLanes> next{};
  std::vector<int32_t> positions;
  for (const Task& t : cls.tasks) positions.push_back(next[lane_of(t)]++);
  return positions;
}

namespace {

constexpr int64_t kAlign = 64;
int64_t align(int64_t bytes) { return round_up(bytes, kAlign); }

/// Best-fit allocator over one address range; a free block carries what must have happened before
/// it may be used again.
class Arena {
 public:
  int64_t allocate(int64_t bytes, const Clock& now) {
    auto best = by_size_.end();
    for (auto it = by_size_.lower_bound({bytes, -1}); it != by_size_.end(); ++it)
      if (allowed(blocks_.at(it->second).needs, now)) {
        best = it;
        break;
      }
    if (best == by_size_.end()) return grow(bytes, now);
    const int64_t offset = best->second;
    Block block = blocks_.at(offset);
    erase(offset);
    if (block.bytes > bytes) insert(offset + bytes, {block.bytes - bytes, block.needs});
    return offset;
  }

  void release(int64_t offset, int64_t bytes, Clock needs) {
    auto next = blocks_.lower_bound(offset);
    if (next != blocks_.end() && next->first == offset + bytes) {
      merge(needs, next->second.needs);
      bytes += next->second.bytes;
      erase(next->first);
    }
    auto prev = blocks_.lower_bound(offset);
    if (prev != blocks_.begin()) {
      --prev;
      if (prev->first + prev->second.bytes == offset) {
        merge(needs, prev->second.needs);
        bytes += prev->second.bytes;
        offset = prev->first;
        erase(offset);
      }
    }
    insert(offset, {bytes, needs});
  }

  int64_t top() const { return top_; }

 private:
  struct Block {
    int64_t bytes;
    Clock needs;
  };
  static bool allowed(const Clock& needs, const Clock& now) {
    for (size_t l = 0; l < kNumLanes; ++l)
      if (needs[l] > now[l]) return false;
    return true;
  }
  int64_t grow(int64_t bytes, const Clock& now) {
    // A free block at the end of the range is extended.
    if (!blocks_.empty()) {
      auto last = std::prev(blocks_.end());
      if (last->first + last->second.bytes == top_ && allowed(last->second.needs, now)) {
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
  std::set<std::pair<int64_t, int64_t>> by_size_;
  int64_t top_ = 0;
};

}  // namespace

void plan_memory(const Program& program, RankClass& cls) {
  const size_t n = cls.tasks.size(), m = cls.buffers.size();
  const std::vector<Clock> at = clocks(cls);
  const std::vector<int32_t> position = lane_positions(cls);
  std::vector<TaskId> last_use(m, kNone);
  std::vector<Clock> used(m, before_everything());
  for (size_t i = 0; i < n; ++i) {
    const Task& t = cls.tasks[i];
    for (const auto* list : {&t.in, &t.out})
      for (BufferId b : *list) {
        last_use[static_cast<size_t>(b)] = static_cast<TaskId>(i);
        used[static_cast<size_t>(b)][lane_of(t)] = position[i];
      }
  }
  cls.persistent_bytes = 0;
  bool ragged = false;
  for (Buffer& b : cls.buffers) {
    b.offset = kNone;
    ragged |= b.expected_bytes != kNone;
    if (b.kind != BufferKind::step) cls.persistent_bytes += align(b.type.bytes());
  }
  int64_t workspace = 0;
  for (const Task& t : cls.tasks) workspace = std::max(workspace, program.kind(t).workspace);

  // Walks the tasks in issue order; buffers are placed when first written and freed after their
  // last use. Returns the height of the arena.
  auto place = [&](auto size_of_buffer, std::vector<int64_t>& offset) {
    Arena arena;
    std::vector<TaskId> last = last_use;
    for (size_t i = 0; i < n; ++i) {
      const Task& t = cls.tasks[i];
      auto planned = [&](size_t b) { return cls.buffers[b].kind == BufferKind::step; };
      for (BufferId id : t.out) {
        const size_t b = static_cast<size_t>(id);
        if (planned(b) && offset[b] == kNone)
          offset[b] = arena.allocate(align(std::max<int64_t>(size_of_buffer(cls.buffers[b]), 1)), at[i]);
      }
      for (const auto* list : {&t.in, &t.out})
        for (BufferId id : *list) {
          const size_t b = static_cast<size_t>(id);
          if (last[b] != static_cast<TaskId>(i) || !planned(b)) continue;
          last[b] = kNone;  // a buffer may occur twice in one task
          HOCKET_CHECK(offset[b] != kNone, "{} reads a buffer that nothing wrote",
                       program.kind(t).op);
          arena.release(offset[b], align(std::max<int64_t>(size_of_buffer(cls.buffers[b]), 1)),
                        used[b]);
        }
    }
    return arena.top();
  };
  std::vector<int64_t> offset(m, kNone);
  const int64_t top = place([](const Buffer& b) { return b.type.bytes(); }, offset);
  for (size_t b = 0; b < m; ++b) cls.buffers[b].offset = offset[b];
  // Kernels run one after the other in the compute lane and share one workspace.
  cls.workspace_offset = workspace > 0 ? top : kNone;
  cls.arena_bytes = top + align(workspace);
  for (Task& t : cls.tasks) {
    t.workspace = program.kind(t).workspace > 0 ? cls.workspace_offset : kNone;
  }
  cls.expected_bytes = cls.arena_bytes;
  if (ragged) {
    std::vector<int64_t> scratch(m, kNone);
    const int64_t expected = align(workspace) + place(
        [](const Buffer& b) { return b.expected_bytes != kNone ? b.expected_bytes : b.type.bytes(); },
        scratch);
    // Smaller buffers can pack worse.
    cls.expected_bytes = std::min(cls.arena_bytes, expected);
  }
}

void finalize(Program& program) {
  for (RankClass& cls : program.classes) {
    add_dependencies(cls);
    plan_memory(program, cls);
  }
}

}  // namespace hocket::program
