// SPDX-License-Identifier: Apache-2.0
#include "program/buffer_contents.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace hocket::program {

namespace {

/// The elements that a layout gives to a rank.
void for_each_run(const Layout& layout, const TensorType& full, const Program& program,
                  int32_t rank, const OnRun& run) {
  const Mesh& mesh = program.roles[program.role_of(rank)].mesh;
  const std::vector<int32_t> coords = program.coords(rank);
  const size_t n = full.dims.size();
  std::vector<int64_t> begin, count;
  for (const graph::Run& mine : graph::local_runs(full, layout, mesh, coords)) {
    begin.push_back(mine.begin);
    count.push_back(mine.length);
  }
  // The trailing dims that are whole form one contiguous run together with the dim before them.
  size_t first = n;
  int64_t length = 1;
  while (first > 0) {
    --first;
    length *= count[first];
    if (count[first] != full.dims[first]) break;
  }
  std::vector<int64_t> index(first, 0);
  for (int64_t local = 0;; local += length) {
    int64_t at = 0;
    for (size_t d = 0; d < n; ++d) {
      at = at * full.dims[d] + begin[d] + (d < first ? index[d] : 0);
    }
    run(at, length, local);
    size_t d = first;
    while (d > 0 && ++index[d - 1] == count[d - 1]) {
      index[--d] = 0;
    }
    if (d == 0) break;
  }
}

}  // namespace

bool holds(const Buffer& buffer, std::string_view tensor) {
  if (buffer.slots.empty()) return buffer.name == tensor;
  return std::any_of(buffer.slots.begin(), buffer.slots.end(),
                     [&](const Slot& slot) { return slot.tensor == tensor; });
}

std::vector<std::string> tensors_of(const std::string& name, const std::vector<Slot>& slots) {
  if (slots.empty()) return {name};
  std::vector<std::string> names;
  for (const Slot& slot : slots) {
    names.push_back(slot.tensor);
  }
  return names;
}

Block block_of(const Buffer& buffer, const Program& program, int32_t rank) {
  const Mesh& mesh = program.roles[program.role_of(rank)].mesh;
  const graph::BlockNumber mine = graph::block_number(buffer.layout, 0, mesh, program.coords(rank));
  const int64_t whole = elements_of(buffer, mesh);
  return {whole, buffer.layout.block(0, whole, mine.blocks, mine.number).begin};
}

int64_t elements_of(const Buffer& bucket, const Mesh& mesh) {
  const std::vector<int64_t>& given = bucket.layout.sizes_of(0);
  constexpr int64_t kMaxElements = int64_t{1} << 50;
  int64_t elements = 0;
  for (int64_t size : given) {
    elements = std::min(elements + std::clamp<int64_t>(size, 0, kMaxElements), kMaxElements);
  }
  if (!given.empty()) return elements;
  elements = bucket.type.numel();
  for (int32_t axis : bucket.layout.axes_of(0)) {
    elements *= mesh.axes[axis].size;
  }
  return elements;
}

void for_each_run(const Buffer& buffer, std::string_view tensor, const TensorType& full,
                  const Program& program, int32_t rank, const OnRun& run) {
  if (buffer.slots.empty()) {
    if (buffer.name == tensor) {
      for_each_run(buffer.layout, full, program, rank, run);
    }
    return;
  }
  // The elements of the slot in the bucket, and those in the rank's block.
  const int64_t mine = block_of(buffer, program, rank).begin;
  const int64_t end = mine + buffer.type.numel();
  for (const Slot& slot : buffer.slots) {
    if (slot.tensor != tensor) continue;
    for_each_run(slot.layout, full, program, rank,
                 [&](int64_t begin, int64_t count, int64_t local) {
                   const int64_t at = slot.begin + local;
                   const int64_t from = std::max(at, mine);
                   const int64_t to = std::min(at + count, end);
                   if (from < to) {
                     run(begin + from - at, to - from, from - mine);
                   }
                 });
  }
}

Contents contents_of(const Buffer& buffer, const Program& program, int32_t rank) {
  return {buffer.type,
          buffer.layout,
          buffer.slots,
          buffer.space,
          program.roles[program.role_of(rank)].mesh,
          program.coords(rank)};
}

namespace {

/// The dims that are split in one of two layouts.
std::set<int> split_dims(const Layout& one, const Layout& other) {
  std::set<int> dims;
  for (const Layout* layout : {&one, &other}) {
    for (const graph::Placement placement : layout->on) {
      if (placement.is_split()) {
        dims.insert(placement.dim());
      }
    }
  }
  return dims;
}

/// Returns whether two layouts, each on the mesh of its contents, give the rank the same part of
/// every dim. Dims with given sizes compare by indices. Otherwise the size is unknown: the rank
/// must have the same block number of the same number of blocks.
bool give_the_same(const Layout& one, const Contents& here, const Layout& other,
                   const Contents& there) {
  for (const int dim : split_dims(one, other)) {
    const graph::BlockNumber mine = graph::block_number(one, dim, here.mesh, here.coords);
    const graph::BlockNumber theirs = graph::block_number(other, dim, there.mesh, there.coords);
    const std::vector<int64_t>& given =
        one.sizes_of(dim).empty() ? other.sizes_of(dim) : one.sizes_of(dim);
    const int64_t size = std::accumulate(given.begin(), given.end(), int64_t{0});
    const bool same = given.empty() ? mine.blocks == theirs.blocks && mine.number == theirs.number
                                    : one.block(dim, size, mine.blocks, mine.number) ==
                                          other.block(dim, size, theirs.blocks, theirs.number);
    if (!same) return false;
  }
  return true;
}

}  // namespace

bool have_same_elements(const Contents& one, const Contents& other) {
  if (one.type != other.type || one.space != other.space ||
      one.slots.size() != other.slots.size()) {
    return false;
  }
  for (size_t i = 0; i < one.slots.size(); ++i) {
    const Slot& mine = one.slots[i];
    const Slot& theirs = other.slots[i];
    if (mine.tensor != theirs.tensor || mine.begin != theirs.begin ||
        !give_the_same(mine.layout, one, theirs.layout, other)) {
      return false;
    }
  }
  return give_the_same(one.layout, one, other.layout, other);
}

namespace {

/// Every rank's number of its class here (kNone: of no class) and there, with the ranks that have
/// both.
using Pairs = std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>>;
Pairs pairs_of_classes(const Program& program, const Program& other) {
  const std::vector<ClassId> here = program.class_table();
  const std::vector<ClassId> there = other.class_table();
  Pairs pairs;
  for (size_t rank = 0; rank < there.size(); ++rank) {
    pairs[{rank < here.size() ? here[rank].value() : kNone, there[rank].value()}].push_back(
        static_cast<int32_t>(rank));
  }
  return pairs;
}

/// Returns whether all these ranks have the same elements in both programs' buffers.
bool same_on(const std::vector<int32_t>& ranks, const Buffer& one, const Program& program,
             const Buffer& theirs, const Program& other) {
  const Mesh& here = program.roles[program.role_of(ranks.front())].mesh;
  const Mesh& there = other.roles[other.role_of(ranks.front())].mesh;
  if (here == there && one.type == theirs.type && one.layout == theirs.layout &&
      one.slots == theirs.slots && one.space == theirs.space &&
      program.role_of(ranks.front()) == other.role_of(ranks.front())) {
    return true;  // everywhere
  }
  return std::all_of(ranks.begin(), ranks.end(), [&](int32_t rank) {
    return have_same_elements(contents_of(one, program, rank), contents_of(theirs, other, rank));
  });
}

}  // namespace

std::string held_otherwise(const Program& program, const Program& other) {
  // Classes that have ranks in common are compared once: every buffer of the one must be the same
  // in the other, or hold nothing that is known there on any rank.
  std::set<std::string> known;
  for (const RankClass& cls : program.classes) {
    for (const Buffer& buffer : cls.buffers) {
      if (buffer.kind != BufferKind::persistent) continue;
      for (std::string& tensor : tensors_of(buffer.name, buffer.slots)) {
        known.insert(std::move(tensor));
      }
    }
  }
  for (const auto& [classes, ranks] : pairs_of_classes(program, other)) {
    const auto& [mine, theirs] = classes;
    if (theirs == kNone) continue;
    std::map<std::string_view, const Buffer*> named;
    if (mine != kNone) {
      for (const Buffer& buffer : program.classes[static_cast<size_t>(mine)].buffers) {
        if (buffer.kind == BufferKind::persistent) {
          named[buffer.name] = &buffer;
        }
      }
    }
    for (const Buffer& buffer : other.classes[static_cast<size_t>(theirs)].buffers) {
      if (buffer.kind != BufferKind::persistent) continue;
      const auto same = named.find(buffer.name);
      if (same != named.end()) {
        if (same_on(ranks, *same->second, program, buffer, other)) continue;
        return tensors_of(buffer.name, buffer.slots).front();
      }
      for (const std::string& tensor : tensors_of(buffer.name, buffer.slots)) {
        if (known.contains(tensor)) return tensor;
      }
    }
  }
  return "";
}

}  // namespace hocket::program
