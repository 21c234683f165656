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

bool overlap(const Program& program, ClassId cls, const Region& one, const Region& other) {
  // Constant regions are compared at once; others at every coordinate that matters.
  if (one.by == other.by) return meet(one.begin, one, other.begin, other);
  std::vector<int32_t> axes;
  for (TableId by : {one.by, other.by}) {
    if (by == kNone) continue;
    axes.insert(axes.end(), program.tables[by].axes.begin(), program.tables[by].axes.end());
  }
  std::sort(axes.begin(), axes.end());
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  const std::vector<int32_t> ranks = representatives(program, cls, axes);
  return std::any_of(ranks.begin(), ranks.end(), [&](int32_t rank) {
    return meet(program.begin_at(one.begin, one.by, rank), one,
                program.begin_at(other.begin, other.by, rank), other);
  });
}

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
        if (!overlap(program, cls_id, regions[i], regions[k])) continue;
        meets_[views[i]].push_back(views[k]);
        meets_[views[k]].push_back(views[i]);
      }
    }
  }
}

}  // namespace hocket::program
