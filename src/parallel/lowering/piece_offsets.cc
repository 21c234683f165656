// SPDX-License-Identifier: Apache-2.0
#include "parallel/lowering/piece_offsets.h"

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace hocket::parallel {

namespace {

/// First operand with a letter: its layout, the dim, and its whole type.
struct LetterOperand {
  const graph::Layout* layout = nullptr;
  int dim = 0;
  const graph::TensorType* whole = nullptr;
};

std::optional<LetterOperand> find_letter(char letter, const ops::Letters& letters,
                                         const OperandLayouts& layouts) {
  for (size_t i = 0; i < letters.in.size(); ++i) {
    if (const size_t dim = letters.in[i].find(letter); dim != std::string::npos) {
      return LetterOperand{&layouts.in[i], static_cast<int>(dim), &layouts.whole_in[i]};
    }
  }
  for (size_t i = 0; i < letters.out.size(); ++i) {
    if (const size_t dim = letters.out[i].find(letter); dim != std::string::npos) {
      return LetterOperand{&layouts.out[i], static_cast<int>(dim), &layouts.whole_out[i]};
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<program::PieceOffset> piece_offsets(const ops::Op& op, const program::Kind& kind,
                                                const OperandLayouts& layouts, program::RoleId role,
                                                program::Program& program) {
  // Tables have the axes in mesh order, in whatever order they split the dim.
  std::vector<program::PieceOffset> offsets;
  if (*op.layout.positional == 0) return offsets;
  const graph::Mesh& mesh = program.roles[role].mesh;
  const ops::Letters letters = ops::letters(op, kind.in, kind.out);
  for (const char letter : std::string_view(op.layout.positional)) {
    const std::optional<LetterOperand> found = find_letter(letter, letters, layouts);
    if (!found) continue;
    const graph::Layout& layout = *found->layout;
    program::Table table{.role = role, .axes = {}, .values = {}};
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      if (layout[axis] != graph::Placement::split(found->dim)) continue;
      if (mesh.axes[axis].size == 1) continue;
      table.axes.push_back(static_cast<int32_t>(axis));
    }
    if (table.axes.empty()) continue;
    const auto dim = static_cast<size_t>(found->dim);
    if (found->whole->dims[dim].symbolic()) {
      fail_with(
          Error::Code::layout, "lower",
          "{} indexes {} by position, but the size is a symbol; expected it whole on every rank",
          op.name, to_string(*found->whole));
    }
    graph::for_each_coords(mesh, table.axes, [&](const std::vector<int32_t>& coords) {
      table.values.push_back(graph::local_runs(*found->whole, layout, mesh, coords)[dim].begin);
    });
    offsets.push_back({letter, 0, program.intern(std::move(table))});
  }
  return offsets;
}

}  // namespace hocket::parallel
