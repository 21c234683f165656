// SPDX-License-Identifier: Apache-2.0
#include "program/views.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "base/stop.h"

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

/// Region of a view along the dim of its family, or in elements.
struct Region {
  int64_t begin, length;
  TableId by;
  auto operator<=>(const Region&) const = default;
};

/// Returns the axes of the regions' tables, ascending.
std::vector<int32_t> axes_of(const Program& program, const std::vector<Region>& regions) {
  std::set<int32_t> axes;
  for (const Region& region : regions) {
    if (region.by == kNone) continue;
    axes.insert(program.tables[region.by].axes.begin(), program.tables[region.by].axes.end());
  }
  return {axes.begin(), axes.end()};
}

/// By region, the others that it overlaps on some rank of the class, ascending.
using Overlaps = std::vector<std::vector<size_t>>;

Overlaps overlaps_of(const Program& program, ClassId cls, const std::vector<Region>& regions) {
  // At every coordinate that matters the regions stand in the order of their begins: each meets
  // those behind it until one begins where it ends.
  const size_t num = regions.size();
  std::vector<size_t> order(num);
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<int64_t> begins(num);
  std::vector<std::pair<size_t, size_t>> pairs;
  size_t sorted = 0;  // of the pairs
  const auto sort_pairs = [&] {
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    sorted = pairs.size();
  };
  for_each_coords(program, cls, axes_of(program, regions), [&](const std::vector<int32_t>& at) {
    stop_if_asked();
    for (size_t i = 0; i < num; ++i) {
      begins[i] = program.begin_at(regions[i].begin, regions[i].by, at);
    }
    // Among regions with equal starts an empty one, which overlaps none, comes first.
    std::sort(order.begin(), order.end(), [&](size_t left, size_t right) {
      return std::tie(begins[left], regions[left].length) <
             std::tie(begins[right], regions[right].length);
    });
    for (size_t i = 0; i < num; ++i) {
      const size_t first = order[i];
      const int64_t end = begins[first] + regions[first].length;
      for (size_t k = i + 1; k < num && begins[order[k]] < end; ++k) {
        pairs.push_back(std::minmax(first, order[k]));
      }
    }
    if (pairs.size() > 2 * sorted + num) {
      sort_pairs();
    }
  });
  sort_pairs();
  Overlaps overlaps(num);
  for (const auto& [first, second] : pairs) {
    overlaps[first].push_back(second);
    overlaps[second].push_back(first);
  }
  for (std::vector<size_t>& others : overlaps) {
    std::sort(others.begin(), others.end());
  }
  return overlaps;
}

}  // namespace

int64_t byte_offset(const Program& program, const RankClass& cls, const Buffer& view, int32_t rank,
                    std::span<const int64_t> symbol_values) {
  const TensorType& base = cls.buffers[view.base].type;
  const int64_t step = view.dim == kNone ? 1 : elements_behind(base, view.dim);
  int64_t begin = program.begin_at(view.begin, view.by, rank);
  if (moves_with_symbols(view)) {
    const graph::Dim& length = view.type.dims[view.dim];
    begin = begin / length * length.at(symbol_values);
  }
  return base.bytes_of(begin * step);
}

bool moves_with_symbols(const Buffer& view) {
  return view.dim != kNone && view.type.dims[view.dim].symbolic();
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
  std::map<std::vector<Region>, Overlaps> known;
  for (const auto& [base, views] : families) {
    meets_[base] = views;
    std::vector<Region> regions;
    for (BufferId id : views) {
      const Buffer& view = cls.buffers[id];
      regions.push_back({view.begin, length_of(view), view.by});
    }
    const auto [found, fresh] = known.try_emplace(std::move(regions));
    if (fresh) {
      found->second = overlaps_of(program, cls_id, found->first);
    }
    for (size_t i = 0; i < views.size(); ++i) {
      stop_if_asked();
      std::vector<BufferId>& meets = meets_[views[i]];
      meets.push_back(base);
      for (size_t other : found->second[i]) {
        meets.push_back(views[other]);
      }
    }
  }
}

}  // namespace hocket::program
