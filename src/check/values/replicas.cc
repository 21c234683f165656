// SPDX-License-Identifier: Apache-2.0
#include "check/values/replicas.h"

#include <fmt/format.h>

#include <algorithm>

#include "program/buffer_contents.h"

namespace hocket::check {

namespace {

/// Returns the first run that is in both of two ascending lists of runs; an empty one if none is.
graph::Run first_common(const std::vector<graph::Run>& left, const std::vector<graph::Run>& right) {
  for (size_t i = 0, j = 0; i < left.size() && j < right.size();) {
    const int64_t ends[] = {left[i].begin + left[i].length, right[j].begin + right[j].length};
    const int64_t begin = std::max(left[i].begin, right[j].begin);
    const int64_t end = std::min(ends[0], ends[1]);
    if (begin < end) return {begin, end - begin};
    if (ends[0] < ends[1]) {
      ++i;
    } else {
      ++j;
    }
  }
  return {};
}

}  // namespace

void Replicas::add(TaskRef at, BufferId buffer, const Value& value) {
  const program::Buffer& named = m_.ctx.program.classes[at.cls].buffers[buffer];
  if (m_.codec_marks.none()) return;
  Value unmarked = value;
  for (const CodecMark& mark : m_.codec_marks[m_.algebra.take_marks(&unmarked)].list) {
    Lost& lost = lost_[mark.codec];
    lost.values.insert(mark.term);
    lost.buffers.insert(named.name);
    if (losses_.size() == kMaxListedLosses) continue;
    const CodecLoss loss{named.name, mark.codec, m_.text.describe(mark.term)};
    if (std::find(losses_.begin(), losses_.end(), loss) == losses_.end()) {
      losses_.push_back(loss);
    }
  }
  if (named.kind != program::BufferKind::persistent) return;
  for (const std::string& name : program::tensors_of(named.name, named.slots)) {
    copies_[m_.ref.find(name)].push_back({at, buffer, value});
    copies_[m_.ref.find(name)].back().value.marks = m_.codec_marks.settled(value.marks);
  }
}

std::vector<CodecUse> Replicas::codec_uses() const {
  std::vector<CodecUse> list;
  for (const auto& [codec, lost] : lost_) {
    list.push_back({codec, std::ssize(lost.values), std::ssize(lost.buffers)});
  }
  return list;
}

/// Adds the states in which a rank keeps a tensor in one buffer to `states`.
void Replicas::add_states(const graph::Tensor& tensor, const Copy& copy, int32_t rank,
                          std::vector<State>* states) {
  const graph::Coords coords = m_.ctx.coords_of(rank);
  const auto hold = [&](MarkId all, int64_t begin, int64_t length) {
    const MarkId marks = m_.codec_marks.at(all, coords);
    graph::Coords at{};
    for (size_t axis = 0; axis < coords.size(); ++axis) {
      if (m_.codec_marks[marks].apart & graph::axis_bit(static_cast<int32_t>(axis))) {
        at[axis] = coords[axis];
      }
    }
    const auto same = std::find_if(states->begin(), states->end(), [&](const State& known) {
      return known.marks == marks && known.at == at;
    });
    State& known = same == states->end() ? states->emplace_back(State{marks, at}) : *same;
    known.held.push_back({begin, length});
  };
  const auto hold_run = [&](int64_t begin, int64_t count, int64_t local) {
    if (!m_.algebra.is_pack(copy.value)) return hold(copy.value.marks, begin, count);
    const PackId id = m_.algebra.pack_of(copy.value);
    for (const PackRun& run : slice(m_.packs.at(id, coords), local, count)) {
      const bool zero = run.component == kNone;
      hold(zero ? 0 : m_.packs[id].components[run.component].marks, begin, run.length);
      begin += run.length;
    }
  };
  program::for_each_run(m_.ctx.program.classes[copy.at.cls].buffers[copy.buffer], tensor.name,
                        tensor.type, m_.ctx.program, rank, hold_run);
  for (State& state : *states) {
    state.held = graph::united(std::move(state.held));
  }
}

/// Returns the first rank that keeps an element of the tensor in this state, and the last writer.
std::pair<TaskRef, int32_t> Replicas::holder_of(int32_t tensor, const State& state,
                                                int64_t element) {
  for (const Copy& copy : copies_.at(tensor)) {
    for (int32_t rank : m_.ctx.program.ranks_of(copy.at.cls)) {
      std::vector<State> states;
      add_states(m_.ref.graph().tensor(tensor), copy, rank, &states);
      for (const State& here : states) {
        const bool same = here.marks == state.marks && here.at == state.at;
        if (same && first_common(here.held, {{element, 1}}).length > 0) return {copy.at, rank};
      }
    }
  }
  return {};
}

/// Refuses a tensor with elements, `both`, that are kept in two states.
void Replicas::refuse(int32_t tensor, const State& one, const State& other,
                      const graph::Run& both) {
  const graph::Tensor& info = m_.ref.graph().tensor(tensor);
  const auto [first, rank] = holder_of(tensor, one, both.begin);
  const auto [second, other_rank] = holder_of(tensor, other, both.begin);
  const std::string where =
      fmt::format("element {} of {} is on {}, and on {}", both.begin, info.type.numel(),
                  m_.text.rank_text(first.cls, m_.ctx.coords_of(rank)),
                  m_.text.rank_text(second.cls, m_.ctx.coords_of(other_rank)));
  if (m_.codec_marks[one.marks].list == m_.codec_marks[other.marks].list) {
    m_.ctx.report("replicas-differ", ProblemClass::value, second, {first},
                  fmt::format("{} keeps '{}': each rank has its own part exactly, and the parts of "
                              "others as a codec left them",
                              m_.ctx.name(second), info.name),
                  "let every rank use the decoded value of its own part, too", where);
    return;
  }
  const bool sets = m_.codec_marks.equal_losses(one.marks, other.marks);
  m_.ctx.report("replicas-differ", ProblemClass::value, second, {first},
                fmt::format("{} keeps '{}' {}, but {} keeps it {}", m_.ctx.name(second), info.name,
                            m_.text.marks_text(other.marks, sets), m_.ctx.name(first),
                            m_.text.marks_text(one.marks, sets)),
                "let all ranks that keep it use decoded values, or none of them", where);
}

void Replicas::judge() {
  // All ranks that keep an element must keep the same value. They differ if codecs lost different
  // things of it, or if each rank holds another part of it exactly.
  for (const auto& [tensor, copies] : copies_) {
    const MarkId first = copies[0].value.marks;
    const bool same = std::all_of(copies.begin(), copies.end(), [&](const Copy& copy) {
      return !m_.algebra.is_pack(copy.value) && copy.value.marks == first;
    });
    if (same && m_.codec_marks[first].apart == 0 && m_.codec_marks.axes(first) == 0) continue;
    const graph::Tensor& info = m_.ref.graph().tensor(tensor);
    std::vector<State> states;
    for (const Copy& copy : copies) {
      for (int32_t rank : m_.ctx.program.ranks_of(copy.at.cls)) {
        add_states(info, copy, rank, &states);
      }
    }
    graph::Run both;
    for (size_t i = 0; i < states.size() && both.length == 0; ++i) {
      for (size_t j = 0; j < i && both.length == 0; ++j) {
        both = first_common(states[j].held, states[i].held);
        if (both.length > 0) {
          refuse(tensor, states[j], states[i], both);
        }
      }
    }
  }
}

}  // namespace hocket::check
