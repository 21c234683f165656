// SPDX-License-Identifier: Apache-2.0
// Implements: Pieces::join (pieces.h).
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "check/values/pieces.h"

namespace hocket::check {

using graph::Coords;
using graph::CutTable;
using graph::Run;

/// Joins parts coordinate by coordinate: lists the parts in the region in order, each with its
/// share of the dim. All parts of a rank must agree in the other dims, and in the addends of every
/// reduction that some part has not finished. Ranks may differ: a reduction may be finished on some
/// ranks only.
class Pieces::Joining {
 public:
  Joining(Pieces& pieces, std::span<const Part> parts, CutId region, int64_t extent, int dim,
          const graph::CoordBox& box)
      : pieces_(pieces),
        parts_(parts),
        region_(region),
        extent_(extent),
        box_(box),
        dim_(static_cast<size_t>(dim)),
        dims_(pieces[parts[0].piece].dims) {}

  PieceId run(int64_t size, bool* guess, RankFault* why);

 private:
  /// A part at a coordinate, and its range in the buffer.
  struct Here {
    Run range;
    const Piece* piece;
  };
  void find_what_matters(int64_t size);
  std::vector<Here> parts_at(const Coords& at, const Run& wanted) const;
  std::string join_at(const Coords& at);
  std::string agree(const Coords& at, const Piece& piece, bool first,
                    std::vector<std::vector<Run>>* row) const;
  PieceId joined();
  Run range_of(CutId id, const Coords& at) const;
  /// Cut of a dim (`place` < dims_), or set of space number `place` - dims_.
  CutId cut_of(const Piece& piece, size_t place) const;

  Pieces& pieces_;
  const std::span<const Part> parts_;
  const CutId region_;
  const int64_t extent_;
  const graph::CoordBox& box_;
  const size_t dim_, dims_;
  AxisMask axes_ = 0;
  std::vector<SpaceId> spaces_;  ///< reductions that some part has not finished
  // By dim, then by space: a common number of cells for all parts, and the runs at every
  // coordinate.
  std::vector<int64_t> cells_;
  std::vector<std::vector<std::vector<Run>>> rows_;
};

CutId Pieces::Joining::cut_of(const Piece& piece, size_t place) const {
  if (place < dims_) return piece.cut[place];
  for (const Addends& addends : piece.addends) {
    if (addends.space == spaces_[place - dims_]) return addends.set;
  }
  return CutTable::kWhole;
}

/// Returns the range of a region in the buffer.
Run Pieces::Joining::range_of(CutId id, const Coords& at) const {
  const std::span<const Run> runs = pieces_.cuts.at(id, at);
  const int64_t scale = extent_ / pieces_.cuts[id].cells;
  return runs.empty() ? Run{} : Run{runs[0].begin * scale, runs[0].length * scale};
}

void Pieces::Joining::find_what_matters(int64_t size) {
  axes_ = pieces_.cuts.axes(region_);
  for (const Part& part : parts_) {
    axes_ |= pieces_.cuts.axes(part.region) | pieces_.cut_axes(part.piece) |
             pieces_.partial_axes(part.piece);
    for (const Addends& addends : pieces_[part.piece].addends) {
      spaces_.push_back(addends.space);
    }
  }
  std::sort(spaces_.begin(), spaces_.end());
  spaces_.erase(std::unique(spaces_.begin(), spaces_.end()), spaces_.end());
  cells_.assign(dims_ + spaces_.size(), 1);
  for (const Part& part : parts_) {
    for (size_t i = 0; i < cells_.size(); ++i) {
      cells_[i] = std::lcm(cells_[i], pieces_.cuts[cut_of(pieces_[part.piece], i)].cells);
    }
  }
  cells_[dim_] = size;
  rows_.resize(cells_.size());
}

std::vector<Pieces::Joining::Here> Pieces::Joining::parts_at(const Coords& at,
                                                             const Run& wanted) const {
  std::vector<Here> here;
  for (const Part& part : parts_) {
    const Run range = range_of(part.region, at);
    if (std::max(range.begin, wanted.begin) <
        std::min(range.begin + range.length, wanted.begin + wanted.length)) {
      here.push_back({range, &pieces_[part.piece]});
    }
  }
  std::sort(here.begin(), here.end(), [](const Here& left, const Here& right) {
    return left.range.begin < right.range.begin;
  });
  return here;
}

/// Returns how a part differs from the first one at a coordinate; "" if it does not.
std::string Pieces::Joining::agree(const Coords& at, const Piece& piece, bool first,
                                   std::vector<std::vector<Run>>* row) const {
  for (size_t i = 0; i < cells_.size(); ++i) {
    if (i == dim_) continue;
    std::vector<Run> held = pieces_.cuts.part_at(cut_of(piece, i), at, cells_[i], 0, -1);
    if (first) {
      (*row)[i] = std::move(held);
    } else if ((*row)[i] != held) {
      return i < dims_ ? fmt::format("its parts are cut differently along dim {}", i)
                       : "some of its parts are sums of more addends than others";
    }
  }
  return "";
}

/// Adds the runs at a coordinate to all rows. Returns the fault there; "" if there is none.
std::string Pieces::Joining::join_at(const Coords& at) {
  const Run wanted = range_of(region_, at);
  std::vector<std::vector<Run>> row(cells_.size());
  int64_t next = wanted.begin;
  std::string wrong;
  bool first = true;
  for (const auto& [range, piece] : parts_at(at, wanted)) {
    const int64_t from = std::max(range.begin, wanted.begin);
    const int64_t to = std::min(range.begin + range.length, wanted.begin + wanted.length);
    if (from != next) {
      wrong = "its parts do not lie side by side on all ranks";
    }
    next = to;
    // Takes a fully covered part as a whole, since other classes may have more or less of it.
    const int64_t length = to - from == range.length ? -1 : to - from;
    for (const Run& run :
         pieces_.cuts.part_at(piece->cut[dim_], at, cells_[dim_], from - range.begin, length)) {
      const std::vector<Run> more = graph::gaps_in(graph::united(row[dim_]), run);
      if (more != std::vector{run}) {
        wrong = "some of its parts are the same part of the value";
      }
      row[dim_].insert(row[dim_].end(), more.begin(), more.end());
    }
    const std::string differs = agree(at, *piece, first, &row);
    wrong = wrong.empty() ? differs : wrong;
    first = false;
  }
  if (first) {
    agree(at, pieces_[parts_[0].piece], true, &row);
  }
  if (next != wanted.begin + wanted.length) {
    wrong = "its parts do not lie side by side on all ranks";
  }
  for (size_t i = 0; i < cells_.size(); ++i) {
    rows_[i].push_back(std::move(row[i]));
  }
  return wrong;
}

PieceId Pieces::Joining::joined() {
  Piece piece{static_cast<uint8_t>(dims_), {}, {}};
  for (size_t i = 0; i < cells_.size(); ++i) {
    const CutId cut = pieces_.cuts.make(cells_[i], axes_, rows_[i]);
    if (i < dims_) {
      piece.cut[i] = cut;
    } else {
      piece.addends.push_back({spaces_[i - dims_], cut});
    }
  }
  return pieces_.intern(std::move(piece));
}

PieceId Pieces::Joining::run(int64_t size, bool* guess, RankFault* why) {
  find_what_matters(size);
  pieces_.cuts.for_each(axes_, {}, [&](const Coords& at) {
    if (!why->text.empty()) return;
    const std::string wrong = join_at(at);
    if (box_.contains(at, axes_)) {
      why->text = wrong;
      why->at = at;
    } else if (!wrong.empty()) {
      *guess = true;
    }
  });
  return why->text.empty() ? joined() : PieceId(kNone);
}

PieceId Pieces::join(std::span<const Part> parts, CutId region, int64_t extent, int dim,
                     int64_t size, const graph::CoordBox& box, bool* guess, RankFault* why) {
  return Joining(*this, parts, region, extent, dim, box).run(size, guess, why);
}

}  // namespace hocket::check
