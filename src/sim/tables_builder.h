// SPDX-License-Identifier: Apache-2.0
// How the tables of a replay are made (tables.cc: of tasks; tables_ranks.cc: of ranks; alike.cc:
// which ranks one can stand for).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "program/ways.h"
#include "sim/contention.h"
#include "sim/tables.h"

namespace hocket::sim {

class TablesBuilder {
 public:
  TablesBuilder(const Program& program, Durations& durations, const ReplayOptions& options)
      : p_(program), durations_(durations), options_(options), ways_(program) {}
  Tables build();

 private:
  /// A role, and the number of a way among its ranks.
  struct Link {
    program::RoleId role;
    int32_t way;
    auto operator<=>(const Link&) const = default;
  };

  /// Tasks of a rank that are in one queue run one after another, in issue order: those of a lane.
  static int32_t queue_of(const program::Task& task) {
    return static_cast<int32_t>(place_of(task.lane));
  }
  void flatten(ClassId cls);
  /// What the host does before it launches each task: one whose sizes it needs to launch what
  /// comes, or whose result it reads, is awaited like a dependency. What it runs itself, in a
  /// thread of its own, is not launched and not awaited.
  void add_launches(ClassId cls, ClassTable& table);
  void classify(ClassId cls, TaskId i, ClassTable& table);
  int32_t peer(int32_t rank, const Link& link) const;
  /// The k-th collective of a channel must be the same operation in all classes that meet in it.
  void check_collectives() const;
  void expect_same(const std::vector<std::vector<TaskId>>& per_class, ClassId first,
                   ClassId other) const;
  std::vector<int32_t> members(GroupId group, int32_t rank) const;
  int32_t shape_of(std::span<const int32_t> ranks);
  /// Groups that a class uses, each once.
  std::vector<std::vector<GroupId>> groups_by_class() const;
  /// Ranks that meet in a group.
  struct Meeting {
    GroupId group;
    std::vector<int32_t> ranks;  ///< ascending
    int32_t shape = 0;
    int32_t place = program::kNone;  ///< of contention_
  };
  /// What a rank sends some way; `to` gets it.
  struct Sending {
    int32_t link = 0;
    int32_t from = 0, to = 0;
    int32_t shape = 0;
    int32_t place = program::kNone;
  };
  void find_meetings(int32_t world);
  void find_sendings();
  /// Where the transfers of all ranks lie on the network, and which links they may have to share.
  void add_places();
  static void raise(std::vector<Contention::Most>* most, int32_t queue, const Demand& demand,
                    const cost::Network& network);
  std::vector<Contention::Most> most_of(const Meeting& meeting);
  std::vector<Contention::Most> most_of(const Sending& sending);
  void choose_ranks(int32_t world);
  /// Sets kind_of_: ranks of one kind are alike in what they do and in what kinds of ranks they
  /// meet, at what cost; with `links` also in whom they share links with. False if no rank per kind
  /// can stand for the others.
  bool find_kinds(int32_t world, bool links);
  /// One more step of find_kinds: kinds that differ in whom they meet come apart.
  int32_t split_kinds(bool links);
  /// The lowest rank of every kind. Empty if two kinds meet whose lowest ranks do not.
  std::vector<int32_t> representatives() const;
  std::vector<int32_t> kinds_of(const std::vector<int32_t>& ranks) const;
  std::vector<ClassId> classes_of(const std::vector<int32_t>& ranks) const;
  /// The table of a class on a device of that kind: its place among Tables::classes.
  int32_t table_of(ClassId cls, size_t device);
  void place_groups();
  void place_links();
  const Program& p_;
  Durations& durations_;
  const ReplayOptions& options_;
  program::Ways ways_;
  Tables t_;
  std::vector<ClassId> class_of_;
  std::vector<int32_t> first_rank_;                       // per role
  std::vector<int32_t> kind_of_;                          // per rank
  std::vector<int32_t> index_of_;                         // per rank: of what is replayed for it
  std::map<std::pair<ClassId, size_t>, int32_t> tables_;  // of classes on other kinds of devices
  std::map<Link, int32_t> links_;
  std::map<std::pair<GroupId, program::Lane>, int32_t> channels_;
  std::map<std::pair<Link, int32_t>, int32_t> message_channels_;  // by link of the sender, tag
  std::vector<std::vector<GroupId>> used_groups_;
  Contention contention_;
  std::vector<Meeting> meetings_;
  std::vector<std::vector<int32_t>> meetings_of_;  // per rank, by group
  std::vector<Sending> sendings_;
  std::vector<std::vector<int32_t>> sends_of_, receives_of_;  // per rank, of sendings_
};

}  // namespace hocket::sim
