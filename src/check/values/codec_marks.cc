// SPDX-License-Identifier: Apache-2.0
#include "check/values/codec_marks.h"

#include <algorithm>
#include <tuple>

namespace hocket::check {

MarkId CodecMarks::unite(MarkId left, MarkId right, AxisMask axes) {
  if (left == right) return left;
  const MarkSet& mine = marks_[left];
  const MarkSet& theirs = marks_[right];
  MarkSet all{{}, mine.apart | theirs.apart | axes};
  const auto key = [](const CodecMark& mark) { return std::tie(mark.codec, mark.term); };
  auto other = theirs.list.begin();
  for (const CodecMark& mark : mine.list) {
    while (other != theirs.list.end() && key(*other) < key(mark)) {
      all.list.push_back(*other++);
    }
    all.list.push_back(mark);
    if (other != theirs.list.end() && key(*other) == key(mark)) {
      all.list.back().addends = sets_.unite(mark.addends, (other++)->addends);
    }
  }
  all.list.insert(all.list.end(), other, theirs.list.end());
  return intern(std::move(all));
}

MarkId CodecMarks::intern(MarkSet marks) {
  const auto [known, fresh] =
      index_.try_emplace(std::move(marks), static_cast<MarkId>(marks_.size()));
  if (fresh) {
    marks_.push_back(known->first);
  }
  return known->second;
}

bool CodecMarks::equal_losses(MarkId left, MarkId right) const {
  if (left == right) return true;
  const MarkSet& mine = marks_[left];
  const MarkSet& theirs = marks_[right];
  return mine.apart == theirs.apart &&
         std::equal(mine.list.begin(), mine.list.end(), theirs.list.begin(), theirs.list.end(),
                    [&](const CodecMark& one, const CodecMark& other) {
                      return one.codec == other.codec && one.term == other.term &&
                             sets_.shares(one.addends) == sets_.shares(other.addends);
                    });
}

MarkId CodecMarks::with_addends(MarkId marks, const std::function<FamilyId(FamilyId)>& change) {
  if (marks_[marks].list.empty()) return marks;
  MarkSet changed = marks_[marks];
  for (CodecMark& mark : changed.list) {
    mark.addends = change(mark.addends);
  }
  return changed == marks_[marks] ? marks : intern(std::move(changed));
}

MarkId CodecMarks::from_peer(MarkId marks, const graph::Shift& shift) {
  return with_addends(marks, [&](FamilyId addends) { return sets_.from_peer(addends, shift); });
}

MarkId CodecMarks::over_all(MarkId marks, AxisMask over) {
  if (over == 0) return marks;
  return with_addends(marks, [&](FamilyId addends) { return sets_.over_all(addends, over); });
}

MarkId CodecMarks::settled(MarkId marks) {
  const auto [known, fresh] = settled_.try_emplace(marks, marks);
  if (fresh) {
    known->second = with_addends(marks, [&](FamilyId addends) { return sets_.settled(addends); });
  }
  return known->second;
}

AxisMask CodecMarks::axes(MarkId marks) const {
  AxisMask axes = 0;
  for (const CodecMark& mark : marks_[marks].list) {
    axes |= sets_.axes(mark.addends);
  }
  return axes;
}

MarkId CodecMarks::at(MarkId marks, const graph::Coords& coords) {
  const MarkId left = settled(marks);
  const AxisMask over = axes(left);
  if (over == 0) return left;
  return with_addends(left, [&](FamilyId addends) { return sets_.at(addends, over, coords); });
}

std::optional<MarkId> CodecMarks::join(std::span<const Part> parts, CutId wanted, int64_t extent,
                                       int64_t size) {
  // Joins the encoded sets of each codec and term by themselves.
  MarkSet all = marks_[parts[0].marks];
  for (const Part& part : parts) {
    if (!equal_losses(part.marks, parts[0].marks)) return std::nullopt;
  }
  for (size_t i = 0; i < all.list.size(); ++i) {
    std::vector<EncodedSets::Part> sets;
    for (const Part& part : parts) {
      sets.push_back(
          {part.region, part.cut, sets_.of(*part.addends), marks_[part.marks].list[i].addends});
    }
    all.list[i].addends = sets_.join(sets, wanted, extent, size);
    if (all.list[i].addends == kNone) return std::nullopt;
  }
  return intern(std::move(all));
}

}  // namespace hocket::check
