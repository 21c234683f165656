// SPDX-License-Identifier: Apache-2.0
// Memory of a rank, from the program alone: pages of named buffers, pages that the plan of the
// arena covers, and an upper bound of the messages in flight. The bound uses vector clocks: a
// message from a peer proves that the peer had received what came before it (InFlight).
#include "program/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "base/math.h"
#include "base/stop.h"
#include "base/text.h"
#include "ops/op.h"
#include "program/buffer_contents.h"
#include "program/finalize.h"

namespace hocket::program {

int64_t whole_pages(int64_t bytes) { return round_up(bytes, kPageBytes); }

std::string parts_text(const Memory& memory) {
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  std::string text = fmt::format(
      "{} persistent, {} inputs and outputs, {} step buffers, {} messages", size(memory.persistent),
      size(memory.inputs_outputs), size(memory.step_buffers), size(memory.messages));
  if (memory.evaluation > 0) {
    text += fmt::format(", {} evaluation", size(memory.evaluation));
  }
  if (memory.host > 0) {
    text += fmt::format(", and {} in host memory", size(memory.host));
  }
  return text;
}

std::vector<Range> joined(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& left, const Range& right) {
    return std::tie(left.begin, left.end) < std::tie(right.begin, right.end);
  });
  std::vector<Range> list;
  for (const Range& range : ranges) {
    if (list.empty() || range.begin > list.back().end) {
      list.push_back(range);
    } else {
      list.back().end = std::max(list.back().end, range.end);
    }
  }
  return list;
}

std::vector<Range> without(const std::vector<Range>& ranges, const std::vector<Range>& others) {
  std::vector<Range> list;
  for (const Range& range : ranges) {
    int64_t begin = range.begin;
    for (const Range& other : others) {
      if (other.end <= begin || other.begin >= range.end) continue;
      if (other.begin > begin) {
        list.push_back({begin, other.begin});
      }
      begin = other.end;
    }
    if (begin < range.end) {
      list.push_back({begin, range.end});
    }
  }
  return list;
}

std::optional<MemoryLimits::Excess> MemoryLimits::exceeded_by(const Memory& memory) const {
  const int64_t of_device = device_is_host ? memory.with_host() : memory.total();
  const bool above_device = device > 0 && of_device > device;
  const bool above_budget = budget > 0 && memory.total() > budget;
  if (above_budget && (!above_device || budget < device)) return Excess{memory.total(), budget};
  if (above_device) return Excess{of_device, device};
  return std::nullopt;
}

int64_t total_bytes(const std::vector<Range>& ranges) {
  int64_t bytes = 0;
  for (const Range& range : ranges) {
    bytes += range.end - range.begin;
  }
  return bytes;
}

namespace {

/// Returns a kernel's workspace without f32 copies of short operands.
int64_t without_copies(const Kind& kind) {
  const ops::Op* const op = ops::find_or_null(kind.op);
  if (op == nullptr) return kind.workspace;
  const ops::Call call{kind.attrs, kind.in, kind.out};
  const int64_t own = op->workspace ? round_up(op->workspace(call), 64) : 0;
  return std::max<int64_t>(0, kind.workspace - (ops::workspace_of(*op, call) - own));
}

}  // namespace

std::vector<int64_t> workspaces(const Program& program, Kernels kernels) {
  std::vector<int64_t> list;
  for (const Kind& kind : program.kinds) {
    const bool less = kernels == Kernels::native && kind.workspace > 0 && !is_communication(kind);
    list.push_back(less ? without_copies(kind) : kind.workspace);
  }
  return list;
}

std::vector<Range> planned_pages(const Program& program, ClassId cls_id, Space space,
                                 Kernels kernels) {
  // Buffers share addresses and pages, so bytes must not be added up: every stretch that is written
  // is widened to whole pages, and those that overlap or touch are joined.
  const RankClass& cls = program.classes[cls_id];
  std::vector<Range> touched;
  const auto touch = [&](int64_t offset, int64_t bytes) {
    if (offset < 0 || bytes <= 0 || offset > INT64_MAX / 2 - bytes) {
      return;  // nowhere
    }
    touched.push_back({offset / kPageBytes * kPageBytes, whole_pages(offset + bytes)});
  };
  for (const Buffer& buffer : cls.buffers) {
    if (buffer.kind != BufferKind::step || buffer.space != space) continue;
    touch(buffer.offset,
          buffer.expected_bytes != kNone ? buffer.expected_bytes : buffer.type.bytes());
  }
  const std::vector<int64_t> workspace =
      workspaces(program, space == Space::host ? Kernels::on_copies : kernels);
  for (const Task& task : cls.tasks) {
    if (workspace_space(task.lane) == space) {
      touch(task.workspace, workspace[task.kind.value()]);
    }
  }
  return joined(std::move(touched));
}

namespace {

/// Returns whether the task is this end of a message.
bool plays(const Program& program, const Task& task, comm::Role role) {
  const comm::Id id = program.kind(task).communication;
  return task.peer_axis != kNone && id != comm::Id::none && comm::op(id).role == role;
}

/// Tasks of a class that are ends of messages, by peer mapping, in issue order.
struct MessageEnds {
  std::map<PeerMap, std::vector<TaskId>> sends, receives;
};

MessageEnds message_ends(const Program& program, const RankClass& cls) {
  MessageEnds ends;
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    const Task& task = cls.tasks[i];
    if (plays(program, task, comm::Role::send)) {
      ends.sends[task.peer_map()].push_back(i);
    } else if (plays(program, task, comm::Role::receive)) {
      ends.receives[task.peer_map()].push_back(i);
    }
  }
  return ends;
}

/// A send, and the task of the peer that receives it (kNone: none does).
struct Message {
  TaskId send = kNone, recv = kNone;
};

/// Clocks and lane positions of a class's tasks.
struct Timing {
  explicit Timing(const RankClass& cls) : at(clocks(cls)), position(lane_positions(cls)) {}
  /// Returns the finished events at the end of the task.
  Clock done(const RankClass& cls, TaskId task) const {
    Clock clock = at[task];
    clock[place_of(cls.tasks[task].lane)] = position[task];
    return clock;
  }
  std::vector<Clock> at;
  std::vector<int32_t> position;
};

/// Returns whether dependencies point backwards: only then are there clocks.
bool is_ordered(const RankClass& cls) {
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    for (TaskId dep : cls.tasks[i].deps) {
      if (dep < 0 || dep >= i) return false;
    }
  }
  return true;
}

/// A rank's knowledge of a peer's progress: per lane, the positions of its receives, and the peer's
/// finished events that each proves.
using PeerProgress = std::array<std::vector<std::pair<int32_t, Clock>>, kNumLanes>;

/// Returns the progress known at `received`, the position of the last receive per lane.
Clock progress_at(const PeerProgress& progress, const Clock& received) {
  Clock known;
  known.fill(-1);
  for (size_t lane = 0; lane < progress.size(); ++lane) {
    const auto after = std::upper_bound(
        progress[lane].begin(), progress[lane].end(), received[lane],
        [](int32_t position, const auto& entry) { return position < entry.first; });
    if (after != progress[lane].begin()) {
      merge(known, std::prev(after)->second);
    }
  }
  return known;
}

/// Accumulates the knowledge: later receives include earlier ones.
void accumulate(PeerProgress* progress) {
  for (auto& list : *progress) {
    std::sort(list.begin(), list.end(),
              [](const auto& left, const auto& right) { return left.first < right.first; });
    for (size_t i = 1; i < list.size(); ++i) {
      merge(list[i].second, list[i - 1].second);
    }
  }
}

/// Upper bound of the messages in flight per class; caches clocks and matched messages.
class InFlight {
 public:
  explicit InFlight(const Program& program) : p_(program), timing_(program.classes.size()) {
    for (const RankClass& cls : program.classes) {
      ends_.push_back(message_ends(program, cls));
    }
  }
  int64_t bound(ClassId cls);

 private:
  std::set<PeerMap> peer_maps_of(ClassId cls) const;
  /// Returns the messages of `rank` among `ends` to or from `peer`, by tag, in issue order.
  std::map<int32_t, std::vector<TaskId>> messages(
      const std::map<PeerMap, std::vector<TaskId>>& ends, int32_t rank, int32_t peer) const;
  /// Messages from one rank to another in the order of their sends: the k-th with a tag is received
  /// by the k-th receive of that tag.
  const std::vector<Message>& match(int32_t from, int32_t to);
  int64_t bound_of(ClassId cls, int32_t rank);
  int64_t bound_to(int32_t rank, int32_t peer, const PeerMap& peer_map);
  PeerProgress progress_of(int32_t rank, int32_t peer, const PeerMap& peer_map);
  template <class Known>
  void add_progress(int32_t from, int32_t to, const Known& known, PeerProgress* progress);
  const Timing* timing(ClassId cls);  ///< null if the class is not ordered

  const Program& p_;
  std::vector<std::unique_ptr<Timing>> timing_;
  std::vector<MessageEnds> ends_;  ///< per class
  std::map<std::pair<int32_t, int32_t>, std::vector<Message>> matched_;
};

const Timing* InFlight::timing(ClassId cls) {
  auto& known = timing_[cls];
  const RankClass& rank_class = p_.classes[cls];
  if (!known && is_ordered(rank_class)) {
    known = std::make_unique<Timing>(rank_class);
  }
  return known.get();
}

/// Returns the peer mappings of messages that the class sends or receives.
std::set<PeerMap> InFlight::peer_maps_of(ClassId cls) const {
  std::set<PeerMap> peer_maps;
  for (const auto* ends : {&ends_[cls].sends, &ends_[cls].receives}) {
    for (const auto& [peer_map, tasks] : *ends) {
      peer_maps.insert(peer_map);
    }
  }
  return peer_maps;
}

std::map<int32_t, std::vector<TaskId>> InFlight::messages(
    const std::map<PeerMap, std::vector<TaskId>>& ends, int32_t rank, int32_t peer) const {
  const RankClass& cls = p_.classes[p_.class_of(rank)];
  std::map<int32_t, std::vector<TaskId>> by_tag;
  int32_t peer_maps = 0;
  for (const auto& [peer_map, tasks] : ends) {
    if (p_.peer_of(peer_map, rank) != peer) continue;
    ++peer_maps;
    for (const TaskId task : tasks) {
      by_tag[cls.tasks[task].tag].push_back(task);
    }
  }
  for (auto& [tag, tasks] : by_tag) {
    if (peer_maps > 1) {
      std::sort(tasks.begin(), tasks.end());
    }
  }
  return by_tag;
}

const std::vector<Message>& InFlight::match(int32_t from, int32_t to) {
  const auto [known, fresh] = matched_.try_emplace({from, to});
  std::vector<Message>& list = known->second;
  if (!fresh) return list;
  auto receives = messages(ends_[p_.class_of(to)].receives, to, from);
  for (const auto& [tag, sends] : messages(ends_[p_.class_of(from)].sends, from, to)) {
    const std::vector<TaskId>& recvs = receives[tag];
    for (size_t k = 0; k < sends.size(); ++k) {
      list.push_back({sends[k], k < recvs.size() ? recvs[k] : kNone});
    }
  }
  std::sort(list.begin(), list.end(),
            [](const Message& left, const Message& right) { return left.send < right.send; });
  return list;
}

int64_t InFlight::bound(ClassId cls) {
  // One rank represents all ranks of a class whose messages match alike: whose peers are of the
  // same classes, coincide or differ in the same way, and lead back to the rank by the same
  // mappings.
  const std::set<PeerMap> peer_maps = peer_maps_of(cls);
  const std::vector<ClassId> table = p_.class_table();
  std::map<ClassId, std::set<PeerMap>> peer_maps_there;
  std::set<std::vector<int32_t>> seen;
  int64_t most = 0;
  for (int32_t rank : p_.ranks_of(cls)) {
    std::vector<int32_t> peers;
    std::vector<int32_t> sort;
    for (const PeerMap& peer_map : peer_maps) {
      const int32_t peer = p_.peer_of(peer_map, rank);
      const ClassId there = table[static_cast<size_t>(peer)];
      const auto before = std::find(peers.begin(), peers.end(), peer);
      sort.push_back(there.value());
      sort.push_back(static_cast<int32_t>(before - peers.begin()));
      peers.push_back(peer);
      const auto [list, fresh] = peer_maps_there.try_emplace(there);
      if (fresh) {
        list->second = peer_maps_of(there);
      }
      for (const PeerMap& back : list->second) {
        sort.push_back(p_.peer_of(back, peer) == rank);
      }
    }
    if (seen.insert(sort).second) {
      most = std::max(most, bound_of(cls, rank));
    }
  }
  return most;
}

int64_t InFlight::bound_of(ClassId cls, int32_t rank) {
  std::map<int32_t, PeerMap> peers;
  std::map<TaskId, PeerMap> first;  // send of every mapping
  for (const auto& [peer_map, tasks] : ends_[cls].sends) {
    first.emplace(tasks.front(), peer_map);
  }
  for (const auto& [task, peer_map] : first) {
    peers.try_emplace(p_.peer_of(peer_map, rank), peer_map);
  }
  int64_t sum = 0;
  for (const auto& [peer, peer_map] : peers) {
    sum += bound_to(rank, peer, peer_map);
  }
  return sum;
}

/// Adds the knowledge that `to` gains from messages of `from`; `known` returns the sender's
/// knowledge at a sending task.
template <class Known>
void InFlight::add_progress(int32_t from, int32_t to, const Known& known, PeerProgress* progress) {
  const ClassId cls = p_.class_of(to);
  const Timing* const time = timing(cls);
  for (const Message& message : match(from, to)) {
    stop_if_asked();
    if (message.recv == kNone) continue;
    const Lane lane = p_.classes[cls].tasks[message.recv].lane;
    (*progress)[place_of(lane)].push_back({time->position[message.recv], known(message.send)});
  }
}

/// Returns what `rank` knows of the progress of `peer`, reached by a mapping: from the peer's
/// messages, and from those forwarded along the same mapping until they return to the rank.
PeerProgress InFlight::progress_of(int32_t rank, int32_t peer, const PeerMap& peer_map) {
  // Forwarded knowledge costs ring length x tasks. Above kMaxSteps only the peer's own messages
  // count, which makes the bound larger than necessary, never too small.
  constexpr int64_t kMaxSteps = 1 << 22;
  const auto done = [&](int32_t from) {
    return [this, cls = p_.class_of(from), time = timing(p_.class_of(from))](TaskId send) {
      return time->done(p_.classes[cls], send);
    };
  };
  PeerProgress progress;
  add_progress(peer, rank, done(peer), &progress);
  std::vector<int32_t> ring{peer};
  while (ring.back() != rank && std::ssize(ring) <= p_.num_ranks()) {
    ring.push_back(p_.peer_of(peer_map, ring.back()));
    if (!timing(p_.class_of(ring.back()))) return progress;
  }
  const int64_t tasks = std::ssize(p_.classes[p_.class_of(rank)].tasks);
  if (ring.size() > 2 && std::ssize(ring) * tasks <= kMaxSteps) {
    PeerProgress forwarded;
    add_progress(ring[0], ring[1], done(peer), &forwarded);
    for (size_t i = 2; i < ring.size(); ++i) {
      accumulate(&forwarded);
      PeerProgress next;
      const Timing* const time = timing(p_.class_of(ring[i - 1]));
      add_progress(
          ring[i - 1], ring[i], [&](TaskId send) { return progress_at(forwarded, time->at[send]); },
          &next);
      forwarded = std::move(next);
    }
    for (size_t lane = 0; lane < progress.size(); ++lane) {
      progress[lane].insert(progress[lane].end(), forwarded[lane].begin(), forwarded[lane].end());
    }
  }
  accumulate(&progress);
  return progress;
}

int64_t InFlight::bound_to(int32_t rank, int32_t peer, const PeerMap& peer_map) {
  // A send does not wait for its receiver, so the messages in flight are bounded by the sender's
  // other waits. A task after a message from the peer knows which messages the peer had received
  // when it sent that. The sends of a lane start in order. When one starts, all earlier ones may
  // still be held, except those with a receive that is known to have ended. It is known from the
  // peer's own messages and from those forwarded around a ring.
  const ClassId here = p_.class_of(rank);
  const ClassId there = p_.class_of(peer);
  const RankClass& mine = p_.classes[here];
  const RankClass& theirs = p_.classes[there];
  const Timing* my_time = timing(here);
  const Timing* their_time = timing(there);
  const PeerProgress progress =
      my_time && their_time ? progress_of(rank, peer, peer_map) : PeerProgress();
  const auto known_at = [&](TaskId task) {
    Clock nothing;
    nothing.fill(-1);
    return my_time ? progress_at(progress, my_time->at[task]) : nothing;
  };

  // Messages of one of this rank's lanes that may still be held, by the lane and position of their
  // receive; the first is the next to be known as ended.
  using Held = std::pair<int32_t, int64_t>;  // position, bytes
  struct Queue {
    std::array<std::priority_queue<Held, std::vector<Held>, std::greater<>>, kNumLanes> held;
    int64_t bytes = 0, most = 0;
  };
  std::array<Queue, kNumLanes> queues;
  for (const Message& message : match(rank, peer)) {
    stop_if_asked();
    const Task& send = mine.tasks[message.send];
    Queue& queue = queues[place_of(send.lane)];
    const Clock known = known_at(message.send);
    for (size_t lane = 0; lane < kNumLanes; ++lane) {
      auto& held = queue.held[lane];
      while (!held.empty() && held.top().first <= known[lane]) {
        queue.bytes -= held.top().second;
        held.pop();
      }
    }
    int64_t bytes = 0;
    for (const TensorType& type : p_.kind(send).in) {
      bytes += type.bytes();
    }
    if (message.recv != kNone && their_time) {
      const size_t lane = place_of(theirs.tasks[message.recv].lane);
      queue.held[lane].push({their_time->position[message.recv], bytes});
    }  // else it is never known to end
    queue.bytes += bytes;
    queue.most = std::max(queue.most, queue.bytes);
  }
  int64_t sum = 0;
  for (const Queue& queue : queues) {
    sum += queue.most;
  }
  return sum;
}

/// Memory of the transport for collectives, as copies of operands or messages: each lane reserves
/// that of its largest collective, since they run one after the other.
int64_t transport_bytes(const Program& program, const RankClass& cls) {
  constexpr int64_t kMaxWorkspace = INT64_MAX / 64;  // more than any has: lanes can be added up
  std::array<int64_t, kNumLanes> most{};
  for (const Task& task : cls.tasks) {
    const Kind& kind = program.kind(task);
    if (is_communication(kind)) {
      int64_t& of_lane = most[place_of(task.lane)];
      of_lane = std::max(of_lane, std::min(kind.workspace, kMaxWorkspace));
    }
  }
  return std::accumulate(most.begin(), most.end(), int64_t{0});
}

}  // namespace

int64_t addresses_of(const RankClass& cls) {
  constexpr int64_t kTooMany = kMaxAddresses + 1;
  int64_t sum = 0;
  const auto add = [&](int64_t bytes) {
    sum = bytes < 0 ? kTooMany : std::min(kTooMany, sum + std::min(bytes, kTooMany));
  };
  for (const Buffer& buffer : cls.buffers) {
    if (buffer.kind != BufferKind::step && buffer.kind != BufferKind::view) {
      add(buffer.type.bytes());
    }
  }
  add(cls.arena_bytes);
  add(cls.host_arena_bytes);
  return sum;
}

std::vector<Memory> memory_of(const Program& program, Kernels kernels) {
  InFlight in_flight(program);
  std::vector<Memory> list;
  for (size_t c = 0; c < program.classes.size(); ++c) {
    const RankClass& cls = program.classes[c];
    Memory memory;
    for (const Buffer& buffer : cls.buffers) {
      // Named buffers have mappings of their own.
      if (buffer.kind == BufferKind::step || buffer.kind == BufferKind::view) continue;
      const int64_t bytes = whole_pages(buffer.type.bytes());
      if (buffer.space == Space::host) {
        memory.host += bytes;
      } else if (buffer.kind == BufferKind::persistent) {
        memory.persistent += bytes;
      } else {
        memory.inputs_outputs += bytes;
      }
    }
    memory.step_buffers = total_bytes(planned_pages(program, c, Space::device, kernels));
    memory.host += total_bytes(planned_pages(program, c, Space::host));
    memory.messages = in_flight.bound(c) + transport_bytes(program, cls);
    memory.reserved = cls.arena_bytes;
    list.push_back(memory);
  }
  return list;
}

std::vector<Memory> memory_of(const Program& program, std::span<const int64_t> values) {
  Program in_step = program;
  for (RankClass& cls : in_step.classes) {
    for (Buffer& buffer : cls.buffers) {
      buffer.type = buffer.type.at(values);
    }
  }
  return memory_of(in_step);
}

namespace {

/// Returns, by class of `program`, the classes of `other` that its ranks are of.
std::vector<std::set<int32_t>> classes_there(const Program& program, const Program& other) {
  const std::vector<ClassId> table = other.class_table();
  std::vector<std::set<int32_t>> list(program.classes.size());
  for (size_t cls = 0; cls < list.size(); ++cls) {
    for (const int32_t rank : program.ranks_of(cls)) {
      const bool known = std::cmp_less(rank, table.size());
      if (known && table[static_cast<size_t>(rank)] != kNone) {
        list[cls].insert(table[static_cast<size_t>(rank)].value());
      }
    }
  }
  return list;
}

}  // namespace

namespace {

/// Returns the same as memory_beyond(). For programs without a common store, persistent tensors of
/// `other` are added regardless of their names.
std::vector<int64_t> beyond(const Program& program, const Program& other, Space space,
                            bool share_store, Kernels kernels) {
  // Step buffers by page, as the two have other gaps; inputs, outputs and messages by size, as they
  // lie close together; named tensors by name. The two may cut the ranks into other classes: of
  // each class that its ranks have in the other program, and the largest.
  const auto positive = [](int64_t bytes, int64_t there) {
    return std::max<int64_t>(0, bytes - there);
  };
  const auto inputs_outputs = [&](const RankClass& cls) {
    int64_t bytes = 0;
    for (const Buffer& buffer : cls.buffers) {
      const bool of_host = buffer.kind == BufferKind::input || buffer.kind == BufferKind::output;
      if (of_host && buffer.space == space) {
        bytes += whole_pages(buffer.type.bytes());
      }
    }
    return bytes;
  };
  const std::vector<Memory> has = memory_of(program);
  const std::vector<Memory> needs = memory_of(other);
  const auto beyond_class = [&](ClassId mine, ClassId theirs) {
    int64_t bytes =
        total_bytes(without(planned_pages(other, theirs, space, kernels),
                            planned_pages(program, mine, space, kernels))) +
        positive(inputs_outputs(other.classes[theirs]), inputs_outputs(program.classes[mine]));
    if (space == Space::device) {
      bytes += positive(needs[theirs].messages, has[mine].messages);
    }
    std::set<std::string_view> named;
    for (const Buffer& buffer : program.classes[mine].buffers) {
      if (share_store && buffer.kind == BufferKind::persistent) {
        named.insert(buffer.name);
      }
    }
    for (const Buffer& buffer : other.classes[theirs].buffers) {
      if (buffer.kind == BufferKind::persistent && buffer.space == space &&
          !named.contains(buffer.name)) {
        bytes += whole_pages(buffer.type.bytes());
      }
    }
    return bytes;
  };
  const std::vector<std::set<int32_t>> there = classes_there(program, other);
  std::vector<int64_t> list(program.classes.size(), 0);
  for (size_t cls = 0; cls < list.size(); ++cls) {
    for (const int32_t theirs : there[cls]) {
      list[cls] = std::max(list[cls], beyond_class(cls, theirs));
    }
  }
  return list;
}

}  // namespace

std::vector<int64_t> memory_beyond(const Program& program, const Program& other, Space space) {
  return beyond(program, other, space, true, Kernels::on_copies);
}

std::vector<Memory> memory_with(const Program& program, const Program* evaluation,
                                Kernels kernels) {
  std::vector<Memory> list = memory_of(program, kernels);
  if (evaluation == nullptr) return list;
  const bool share_store = held_otherwise(program, *evaluation).empty();
  const std::vector<int64_t> in_device =
      beyond(program, *evaluation, Space::device, share_store, kernels);
  const std::vector<int64_t> in_host =
      beyond(program, *evaluation, Space::host, share_store, kernels);
  for (size_t cls = 0; cls < list.size(); ++cls) {
    list[cls].evaluation = in_device[cls];
    list[cls].host += in_host[cls];
  }
  return list;
}

bool is_planned(const Program& program) {
  for (const RankClass& cls : program.classes) {
    for (const Task& task : cls.tasks) {
      for (const auto* operands : {&task.in, &task.out}) {
        for (BufferId id : *operands) {
          const Buffer& buffer = cls.buffers[cls.root(id)];
          if (buffer.kind == BufferKind::step && buffer.offset == kNone) return false;
        }
      }
    }
  }
  return true;
}

}  // namespace hocket::program
