// SPDX-License-Identifier: Apache-2.0
// Implements: Mutator (mutator.h), changes of the pieces that tasks work on: parts, letters,
// codecs, monoids, and the ends of messages.
#include <fmt/format.h>

#include <algorithm>

#include "check/mutants/mutator.h"
#include "ops/op.h"

namespace hocket::check {

/// Changes the parts of a task: their letter, number, order or first part, or removes them.
bool Mutator::change_parts() {
  const TaskRef ref = any_task([](const Task& task) { return !task.parts.empty(); });
  if (ref.cls < 0) return false;
  program::PieceOffset& parts = task(ref).parts[0];
  switch (random_.below(4)) {
    case 0: {
      const char letter = static_cast<char>('a' + random_.below(26));
      if (letter == parts.letter) return false;
      begin(ref, fmt::format("parts along {}", letter));
      parts.letter = letter;
      return true;
    }
    case 1: {
      const int64_t sign = parts.begin < 0 ? -1 : 1;
      const int64_t to =
          random_.flip() ? -parts.begin : parts.begin + (random_.flip() ? sign : -sign);
      begin(ref, fmt::format("{} parts instead of {}", to, parts.begin));
      parts.begin = to;
      return true;
    }
    case 2: {
      if (parts.by == kNone) return false;
      program::Table table = p_.tables[parts.by];
      const size_t place = random_.below(table.values.size());
      table.values[place] += random_.flip() ? 1 : -1;
      begin(ref, fmt::format("another first part at place {} of its table", place));
      parts.by = p_.intern(std::move(table));
      return true;
    }
    default:
      begin(ref, "without parts");
      task(ref).parts.clear();
      return true;
  }
}

/// Lets a part wait for another part, or for none.
bool Mutator::change_part_dep() {
  const TaskRef ref = any_task([](const Task& task) { return !task.part_deps.empty(); });
  if (ref.cls < 0) return false;
  auto& deps = task(ref).part_deps;
  const size_t place = random_.below(deps.size());
  const int32_t by = random_.flip() ? 1 : -1;
  switch (random_.below(3)) {
    case 0:
      begin(ref, fmt::format("part {} waits instead of {}", deps[place].own + by, deps[place].own));
      deps[place].own += by;
      return true;
    case 1:
      begin(ref, fmt::format("waits for part {} instead of {}", deps[place].part + by,
                             deps[place].part));
      deps[place].part += by;
      return true;
    default:
      begin(ref, fmt::format("part {} waits for nothing", deps[place].own));
      deps.erase(deps.begin() + static_cast<std::ptrdiff_t>(place));
      return true;
  }
}

/// Changes the letter of a begin, exchanges two letters, or removes a begin.
bool Mutator::change_letter() {
  const TaskRef ref = any_task([](const Task& task) { return !task.piece_offsets.empty(); });
  if (ref.cls < 0) return false;
  auto& offsets = task(ref).piece_offsets;
  const size_t place = random_.below(offsets.size());
  switch (random_.below(3)) {
    case 0: {
      const char letter = static_cast<char>('a' + random_.below(26));
      if (letter == offsets[place].letter) return false;
      begin(ref, fmt::format("the begin of {} becomes that of {}", offsets[place].letter, letter));
      offsets[place].letter = letter;
      return true;
    }
    case 1: {
      const size_t other = random_.below(offsets.size());
      if (offsets[other].letter == offsets[place].letter) return false;
      begin(ref, fmt::format("the begins of {} and {} are exchanged", offsets[place].letter,
                             offsets[other].letter));
      std::swap(offsets[place].letter, offsets[other].letter);
      return true;
    }
    default:
      begin(ref, fmt::format("the begin of {} is removed", offsets[place].letter));
      offsets.erase(offsets.begin() + static_cast<std::ptrdiff_t>(place));
      return true;
  }
}

/// Adds a begin of a letter, before or after those that the task has.
bool Mutator::add_begin() {
  const TaskRef ref = any_task();
  if (ref.cls < 0) return false;
  const program::Kind& kind = p_.kind(task(ref));
  const ops::Op* const op = ops::find_or_null(kind.op);
  std::string letters = op && *op->layout.positional ? op->layout.positional : "abcdefghst";
  const graph::TensorType& type = kind.in.empty() ? kind.out[0] : kind.in[0];
  const int64_t length = type.dims.empty() ? 1 : int64_t{type.dims[0]};
  const char letter = letters[random_.below(letters.size())];
  const int64_t at = random_.flip() ? 0 : length;
  auto& offsets = task(ref).piece_offsets;
  const bool first = random_.flip();
  begin(ref,
        fmt::format("gets as {} begin that of {} at {}", first ? "first" : "last", letter, at));
  offsets.insert(first ? offsets.begin() : offsets.end(), {letter, at, kNone});
  return true;
}

/// Replaces an encoder or decoder by another one, or by a copy.
bool Mutator::change_codec() {
  const auto codec_of = [&](const Task& task) {
    const ops::Op* const op = ops::find_or_null(p_.kind(task).op);
    return op && op->codec.name ? op : nullptr;
  };
  const TaskRef ref = any_task([&](const Task& task) { return codec_of(task) != nullptr; });
  if (ref.cls < 0) return false;
  std::vector<std::string> others{ops::of(ops::Meaning::identity).name};
  for (const ops::Op* op : ops::all()) {
    if (op->codec.name && op->name != p_.kind(task(ref)).op) {
      others.push_back(op->name);
    }
  }
  program::Kind kind = p_.kind(task(ref));
  kind.op = others[random_.below(others.size())];
  try {
    // Costs of the new op, if it takes these types.
    const ops::Cost cost = ops::cost_of(ops::find(kind.op), {kind.attrs, kind.in, kind.out});
    kind.flops = cost.flops;
    kind.bytes = cost.bytes;
    kind.workspace = cost.workspace;
  } catch (const std::exception&) {
    kind.flops = p_.kind(task(ref)).flops;
  }
  begin(ref, "runs as " + kind.op);
  task(ref).kind = p_.intern(std::move(kind));
  return true;
}

/// Turns a sum over ranks into a maximum, or a maximum into a sum.
bool Mutator::change_monoid() {
  const std::string summing = comm::summing().name;
  const TaskRef ref = any_task([&](const Task& task) { return p_.kind(task).op == summing; });
  if (ref.cls < 0) return false;
  program::Kind kind = p_.kind(task(ref));
  const bool was_sum = !kind.attrs.has("monoid");
  if (was_sum) {
    kind.attrs.set("monoid", std::string("max"));
  } else {
    kind.attrs.erase("monoid");
  }
  begin(ref, was_sum ? "maximum instead of sum" : "sum instead of maximum");
  task(ref).kind = p_.intern(std::move(kind));
  return true;
}

std::pair<program::PeerMap, program::PeerMap> Mutator::with_two_exchanged(
    program::RoleId role, const program::PeerMap& peer_map) {
  // Peers by coordinate on the axis, for ranks at 0 on all other axes.
  const graph::Mesh& mesh = p_.roles[role].mesh;
  const int32_t size = mesh.axes[peer_map.axis].size;
  const int32_t first = p_.first_rank(role);
  std::vector<int32_t> peers;
  for (int32_t at = 0; at < size; ++at) {
    const int32_t rank = first + mesh.moved(0, peer_map.axis, at);
    peers.push_back(p_.coords(p_.peer_of(peer_map, rank))[peer_map.axis]);
  }
  const size_t one = random_.below(peers.size());
  std::swap(peers[one], peers[(one + 1 + random_.below(peers.size() - 1)) % peers.size()]);
  program::Table there{role, {peer_map.axis}, {}};
  program::Table back{role, {peer_map.axis}, std::vector<int64_t>(peers.size(), 0)};
  for (int32_t at = 0; at < size; ++at) {
    const int32_t peer = peers[static_cast<size_t>(at)];
    there.values.push_back(peer - at);
    back.values[static_cast<size_t>(peer)] = at - peer;
  }
  return {{peer_map.axis, 0, p_.intern(std::move(there))},
          {peer_map.axis, 0, p_.intern(std::move(back))}};
}

/// Combines two parts by the wrong monoid: sum for maximum, or maximum for sum; for the merge of a
/// softmax, of one of its outputs.
bool Mutator::change_merge() {
  using ops::Meaning;
  const auto meaning_of = [&](const Task& task) {
    const ops::Op* const op = ops::find_or_null(p_.kind(task).op);
    return op ? op->meaning : Meaning::uninterpreted;
  };
  const TaskRef ref = any_task([&](const Task& task) {
    const Meaning meaning = meaning_of(task);
    const bool merges = meaning == Meaning::sum || meaning == Meaning::merge_max ||
                        meaning == Meaning::merge_softmax;
    return merges && p_.kind(task).in[0].dtype != graph::DType::i64;  // integers are only added
  });
  if (ref.cls < 0) return false;
  const Task before = task(ref);
  const Meaning was = meaning_of(before);
  const bool greatest = was == Meaning::sum || (was == Meaning::merge_softmax && random_.flip());
  const Meaning becomes = greatest ? Meaning::merge_max : Meaning::sum;
  const size_t output = random_.below(before.out.size());
  const graph::TensorType type = p_.kind(before).out[output];
  program::Kind kind{ops::of(becomes).name, {}, {type, type}, {type}};
  const ops::Cost cost =
      ops::cost_of(ops::of(becomes), {kind.attrs, kind.in, kind.out, 0, p_.symbols});
  kind.flops = cost.flops;
  kind.bytes = cost.bytes;
  kind.workspace = cost.workspace;
  begin(ref, fmt::format("runs as {}, into output {}", kind.op, output));
  Task& changed = task(ref);
  changed.kind = p_.intern(std::move(kind));
  changed.in = {before.in[output], before.in[output + before.in.size() / 2]};
  changed.out = {before.out[output]};
  return true;
}

/// Changes both ends of a message so that they still match: it comes from another rank, on all
/// ranks or on two.
bool Mutator::move_both_ends() {
  const TaskRef ref = any_task([](const Task& task) { return task.peer_axis != kNone; });
  if (ref.cls < 0) return false;
  const Task message = task(ref);
  const program::RoleId role = p_.classes[ref.cls].role;
  const int32_t by = random_.flip() ? 1 : -1;
  const bool sends = !message.in.empty();
  const bool two = random_.flip();
  std::pair<program::PeerMap, program::PeerMap> peer_maps;
  if (two) {
    peer_maps = with_two_exchanged(role, message.peer_map());
  }
  begin(ref, two ? "at both ends two ranks exchanged" : fmt::format("both ends {} further", by));
  for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
    if (p_.classes[cls].role != role) continue;
    auto& tasks = p_.classes[cls].tasks;
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (tasks[i].peer_axis != message.peer_axis || tasks[i].tag != message.tag) continue;
      const bool same_end = !tasks[i].in.empty() == sends;
      if (two) {
        const program::PeerMap& peer_map = same_end ? peer_maps.first : peer_maps.second;
        tasks[i].peer = peer_map.offset;
        tasks[i].peer_by = peer_map.by;
      } else {
        tasks[i].peer += same_end ? by : -by;
      }
      m_->tasks.push_back({cls, i});
      collect_neighbours(p_, {cls, i}, &m_->near);
    }
  }
  return true;
}

}  // namespace hocket::check
