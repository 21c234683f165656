// SPDX-License-Identifier: Apache-2.0
#include "program/views.h"

#include <algorithm>
#include <map>

namespace hocket::program {

namespace {

/// Elements of the dims behind `dim`.
int64_t elements_behind(const TensorType& type, int32_t dim) {
  int64_t elements = 1;
  for (size_t i = static_cast<size_t>(dim) + 1; i < type.dims.size(); ++i) {
    elements *= type.dims[i];
  }
  return elements;
}

/// Indices of a view along its dim, or elements of a flat one.
int64_t length_of(const Buffer& view) {
  return view.dim == kNone ? view.type.numel() : int64_t{view.type.dims[view.dim]};
}

/// Ranks of the class that stand for all when only coordinates on these axes matter.
std::vector<int32_t> representatives(const Program& program, ClassId cls,
                                     const std::vector<int32_t>& axes) {
  std::map<std::vector<int32_t>, int32_t> first;
  for (int32_t rank : program.ranks_of(cls)) {
    const std::vector<int32_t> all = program.coords(rank);
    std::vector<int32_t> coords;
    for (int32_t axis : axes) {
      coords.push_back(all[axis]);
    }
    first.try_emplace(std::move(coords), rank);
  }
  std::vector<int32_t> ranks;
  for (const auto& [coords, rank] : first) {
    ranks.push_back(rank);
  }
  return ranks;
}

/// Where a view lies along the dim of its family, or in elements.
struct Region {
  int64_t begin, length;
  TableId by;
};

bool meet(int64_t begin, const Region& one, int64_t other_begin, const Region& other) {
  return begin < other_begin + other.length && other_begin < begin + one.length;
}

/// Which regions of a class overlap on some rank. What is found out about ranks serves all pairs:
/// a bucket has many slots, and many blocks.
class Overlaps {
 public:
  Overlaps(const Program& program, ClassId cls) : program_(program), cls_(cls) {}

  bool operator()(const Region& one, const Region& other) {
    // By one table, or none, regions are compared at once. A constant one meets those that begin
    // behind a certain place and before another one; two tables are compared at every coordinate
    // that matters.
    if (one.by == other.by) return meet(one.begin, one, other.begin, other);
    if (one.by == kNone) return meets_constant(other, one);
    if (other.by == kNone) return meets_constant(one, other);
    const std::vector<int32_t>& ranks = ranks_by({one.by, other.by});
    return std::any_of(ranks.begin(), ranks.end(), [&](int32_t rank) {
      return meet(program_.begin_at(one.begin, one.by, rank), one,
                  program_.begin_at(other.begin, other.by, rank), other);
    });
  }

 private:
  bool meets_constant(const Region& region, const Region& constant) {
    const std::vector<int64_t>& begins = begins_of(region);
    const auto first =
        std::upper_bound(begins.begin(), begins.end(), constant.begin - region.length);
    return first != begins.end() && meet(*first, region, constant.begin, constant);
  }
  /// Where it begins on the ranks, ascending.
  const std::vector<int64_t>& begins_of(const Region& region) {
    const auto [known, fresh] = begins_.try_emplace({region.begin, region.by});
    if (fresh) {
      for (int32_t rank : ranks_by({region.by})) {
        known->second.push_back(program_.begin_at(region.begin, region.by, rank));
      }
      std::sort(known->second.begin(), known->second.end());
    }
    return known->second;
  }
  /// Ranks that stand for all when only these tables matter.
  const std::vector<int32_t>& ranks_by(const std::vector<TableId>& tables) {
    std::vector<int32_t> axes;
    for (TableId by : tables) {
      const std::vector<int32_t>& more = program_.tables[by].axes;
      axes.insert(axes.end(), more.begin(), more.end());
    }
    std::sort(axes.begin(), axes.end());
    axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
    const auto [known, fresh] = ranks_.try_emplace(axes);
    if (fresh) {
      known->second = representatives(program_, cls_, axes);
    }
    return known->second;
  }

  const Program& program_;
  ClassId cls_;
  std::map<std::pair<int64_t, TableId>, std::vector<int64_t>> begins_;
  std::map<std::vector<int32_t>, std::vector<int32_t>> ranks_;  // by axes
};

}  // namespace

int64_t byte_offset(const Program& program, const RankClass& cls, const Buffer& view,
                    int32_t rank) {
  const TensorType& base = cls.buffers[view.base].type;
  const int64_t step = view.dim == kNone ? 1 : elements_behind(base, view.dim);
  return base.bytes_of(program.begin_at(view.begin, view.by, rank) * step);
}

std::vector<int64_t> strides_of(const RankClass& cls, const Buffer& view) {
  if (view.dim == kNone) return {};
  const TensorType& base = cls.buffers[view.base].type;
  int64_t outside = 1;
  for (int32_t dim = 0; dim < view.dim; ++dim) {
    outside *= base.dims[dim];
  }
  if (outside == 1 || view.type.dims[view.dim] == base.dims[view.dim]) return {};
  std::vector<int64_t> strides;
  for (size_t dim = 0; dim < base.dims.size(); ++dim) {
    strides.push_back(elements_behind(base, static_cast<int32_t>(dim)));
  }
  return strides;
}

Views::Views(const Program& program, ClassId cls_id) {
  const RankClass& cls = program.classes[cls_id];
  std::map<BufferId, std::vector<BufferId>> families;
  for (size_t id = 0; id < cls.buffers.size(); ++id) {
    if (cls.buffers[id].kind == BufferKind::view) {
      families[cls.buffers[id].base].push_back(id);
    }
  }
  any_ = !families.empty();
  if (!any_) return;
  meets_.resize(cls.buffers.size());
  Overlaps overlap(program, cls_id);
  for (const auto& [base, views] : families) {
    meets_[base] = views;
    std::vector<Region> regions;
    for (BufferId id : views) {
      const Buffer& view = cls.buffers[id];
      regions.push_back({view.begin, length_of(view), view.by});
    }
    for (size_t i = 0; i < views.size(); ++i) {
      meets_[views[i]].push_back(base);
      for (size_t k = 0; k < i; ++k) {
        if (!overlap(regions[i], regions[k])) continue;
        meets_[views[i]].push_back(views[k]);
        meets_[views[k]].push_back(views[i]);
      }
    }
  }
}

}  // namespace hocket::program
