// SPDX-License-Identifier: Apache-2.0
// Implements: copy_parameters (params.h), from one program's store to another's.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/intervals.h"
#include "engine/params.h"
#include "engine/placement.h"

namespace hocket::engine {

namespace {

/// Returns every rank's elements of a tensor, in local order.
std::vector<std::vector<Held>> held_by_rank(const graph::Tensor& tensor,
                                            const Placement& placement) {
  const program::Program& program = placement.program();
  std::vector<std::vector<Held>> by_rank(static_cast<size_t>(program.num_ranks()));
  for_each_held(tensor, program, placement.holders(tensor.name),
                [&](const Held& held) { by_rank[static_cast<size_t>(held.rank)].push_back(held); });
  for (std::vector<Held>& held : by_rank) {
    std::sort(held.begin(), held.end(),
              [](const Held& one, const Held& other) { return one.begin < other.begin; });
  }
  return by_rank;
}

/// The ranks in the order in which a rank asks them: itself, those of its node, the others, each
/// time those behind it first, so that not all ask the same one.
std::vector<int32_t> asked_by(int32_t rank, const program::Program& program) {
  const int32_t ranks = program.num_ranks();
  const auto node = [&](int32_t of) {
    return program.ranks_per_node > 0 ? of / program.ranks_per_node : 0;
  };
  std::vector<int32_t> order;
  for (int32_t i = 0; i < ranks; ++i) {
    order.push_back((rank + i) % ranks);
  }
  std::stable_partition(order.begin(), order.end(),
                        [&](int32_t other) { return node(other) == node(rank); });
  return order;
}

/// Bytes here and there in memory, one after the other.
class Spans {
 public:
  void add(std::byte* data, int64_t bytes) { list_.push_back({data, bytes}); }
  /// Calls `use(data, bytes)` for the next pieces, up to a limit.
  template <class Use>
  void take(int64_t most, const Use& use) {
    while (most > 0 && next_ < list_.size()) {
      Span& span = list_[next_];
      const int64_t bytes = std::min(most, span.bytes);
      use(span.data, static_cast<size_t>(bytes));
      most -= bytes;
      span.data += bytes;
      span.bytes -= bytes;
      next_ += span.bytes == 0 ? 1 : 0;
    }
  }
  void clear() {
    list_.clear();
    next_ = 0;
  }

 private:
  struct Span {
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  std::vector<Span> list_;
  size_t next_ = 0;
};

/// Copies of tensors: directly between local ranks, otherwise by messages, which must be flushed.
/// Every process enumerates all copies, so both ends of a message agree.
class TensorCopies {
 public:
  TensorCopies(const program::Program& from, const runtime::Store& from_store,
               const program::Program& to, const runtime::Store& to_store, int64_t max_in_flight)
      : from_(from),
        to_(to),
        from_store_(from_store),
        to_store_(to_store),
        had_(from, program::BufferKind::persistent),
        wanted_(to, program::BufferKind::persistent),
        max_in_flight_(max_in_flight),
        processes_(static_cast<size_t>(from_store.ranks().processes().size())),
        given_(processes_),
        taken_(processes_) {}

  void add(const graph::Tensor& tensor) {
    const std::vector<std::vector<Held>> had = held_by_rank(tensor, had_);
    const std::vector<std::vector<Held>> wanted = held_by_rank(tensor, wanted_);
    for (size_t rank = 0; rank < wanted.size(); ++rank) {
      const auto taker = static_cast<int32_t>(rank);
      if (wanted[rank].empty()) continue;
      const std::vector<int32_t> asked = asked_by(taker, from_);
      for (const Held& piece : wanted[rank]) {
        take(tensor, had, asked, taker, piece);
      }
    }
  }

  /// Completes the added copies: a part of every message at a time, so that all links are busy with
  /// little in flight. With ranks as processes all call it.
  void flush() {
    if (processes_ == 1) return;
    const int64_t part = std::max<int64_t>(1, max_in_flight_ / std::ssize(given_));
    int64_t most = 0;
    for (const auto& [pair, bytes] : between_) {
      most = std::max(most, bytes);
    }
    for (int64_t done = 0; done < most; done += part) {
      exchange(part);
    }
    for (size_t process = 0; process < processes_; ++process) {
      given_[process].clear();
      taken_[process].clear();
    }
    between_.clear();
  }

 private:
  /// Returns the device of the local ranks, which share one kind.
  runtime::Device& device() const { return to_store_.at(to_store_.ranks().ids().front()).device(); }

  void exchange(int64_t part) {
    std::vector<std::string> given(processes_);
    for (size_t to = 0; to < processes_; ++to) {
      given_[to].take(part, [&](const std::byte* data, size_t bytes) {
        const size_t at = given[to].size();
        given[to].resize(at + bytes);
        device().copy(given[to].data() + at, data, static_cast<int64_t>(bytes));
      });
    }
    const std::vector<std::string> came =
        from_store_.ranks().processes().exchange(std::move(given));
    for (size_t from = 0; from < processes_; ++from) {
      size_t at = 0;
      taken_[from].take(part, [&](std::byte* data, size_t bytes) {
        HOCKET_CHECK(at + bytes <= came[from].size(), "rank {} gives too little", from);
        device().copy(data, came[from].data() + at, static_cast<int64_t>(bytes));
        at += bytes;
      });
    }
  }

  /// Takes a piece, of which each giving rank provides the part that earlier ones lack.
  void take(const graph::Tensor& tensor, const std::vector<std::vector<Held>>& had,
            const std::vector<int32_t>& asked, int32_t taker, const Held& piece) {
    const int64_t end = piece.begin + piece.count;
    Intervals seen;
    int64_t missing = piece.count;
    for (const int32_t giver : asked) {
      if (missing == 0) return;
      const std::vector<Held>& has = had[static_cast<size_t>(giver)];
      auto next = std::upper_bound(
          has.begin(), has.end(), piece.begin,
          [](int64_t begin, const Held& held) { return begin < held.begin + held.count; });
      for (; next != has.end() && next->begin < end; ++next) {
        const int64_t begin = std::max(piece.begin, next->begin);
        const int64_t count = std::min(end, next->begin + next->count) - begin;
        seen.add(begin, count, [&](int64_t at, int64_t length) {
          missing -= length;
          move(tensor.type, {giver, next->buffer, at, length, next->local + at - next->begin},
               {taker, piece.buffer, at, length, piece.local + at - piece.begin});
        });
      }
    }
    if (missing == 0) return;
    fail_run("params", "{} of {} elements of {} that rank {} needs are on no rank", missing,
             piece.count, tensor.name, taker);
  }

  void move(const graph::TensorType& type, const Held& from, const Held& to) {
    // A process has one rank, of its own number, or all.
    const int32_t giver = from.rank, taker = to.rank;
    const int64_t bytes = type.bytes_of(to.count);
    const bool gives = from_store_.ranks().has(giver);
    const bool takes = to_store_.ranks().has(taker);
    std::byte* source = nullptr;
    std::byte* into = nullptr;
    if (gives) {
      const auto& entries = from_store_.at(giver).entries();
      source = entries.at(from.buffer->name).data + type.bytes_of(from.local);
    }
    if (takes) {
      auto& entry = to_store_.at(taker).get(*to.buffer, to_);
      entry.initialised = true;
      into = entry.data + type.bytes_of(to.local);
    }
    if (gives && takes) {
      device().copy(into, source, bytes);
      return;
    }
    if (giver != taker) {
      between_[{giver, taker}] += bytes;
    }
    if (gives) {
      given_[static_cast<size_t>(taker)].add(source, bytes);
    } else if (takes) {
      taken_[static_cast<size_t>(giver)].add(into, bytes);
    }
  }

  const program::Program& from_;
  const program::Program& to_;
  const runtime::Store& from_store_;
  const runtime::Store& to_store_;
  const Placement had_, wanted_;
  const int64_t max_in_flight_;
  const size_t processes_;
  std::vector<Spans> given_, taken_;                        ///< by process
  std::map<std::pair<int32_t, int32_t>, int64_t> between_;  ///< bytes from rank to rank
};

}  // namespace

void copy_parameters(const graph::Graph& graph, const program::Program& from,
                     const runtime::Store& from_store, const program::Program& to,
                     const runtime::Store& to_store, int64_t max_in_flight) {
  TensorCopies copies(from, from_store, to, to_store, max_in_flight);
  int64_t bytes = 0;
  for (const graph::Tensor& tensor : graph.tensors) {
    if (tensor.kind != graph::TensorKind::param) continue;
    copies.add(tensor);
    bytes += tensor.type.bytes();
    if (bytes >= max_in_flight) {
      copies.flush();
      bytes = 0;
    }
  }
  copies.flush();
}

}  // namespace hocket::engine
