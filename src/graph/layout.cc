// SPDX-License-Identifier: Apache-2.0
#include "graph/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace hocket::graph {

Run share(int64_t size, int64_t parts, int64_t number) {
  const int64_t least = size / parts;
  const int64_t more = size % parts;
  return {number * least + std::min(number, more), least + (number < more ? 1 : 0)};
}

int32_t Mesh::size() const {
  int32_t ranks = 1;
  for (const Axis& axis : axes) {
    ranks *= axis.size;
  }
  return ranks;
}

int32_t Mesh::axis(std::string_view name) const {
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name == name) return static_cast<int32_t>(i);
  }
  return -1;
}

int32_t Mesh::extent(std::string_view name) const {
  int32_t i = axis(name);
  return i < 0 ? 1 : axes[i].size;
}

std::vector<int32_t> Mesh::coords(int32_t rank) const {
  std::vector<int32_t> coords(axes.size());
  for (size_t i = axes.size(); i-- > 0;) {
    coords[i] = rank % axes[i].size;
    rank /= axes[i].size;
  }
  return coords;
}

int32_t Mesh::rank(const std::vector<int32_t>& coords) const {
  int32_t rank = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    rank = rank * axes[i].size + coords[i];
  }
  return rank;
}

int32_t Mesh::wrap(int32_t axis, int64_t x) const {
  HOCKET_CHECK(axis >= 0 && static_cast<size_t>(axis) < axes.size(), "axis {} of {}", axis,
               axes.size());
  const int64_t n = axes[axis].size;
  return static_cast<int32_t>((x % n + n) % n);
}

int32_t Mesh::moved(int32_t rank, int32_t axis, int32_t offset) const {
  HOCKET_CHECK(rank >= 0 && rank < size(), "rank {} of {}", rank, size());
  int32_t stride = 1;  // between neighbours on the axis
  for (size_t inner = axes.size(); inner-- > static_cast<size_t>(axis) + 1;) {
    stride *= axes[inner].size;
  }
  const int32_t here = wrap(axis, rank / stride);
  return rank + (wrap(axis, int64_t{here} + offset) - here) * stride;
}

std::string to_string(const Mesh& mesh) {
  std::string text;
  for (const Axis& axis : mesh.axes) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", axis.name, axis.size);
  }
  return text;
}

Mesh parse_mesh(std::string_view text) {
  // Axis by axis; the product of the sizes is bounded as it grows, so that it never overflows.
  constexpr int32_t kMostRanks = 1 << 20;
  Mesh mesh;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view item = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t colon = item.rfind(':');
    int32_t size = 0;
    if (colon != item.npos) {
      const std::string_view digits = item.substr(colon + 1);
      const auto [stop, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), size);
      if (error != std::errc() || stop != digits.data() + digits.size()) {
        size = 0;
      }
    }
    if (size < 1 || colon == 0) fail("mesh", "got '{}'; expected axis:size, e.g. pp:2", item);
    const std::string name(item.substr(0, colon));
    if (mesh.axis(name) >= 0) fail("mesh", "axis {} comes twice", name);
    if (mesh.axes.size() >= kMaxAxes || size > kMostRanks / mesh.size()) {
      fail("mesh", "axis {} makes it too large; expected at most {} axes and {} ranks", name,
           static_cast<int>(kMaxAxes), kMostRanks);
    }
    mesh.axes.push_back({name, size});
  }
  return mesh;
}

std::string to_string(const Layout& layout, const Mesh& mesh) {
  std::string text;
  for (size_t i = 0; i < mesh.axes.size(); ++i) {
    const Placement& placement = layout.on[i];
    if (placement.is_replicate()) continue;
    if (!text.empty()) {
      text += ' ';
    }
    text += mesh.axes[i].name + ':';
    text += placement.is_partial() ? "P" : fmt::format("S{}", placement.dim());
  }
  return text.empty() ? "B" : text;
}

Layout parse_layout(std::string_view text, const Mesh& mesh) {
  Layout layout;
  if (text == "B") return layout;
  while (!text.empty()) {
    size_t end = std::min(text.find(' '), text.size());
    std::string_view item = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    size_t colon = item.find(':');
    int32_t axis = colon == item.npos ? -1 : mesh.axis(item.substr(0, colon));
    std::string_view what = colon == item.npos ? "" : item.substr(colon + 1);
    if (axis >= 0 && what == "P") {
      layout[axis] = Placement::partial();
    } else if (axis >= 0 && what.size() == 2 && what[0] == 'S' && what[1] >= '0' &&
               what[1] <= '9') {
      layout[axis] = Placement::split(what[1] - '0');
    } else {
      fail("layout", "got '{}'; expected B or axis:P, axis:S<dim> with an axis of the mesh", item);
    }
  }
  return layout;
}

TensorType local_type(const TensorType& type, const Layout& layout, const Mesh& mesh) {
  TensorType local = type;
  for (size_t i = 0; i < mesh.axes.size(); ++i) {
    const Placement& placement = layout.on[i];
    if (!placement.is_split()) continue;
    const size_t dim = static_cast<size_t>(placement.dim());
    if (dim >= local.dims.size() || !local.dims[dim].divides_into(mesh.axes[i].size)) {
      fail("layout", "{} can't be split along dim {} over {} ranks of axis {}", to_string(type),
           dim, mesh.axes[i].size, mesh.axes[i].name);
    }
    local.dims[dim] /= mesh.axes[i].size;
  }
  if (const std::string why = why_invalid(local); !why.empty()) {
    fail("layout", "{} can't be split as {}: of a part, {}", to_string(type),
         to_string(layout, mesh), why);
  }
  return local;
}

std::vector<Run> local_runs(const TensorType& type, const Layout& layout, const Mesh& mesh,
                            const std::vector<int32_t>& coords) {
  std::vector<Run> runs;
  for (size_t dim = 0; dim < type.dims.size(); ++dim) {
    int64_t parts = 1;
    int64_t number = 0;
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      if (layout.on[axis] != Placement::split(static_cast<int>(dim))) continue;
      parts *= mesh.axes[axis].size;
      number = number * mesh.axes[axis].size + coords[axis];
    }
    runs.push_back(share(type.dims[dim], parts, number));
  }
  return runs;
}

TensorType local_type(const TensorType& type, const Layout& layout, const Mesh& mesh,
                      const std::vector<int32_t>& coords) {
  // Of a symbol equal parts; a number need not divide.
  TensorType local = type;
  const std::vector<Run> runs = local_runs(type, layout, mesh, coords);
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const Placement& placement = layout.on[axis];
    if (!placement.is_split()) continue;
    const size_t dim = static_cast<size_t>(placement.dim());
    if (dim >= runs.size() || runs[dim].length == 0) {
      fail("layout", "{} can't be split along dim {} over {} ranks of axis {}", to_string(type),
           dim, mesh.axes[axis].size, mesh.axes[axis].name);
    }
  }
  for (size_t dim = 0; dim < runs.size(); ++dim) {
    int64_t parts = 1;
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      parts *=
          layout.on[axis] == Placement::split(static_cast<int>(dim)) ? mesh.axes[axis].size : 1;
    }
    if (!local.dims[dim].symbolic()) {
      local.dims[dim] = runs[dim].length;
    } else if (local.dims[dim].divides_into(parts)) {
      local.dims[dim] /= parts;
    } else {
      fail("layout", "{} can't be split along dim {} over {} ranks", to_string(type), dim, parts);
    }
  }
  if (const std::string why = why_invalid(local); !why.empty()) {
    fail("layout", "a part of {} is {}: {}", to_string(type), to_string(local), why);
  }
  return local;
}

}  // namespace hocket::graph
