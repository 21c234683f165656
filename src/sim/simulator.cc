// SPDX-License-Identifier: Apache-2.0
// Prediction of a step: cost model, durations, replay, report.
#include "sim/simulator.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "ops/op.h"
#include "program/moves.h"
#include "program/parts.h"
#include "program/transfer.h"
#include "sim/interval.h"
#include "sim/partial.h"
#include "sim/tables.h"

namespace hocket::sim {
namespace {

using cost::CostModel;
using cost::GroupShape;
using cost::Kind;
using cost::Provenance;
using cost::TaskCost;
using program::Lane;
using program::Task;

/// Durations from a cost model; each distinct (kind, accumulation[, lane, shape]) is computed once.
class ModelDurations : public Durations {
 public:
  ModelDurations(const Program& program, const CostModel& costs)
      : p_(program),
        costs_(costs),
        network_(costs.cluster()),
        work_(program.kinds.size()),
        more_launches_(program.kinds.size(), -1) {
    for (const program::RankClass& rank_class : program.classes) {
      stages_.push_back(program::stages_of(rank_class));
    }
  }

  int64_t work_ns(ClassId cls, TaskId task) override { return work(0, cls, task).ns; }
  size_t device_of(int32_t rank) const override { return costs_.cluster().device_type_of(rank); }
  int64_t work_ns_on(size_t device, ClassId cls, TaskId task) override {
    return work(device, cls, task).ns;
  }

  int64_t more_launches_ns(ClassId cls, TaskId task) override {
    const Task& asked = p_.classes[cls].tasks[task];
    int64_t& known = more_launches_[asked.kind];
    if (known < 0) {
      known = costs_.more_launches_ns(p_.kind(asked));
    }
    return known;
  }

  bool host_reads(ClassId cls, TaskId task) override {
    const Task& asked = p_.classes[cls].tasks[task];
    if (!costs_.host_reads(p_.kind(asked))) return false;
    return asked.peer_axis == program::kNone || joins_stages(cls, asked);
  }

  TaskCost work(size_t device, ClassId cls, TaskId task) {
    const Task& asked = p_.classes[cls].tasks[task];
    const WorkKey key{asked.accumulate.bits(), device,
                      program::is_of_host(asked.lane) ? asked.lane : Lane::compute};
    auto& known = work_[asked.kind];
    for (const auto& [of, cost] : known) {
      if (of == key) return cost;
    }
    known.emplace_back(key, costs_.work(p_.kind(asked), key.accumulate, device, key.lane));
    return known.back().second;
  }

  ShapeId shape_of(std::span<const int32_t> ranks) override {
    const GroupShape shape = costs_.cluster().shape(ranks);
    return shapes_.emplace(shape, shapes_.size()).first->second;
  }

  int64_t transfer_ns(ClassId cls, TaskId task, ShapeId shape) override {
    return transfer(cls, task, shape).ns;
  }

  const cost::Network* network() const override { return &network_; }

  const Demand& demand(ClassId cls, TaskId task, ShapeId shape) override {
    const Task& asked = p_.classes[cls].tasks[task];
    const bool inter = program::is_between_nodes(asked.lane);
    const int64_t ns = transfer(cls, task, shape).ns;
    const auto [it, fresh] = demands_.try_emplace({asked.kind, ns, inter, shape});
    Demand& demand = it->second;
    if (!fresh) return demand;
    const cost::LinkLoad load = costs_.load(kind_of(cls, task), inter, known_shape(shape));
    demand.data_ns = std::llround(ns * load.data);
    demand.latency_ns = ns - demand.data_ns;
    if (demand.data_ns == 0) return demand;
    demand.share = load.share;
    const auto fullest = std::max_element(load.share.begin(), load.share.end());
    demand.bytes_per_s =
        *fullest * network_.bytes_per_s(static_cast<int32_t>(fullest - load.share.begin()));
    return demand;
  }

  TaskCost transfer(ClassId cls, TaskId task, ShapeId shape) {
    const Task& asked = p_.classes[cls].tasks[task];
    if (asked.group != program::kNone && p_.groups[asked.group].with != program::kNone) {
      return between_roles(cls, task, shape);
    }
    const uint32_t added_to = asked.accumulate.bits();
    const bool inter = program::is_between_nodes(asked.lane);
    const auto [it, fresh] = transfers_.try_emplace({asked.kind, added_to, inter, shape});
    if (fresh) {
      it->second = costs_.transfer(kind_of(cls, task), added_to, inter, known_shape(shape));
    }
    return it->second;
  }

  const std::map<GroupShape, ShapeId>& shapes() const { return shapes_; }

 private:
  /// Returns whether a message connects ranks of different pipeline stages. Other messages are
  /// blocks of collectives.
  bool joins_stages(ClassId cls, const Task& message) const {
    const std::vector<ClassId> peers = p_.peer_classes(cls, message.peer_map());
    return std::any_of(peers.begin(), peers.end(),
                       [&](ClassId peer) { return stages_[peer.value()] != stages_[cls.value()]; });
  }

  TaskCost between_roles(ClassId cls, TaskId task, ShapeId shape) {
    const bool inter = program::is_between_nodes(p_.classes[cls].tasks[task].lane);
    return costs_.transfer(kind_of(cls, task), 0, inter, known_shape(shape));
  }

  /// Returns the kind of a task with the bytes of its transfer. A transfer between roles takes the
  /// time of its busiest link for every member, since their payloads differ.
  program::Kind kind_of(ClassId cls, TaskId task) {
    const Task& asked = p_.classes[cls].tasks[task];
    program::Kind kind = p_.kind(asked);
    if (asked.group != program::kNone && p_.groups[asked.group].with != program::kNone) {
      kind.bytes = between_.of(cls, task).traffic();
    } else if (program::is_communication(kind)) {
      kind.bytes = std::min(kind.bytes, expected_rows(cls, asked, kind.bytes));
    }
    return kind;
  }

  /// Returns the bytes of the rows that balanced routing brings to an exchange, without the
  /// headroom of its buffers. Applies where every rank has only some of the experts (the second
  /// step of an exchange over two axes). Returns `otherwise` for other tasks: their types state the
  /// size.
  int64_t expected_rows(ClassId cls, const Task& task, int64_t otherwise) const {
    const program::RankClass& rank_class = p_.classes[cls];
    int64_t most = 0;
    for (const std::vector<program::BufferId>* ids : {&task.in, &task.out}) {
      for (const program::BufferId id : *ids) {
        const program::Buffer& buffer = rank_class.buffers[rank_class.root(id)];
        if (!buffer.type.routed()) continue;
        if (buffer.expected_bytes == program::kNone) return otherwise;
        most = std::max(most, buffer.expected_bytes);
      }
    }
    return most == 0 ? otherwise : std::llround(most / program::kExpectedRows);
  }

  const GroupShape& known_shape(ShapeId shape) const {
    for (const auto& [known, id] : shapes_) {
      if (id == shape) return known;
    }
    HOCKET_CHECK(false, "no shape {}", shape);
  }

  const Program& p_;
  const CostModel& costs_;
  cost::Network network_;
  program::Transfers between_{p_};
  struct WorkKey {
    uint32_t accumulate = 0;
    size_t device = 0;  ///< its type
    Lane lane = Lane::compute;
    bool operator==(const WorkKey&) const = default;
  };
  std::vector<std::vector<std::pair<WorkKey, TaskCost>>> work_;  ///< per kind of task
  std::vector<int64_t> more_launches_;                           // per kind; -1: not yet computed
  std::vector<std::vector<int32_t>> stages_;                     // per class
  std::map<GroupShape, ShapeId> shapes_;
  std::map<std::tuple<program::KindId, uint32_t, bool, ShapeId>, TaskCost> transfers_;
  std::map<std::tuple<program::KindId, int64_t, bool, ShapeId>, Demand> demands_;  // by duration
};

/// Returns the element type in which most FLOPs of matrix products are done.
graph::DType product_dtype(const Program& program) {
  std::map<graph::DType, double> flops;
  for (const program::RankClass& cls : program.classes) {
    for (const Task& task : cls.tasks) {
      if (program.kind(task).flops > 0) {
        flops[program::compute_dtype(program.kind(task))] += program.kind(task).flops;
      }
    }
  }
  graph::DType best = graph::DType::f32;
  double most = 0;
  for (const auto& [dtype, n] : flops) {
    if (n > most) {
      most = n;
      best = dtype;
    }
  }
  return best;
}

/// Returns the shares of time by provenance, from the first replayed rank of every class: the
/// source of a duration hardly depends on the rank.
ProvenanceShares shares(const Program& program, ModelDurations& durations, const Replay& replay) {
  // Every task counts with its cost times the ranks of its class, whether or not it is on the
  // critical path. `judged` is the part with a known error.
  double total[4] = {0, 0, 0, 0};  // by cost::Provenance
  double judged = 0;
  double error = 0;
  std::vector<int32_t> first(program.classes.size(), program::kNone);
  std::vector<double> ranks(program.classes.size(), 0);
  for (size_t i = 0; i < replay.ranks.size(); ++i) {
    const size_t cls = program.class_of(replay.ranks[i]);
    if (first[cls] == program::kNone) {
      first[cls] = replay.ranks[i];
    }
    ranks[cls] += replay.multiplicity[i];
  }
  for (size_t c = 0; c < program.classes.size(); ++c) {
    std::map<program::GroupId, ShapeId> group_shape;
    const auto& tasks = program.classes[c].tasks;
    for (size_t k = 0; k < tasks.size(); ++k) {
      const Task& task = tasks[k];
      const program::Kind& kind = program.kind(task);
      const ClassId cls = c;
      const TaskId id = k;
      TaskCost cost;
      if (!program::is_communication(kind)) {
        cost = durations.work(durations.device_of(first[c]), cls, id);
      } else if (comm::op(kind.communication).role == comm::Role::receive) {
        continue;  // the sender pays
      } else if (comm::op(kind.communication).role == comm::Role::send) {
        const int32_t pair[2] = {first[c], program.peer_of(task.peer_map(), first[c])};
        cost = durations.transfer(cls, id, durations.shape_of(pair));
      } else {
        const auto [it, fresh] = group_shape.emplace(task.group, 0);
        if (fresh) {
          it->second = durations.shape_of(program.members(program.groups[task.group], first[c]));
        }
        cost = durations.transfer(cls, id, it->second);
      }
      const double ns = ranks[c] * cost.ns;
      total[place_of(cost.provenance)] += ns;
      if (cost.error >= 0) {
        judged += ns;
        error += ns * cost.error;
      }
    }
  }
  const double sum = total[0] + total[1] + total[2] + total[3];
  if (sum <= 0) return {};
  return {.timed = total[0] / sum,
          .interpolated = total[1] / sum,
          .learned = total[2] / sum,
          .analytic = total[3] / sum,
          .error = judged > 0 ? error / judged : 0,
          .judged = judged / sum};
}

/// Names a task of the rank, its payload and the ranks that take part.
void describe(const Program& program, const cost::Cluster& cluster, int32_t rank, TaskId id,
              PathEntry* entry) {
  const ClassId cls = program.class_of(rank);
  const Task& task = program.classes[cls].tasks[id];
  const program::Kind& kind = program.kind(task);
  entry->name = fmt::format("{} on rank {}", program::task_name(program, cls, id), rank);
  if (!program::is_communication(kind)) return;
  entry->moves = program::parameters_moved(program, cls)[id];
  entry->gradients = task.phase == program::Phase::grad;
  entry->bytes = kind.bytes;
  const std::vector<int32_t> members =
      task.group == program::kNone
          ? std::vector<int32_t>{rank, program.peer_of(task.peer_map(), rank)}
          : program.members(program.groups[task.group], rank);
  entry->group_ranks = std::ssize(members);
  entry->between_nodes = cluster.shape(members).nodes > 1;
}

void summarise_path(const Program& program, const cost::Cluster& cluster, const Replay& replay,
                    SimReport& report) {
  // The path has thousands of steps; a reader wants the kinds of task that make it long. Steps are
  // summed by (kind, phase), the longest of each is kept as the example, and the five largest sums
  // are shown.
  struct Sum {
    int64_t ns = 0, count = 0, longest = -1;
    const PathStep* example = nullptr;
  };
  std::map<std::pair<program::KindId, program::Phase>, Sum> by_kind;
  PathEntry launches{.name = "waiting for the host to launch", .op = "launch"};
  for (const PathStep& step : replay.path) {
    if (step.launching) {
      launches.ns += step.end_ns - step.begin_ns;
      ++launches.count;
      report.path_ns += step.end_ns - step.begin_ns;
      continue;
    }
    const ClassId cls = program.class_of(replay.ranks[step.index]);
    const Task& task = program.classes[cls].tasks[step.task];
    Sum& sum = by_kind[{task.kind, task.phase}];
    const int64_t ns = step.end_ns - step.begin_ns;
    report.path_ns += ns;
    sum.ns += ns;
    ++sum.count;
    if (ns > sum.longest) {
      sum.longest = ns;
      sum.example = &step;
    }
  }
  std::vector<std::pair<PathEntry, const PathStep*>> entries;
  for (const auto& [key, sum] : by_kind) {
    entries.push_back(
        {{.op = program.kinds[key.first].op, .count = sum.count, .ns = sum.ns}, sum.example});
  }
  if (launches.count > 0) {
    entries.push_back({launches, nullptr});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& left, const auto& right) {
    return left.first.ns > right.first.ns;
  });
  entries.resize(std::min<size_t>(entries.size(), 5));
  for (auto& [entry, example] : entries) {
    if (example != nullptr) {
      describe(program, cluster, replay.ranks[example->index], example->task, &entry);
    }
    report.path.push_back(std::move(entry));
  }
}

std::vector<WhatIf> answers(const Program& program, const std::vector<Speedup>& questions,
                            PartialReplay* replay) {
  std::vector<WhatIf> list;
  for (const Speedup& asked : questions) {
    std::vector<double> by_kind;
    std::set<std::string> ops;
    for (const program::Kind& kind : program.kinds) {
      const char* sort = program::is_communication(kind) ? "communication" : "compute";
      const bool meant = asked.what == kind.op || asked.what == sort;
      by_kind.push_back(meant ? asked.times : 1);
      ops.insert({kind.op, sort});
    }
    if (ops.count(asked.what) == 0) {
      fail("sim", "no task to speed up; got \"{}\"; expected one of {}", asked.what,
           join(std::vector<std::string>(ops.begin(), ops.end()), ", "));
    }
    const PartialReplay::Result answer = replay->faster(by_kind);
    list.push_back({asked.what, asked.times, answer.end_ns, answer.tasks});
  }
  return list;
}

/// Returns a note if the program was lowered for nodes of another size, on which its choice and
/// split of links depend. Empty if the sizes agree.
std::string other_nodes(const Program& program, const cost::Cluster& cluster) {
  const int64_t ranks = program.num_ranks();
  const int64_t per_node = program.ranks_per_node > 0 ? program.ranks_per_node : ranks;
  const int64_t devices = cluster.devices_per_node;
  if (std::min(per_node, ranks) == std::min(devices, ranks)) return "";
  return fmt::format(
      "the program was lowered for nodes of {} (plan.ranks_per_node is {}), but those of {} have "
      "{}: "
      "its transfers between nodes and their algorithms do not fit this cluster; try "
      "plan.ranks_per_node={}",
      counted(std::min(per_node, ranks), "rank"), program.ranks_per_node, cluster.name,
      counted(devices, "device"), devices);
}

/// Returns a note if a rank has a device of another file, with other launches by its host or
/// another overlap: the replay takes these of the cluster's own devices. Empty if there is none.
std::string other_launches(const cost::Cluster& cluster, int64_t ranks) {
  const cost::Device& own = cluster.device;
  const std::vector<int64_t> count = cluster.ranks_of_device_types(ranks);
  for (size_t type = 1; type < count.size(); ++type) {
    const cost::Device& device = cluster.device_of(type);
    const bool is_alike = device.host_launch.value == own.host_launch.value &&
                          device.host_launch_expert.value == own.host_launch_expert.value &&
                          device.host_reads.ops == own.host_reads.ops &&
                          device.overlap.compute.value == own.overlap.compute.value &&
                          device.overlap.communication.value == own.overlap.communication.value;
    const std::string& file = cluster.heterogeneous_nodes[type - 1].cluster;
    if (count[type] == 0 || file.empty() || is_alike) continue;
    return fmt::format(
        "nodes of {} have another device.host_launch, host_launch_expert, host_reads or overlap "
        "than those of {}, which are taken for all nodes",
        file, cluster.name);
  }
  return "";
}

/// Returns a key of the program's plan as text; empty if it is unknown.
std::string plan_key(const Program& program, const std::string& key) {
  if (program.config.empty()) return "";
  const nlohmann::json config = parse_json(program.config, "program");
  const JsonView view(config, "program");
  return view.has("plan") ? view.at("plan").get_string(key, "") : "";
}

/// Collectives between nodes that read the output of a recomputed task.
struct RepeatedExchange {
  int64_t ns = 0, count = 0;
  std::string repeated, exchange;  ///< op of such a task, and of such a collective
};

RepeatedExchange repeated_exchange_of(const Program& program, ClassId id,
                                      ModelDurations& durations) {
  const program::RankClass& cls = program.classes[id];
  const int32_t rank = program.ranks_of(id)[0];
  std::vector<int32_t> maker(cls.buffers.size(), program::kNone);  // by buffer: recomputing task
  std::map<program::GroupId, ShapeId> group_shape;
  RepeatedExchange repeated;
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    const Task& task = cls.tasks[i];
    const program::Kind& kind = program.kind(task);
    const bool leaves_node = program::is_collective(kind) && program::is_between_nodes(task.lane);
    const int32_t made =
        leaves_node && !task.in.empty() ? maker[cls.root(task.in[0])] : program::kNone;
    if (made != program::kNone) {
      const auto [shape, fresh] = group_shape.emplace(task.group, 0);
      if (fresh) {
        shape->second = durations.shape_of(program.members(program.groups[task.group], rank));
      }
      repeated.ns += durations.transfer(id, i, shape->second).ns;
      ++repeated.count;
      repeated.repeated = program.kind(cls.tasks[made]).op;
      repeated.exchange = kind.op;
    }
    for (const program::BufferId out : task.out) {
      maker[cls.root(out)] = task.recompute ? static_cast<int32_t>(i) : program::kNone;
    }
  }
  return repeated;
}

/// Returns a note if selective recomputation repeats exchanges over the network: the op is cheap to
/// compute, its exchange is not. Empty if there are none.
std::string repeated_exchanges(const Program& program, ModelDurations& durations) {
  if (plan_key(program, "recompute") != "selective") return "";
  RepeatedExchange most;
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    RepeatedExchange repeated = repeated_exchange_of(program, cls, durations);
    if (repeated.ns > most.ns) {
      most = std::move(repeated);
    }
  }
  if (most.count == 0) return "";
  std::vector<std::string> others;
  for (const ops::Op* op : ops::all()) {
    if (op->cheap_to_repeat && op->name != most.repeated) {
      others.push_back(op->name);
    }
  }
  return fmt::format(
      "plan.recompute: selective repeats {}, and with it {} {} between nodes, {} of a rank's "
      "step; try plan.recompute_ops: [{}], which keeps its output at the cost of memory",
      most.repeated, most.count, most.exchange, human_time(1e-9 * most.ns), join(others, ", "));
}

void add_notes(const Program& program, const CostModel& costs, ModelDurations& durations,
               const Replay& replay, SimReport& report) {
  // A reader needs these facts to judge the prediction: whether it is calibrated, whether the
  // profile fits the plan, whether the program was lowered for this cluster's nodes, whether it
  // fits in memory.
  const cost::Cluster& cluster = costs.cluster();
  if (!costs.calibrated()) {
    report.notes.push_back(
        "uncalibrated: durations are a roofline over the cluster file's "
        "constants; `hocket profile` times this machine's tasks");
  }
  if (costs.profile() && costs.profile()->threads != costs.threads() &&
      cluster.cores_per_node > 0) {
    report.notes.push_back(
        fmt::format("the profile was taken with {} threads per rank, the plan "
                    "uses {}",
                    costs.profile()->threads, costs.threads()));
  }
  if (const std::vector<std::string> bare = cluster.unsourced(); !bare.empty()) {
    report.notes.push_back(
        fmt::format("{} gives no source for {}", cluster.name, join(bare, ", ")));
  }
  for (size_t type = 0; type < cluster.num_device_types(); ++type) {
    const cost::Device& device = cluster.device_of(type);
    if (device.efficiency.typical.empty()) continue;
    report.notes.push_back(fmt::format(
        "efficiency of {} ({}): typical of datasheet files, as the file gives none",
        device.name.empty() ? cluster.name : device.name, join(device.efficiency.typical, ", ")));
  }
  if (const std::string other = other_nodes(program, cluster); !other.empty()) {
    report.notes.push_back(other);
  }
  if (const std::string other = other_launches(cluster, report.ranks); !other.empty()) {
    report.notes.push_back(other);
  }
  if (const std::string more = repeated_exchanges(program, durations); !more.empty()) {
    report.notes.push_back(more);
  }
  if (replay.links_prevent_dedup) {
    report.notes.push_back(
        "equivalent ranks share links with different transfers: every rank was replayed");
  }
  for (size_t c = 0; c < report.memory.size(); ++c) {
    if (const auto excess = report.memory_limits(c).exceeded_by(report.memory[c])) {
      report.notes.push_back(fmt::format("does not fit: {} needs {} of {}",
                                         program::stage_name(program.classes[c]),
                                         human_bytes(excess->needed), human_bytes(excess->there)));
    }
  }
  if (!program::is_planned(program)) {
    report.notes.push_back("the program has no memory plan: its step buffers are not counted");
  }
}

/// Returns by how many bytes the step buffers that live at each task of a class change before it.
std::vector<int64_t> changes_of_live_bytes(const program::RankClass& cls) {
  const size_t none = cls.tasks.size();
  std::vector<size_t> first(cls.buffers.size(), none), last(cls.buffers.size(), none);
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    for (const auto* operands : {&cls.tasks[i].in, &cls.tasks[i].out}) {
      for (const program::BufferId id : *operands) {
        const auto root = static_cast<size_t>(cls.root(id).value());
        first[root] = std::min(first[root], i);
        last[root] = i;
      }
    }
  }
  std::vector<int64_t> changes(cls.tasks.size() + 1, 0);
  for (size_t b = 0; b < cls.buffers.size(); ++b) {
    const program::Buffer& buffer = cls.buffers[b];
    const bool in_step = buffer.kind == program::BufferKind::step;
    if (!in_step || buffer.space != program::Space::device || first[b] == none) continue;
    const int64_t bytes =
        buffer.expected_bytes != program::kNone ? buffer.expected_bytes : buffer.type.bytes();
    changes[first[b]] += bytes;
    changes[last[b] + 1] -= bytes;
  }
  return changes;
}

/// Returns the memory in bytes of a rank, beyond its plan of `step_buffers` bytes, for logits that
/// no plan has (Framework::logits). They exist beside what lives at the loss, which is less than
/// the plan where a block's backward pass takes most.
double logits_bytes(const Program& program, const CostModel& costs, ClassId id,
                    int64_t step_buffers) {
  const program::RankClass& cls = program.classes[id];
  const auto has_logits = [&](const Task& task) {
    return costs.logits_bytes(program.kind(task)) > 0;
  };
  if (std::ranges::none_of(cls.tasks, has_logits)) return 0;
  const std::vector<int64_t> changes = changes_of_live_bytes(cls);
  double most = 0;
  int64_t live = 0;
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    live += changes[i];
    if (has_logits(cls.tasks[i])) {
      most = std::max(most, costs.logits_bytes(program.kind(cls.tasks[i])) +
                                static_cast<double>(live - step_buffers));
    }
  }
  return most;
}

/// Reports the memory that a plan may take, per class of the smallest device among its ranks, and
/// the memory kept beside it.
void describe_memory(const Program& program, const CostModel& costs, SimReport& report) {
  const cost::Cluster& cluster = costs.cluster();
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    const std::vector<int32_t> ranks = program.ranks_of(cls);
    const size_t checked = cluster.heterogeneous_nodes.empty() ? 1 : ranks.size();
    const cost::Device* least = &cluster.device_of(cluster.device_type_of(ranks[0]));
    for (size_t i = 1; i < checked; ++i) {
      const cost::Device& device = cluster.device_of(cluster.device_type_of(ranks[i]));
      least = device.plannable() < least->plannable() ? &device : least;
    }
    const double logits = logits_bytes(program, costs, cls, report.memory[cls].step_buffers);
    report.logits_bytes.push_back(std::llround(logits));
    double bytes = least->plannable();
    if (bytes > 0) {
      bytes = std::max(1.0, bytes - logits);
    }
    const auto planned = static_cast<double>(report.memory[cls].total());
    report.memory_with_reserve.push_back(std::llround(least->with_reserve(planned + logits)));
    const auto whole = static_cast<int64_t>(least->memory.value);
    report.device_memory.push_back(std::llround(bytes));
    report.memory_reserve = std::max(report.memory_reserve, whole - report.device_memory.back());
    report.whole_memory = cls == 0 ? whole : std::min(report.whole_memory, whole);
  }
}

/// Reports the names, the peak FLOP rate and the price of the first `world` devices; no price if
/// one of them has none.
void describe_devices(const cost::Cluster& cluster, int32_t world, SimReport& report) {
  const std::vector<int64_t> ranks = cluster.ranks_of_device_types(world);
  bool has_all_prices = true;
  for (size_t type = 0; type < ranks.size(); ++type) {
    if (ranks[type] == 0) continue;
    const cost::Cluster alike = cluster.homogeneous(type);
    const double share = 1.0 * ranks[type] / world;
    report.peak_flops += alike.peak_flops(report.dtype) * share;
    report.price += alike.device.price.value * share;
    has_all_prices = has_all_prices && alike.device.price.value > 0;
  }
  if (!has_all_prices) {
    report.price = 0;
  }
  report.device = cluster.device_names(world);
}

}  // namespace

program::MemoryLimits SimReport::memory_limits(size_t cls) const {
  return {device_memory[cls], device_is_host, memory_budget};
}

bool SimReport::fits() const {
  for (size_t cls = 0; cls < memory.size(); ++cls) {
    if (memory_limits(cls).exceeded_by(memory[cls])) return false;
  }
  return true;
}

std::string SimReport::memory_limit_text() const {
  if (device_memory.empty()) return "";
  const auto [least, most] = std::minmax_element(device_memory.begin(), device_memory.end());
  if (memory_budget > 0 && (*least <= 0 || memory_budget < *least)) {
    return human_bytes(memory_budget) + " per rank (cluster.memory_budget)";
  }
  if (*least <= 0) return "";
  const std::string text = human_bytes(*least);
  const std::string reserve =
      memory_reserve > 0 ? ", beside a reserve of " + human_bytes(memory_reserve) : "";
  return (*least == *most ? text : text + " to " + human_bytes(*most)) + " per device" + reserve;
}

int64_t threads_per_rank(const Program& program, const cost::Cluster& cluster) {
  int64_t asked = 0;
  if (!program.config.empty()) {
    const nlohmann::json config = parse_json(program.config, "program");
    const JsonView view(config, "program");
    if (view.has("plan")) {
      asked = view.at("plan").get_int("threads_per_rank", 0);
    }
  }
  return cluster.threads_per_rank(asked, program.num_ranks());
}

SimReport simulate(const Program& program, const CostModel& costs, const SimOptions& options,
                   Replay* timeline) {
  // A replay gives the times of tasks. The rest of the report follows from them and from the
  // program: throughput, MFU, breakdown by rank, planned memory, provenance, critical path.
  program::expect_no_parts(program, "sim");
  const cost::Cluster& cluster = costs.cluster();
  const int32_t world = program.num_ranks();
  if (world > cluster.capacity()) {
    fail("sim",
         "the plan has {} ranks; got a cluster of {} ({} nodes of {} devices); try a larger "
         "cluster or a smaller plan",
         world, cluster.capacity(), cluster.nodes, cluster.devices_per_node);
  }

  ModelDurations durations(program, costs);
  ReplayOptions replay_options;
  replay_options.all_ranks = options.all_ranks;
  replay_options.record = options.record;
  replay_options.devices_per_node = cluster.devices_per_node;
  replay_options.cores_per_node = cluster.cores_per_node;
  replay_options.threads_per_rank = costs.threads();
  replay_options.compute_beside_transfer = cluster.device.overlap.compute.value;
  replay_options.transfer_beside_compute = cluster.device.overlap.communication.value;
  replay_options.launch_ns = std::llround(cluster.device.host_launch.value * 1e9);
  SimReport report;
  Replay result;
  if (options.what_if.empty()) {
    result = replay(program, durations, replay_options);
  } else {
    PartialReplay partial(program, durations, replay_options);
    result = partial.full();
    report.what_if = answers(program, options.what_if, &partial);
  }

  report.cluster = cluster.name;
  report.calibrated = costs.calibrated();
  report.dtype = product_dtype(program);
  report.ranks = world;
  report.stages = program::num_stages(program);
  report.replayed_ranks = std::ssize(result.ranks);
  report.replayed_tasks = result.num_tasks;
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    report.tasks += std::ssize(program.classes[cls].tasks) * program.num_ranks(cls);
  }
  report.framework_ns = framework_ns(cluster.framework, result.end_ns, world);
  report.step_ns = result.end_ns + report.framework_ns;
  for (WhatIf& answer : report.what_if) {
    answer.step_ns += framework_ns(cluster.framework, answer.step_ns, world);
  }
  report.tokens = options.tokens;
  report.model_flops = options.model_flops;
  const double seconds = 1e-9 * report.step_ns;
  const double cores = cluster.cores_per_node > 0 ? static_cast<double>(costs.threads()) : 1;
  describe_devices(cluster, world, report);
  report.peak_flops *= cores;
  if (seconds > 0) {
    report.tokens_per_s = options.tokens / seconds;
    report.flops_per_s_per_rank = options.model_flops / seconds / world;
    report.mfu = report.flops_per_s_per_rank / report.peak_flops;
  }
  if (options.price > 0) {
    report.price = options.price;
  }
  if (report.tokens_per_s > 0) {
    report.dollars_per_m_tokens = report.price * world / 3600 / report.tokens_per_s * 1e6;
  }
  for (size_t i = 0; i < result.ranks.size(); ++i) {
    report.time.push_back({result.ranks[i], result.multiplicity[i],
                           program.class_of(result.ranks[i]), result.time[i]});
    report.time.back().time.idle_ns += report.framework_ns;
  }
  report.kernels = cost::kernels_of(cluster);
  report.memory =
      options.memory.empty() ? program::memory_of(program, report.kernels) : options.memory;
  describe_memory(program, costs, report);
  report.device_is_host = cluster.device_is_host();
  report.memory_budget = options.memory_budget;
  report.provenance = shares(program, durations, result);
  report.interval =
      interval_of(cluster, report.provenance, {report.step_ns, world, has_experts(program)});
  if (options.record) {
    summarise_path(program, cluster, result, report);
  }
  add_notes(program, costs, durations, result, report);
  if (timeline) {
    *timeline = std::move(result);
  }
  return report;
}

}  // namespace hocket::sim
