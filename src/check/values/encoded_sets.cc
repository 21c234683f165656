// SPDX-License-Identifier: Apache-2.0
#include "check/values/encoded_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace hocket::check {

using graph::CutId;

FamilyId EncodedSets::intern(Sets sets) {
  std::sort(sets.begin(), sets.end());
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  const auto [known, fresh] = index_.try_emplace(sets, families_.size());
  if (fresh) {
    shares_.push_back(shares_of(sets));
    families_.push_back(std::move(sets));
  }
  return known->second;
}

std::string EncodedSets::shares_of(const Sets& sets) const {
  std::set<std::string> shares;
  for (const std::vector<Addends>& addends : sets) {
    std::string share;
    for (const Addends& part : addends) {
      const int64_t cells = cuts_[part.set].cells;
      const int64_t held = cuts_.local_size(part.set, cells);
      share += share.empty() ? "" : " x ";
      const int64_t common = std::gcd(held, cells);
      share += held < 0 ? "some" : fmt::format("{}/{}", held / common, cells / common);
    }
    shares.insert(share.empty() ? "all" : share);
  }
  if (shares.size() == 1 && *shares.begin() == "all") return "";
  std::string text;
  for (const std::string& share : shares) {
    text += (text.empty() ? "" : " and ") + share;
  }
  return text;
}

AxisMask EncodedSets::axes(FamilyId id) const {
  AxisMask axes = 0;
  for (const std::vector<Addends>& addends : families_[id]) {
    for (const Addends& part : addends) {
      axes |= cuts_.axes(part.set);
    }
  }
  return axes;
}

FamilyId EncodedSets::unite(FamilyId left, FamilyId right) {
  if (left == right) return left;
  const auto [known, fresh] = unions_.try_emplace({left, right}, FamilyId{});
  if (fresh) {
    Sets sets = families_[left];
    sets.insert(sets.end(), families_[right].begin(), families_[right].end());
    known->second = intern(std::move(sets));
  }
  return known->second;
}

FamilyId EncodedSets::from_peer(FamilyId id, const graph::Shift& shift) {
  if (!(axes(id) & graph::axis_bit(shift.axis))) return id;
  const auto [known, fresh] = from_peers_.try_emplace({id, shift}, FamilyId{});
  if (fresh) {
    Sets sets = families_[id];
    for (std::vector<Addends>& addends : sets) {
      for (Addends& part : addends) {
        part.set = cuts_.moved(part.set, shift);
      }
    }
    known->second = intern(std::move(sets));
  }
  return known->second;
}

FamilyId EncodedSets::at(FamilyId id, AxisMask over, const graph::Coords& coords) {
  Sets sets = families_[id];
  for (std::vector<Addends>& addends : sets) {
    for (Addends& part : addends) {
      part.set = cuts_.fixed(part.set, over, coords);
    }
  }
  return intern(std::move(sets));
}

FamilyId EncodedSets::over_all(FamilyId id, AxisMask over) {
  const FamilyId before = settled(id);
  const AxisMask differ = axes(before) & over;
  if (differ == 0) return before;
  const auto [known, fresh] = over_all_.try_emplace({before, differ}, FamilyId{});
  if (fresh) {
    Sets all;
    cuts_.for_each(differ, {}, [&](const graph::Coords& coords) {
      const Sets& sets = families_[at(before, differ, coords)];
      all.insert(all.end(), sets.begin(), sets.end());
    });
    known->second = intern(std::move(all));
  }
  return known->second;
}

FamilyId EncodedSets::settled(FamilyId id) {
  const auto [known, fresh] = settled_.try_emplace(id, id);
  if (!fresh) return known->second;
  FamilyId settled = id;
  for (AxisMask left = axes(id); left; left &= left - 1) {
    const AxisMask axis = left & ~(left - 1);
    const FamilyId first = at(settled, axis, {});
    bool same = true;
    cuts_.for_each(axis, {}, [&](const graph::Coords& coords) {
      same = same && at(settled, axis, coords) == first;
    });
    if (same) {
      settled = first;
    }
  }
  known->second = settled;
  return settled;
}

/// Joins the parts of one base, coordinate by coordinate, and compares the losses between these.
class EncodedSets::Joining {
 public:
  Joining(EncodedSets& families, std::span<const Part> parts, CutId wanted, int64_t extent,
          int64_t size)
      : families_(families), parts_(parts), wanted_(wanted), extent_(extent), size_(size) {}

  /// Returns the sets of the parts that overlap the wanted region at a coordinate.
  FamilyId at(const graph::Coords& coords) {
    graph::CutTable& cuts = families_.cuts_;
    Sets all;
    for (const graph::Run& run : cuts.part_at(wanted_, coords, extent_, 0, -1)) {
      for (const Part& part : parts_) {
        const FamilyId family = families_.at(part.family, families_.axes(part.family), coords);
        const FamilyId addends = families_.at(part.addends, families_.axes(part.addends), coords);
        int64_t local = 0;
        for (const graph::Run& held : cuts.part_at(part.region, coords, extent_, 0, -1)) {
          const int64_t from = std::max(run.begin, held.begin);
          const int64_t to = std::min(run.begin + run.length, held.begin + held.length);
          if (from < to) {
            note(addends, family,
                 cuts.part_at(part.cut, coords, size_, local + from - held.begin, to - from));
            const Sets& sets = families_.families_[family];
            all.insert(all.end(), sets.begin(), sets.end());
          }
          local += held.length;
        }
      }
    }
    return families_.intern(std::move(all));
  }

  /// Returns whether every index of the same addends lost the same sets at all coordinates.
  bool same() const {
    bool same = same_;
    FamilyId of{kNone};
    int64_t end = 0;
    for (const auto& [first, lost] : lost_) {
      const auto& [addends, begin] = first;
      same = same && (addends != of || begin >= end);
      of = addends;
      end = lost.first;
    }
    return same;
  }

 private:
  void note(FamilyId addends, FamilyId family, const std::vector<graph::Run>& indices) {
    for (const graph::Run& run : indices) {
      const std::pair<int64_t, FamilyId> here{run.begin + run.length, family};
      const auto known = lost_.try_emplace({addends, run.begin}, here).first;
      same_ = same_ && known->second == here;
    }
  }

  EncodedSets& families_;
  std::span<const Part> parts_;
  CutId wanted_;
  int64_t extent_, size_;
  /// By addends and first index of a run: its end, and the sets that were lost.
  std::map<std::pair<FamilyId, int64_t>, std::pair<int64_t, FamilyId>> lost_;
  bool same_ = true;
};

FamilyId EncodedSets::join(std::span<const Part> parts, CutId wanted, int64_t extent,
                           int64_t size) {
  const auto [known, fresh] = joins_.try_emplace(
      {std::vector(parts.begin(), parts.end()), wanted, extent, size}, FamilyId{kNone});
  if (!fresh) return known->second;
  AxisMask over = cuts_.axes(wanted);
  for (const Part& part : parts) {
    over |= cuts_.axes(part.region) | cuts_.axes(part.cut) | axes(part.family);
  }
  Joining joining(*this, parts, wanted, extent, size);
  std::vector<FamilyId> families;
  cuts_.for_each(over, {},
                 [&](const graph::Coords& coords) { families.push_back(joining.at(coords)); });
  if (joining.same()) {
    known->second = by_coordinate(over, families);
  }
  return known->second;
}

double EncodedSets::size_of(const std::vector<Addends>& addends) const {
  double size = 1;
  for (const Addends& part : addends) {
    const int64_t cells = cuts_[part.set].cells;
    size *= static_cast<double>(cuts_.volume(part.set, {}, cells)) / static_cast<double>(cells);
  }
  return size;
}

FamilyId EncodedSets::by_coordinate(AxisMask axes, const std::vector<FamilyId>& families) {
  // The number of functions is the largest number of sets at any coordinate. Sorting by size lets a
  // function have sets of equal size everywhere, if possible; missing sets repeat the last one.
  size_t most = 0;
  std::vector<Sets> ordered;
  for (const FamilyId family : families) {
    Sets& sets = ordered.emplace_back(families_[family]);
    std::stable_sort(sets.begin(), sets.end(), [&](const auto& left, const auto& right) {
      return size_of(left) < size_of(right);
    });
    most = std::max(most, sets.size());
  }
  Sets made;
  for (size_t i = 0; i < most; ++i) {
    const auto at_coordinate = [&](const Sets& sets) -> const std::vector<Addends>& {
      return sets[std::min(i, sets.size() - 1)];
    };
    std::vector<Addends> addends = at_coordinate(ordered[0]);
    for (size_t k = 0; k < addends.size(); ++k) {
      int64_t cells = 1;
      for (const Sets& sets : ordered) {
        const std::vector<Addends>& here = at_coordinate(sets);
        if (here.size() != addends.size() || here[k].space != addends[k].space) return kNone;
        cells = std::lcm(cells, cuts_[here[k].set].cells);
      }
      std::vector<std::vector<graph::Run>> rows;
      for (const Sets& sets : ordered) {
        rows.push_back(cuts_.part_at(at_coordinate(sets)[k].set, {}, cells, 0, -1));
      }
      addends[k].set = cuts_.make(cells, axes, rows);
    }
    made.push_back(std::move(addends));
  }
  return intern(std::move(made));
}

std::string EncodedSets::text(FamilyId id) const {
  constexpr size_t kMaxListed = 8;
  std::string text;
  for (size_t i = 0; i < families_[id].size(); ++i) {
    text += i ? ", " : "";
    if (i == kMaxListed) return text + "..";
    std::string set;
    for (const Addends& part : families_[id][i]) {
      set += (set.empty() ? "" : " x ") + cuts_.text(part.set);
    }
    text += set.empty() ? "all" : set;
  }
  return text;
}

}  // namespace hocket::check
