// SPDX-License-Identifier: Apache-2.0
#include "sim/schedule_step.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

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
        rank_of_(2 * static_cast<size_t>(stages) * static_cast<size_t>(micro_batches), -1),
        message_of_(rank_of_.size(), -1) {
    for (int rank = 0; rank < std::ssize(schedule.ranks); ++rank) {
      for (const Action& action : schedule.ranks[static_cast<size_t>(rank)]) {
        if (action.kind != 'W') {
          rank_of_[index(action.kind == 'F', action.stage, action.micro_batch)] = rank;
        }
      }
    }
    for (int rank = 0; rank < std::ssize(schedule.ranks); ++rank) {
      add_row(schedule.ranks[static_cast<size_t>(rank)], rank, times);
    }
  }

  /// Returns the end of the last node. Consumes the graph: call it once.
  double longest_path() {
    std::vector<int> ready;
    for (int node = 0; node < std::ssize(nodes_); ++node) {
      if (nodes_[static_cast<size_t>(node)].waits == 0) {
        ready.push_back(node);
      }
    }
    double end = 0;
    while (!ready.empty()) {
      const Node& node = nodes_[static_cast<size_t>(ready.back())];
      ready.pop_back();
      const double here = node.begin + node.time;
      end = std::max(end, here);
      for (int i = 0; i < node.num_next; ++i) {
        const int next = node.next[static_cast<size_t>(i)];
        Node& after = nodes_[static_cast<size_t>(next)];
        after.begin = std::max(after.begin, here);
        if (--after.waits == 0) {
          ready.push_back(next);
        }
      }
    }
    return end;
  }

 private:
  struct Node {
    double time = 0, begin = 0;
    int waits = 0;  ///< nodes before it that have not ended
    int num_next = 0;
    /// A cell is followed by the next one and at most two sends, a message by its reader and its
    /// sender's next message.
    std::array<int, 3> next{};
  };

  size_t index(bool forward, int stage, int micro_batch) const {
    return static_cast<size_t>((stage + (forward ? 0 : stages_)) * micro_batches_ + micro_batch);
  }

  int add_node(double time) {
    nodes_.push_back({.time = time});
    return static_cast<int>(nodes_.size()) - 1;
  }

  /// Lets a node wait for an earlier one, if there is one.
  void follow(int node, int earlier) {
    if (earlier < 0) return;
    Node& before = nodes_[static_cast<size_t>(earlier)];
    before.next[static_cast<size_t>(before.num_next++)] = node;
    ++nodes_[static_cast<size_t>(node)].waits;
  }

  void add_row(const std::vector<Action>& row, int rank, const CellTimes& times) {
    int cell = -1, sent = -1;
    for (size_t i = 0; i < row.size();) {
      const size_t count = row[i].overlaps_next ? 2 : 1;
      const std::span<const Action> actions(&row[i], count);
      i += count;
      const int node = add_node(times.cell(rank, actions));
      follow(node, cell);
      cell = node;
      for (const Action& action : actions) {
        const int message = message_at(action, rank, false, times);
        if (message < 0) continue;
        follow(cell, message);
      }
      for (const Action& action : actions) {
        const int message = message_at(action, rank, true, times);
        if (message < 0) continue;
        follow(message, cell);
        follow(message, sent);
        sent = message;
      }
    }
  }

  /// Returns the node of the message with the action's output (`sends`) or input. -1: none, since
  /// the other stage is on this rank or does not exist. The first of the two calls makes it.
  int message_at(const Action& action, int rank, bool sends, const CellTimes& times) {
    if (action.kind == 'W') return -1;
    const bool forward = action.kind == 'F';
    const int other = forward == sends ? action.stage + 1 : action.stage - 1;
    if (other < 0 || other >= stages_) return -1;
    const int peer = rank_of_[index(forward, other, action.micro_batch)];
    if (peer == rank) return -1;
    const int reader = sends ? other : action.stage;
    int& message = message_of_[index(forward, reader, action.micro_batch)];
    if (message < 0) {
      message = add_node(sends ? times.message(rank, peer) : times.message(peer, rank));
    }
    return message;
  }

  const int stages_, micro_batches_;
  std::vector<int> rank_of_;     // of a pass, by index()
  std::vector<int> message_of_;  // node of the message that a pass reads, by index()
  std::vector<Node> nodes_;
};

}  // namespace

double schedule_step(const Schedule& schedule, int stages, int micro_batches,
                     const CellTimes& times) {
  return StepGraph(schedule, stages, micro_batches, times).longest_path();
}

}  // namespace hocket::sim
