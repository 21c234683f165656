// SPDX-License-Identifier: Apache-2.0
// Builder of a replay's tables (tables_builder.cc: tasks; tables_builder_ranks.cc: ranks;
// rank_groups.cc: groups of equivalent ranks).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "program/peer_map.h"
#include "sim/contention.h"
#include "sim/tables.h"

namespace hocket::sim {

class TablesBuilder {
 public:
  TablesBuilder(const Program& program, Durations& durations, const ReplayOptions& options)
      : p_(program), durations_(durations), options_(options), peer_maps_(program) {}
  Tables build();

 private:
  /// A role, and the number of a peer mapping among its ranks.
  struct Link {
    program::RoleId role;
    int32_t peer_map;
    auto operator<=>(const Link&) const = default;
  };

  /// Returns the queue of a task, its lane. Tasks in one queue of a rank run one after another, in
  /// issue order.
  static int32_t queue_of(const program::Task& task) { return static_cast<int32_t>(task.lane); }
  void flatten(ClassId cls);
  /// Records the host's work before it launches each task. The host awaits a task as a dependency
  /// if it needs the task's sizes for later launches, or reads its result. Tasks of the lane `host`
  /// run in a thread of their own; they are neither launched nor awaited.
  void add_launches(ClassId cls, ClassTable& table);
  void classify(ClassId cls, TaskId i, ClassTable& table);
  int32_t peer(int32_t rank, const Link& link) const;
  /// Throws Error unless the k-th collective of a channel is the same operation in all its classes.
  void check_collectives() const;
  void expect_same(const std::vector<std::vector<TaskId>>& per_class, ClassId first,
                   ClassId other) const;
  std::vector<int32_t> members(GroupId group, int32_t rank) const;
  ShapeId shape_of(std::span<const int32_t> ranks);
  /// Returns the groups that each class uses, without repetition.
  std::vector<std::vector<GroupId>> groups_by_class() const;
  /// Ranks that execute the collectives of a group together.
  struct Communicator {
    GroupId group;
    std::vector<int32_t> ranks;  ///< ascending
    ShapeId shape{};
    Contention::FlowId flow = program::kNone;
  };
  /// Messages of a rank over one link, to rank `to`.
  struct PeerPair {
    PeerLinkId link;
    int32_t from = 0, to = 0;
    ShapeId shape;
    Contention::FlowId flow = program::kNone;
  };
  /// A group of equivalent ranks.
  using RankGroup = Id<struct RankGroupTag>;
  void find_communicators(int32_t world);
  void find_peer_pairs();
  /// Adds the network paths of all ranks' transfers, and finds the links that they may have to
  /// share.
  void add_flows();
  static void raise(std::vector<Contention::PeakShares>* most, int32_t queue, const Demand& demand,
                    const cost::Network& network);
  std::vector<Contention::PeakShares> peak_shares(const Communicator& communicator);
  std::vector<Contention::PeakShares> peak_shares(const PeerPair& pair);
  void choose_ranks(int32_t world);
  /// Sets rank_group_of_. Ranks of one group do the same and communicate with ranks of the same
  /// groups at the same cost; with `links`, they also share links with the same groups. Returns
  /// false if one rank per group cannot stand for the others.
  bool find_rank_groups(int32_t world, bool links);
  /// Runs one refinement step of find_rank_groups and returns the number of groups. A group splits
  /// if its ranks communicate with different groups.
  int32_t refine_rank_groups(bool links);
  /// Returns the lowest rank of every group; empty if two groups communicate and their lowest ranks
  /// do not.
  std::vector<int32_t> representatives() const;
  std::vector<RankGroup> rank_groups_of(const std::vector<int32_t>& ranks) const;
  std::vector<ClassId> classes_of(const std::vector<int32_t>& ranks) const;
  /// Returns the index in Tables::classes of a class's table on a device of this type.
  TableId table_of(ClassId cls, size_t device);
  void lay_out_groups();
  void lay_out_links();
  const Program& p_;
  Durations& durations_;
  const ReplayOptions& options_;
  program::PeerMaps peer_maps_;
  Tables t_;
  std::vector<ClassId> class_of_;
  std::vector<int32_t> first_rank_;                       // per role
  std::vector<RankGroup> rank_group_of_;                  // per rank
  std::vector<RankIndex> index_of_;                       // per rank: of the rank replayed for it
  std::map<std::pair<ClassId, size_t>, TableId> tables_;  // of classes on other device types
  std::map<Link, PeerLinkId> links_;
  std::map<std::pair<GroupId, program::Lane>, CollectiveChannelId> channels_;
  std::map<std::pair<Link, int32_t>, MessageChannelId>
      message_channels_;  // by link of the sender, and tag
  std::vector<std::vector<GroupId>> used_groups_;
  Contention contention_;
  std::vector<Communicator> communicators_;
  std::vector<std::vector<Id<Communicator>>> communicators_of_;  // per rank, by group
  std::vector<PeerPair> pairs_;
  std::vector<std::vector<Id<PeerPair>>> sends_of_, receives_of_;  // per rank, indices in pairs_
};

}  // namespace hocket::sim
