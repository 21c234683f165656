// SPDX-License-Identifier: Apache-2.0
// Changes of buffers, attributes and workspaces.
#include "check/mutants/mutator.h"

#include <fmt/format.h>

#include <algorithm>

namespace hocket::check {

bool Mutator::change_offset() {
  const auto [c, b] = any_buffer(true);
  if (b < 0) return false;
  RankClass& rc = p_.classes[static_cast<size_t>(c)];
  Buffer& buffer = rc.buffers[static_cast<size_t>(b)];
  int64_t to = 0;
  switch (random_.below(3)) {
    case 0:
      to = buffer.offset + (random_.flip() ? 64 : -64);
      break;
    case 1:
      to = static_cast<int64_t>(random_.below(static_cast<size_t>(rc.arena_bytes) / 64 + 1)) * 64;
      break;
    default:
      to = rc.buffers[random_.below(rc.buffers.size())].offset;
  }
  if (to == buffer.offset || to == kNone) return false;
  begin_buffer(c, b, fmt::format("offset changed from {} to {}", buffer.offset, to));
  buffer.offset = to;
  // What lies there is now connected to it.
  std::vector<BufferId> over;
  for (size_t k = 0; k < rc.buffers.size(); ++k) {
    const Buffer& o = rc.buffers[k];
    if (o.kind == BufferKind::step && o.offset < to + buffer.type.bytes() &&
        to < o.offset + o.type.bytes())
      over.push_back(static_cast<BufferId>(k));
  }
  collect_users(rc, c, over, &m_->near);
  return true;
}

bool Mutator::change_type() {
  const auto [c, b] = any_buffer(false);
  if (b < 0) return false;
  Buffer& buffer = p_.classes[static_cast<size_t>(c)].buffers[static_cast<size_t>(b)];
  if (buffer.type.dims.empty()) return false;
  int64_t& d = buffer.type.dims[random_.below(buffer.type.dims.size())];
  begin_buffer(c, b, "size changed");
  d = random_.flip() ? d * 2 : d + 1;
  return true;
}

bool Mutator::change_named() {
  const auto [c, b] = any_buffer(false, true);
  if (b < 0) return false;
  auto& buffers = p_.classes[static_cast<size_t>(c)].buffers;
  Buffer& buffer = buffers[static_cast<size_t>(b)];
  switch (random_.below(3)) {
    case 0: {
      std::vector<size_t> same;
      for (size_t k = 0; k < buffers.size(); ++k)
        if (buffers[k].kind == buffer.kind && buffers[k].type == buffer.type &&
            static_cast<BufferId>(k) != b)
          same.push_back(k);
      if (same.empty()) return false;
      const size_t other = same[random_.below(same.size())];
      begin_buffer(c, b, "names exchanged with buffer " + std::to_string(other));
      begin_buffer(c, static_cast<BufferId>(other), "");
      std::swap(buffer.name, buffers[other].name);
      std::swap(buffer.micro_batch, buffers[other].micro_batch);
      break;
    }
    case 1: {
      const size_t a = random_.below(p_.mesh.axes.size());
      const graph::Placement to = random_.flip()
                                      ? graph::Placement::replicate()
                                      : graph::Placement::split(static_cast<int>(random_.below(2)));
      if (p_.mesh.axes[a].size == 1 || buffer.layout.on[a] == to) return false;
      begin_buffer(c, b, "declared layout changed");
      buffer.layout.on[a] = to;
      break;
    }
    default:
      if (buffer.micro_batch == kNone) return false;
      begin_buffer(c, b, "micro-batch changed");
      buffer.micro_batch += random_.flip() ? 1 : -1;
  }
  return true;
}
/// A scale, a dimension, an exponent: some attribute of one task.
bool Mutator::change_attribute() {
  const TaskRef r = any_task([&](const Task& t) { return !p_.kind(t).attrs.empty(); });
  if (r.cls < 0) return false;
  program::Kind kind = p_.kind(task(r));
  auto it = kind.attrs.items().begin();
  std::advance(it, random_.below(kind.attrs.items().size()));
  const std::string key = it->first;
  graph::Attr value = it->second;
  if (auto* i = std::get_if<int64_t>(&value))
    *i = random_.flip() ? *i + 1 : std::max<int64_t>(*i - 1, 0);
  else if (auto* d = std::get_if<double>(&value))
    *d = random_.flip() ? *d * 0.5 : *d + 1;
  else
    return false;
  if (value == it->second) return false;
  begin(r, fmt::format("attribute {} changed", key));
  kind.attrs.set(key, value);
  task(r).kind = p_.intern(std::move(kind));
  return true;
}

bool Mutator::change_accumulate() {
  const TaskRef r = any_task([](const Task& t) { return !t.out.empty(); });
  if (r.cls < 0) return false;
  begin(r, "accumulation changed");
  task(r).accumulate.flip(random_.below(std::min(task(r).out.size(), OutputSet::kMost)));
  return true;
}

bool Mutator::change_kind() {
  const TaskRef r = any_task();
  if (r.cls < 0) return false;
  const program::Kind& now = p_.kind(task(r));
  std::vector<int32_t> same;
  for (size_t k = 0; k < p_.kinds.size(); ++k)
    if (p_.kinds[k].in == now.in && p_.kinds[k].out == now.out &&
        static_cast<int32_t>(k) != task(r).kind)
      same.push_back(static_cast<int32_t>(k));
  if (same.empty()) return false;
  const int32_t to = same[random_.below(same.size())];
  begin(r, "op changed to " + p_.kinds[static_cast<size_t>(to)].op);
  task(r).kind = to;
  return true;
}

bool Mutator::change_workspace() {
  const TaskRef r = any_task([&](const Task& t) { return p_.kind(t).workspace > 0; });
  if (r.cls < 0) return false;
  RankClass& c = cls(r);
  if (random_.flip() && task(r).workspace != kNone) {
    const int64_t to =
        static_cast<int64_t>(random_.below(static_cast<size_t>(c.arena_bytes) / 64 + 1)) * 64;
    begin(r, fmt::format("workspace moved to {}", to));
    std::vector<BufferId> over;
    const int64_t end = to + p_.kind(task(r)).workspace;
    for (size_t k = 0; k < c.buffers.size(); ++k)
      if (c.buffers[k].kind == BufferKind::step && c.buffers[k].offset < end &&
          to < c.buffers[k].offset + c.buffers[k].type.bytes())
        over.push_back(static_cast<BufferId>(k));
    collect_users(c, r.cls, over, &m_->near);
    task(r).workspace = to;
  } else {
    program::Kind kind = p_.kind(task(r));
    begin(r, "workspace halved");
    kind.workspace = kind.workspace / 128 * 64;
    task(r).kind = p_.intern(std::move(kind));
  }
  return true;
}

}  // namespace hocket::check
