// SPDX-License-Identifier: Apache-2.0
// Implements: TablesBuilder::find_kinds and representatives (tables_builder.h). Groups ranks that
// behave identically, so that one rank per group is simulated. The groups are the coarsest
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
class Numbers {
 public:
  int32_t of(Key key) {
    const auto next = static_cast<int32_t>(known_.size());
    return known_.try_emplace(std::move(key), next).first->second;
  }
  int32_t size() const { return static_cast<int32_t>(known_.size()); }

 private:
  std::map<Key, int32_t> known_;
};

}  // namespace

bool TablesBuilder::find_kinds(int32_t world, bool links) {
  // Groups are numbered by their lowest ranks. With links, refinement continues from the partition
  // found without them.
  int32_t kinds = 0;
  if (links) {
    kinds = *std::max_element(kind_of_.begin(), kind_of_.end()) + 1;
  } else {
    Numbers<std::pair<ClassId, size_t>> first;
    kind_of_.clear();
    for (int32_t rank = 0; rank < world; ++rank) {
      kind_of_.push_back(first.of({class_of_[rank], durations_.device_of(rank)}));
    }
    kinds = first.size();
  }
  for (int32_t before = 0; before < kinds;) {
    if (before > 0 && kinds > world / 2) return false;  // too few ranks would be saved
    before = kinds;
    kinds = split_kinds(links);
  }
  return !representatives().empty();
}

int32_t TablesBuilder::split_kinds(bool links) {
  // A meeting or message is coloured by the groups of all its ranks, then by the links that it
  // shares.
  Numbers<std::tuple<GroupId, int32_t, std::vector<int32_t>>> of_meetings;
  Numbers<std::tuple<int32_t, int32_t, int32_t, int32_t>> of_sendings;
  std::vector<int32_t> met, sent;
  for (const Meeting& meeting : meetings_) {
    met.push_back(of_meetings.of({meeting.group, meeting.shape, kinds_of(meeting.ranks)}));
  }
  for (const Sending& sending : sendings_) {
    sent.push_back(of_meetings.size() +
                   of_sendings.of({sending.link, sending.shape, kind_of_[sending.from],
                                   kind_of_[sending.to]}));
  }
  if (links) {
    std::vector<int32_t> orbits(met.size() + sent.size(), 0);
    for (size_t i = 0; i < met.size(); ++i) {
      orbits[static_cast<size_t>(meetings_[i].place)] = met[i];
    }
    for (size_t i = 0; i < sent.size(); ++i) {
      orbits[static_cast<size_t>(sendings_[i].place)] = sent[i];
    }
    const std::vector<int32_t> views = contention_.views(orbits);
    Numbers<std::pair<int32_t, int32_t>> seen;
    for (size_t i = 0; i < met.size(); ++i) {
      met[i] = seen.of({met[i], views[static_cast<size_t>(meetings_[i].place)]});
    }
    for (size_t i = 0; i < sent.size(); ++i) {
      sent[i] = seen.of({sent[i], views[static_cast<size_t>(sendings_[i].place)]});
    }
  }
  Numbers<std::vector<int32_t>> kinds;
  std::vector<int32_t> kind_of;
  for (size_t rank = 0; rank < kind_of_.size(); ++rank) {
    std::vector<int32_t> all = {kind_of_[rank]};
    for (const int32_t meeting : meetings_of_[rank]) {
      all.push_back(met[static_cast<size_t>(meeting)]);
    }
    for (const std::vector<int32_t>* list : {&sends_of_[rank], &receives_of_[rank]}) {
      all.push_back(program::kNone);
      for (const int32_t sending : *list) {
        all.push_back(sent[static_cast<size_t>(sending)]);
      }
    }
    kind_of.push_back(kinds.of(std::move(all)));
  }
  kind_of_ = std::move(kind_of);
  return kinds.size();
}

std::vector<int32_t> TablesBuilder::representatives() const {
  std::vector<int32_t> list;
  for (size_t rank = 0; rank < kind_of_.size(); ++rank) {
    if (kind_of_[rank] == std::ssize(list)) {
      list.push_back(static_cast<int32_t>(rank));
    }
  }
  for (const int32_t rank : list) {
    for (const int32_t number : meetings_of_[static_cast<size_t>(rank)]) {
      const std::vector<int32_t>& ranks = meetings_[static_cast<size_t>(number)].ranks;
      for (const int32_t kind : kinds_of(ranks)) {
        const int32_t other = list[static_cast<size_t>(kind)];
        if (!std::binary_search(ranks.begin(), ranks.end(), other)) return {};
      }
    }
  }
  return list;
}

std::vector<int32_t> TablesBuilder::kinds_of(const std::vector<int32_t>& ranks) const {
  std::vector<int32_t> kinds;
  for (const int32_t rank : ranks) {
    kinds.push_back(kind_of_[static_cast<size_t>(rank)]);
  }
  std::sort(kinds.begin(), kinds.end());
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  return kinds;
}

}  // namespace hocket::sim
