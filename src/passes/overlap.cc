// SPDX-License-Identifier: Apache-2.0
// overlap: which communication runs beside compute (MegaScale, Jiang et al., arXiv 2402.15627,
// §3.2; keys as in Megatron-LM).
// - All communication does, as far as data allow. A key that is false makes its kind wait for the
//   compute before it, and the compute behind it wait for it.
// - Gathers of parameters go before gradient reductions that begin at the same place.
// - With delay_wgrad_compute, the gradients of a stage's last weights come behind the last
//   communication of its backward pass.
// - The optimizer takes gradients in the order in which their reductions end.
#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "base/stop.h"
#include "passes/pass.h"

namespace hocket::passes {

using program::BufferId;
using program::BufferKind;
using program::kNone;
using program::Lane;
using program::Phase;
using program::Program;
using program::RankClass;
using program::Task;
using program::TaskId;

namespace {

struct OverlapOptions {
  bool overlap_p2p_comm = true, overlap_grad_reduce = true, overlap_param_gather = true;
  bool delay_wgrad_compute = false;
  void fields(Fields& visit) {
    visit("overlap_p2p_comm", overlap_p2p_comm,
          "send messages between pipeline stages beside compute, and ask for them ahead; false: "
          "the compute lane stands still for each");
    visit("overlap_grad_reduce", overlap_grad_reduce,
          "begin gradient all-reduces in the backward pass; false: after it");
    visit("overlap_param_gather", overlap_param_gather,
          "gather split parameters (plan.shard.params) ahead, beside compute; false: the compute "
          "lane stands still for each");
    visit("delay_wgrad_compute", delay_wgrad_compute,
          "compute the weight gradients of a stage's last layer beside the message or collective "
          "that ends its backward pass, not before it");
  }
};

class Ordering {
 public:
  /// `stages`: by class.
  Ordering(Program& program, program::ClassId cls, const OverlapOptions& options,
           const std::vector<std::vector<int32_t>>& stages)
      : program_(program),
        id_(cls),
        cls_(program.classes[cls]),
        options_(options),
        stages_(stages) {}

  void run() {
    gathers_before_sums();
    if (options_.delay_wgrad_compute) {
      delay_weight_gradients();
    }
    if (!options_.overlap_grad_reduce) {
      sum_behind_backward();
    }
    optimizer_takes_what_comes();
    for (size_t i = 0; i < cls_.tasks.size(); ++i) {
      const bool blocks = (!options_.overlap_p2p_comm && joins_stages(cls_.tasks[i])) ||
                          (!options_.overlap_param_gather && gathers_parameter(cls_.tasks[i]));
      if (blocks) {
        block(i);
      }
    }
  }

 private:
  /// Returns whether a task is a forward or backward message to another stage.
  bool joins_stages(const Task& task) const {
    if (task.peer_axis == kNone || task.phase == Phase::grad || task.phase == Phase::optimizer) {
      return false;
    }
    const std::vector<program::ClassId> peers = program_.peer_classes(id_, task.peer_map());
    return std::any_of(peers.begin(), peers.end(), [&](program::ClassId peer) {
      return stages_[peer.value()] != stages_[id_.value()];
    });
  }

  bool gathers_parameter(const Task& task) const {
    return program::is_collective(program_.kind(task)) && task.in.size() == 1 &&
           cls_.buffers[cls_.root(task.in[0])].kind == BufferKind::persistent &&
           task.phase != Phase::optimizer;
  }

  /// Makes a communication blocking: it begins after the compute before it in the list, and later
  /// tasks wait for it.
  void block(size_t place) {
    std::vector<Task>& tasks = cls_.tasks;
    for (size_t i = place; i-- > 0;) {
      if (tasks[i].lane != Lane::compute) continue;
      tasks[place].deps.push_back(TaskId(i));
      break;
    }
    for (size_t i = place + 1; i < tasks.size(); ++i) {
      if (tasks[i].lane != Lane::compute) continue;
      tasks[i].deps.push_back(TaskId(place));
      break;
    }
  }

  /// Parameters that are gathered where sums begin, too, go first: compute waits for them, and a
  /// lane runs in order.
  void gathers_before_sums() {
    std::vector<size_t> order;
    for (size_t i = 0; i < cls_.tasks.size(); ++i) {
      const Task& task = cls_.tasks[i];
      size_t first = i;
      while (first > 0 && gathers_parameter(task) && sums_gradients(cls_.tasks[order[first - 1]]) &&
             !waits_for(task, order[first - 1])) {
        --first;
      }
      order.insert(order.begin() + static_cast<ptrdiff_t>(first), i);
    }
    put_in_order(0, order);
  }

  bool waits_for(const Task& task, size_t other) const {
    return std::find(task.deps.begin(), task.deps.end(), TaskId(other)) != task.deps.end();
  }

  /// The last communication of every pass backward, by micro-batch and stage.
  std::vector<size_t> ends_of_backward() const {
    std::map<std::pair<int32_t, int32_t>, size_t> ends;
    for (size_t i = 0; i < cls_.tasks.size(); ++i) {
      const Task& task = cls_.tasks[i];
      if (task.phase != Phase::backward) continue;
      const std::pair pass{task.micro_batch, task.stage};
      if (task.lane != Lane::compute) {
        ends[pass] = i;
      }
    }
    std::vector<size_t> places;
    for (const auto& [pass, place] : ends) {
      places.push_back(place);
    }
    std::sort(places.begin(), places.end());
    return places;
  }

  /// Delays computation of a pass's last layer that the communication at its end does not need,
  /// with the communication in between that depends on it.
  void delay_weight_gradients() {
    for (const size_t end : ends_of_backward()) {
      const std::vector<bool> delayed = not_needed_by(end);
      if (!delayed.empty()) {
        reorder(delayed, end + 1, false);
      }
    }
  }

  /// Returns the last layer's tasks that the communication does not need; empty if there are none,
  /// or they must stay.
  std::vector<bool> not_needed_by(size_t end) const {
    const std::vector<Task>& tasks = cls_.tasks;
    const auto of_pass = [&](const Task& task) {
      return task.phase == Phase::backward && task.micro_batch == tasks[end].micro_batch &&
             task.stage == tasks[end].stage;
    };
    size_t last = end;
    while (last > 0 && !(of_pass(tasks[last]) && tasks[last].lane == Lane::compute)) {
      --last;
    }
    size_t first = last;
    for (size_t i = last; i > 0 && !(of_pass(tasks[i]) && tasks[i].layer != tasks[last].layer);
         --i) {
      if (of_pass(tasks[i])) {
        first = i;
      }
    }
    const auto may_move = [&](const Task& task) {
      return of_pass(task) ? task.lane == Lane::compute
                           : sums_gradients(task) && task.layer == tasks[last].layer;
    };
    std::vector<bool> delayed(tasks.size(), false);
    std::set<BufferId> read, written;  // by tasks that stay
    std::set<TaskId> awaited;
    bool any = false;
    for (size_t i = end + 1; i-- > first;) {
      const Task& task = tasks[i];
      const bool stays = i == end || !may_move(task) || awaited.contains(TaskId(i)) ||
                         meets(task.out, read) || meets(task.out, written) ||
                         meets(task.in, written);
      delayed[i] = !stays;
      any = any || !stays;
      if (stays) {
        awaited.insert(task.deps.begin(), task.deps.end());
        insert_roots(task.in, &read);
        insert_roots(task.out, &written);
      }
    }
    if (!any) return {};
    keep_sums_of_others(first, end, &delayed);
    return delayed;
  }

  /// Keeps reductions that share no buffer with a delayed product, since the link is idle.
  /// Reductions of the last gradients go behind the communication that waits for those.
  void keep_sums_of_others(size_t first, size_t end, std::vector<bool>* delayed) const {
    std::set<BufferId> touched;
    size_t last = end;
    while (last > first && (cls_.tasks[last].lane != Lane::compute || (*delayed)[last])) {
      --last;
    }
    insert_roots(cls_.tasks[last].out, &touched);
    for (size_t i = first; i < end; ++i) {
      const Task& task = cls_.tasks[i];
      if (!(*delayed)[i]) continue;
      if (sums_gradients(task) && !meets(task.in, touched) && !meets(task.out, touched)) {
        (*delayed)[i] = false;
        continue;
      }
      insert_roots(task.in, &touched);
      insert_roots(task.out, &touched);
    }
  }

  bool meets(const std::vector<BufferId>& list, const std::set<BufferId>& roots) const {
    return std::any_of(list.begin(), list.end(),
                       [&](BufferId buffer) { return roots.contains(cls_.root(buffer)); });
  }

  void insert_roots(const std::vector<BufferId>& list, std::set<BufferId>* roots) const {
    for (BufferId buffer : list) {
      roots->insert(cls_.root(buffer));
    }
  }

  /// Moves gradient all-reduces, in order, behind the last task of the backward pass, unless an
  /// earlier task needs them.
  void sum_behind_backward() {
    std::vector<Task>& tasks = cls_.tasks;
    size_t last = tasks.size();
    while (last > 0 && tasks[last - 1].phase != Phase::backward) {
      --last;
    }
    if (last == 0) return;
    std::set<BufferId> asked;
    std::set<TaskId> awaited;
    std::vector<bool> moves(tasks.size(), false);
    for (size_t i = last; i-- > 0;) {
      const Task& task = tasks[i];
      if (sums_gradients(task) && !awaited.contains(TaskId(i)) && !meets(task.in, asked) &&
          !meets(task.out, asked)) {
        moves[i] = true;
        continue;
      }
      awaited.insert(task.deps.begin(), task.deps.end());
      insert_roots(task.in, &asked);
      insert_roots(task.out, &asked);
    }
    reorder(moves, last, true);
  }

  /// Orders consecutive independent optimizer tasks of one op by the arrival of their inputs;
  /// otherwise the first would wait for the last all-reduce.
  void optimizer_takes_what_comes() {
    std::map<BufferId, size_t> brought;  // by root: the place of the communication that wrote it
    std::set<BufferId> computed;         // roots that tasks of the optimizer wrote
    for (size_t begin = 0; begin < cls_.tasks.size();) {
      const size_t end = end_of_run(begin);
      const auto waits = [&](const Task& task) { return meets(task.in, computed); };
      const auto run = std::span(cls_.tasks).subspan(begin, end - begin);
      if (run.size() > 1 && std::none_of(run.begin(), run.end(), waits)) {
        sort_by_arrival(begin, end, brought);
      }
      for (const size_t last = std::max(end, begin + 1); begin < last; ++begin) {
        const Task& task = cls_.tasks[begin];
        if (task.phase == Phase::optimizer) {
          insert_roots(task.out, &computed);
        }
        for (BufferId buffer : task.out) {
          if (task.lane == Lane::compute) {
            brought.erase(cls_.root(buffer));
          } else {
            brought[cls_.root(buffer)] = begin;
          }
        }
      }
    }
  }

  /// Place behind the tasks from `begin` on that are of one op of the optimizer and independent.
  size_t end_of_run(size_t begin) const {
    std::set<BufferId> read, written;
    size_t end = begin;
    for (; end < cls_.tasks.size(); ++end) {
      const Task& task = cls_.tasks[end];
      const bool alike = task.phase == Phase::optimizer && task.lane == Lane::compute &&
                         program_.kind(task).op == program_.kind(cls_.tasks[begin]).op;
      if (!alike || meets(task.in, written) || meets(task.out, written) || meets(task.out, read)) {
        break;
      }
      insert_roots(task.in, &read);
      insert_roots(task.out, &written);
    }
    return end;
  }

  void sort_by_arrival(size_t begin, size_t end, const std::map<BufferId, size_t>& brought) {
    std::vector<std::pair<size_t, size_t>> order;  // arrival of the input, and its place
    for (size_t i = begin; i < end; ++i) {
      size_t last = 0;
      for (BufferId buffer : cls_.tasks[i].in) {
        const auto found = brought.find(cls_.root(buffer));
        if (found != brought.end()) {
          last = std::max(last, found->second);
        }
      }
      order.emplace_back(last, i);
    }
    std::sort(order.begin(), order.end());
    std::vector<size_t> places;
    for (const auto& [last, place] : order) {
      places.push_back(place);
    }
    put_in_order(begin, places);
  }

  bool sums_gradients(const Task& task) const {
    return task.phase == Phase::grad && task.group != kNone &&
           program::is_collective(program_.kind(task)) &&
           !program_.crosses_classes(program_.groups[task.group]);
  }

  /// Moves the marked tasks before task `end`, in order; with `wait`, they depend on the task
  /// before it, which stays.
  void reorder(const std::vector<bool>& moves, size_t end, bool wait) {
    std::vector<size_t> order;
    for (const bool moved : {false, true}) {
      for (size_t i = 0; i < end; ++i) {
        if (moves[i] == moved) {
          order.push_back(i);
        }
      }
    }
    put_in_order(0, order);
    const size_t first = end - static_cast<size_t>(std::count(moves.begin(), moves.end(), true));
    for (size_t place = first; wait && place < end; ++place) {
      cls_.tasks[place].deps.push_back(TaskId(first - 1));
    }
  }

  /// The tasks from place `begin` on, by the places where they were.
  void put_in_order(size_t begin, const std::vector<size_t>& order) {
    std::vector<TaskId> renamed;
    for (size_t i = 0; i < cls_.tasks.size(); ++i) {
      renamed.emplace_back(i);
    }
    std::vector<Task> moved;
    for (size_t i = 0; i < order.size(); ++i) {
      renamed[order[i]] = TaskId(begin + i);
      moved.push_back(std::move(cls_.tasks[order[i]]));
    }
    std::move(moved.begin(), moved.end(), cls_.tasks.begin() + static_cast<ptrdiff_t>(begin));
    for (size_t i = begin; i < cls_.tasks.size(); ++i) {
      for (TaskId& dep : cls_.tasks[i].deps) {
        dep = renamed[dep];
      }
    }
  }

  Program& program_;
  const program::ClassId id_;
  RankClass& cls_;
  const OverlapOptions& options_;
  const std::vector<std::vector<int32_t>>& stages_;
};

void run_overlap(Program& program, const OverlapOptions& options) {
  std::vector<std::vector<int32_t>> stages;
  for (const RankClass& cls : program.classes) {
    stages.push_back(program::stages_of(cls));
  }
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    stop_if_asked();
    Ordering(program, cls, options, stages).run();
  }
}

}  // namespace

Pass pass_overlap() {
  return program_pass("overlap", "communication beside compute (plan.overlap_p2p_comm, ..)", true,
                      {"overlap_p2p_comm=false", "overlap_grad_reduce=false",
                       "overlap_param_gather=false", "delay_wgrad_compute=true"},
                      run_overlap);
}

}  // namespace hocket::passes
