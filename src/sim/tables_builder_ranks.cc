// SPDX-License-Identifier: Apache-2.0
// Implements: TablesBuilder (tables_builder.h), the part about ranks: collectives and messages
// between ranks, their links, and the choice of ranks to replay (rank_groups.cc groups equivalent
// ranks).
#include <algorithm>
#include <set>

#include "base/error.h"
#include "sim/tables_builder.h"

namespace hocket::sim {

using program::kNone;
using program::Lane;

void TablesBuilder::find_communicators(int32_t world) {
  std::vector<std::vector<bool>> seen(p_.groups.size());
  communicators_of_.resize(world);
  for (int32_t rank = 0; rank < world; ++rank) {
    for (GroupId group : used_groups_[class_of_[rank]]) {
      if (seen[group].empty()) {
        seen[group].assign(world, false);
      }
      if (seen[group][rank]) continue;
      Communicator communicator{.group = group, .ranks = members(group, rank)};
      for (int32_t member : communicator.ranks) {
        HOCKET_CHECK(member >= 0 && member < world, "group {} has member {} of {}", group, member,
                     world);
        seen[group][member] = true;
        communicators_of_[member].push_back(communicators_.size());
      }
      communicator.shape = shape_of(communicator.ranks);
      communicators_.push_back(std::move(communicator));
    }
  }
  for (std::vector<Id<Communicator>>& list : communicators_of_) {
    std::sort(list.begin(), list.end(), [&](Id<Communicator> left, Id<Communicator> right) {
      return communicators_[left].group < communicators_[right].group;
    });
  }
}

void TablesBuilder::find_peer_pairs() {
  sends_of_.resize(class_of_.size());
  receives_of_.resize(class_of_.size());
  for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
    for (const auto& [link, id] : links_) {
      const std::vector<P2pRecord>& messages = t_.classes[cls].p2p;
      const auto sends = [&, id = id](const P2pRecord& p2p) { return p2p.send && p2p.link == id; };
      if (std::none_of(messages.begin(), messages.end(), sends)) continue;
      for (int32_t rank : p_.ranks_of(cls)) {
        const int32_t pair[2] = {rank, peer(rank, link)};
        const Id<PeerPair> number = pairs_.size();
        sends_of_[pair[0]].push_back(number);
        receives_of_[pair[1]].push_back(number);
        pairs_.push_back({.link = id, .from = pair[0], .to = pair[1], .shape = shape_of(pair)});
      }
    }
  }
}

void TablesBuilder::add_flows() {
  // Every instance of every group, and every sender with its receiver, is a flow. The shares that
  // its transfers take are bounded, per lane, by the tasks of its classes.
  const cost::Network* network = durations_.network();
  if (!network || !options_.share_links) return;
  using PeakShares = std::vector<Contention::PeakShares>;
  std::map<std::tuple<GroupId, std::vector<ClassId>, ShapeId>, PeakShares>
      by_communicator;  // and shape
  for (Communicator& communicator : communicators_) {
    std::vector<ClassId> classes = classes_of(communicator.ranks);
    const auto [it, fresh] =
        by_communicator.try_emplace({communicator.group, std::move(classes), communicator.shape});
    if (fresh) {
      it->second = peak_shares(communicator);
    }
    communicator.flow = contention_.add({network->passed_by_group(communicator.ranks), it->second});
  }
  std::map<std::tuple<ClassId, PeerLinkId, ShapeId>, PeakShares> by_pair;  // class, link, shape
  for (PeerPair& pair : pairs_) {
    const auto [it, fresh] = by_pair.try_emplace({class_of_[pair.from], pair.link, pair.shape});
    if (fresh) {
      it->second = peak_shares(pair);
    }
    pair.flow = contention_.add({network->passed_by_message(pair.from, pair.to), it->second});
  }
  contention_.drop_never_full_links();
}

void TablesBuilder::raise(std::vector<Contention::PeakShares>* most, int32_t queue,
                          const Demand& demand, const cost::Network& network) {
  auto at = std::find_if(most->begin(), most->end(),
                         [&](const Contention::PeakShares& entry) { return entry.queue == queue; });
  if (at == most->end()) {
    at = most->insert(at, {.queue = queue});
  }
  for (int32_t block = 0; block < std::ssize(demand.share); ++block) {
    const double share = demand.share[block];
    if (share <= 0) continue;
    at->share[block] = std::max(at->share[block], share);
    if (const int32_t access = network.access_block(block); access >= 0) {
      const double over = share / demand.share[access];
      at->over_access[block] = std::max(at->over_access[block], over);
    }
  }
}

std::vector<Contention::PeakShares> TablesBuilder::peak_shares(const Communicator& communicator) {
  std::vector<Contention::PeakShares> most;
  for (size_t ch = 0; ch < t_.channel_group.size(); ++ch) {
    if (t_.channel_group[ch] != communicator.group) continue;
    for (ClassId cls : classes_of(communicator.ranks)) {
      for (TaskId task : t_.channel_tasks[ch][cls]) {
        raise(&most, queue_of(p_.classes[cls].tasks[task]),
              durations_.demand(cls, task, communicator.shape), *durations_.network());
      }
    }
  }
  return most;
}

std::vector<Contention::PeakShares> TablesBuilder::peak_shares(const PeerPair& pair) {
  std::vector<Contention::PeakShares> most;
  const ClassId cls = class_of_[pair.from];
  const ClassTable& table = t_.classes[cls];
  for (size_t task = 0; task < table.tasks.size(); ++task) {
    const TaskRecord& record = table.tasks[task];
    if (record.type != TaskType::send || table.p2p[record.p2p()].link != pair.link) continue;
    raise(&most, queue_of(p_.classes[cls].tasks[task]), durations_.demand(cls, task, pair.shape),
          *durations_.network());
  }
  return most;
}

void TablesBuilder::choose_ranks(int32_t world) {
  // Chooses the ranks to replay. Ranks that share cores are all replayed, since the duration of a
  // task then depends on the others. Otherwise the lowest rank of every group (find_rank_groups)
  // stands for its group. `index_of_` maps a rank to the index of the replayed rank that stands for
  // it. Lanes of the host are threads beside that of the compute lane, if the compute lane uses
  // cores.
  int32_t crowd = std::min(options_.devices_per_node, world);
  std::set<Lane> lanes{Lane::compute};
  for (const program::RankClass& cls : p_.classes) {
    for (const program::Task& task : cls.tasks) {
      if (program::is_of_host(task.lane)) {
        lanes.insert(task.lane);
      }
    }
  }
  t_.shared_cores =
      options_.cores_per_node > 0 &&
      int64_t{crowd} * options_.threads_per_rank * std::ssize(lanes) > options_.cores_per_node;
  const bool overlaps =
      options_.compute_beside_transfer != 1 || options_.transfer_beside_compute != 1;
  t_.has_variable_rates =
      t_.shared_cores || overlaps || options_.launch_ns > 0 || contention_.has_links();
  if (t_.shared_cores || overlaps) {
    for (ClassTable& table : t_.classes) {
      for (TaskRecord& record : table.tasks) {
        const bool on_cores =
            record.lane == Lane::compute || (t_.shared_cores && program::is_of_host(record.lane));
        if (record.type == TaskType::work && on_cores) {
          record.type = TaskType::shared_work;
        }
      }
    }
  }
  const bool grouped = !options_.all_ranks && !t_.shared_cores && find_rank_groups(world, false);
  t_.deduplicated = grouped && (!contention_.has_links() || find_rank_groups(world, true));
  t_.links_prevent_dedup = grouped && !t_.deduplicated;
  std::vector<int32_t> replayed = t_.deduplicated ? representatives() : std::vector<int32_t>();
  for (int32_t rank = 0; rank < world && !t_.deduplicated; ++rank) {
    replayed.push_back(rank);
  }
  index_of_.assign(world, kNone);
  std::vector<RankIndex> index_of_group;
  for (const int32_t rank : replayed) {
    const ClassId cls = class_of_[rank];
    index_of_[rank] = t_.ranks.size();
    t_.ranks.push_back(rank);
    t_.cls.push_back(cls);
    t_.table.push_back(table_of(cls, durations_.device_of(rank)));
  }
  t_.multiplicity.assign(replayed.size(), t_.deduplicated ? 0 : 1);
  for (int32_t rank = 0; rank < world && t_.deduplicated; ++rank) {
    const RankGroup group = rank_group_of_[rank];
    if (group == index_of_group.size()) {
      index_of_group.push_back(index_of_[rank]);
    }
    index_of_[rank] = index_of_group[group];
    ++t_.multiplicity[index_of_[rank]];
  }
}

TableId TablesBuilder::table_of(ClassId cls, size_t device) {
  if (device == 0) return cls.value();
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

std::vector<ClassId> TablesBuilder::classes_of(const std::vector<int32_t>& ranks) const {
  std::vector<ClassId> classes;
  for (int32_t rank : ranks) {
    classes.push_back(class_of_[rank]);
  }
  std::sort(classes.begin(), classes.end());
  classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  return classes;
}

void TablesBuilder::lay_out_groups() {
  // The first replayed member found creates an instance of its communicator and enters it for all
  // members that are replayed. Then every channel gets a range of arrival counters, one per
  // (instance, ordinal).
  const size_t n = t_.ranks.size();
  t_.instances.resize(p_.groups.size());
  t_.instance_of.assign(p_.groups.size() * n, kNone);
  for (const int32_t rank : t_.ranks) {
    for (const Id<Communicator> id : communicators_of_[rank]) {
      const Communicator& communicator = communicators_[id];
      if (t_.instance(communicator.group, index_of_[rank]) != kNone) continue;
      Instance instance;
      instance.shape = communicator.shape;
      if (contention_.has_links()) {
        instance.uses = contention_.uses(communicator.flow, t_.deduplicated);
      }
      const InstanceId made = t_.instances[communicator.group].size();
      for (int32_t member : communicator.ranks) {
        const RankIndex index = index_of_[member];
        if (t_.ranks[index] != member) continue;
        instance.members.push_back(index);
        t_.instance_of[t_.entry(communicator.group, index)] = made;
      }
      t_.instances[communicator.group].push_back(std::move(instance));
    }
  }
  t_.num_shared_links = contention_.num_links();
  for (size_t ch = 0; ch < t_.channel_group.size(); ++ch) {
    t_.channel_base.push_back(t_.channel_states);
    t_.channel_states += t_.channel_length[ch] * std::ssize(t_.instances[t_.channel_group[ch]]);
  }
}

void TablesBuilder::lay_out_links() {
  // [link, replayed rank]: the peer, if the rank's class uses the link; for a sender also the shape
  // of the pair and the links of the cluster that it shares.
  const size_t n = t_.ranks.size();
  t_.link_peer.assign(links_.size() * n, kNone);
  t_.link_shape.assign(links_.size() * n, 0);
  if (contention_.has_links()) {
    t_.link_uses.resize(links_.size() * n);
  }
  std::vector<std::vector<bool>> used(p_.classes.size(), std::vector<bool>(links_.size(), false));
  for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
    for (const P2pRecord& record : t_.classes[cls].p2p) {
      used[cls][record.link] = true;
    }
  }
  for (const auto& [link, id] : links_) {
    for (RankIndex i = 0; i < n; ++i) {
      if (used[t_.cls[i]][id]) {
        t_.link_peer[t_.entry(id, i)] = index_of_[peer(t_.ranks[i], link)];
      }
    }
  }
  for (RankIndex i = 0; i < n; ++i) {
    for (const Id<PeerPair> id : sends_of_[t_.ranks[i]]) {
      const PeerPair& pair = pairs_[id];
      t_.link_shape[t_.entry(pair.link, i)] = pair.shape;
      if (!t_.link_uses.empty()) {
        t_.link_uses[t_.entry(pair.link, i)] = contention_.uses(pair.flow, t_.deduplicated);
      }
    }
  }
}

}  // namespace hocket::sim
