// SPDX-License-Identifier: Apache-2.0
#include "graph/cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"

namespace hocket::graph {

namespace {

using Row = std::vector<Run>;

int64_t end(const Run& run) { return run.begin + run.length; }

/// Joins runs that continue one another, and leaves empty ones out.
Row joined(const Row& row) {
  Row result;
  for (const Run& run : row) {
    if (run.length == 0) continue;
    if (!result.empty() && end(result.back()) == run.begin) {
      result.back().length += run.length;
    } else {
      result.push_back(run);
    }
  }
  return result;
}

Row sorted(Row row) {
  std::sort(row.begin(), row.end(),
            [](const Run& left, const Run& right) { return left.begin < right.begin; });
  return row;
}

bool holds_twice(const Row& row) {
  const Row ascending = sorted(row);
  for (size_t i = 1; i < ascending.size(); ++i) {
    if (end(ascending[i - 1]) > ascending[i].begin) return true;
  }
  return false;
}

/// Run from the first cell of all rows to the last; empty if there is none.
Run hull_of(const Cut& cut) {
  if (cut.runs.empty()) return {};
  int64_t from = cut.runs[0].begin;
  int64_t to = 0;
  for (const Run& run : cut.runs) {
    from = std::min(from, run.begin);
    to = std::max(to, end(run));
  }
  return {from, to - from};
}

/// Returns whether `left` of `left_cells` ends before `right` of `right_cells` begins, as far as
/// can be said in 64 bits.
bool ends_before(const Run& left, int64_t left_cells, const Run& right, int64_t right_cells) {
  int64_t ends = 0;
  int64_t begins = 0;
  return !__builtin_mul_overflow(end(left), right_cells, &ends) &&
         !__builtin_mul_overflow(right.begin, left_cells, &begins) && ends <= begins;
}

/// Cells [begin, begin + length) of a piece, counted in its local order.
Row part_of(const Row& row, int64_t begin, int64_t length) {
  Row result;
  int64_t at = 0;
  for (const Run& run : row) {
    const int64_t from = std::max(begin, at);
    const int64_t to = std::min(begin + length, at + run.length);
    if (from < to) {
      result.push_back({run.begin + from - at, to - from});
    }
    at += run.length;
  }
  return result;
}

/// Cells of every row; -1 if rows differ.
int64_t cells_held(const Cut& cut) {
  int64_t first = -1;
  for (size_t row = 0; row + 1 < cut.row.size(); ++row) {
    int64_t held = 0;
    for (uint32_t run = cut.row[row]; run < cut.row[row + 1]; ++run) {
      held += cut.runs[run].length;
    }
    if (first >= 0 && held != first) return -1;
    first = held;
  }
  return first;
}

int64_t total(const Row& row) {
  int64_t cells = 0;
  for (const Run& run : row) {
    cells += run.length;
  }
  return cells;
}

}  // namespace

std::vector<Run> united(std::vector<Run> row) {
  Row result;
  for (const Run& run : sorted(std::move(row))) {
    if (!result.empty() && run.begin <= end(result.back())) {
      result.back().length = std::max(end(result.back()), end(run)) - result.back().begin;
    } else {
      result.push_back(run);
    }
  }
  return result;
}

bool holds_twice(const std::vector<std::vector<Run>>& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const Row& row) { return holds_twice(row); });
}

bool CoordBox::contains(const Coords& coords, AxisMask axes) const {
  for (AxisMask left = axes; left; left &= left - 1) {
    const int axis = std::countr_zero(left);
    const int32_t at = coords[axis] - begin[axis];
    if (at < 0 || at >= count[axis]) return false;
  }
  return true;
}

std::vector<Run> gaps_in(const std::vector<Run>& row, Run range) {
  std::vector<Run> gaps;
  const int64_t end = range.begin + range.length;
  int64_t next = range.begin;
  for (const Run& run : row) {
    const int64_t until = std::min(run.begin, end);
    if (until > next) {
      gaps.push_back({next, until - next});
    }
    next = std::max(next, run.begin + run.length);
  }
  if (next < end) {
    gaps.push_back({next, end - next});
  }
  return gaps;
}

int64_t CoordBox::ranks_beside(AxisMask axes) const {
  int64_t ranks = 1;
  for (int32_t axis = 0; axis < kMaxCutAxes; ++axis) {
    ranks *= axes & axis_bit(axis) ? 1 : count[axis];
  }
  return ranks;
}

size_t CutTable::KeyHash::operator()(const Key& key) const {
  const uint64_t first =
      static_cast<uint64_t>(key.op) << 32 | static_cast<uint32_t>(key.left.value());
  return mix64(first * 0x9e3779b97f4a7c15ULL ^ mix64(static_cast<uint64_t>(key.right)));
}

CutTable::CutTable(const Coords& extents) : extents_(extents) { intern({1, 0, {0, 1}, {{0, 1}}}); }

int64_t CutTable::ranks(AxisMask axes) const {
  int64_t count = 1;
  for (AxisMask left = axes; left; left &= left - 1) {
    count *= extents_[std::countr_zero(left)];
  }
  return count;
}

size_t CutTable::row_index(AxisMask axes, const Coords& coords) const {
  size_t index = 0;
  for (AxisMask left = axes; left; left &= left - 1) {
    const int axis = std::countr_zero(left);
    index = index * static_cast<size_t>(extents_[axis]) + static_cast<size_t>(coords[axis]);
  }
  return index;
}

std::span<const Run> CutTable::at(CutId id, const Coords& coords) const {
  const Cut& cut = cuts_[id];
  const size_t row = cut.axes ? row_index(cut.axes, coords) : 0;
  return std::span(cut.runs).subspan(cut.row[row], cut.row[row + 1] - cut.row[row]);
}

std::vector<Run> CutTable::scaled(CutId id, const Coords& coords, int64_t cells) const {
  const int64_t factor = cells / cuts_[id].cells;
  Row row;
  for (const Run& run : at(id, coords)) {
    row.push_back({run.begin * factor, run.length * factor});
  }
  return row;
}

void CutTable::refuse_rows(int64_t rows) {
  fail("cut", "a dim is cut over {} coordinates; expected at most {}: cut it over fewer ranks",
       rows, kMaxRows);
}

/// A cut of this many runs: blocks in an order without two adjacent ones.
[[noreturn]] static void refuse_runs(size_t runs) {
  fail("cut",
       "a rank's part of a dim is {} runs or more; expected at most {}: cut it into "
       "fewer parts, or put them in order",
       runs, CutTable::kMaxRuns);
}

template <class Function>
CutTable::Rows CutTable::rows_over(AxisMask axes, const Function& row) const {
  // Counts runs as they are made, so that an excess is refused before it takes memory.
  Rows rows;
  size_t runs = 0;
  for_each(axes, {}, [&](const Coords& coords) {
    rows.push_back(joined(row(coords)));
    runs += rows.back().size();
    if (runs > kMaxRuns) {
      refuse_runs(runs);
    }
  });
  return rows;
}

std::vector<Run> CutTable::held_along(CutId id, AxisMask over, const Coords& coords) const {
  Row row;
  for_each(over, coords, [&](const Coords& member) {
    const std::span<const Run> part = at(id, member);
    row.insert(row.end(), part.begin(), part.end());
  });
  return row;
}

CutId CutTable::intern(Cut cut) {
  uint64_t hash = mix64(static_cast<uint64_t>(cut.cells) * 31 + cut.axes);
  for (uint32_t begin : cut.row) {
    hash = mix64(hash ^ begin);
  }
  for (const Run& run : cut.runs) {
    hash = mix64(hash ^ (static_cast<uint64_t>(run.begin) * 0x9e3779b97f4a7c15ULL) ^
                 static_cast<uint64_t>(run.length));
  }
  const auto [first, last] = index_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (cuts_[it->second] == cut) return it->second;
  }
  const CutId id = cuts_.size();
  hulls_.push_back(hull_of(cut));
  held_.push_back(cells_held(cut));
  cuts_.push_back(std::move(cut));
  index_.emplace(hash, id);
  return id;
}

bool CutTable::hulls_apart(CutId left, CutId right) const {
  const int64_t left_cells = cuts_[left].cells;
  const int64_t right_cells = cuts_[right].cells;
  return ends_before(hulls_[left], left_cells, hulls_[right], right_cells) ||
         ends_before(hulls_[right], right_cells, hulls_[left], left_cells);
}

CutId CutTable::normal(int64_t cells, AxisMask axes, Rows rows) {
  // Joins runs that continue one another. Makes cells as large as all bounds allow. Drops axes
  // along which all rows are the same, one after the other.
  int64_t common = cells;
  size_t runs = 0;
  for (Row& row : rows) {
    row = joined(row);
    runs += row.size();
    for (const Run& run : row) {
      common = std::gcd(common, std::gcd(run.begin, run.length));
    }
  }
  if (runs > kMaxRuns) {
    refuse_runs(runs);
  }
  for (Row& row : rows) {
    for (Run& run : row) {
      run.begin /= common;
      run.length /= common;
    }
  }
  for (AxisMask left = axes; left; left &= left - 1) {
    const int32_t axis = std::countr_zero(left);
    // Rows are numbered [before][coordinate on the axis][after].
    const size_t extent = static_cast<size_t>(extents_[axis]);
    size_t after = 1;
    for (AxisMask faster = left & (left - 1); faster; faster &= faster - 1) {
      after *= static_cast<size_t>(extents_[std::countr_zero(faster)]);
    }
    const auto matters = [&] {
      for (size_t i = 0; i < rows.size(); ++i) {
        const size_t first = i / (extent * after) * (extent * after) + i % after;
        if (rows[i] != rows[first]) return true;
      }
      return false;
    };
    if (extent > 1 && matters()) continue;
    Rows fewer;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i / after % extent == 0) {
        fewer.push_back(std::move(rows[i]));
      }
    }
    rows = std::move(fewer);
    axes &= ~axis_bit(axis);
  }
  Cut cut{cells / common, axes, {0}, {}};
  for (const Row& row : rows) {
    cut.runs.insert(cut.runs.end(), row.begin(), row.end());
    cut.row.push_back(static_cast<uint32_t>(cut.runs.size()));
  }
  return intern(std::move(cut));
}

CutId CutTable::make(int64_t cells, AxisMask axes, const Rows& rows) {
  if (cells < 1) fail("cut", "{} cells; expected at least 1", cells);
  if (static_cast<int64_t>(rows.size()) != ranks(axes)) {
    fail("cut", "{} rows; expected one for each of {} coordinates", rows.size(), ranks(axes));
  }
  if (rows.size() > kMaxRows) {
    refuse_rows(std::ssize(rows));
  }
  for (const Row& row : rows) {
    for (const Run& run : row) {
      if (run.begin < 0 || run.length < 0 || run.length > cells - run.begin) {
        fail("cut", "cells [{}, {}); expected cells of [0, {})", run.begin, end(run), cells);
      }
    }
    if (holds_twice(row)) fail("cut", "a row holds a cell twice; expected each once at most");
  }
  return normal(cells, axes, rows);
}

CutId CutTable::split(std::span<const int32_t> axes) {
  AxisMask mask = 0;
  for (int32_t axis : axes) {
    mask |= axis_bit(axis);
  }
  return normal(ranks(mask), mask, rows_over(mask, [&](const Coords& coords) {
                  return Row{{block_number(axes, coords), 1}};
                }));
}

CutId CutTable::split(std::span<const int32_t> axes, int64_t size) {
  AxisMask mask = 0;
  for (int32_t axis : axes) {
    mask |= axis_bit(axis);
  }
  const int64_t parts = ranks(mask);
  if (size % parts == 0) return split(axes);
  return normal(size, mask, rows_over(mask, [&](const Coords& coords) {
                  return Row{share(size, parts, block_number(axes, coords))};
                }));
}

CutId CutTable::split(std::span<const int32_t> axes, int64_t size, std::span<const Run> blocks) {
  AxisMask mask = 0;
  for (int32_t axis : axes) {
    mask |= axis_bit(axis);
  }
  return normal(size, mask, rows_over(mask, [&](const Coords& coords) {
                  return Row{blocks[static_cast<size_t>(block_number(axes, coords))]};
                }));
}

int64_t CutTable::block_number(std::span<const int32_t> axes, const Coords& coords) const {
  int64_t number = 0;
  for (int32_t axis : axes) {
    number = number * extents_[axis] + coords[axis];
  }
  return number;
}

bool CutTable::is_split(CutId id, std::vector<int32_t>* axes) const {
  // In such a split one step along an axis moves the block by the product of the sizes of faster
  // axes. This gives the order of the axes, which is then verified.
  const Cut& cut = cuts_[id];
  axes->clear();
  if (cut.cells != ranks(cut.axes) || cut.runs.size() != cut.row.size() - 1) return false;
  std::vector<std::pair<int64_t, int32_t>> strides;
  for (AxisMask left = cut.axes; left; left &= left - 1) {
    const int32_t axis = std::countr_zero(left);
    Coords next{};
    next[axis] = 1;
    const std::span<const Run> runs = at(id, next);
    if (runs.size() != 1) return false;
    strides.push_back({-runs[0].begin, axis});
  }
  std::sort(strides.begin(), strides.end());
  for (const auto& [stride, axis] : strides) {
    axes->push_back(axis);
  }
  bool same = true;
  for_each(cut.axes, {}, [&](const Coords& coords) {
    const std::span<const Run> runs = at(id, coords);
    same = same && runs.size() == 1 && runs[0] == Run{block_number(*axes, coords), 1};
  });
  return same;
}

template <class Function>
CutId CutTable::memoised(Op op, CutId left, int64_t right, const Function& make) {
  const Key key{op, left, right};
  if (const auto known = memo_.find(key); known != memo_.end()) return known->second;
  const CutId made = make();
  memo_.emplace(key, made);
  return made;
}

CutId CutTable::set_of(CutId id) {
  if (is_whole(id)) return id;
  return memoised(Op::set, id, 0, [&] {
    const Cut cut = cuts_[id];
    return normal(cut.cells, cut.axes, rows_over(cut.axes, [&](const Coords& coords) {
                    return sorted(scaled(id, coords, cut.cells));
                  }));
  });
}

CutId CutTable::concat(CutId left, CutId right) {
  return memoised(Op::concat, left, right.value(), [&]() -> CutId {
    const int64_t cells = std::lcm(cuts_[left].cells, cuts_[right].cells);
    const AxisMask axes = cuts_[left].axes | cuts_[right].axes;
    bool twice = false;
    Rows rows = rows_over(axes, [&](const Coords& coords) {
      Row row = scaled(left, coords, cells);
      const Row more = scaled(right, coords, cells);
      row.insert(row.end(), more.begin(), more.end());
      twice = twice || holds_twice(row);
      return row;
    });
    if (twice) return kNone;
    return normal(cells, axes, std::move(rows));
  });
}

CutId CutTable::gather(CutId id, AxisMask over, int64_t parts) {
  return memoised(Op::gather, id, parts << 32 | over, [&]() -> CutId {
    const int64_t cells = cuts_[id].cells * parts;
    const AxisMask rest = cuts_[id].axes & ~over;
    bool twice = false;
    Rows rows = rows_over(rest, [&](const Coords& coords) {
      Row row;
      for (int64_t part = 0; part < parts; ++part) {
        for_each(over, coords, [&](const Coords& member) {
          const Row held = scaled(id, member, cells);
          const int64_t length = total(held) / parts;
          const Row piece = part_of(held, part * length, length);
          row.insert(row.end(), piece.begin(), piece.end());
        });
      }
      twice = twice || holds_twice(row);
      return row;
    });
    if (twice) return kNone;
    return normal(cells, rest, std::move(rows));
  });
}

CutId CutTable::block(CutId id, AxisMask over, int64_t parts) {
  return memoised(Op::block, id, parts << 32 | over, [&] {
    const int64_t blocks = ranks(over);
    const int64_t cells = cuts_[id].cells * blocks * parts;
    return normal(cells, cuts_[id].axes | over,
                  rows_over(cuts_[id].axes | over, [&](const Coords& coords) {
                    const Row held = scaled(id, coords, cells);
                    const int64_t length = total(held) / blocks / parts;
                    const int64_t number = static_cast<int64_t>(row_index(over, coords));
                    Row row;
                    for (int64_t part = 0; part < parts; ++part) {
                      const Row piece = part_of(held, (part * blocks + number) * length, length);
                      row.insert(row.end(), piece.begin(), piece.end());
                    }
                    return row;
                  }));
  });
}

CutId CutTable::block_of(CutId id, AxisMask over, int64_t size) {
  const int64_t blocks = ranks(over);
  if (size < 1 || size % cuts_[id].cells != 0) return block(id, over);
  bool even = true;
  Rows rows = rows_over(cuts_[id].axes | over, [&](const Coords& coords) {
    const Row row = scaled(id, coords, size);
    const int64_t held = total(row);
    even = even && held % blocks == 0;
    const Run mine = share(held, blocks, static_cast<int64_t>(row_index(over, coords)));
    return part_of(row, mine.begin, mine.length);
  });
  return even ? block(id, over) : normal(size, cuts_[id].axes | over, std::move(rows));
}

CutId CutTable::block_of(CutId id, AxisMask over, int64_t size, std::span<const int64_t> lengths) {
  if (size % cuts_[id].cells != 0) return block(id, over);
  const int64_t blocks = ranks(over);
  const int64_t all = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  return normal(size, cuts_[id].axes | over,
                rows_over(cuts_[id].axes | over, [&](const Coords& coords) {
                  const Row row = scaled(id, coords, size);
                  const size_t number = row_index(over, coords);
                  if (total(row) != all) {
                    const Run mine = share(total(row), blocks, static_cast<int64_t>(number));
                    return part_of(row, mine.begin, mine.length);
                  }
                  const auto mine = lengths.begin() + static_cast<std::ptrdiff_t>(number);
                  const int64_t begin = std::accumulate(lengths.begin(), mine, int64_t{0});
                  return part_of(row, begin, *mine);
                }));
}

CutId CutTable::block_like(CutId id, AxisMask over, CutId like) {
  const int64_t key = int64_t{like.value()} << kMaxCutAxes | over;
  return memoised(Op::block_like, id, key, [&]() -> CutId {
    const int64_t cells = std::lcm(cuts_[id].cells, cuts_[like].cells);
    bool all = true;
    const AxisMask axes = cuts_[id].axes | cuts_[like].axes | over;
    Rows rows = rows_over(axes, [&](const Coords& coords) {
      const Row held = scaled(id, coords, cells);
      const size_t mine = row_index(over, coords);
      int64_t end = 0;
      Row row;
      for_each(over, coords, [&](const Coords& member) {
        const int64_t length = volume(like, member, cells);
        if (row_index(over, member) == mine) {
          row = part_of(held, end, length);
        }
        end += length;
      });
      all = all && end == total(held);
      return row;
    });
    return all ? normal(cells, axes, std::move(rows)) : CutId(kNone);
  });
}

std::vector<CutId> CutTable::regroup(std::span<const CutId> from, std::span<const CutId> had,
                                     std::span<const CutId> wanted, AxisMask over) {
  // At every coordinate, member by member: its share of each chunk, of the size of the set that it
  // gave; all of them concatenated; and from those, chunk by chunk, its new share.
  int64_t cells = 1;
  AxisMask axes = 0;
  for (const std::span<const CutId> list : {from, had, wanted}) {
    for (const CutId id : list) {
      cells = std::lcm(cells, cuts_[id].cells);
      axes |= cuts_[id].axes & ~(list.data() == from.data() ? 0 : over);
    }
  }
  bool fits = true;
  const auto take = [&](const Row& row, int64_t* at, const Row& set) {
    Row share = part_of(row, *at, total(set));
    *at += total(set);
    fits = fits && united(share) == united(set);
    return share;
  };
  std::vector<Rows> rows(wanted.size());
  for_each(axes, {}, [&](const Coords& coords) {
    std::vector<Row> held;
    for (const CutId id : from) {
      held.push_back(scaled(id, coords, cells));
    }
    std::vector<int64_t> read(from.size(), 0);
    std::vector<Row> made(wanted.size());
    for_each(over, coords, [&](const Coords& member) {
      Row all;
      for (size_t chunk = 0; chunk < from.size(); ++chunk) {
        const Row share = take(held[chunk], &read[chunk], scaled(had[chunk], member, cells));
        all.insert(all.end(), share.begin(), share.end());
      }
      int64_t given = 0;
      for (size_t chunk = 0; chunk < wanted.size(); ++chunk) {
        const Row share = take(all, &given, scaled(wanted[chunk], member, cells));
        made[chunk].insert(made[chunk].end(), share.begin(), share.end());
      }
      fits = fits && given == total(all);
    });
    for (size_t chunk = 0; chunk < from.size(); ++chunk) {
      fits = fits && read[chunk] == total(held[chunk]);
    }
    for (size_t chunk = 0; chunk < wanted.size(); ++chunk) {
      rows[chunk].push_back(std::move(made[chunk]));
    }
  });
  std::vector<CutId> result;
  for (Rows& chunk : rows) {
    if (!fits ||
        std::any_of(chunk.begin(), chunk.end(), [](const Row& row) { return holds_twice(row); }))
      return {};
    result.push_back(normal(cells, axes, std::move(chunk)));
  }
  return result;
}

CutId CutTable::restrict_to(CutId id, int64_t size, AxisMask axes, std::span<const int64_t> begins,
                            int64_t length) {
  std::vector<Run> ranges;
  for (int64_t begin : begins) {
    ranges.push_back({begin, length});
  }
  return restrict_to(id, size, axes, ranges);
}

CutId CutTable::restrict_to(CutId id, int64_t size, AxisMask axes, std::span<const Run> ranges) {
  if (size % cuts_[id].cells != 0) return kNone;
  bool inside = true;
  const AxisMask all = cuts_[id].axes | axes;
  Rows rows = rows_over(all, [&](const Coords& coords) {
    const Run& range = ranges[row_index(axes, coords)];
    const Row row = scaled(id, coords, size);
    inside = inside && range.begin >= 0 && range.length >= 0 && end(range) <= total(row);
    return part_of(row, range.begin, range.length);
  });
  if (!inside) return kNone;
  return normal(size, all, std::move(rows));
}

CutId CutTable::fixed(CutId id, AxisMask over, const Coords& at) {
  const AxisMask known = cuts_[id].axes & over;
  if (known == 0) return id;
  const int64_t cells = cuts_[id].cells;
  const AxisMask rest = cuts_[id].axes & ~over;
  return normal(cells, rest, rows_over(rest, [&](const Coords& coords) {
                  Coords there = coords;
                  for (AxisMask left = known; left; left &= left - 1) {
                    there[std::countr_zero(left)] = at[std::countr_zero(left)];
                  }
                  return scaled(id, there, cells);
                }));
}

Coords CutTable::shifted(const Coords& coords, const Shift& shift) const {
  const int64_t extent = extents_[shift.axis];
  const int64_t at = int64_t{coords[shift.axis]} + shift.offsets[row_index(shift.axes, coords)];
  Coords to = coords;
  to[shift.axis] = static_cast<int32_t>((at % extent + extent) % extent);
  return to;
}

CutId CutTable::moved(CutId id, const Shift& shift) {
  const Cut cut = cuts_[id];
  if (!(cut.axes & axis_bit(shift.axis))) return id;
  const AxisMask axes = cut.axes | shift.axes;
  return normal(cut.cells, axes, rows_over(axes, [&](const Coords& coords) {
                  return scaled(id, shifted(coords, shift), cut.cells);
                }));
}

CutId CutTable::intersection(CutId left, CutId right) {
  if (is_whole(left)) return right;
  if (is_whole(right) || left == right) return left;
  return memoised(Op::intersection, left, right.value(), [&] {
    const int64_t cells = std::lcm(cuts_[left].cells, cuts_[right].cells);
    const AxisMask axes = cuts_[left].axes | cuts_[right].axes;
    return normal(cells, axes, rows_over(axes, [&](const Coords& coords) {
                    Row common;
                    for (const Run& one : scaled(left, coords, cells)) {
                      for (const Run& other : scaled(right, coords, cells)) {
                        const int64_t from = std::max(one.begin, other.begin);
                        const int64_t to = std::min(end(one), end(other));
                        if (from < to) {
                          common.push_back({from, to - from});
                        }
                      }
                    }
                    return common;
                  }));
  });
}

CutId CutTable::unite(CutId left, CutId right) {
  if (left == right || is_whole(left)) return left;
  if (is_whole(right)) return right;
  return memoised(Op::unite, left, right.value(), [&] {
    const int64_t cells = std::lcm(cuts_[left].cells, cuts_[right].cells);
    const AxisMask axes = cuts_[left].axes | cuts_[right].axes;
    return normal(cells, axes, rows_over(axes, [&](const Coords& coords) {
                    Row row = scaled(left, coords, cells);
                    const Row more = scaled(right, coords, cells);
                    row.insert(row.end(), more.begin(), more.end());
                    return united(std::move(row));
                  }));
  });
}

CutId CutTable::unite_over(CutId id, AxisMask over) {
  if (!(cuts_[id].axes & over)) return id;
  return memoised(Op::unite_over, id, over, [&] {
    const Cut cut = cuts_[id];
    const AxisMask rest = cut.axes & ~over;
    const AxisMask along = cut.axes & over;
    return normal(cut.cells, rest, rows_over(rest, [&](const Coords& coords) {
                    return united(held_along(id, along, coords));
                  }));
  });
}

int64_t CutTable::volume(CutId id, const Coords& coords, int64_t cells) const {
  int64_t held = 0;
  for (const Run& run : at(id, coords)) {
    held += run.length;
  }
  return held * (cells / cuts_[id].cells);
}

std::vector<Run> CutTable::part_at(CutId id, const Coords& coords, int64_t cells, int64_t begin,
                                   int64_t length) const {
  const Row row = scaled(id, coords, cells);
  return joined(length < 0 ? row : part_of(row, begin, length));
}

bool CutTable::apart(CutId id, const Coords& one, const Coords& other) const {
  for (const Run& mine : at(id, one)) {
    for (const Run& theirs : at(id, other)) {
      if (std::max(mine.begin, theirs.begin) < std::min(end(mine), end(theirs))) return false;
    }
  }
  return true;
}

int64_t CutTable::local_size(CutId id, int64_t size) const {
  const Cut& cut = cuts_[id];
  if (size % cut.cells != 0) return -1;
  return held_[id] < 0 ? -1 : held_[id] * (size / cut.cells);
}

int64_t CutTable::local_size(CutId id, int64_t size, const CoordBox& box) const {
  const Cut& cut = cuts_[id];
  if (size % cut.cells != 0) return -1;
  int64_t first = -1;
  bool same = true;
  for_each(cut.axes, {}, [&](const Coords& coords) {
    if (!box.contains(coords, cut.axes)) return;
    const int64_t held = volume(id, coords, size);
    same = same && (first < 0 || held == first);
    first = held;
  });
  return same ? first : -1;
}

std::string CutTable::text(CutId id) const {
  if (is_whole(id)) return "all";
  const Cut& cut = cuts_[id];
  constexpr size_t kMaxListed = 8;
  std::string text;
  for (size_t row = 0; row + 1 < cut.row.size(); ++row) {
    if (row > 0) {
      text += '|';
    }
    if (row == kMaxListed) {
      text += "..";
      break;
    }
    for (uint32_t run = cut.row[row]; run < cut.row[row + 1]; ++run) {
      text += fmt::format("[{}:{})", cut.runs[run].begin, end(cut.runs[run]));
    }
    if (cut.row[row] == cut.row[row + 1]) {
      text += "{}";
    }
  }
  return text + fmt::format("/{}", cut.cells);
}

}  // namespace hocket::graph
