// SPDX-License-Identifier: Apache-2.0
// Which ranks are replayed, whom they meet, and over which links: one rank per class is enough
// where all of its ranks have devices of one kind, and every instance of every group, and every
// pair of every link, costs the same, joins the same classes, and shares links with the same.
#include <algorithm>

#include "base/error.h"
#include "sim/tables_builder.h"

namespace hocket::sim {

using program::kNone;
using program::Lane;

void TablesBuilder::add_places(int32_t world) {
  // Every instance of every group, and every sender with its receiver, is a place. What its
  // transfers take at most is that of the tasks of its classes, by lane.
  const cost::Network* network = durations_.network();
  if (!network || !options_.share_links) return;
  std::map<std::pair<GroupId, std::vector<ClassId>>, int32_t> orbits;
  std::map<std::pair<int32_t, int32_t>, Most> most;  // by orbit and shape
  std::vector<std::vector<bool>> seen(p_.groups.size());
  for (int32_t rank = 0; rank < world; ++rank) {
    for (GroupId group : used_groups_[class_of_[rank]]) {
      if (seen[group].empty()) {
        seen[group].assign(world, false);
      }
      if (seen[group][rank]) continue;
      const std::vector<int32_t> ranks = members(group, rank);
      for (int32_t member : ranks) {
        seen[group][member] = true;
      }
      const int32_t shape = shape_of(ranks);
      std::vector<ClassId> classes = classes_of(ranks);
      const auto [orbit, fresh] =
          orbits.emplace(std::pair(group, classes), static_cast<int32_t>(orbits.size()));
      const auto [it, unknown] = most.try_emplace({orbit->second, shape});
      if (unknown) {
        it->second = most_of_group(group, classes, shape);
      }
      group_places_[{group, ranks[0]}] =
          contention_.add({orbit->second, network->passed_by_group(ranks), it->second});
    }
  }
  add_message_places(*network, static_cast<int32_t>(orbits.size()));
  contention_.settle();
}

void TablesBuilder::raise(Most* most, int32_t queue, const Demand& demand) {
  auto at = std::find_if(most->begin(), most->end(),
                         [&](const auto& entry) { return entry.first == queue; });
  if (at == most->end()) {
    at = most->insert(at, {queue, {}});
  }
  for (size_t block = 0; block < demand.share.size(); ++block) {
    at->second[block] = std::max(at->second[block], demand.share[block]);
  }
}

TablesBuilder::Most TablesBuilder::most_of_group(GroupId group, const std::vector<ClassId>& classes,
                                                 int32_t shape) {
  Most most;
  for (size_t ch = 0; ch < t_.channel_group.size(); ++ch) {
    if (t_.channel_group[ch] != group) continue;
    for (ClassId cls : classes) {
      for (TaskId task : t_.channel_tasks[ch][cls]) {
        raise(&most, queue_of(p_.classes[cls].tasks[task]), durations_.demand(cls, task, shape));
      }
    }
  }
  return most;
}

void TablesBuilder::add_message_places(const cost::Network& network, int32_t orbit) {
  for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
    std::map<int32_t, std::vector<TaskId>> sends;  // by link
    const std::vector<TaskRecord>& tasks = t_.classes[cls].tasks;
    for (size_t task = 0; task < tasks.size(); ++task) {
      if (tasks[task].type == TaskType::send) {
        sends[t_.classes[cls].p2p[tasks[task].aux].link].push_back(task);
      }
    }
    for (const auto& [link, id] : links_) {
      const auto found = sends.find(id);
      if (found == sends.end()) continue;
      std::map<int32_t, Most> most;  // by shape
      for (int32_t rank : p_.ranks_of(cls)) {
        const int32_t pair[2] = {rank, peer(rank, link)};
        const int32_t shape = shape_of(pair);
        const auto [it, fresh] = most.try_emplace(shape);
        for (TaskId task : fresh ? found->second : std::vector<TaskId>()) {
          raise(&it->second, queue_of(p_.classes[cls].tasks[task]),
                durations_.demand(cls, task, shape));
        }
        link_places_[{id, rank}] =
            contention_.add({orbit, network.passed_by_message(pair[0], pair[1]), it->second});
      }
      ++orbit;
    }
  }
}

void TablesBuilder::choose_ranks(int32_t world) {
  // Which ranks are replayed. With cores that ranks have to share, all: what a task takes then
  // depends on what the others do. Else one per class, if all ranks of every class see the same
  // groups and links (`uniform`), and share those with the same; it stands for the others.
  // `index_of_` maps a rank to its place among the replayed ones.
  int32_t crowd = std::min(options_.devices_per_node, world);
  t_.shared_cores = options_.cores_per_node > 0 &&
                    int64_t{crowd} * options_.threads_per_rank > options_.cores_per_node;
  const bool overlaps =
      options_.compute_beside_transfer != 1 || options_.transfer_beside_compute != 1;
  t_.varies = t_.shared_cores || overlaps || options_.launch_ns > 0 || contention_.any();
  if (t_.shared_cores || overlaps) {
    for (ClassTable& table : t_.classes) {
      for (TaskRecord& record : table.tasks) {
        if (record.type == TaskType::work && record.lane == static_cast<uint8_t>(Lane::compute)) {
          record.type = TaskType::shared_work;
        }
      }
    }
  }
  const bool alike = !options_.all_ranks && !t_.shared_cores && uniform(world);
  t_.uneven_links = alike && contention_.any() && !contention_.symmetric();
  t_.one_per_class = alike && !t_.uneven_links;
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
    t_.table.push_back(table_of(cls, durations_.device_of(rank)));
    t_.stands.push_back(t_.one_per_class ? counts[cls] : 1);
  }
}

int32_t TablesBuilder::table_of(ClassId cls, size_t device) {
  if (device == 0) return static_cast<int32_t>(cls.value());
  const auto [known, fresh] = tables_.try_emplace({cls, device}, std::ssize(t_.classes));
  if (fresh) {
    ClassTable table = t_.classes[cls];
    for (size_t i = 0; i < table.tasks.size(); ++i) {
      TaskRecord& record = table.tasks[i];
      if (record.type == TaskType::work || record.type == TaskType::shared_work) {
        record.ns = durations_.work_ns_on(device, cls, TaskId(i));
      }
    }
    t_.classes.push_back(std::move(table));
  }
  return known->second;
}

bool TablesBuilder::uniform(int32_t world) {
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
  std::map<ClassId, size_t> devices;
  for (int32_t rank = 0; rank < world; ++rank) {
    const size_t device = durations_.device_of(rank);
    if (devices.emplace(class_of_[rank], device).first->second != device) return false;
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

bool TablesBuilder::uniform_link(ClassId cls, const Link& link, bool pays) {
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

std::vector<ClassId> TablesBuilder::classes_of(const std::vector<int32_t>& ranks) const {
  std::vector<ClassId> classes;
  for (int32_t rank : ranks) {
    classes.push_back(class_of_[rank]);
  }
  std::sort(classes.begin(), classes.end());
  classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  return classes;
}

void TablesBuilder::place_groups(int32_t world) {
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
      if (contention_.any()) {
        instance.uses = contention_.uses(group_places_.at({group, ranks[0]}), t_.one_per_class);
      }
      const int32_t id = static_cast<int32_t>(t_.instances[group].size());
      for (int32_t rank : ranks) {
        HOCKET_CHECK(rank >= 0 && rank < world, "group {} has member {} of {}", group, rank, world);
        const int32_t index = index_of_[rank];
        if (index == kNone) continue;
        instance.members.push_back(index);
        t_.instance_of[group.value() * n + index] = id;
      }
      t_.instances[group].push_back(std::move(instance));
    }
  }
  t_.num_shared_links = contention_.num_links();
  for (size_t ch = 0; ch < t_.channel_group.size(); ++ch) {
    t_.channel_base.push_back(t_.channel_states);
    t_.channel_states +=
        t_.channel_length[ch] * static_cast<int64_t>(t_.instances[t_.channel_group[ch]].size());
  }
}

void TablesBuilder::place_links() {
  const size_t n = t_.ranks.size();
  t_.link_peer.assign(links_.size() * n, kNone);
  t_.link_shape.assign(links_.size() * n, 0);
  if (contention_.any()) {
    t_.link_uses.resize(links_.size() * n);
  }
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
      const auto place = link_places_.find({id, pair[0]});
      if (!t_.link_uses.empty() && place != link_places_.end()) {
        t_.link_uses[id * n + i] = contention_.uses(place->second, t_.one_per_class);
      }
    }
  }
}

int32_t TablesBuilder::index_of_class(ClassId cls) const {
  const auto it = std::find(t_.cls.begin(), t_.cls.end(), cls);
  HOCKET_CHECK(it != t_.cls.end(), "class {} is not replayed", cls);
  return static_cast<int32_t>(it - t_.cls.begin());
}

}  // namespace hocket::sim
