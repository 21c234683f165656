// SPDX-License-Identifier: Apache-2.0
#include "parallel/begins.h"

#include <algorithm>

#include "base/error.h"

namespace hocket::parallel {

std::vector<program::Begin> begins_of(const ops::Op& op, const program::Kind& kind,
                                      const std::vector<graph::Layout>& layouts,
                                      program::RoleId role, program::Program& program) {
  // A split gives every rank a block, which is as long as the local dim. Tables name axes in the
  // order of the mesh, whatever the order is in which they split the dim.
  std::vector<program::Begin> begins;
  if (*op.layout.positional == 0) return begins;
  const graph::Mesh& mesh = program.roles[role].mesh;
  const ops::Letters letters = ops::letters(op, kind.in, kind.out);
  for (const char letter : std::string_view(op.layout.positional)) {
    const auto has = std::find_if(
        letters.in.begin(), letters.in.end(),
        [letter](const std::string& operand) { return operand.find(letter) != operand.npos; });
    if (has == letters.in.end()) continue;
    const size_t input = static_cast<size_t>(has - letters.in.begin());
    const int dim = static_cast<int>(has->find(letter));
    program::Table table{.role = role, .axes = {}, .values = {}};
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      if (layouts[input][axis] != graph::Placement::split(dim)) continue;
      if (mesh.axes[axis].size == 1) continue;
      table.axes.push_back(static_cast<int32_t>(axis));
    }
    if (table.axes.empty()) continue;
    if (kind.in[input].dims[dim].symbolic()) {
      fail("lower", "{} goes by the position of {}, which is a symbol; expected it whole on a rank",
           op.name, to_string(kind.in[input]));
    }
    if (!layouts[input].sizes_of(dim).empty()) {
      fail("lower", "{} goes by the position of blocks of given sizes; expected even ones",
           op.name);
    }
    graph::for_each_coords(mesh, table.axes, [&](const std::vector<int32_t>& coords) {
      const int64_t number = graph::block_number(layouts[input], dim, mesh, coords).number;
      table.values.push_back(number * kind.in[input].dims[dim]);
    });
    begins.push_back({letter, 0, program.intern(std::move(table))});
  }
  return begins;
}

}  // namespace hocket::parallel
