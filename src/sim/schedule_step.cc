// SPDX-License-Identifier: Apache-2.0
#include "sim/schedule_step.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/id.h"

namespace hocket::sim {

namespace {

using parallel::Action;
using parallel::Schedule;

/// Cells and messages of a schedule as a graph. A node begins when all nodes before it have ended.
class StepGraph {
 public:
  StepGraph(const Schedule& schedule, int stages, int micro_batches, const CellTimes& times)
      : stages_(stages),
        micro_batches_(micro_batches),
        rank_of_(static_cast<size_t>(int64_t{2} * stages * micro_batches), kNone),
        message_of_(rank_of_.size(), NodeId(kNone)) {
    int rank = 0;
    for (const std::vector<Action>& row : schedule.ranks) {
      for (const Action& action : row) {
        if (action.kind != 'W') {
          rank_of_[pass(action.kind == 'F', action.stage, action.micro_batch)] = rank;
        }
      }
      ++rank;
    }
    rank = 0;
    for (const std::vector<Action>& row : schedule.ranks) {
      add_row(row, rank, times);
      ++rank;
    }
  }

  /// Returns the end of the last node. Consumes the graph: call it once.
  double longest_path() {
    std::vector<NodeId> ready;
    for (NodeId node = 0; node < std::ssize(nodes_); ++node) {
      if (nodes_[node].waits == 0) {
        ready.push_back(node);
      }
    }
    double end = 0;
    while (!ready.empty()) {
      const Node& node = nodes_[ready.back()];
      ready.pop_back();
      const double here = node.begin + node.time;
      end = std::max(end, here);
      for (size_t i = 0; i < node.num_next; ++i) {
        const NodeId next = node.next[i];
        Node& after = nodes_[next];
        after.begin = std::max(after.begin, here);
        if (--after.waits == 0) {
          ready.push_back(next);
        }
      }
    }
    return end;
  }

 private:
  using NodeId = Id<struct StepNode>;
  /// A forward or backward pass of a stage on a micro-batch.
  using PassId = Id<struct SchedulePass>;

  struct Node {
    double time = 0, begin = 0;
    int waits = 0;  ///< nodes before it that have not ended
    size_t num_next = 0;
    /// A cell is followed by the next one and at most two sends, a message by its reader and its
    /// sender's next message.
    std::array<NodeId, 3> next{};
  };

  PassId pass(bool forward, int stage, int micro_batch) const {
    return (stage + (forward ? 0 : stages_)) * micro_batches_ + micro_batch;
  }

  NodeId add_node(double time) {
    nodes_.push_back({.time = time});
    return nodes_.size() - 1;
  }

  /// Lets a node wait for an earlier one, if there is one.
  void follow(NodeId node, NodeId earlier) {
    if (earlier == kNone) return;
    Node& before = nodes_[earlier];
    before.next[before.num_next++] = node;
    ++nodes_[node].waits;
  }

  void add_row(const std::vector<Action>& row, int rank, const CellTimes& times) {
    NodeId cell = kNone, sent = kNone;
    for (size_t i = 0; i < row.size();) {
      const size_t count = row[i].overlaps_next ? 2 : 1;
      const std::span<const Action> actions(&row[i], count);
      i += count;
      const NodeId node = add_node(times.cell(rank, actions));
      follow(node, cell);
      cell = node;
      for (const Action& action : actions) {
        const NodeId message = message_at(action, rank, false, times);
        follow(cell, message);
      }
      for (const Action& action : actions) {
        const NodeId message = message_at(action, rank, true, times);
        if (message == kNone) continue;
        follow(message, cell);
        follow(message, sent);
        sent = message;
      }
    }
  }

  /// Returns the node of the message with the action's output (`sends`) or input. kNone: none,
  /// since the other stage is on this rank or does not exist. The first of the two calls makes it.
  NodeId message_at(const Action& action, int rank, bool sends, const CellTimes& times) {
    if (action.kind == 'W') return kNone;
    const bool forward = action.kind == 'F';
    const int other = forward == sends ? action.stage + 1 : action.stage - 1;
    if (other < 0 || other >= stages_) return kNone;
    const int peer = rank_of_[pass(forward, other, action.micro_batch)];
    if (peer == rank) return kNone;
    const int reader = sends ? other : action.stage;
    NodeId& message = message_of_[pass(forward, reader, action.micro_batch)];
    if (message == kNone) {
      message = add_node(sends ? times.message(rank, peer) : times.message(peer, rank));
    }
    return message;
  }

  const int stages_, micro_batches_;
  std::vector<int> rank_of_;        // by PassId
  std::vector<NodeId> message_of_;  // that a pass reads, by PassId
  std::vector<Node> nodes_;
};

}  // namespace

double schedule_step(const Schedule& schedule, int stages, int micro_batches,
                     const CellTimes& times) {
  return StepGraph(schedule, stages, micro_batches, times).longest_path();
}

}  // namespace hocket::sim
