// SPDX-License-Identifier: Apache-2.0
#include "check/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>

namespace hocket::check {

using graph::CutId;

FamilyId Families::intern(Sets sets) {
  std::sort(sets.begin(), sets.end());
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  const auto [known, fresh] = index_.try_emplace(sets, families_.size());
  if (fresh) {
    shares_.push_back(shares_of(sets));
    families_.push_back(std::move(sets));
  }
  return known->second;
}

std::string Families::shares_of(const Sets& sets) const {
  std::set<std::string> shares;
  for (const std::vector<Addends>& addends : sets) {
    std::string share;
    for (const Addends& part : addends) {
      const int64_t cells = cuts_[part.set].cells;
      const int64_t held = cuts_.local_size(part.set, cells);
      share += share.empty() ? "" : " x ";
      share += held < 0 ? "some" : fmt::format("{}/{}", held, cells);
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

AxisMask Families::axes(FamilyId id) const {
  AxisMask axes = 0;
  for (const std::vector<Addends>& addends : families_[id]) {
    for (const Addends& part : addends) {
      axes |= cuts_.axes(part.set);
    }
  }
  return axes;
}

FamilyId Families::unite(FamilyId left, FamilyId right) {
  if (left == right) return left;
  const auto [known, fresh] = unions_.try_emplace({left, right}, FamilyId{});
  if (fresh) {
    Sets sets = families_[left];
    sets.insert(sets.end(), families_[right].begin(), families_[right].end());
    known->second = intern(std::move(sets));
  }
  return known->second;
}

FamilyId Families::from_peer(FamilyId id, const graph::Shift& shift) {
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

FamilyId Families::at(FamilyId id, AxisMask over, const graph::Coords& coords) {
  Sets sets = families_[id];
  for (std::vector<Addends>& addends : sets) {
    for (Addends& part : addends) {
      part.set = cuts_.fixed(part.set, over, coords);
    }
  }
  return intern(std::move(sets));
}

FamilyId Families::over_all(FamilyId id, AxisMask over) {
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

FamilyId Families::settled(FamilyId id) {
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

std::string Families::text(FamilyId id) const {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < families_[id].size(); ++i) {
    text += i ? ", " : "";
    if (i == kMost) return text + "..";
    std::string set;
    for (const Addends& part : families_[id][i]) {
      set += (set.empty() ? "" : " x ") + cuts_.text(part.set);
    }
    text += set.empty() ? "all" : set;
  }
  return text;
}

}  // namespace hocket::check
