// SPDX-License-Identifier: Apache-2.0
// Implements: read_chakra (importers.h). Chakra execution traces, one file per rank: nodes with
// their dependencies and durations, or durations that a cluster gives to their operations and
// bytes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "whatif/chakra_nodes.h"
#include "whatif/cycles.h"
#include "whatif/importers.h"
#include "whatif/match_collectives.h"
#include "whatif/transfers.h"

namespace hocket::whatif {
namespace {

constexpr double kWholeMicros = 1e-6;  // seconds: starts and durations are whole microseconds

class ChakraReader {
 public:
  ChakraReader(const std::vector<std::string>& paths, const cost::Cluster* cluster)
      : paths_(paths), cluster_(cluster) {
    run_.source = "chakra";
    run_.waits_from = "the trace's";
  }

  MeasuredRun read() {
    // Reads nodes of every file, their times, the table, op kinds, dependencies and groups, in this
    // order.
    files();
    durations();
    std::vector<Observed> seen;
    for (size_t rank = 0; rank < nodes_.size(); ++rank) {
      observe(rank, &seen);
    }
    for (Observed& op : seen) {
      op.start = has_starts_ ? op.start : 0;
    }
    assemble(std::move(seen), paths_[0], &run_);
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      const Op& row = run_.ops[op];
      op_of_[{row.worker, row.name, row.sequence}] = op;
    }
    kinds();
    waits();
    messages();
    collectives();
    uneven_messages();
    refuse_cycles();
    queues();
    settle_transfers(&run_);
    return std::move(run_);
  }

 private:
  void note(int64_t events, std::string text) {
    run_.dropped.events += events;
    run_.dropped.notes.push_back(std::move(text));
  }

  /// Leaves out ranks without a readable file.
  void files() {
    std::vector<Error> unread;
    int64_t negative = 0;
    for (const std::string& path : paths_) {
      ChakraDamage damage;
      try {
        nodes_.push_back(read_chakra_nodes(path, &damage));
      } catch (const Error& error) {
        if (!file_exists(path)) throw;
        nodes_.emplace_back();
        unread.push_back(error);
      }
      run_.dropped.events += damage.events;
      records_lost_.push_back(damage.events > 0 || damage.negative > 0);
      negative += damage.negative;
      std::move(damage.notes.begin(), damage.notes.end(), std::back_inserter(run_.dropped.notes));
    }
    if (unread.size() == paths_.size()) throw Error(unread[0]);
    if (!unread.empty()) {
      note(0, fmt::format(
                  "{} of {}, files unreadable; ranks that communicate with them do not wait for "
                  "them; the first one: {}",
                  unread.size(), counted(std::ssize(paths_), "rank"), unread[0].what()));
    }
    if (negative > 0) {
      note(0, fmt::format("the duration of {}: it is negative; taken as 0",
                          counted(negative, "node")));
    }
  }

  void durations() {
    if (cluster_ != nullptr) {
      note(0, price_chakra(*cluster_, &nodes_));
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].empty()) continue;
      const auto untimed = std::count_if(nodes_[i].begin(), nodes_[i].end(),
                                         [](const auto& node) { return !node.second.timed; });
      if (untimed == std::ssize(nodes_[i])) {
        fail(paths_[i],
             "has no node with a duration; expected a Chakra trace with its profile "
             "(chakra_trace_link), or --cluster, and nodes with num_ops, tensor_size or comm_size");
      }
      if (untimed > 0) {
        note(0, fmt::format("no event, but {} of {} have no duration; taken as 0",
                            counted(untimed, "node"), paths_[i]));
      }
    }
  }

  /// Adds a worker, and its ops, for a rank that has nodes.
  void observe(size_t rank, std::vector<Observed>* seen) {
    keys_.emplace_back();
    if (nodes_[rank].empty()) return;
    const PatternWorkerId worker = run_.pattern_workers++;
    const int64_t number = rank;
    run_.workers.push_back(
        {number, 0, worker.value(), fmt::format("rank {}", number), records_lost_[rank]});
    std::map<NameId, int32_t> count;
    // A step of several nodes that all start at 0 has no starts.
    bool any_start = nodes_[rank].size() == 1 && nodes_[rank].begin()->second.started;
    for (const auto& [id, node] : nodes_[rank]) {
      Observed op;
      op.worker = worker;
      op.name = names_.try_emplace(node.name, names_.size()).first->second;
      op.sequence = count[op.name]++;
      op.start = node.start;
      op.duration = node.duration;
      any_start = any_start || (node.started && node.start != 0);
      keys_[rank][id] = {worker, op.name, op.sequence};
      seen->push_back(op);
    }
    run_.names.resize(names_.size());
    for (const auto& [name, id] : names_) {
      run_.names[id] = name;
    }
    if (!any_start) {
      has_starts_ = run_.has_starts = false;
      note(0, fmt::format("no event, but {} has no starts: durations of communication are taken as "
                          "transfers, and fidelity says nothing",
                          paths_[rank]));
    }
  }

  OpId op_at(size_t rank, int64_t id) const {
    const auto key = keys_[rank].find(id);
    return key == keys_[rank].end() ? kNone : op_of_.at(key->second);
  }

  static Traffic traffic_of(const ChakraNode& node) {
    if (node.type == ChakraType::collective) return Traffic::collective;
    const bool is_message = node.type == ChakraType::send || node.type == ChakraType::receive;
    return is_message ? Traffic::message : Traffic::none;
  }

  /// Adds kinds and blocks: the k-th node of a name is of one kind on all ranks.
  void kinds() {
    std::map<std::pair<NameId, int32_t>, OpKindId> kinds;
    for (size_t rank = 0; rank < nodes_.size(); ++rank) {
      for (const auto& [id, node] : nodes_[rank]) {
        Op& op = run_.ops[op_at(rank, id)];
        const auto [at, added] = kinds.try_emplace({op.name, op.sequence}, run_.kinds.size());
        if (added) {
          run_.kinds.push_back({fmt::format("{} {}", node.name, op.sequence), traffic_of(node)});
        }
        op.bytes = static_cast<int64_t>(std::min(node.comm_bytes, 1e18));
        op.block = run_.blocks.size();
        run_.blocks.push_back({at->second, op.worker, kNone, kNone});
      }
    }
  }

  /// Returns whether some node waits for data; a trace without such waits has its order in those of
  /// control.
  bool has_data_waits() const {
    return std::any_of(nodes_.begin(), nodes_.end(), [](const ChakraNodes& nodes) {
      return std::any_of(nodes.begin(), nodes.end(),
                         [](const auto& node) { return !node.second.waits.empty(); });
    });
  }

  /// Adds data dependencies, by which Chakra's feeder issues nodes. A control dependency of PyTorch
  /// is the op that called a node: it begins before, and ends after it.
  void waits() {
    const bool by_data = has_data_waits();
    int64_t absent = 0, own = 0, unused = 0;
    std::string example;
    for (size_t rank = 0; rank < nodes_.size(); ++rank) {
      for (const auto& [id, node] : nodes_[rank]) {
        unused += by_data ? std::ssize(node.controls) : 0;
        for (const int64_t before : by_data ? node.waits : node.controls) {
          const OpId op = op_at(rank, before);
          if (op == kNone) {
            ++absent;
            continue;
          }
          if (before == id && own++ == 0) {
            example = fmt::format("{} of {}", id, paths_[rank]);
          }
          add_wait(&run_, op_at(rank, id), op);
        }
      }
    }
    if (absent > 0) {
      note(0, fmt::format("{} for nodes that are not in the files", counted(absent, "wait")));
    }
    if (own > 0) {
      note(0, fmt::format("{} of nodes for themselves, one is node {}", counted(own, "wait"),
                          example));
    }
    if (unused > 0) {
      note(0, fmt::format("{} of control: nodes are issued by their data, as by Chakra's feeder",
                          counted(unused, "wait")));
    }
    if (!by_data) {
      run_.waits_from = "the trace's, of control: it has none for data";
    }
  }

  /// Throws Error if nodes wait for each other in a cycle; the message names them by their ids.
  void refuse_cycles() const {
    const std::vector<OpId> cycle = find_cycle(run_);
    if (cycle.empty()) return;
    std::map<OpId, std::pair<size_t, int64_t>> node_of;
    for (size_t rank = 0; rank < nodes_.size(); ++rank) {
      for (const auto& [id, node] : nodes_[rank]) {
        node_of[op_at(rank, id)] = {rank, id};
      }
    }
    const auto named = [&](OpId op) {
      const auto& [rank, id] = node_of.at(op);
      return paths_.size() > 1 ? fmt::format("{} of rank {}", id, rank) : fmt::format("{}", id);
    };
    constexpr size_t kShown = 12;
    std::vector<std::string> list;
    for (size_t i = 0; i < std::min(cycle.size(), kShown); ++i) {
      list.push_back(named(cycle[i]));
    }
    if (cycle.size() > kShown) {
      list.push_back(fmt::format("{} more", cycle.size() - kShown));
    }
    list.push_back(named(cycle.front()));
    fail(paths_[node_of.at(cycle.front()).first],
         "has nodes that wait for each other in a cycle, so that none can start: node {}; expected "
         "{} without cycles (a collective or a receive waits for what its other members wait for)",
         join(list, " for "), has_data_waits() ? "data_deps" : "ctrl_deps");
  }

  /// Adds stream order, which linked profiles often lack (mlcommons/chakra#215). A kernel depends
  /// on the last compute or communication kernel of its device that had ended when it started.
  void queues() {
    std::set<std::pair<OpId, OpId>> added;
    for (size_t rank = 0; rank < nodes_.size(); ++rank) {
      std::array<std::vector<const ChakraNode*>, 2> queues;
      for (const auto& [id, node] : nodes_[rank]) {
        if (!node.on_device || !node.started || !node.timed) continue;
        queues[traffic_of(node) == Traffic::none ? 0 : 1].push_back(&node);
      }
      for (std::vector<const ChakraNode*>& queue : queues) {
        std::stable_sort(queue.begin(), queue.end(),
                         [](const auto* a, const auto* b) { return a->start < b->start; });
        std::vector<const ChakraNode*> running;
        const ChakraNode* before = nullptr;
        const auto end = [](const ChakraNode* node) { return node->start + node->duration; };
        for (const ChakraNode* node : queue) {
          std::erase_if(running, [&](const ChakraNode* other) {
            if (end(other) > node->start + kWholeMicros) return false;
            before = before == nullptr || end(other) >= end(before) ? other : before;
            return true;
          });
          running.push_back(node);
          if (before == nullptr) continue;
          add_wait(&run_, op_at(rank, node->id), op_at(rank, before->id));
          added.insert({op_at(rank, node->id), op_at(rank, before->id)});
        }
      }
    }
    if (!added.empty()) {
      run_.waits_from += "; of kernels of a device also by when they ran";
    }
    remove_from_cycles(added);
  }

  /// Removes waits that were `added` from every cycle that they close. The trace's own have none.
  void remove_from_cycles(const std::set<std::pair<OpId, OpId>>& added) {
    int64_t removed = 0;
    for (std::vector<OpId> cycle = find_cycle(run_); !cycle.empty(); cycle = find_cycle(run_)) {
      const int64_t before = removed;
      for (const OpId op : cycle) {
        const GroupId group = run_.ops[op].group;
        const std::vector<OpId> alone = {op};
        for (const OpId member : group == kNone ? alone : run_.groups[group].ops) {
          removed += std::erase_if(run_.waits_for[member], [&](OpId other) {
            return added.count({member, other}) > 0 &&
                   std::find(cycle.begin(), cycle.end(), other) != cycle.end();
          });
        }
      }
      HOCKET_CHECK(removed > before, "{} ops in a cycle", cycle.size());
    }
    if (removed > 0) {
      note(0, fmt::format("{} of kernels by when they ran: the trace's own say otherwise",
                          counted(removed, "wait")));
    }
  }

  /// Matches messages by sender, receiver and tag: the k-th send is the k-th receive. Holds surplus
  /// ones of either side back until clocks are set.
  void messages() {
    using Ends = std::tuple<int64_t, int64_t, int64_t>;  // source, target, tag
    std::map<Ends, std::array<std::vector<OpId>, 2>> messages;
    for (size_t rank = 0; rank < nodes_.size(); ++rank) {
      for (const auto& [id, node] : nodes_[rank]) {
        const bool sends = node.type == ChakraType::send;
        if (!sends && node.type != ChakraType::receive) continue;
        const int64_t own = rank;
        const Ends ends{sends ? own : node.source, sends ? node.target : own, node.tag};
        messages[ends][sends ? 0 : 1].push_back(op_at(rank, id));
      }
    }
    int64_t alone = 0;
    for (auto& [ends, ops] : messages) {
      auto& [sent, received] = ops;
      const size_t pairs = std::min(sent.size(), received.size());
      alone += std::max(sent.size(), received.size()) - pairs;
      for (size_t k = 0; k < pairs && sent.size() == received.size(); ++k) {
        add_message(sent[k], received[k]);
      }
      if (pairs > 0 && sent.size() != received.size()) {
        uneven_.push_back(std::move(ops));
      }
    }
    if (alone > 0) {
      note(0,
           fmt::format("the other ends of {}; these wait for no rank", counted(alone, "message")));
    }
  }

  /// Pairs the k-th send with the k-th receive, unless some would arrive before they were sent.
  void uneven_messages() {
    int64_t left_out = 0;
    for (const auto& [sent, received] : uneven_) {
      const size_t pairs = std::min(sent.size(), received.size());
      bool possible = true;
      for (size_t k = 0; k < pairs && has_starts_; ++k) {
        const size_t from = run_.at(sent[k], 0), to = run_.at(received[k], 0);
        possible = possible && run_.start[to] + run_.duration[to] > run_.start[from] - kWholeMicros;
      }
      left_out += possible ? 0 : pairs;
      for (size_t k = 0; k < pairs && possible; ++k) {
        add_message(sent[k], received[k]);
      }
    }
    if (left_out > 0) {
      note(0, fmt::format(
                  "the waits of {}: messages between their ranks and of their tag lack an end, and "
                  "pairing them would deliver some before they were sent; these wait for no rank",
                  counted(left_out, "message")));
    }
  }

  void add_message(OpId sends, OpId receives) {
    for (const OpId op : {sends, receives}) {
      run_.ops[op].group = run_.groups.size();
    }
    run_.groups.push_back({{sends, receives}, false, true});
  }

  /// Matches collectives by group and name. All ranks of a named group are in all of its
  /// collectives.
  void collectives() {
    const std::vector<ChakraCollectives> of_names = chakra_collectives(nodes_);
    std::map<std::string, std::set<size_t>> members;
    for (const ChakraCollectives& of_name : of_names) {
      for (const auto& [rank, ids] : of_name.of_rank) {
        members[of_name.group].insert(rank);
      }
    }
    std::vector<Collectives> kinds;
    int64_t some_dims = 0;
    for (const ChakraCollectives& of_name : of_names) {
      Collectives& kind = kinds.emplace_back();
      kind.num_members = of_name.group.empty() ? 0 : members.at(of_name.group).size();
      for (const auto& [rank, ids] : of_name.of_rank) {
        for (const int64_t id : ids) {
          const OpId op = op_at(rank, id);
          kind.of_worker[run_.ops[op].worker].push_back(op);
          some_dims += of_name.group.empty() && nodes_[rank].at(id).some_dims;
        }
      }
    }
    match_collectives(kinds, has_starts_, &run_);
    if (some_dims > 0) {
      note(0, fmt::format("which ranks {} are of: they are along some dims (involved_dim) of a "
                          "network that the trace does not say; all ranks that have them meet",
                          counted(some_dims, "collective")));
    }
  }

  const std::vector<std::string>& paths_;
  MeasuredRun run_;
  const cost::Cluster* cluster_;
  std::vector<ChakraNodes> nodes_;
  std::vector<bool> records_lost_;                           ///< by rank
  std::vector<std::array<std::vector<OpId>, 2>> uneven_;     ///< messages: sent, and received
  using Key = std::tuple<PatternWorkerId, NameId, int32_t>;  ///< of a node, with its sequence
  std::vector<std::map<int64_t, Key>> keys_;                 ///< by rank and id
  bool has_starts_ = true;  ///< all files have; else those of others say nothing
  std::map<std::string, NameId> names_;
  std::map<Key, OpId> op_of_;
};

}  // namespace

MeasuredRun read_chakra(const std::vector<std::string>& paths, const cost::Cluster* cluster) {
  return ChakraReader(paths, cluster).read();
}

bool is_chakra(const std::string& beginning) {
  const auto has = [&](const char* text) { return beginning.find(text) != beginning.npos; };
  if (is_chakra_binary(beginning)) return true;
  return !has("\"traceEvents\"") &&
         (has("\"ctrl_deps\"") || has("\"ctrlDeps\"") || has("\"data_deps\"") ||
          has("\"dataDeps\"") || has("\"nodes\"") || has("\"workload_graph\""));
}

}  // namespace hocket::whatif
