// SPDX-License-Identifier: Apache-2.0
#include "program/contract.h"

#include <algorithm>
#include <map>
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
  constexpr int64_t kMost = int64_t{1} << 50;
  int64_t elements = 0;
  for (int64_t size : given) {
    elements = std::min(elements + std::clamp<int64_t>(size, 0, kMost), kMost);
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
  // What the slot holds, in elements of the bucket; of that, what lies in the rank's block of it.
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
  const std::vector<ClassId> here = program.class_table();
  const std::vector<ClassId> there = other.class_table();
  std::set<std::pair<int32_t, int32_t>> pairs;
  for (size_t rank = 0; rank < there.size(); ++rank) {
    pairs.insert({rank < here.size() ? here[rank].value() : kNone, there[rank].value()});
  }
  for (const auto& [mine, theirs] : pairs) {
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
        const Buffer& own = *same->second;
        if (own.type == buffer.type && own.layout == buffer.layout && own.slots == buffer.slots &&
            own.space == buffer.space) {
          continue;
        }
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
