// SPDX-License-Identifier: Apache-2.0
#include "graph/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/limits.h"

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
    if (mesh.axes.size() >= kMaxAxes || size > kMaxRanks / mesh.size()) {
      fail("mesh", "axis {} makes it too large; expected at most {} axes and {} ranks", name,
           static_cast<int>(kMaxAxes), kMaxRanks);
    }
    mesh.axes.push_back({name, size});
  }
  return mesh;
}

namespace {

constexpr const char* kMonoidNames[] = {"", "max", "softmax", "none"};

/// Skips axes beyond the mesh, which an edited layout may have.
std::vector<int32_t> axes_of(const Layout& layout, int dim, const Mesh& mesh) {
  std::vector<int32_t> axes = layout.axes_of(dim);
  std::erase_if(axes, [&](int32_t axis) { return std::cmp_greater_equal(axis, mesh.axes.size()); });
  return axes;
}

/// Layout::outside of the axes of a dim, in this order.
void number_axes(Layout* layout, const std::vector<int32_t>& axes) {
  int8_t outside = 0;
  for (int32_t axis : axes) {
    layout->outside[static_cast<size_t>(axis)] = outside++;
  }
}

}  // namespace

std::string to_string(Placement placement) {
  if (placement.is_replicate()) return "B";
  if (placement.is_split()) return fmt::format("S{}", placement.dim());
  const size_t monoid = static_cast<size_t>(placement.monoid());
  return fmt::format("P{}", monoid < std::size(kMonoidNames) ? kMonoidNames[monoid] : "?");
}

void Layout::set(size_t axis, Placement placement) {
  const Placement before = on[axis];
  if (before == placement) return;
  std::erase_if(given, [&](const GivenSizes& one) {
    return one.dim == before.code || one.dim == placement.code;
  });
  on[axis] = Placement::replicate();
  outside[axis] = 0;
  if (before.is_split()) {
    number_axes(this, axes_of(before.dim()));
  }
  if (placement.is_split()) {
    std::vector<int32_t> axes = axes_of(placement.dim());
    axes.push_back(static_cast<int32_t>(axis));
    number_axes(this, axes);
  }
  on[axis] = placement;
}

GivenSizes::GivenSizes(int8_t of_dim, std::vector<int64_t> of_blocks)
    : dim(of_dim), sizes(std::move(of_blocks)), ends(sizes.size()) {
  std::partial_sum(sizes.begin(), sizes.end(), ends.begin());
}

void Layout::give(int dim, std::vector<int64_t> sizes) {
  std::erase_if(given, [&](const GivenSizes& one) { return one.dim == dim; });
  if (sizes.empty()) return;
  const auto behind = std::find_if(given.begin(), given.end(),
                                   [&](const GivenSizes& one) { return one.dim > dim; });
  given.insert(behind, {static_cast<int8_t>(dim), std::move(sizes)});
}

std::vector<int32_t> Layout::axes_of(int dim) const {
  std::vector<int32_t> axes;
  for (size_t axis = 0; axis < on.size(); ++axis) {
    if (on[axis] == Placement::split(dim)) {
      axes.push_back(static_cast<int32_t>(axis));
    }
  }
  std::stable_sort(axes.begin(), axes.end(), [&](int32_t left, int32_t right) {
    return outside[static_cast<size_t>(left)] < outside[static_cast<size_t>(right)];
  });
  return axes;
}

const std::vector<int64_t>& Layout::sizes_of(int dim) const {
  static const std::vector<int64_t> kNotGiven;
  for (const GivenSizes& one : given) {
    if (one.dim == dim) return one.sizes;
  }
  return kNotGiven;
}

Run Layout::block(int dim, int64_t size, int64_t blocks, int64_t number) const {
  for (const GivenSizes& one : given) {
    if (one.dim != dim || one.sizes.empty()) continue;
    const auto i = std::min(static_cast<size_t>(number), one.sizes.size() - 1);
    const int64_t begin = std::min(size, one.ends[i] - one.sizes[i]);
    return {begin, std::clamp<int64_t>(one.sizes[i], 0, size - begin)};
  }
  return share(size, blocks, number);
}

std::string to_string(const Layout& layout, const Mesh& mesh) {
  // The axes of a dim share out, in their own order, the places that they have in the mesh.
  std::string text;
  std::array<size_t, kMaxAxes> shared_out{};  // by dim
  for (size_t i = 0; i < mesh.axes.size(); ++i) {
    const Placement placement = layout[i];
    if (placement.is_replicate()) continue;
    size_t axis = i;
    std::string sizes;
    if (placement.is_split() && placement.dim() < kMaxAxes) {
      const std::vector<int32_t> axes = axes_of(layout, placement.dim(), mesh);
      const size_t next = shared_out[static_cast<size_t>(placement.dim())]++;
      axis = static_cast<size_t>(axes[next]);
      const std::vector<int64_t>& given = layout.sizes_of(placement.dim());
      if (next + 1 == axes.size() && !given.empty()) {
        sizes = fmt::format("[{}]", fmt::join(given, ","));
      }
    }
    text += fmt::format("{}{}:{}{}", text.empty() ? "" : " ", mesh.axes[axis].name,
                        to_string(placement), sizes);
  }
  return text.empty() ? "B" : text;
}

namespace {

/// "4,3]": numbers of at least one. Empty if it is something else.
std::vector<int64_t> parse_sizes(std::string_view text) {
  std::vector<int64_t> sizes;
  while (true) {
    int64_t size = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || size < 1) return {};
    sizes.push_back(size);
    text.remove_prefix(static_cast<size_t>(stop - text.data()));
    if (text == "]") return sizes;
    if (text.empty() || text[0] != ',') return {};
    text.remove_prefix(1);
  }
}

/// "S0", "P", "Pmax"; replicated if it is something else.
Placement parse_placement(std::string_view text) {
  if (text.size() == 2 && text[0] == 'S' && text[1] >= '0' && text[1] <= '9') {
    return Placement::split(text[1] - '0');
  }
  for (size_t monoid = 0; monoid < std::size(kMonoidNames); ++monoid) {
    const Placement partial = Placement::partial(static_cast<Monoid>(monoid));
    if (text == to_string(partial)) return partial;
  }
  return Placement::replicate();
}

/// Ranks along the axes that split the dim.
int64_t num_blocks(const Layout& layout, int dim, const Mesh& mesh) {
  int64_t blocks = 1;
  for (int32_t axis : axes_of(layout, dim, mesh)) {
    blocks *= mesh.axes[static_cast<size_t>(axis)].size;
  }
  return blocks;
}

/// "" or why the dim has no such sizes, whatever its own is.
std::string why_not_given(const GivenSizes& given, const Layout& layout, const Mesh& mesh) {
  if (axes_of(layout, given.dim, mesh).empty()) {
    return fmt::format("sizes are given for dim {}, which no axis splits", given.dim);
  }
  const int64_t blocks = num_blocks(layout, given.dim, mesh);
  if (std::cmp_not_equal(given.sizes.size(), blocks)) {
    return fmt::format("dim {} has {} given sizes for {} blocks", given.dim, given.sizes.size(),
                       blocks);
  }
  if (*std::min_element(given.sizes.begin(), given.sizes.end()) < 1) {
    return fmt::format("dim {} has a block of less than one index", given.dim);
  }
  return "";
}

}  // namespace

Layout parse_layout(std::string_view text, const Mesh& mesh) {
  // Word by word; the axes of a dim come outermost first, and its sizes with the last of them.
  Layout layout;
  if (text == "B") return layout;
  const std::string whole(text);
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t colon = word.find(':');
    const size_t bracket = std::min(word.find('['), word.size());
    const int32_t axis = colon == word.npos ? -1 : mesh.axis(word.substr(0, colon));
    Placement placement;
    if (axis >= 0 && bracket > colon) {
      placement = parse_placement(word.substr(colon + 1, bracket - colon - 1));
    }
    std::vector<int64_t> sizes;
    if (bracket < word.size() && placement.is_split()) {
      sizes = parse_sizes(word.substr(bracket + 1));
    }
    if (placement.is_replicate() || sizes.empty() != (bracket == word.size())) {
      fail("layout",
           "got '{}'; expected B or axis:S<dim>, axis:P, axis:Pmax, axis:Psoftmax with an axis of "
           "the mesh, and behind the innermost axis of a dim perhaps the sizes of its blocks, as "
           "in ep:S0[4,3]",
           word);
    }
    if (!layout[static_cast<size_t>(axis)].is_replicate()) {
      fail("layout", "axis {} comes twice in '{}'", mesh.axes[static_cast<size_t>(axis)].name,
           whole);
    }
    if (placement.is_split() && !layout.sizes_of(placement.dim()).empty()) {
      fail("layout", "the sizes of dim {} in '{}' come before its innermost axis; expected last",
           placement.dim(), whole);
    }
    layout.set(static_cast<size_t>(axis), placement);
    layout.give(placement.dim(), std::move(sizes));
  }
  for (const GivenSizes& given : layout.given) {
    if (const std::string why = why_not_given(given, layout, mesh); !why.empty()) {
      fail("layout", "in '{}', {}", whole, why);
    }
  }
  return layout;
}

std::string why_invalid(const Layout& layout, const TensorType& type, const Mesh& mesh) {
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (layout[axis].is_split() && std::cmp_greater_equal(layout[axis].dim(), type.dims.size())) {
      return fmt::format("{} has no dim {}", to_string(type), layout[axis].dim());
    }
  }
  for (const GivenSizes& given : layout.given) {
    if (given.dim < 0 || std::cmp_greater_equal(given.dim, type.dims.size())) {
      return fmt::format("{} has no dim {}", to_string(type), given.dim);
    }
    const Dim& size = type.dims[static_cast<size_t>(given.dim)];
    if (size.symbolic()) {
      return fmt::format("dim {} of {} is a symbol: blocks of it have no given sizes", given.dim,
                         to_string(type));
    }
    if (const std::string why = why_not_given(given, layout, mesh); !why.empty()) return why;
    int64_t rest = size;
    for (int64_t block : given.sizes) {
      rest = block <= rest ? rest - block : -1;
      if (rest < 0) break;
    }
    if (rest != 0) {
      return fmt::format("the given sizes of dim {} do not add up to its {}", given.dim,
                         int64_t{size});
    }
  }
  return "";
}

namespace {

/// Returns the axes that split the dim: "axis edp", "axes ep, edp".
std::string axes_text(const Layout& layout, int dim, const Mesh& mesh) {
  std::string text;
  for (int32_t axis : axes_of(layout, dim, mesh)) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", mesh.axes[axis].name);
  }
  return text;
}

}  // namespace

TensorType local_type(const TensorType& type, const Layout& layout, const Mesh& mesh) {
  TensorType local = type;
  for (size_t i = 0; i < mesh.axes.size(); ++i) {
    const Placement placement = layout[i];
    if (!placement.is_split()) continue;
    const size_t dim = static_cast<size_t>(placement.dim());
    if (dim >= local.dims.size() || !local.dims[dim].divides_into(mesh.axes[i].size)) {
      fail("layout", "{} can't be split along dim {} over {} ranks of axis {}", to_string(type),
           dim, mesh.axes[i].size, mesh.axes[i].name);
    }
    local.dims[dim] /= mesh.axes[i].size;
  }
  std::string why = layout.given.empty() ? "" : why_invalid(layout, type, mesh);
  for (const GivenSizes& given : layout.given) {
    if (why.empty() && std::count(given.sizes.begin(), given.sizes.end(), given.sizes[0]) !=
                           std::ssize(given.sizes)) {
      why = fmt::format("blocks of dim {} have different sizes", given.dim);
    }
  }
  if (why.empty()) {
    why = why_invalid(local);
    why = why.empty() ? "" : "of a part, " + why;
  }
  if (!why.empty()) {
    fail("layout", "{} can't be split as {}: {}", to_string(type), to_string(layout, mesh), why);
  }
  return local;
}

BlockNumber block_number(const Layout& layout, int dim, const Mesh& mesh,
                         const std::vector<int32_t>& coords) {
  BlockNumber block;
  for (int32_t axis : axes_of(layout, dim, mesh)) {
    const size_t place = static_cast<size_t>(axis);
    block.blocks *= mesh.axes[place].size;
    block.number = block.number * mesh.axes[place].size + coords[place];
  }
  return block;
}

std::vector<Run> local_runs(const TensorType& type, const Layout& layout, const Mesh& mesh,
                            const std::vector<int32_t>& coords) {
  std::vector<Run> runs;
  for (size_t i = 0; i < type.dims.size(); ++i) {
    const int dim = static_cast<int>(i);
    const BlockNumber mine = block_number(layout, dim, mesh, coords);
    runs.push_back(layout.block(dim, type.dims[i], mine.blocks, mine.number));
  }
  return runs;
}

TensorType local_type(const TensorType& type, const Layout& layout, const Mesh& mesh,
                      const std::vector<int32_t>& coords) {
  // A symbol has equal parts; a number need not divide.
  TensorType local = type;
  if (const std::string why = why_invalid(layout, type, mesh); !why.empty()) {
    fail("layout", "{} can't be split as {}: {}", to_string(type), to_string(layout, mesh), why);
  }
  const std::vector<Run> runs = local_runs(type, layout, mesh, coords);
  for (size_t i = 0; i < runs.size(); ++i) {
    const int dim = static_cast<int>(i);
    const int64_t blocks = num_blocks(layout, dim, mesh);
    const bool symbolic = local.dims[i].symbolic();
    if (symbolic ? !local.dims[i].divides_into(blocks) : runs[i].length == 0) {
      fail("layout", "{} can't be split along dim {} over {} ranks of {}", to_string(type), i,
           blocks, axes_text(layout, dim, mesh));
    }
    if (symbolic) {
      local.dims[i] /= blocks;
    } else {
      local.dims[i] = runs[i].length;
    }
  }
  if (const std::string why = why_invalid(local); !why.empty()) {
    fail("layout", "a part of {} is {}: {}", to_string(type), to_string(local), why);
  }
  return local;
}

}  // namespace hocket::graph
