// SPDX-License-Identifier: Apache-2.0
// Implements: text (pieces.h).
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "check/values/pieces.h"

namespace hocket::check {

bool Pieces::layout_text(const Piece& piece, const graph::Mesh& mesh, std::string* text) const {
  // Writes a layout like graph::to_string; the axes may be those of several roles.
  std::map<int32_t, std::string> placements;  // by axis
  std::map<int32_t, std::string> words;       // by place in the mesh
  std::vector<int32_t> axes;
  const auto place = [&](CutId cut, const std::string& placement) {
    if (!cuts.is_split(cut, &axes)) return false;
    std::vector<int32_t> places = axes;
    std::sort(places.begin(), places.end());
    for (size_t i = 0; i < axes.size(); ++i) {
      if (placements.emplace(axes[i], placement).first->second != placement) return false;
      words[places[i]] = fmt::format("{}:{}", mesh.axes[axes[i]].name, placement);
    }
    return true;
  };
  for (int dim = 0; dim < piece.dims; ++dim) {
    if (!place(piece.cut[dim], to_string(graph::Placement::split(dim)))) return false;
  }
  for (const Addends& part : piece.addends) {
    const graph::Monoid monoid = spaces_[part.space].monoid;
    if (!place(part.set, to_string(graph::Placement::partial(monoid)))) return false;
  }
  std::vector<std::string> in_order;
  for (const auto& [axis, word] : words) {
    in_order.push_back(word);
  }
  *text = in_order.empty() ? std::string("B") : hocket::join(in_order, " ");
  return true;
}

std::string Pieces::text(PieceId id, const graph::Mesh& mesh) const {
  if (id == kAnyPiece) return "any";
  const Piece& piece = pieces_[id];
  std::string text;
  if (layout_text(piece, mesh, &text)) return text;
  const auto add = [&](const std::string& what, CutId cut) {
    std::string over;
    for (AxisMask left = cuts.axes(cut); left; left &= left - 1) {
      over += (over.empty() ? " by " : ",") + mesh.axes[lowest_axis(left)].name;
    }
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", what, cuts.text(cut), over);
  };
  for (int dim = 0; dim < piece.dims; ++dim) {
    if (!cuts.is_whole(piece.cut[dim])) {
      add(fmt::format("dim {}", dim), piece.cut[dim]);
    }
  }
  for (const Addends& part : piece.addends) {
    add("addends", part.set);
  }
  return text;
}

}  // namespace hocket::check
