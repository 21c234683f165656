// SPDX-License-Identifier: Apache-2.0
// bucket: merges collectives of parameters and gradients over the same ranks into coalesced ones of
// plan.bucket_mib: fewer, larger messages. Gradient all-reduces (PyTorch DDP, Li et al., arXiv
// 2006.15704) and reduce-scatters (ZeRO, FSDP) still start during the backward pass, and end in
// small buckets, since no compute hides the last one. Sharded parameters that are needed together
// are gathered together, layer by layer.
#include <algorithm>
#include <map>

#include "base/stop.h"
#include "collectives/parts.h"
#include "passes/pass.h"
#include "program/views.h"

namespace hocket::passes {

using program::BufferId;
using program::kNone;
using program::Program;
using program::RankClass;
using program::Task;
using program::TaskId;

namespace {

struct OpenBucket {
  std::vector<size_t> tasks;  // positions in the old list
  int64_t bytes = 0;
  int64_t to_come = 0;  ///< bytes of reductions not yet issued, its own among them
};

/// Smaller messages cost more than they gain.
constexpr int64_t kMinBucketBytes = 1 << 20;

/// Key of a bucket: collectives that differ only in their operands.
struct BucketKey {
  program::GroupId group;
  comm::Id op;
  std::vector<graph::Attrs> attrs;  ///< by class with one list, without sizes
  program::Phase phase;
  auto operator<=>(const BucketKey&) const = default;
};

/// A task that is a candidate for a bucket, and the key of the bucket that it may join.
struct Candidate {
  bool merges = false;
  BucketKey key{};
  int64_t bytes = 0;
};

/// Returns whether the lists of two classes are equal up to operand sizes, so that the same tasks
/// can be merged in both.
bool alike_but_for_sizes(const Program& program, const RankClass& one, const RankClass& other) {
  const auto same_task = [&](const Task& mine, const Task& theirs) {
    const program::Kind& kind = program.kind(mine);
    const program::Kind& other_kind = program.kind(theirs);
    return kind.op == other_kind.op && kind.communication == other_kind.communication &&
           mine.lane == theirs.lane && mine.phase == theirs.phase && mine.group == theirs.group &&
           mine.in == theirs.in && mine.out == theirs.out && mine.deps == theirs.deps;
  };
  const auto same_buffer = [](const program::Buffer& mine, const program::Buffer& theirs) {
    return mine.kind == theirs.kind && mine.base == theirs.base && mine.dim == theirs.dim;
  };
  return std::equal(one.tasks.begin(), one.tasks.end(), other.tasks.begin(), other.tasks.end(),
                    same_task) &&
         std::equal(one.buffers.begin(), one.buffers.end(), other.buffers.begin(),
                    other.buffers.end(), same_buffer);
}

/// Returns, per class, the first class with an equal list up to sizes.
std::vector<size_t> first_alike(const Program& program) {
  std::vector<size_t> first;
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    first.push_back(0);
    while (first[cls] < cls &&
           !alike_but_for_sizes(program, program.classes[first[cls]], program.classes[cls])) {
      ++first[cls];
    }
  }
  return first;
}

/// The mergeable tasks of a class.
class Mergeable {
 public:
  Mergeable(const Program& program, const RankClass& cls, const std::vector<size_t>& alike)
      : program_(program), cls_(cls), first_alike_(alike) {}

  /// Returns whether the task is a gradient all-reduce or reduce-scatter, or a parameter gather.
  bool operator()(const Task& task) {
    const program::Kind& kind = program_.kind(task);
    if (task.group == kNone || !program::is_collective(kind)) return false;
    const comm::Op& op = comm::op(kind.communication);
    if (!op.list || kind.in.empty() || !graph::is_floating(kind.in[0].dtype)) return false;
    if (task.phase == program::Phase::grad) {
      if (op.in_place && (task.in != task.out || kind.in[0].numel() == 1)) return false;
    } else if (!gathers_parameter(op, task)) {
      return false;
    }
    // Collectives across classes with other lists keep their place: every class has the same order
    // of them.
    const auto [known, fresh] = keeps_place_.try_emplace(task.group);
    if (fresh) {
      known->second = meets_others(program_.groups[task.group]);
    }
    return !known->second;
  }

 private:
  bool meets_others(const program::Group& group) const {
    const std::vector<std::vector<program::ClassId>> meetings = program_.meetings(group);
    return std::any_of(meetings.begin(), meetings.end(), [&](const auto& met) {
      return std::any_of(met.begin(), met.end(), [&](program::ClassId cls) {
        return first_alike_[static_cast<size_t>(cls.value())] !=
               first_alike_[static_cast<size_t>(met[0].value())];
      });
    });
  }
  bool gathers_parameter(const comm::Op& op, const Task& task) const {
    const bool gathers = op.move.placed == comm::Move::Placed::slot;
    return gathers && std::all_of(task.in.begin(), task.in.end(), [&](BufferId input) {
             return cls_.buffers[cls_.root(input)].kind == program::BufferKind::persistent ||
                    task.phase == program::Phase::optimizer;
           });
  }

  const Program& program_;
  const RankClass& cls_;
  const std::vector<size_t>& first_alike_;  // by class
  std::map<program::GroupId, bool> keeps_place_;
};

/// Returns, per task of classes with equal lists up to sizes, a decision for all of them, so that
/// collectives still match in order.
std::vector<Candidate> candidates(const Program& program, const std::vector<size_t>& classes,
                                  const std::vector<size_t>& alike) {
  std::vector<Candidate> list(program.classes[classes[0]].tasks.size());
  for (Candidate& candidate : list) {
    candidate.merges = true;
  }
  for (size_t cls : classes) {
    const std::vector<Task>& tasks = program.classes[cls].tasks;
    Mergeable mergeable(program, program.classes[cls], alike);
    for (size_t i = 0; i < tasks.size(); ++i) {
      Candidate& candidate = list[i];
      candidate.merges = candidate.merges && mergeable(tasks[i]);
      if (!candidate.merges) continue;
      const program::Kind& kind = program.kind(tasks[i]);
      candidate.key.group = tasks[i].group;
      candidate.key.op = kind.communication;
      candidate.key.phase = tasks[i].phase;
      graph::Attrs& attrs = candidate.key.attrs.emplace_back(kind.attrs);
      if (comm::has_sizes(attrs)) {
        comm::set_sizes({1}, &attrs);
      }
      candidate.bytes = std::max(candidate.bytes, kind.bytes);
    }
  }
  return list;
}

class Bucketing {
 public:
  Bucketing(Program& program, program::ClassId cls, int64_t limit,
            const std::vector<Candidate>& candidates)
      : program_(program),
        cls_(program.classes[cls]),
        views_(program, cls),
        limit_(limit),
        candidates_(candidates),
        renamed_(cls_.tasks.size(), kNone),
        joined_(cls_.tasks.size(), false) {}

  void run() {
    // A bucket closes
    // - when it is full, or before a member that would exceed its limit;
    // - before a task that uses its members' buffers, or depends on a gather among them;
    // - if it is of a forward or backward pass, before any task but one that joins such a bucket;
    // - before the last exchange of a pass, which needs the link, if it has much of the remaining
    //   reductions.
    // A task that depends on a reduction only to reuse its memory depends on the bucket only
    // through the bucket's last member. Otherwise compute would stall on gradients of the same
    // time.
    for (const Candidate& task : candidates_) {
      if (task.merges && task.key.phase == program::Phase::grad) {
        open_[task.key].to_come += task.bytes;
      }
    }
    const size_t last_exchange = find_last_exchange();
    for (size_t i = 0; i < cls_.tasks.size(); ++i) {
      stop_if_asked();
      const Task& task = cls_.tasks[i];
      const bool merges = candidates_[i].merges;
      for (auto& [key, bucket] : open_) {
        if (must_follow(key, bucket, task) ||
            (is_pass(key.phase) && !(merges && is_pass(task.phase))) ||
            (key.phase == program::Phase::grad && has_much_of_rest(bucket) && i == last_exchange)) {
          flush(bucket);
        }
      }
      if (!merges) {
        emit(i);
        continue;
      }
      const int64_t bytes = candidates_[i].bytes;
      OpenBucket& bucket = open_[candidates_[i].key];
      if (bucket.bytes + bytes > most(bucket, task)) {
        flush(bucket);
      }
      bucket.tasks.push_back(i);
      bucket.bytes += bytes;
      if (bucket.bytes >= most(bucket, task)) {
        flush(bucket);
      }
    }
    for (auto& [key, bucket] : open_) {
      flush(bucket);
    }
    for (size_t place = 0; place < tasks_.size(); ++place) {
      std::vector<TaskId>& deps = tasks_[place].deps;
      std::erase_if(deps, [&](TaskId dep) { return joined_[dep] || renamed_[dep] >= place; });
      for (TaskId& dep : deps) {
        dep = renamed_[dep];
      }
    }
    cls_.tasks = std::move(tasks_);
  }

 private:
  /// Returns the limit of the bucket: for reductions at most half of the remaining bytes, so that
  /// the last ones are small.
  int64_t most(const OpenBucket& bucket, const Task& task) const {
    if (task.phase != program::Phase::grad) return limit_;
    return std::min(limit_, std::max(kMinBucketBytes, bucket.to_come / 2));
  }

  /// Returns whether the bucket has a quarter of the remaining bytes, and is worth a message.
  static bool has_much_of_rest(const OpenBucket& bucket) {
    return bucket.bytes >= std::max(kMinBucketBytes, bucket.to_come / 4);
  }
  /// The last collective of a pass that keeps its place, or the first of several in a row.
  size_t find_last_exchange() const {
    const auto is_exchange = [&](size_t i) {
      const Task& task = cls_.tasks[i];
      return is_pass(task.phase) && program::is_collective(program_.kind(task)) &&
             !candidates_[i].merges;
    };
    size_t behind = cls_.tasks.size();
    while (behind > 0 && !is_exchange(behind - 1)) {
      --behind;
    }
    if (behind == 0) return cls_.tasks.size();
    size_t first = behind - 1;
    while (first > 0 && is_exchange(first - 1)) {
      --first;
    }
    return first;
  }

  static bool is_pass(program::Phase phase) {
    return phase == program::Phase::forward || phase == program::Phase::backward;
  }

  /// Returns whether the task must come after the bucket. It must if it depends on a gather of the
  /// bucket, or shares a buffer, or views of one, with a member. A dependency on a reduction alone
  /// moves to the bucket's last member.
  bool must_follow(const BucketKey& key, const OpenBucket& bucket, const Task& task) const {
    for (size_t i : bucket.tasks) {
      const Task& member = cls_.tasks[i];
      if (key.phase != program::Phase::grad &&
          std::find(task.deps.begin(), task.deps.end(), TaskId(static_cast<int32_t>(i))) !=
              task.deps.end()) {
        return true;
      }
      if (touches_any(member.in, task) || touches_any(member.out, task)) return true;
    }
    return false;
  }
  bool touches_any(const std::vector<BufferId>& buffers, const Task& task) const {
    return std::any_of(buffers.begin(), buffers.end(), [&](BufferId buffer) {
      const std::span<const BufferId> parts = views_.meets(buffer);
      const auto meets = [&](BufferId other) {
        return other == buffer || std::find(parts.begin(), parts.end(), other) != parts.end();
      };
      return std::any_of(task.in.begin(), task.in.end(), meets) ||
             std::any_of(task.out.begin(), task.out.end(), meets);
    });
  }
  void emit(size_t i) {
    renamed_[i] = tasks_.size();
    tasks_.push_back(cls_.tasks[i]);
  }
  void flush(OpenBucket& bucket) {
    // Merges the collectives of a bucket at the place of the last one: concatenated operands, and
    // all dependencies. `renamed_` maps each to the merged one. A bucket of one stays as it is.
    if (bucket.tasks.size() == 1) {
      emit(bucket.tasks[0]);
    } else if (bucket.tasks.size() > 1) {
      Task merged = cls_.tasks[bucket.tasks.back()];
      program::Kind all;
      all.attrs = program_.kind(merged).attrs;
      const comm::Id op = program_.kind(merged).communication;
      merged.in.clear();
      merged.out.clear();
      merged.deps.clear();
      std::vector<int64_t> sizes;
      for (size_t i : bucket.tasks) {
        const Task& task = cls_.tasks[i];
        const program::Kind& kind = program_.kind(task);
        append(&merged.in, task.in);
        append(&merged.out, task.out);
        append(&merged.deps, task.deps);
        append(&all.in, kind.in);
        append(&all.out, kind.out);
        append(&sizes, comm::sizes_of(kind.attrs, kind.in.size()));
        renamed_[i] = tasks_.size();
        joined_[i] = task.phase == program::Phase::grad && i != bucket.tasks.back();
      }
      comm::set_sizes(sizes, &all.attrs);
      merged.kind = program_.intern(
          program::communication_kind(op, all.attrs, all.in, all.out, program_.symbols));
      tasks_.push_back(std::move(merged));
    }
    bucket = {{}, 0, bucket.to_come - bucket.bytes};
  }
  template <class T>
  static void append(std::vector<T>* list, const std::vector<T>& more) {
    list->insert(list->end(), more.begin(), more.end());
  }

  Program& program_;
  RankClass& cls_;
  const program::Views views_;
  const int64_t limit_;
  const std::vector<Candidate>& candidates_;  // by task
  std::map<BucketKey, OpenBucket> open_;
  std::vector<Task> tasks_;
  std::vector<TaskId> renamed_;
  std::vector<bool> joined_;  ///< sums that are in a bucket before its last one
};

struct BucketOptions {
  double bucket_mib = 25;
  void fields(Fields& visit) {
    visit("bucket_mib", bucket_mib,
          "most MiB that one transfer of gradients or parameters sums, scatters or gathers; a "
          "tensor of more goes alone")
        .min(0)
        .max(1 << 20);
  }
};

void run_bucket(Program& program, const BucketOptions& options) {
  const auto limit = static_cast<int64_t>(options.bucket_mib * (1 << 20));
  const std::vector<size_t> alike = first_alike(program);
  std::map<size_t, std::vector<size_t>> classes;  // by the first of the equal ones
  for (size_t cls = 0; cls < alike.size(); ++cls) {
    classes[alike[cls]].push_back(cls);
  }
  std::map<size_t, std::vector<Candidate>> tasks;
  for (const auto& [first, same] : classes) {
    tasks[first] = candidates(program, same, alike);
  }
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    Bucketing(program, cls, limit, tasks.at(alike[cls])).run();
  }
}

}  // namespace

Pass pass_bucket() {
  return program_pass("bucket", "merges collectives of gradients and parameters (plan.bucket_mib)",
                      true, {"bucket_mib=0", "bucket_mib=0.001"}, run_bucket);
}

}  // namespace hocket::passes
