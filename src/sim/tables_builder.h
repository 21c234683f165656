// SPDX-License-Identifier: Apache-2.0
// How the tables of a replay are made (tables.cc: of tasks; tables_ranks.cc: of ranks).
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
  /// What the host does before it launches each task: one that it runs itself, or whose sizes it
  /// needs to launch what comes, or whose result it reads, is awaited like a dependency.
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
  /// Where the transfers of all ranks lie on the network, and which links they may have to share.
  void add_places(int32_t world);
  using Most = std::vector<std::pair<int32_t, Contention::Shares>>;
  static void raise(Most* most, int32_t queue, const Demand& demand);
  Most most_of_group(GroupId group, const std::vector<ClassId>& classes, int32_t shape);
  void add_message_places(const cost::Network& network, int32_t orbit);
  void choose_ranks(int32_t world);
  /// The table of a class on a device of that kind: its place among Tables::classes.
  int32_t table_of(ClassId cls, size_t device);
  /// Do all ranks of every class see the same shapes, and the same classes?
  bool uniform(int32_t world);
  /// Do all ranks of the class find, that way, one shape (if they pay) and one class?
  bool uniform_link(ClassId cls, const Link& link, bool pays);
  std::vector<ClassId> classes_of(const std::vector<int32_t>& ranks) const;
  void place_groups(int32_t world);
  void place_links();
  int32_t index_of_class(ClassId cls) const;
  const Program& p_;
  Durations& durations_;
  const ReplayOptions& options_;
  program::Ways ways_;
  Tables t_;
  std::vector<ClassId> class_of_;
  std::vector<int32_t> first_rank_;  // per role
  std::vector<int32_t> index_of_;
  std::map<std::pair<ClassId, size_t>, int32_t> tables_;  // of classes on other kinds of devices
  std::map<Link, int32_t> links_;
  std::map<std::pair<GroupId, program::Lane>, int32_t> channels_;
  std::map<std::pair<Link, int32_t>, int32_t> message_channels_;  // by link of the sender, tag
  std::map<std::tuple<ClassId, Link, bool>, bool> links_seen_;    // see uniform_link
  std::vector<std::vector<GroupId>> used_groups_;
  Contention contention_;
  std::map<std::pair<GroupId, int32_t>, int32_t> group_places_;  // by lowest member
  std::map<std::pair<int32_t, int32_t>, int32_t> link_places_;   // by link and sender
};

}  // namespace hocket::sim
