// SPDX-License-Identifier: Apache-2.0
// Views: buffers that are parts of others, which of them have memory in common, and where they lie.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "program/program.h"

namespace hocket::program {

/// Returns the offset of a view in bytes from the beginning of its base, on a rank of its class,
/// for these values of symbols: a multiple of its length if that is a part of a symbol.
int64_t byte_offset(const Program& program, const RankClass& cls, const Buffer& view, int32_t rank,
                    std::span<const int64_t> symbol_values);
/// Returns whether the offset depends on the values of symbols.
bool moves_with_symbols(const Buffer& view);
/// Elements between neighbours of each dim of a view. Empty if it has no gaps.
std::vector<int64_t> strides_of(const RankClass& cls, const Buffer& view);

/// Visits the coordinates that ranks of a class have on these axes of its mesh, ascending, the last
/// axis counting fastest; on other axes those of its first rank.
template <class Visit>
void for_each_coords(const Program& program, ClassId cls, const std::vector<int32_t>& axes,
                     const Visit& visit) {
  std::vector<Interval> spans;
  std::vector<int32_t> coords;
  for (size_t axis = 0; axis < program.mesh_of(cls).axes.size(); ++axis) {
    spans.push_back(program.span(cls, static_cast<int32_t>(axis)));
    coords.push_back(spans.back().begin);
  }
  for (bool more = true; more;) {
    visit(std::as_const(coords));
    more = false;
    for (size_t i = axes.size(); i-- > 0 && !more;) {
      const size_t axis = static_cast<size_t>(axes[i]);
      more = ++coords[axis] < spans[axis].end();
      if (!more) {
        coords[axis] = spans[axis].begin;
      }
    }
  }
}

/// The views of a class. Bases, dims and tables must exist, and regions lie inside their bases. A
/// sweep along a base finds the regions that overlap, at every coordinate of the tables of their
/// begins. It runs once for all bases of a class with the same regions.
class Views {
 public:
  Views(const Program& program, ClassId cls);

  bool any() const { return any_; }
  /// The other buffers that have memory in common with this one on some rank of the class: of a
  /// base all its views, of a view its base and the views of it that overlap, ascending.
  std::span<const BufferId> meets(BufferId buffer) const {
    if (!any_) return {};
    return meets_[buffer];
  }

 private:
  bool any_ = false;
  std::vector<std::vector<BufferId>> meets_;
};

}  // namespace hocket::program
