// SPDX-License-Identifier: Apache-2.0
#include "whatif/megatron.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "base/text.h"

namespace hocket::whatif::megatron {
namespace {

constexpr double kClocks = 5e-5;  // seconds by which clocks of one pipeline may differ

struct MessageType {
  Type type, computes, peer;
  bool sends;
  int direction;  ///< of the peer's stage
};
constexpr std::array<MessageType, 4> kMessages = {{
    {forward_send, forward, forward_recv, true, 1},
    {forward_recv, forward, forward_send, false, -1},
    {backward_send, backward, backward_recv, true, -1},
    {backward_recv, backward, backward_send, false, 1},
}};

class Model {
 public:
  Model(const std::vector<PipelineCell>& cells, MeasuredRun* run) : cells_(cells), run_(*run) {
    of_.resize(cells.size());
    computes_.resize(cells.size());
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      const Op& row = run_.ops[op];
      of_[row.worker][row.name].push_back(op);
      if (row.name == place_of(forward) || row.name == place_of(backward)) {
        computes_[row.worker].push_back(op);
      }
      chunks_ = std::max<int64_t>(chunks_, row.chunk + 1);
    }
    for (PatternWorkerId worker = 0; worker < cells.size(); ++worker) {
      for (std::vector<OpId>& list : of_[worker]) {
        sort(&list);
      }
      sort(&computes_[worker]);
      shards_ = shards_ || !of_[worker][params_gather].empty() ||
                !of_[worker][grads_scatter].empty() || !of_[worker][separate_grads].empty();
      overlaps_ = overlaps_ || !of_[worker][separate_grads].empty();
    }
  }

  void add() {
    stages_beyond();
    for (PatternWorkerId worker = 0; worker < cells_.size(); ++worker) {
      chain(computes_[worker]);
      for (const MessageType& type : kMessages) {
        messages(worker, type);
        chain(of_[worker][type.type]);
      }
      first_backward_messages(worker);
      replicas(worker);
      end_of_step(worker);
    }
    pair_messages();
    for (PatternWorkerId worker = 0; shards_ && worker < cells_.size(); ++worker) {
      for (const Type type : {params_gather, grads_scatter, separate_grads}) {
        for (const OpId op : of_[worker][type]) {
          group({op}, true);
        }
      }
    }
    embeddings();
    std::vector<OpId> clips;
    for (PatternWorkerId worker = 0; worker < cells_.size(); ++worker) {
      const auto& list = of_[worker][clip];
      clips.insert(clips.end(), list.begin(), list.end());
    }
    group(clips, true);
  }

 private:
  double start(OpId op) const { return run_.start[run_.at(op, 0)]; }
  /// Returns the end of an op, not before its start: a transfer can take negative time
  /// (Early::kept).
  double end(OpId op) const { return start(op) + std::max(run_.duration[run_.at(op, 0)], 0.0); }

  void sort(std::vector<OpId>* ops) const {
    const auto key = [&](OpId op) {
      const Op& row = run_.ops[op];
      return std::tuple(start(op), row.sequence, std::string_view(kTypes[row.name].name));
    };
    std::sort(ops->begin(), ops->end(), [&](OpId a, OpId b) { return key(a) < key(b); });
  }

  void chain(const std::vector<OpId>& ops) {
    for (size_t i = 1; i < ops.size(); ++i) {
      add_wait(&run_, ops[i], ops[i - 1]);
    }
  }

  void group(const std::vector<OpId>& ops, bool across_replicas) {
    if (ops.empty()) return;
    for (const OpId op : ops) {
      run_.ops[op].group = run_.groups.size();
    }
    run_.groups.push_back({ops, across_replicas});
  }

  /// Returns the op of `type` and `sequence` on a worker; kNone if there is none.
  OpId find(PatternWorkerId worker, Type type, int32_t sequence) const {
    for (const OpId op : of_[worker][type]) {
      if (run_.ops[op].sequence == sequence) return op;
    }
    return kNone;
  }

  /// Returns the messages of a type that were launched. The profiler also notes others, before the
  /// first pass and behind the last one.
  std::vector<OpId> launched(PatternWorkerId worker, const MessageType& type) const {
    const std::vector<OpId>& passes = of_[worker][type.computes];
    const std::vector<OpId>& ops = of_[worker][type.type];
    if (ops.empty() || passes.empty()) return {};
    double last_start = start(passes[0]), first_end = end(passes[0]);
    for (const OpId pass : passes) {
      last_start = std::max(last_start, start(pass));
      first_end = std::min(first_end, end(pass));
    }
    std::vector<OpId> launched;
    for (const OpId op : ops) {
      if (type.sends ? end(op) >= first_end - kClocks : start(op) <= last_start + kClocks) {
        launched.push_back(op);
      }
    }
    return launched;
  }

  /// Returns whether all passes of a stage have messages of nonzero duration to or from a neighbour
  /// in one direction.
  bool has_neighbour(StageId stage, int direction) const {
    constexpr double kNotLaunchedShare =
        0.1;  // share of the usual time; messages that were never launched take far less
    double here = 0, all = 0;
    int64_t num_here = 0, num_all = 0;
    for (PatternWorkerId worker = 0; worker < cells_.size(); ++worker) {
      for (const MessageType& type : kMessages) {
        const std::vector<OpId> ops = launched(worker, type);
        const bool is_here = cells_[worker].stage == stage && type.direction == direction;
        if (is_here && (ops.empty() || ops.size() != of_[worker][type.computes].size())) {
          return false;
        }
        for (const OpId op : ops) {
          const double takes = run_.duration[run_.at(op, 0)];
          (is_here ? here : all) += takes;
          ++(is_here ? num_here : num_all);
        }
      }
    }
    return num_here > 0 && here * num_all >= kNotLaunchedShare * all * num_here;
  }

  bool has_messages(StageId stage, int direction) const {
    for (PatternWorkerId worker = 0; worker < cells_.size(); ++worker) {
      for (const MessageType& type : kMessages) {
        if (cells_[worker].stage == stage && type.direction == direction &&
            !launched(worker, type).empty()) {
          return true;
        }
      }
    }
    return false;
  }

  /// Adds stages that the trace does not even name. Without chunks, the outermost stages have no
  /// neighbour to exchange messages with. Where both ends note messages, these need not have been
  /// launched.
  void stages_beyond() {
    if (chunks_ > 1 || run_.stages < 2) return;
    const StageId last = run_.stages - 1;
    const bool before = has_neighbour(0, -1) && !has_messages(last, 1);
    const bool behind = has_neighbour(last, 1) && !has_messages(0, -1);
    if (!before && !behind) return;
    run_.dropped.notes.push_back(
        fmt::format("pipeline ranks {} rank {} have no events: all of its passes exchange messages "
                    "with one; those wait for no rank",
                    before ? "before" : "behind", before ? 0 : last));
    run_.stages += behind ? 1 : 0;
  }

  /// Places a receive before its pass and behind the pass before, and a send behind its pass.
  /// Messages beyond the ends of the model have no peer: each is a group of its own, as are
  /// messages never launched.
  void messages(PatternWorkerId worker, const MessageType& type) {
    const std::vector<OpId>& passes = of_[worker][type.computes];
    const std::vector<OpId> ops = launched(worker, type);
    int32_t pass = 0;
    if (!type.sends && ops.size() + 1 == passes.size()) {
      pass = 1;  // the first receive of the first stage is sometimes not there
    }
    for (const OpId op : ops) {
      const OpId computes = find(worker, type.computes, pass++);
      if (computes == kNone) continue;
      if (type.sends) {
        add_wait(&run_, op, computes);
      } else {
        add_wait(&run_, computes, op);
        if (const OpId before = find(worker, type.computes, pass - 2); before != kNone) {
          add_wait(&run_, op, before);
        }
      }
      const int64_t chunk = std::max(run_.ops[computes].chunk, 0);
      const int64_t peer = chunk * run_.stages + cells_[worker].stage.value() + type.direction;
      if (peer >= 0 && peer < chunks_ * run_.stages) {
        launched_[{type.type, cells_[worker].stage, cells_[worker].peer}].push_back(op);
      }
    }
  }

  /// Pairs the k-th message of a stage with the k-th of its neighbour.
  void pair_messages() {
    int64_t alone = 0;
    for (const auto& [key, ops] : launched_) {
      const auto& [type, stage, peer] = key;
      const auto row = std::find_if(kMessages.begin(), kMessages.end(),
                                    [&, t = type](const MessageType& m) { return m.type == t; });
      const StageId other = (stage.value() + row->direction + run_.stages) % run_.stages;
      const auto met = launched_.find({row->peer, other, peer});
      for (size_t i = 0; i < ops.size(); ++i) {
        const bool meets = met != launched_.end() && i < met->second.size();
        if (!meets) {
          ++alone;
          lost_records(other, peer);
          continue;
        }
        if (row->sends) {
          group({ops[i], met->second[i]}, false);
        }
      }
    }
    if (alone > 0) {
      run_.dropped.notes.push_back(fmt::format(
          "{} of a step have no other end; they wait for no rank", counted(alone, "message")));
    }
    for (PatternWorkerId worker = 0; worker < cells_.size(); ++worker) {
      for (const MessageType& type : kMessages) {
        for (const OpId op : of_[worker][type.type]) {
          if (run_.ops[op].group == kNone) {
            group({op}, false);
          }
        }
      }
    }
  }

  void lost_records(StageId stage, int32_t peer) {
    for (PatternWorkerId worker = 0; worker < cells_.size(); ++worker) {
      if (cells_[worker].stage != stage || cells_[worker].peer != peer) continue;
      for (ReplicaId replica = 0; replica < run_.replicas; ++replica) {
        run_.workers[run_.worker_id(worker, replica)].records_lost = true;
      }
    }
  }

  /// Places the first messages of the backward pass behind the second last forward pass before it,
  /// where the first stages launch them in their warm-up.
  void first_backward_messages(PatternWorkerId worker) {
    const std::vector<OpId>& passes = computes_[worker];
    const auto first = std::find_if(passes.begin(), passes.end(), [&](OpId op) {
      return run_.ops[op].name == place_of(backward);
    });
    if (first == passes.end() || first - passes.begin() < 2) return;
    for (const Type type : {backward_recv, backward_send}) {
      if (const OpId op = find(worker, type, 0); op != kNone) {
        add_wait(&run_, op, *(first - 2));
      }
    }
  }

  /// Adds data-parallel dependencies. Parameters are gathered, and gradients reduce-scattered, in
  /// one stream in the order of their starts. A chunk's first forward pass waits for the chunk's
  /// last gather. Where gradient reductions overlap the backward pass, a chunk's first one waits
  /// for its last backward pass.
  void replicas(PatternWorkerId worker) {
    if (!shards_) return;
    const auto& gathers = of_[worker][params_gather];
    const auto& scatters = of_[worker][grads_scatter];
    std::vector<OpId> stream = gathers;
    stream.insert(stream.end(), scatters.begin(), scatters.end());
    sort(&stream);
    chain(stream);
    std::map<int32_t, OpId> last_gather;  // by chunk
    for (const OpId op : by_sequence(gathers)) {
      last_gather[run_.ops[op].chunk] = op;
    }
    for (const auto& [chunk, gather] : last_gather) {
      const OpId pass = pass_of(worker, forward, chunk, /*first=*/true);
      if (pass != kNone) {
        add_wait(&run_, pass, gather);
      }
    }
    if (!overlaps_) return;
    std::map<int32_t, OpId> first_scatter;  // by chunk
    for (const OpId op : by_sequence(scatters)) {
      first_scatter.emplace(run_.ops[op].chunk, op);
    }
    for (const auto& [chunk, scatter] : first_scatter) {
      const OpId pass = pass_of(worker, backward, chunk, /*first=*/false);
      if (pass != kNone) {
        add_wait(&run_, scatter, pass);
      }
    }
  }

  std::vector<OpId> by_sequence(std::vector<OpId> ops) const {
    std::stable_sort(ops.begin(), ops.end(),
                     [&](OpId a, OpId b) { return run_.ops[a].sequence < run_.ops[b].sequence; });
    return ops;
  }

  /// Returns the pass of `chunk` (any, if it is none's) that starts first, or that ends last.
  OpId pass_of(PatternWorkerId worker, Type type, int32_t chunk, bool first) const {
    OpId found = kNone;
    for (const OpId op : of_[worker][type]) {
      if (chunk != kNone && run_.ops[op].chunk != chunk) continue;
      if (found == kNone || (first ? start(op) < start(found) : end(op) > end(found))) {
        found = op;
      }
    }
    return found;
  }

  /// Adds the end of a step: last pass, gc, all-reduces of unsharded parameters, gradient
  /// reductions without overlap, clipping, optimizer.
  void end_of_step(PatternWorkerId worker) {
    const auto& of = of_[worker];
    std::vector<OpId> order;
    if (!computes_[worker].empty()) {
      order.push_back(*std::max_element(computes_[worker].begin(), computes_[worker].end(),
                                        [&](OpId a, OpId b) { return end(a) < end(b); }));
    }
    const auto append = [&](Type type) {
      const std::vector<OpId> ops = by_sequence(of[type]);
      order.insert(order.end(), ops.begin(), ops.end());
    };
    append(gc);
    const OpId behind_gc = order.empty() ? kNone : order.back();
    const size_t from = order.size();
    append(layernorm_grads);
    append(embedding_grads);
    append(overlaps_ ? separate_grads : grads_scatter);
    append(clip);
    append(optimizer);
    chain(order);
    if (overlaps_ && !of[grads_scatter].empty() && from < order.size() && behind_gc != kNone) {
      add_wait(&run_, order[from], by_sequence(of[grads_scatter]).back());
    }
  }

  /// Groups the all-reduces of the embedding that first and last stage share.
  void embeddings() {
    std::map<std::pair<int32_t, int32_t>, std::vector<OpId>> pairs;  // by peer and sequence
    for (PatternWorkerId worker = 0; worker < cells_.size(); ++worker) {
      for (const OpId op : of_[worker][embedding_grads]) {
        pairs[{cells_[worker].peer, run_.ops[op].sequence}].push_back(op);
      }
    }
    for (const auto& [key, ops] : pairs) {
      group(ops, false);
    }
  }

  const std::vector<PipelineCell>& cells_;
  MeasuredRun& run_;
  std::vector<std::array<std::vector<OpId>, num_types>> of_;  ///< ops by worker and type
  std::vector<std::vector<OpId>> computes_;                   ///< passes by worker
  /// Messages that have another end, by type, stage and peer.
  std::map<std::tuple<Type, StageId, int32_t>, std::vector<OpId>> launched_;
  int64_t chunks_ = 1;
  bool shards_ = false, overlaps_ = false;
};

}  // namespace

void add_dependencies(const std::vector<PipelineCell>& cells, MeasuredRun* run) {
  Model(cells, run).add();
}

}  // namespace hocket::whatif::megatron
