// SPDX-License-Identifier: Apache-2.0
// Implements: TablesBuilder::find_rank_groups and representatives (tables_builder.h). Groups ranks
// that behave identically, so that one rank per group is simulated. The groups are the coarsest
// partition in which equivalent ranks take part in equivalent collectives and messages, at equal
// cost, over links with equivalent loads. Computed by colour refinement, as in the minimisation of
// automata.
#include <algorithm>

#include "base/error.h"
#include "sim/tables_builder.h"

namespace hocket::sim {

namespace {

/// Numbers distinct keys 0, 1, ... in the order of their first appearance.
template <typename Key>
class Numbering {
 public:
  int32_t of(Key key) { return known_.try_emplace(std::move(key), size()).first->second; }
  int32_t size() const { return std::ssize(known_); }

 private:
  std::map<Key, int32_t> known_;
};

}  // namespace

bool TablesBuilder::find_rank_groups(int32_t world, bool links) {
  // Groups are numbered by their lowest ranks. With links, refinement continues from the partition
  // found without them.
  int32_t groups = 0;
  if (links) {
    groups = std::max_element(rank_group_of_.begin(), rank_group_of_.end())->value() + 1;
  } else {
    Numbering<std::pair<ClassId, size_t>> first;
    rank_group_of_.clear();
    for (int32_t rank = 0; rank < world; ++rank) {
      rank_group_of_.push_back(first.of({class_of_[rank], durations_.device_of(rank)}));
    }
    groups = first.size();
  }
  for (int32_t before = 0; before < groups;) {
    if (before > 0 && groups > world / 2) return false;  // too few ranks would be saved
    before = groups;
    groups = refine_rank_groups(links);
  }
  return !representatives().empty();
}

int32_t TablesBuilder::refine_rank_groups(bool links) {
  // `met` and `sent` are the colours of communicators and of pairs of peers. A colour is a group or
  // link, a shape, and the rank groups of the ranks. Two flows of one colour are in one orbit. With
  // links, a colour is refined by the flow's view: how many transfers of each orbit its links
  // carry. A rank's new group is its old one with the colours of its communicators, sends and
  // receives.
  Numbering<std::tuple<GroupId, ShapeId, std::vector<RankGroup>>> of_communicators;
  Numbering<std::tuple<PeerLinkId, ShapeId, RankGroup, RankGroup>> of_pairs;
  std::vector<int32_t> met, sent;
  for (const Communicator& communicator : communicators_) {
    met.push_back(of_communicators.of(
        {communicator.group, communicator.shape, rank_groups_of(communicator.ranks)}));
  }
  for (const PeerPair& pair : pairs_) {
    sent.push_back(
        of_communicators.size() +
        of_pairs.of({pair.link, pair.shape, rank_group_of_[pair.from], rank_group_of_[pair.to]}));
  }
  if (links) {
    std::vector<int32_t> orbits(met.size() + sent.size(), 0);
    for (size_t i = 0; i < met.size(); ++i) {
      orbits[communicators_[i].flow] = met[i];
    }
    for (size_t i = 0; i < sent.size(); ++i) {
      orbits[pairs_[i].flow] = sent[i];
    }
    const std::vector<int32_t> views = contention_.views(orbits);
    Numbering<std::pair<int32_t, int32_t>> seen;
    for (size_t i = 0; i < met.size(); ++i) {
      met[i] = seen.of({met[i], views[communicators_[i].flow]});
    }
    for (size_t i = 0; i < sent.size(); ++i) {
      sent[i] = seen.of({sent[i], views[pairs_[i].flow]});
    }
  }
  Numbering<std::vector<int32_t>> groups;
  std::vector<RankGroup> group_of;
  for (size_t rank = 0; rank < rank_group_of_.size(); ++rank) {
    std::vector<int32_t> all = {rank_group_of_[rank].value()};
    for (const Id<Communicator> communicator : communicators_of_[rank]) {
      all.push_back(met[communicator]);
    }
    for (const std::vector<Id<PeerPair>>* list : {&sends_of_[rank], &receives_of_[rank]}) {
      all.push_back(program::kNone);
      for (const Id<PeerPair> pair : *list) {
        all.push_back(sent[pair]);
      }
    }
    group_of.push_back(groups.of(std::move(all)));
  }
  rank_group_of_ = std::move(group_of);
  return groups.size();
}

std::vector<int32_t> TablesBuilder::representatives() const {
  std::vector<int32_t> list;
  for (size_t rank = 0; rank < rank_group_of_.size(); ++rank) {
    if (rank_group_of_[rank] == std::ssize(list)) {
      list.push_back(rank);
    }
  }
  for (const int32_t rank : list) {
    for (const Id<Communicator> id : communicators_of_[rank]) {
      const std::vector<int32_t>& ranks = communicators_[id].ranks;
      for (const RankGroup group : rank_groups_of(ranks)) {
        const int32_t other = list[group];
        if (!std::binary_search(ranks.begin(), ranks.end(), other)) return {};
      }
    }
  }
  return list;
}

std::vector<TablesBuilder::RankGroup> TablesBuilder::rank_groups_of(
    const std::vector<int32_t>& ranks) const {
  std::vector<RankGroup> groups;
  for (const int32_t rank : ranks) {
    groups.push_back(rank_group_of_[rank]);
  }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  return groups;
}

}  // namespace hocket::sim
