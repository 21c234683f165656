// SPDX-License-Identifier: Apache-2.0
// Chakra execution traces as JSON, a file per rank: nodes with durations, and what each depends on.
// Numbers may be texts, keys in either of protobuf's two spellings, nodes in one list or one after
// another.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "sim/whatif/importers.h"
#include "trace/chrome_events.h"
#include "trace/json_stream.h"

namespace hocket::sim::whatif {
namespace {

struct Node {
  int64_t id = kNone;
  std::string name, type, group;
  std::vector<int64_t> waits;
  double start = 0, duration = 0;
  bool timed = false, started = false;
  int64_t source = kNone, target = kNone, tag = 0;
};

enum class Meets { nobody, sender, receiver, all };
Meets meets(const Node& node) {
  if (node.type == "COMM_SEND_NODE" || node.type == "5") return Meets::sender;
  if (node.type == "COMM_RECV_NODE" || node.type == "6") return Meets::receiver;
  if (node.type == "COMM_COLL_NODE" || node.type == "7") return Meets::all;
  return Meets::nobody;
}

class ChakraReader {
 public:
  explicit ChakraReader(const std::vector<std::string>& paths) : paths_(paths) {
    run_.source = "chakra";
    run_.waits_from = "the trace's";
  }

  MeasuredRun read() {
    // Nodes of every file; the table; kinds; what waits for what; who meets.
    std::vector<Observed> seen;
    for (size_t i = 0; i < paths_.size(); ++i) {
      nodes_.emplace_back();
      read_file(paths_[i], &nodes_.back());
      observe(static_cast<int32_t>(i), &seen);
      const auto rank = static_cast<int32_t>(i);
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
    groups();
    settle_transfers(&run_);
    return std::move(run_);
  }

 private:
  void note(int64_t events, std::string text) {
    run_.dropped.events += events;
    run_.dropped.notes.push_back(std::move(text));
  }

  void read_file(const std::string& path, std::map<int64_t, Node>* nodes) {
    trace::JsonStream json(path);
    int64_t untimed = 0;
    const auto keep = [&](Node node) {
      if (node.id == kNone) return;
      if (!node.timed) {
        ++untimed;
        node.duration = 0;
      }
      nodes->insert_or_assign(node.id, std::move(node));
    };
    try {
      while (json.next() >= 0) {
        Node whole;
        json.object([&](std::string_view key) {
          if (key == "nodes" && json.next() == '[') {
            json.array([&] {
              Node node;
              json.object([&](std::string_view field) { member(field, json, &node); });
              keep(std::move(node));
            });
          } else {
            member(key, json, &whole);
          }
        });
        keep(std::move(whole));
      }
    } catch (const Error& error) {
      if (nodes->empty()) throw;
      note(0, fmt::format("the rest of {}: {}", path, error.text()));
    }
    if (static_cast<size_t>(untimed) == nodes->size()) {
      fail(path,
           "has no node with a duration; expected a Chakra trace as JSON; try linking it with its "
           "profile first (chakra_trace_link)");
    }
    if (untimed > 0) {
      note(0, fmt::format("no event, but {} of {} have no duration; taken as 0",
                          counted(untimed, "node"), path));
    }
  }

  static void member(std::string_view key, trace::JsonStream& json, Node* node) {
    const auto list = [&] {
      if (json.next() != '[') return json.skip_value();
      json.array([&] { node->waits.push_back(json.integer()); });
    };
    if (key == "id") {
      node->id = json.integer();
    } else if (key == "name" && json.next() == '"') {
      json.string(&node->name);
    } else if (key == "type") {
      node->type = json.next() == '"' ? json.string() : json.token();
    } else if (key == "ctrl_deps" || key == "ctrlDeps" || key == "data_deps" || key == "dataDeps") {
      list();
    } else if (key == "start_time_micros" || key == "startTimeMicros") {
      node->started = json.number(&node->start) && trace::is_possible_time(node->start);
      node->start *= node->started ? 1e-6 : 0;
    } else if (key == "duration_micros" || key == "durationMicros") {
      node->timed = json.number(&node->duration) && trace::is_possible_time(node->duration);
      node->duration = std::max(node->duration, 0.0) * 1e-6;
    } else if (key == "attr" && json.next() == '[') {
      json.array([&] { attribute(json, node); });
    } else {
      json.skip_value();
    }
  }

  /// {"name": "comm_dst", "int32Val": 3}.
  static void attribute(trace::JsonStream& json, Node* node) {
    std::string name, text;
    double number = 0;
    bool is_number = false;
    json.object([&](std::string_view key) {
      if (key == "name" && json.next() == '"') {
        json.string(&name);
      } else if (json.next() == '"' && (key == "stringVal" || key == "string_val")) {
        json.string(&text);
      } else {
        is_number = json.number(&number) || is_number;
      }
    });
    if (name == "pg_name" || name == "comm_group") {
      node->group = text.empty() ? fmt::format("{}", number) : text;
    } else if (name == "comm_src" && is_number) {
      node->source = static_cast<int64_t>(number);
    } else if (name == "comm_dst" && is_number) {
      node->target = static_cast<int64_t>(number);
    } else if (name == "comm_tag" && is_number) {
      node->tag = static_cast<int64_t>(number);
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

  /// The k-th node of a name is of one kind on all ranks.
  void kinds() {
    std::map<std::pair<int32_t, int32_t>, int32_t> kinds;
    for (size_t worker = 0; worker < nodes_.size(); ++worker) {
      for (const auto& [id, node] : nodes_[worker]) {
        Op& op = run_.ops[static_cast<size_t>(op_at(worker, id))];
        const auto [at, added] =
            kinds.try_emplace({op.name, op.sequence}, static_cast<int32_t>(run_.kinds.size()));
        if (added) {
          const Meets with = meets(node);
          run_.kinds.push_back({fmt::format("{} {}", node.name, op.sequence),
                                with == Meets::nobody ? Traffic::none
                                : with == Meets::all  ? Traffic::collective
                                                      : Traffic::message});
        }
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

  /// Messages by who, to whom, tag and number; collectives by group, name and number.
  void groups() {
    using Key = std::tuple<int64_t, int64_t, int64_t, std::string, std::string>;
    std::map<std::pair<Key, int32_t>, std::array<int32_t, 2>> messages;
    std::map<std::pair<Key, int32_t>, std::vector<int32_t>> collectives;
    for (size_t worker = 0; worker < nodes_.size(); ++worker) {
      std::map<std::pair<Key, bool>, int32_t> count;
      for (const auto& [id, node] : nodes_[worker]) {
        const Meets with = meets(node);
        const auto rank = static_cast<int64_t>(worker);
        if (with == Meets::all) {
          const Key key{kNone, kNone, kNone, node.group, node.name};
          collectives[{key, count[{key, false}]++}].push_back(op_at(worker, id));
        } else if (with != Meets::nobody) {
          const bool sends = with == Meets::sender;
          const Key key{sends ? rank : node.source, sends ? node.target : rank, node.tag, "", ""};
          messages.try_emplace({key, count[{key, sends}]++}, std::array{kNone, kNone})
              .first->second[sends ? 0 : 1] = op_at(worker, id);
        }
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
    for (const auto& [key, ops] : collectives) {
      add(ops, false);
    }
    if (alone > 0) {
      note(0, fmt::format("the other ends of {}; they wait for nobody", counted(alone, "message")));
    }
  }

  const std::vector<std::string>& paths_;
  MeasuredRun run_;
  std::vector<std::map<int64_t, Node>> nodes_;                   ///< by rank and id
  std::vector<std::map<int64_t, std::array<int32_t, 2>>> keys_;  ///< name and sequence of a node
  std::map<std::string, int32_t> names_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> op_of_;
};

}  // namespace

MeasuredRun read_chakra(const std::vector<std::string>& paths) {
  return ChakraReader(paths).read();
}

bool is_chakra(const std::string& beginning) {
  const auto has = [&](const char* text) { return beginning.find(text) != beginning.npos; };
  return !has("\"traceEvents\"") &&
         (has("\"ctrl_deps\"") || has("\"ctrlDeps\"") || has("\"data_deps\"") ||
          has("\"dataDeps\"") || has("\"nodes\""));
}

}  // namespace hocket::sim::whatif
