// SPDX-License-Identifier: Apache-2.0
// Chakra execution traces, a file per rank: nodes with durations, or what a cluster makes of their
// operations and bytes, and what each depends on.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "sim/whatif/chakra_nodes.h"
#include "sim/whatif/importers.h"

namespace hocket::sim::whatif {
namespace {

constexpr double kClock = 1e-6;  // seconds: starts and durations are whole microseconds

class ChakraReader {
 public:
  ChakraReader(const std::vector<std::string>& paths, const cost::Cluster* cluster)
      : paths_(paths), cluster_(cluster) {
    run_.source = "chakra";
    run_.waits_from = "the trace's";
  }

  MeasuredRun read() {
    // Nodes of every file; their times; the table; kinds; what waits for what; who meets.
    for (const std::string& path : paths_) {
      ChakraDamage damage;
      nodes_.push_back(read_chakra_nodes(path, &damage));
      run_.dropped.events += damage.events;
      std::move(damage.notes.begin(), damage.notes.end(), std::back_inserter(run_.dropped.notes));
    }
    durations();
    std::vector<Observed> seen;
    for (size_t i = 0; i < paths_.size(); ++i) {
      const auto rank = static_cast<int32_t>(i);
      observe(rank, &seen);
      run_.workers.push_back({rank, 0, rank, fmt::format("rank {}", rank)});
    }
    run_.pattern_workers = static_cast<int32_t>(paths_.size());
    assemble(std::move(seen), paths_[0], &run_);
    for (size_t op = 0; op < run_.ops.size(); ++op) {
      const Op& row = run_.ops[op];
      op_of_[{row.worker, row.name, row.sequence}] = static_cast<int32_t>(op);
    }
    kinds();
    waits();
    queues();
    groups();
    settle_transfers(&run_);
    return std::move(run_);
  }

 private:
  void note(int64_t events, std::string text) {
    run_.dropped.events += events;
    run_.dropped.notes.push_back(std::move(text));
  }

  void durations() {
    if (cluster_ != nullptr) {
      note(0, price_chakra(*cluster_, &nodes_));
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const auto untimed = std::count_if(nodes_[i].begin(), nodes_[i].end(),
                                         [](const auto& node) { return !node.second.timed; });
      if (static_cast<size_t>(untimed) == nodes_[i].size()) {
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

  void observe(int32_t worker, std::vector<Observed>* seen) {
    std::map<int32_t, int32_t> count;
    std::map<int64_t, std::array<int32_t, 2>> key;
    bool any_start = false;
    for (const auto& [id, node] : nodes_[static_cast<size_t>(worker)]) {
      Observed op;
      op.worker = worker;
      op.name = names_.try_emplace(node.name, static_cast<int32_t>(names_.size())).first->second;
      op.sequence = count[op.name]++;
      op.start = node.start;
      op.duration = node.duration;
      any_start = any_start || node.started;
      key[id] = {op.name, op.sequence};
      seen->push_back(op);
    }
    run_.names.resize(names_.size());
    for (const auto& [name, id] : names_) {
      run_.names[static_cast<size_t>(id)] = name;
    }
    keys_.push_back(std::move(key));
    if (!any_start) {
      note(0, fmt::format("no event, but {} has no starts: durations of communication are taken as "
                          "transfers, and fidelity says nothing",
                          paths_[static_cast<size_t>(worker)]));
    }
  }

  int32_t op_at(size_t worker, int64_t id) const {
    const auto key = keys_[worker].find(id);
    return key == keys_[worker].end()
               ? kNone
               : op_of_.at({static_cast<int32_t>(worker), key->second[0], key->second[1]});
  }

  static Traffic traffic_of(const ChakraNode& node) {
    if (node.type == ChakraType::collective) return Traffic::collective;
    const bool is_message = node.type == ChakraType::send || node.type == ChakraType::receive;
    return is_message ? Traffic::message : Traffic::none;
  }

  /// The k-th node of a name is of one kind on all ranks.
  void kinds() {
    std::map<std::pair<int32_t, int32_t>, int32_t> kinds;
    for (size_t worker = 0; worker < nodes_.size(); ++worker) {
      for (const auto& [id, node] : nodes_[worker]) {
        Op& op = run_.ops[static_cast<size_t>(op_at(worker, id))];
        const auto [at, added] =
            kinds.try_emplace({op.name, op.sequence}, static_cast<int32_t>(run_.kinds.size()));
        if (added) {
          run_.kinds.push_back({fmt::format("{} {}", node.name, op.sequence), traffic_of(node)});
        }
        op.bytes = static_cast<int64_t>(std::min(node.comm_bytes, 1e18));
        op.block = static_cast<int32_t>(run_.blocks.size());
        run_.blocks.push_back({at->second, op.worker, kNone, kNone});
      }
    }
  }

  void waits() {
    int64_t absent = 0;
    for (size_t worker = 0; worker < nodes_.size(); ++worker) {
      for (const auto& [id, node] : nodes_[worker]) {
        for (const int64_t before : node.waits) {
          const int32_t op = op_at(worker, before);
          if (op == kNone) {
            ++absent;
            continue;
          }
          add_wait(&run_, op_at(worker, id), op);
        }
      }
    }
    if (absent > 0) {
      note(0, fmt::format("{} for nodes that are not in the files", counted(absent, "wait")));
    }
  }

  /// Linked profiles often lack what kernels wait for in their stream (mlcommons/chakra#215). A
  /// kernel waits for the last one of its device, of those that compute or of those that
  /// communicate, that had ended when it started.
  void queues() {
    int64_t inferred = 0;
    for (size_t worker = 0; worker < nodes_.size(); ++worker) {
      std::array<std::vector<const ChakraNode*>, 2> queues;
      for (const auto& [id, node] : nodes_[worker]) {
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
            if (end(other) > node->start + kClock) return false;
            before = before == nullptr || end(other) >= end(before) ? other : before;
            return true;
          });
          running.push_back(node);
          if (before == nullptr) continue;
          add_wait(&run_, op_at(worker, node->id), op_at(worker, before->id));
          ++inferred;
        }
      }
    }
    if (inferred > 0) {
      run_.waits_from = "the trace's; of kernels of a device also by when they ran";
    }
  }

  /// Messages by who, to whom, tag and number; collectives by group, name and number.
  void groups() {
    using Key = std::tuple<int64_t, int64_t, int64_t, int32_t>;
    std::map<Key, std::array<int32_t, 2>> messages;
    int64_t some_dims = 0;
    for (size_t worker = 0; worker < nodes_.size(); ++worker) {
      std::map<std::tuple<int64_t, int64_t, int64_t>, int32_t> count;
      for (const auto& [id, node] : nodes_[worker]) {
        const bool sends = node.type == ChakraType::send;
        some_dims += node.type == ChakraType::collective && node.some_dims && node.group.empty();
        if (!sends && node.type != ChakraType::receive) continue;
        const auto rank = static_cast<int64_t>(worker);
        const std::tuple ends{sends ? rank : node.source, sends ? node.target : rank, node.tag};
        // A rank's own message has both its ends in one file.
        const std::tuple own{std::get<0>(ends), std::get<1>(ends), node.tag * 2 + (sends ? 1 : 0)};
        messages
            .try_emplace(std::tuple_cat(ends, std::tuple(count[own]++)), std::array{kNone, kNone})
            .first->second[sends ? 0 : 1] = op_at(worker, id);
      }
    }
    const auto add = [&](std::vector<int32_t> ops, bool eager) {
      for (const int32_t op : ops) {
        run_.ops[static_cast<size_t>(op)].group = static_cast<int32_t>(run_.groups.size());
      }
      run_.groups.push_back({std::move(ops), false, eager});
    };
    int64_t alone = 0;
    for (const auto& [key, ends] : messages) {
      if (ends[0] == kNone || ends[1] == kNone) {
        ++alone;
        continue;
      }
      add({ends[0], ends[1]}, true);
    }
    for (const std::vector<ChakraMember>& members : chakra_collectives(nodes_)) {
      std::vector<int32_t> ops;
      for (const ChakraMember& member : members) {
        ops.push_back(op_at(member.rank, member.id));
      }
      add(std::move(ops), false);
    }
    if (some_dims > 0) {
      note(0, fmt::format("which ranks {} are of: they are along some dims (involved_dim) of a "
                          "network that the trace does not say; all ranks that have them meet",
                          counted(some_dims, "collective")));
    }
    if (alone > 0) {
      note(0, fmt::format("the other ends of {}; they wait for nobody", counted(alone, "message")));
    }
  }

  const std::vector<std::string>& paths_;
  MeasuredRun run_;
  const cost::Cluster* cluster_;
  std::vector<ChakraNodes> nodes_;
  std::vector<std::map<int64_t, std::array<int32_t, 2>>> keys_;  ///< name and sequence of a node
  std::map<std::string, int32_t> names_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> op_of_;
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

}  // namespace hocket::sim::whatif
