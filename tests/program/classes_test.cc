// SPDX-License-Identifier: Apache-2.0
// Roles, boxes and classes, groups and peers of random programs against brute force over all ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "program/program.h"

namespace hocket::program {
namespace {

int32_t below(Rng& rng, int32_t n) {
  return static_cast<int32_t>(rng.below(static_cast<uint64_t>(n)));
}

/// One or two roles of up to four axes, the ranks of each cut into boxes at random.
Program random_program(Rng& rng) {
  Program p;
  p.roles.clear();
  p.ranks_per_node = below(rng, 5);
  const int32_t num_roles = 1 + below(rng, 2);
  for (int32_t r = 0; r < num_roles; ++r) {
    Role role;
    role.name = "role" + std::to_string(r);
    const int32_t num_axes = below(rng, 5);
    for (int32_t axis = 0; axis < num_axes; ++axis) {
      role.mesh.axes.push_back({"a" + std::to_string(axis), 1 + below(rng, 4)});
    }
    p.roles.push_back(role);
    std::vector<Box> boxes(1);
    for (int32_t cuts = below(rng, 6); cuts > 0 && num_axes > 0; --cuts) {
      const size_t box = rng.below(boxes.size());
      const size_t axis = rng.below(static_cast<uint64_t>(num_axes));
      Interval on = boxes[box][axis];
      if (on.is_all()) {
        on = {0, role.mesh.axes[axis].size};
      }
      if (on.count < 2) continue;
      const int32_t first = 1 + below(rng, on.count - 1);
      boxes.push_back(boxes[box]);
      boxes[box][axis] = {on.begin, first};
      boxes.back()[axis] = {on.begin + first, on.count - first};
    }
    for (const Box& box : boxes) {
      RankClass cls;
      cls.name = "c" + std::to_string(p.classes.size());
      cls.role = r;
      cls.box = box;
      p.classes.push_back(cls);
    }
  }
  // In any order.
  for (size_t i = p.classes.size(); i > 1; --i) {
    std::swap(p.classes[i - 1], p.classes[rng.below(i)]);
  }
  return p;
}

Group random_group(Rng& rng, const Program& p) {
  Group group;
  group.role = below(rng, static_cast<int32_t>(p.roles.size()));
  const auto& axes = p.roles[group.role].mesh.axes;
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    if (rng.below(2)) {
      group.axes.push_back(static_cast<int32_t>(axis));
    }
  }
  if (!group.axes.empty() && rng.below(2)) {
    group.along = group.axes[rng.below(group.axes.size())];
    for (int32_t at = 0; at < axes[group.along].size; ++at) {
      if (rng.below(2)) {
        group.members.push_back(at);
      }
    }
    if (group.members.empty()) {
      group.along = kNone;
    }
  }
  return group;
}

/// By the definitions: the rank's place, role by role.
struct RoleCoords {
  RoleId role;
  std::vector<int32_t> at;
  bool operator==(const RoleCoords&) const = default;
};
std::vector<RoleCoords> places(const Program& p) {
  std::vector<RoleCoords> list;
  for (size_t role = 0; role < p.roles.size(); ++role) {
    for (int32_t r = 0; r < p.roles[role].mesh.size(); ++r) {
      list.push_back({role, p.roles[role].mesh.coords(r)});
    }
  }
  return list;
}

bool in_box(const Program& p, ClassId cls, const RoleCoords& place) {
  if (p.classes[cls].role != place.role) return false;
  for (size_t axis = 0; axis < place.at.size(); ++axis) {
    const Interval& on = p.classes[cls].box[axis];
    if (!on.is_all() && (place.at[axis] < on.begin || place.at[axis] >= on.begin + on.count)) {
      return false;
    }
  }
  return true;
}

/// Ranks that meet `rank` in the group, and whether it is itself one of them.
std::vector<int32_t> meets(const Program&, const Group& group, const std::vector<RoleCoords>& all,
                           size_t rank) {
  std::vector<int32_t> ranks;
  for (size_t other = 0; other < all.size(); ++other) {
    if (all[other].role != group.role) continue;
    bool member = true;
    for (size_t a = 0; a < all[other].at.size(); ++a) {
      const int32_t axis = static_cast<int32_t>(a);
      const int32_t at = all[other].at[a];
      const bool of_group =
          std::find(group.axes.begin(), group.axes.end(), axis) != group.axes.end();
      member = member && (of_group || at == all[rank].at[a]);
      if (of_group && axis == group.along) {
        member = member &&
                 std::find(group.members.begin(), group.members.end(), at) != group.members.end();
      }
    }
    if (member) {
      ranks.push_back(static_cast<int32_t>(other));
    }
  }
  return ranks;
}

TEST(Classes, RanksAreWhereTheirBoxesSay) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    const Program p = random_program(rng);
    EXPECT_EQ(p.bad_placement(), "") << seed;
    const std::vector<RoleCoords> all = places(p);
    ASSERT_EQ(p.num_ranks(), std::ssize(all));
    const std::vector<ClassId> table = p.class_table();
    std::vector<std::vector<int32_t>> ranks_of(p.classes.size());
    for (int32_t rank = 0; rank < p.num_ranks(); ++rank) {
      EXPECT_EQ(p.role_of(rank), all[rank].role);
      EXPECT_EQ(p.coords(rank), all[rank].at);
      const ClassId cls = p.class_of(rank);
      ASSERT_TRUE(in_box(p, cls, all[rank])) << seed << " " << rank;
      EXPECT_EQ(table[rank], cls);
      ranks_of[cls].push_back(rank);
    }
    for (size_t cls = 0; cls < p.classes.size(); ++cls) {
      EXPECT_EQ(p.ranks_of(cls), ranks_of[cls]) << seed << " " << cls;
      EXPECT_EQ(p.num_ranks(cls), std::ssize(ranks_of[cls]));
    }
    const Program back = parse_program(print(p));
    EXPECT_TRUE(back == p) << seed << "\n" << print(p);
    EXPECT_EQ(program_hash(back), program_hash(p));
  }
}

TEST(Classes, GroupsJoinTheClassesOfTheirMembers) {
  int crossing = 0;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    Rng rng(seed);
    const Program p = random_program(rng);
    const Group group = random_group(rng, p);
    const std::vector<RoleCoords> all = places(p);
    std::set<std::vector<ClassId>> sorts;
    std::vector<bool> leaves(p.classes.size(), false);
    for (int32_t rank = 0; rank < p.num_ranks(); ++rank) {
      if (all[rank].role != group.role) continue;
      const std::vector<int32_t> ranks = meets(p, group, all, static_cast<size_t>(rank));
      EXPECT_EQ(p.members(group, rank), ranks) << seed;
      EXPECT_EQ(p.size_of(group), std::ssize(ranks)) << seed;
      std::set<ClassId> classes;
      for (int32_t member : ranks) {
        classes.insert(p.class_of(member));
      }
      sorts.insert({classes.begin(), classes.end()});
      const ClassId cls = p.class_of(rank);
      for (int32_t member : ranks) {
        leaves[cls] = leaves[cls] || (p.ranks_per_node > 0 &&
                                      ranks[0] / p.ranks_per_node != member / p.ranks_per_node);
      }
    }
    const auto found = p.meetings(group);
    EXPECT_EQ(std::set(found.begin(), found.end()), sorts) << seed;
    EXPECT_EQ(found.size(), sorts.size()) << seed;
    const bool crosses = std::any_of(sorts.begin(), sorts.end(),
                                     [](const auto& classes) { return classes.size() > 1; });
    EXPECT_EQ(p.crosses_classes(group), crosses) << seed;
    crossing += crosses;
    for (size_t cls = 0; cls < p.classes.size(); ++cls) {
      if (p.classes[cls].role != group.role) continue;
      EXPECT_EQ(p.leaves_node(group, cls), leaves[cls]) << seed << " class " << cls;
    }
    // The one spelling has the same members, for the ranks that take part.
    const Group one = p.canonical(group);
    for (int32_t rank = 0; rank < p.num_ranks(); ++rank) {
      if (all[rank].role != group.role) continue;
      const std::vector<int32_t> ranks = p.members(group, rank);
      if (!std::binary_search(ranks.begin(), ranks.end(), rank)) continue;
      EXPECT_EQ(p.members(one, rank), ranks) << seed;
    }
  }
  EXPECT_GT(crossing, 150);
}

TEST(Classes, PeersAreWhereTheWayLeads) {
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    Rng rng(seed);
    Program p = random_program(rng);
    const std::vector<RoleCoords> all = places(p);
    for (size_t cls = 0; cls < p.classes.size(); ++cls) {
      const std::vector<graph::Axis> axes = p.mesh_of(cls).axes;
      if (axes.empty()) continue;
      Task task;
      task.peer_axis = below(rng, static_cast<int32_t>(axes.size()));
      const int32_t size = axes[task.peer_axis].size;
      task.peer = below(rng, 2 * size + 1) - size;
      // Every second time a number of any size at the coordinates on one axis is added.
      const int32_t beside = below(rng, static_cast<int32_t>(axes.size()));
      Table table{p.classes[cls].role, {beside}, {}};
      for (int32_t i = 0; i < axes[beside].size; ++i) {
        const auto by = seed % 2 ? 0 : static_cast<int64_t>(rng.below(UINT64_MAX));
        table.values.push_back(by);
      }
      if (seed % 2 == 0) {
        task.peer_by = p.intern(table);
      }
      std::set<ClassId> peers;
      bool leaves = false;
      for (int32_t rank : p.ranks_of(cls)) {
        RoleCoords place = all[rank];
        int32_t& at = place.at[task.peer_axis];
        const int64_t by = table.values[static_cast<size_t>(all[rank].at[beside])] % size;
        at = static_cast<int32_t>(((at + task.peer + by) % size + size) % size);
        const auto peer =
            static_cast<int32_t>(std::find(all.begin(), all.end(), place) - all.begin());
        EXPECT_EQ(p.peer_of(task.peer_map(), rank), peer) << seed;
        peers.insert(p.class_of(peer));
        leaves =
            leaves || (p.ranks_per_node > 0 && rank / p.ranks_per_node != peer / p.ranks_per_node);
      }
      EXPECT_EQ(p.peer_classes(cls, task.peer_map()),
                std::vector<ClassId>(peers.begin(), peers.end()))
          << seed;
      EXPECT_EQ(p.leaves_node(task.peer_map(), cls), leaves) << seed;
    }
  }
}

TEST(Classes, RefusesClassesThatAreNoPartition) {
  Program p;
  p.roles = {{"all", {{{"x", 3}, {"y", 2}}}}};
  p.classes.resize(2);
  const auto wrong = [&](Interval first, Interval second) {
    p.classes[0].box[0] = first;
    p.classes[1].box[0] = second;
    return p.bad_placement();
  };
  EXPECT_EQ(wrong({0, 2}, {2, 1}), "");
  EXPECT_EQ(wrong({0, 2}, {1, 2}), "rank 2 is in the classes 0 and 1");
  EXPECT_EQ(wrong({0, 1}, {2, 1}), "rank 2 is in no class");
  EXPECT_EQ(wrong({0, 2}, {2, 2}), "class 1 has coordinates 2 to 3 of axis 0, which has 3");
  EXPECT_NE(wrong({0, 2}, {2, 0}), "");
  EXPECT_NE(wrong({0, 2}, {2, INT32_MAX}), "");
  EXPECT_NE(wrong({0, 2}, {-1, 1}), "");
  p.classes[1].role = 1;
  EXPECT_EQ(wrong({0, 2}, {}), "class 1 is of role 1; the program has 1 role");
  p.classes[1].role = 0;
  p.classes[1].box[2] = {0, 1};
  EXPECT_NE(wrong({0, 2}, {2, 1}).find("axis 2, which has 0"), std::string::npos);
}

TEST(Classes, EqualOnesAreUnited) {
  int united = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    Rng rng(seed);
    Program p = random_program(rng);
    // Lists of few sorts.
    for (RankClass& cls : p.classes) {
      cls.tasks.resize(1 + rng.below(2));
    }
    std::vector<size_t> tasks;
    for (int32_t rank = 0; rank < p.num_ranks(); ++rank) {
      tasks.push_back(p.classes[p.class_of(rank)].tasks.size());
    }
    const size_t before = p.classes.size();
    unite_equal_classes(p);
    EXPECT_EQ(p.bad_placement(), "") << seed;
    for (int32_t rank = 0; rank < p.num_ranks(); ++rank) {
      EXPECT_EQ(p.classes[p.class_of(rank)].tasks.size(), tasks[rank]) << seed;
    }
    united += p.classes.size() < before;
    const Program again = [&] {
      Program copy = p;
      unite_equal_classes(copy);
      return copy;
    }();
    EXPECT_TRUE(again == p) << seed;
  }
  EXPECT_GT(united, 150);
}

/// One list per coordinate of an axis, of two sorts: few classes.
TEST(Classes, OneListPerCoordinateBecomesFewClasses) {
  Program p;
  p.roles = {{"all", {{{"pp", 2}, {"ep", 7}}}}};
  for (int32_t stage = 0; stage < 2; ++stage) {
    for (int32_t at = 0; at < 7; ++at) {
      RankClass cls;
      cls.name = std::to_string(stage) + std::to_string(at);
      cls.box[0] = {stage, 1};
      cls.box[1] = {at, 1};
      cls.tasks.resize(at < 5 ? 2 : 3);
      cls.arena_bytes = 64 * stage;
      p.classes.push_back(cls);
    }
  }
  unite_equal_classes(p);
  ASSERT_EQ(p.classes.size(), 4u);
  EXPECT_EQ(to_string(p.classes[0].box, p.roles[0].mesh), "pp:0 ep:0-4");
  EXPECT_EQ(to_string(p.classes[1].box, p.roles[0].mesh), "pp:0 ep:5-6");
  EXPECT_EQ(p.classes[1].name, "05");
  // One list for the whole mesh.
  for (RankClass& cls : p.classes) {
    cls.tasks.clear();
    cls.arena_bytes = 0;
    cls.host_arena_bytes = cls.box[0].begin == 0 ? 64 : 0;
  }
  unite_equal_classes(p);
  ASSERT_EQ(p.classes.size(), 2u) << "other memory of the host";
  p.classes[0].host_arena_bytes = 0;
  unite_equal_classes(p);
  ASSERT_EQ(p.classes.size(), 1u);
  EXPECT_EQ(p.classes[0].box, Box());
}

}  // namespace
}  // namespace hocket::program
