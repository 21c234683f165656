// SPDX-License-Identifier: Apache-2.0
// A program flattened for the event loop: per class, one small record per task and its successors;
// per rank, the group instances and peers of its communication. Built once, in time linear in the
// tasks of all classes plus (groups + links) x ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"
#include "sim/contention.h"
#include "sim/engine.h"

namespace hocket::sim {

enum class TaskType : uint8_t { work, shared_work, collective, send, recv };

struct TaskRecord {
  int64_t ns = 0;  ///< work
  int32_t succ_begin = 0, succ_end = 0;
  int32_t communication = 0;  ///< see collective() and p2p()
  TaskType type = TaskType::work;
  program::Lane lane = program::Lane::compute;
  bool host_waits = false;  ///< the host launches nothing more before it has ended

  /// Requires: the type is collective.
  CollectiveId collective() const { return communication; }
  /// Requires: the type is send or recv.
  P2pId p2p() const { return communication; }
};

struct CollectiveRecord {
  CollectiveChannelId channel;  ///< a group used from a lane: its collectives match in issue order
  int32_t ordinal = 0;
};

/// Other end of a message, in the class of a peer.
struct MessageEnd {
  TaskId task = program::kNone;  ///< kNone if there is none
  ReceiveId slot;                ///< of a receive
};

struct P2pRecord {
  PeerLinkId link;
  ReceiveId slot;            ///< of a receive
  MessageChannelId channel;  ///< (link of the sender, tag): the k-th send matches the k-th receive
  int32_t ordinal = 0;       ///< k
  bool send = false;
};

/// Messages of a channel, by class, in issue order.
struct Channel {
  std::vector<std::vector<MessageEnd>> sends, receives;
};

struct ClassTable {
  std::vector<TaskRecord> tasks;
  std::vector<TaskId> succ;
  std::vector<int32_t> waits;  ///< per task: dependencies + 1 if it is not the first of its queue
  /// Per task, its predecessor in its queue (TablesBuilder::queue_of); kNone for the first.
  std::vector<TaskId> before;
  std::vector<CollectiveRecord> collectives;
  std::vector<P2pRecord> p2p;
  std::vector<int64_t> transfer_ns;  ///< [collectives, then p2p][shape]; -1: not yet computed
  /// In the same order, where transfers share links; null: not yet computed.
  std::vector<const Demand*> demand;
  /// Where launches take time: the last earlier task that the host waits for (kNone if there is
  /// none). `launched_ns`: the time from its end until the host has launched this task.
  std::vector<TaskId> host_before;
  std::vector<int64_t> launched_ns;
  int32_t num_recvs = 0;

  /// Returns the row of a communication in `transfer_ns` and `demand`.
  size_t transfer_row(const TaskRecord& record) const {
    return record.type == TaskType::collective ? size_t{record.collective()}
                                               : collectives.size() + record.p2p();
  }
};

/// Replayed ranks that execute a collective together.
struct Instance {
  std::vector<RankIndex> members;  ///< ascending
  ShapeId shape;
  std::vector<LinkUse> uses;  ///< links that its transfers may have to share
};

struct Tables {
  const Program* program = nullptr;
  std::vector<int32_t> ranks, multiplicity;  ///< per replayed rank
  std::vector<ClassId> cls;                  ///< per replayed rank
  /// Tables by class; after these, those of classes on other device types, which differ in the
  /// duration of work.
  std::vector<ClassTable> classes;
  std::vector<TableId> table;  ///< per replayed rank: its index in `classes`
  bool deduplicated = false;
  bool shared_cores = false;
  int32_t num_shared_links = 0;
  bool links_prevent_dedup = false;  ///< see Replay
  /// Set if the speed of some activity depends on other tasks, or if tasks wait for their launch.
  bool has_variable_rates = false;

  int32_t num_shapes = 0;
  // Channels (group, lane) and links (role, peer mapping), as [channel or link][replayed rank].
  std::vector<GroupId> channel_group;   ///< per channel
  std::vector<int32_t> channel_length;  ///< per channel: collectives in its longest class
  std::vector<int64_t> channel_base;    ///< per channel: first entry of its state
  int64_t channel_states = 0;
  /// [channel][class]: its collectives in issue order.
  std::vector<std::vector<std::vector<TaskId>>> channel_tasks;
  std::vector<std::vector<Instance>> instances;  ///< per group
  std::vector<InstanceId> instance_of;           ///< [group][rank index], kNone if not used
  std::vector<Channel> messages;                 ///< per message channel
  std::vector<RankIndex> link_peer;              ///< [link][rank index]
  std::vector<ShapeId> link_shape;               ///< [link][rank index]
  /// [link][rank index], where links are shared: link uses of the messages that this rank sends.
  std::vector<std::vector<LinkUse>> link_uses;

  size_t num_ranks() const { return ranks.size(); }
  const ClassTable& of(RankIndex index) const { return classes[table[index]]; }
  /// Returns the index of a (group, rank) or (link, rank) in the tables above.
  size_t entry(GroupId group, RankIndex index) const {
    return size_t{group} * ranks.size() + index;
  }
  size_t entry(PeerLinkId link, RankIndex index) const {
    return size_t{link} * ranks.size() + index;
  }
  InstanceId instance(GroupId group, RankIndex index) const {
    return instance_of[entry(group, index)];
  }
  RankIndex peer(PeerLinkId link, RankIndex index) const { return link_peer[entry(link, index)]; }
  /// Returns the other end of a message at a peer, given by its index.
  MessageEnd other_end(const P2pRecord& end, RankIndex peer) const {
    const Channel& channel = messages[end.channel];
    const std::vector<MessageEnd>& list = (end.send ? channel.receives : channel.sends)[cls[peer]];
    return end.ordinal < std::ssize(list) ? list[end.ordinal] : MessageEnd{};
  }
};

Tables build_tables(const Program& program, Durations& durations, const ReplayOptions& options);

/// Replays the program of the tables. They keep the durations that were computed.
Replay replay(Tables& tables, Durations& durations, const ReplayOptions& options);

}  // namespace hocket::sim
