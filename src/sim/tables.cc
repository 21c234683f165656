// SPDX-License-Identifier: Apache-2.0
// Flattening of a program for the event loop, and the decision whether one rank per class is
// enough: it is when every instance of every group, and every pair of every link, costs the same
// and joins the same classes.
#include "sim/tables.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "base/error.h"
#include "program/ways.h"

namespace hocket::sim {
namespace {

using program::kNone;
using program::Lane;
using program::RankClass;
using program::Task;

/// A role, and the number of a way among its ranks.
struct Link {
  program::RoleId role;
  int32_t way;
  auto operator<=>(const Link&) const = default;
};

class Builder {
 public:
  Builder(const Program& program, Durations& durations, const ReplayOptions& options)
      : p_(program), durations_(durations), options_(options), ways_(program) {}

  Tables build() {
    t_.program = &p_;
    if (p_.classes.empty()) fail("sim", "the program has no rank class");
    if (const std::string wrong = p_.bad_placement(); !wrong.empty()) {
      fail("sim", "{}; expected every rank in exactly one class", wrong);
    }
    const int32_t world = p_.num_ranks();
    class_of_ = p_.class_table();
    for (size_t role = 0; role < p_.roles.size(); ++role) {
      first_rank_.push_back(p_.first_rank(role));
    }
    for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
      flatten(cls);
    }
    check_collectives();
    choose_ranks(world);
    place_groups(world);
    place_links();
    for (ClassTable& table : t_.classes) {
      table.transfer_ns.assign((table.collectives.size() + table.p2p.size()) * t_.num_shapes, -1);
    }
    return std::move(t_);
  }

 private:
  void flatten(ClassId cls) {
    // Two passes over the class, as for any adjacency list in one array. The first counts: how many
    // tasks wait for each task, and for how many each one waits (its dependencies, and its
    // predecessor in the lane, which is an edge like any other). The counts become the bounds
    // [succ_begin, succ_end) of every task's successors; the second pass fills them in, moving
    // succ_end along. Then every task gets what its kind needs (classify).
    const RankClass& rc = p_.classes[cls];
    const int32_t n = static_cast<int32_t>(rc.tasks.size());
    ClassTable table;
    table.tasks.resize(n);
    table.waits.assign(n, 0);
    std::vector<int32_t> out(n, 0);
    std::array<TaskId, program::kNumLanes> last;
    last.fill(kNone);
    for (int32_t i = 0; i < n; ++i) {
      const Task& task = rc.tasks[i];
      for (TaskId dep : task.deps) {
        if (dep < 0 || dep >= n || dep == i) {
          fail("sim", "{} depends on task {}; expected another task of its class (0 to {})",
               program::task_name(p_, cls, i), dep, n - 1);
        }
        ++out[dep];
        ++table.waits[i];
      }
      TaskId& previous = last[place_of(task.lane)];
      if (previous != kNone) {
        ++out[previous];
        ++table.waits[i];
      }
      previous = i;
    }
    int32_t total = 0;
    for (int32_t i = 0; i < n; ++i) {
      table.tasks[i].succ_begin = total;
      table.tasks[i].succ_end = total;
      total += out[i];
    }
    table.succ.resize(total);
    last.fill(kNone);
    for (int32_t i = 0; i < n; ++i) {
      const Task& task = rc.tasks[i];
      for (TaskId dep : task.deps) {
        table.succ[table.tasks[dep].succ_end++] = i;
      }
      TaskId& previous = last[place_of(task.lane)];
      if (previous != kNone) {
        table.succ[table.tasks[previous].succ_end++] = i;
      }
      previous = i;
    }
    for (int32_t i = 0; i < n; ++i) {
      classify(cls, i, table);
    }
    t_.classes.push_back(std::move(table));
  }

  void classify(ClassId cls, TaskId i, ClassTable& table) {
    // A task is one of three things to the event loop. A message end: its link is noted, and it
    // joins the queue of its channel, in which the k-th send of a rank meets the k-th receive of
    // its peer. A collective: it gets its ordinal in its channel (group and lane), by which members
    // meet. Everything else is work whose duration is known now.
    const Task& task = p_.classes[cls].tasks[i];
    const program::Kind& kind = p_.kind(task);
    TaskRecord& record = table.tasks[i];
    record.lane = static_cast<uint8_t>(task.lane);
    if (program::is_communication(kind) && !program::is_collective(kind)) {
      const bool send = comm::op(kind.communication).role == comm::Role::send;
      const std::vector<graph::Axis>& axes = p_.mesh_of(cls).axes;
      if (task.peer_axis < 0 || task.peer_axis >= std::ssize(axes)) {
        fail("sim", "{} names mesh axis {}; expected 0 to {}", program::task_name(p_, cls, i),
             task.peer_axis, axes.size() - 1);
      }
      const Link link{p_.classes[cls].role, ways_.number(p_.classes[cls].role, task.way())};
      const Link back{link.role, ways_.back(link.way)};
      if (back.way == kNone) {
        fail("sim", "by the table of {} several ranks have one peer; expected one each",
             program::task_name(p_, cls, i));
      }
      record.type = send ? TaskType::send : TaskType::recv;
      record.aux = static_cast<int32_t>(table.p2p.size());
      P2pRecord p2p;
      p2p.send = send;
      p2p.link = links_.emplace(link, static_cast<int32_t>(links_.size())).first->second;
      if (!send) {
        p2p.slot = table.num_recvs++;
      }
      const auto [channel, fresh] = message_channels_.emplace(
          std::pair(send ? link : back, task.tag), std::ssize(t_.messages));
      if (fresh) {
        const std::vector<std::vector<MessageEnd>> none(p_.classes.size());
        t_.messages.push_back({none, none});
      }
      p2p.channel = channel->second;
      Channel& messages = t_.messages[p2p.channel];
      std::vector<MessageEnd>& queue = (send ? messages.sends : messages.receives)[cls];
      p2p.ordinal = static_cast<int32_t>(queue.size());
      queue.push_back({i, p2p.slot});
      table.p2p.push_back(p2p);
    } else if (program::is_collective(kind)) {
      if (task.group < 0 || task.group >= p_.groups.size()) {
        fail("sim", "{} names group {}; expected 0 to {}", program::task_name(p_, cls, i),
             task.group, static_cast<int64_t>(p_.groups.size()) - 1);
      }
      record.type = TaskType::collective;
      record.aux = static_cast<int32_t>(table.collectives.size());
      const std::pair key{task.group, task.lane};
      const auto [it, fresh] = channels_.emplace(key, static_cast<int32_t>(channels_.size()));
      if (fresh) {
        t_.channel_group.push_back(task.group);
        t_.channel_length.push_back(0);
        t_.channel_tasks.emplace_back(p_.classes.size());
      }
      std::vector<TaskId>& order = t_.channel_tasks[it->second][cls];
      table.collectives.push_back({it->second, static_cast<int32_t>(order.size())});
      order.push_back(i);
      int32_t& length = t_.channel_length[it->second];
      length = std::max(length, static_cast<int32_t>(order.size()));
    } else {
      record.ns = durations_.work_ns(cls, i);
      HOCKET_CHECK(record.ns >= 0, "{} takes {} ns", program::task_name(p_, cls, i), record.ns);
    }
  }

  int32_t peer(int32_t rank, const Link& link) const {
    const int32_t first = first_rank_[link.role];
    return first + ways_.peers(link.way)[static_cast<size_t>(rank - first)];
  }

  /// The k-th collective of a channel must be the same operation in all classes that meet in it.
  void check_collectives() const {
    for (size_t ch = 0; ch < t_.channel_tasks.size(); ++ch) {
      for (const std::vector<ClassId>& met : p_.meetings(p_.groups[t_.channel_group[ch]])) {
        for (ClassId cls : met) {
          expect_same(t_.channel_tasks[ch], met[0], cls);
        }
      }
    }
  }
  void expect_same(const std::vector<std::vector<TaskId>>& per_class, ClassId first,
                   ClassId other) const {
    const auto& theirs = per_class[first];
    const auto& ours = per_class[other];
    for (size_t k = 0; k < std::min(theirs.size(), ours.size()); ++k) {
      const auto& their_kind = p_.kind(p_.classes[first].tasks[theirs[k]]);
      const auto& our_kind = p_.kind(p_.classes[other].tasks[ours[k]]);
      if (&their_kind == &our_kind || program::may_meet(their_kind, our_kind)) continue;
      fail_run("sim",
               "members of one group meet in different collectives; got {} in class {} and {} in "
               "class {}; expected the same operation on the same types",
               program::task_name(p_, first, theirs[k]), p_.classes[first].name,
               program::task_name(p_, other, ours[k]), p_.classes[other].name);
    }
  }

  std::vector<int32_t> members(GroupId group, int32_t rank) const {
    std::vector<int32_t> ranks = p_.members(p_.groups[group], rank);
    if (!std::binary_search(ranks.begin(), ranks.end(), rank)) {
      fail("sim", "rank {} executes a collective of group {}, of which it is no member", rank,
           group);
    }
    return ranks;
  }

  int32_t shape_of(std::span<const int32_t> ranks) {
    const int32_t shape = durations_.shape_of(ranks);
    t_.num_shapes = std::max(t_.num_shapes, shape + 1);
    return shape;
  }

  /// Groups that a class uses, each once.
  std::vector<std::vector<GroupId>> groups_by_class() const {
    std::vector<std::vector<GroupId>> used(p_.classes.size());
    for (size_t ch = 0; ch < t_.channel_tasks.size(); ++ch) {
      for (size_t c = 0; c < used.size(); ++c) {
        if (!t_.channel_tasks[ch][c].empty()) {
          used[c].push_back(t_.channel_group[ch]);
        }
      }
    }
    for (auto& groups : used) {
      std::sort(groups.begin(), groups.end());
      groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    }
    return used;
  }

  void choose_ranks(int32_t world) {
    // Which ranks are replayed. With cores that ranks have to share, all: what a task takes then
    // depends on what the others do. Else one per class, if all ranks of every class see the same
    // groups and links (`uniform`); it stands for the others. `index_of_` maps a rank to its place
    // among the replayed ones.
    used_groups_ = groups_by_class();
    int32_t crowd = std::min(options_.devices_per_node, world);
    t_.shared_cores = options_.cores_per_node > 0 &&
                      int64_t{crowd} * options_.threads_per_rank > options_.cores_per_node;
    if (t_.shared_cores) {
      for (ClassTable& table : t_.classes) {
        for (TaskRecord& record : table.tasks) {
          if (record.type == TaskType::work && record.lane == static_cast<uint8_t>(Lane::compute)) {
            record.type = TaskType::shared_work;
          }
        }
      }
    }
    t_.one_per_class = !options_.all_ranks && !t_.shared_cores && uniform(world);
    std::vector<int32_t> counts(p_.classes.size(), 0);
    for (int32_t rank = 0; rank < world; ++rank) {
      ++counts[class_of_[rank]];
    }
    index_of_.assign(world, kNone);
    std::vector<bool> taken(p_.classes.size(), false);
    for (int32_t rank = 0; rank < world; ++rank) {
      const ClassId cls = class_of_[rank];
      if (t_.one_per_class && taken[cls]) continue;
      taken[cls] = true;
      index_of_[rank] = static_cast<int32_t>(t_.ranks.size());
      t_.ranks.push_back(rank);
      t_.cls.push_back(cls);
      t_.stands.push_back(t_.one_per_class ? counts[cls] : 1);
    }
  }

  /// Do all ranks of every class see the same shapes, and the same classes?
  bool uniform(int32_t world) {
    // Per class, the first shape seen of a group or link is the one that all must have, and so are
    // the classes met there; the ranks that stand for classes that meet must themselves meet. An
    // instance of a group is looked at once for all its members; only senders are asked about the
    // shapes of links, as the sender pays.
    struct Seen {
      int32_t shape;
      std::vector<ClassId> classes;
      bool operator==(const Seen&) const = default;
    };
    std::vector<std::map<int32_t, Seen>> group_seen(p_.classes.size());
    std::vector<std::vector<bool>> seen(p_.groups.size());
    for (int32_t rank = 0; rank < world; ++rank) {
      for (GroupId group : used_groups_[class_of_[rank]]) {
        if (seen[group].empty()) {
          seen[group].assign(world, false);
        }
        if (seen[group][rank]) continue;
        const std::vector<int32_t> ranks = members(group, rank);
        const Seen here{shape_of(ranks), classes_of(ranks)};
        for (int32_t member : ranks) {
          seen[group][member] = true;
          if (group_seen[class_of_[member]].emplace(group, here).first->second != here) {
            return false;
          }
        }
      }
    }
    std::vector<int32_t> stand_in;
    for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
      stand_in.push_back(p_.ranks_of(cls)[0]);
    }
    for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
      for (const auto& [group, here] : group_seen[cls]) {
        const std::vector<int32_t> ranks = members(group, stand_in[cls]);
        for (ClassId other : here.classes) {
          if (!std::binary_search(ranks.begin(), ranks.end(), stand_in[other])) return false;
        }
      }
    }
    for (const auto& [channel, id] : message_channels_) {
      const Link& link = channel.first;
      for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
        const bool sends = !t_.messages[id].sends[cls].empty();
        const bool receives = !t_.messages[id].receives[cls].empty();
        if ((sends && !uniform_link(cls, link, true)) ||
            (receives && !uniform_link(cls, {link.role, ways_.back(link.way)}, false))) {
          return false;
        }
      }
    }
    return true;
  }

  /// Do all ranks of the class find, that way, one shape (if they pay) and one class?
  bool uniform_link(ClassId cls, const Link& link, bool pays) {
    const auto [known, fresh] = links_seen_.try_emplace({cls, link, pays}, true);
    if (!fresh) return known->second;
    int32_t shape = kNone;
    ClassId other = kNone;
    for (int32_t rank : p_.ranks_of(cls)) {
      const int32_t pair[2] = {rank, peer(rank, link)};
      const ClassId here = class_of_[pair[1]];
      const int32_t shape_here = pays ? shape_of(pair) : 0;
      if (other != kNone && (here != other || shape_here != shape)) {
        known->second = false;
        return false;
      }
      other = here;
      shape = shape_here;
    }
    return true;
  }

  std::vector<ClassId> classes_of(const std::vector<int32_t>& ranks) const {
    std::vector<ClassId> classes;
    for (int32_t rank : ranks) {
      classes.push_back(class_of_[rank]);
    }
    std::sort(classes.begin(), classes.end());
    classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
    return classes;
  }

  void place_groups(int32_t world) {
    // The instances of a group are the disjoint sets of ranks that meet in it. The first replayed
    // member that is found makes its instance and enters it for all replayed members. Then every
    // channel gets a stretch of counters, one per (instance, ordinal): who has arrived.
    const size_t n = t_.ranks.size();
    t_.instances.resize(p_.groups.size());
    t_.instance_of.assign(p_.groups.size() * n, kNone);
    for (size_t i = 0; i < n; ++i) {
      for (GroupId group : used_groups_[t_.cls[i]]) {
        if (t_.instance_of[group.value() * n + i] != kNone) continue;
        Instance instance;
        const std::vector<int32_t> ranks = members(group, t_.ranks[i]);
        instance.shape = shape_of(ranks);
        const int32_t id = static_cast<int32_t>(t_.instances[group].size());
        for (int32_t rank : ranks) {
          HOCKET_CHECK(rank >= 0 && rank < world, "group {} has member {} of {}", group, rank,
                       world);
          const int32_t index = index_of_[rank];
          if (index == kNone) continue;
          instance.members.push_back(index);
          t_.instance_of[group.value() * n + index] = id;
        }
        t_.instances[group].push_back(std::move(instance));
      }
    }
    for (size_t ch = 0; ch < t_.channel_group.size(); ++ch) {
      t_.channel_base.push_back(t_.channel_states);
      t_.channel_states +=
          t_.channel_length[ch] * static_cast<int64_t>(t_.instances[t_.channel_group[ch]].size());
    }
  }

  void place_links() {
    const size_t n = t_.ranks.size();
    t_.link_peer.assign(links_.size() * n, kNone);
    t_.link_shape.assign(links_.size() * n, 0);
    std::vector<std::vector<bool>> used(p_.classes.size(), std::vector<bool>(links_.size(), false));
    for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
      for (const P2pRecord& record : t_.classes[cls].p2p) {
        used[cls][record.link] = true;
      }
    }
    for (const auto& [link, id] : links_) {
      for (size_t i = 0; i < n; ++i) {
        const ClassId cls = t_.cls[i];
        if (!used[cls][id]) continue;
        const int32_t pair[2] = {t_.ranks[i], peer(t_.ranks[i], link)};
        // One rank per class: the peer is represented by the rank that stands for its class.
        const int32_t index = index_of_[pair[1]];
        t_.link_peer[id * n + i] = index != kNone ? index : index_of_class(class_of_[pair[1]]);
        t_.link_shape[id * n + i] = shape_of(pair);
      }
    }
  }

  int32_t index_of_class(ClassId cls) const {
    const auto it = std::find(t_.cls.begin(), t_.cls.end(), cls);
    HOCKET_CHECK(it != t_.cls.end(), "class {} is not replayed", cls);
    return static_cast<int32_t>(it - t_.cls.begin());
  }

  const Program& p_;
  Durations& durations_;
  const ReplayOptions& options_;
  program::Ways ways_;
  Tables t_;
  std::vector<ClassId> class_of_;
  std::vector<int32_t> first_rank_;  // per role
  std::vector<int32_t> index_of_;
  std::map<Link, int32_t> links_;
  std::map<std::pair<GroupId, Lane>, int32_t> channels_;
  std::map<std::pair<Link, int32_t>, int32_t> message_channels_;  // by link of the sender, tag
  std::map<std::tuple<ClassId, Link, bool>, bool> links_seen_;    // see uniform_link
  std::vector<std::vector<GroupId>> used_groups_;
};

}  // namespace

Tables build_tables(const Program& program, Durations& durations, const ReplayOptions& options) {
  return Builder(program, durations, options).build();
}

}  // namespace hocket::sim
