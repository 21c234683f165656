// SPDX-License-Identifier: Apache-2.0
// ring_attention (Liu et al., arXiv 2310.01889; zigzag order: Llama 3, arXiv 2407.21783): keys and
// values of a sequence that is split over ranks travel around the ring of the ranks, instead of
// being gathered on each. Every rank attends from its queries to the present keys and merges the
// partial softmax results. In the backward pass the gradients of keys and values travel along and
// end on their home rank. In zigzag order a rank has one block from the front and one from the back
// of the tokens, so that causal attention is equal work on each. Where blocks differ in length,
// every rank has its tokens in two halves, the first one longer by one if their number is odd.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "parallel/layouts/pins.h"
#include "parallel/layouts/reshard.h"
#include "passes/pass.h"
#include "passes/ring_attention_parts.h"
#include "passes/ring_attention_places.h"
#include "passes/template_edit.h"

namespace hocket::passes {

using parallel::RankTemplate;
using parallel::StageTemplate;
using parallel::TaskTemplate;
using parallel::Templates;
using parallel::Value;
using parallel::ValueId;
using program::kNone;
using program::TableId;

namespace {

using TaskList = TemplateEdit::TaskList;
using Coords = std::vector<int32_t>;

/// Returns the position of a letter in an operand, or -1.
int dim_of(const std::string& operand, char letter) {
  const size_t at = operand.find(letter);
  return at == operand.npos ? -1 : static_cast<int>(at);
}

/// Visits operands, and values to which the task adds in place.
template <class Visit>
void for_each_read(const TaskTemplate& made, const Visit& visit) {
  for (ValueId value : made.in) {
    visit(value);
  }
  for (const auto& [output, taken] : made.shares) {
    visit(taken);
  }
}

struct RingAttentionOptions {
  std::string cp_comm_type = "all_gather", cp_order = "contiguous";
  void fields(Fields& visit) {
    visit("cp_comm_type", cp_comm_type,
          "exchange of keys between ranks of plan.cp: all_gather brings all keys to each, p2p "
          "passes them around a ring, a2a gives each all tokens of some heads instead (Ulysses)")
        .one_of({"all_gather", "p2p", "a2a"});
    visit("cp_order", cp_order,
          "tokens of each rank of plan.cp: contiguous, or zigzag (with p2p), one half from the "
          "front and one from the back, which balances causal attention")
        .one_of({"contiguous", "zigzag"});
  }
};

/// Rewrites the tasks of one class of ranks. `blocks`: by class, as find_blocks says; empty to find
/// them.
class RingWriter {
 public:
  RingWriter(Templates& templates, program::ClassId cls, int32_t axis, bool zigzag,
             std::vector<Blocks> blocks)
      : frame_(templates.frame),
        cls_(cls),
        mesh_(templates.frame.mesh_of(cls)),
        rank_(templates.ranks[cls.value()]),
        edit_(templates.frame, rank_),
        axis_(axis),
        zigzag_(zigzag),
        parts_(zigzag ? 2 : 1),
        places_(templates.frame, cls, axis, zigzag, std::move(blocks)),
        pins_(parallel::said_of_pins(templates.pins)),
        next_tag_(templates.num_tags) {}

  /// The blocks of the class's rings; none if no task of the class has gathered keys.
  Blocks find_blocks() {
    find_gathered();
    Blocks blocks;
    for_each_list([&](const TaskList& list) {
      for (const TaskTemplate& made : list) {
        if (!blocks.empty()) return;
        if (const std::optional<Site> site = site_of(made)) {
          blocks = site->blocks;
        }
      }
    });
    return blocks;
  }

  void run() {
    // First finds gathered keys, and the destinations of their gradients. Then rewrites every list,
    // ring by ring. Gathers without readers are dropped.
    find_gathered();
    find_summed();
    if (zigzag_) {
      put_in_zigzag();
    }
    for (StageTemplate& stage : rank_.stages) {
      stage.forward = rewritten(std::move(stage.forward));
    }
    for (StageTemplate& stage : rank_.stages) {
      rewrite_backward(&stage, [&](TaskList list) { return rewritten(std::move(list)); });
    }
    drop_unread_gathers();
  }
  int32_t next_tag() const { return next_tag_; }

 private:
  template <class Visit>
  void for_each_list(const Visit& visit) {
    for (StageTemplate& stage : rank_.stages) {
      visit(stage.forward);
      visit(stage.backward);
    }
  }
  const program::Kind& kind_of(const TaskTemplate& made) const { return frame_.kind(made.task); }

  /// The one axis that a collective of this movement goes over, with its dim; nothing for another.
  std::optional<Gathered> moved(const TaskTemplate& made, comm::Move::Part part,
                                comm::Move::Placed placed) const {
    const program::Kind& kind = kind_of(made);
    if (!program::is_collective(kind) || made.in.size() != 1 || made.out.size() != 1) return {};
    const comm::Movement movement = comm::movement(comm::op(kind.communication), kind.attrs);
    const program::Group& group = frame_.groups[made.task.group];
    if (movement.move.part != part || movement.move.placed != placed) return {};
    if (group.axes.size() != 1 || !group.members.empty()) return {};
    const bool gathers = placed == comm::Move::Placed::slot;
    return Gathered{made.in[0], gathers ? movement.slot_dim : movement.part_dim, group.axes[0]};
  }

  void find_gathered() {
    gathered_.clear();
    for_each_list([&](const TaskList& list) {
      for (const TaskTemplate& made : list) {
        if (const auto from = moved(made, comm::Move::Part::whole, comm::Move::Placed::slot)) {
          gathered_[made.out[0]] = *from;
        }
      }
    });
  }

  /// Finds sums with parts that only the sum reads.
  void find_summed() {
    std::map<ValueId, size_t> readers;
    for_each_list([&](const TaskList& list) {
      for (const TaskTemplate& made : list) {
        for_each_read(made, [&](ValueId value) { ++readers[value]; });
        if (const auto to = moved(made, comm::Move::Part::block, comm::Move::Placed::sum)) {
          summed_[made.in[0]].push_back({made.out[0], to->dim, to->axis});
        }
        if (!sums(made)) continue;
        for (size_t i = 0; i < made.in.size(); ++i) {
          const int32_t axis = frame_.groups[made.task.group].axes[0];
          summed_[made.in[i]].push_back({made.out[i], kNone, axis});
        }
      }
    });
    std::erase_if(summed_,
                  [&](const auto& one) { return readers[one.first] != one.second.size(); });
  }
  /// Returns whether the task is an all-reduce over one axis.
  bool sums(const TaskTemplate& made) const {
    const program::Kind& kind = kind_of(made);
    if (!program::is_communication(kind) || kind.communication != comm::summing().id) return false;
    const program::Group& group = frame_.groups[made.task.group];
    return group.axes.size() == 1 && group.members.empty() && made.shares.empty() &&
           comm::monoid_of(kind.attrs) == graph::Monoid::sum;
  }

  /// Returns the ring of a task if its keys are gathered over an axis that splits its queries.
  std::optional<Site> site_of(const TaskTemplate& made) const {
    const program::Kind& kind = kind_of(made);
    if (program::is_communication(kind)) return {};
    Site site;
    site.op = &ops::find(kind.op);
    const ops::LayoutRule& rule = site.op->layout;
    if (rule.support.empty()) return {};
    site.query_letter = rule.support[0].by;
    site.key_letter = rule.support[0].letter;
    const program::PieceOffset* const begin = made.task.piece_offset(site.query_letter);
    if (!begin || begin->by == kNone) return {};
    site.letters = ops::letters(*site.op, kind.in, kind.out);
    int64_t keys = 0;  // of all ranks
    for (size_t i = 0; i < made.in.size(); ++i) {
      const int dim = dim_of(site.letters.in[i], site.key_letter);
      if (dim < 0) continue;
      const auto from = gathered_.find(made.in[i]);
      if (from == gathered_.end() || from->second.dim != dim) return {};
      if (from->second.axis != axis_) return {};
      keys = kind.in[i].dims[dim];
    }
    const std::vector<int32_t>& axes = frame_.tables[begin->by].axes;
    const bool split = std::find(axes.begin(), axes.end(), axis_) != axes.end();
    if (!split || keys == 0) return {};
    site.blocks = places_.blocks_of(begin, keys);
    return site;
  }

  /// Returns a table of a function's values at every coordinate.
  template <class Function>
  TableId table(std::vector<int32_t> axes, const Function& function) {
    program::Table made{.role = frame_.classes[cls_].role, .axes = std::move(axes), .values = {}};
    graph::for_each_coords(mesh_, made.axes,
                           [&](const Coords& coords) { made.values.push_back(function(coords)); });
    return frame_.intern(std::move(made));
  }

  /// The part along a dim of a value of the rank at `place`; all of it if there is one part only.
  ValueId part_of(ValueId value, int dim, const PartChoice& choice, int32_t place) {
    if (dim < 0 || !zigzag_) return value;
    if (places_.halves().uneven()) {
      const int64_t begin = choice.at(0) == 0 ? 0 : places_.halves().at(place, 0).length;
      const int64_t length = places_.halves().at(place, choice.at(0)).length;
      const auto [known, fresh] = views_.try_emplace({value, dim, begin, TableId(kNone)}, kNone);
      if (fresh) {
        known->second = edit_.view(value, dim, length, begin);
      }
      return known->second;
    }
    const int64_t length = rank_.values[value].type.dims[dim] / 2;
    const bool varies = choice.which == PartChoice::Which::late_before;
    const TableId by =
        varies ? table({axis_},
                       [&](const Coords& coords) { return choice.at(coords[axis_]) * length; })
               : TableId(kNone);
    const int64_t begin = varies ? 0 : choice.at(0) * length;
    const auto [known, fresh] = views_.try_emplace({value, dim, begin, by}, kNone);
    if (fresh) {
      known->second = edit_.view(value, dim, length, begin, by);
    }
    return known->second;
  }

  /// A message to the rank `offset` further around the ring, and the one that comes in its place.
  void shift(const program::Task& user, int32_t offset, ValueId from, ValueId to,
             TaskList* result) {
    const int32_t tag = next_tag_++;
    for (const comm::Role role : {comm::Role::send, comm::Role::receive}) {
      const bool sends = role == comm::Role::send;
      TaskTemplate made;
      (sends ? made.in : made.out) = {sends ? from : to};
      set_place(user, &made.task);
      made.task.recompute = user.recompute;
      made.task.peer_axis = axis_;
      made.task.peer = sends ? offset : -offset;
      made.task.tag = tag;
      // A received value takes memory from here on, not from the beginning of the step.
      made.ahead = !sends;
      made.task.lane = program::link_lane(role, frame_.leaves_node(made.task.peer_map(), cls_),
                                          program::Order::collectives);
      made.task.kind = edit_.intern_communication(comm::message(role), {}, made.in, made.out);
      result->push_back(std::move(made));
    }
  }

  TaskList rewritten(TaskList list) {
    TaskList result;
    for (TaskTemplate& made : list) {
      const std::optional<Site> site = site_of(made);
      if (site) {
        write_ring(made, *site, &result);
      } else if (sums(made)) {
        gather_homes(std::move(made), &result);
      } else if (made.in.empty() || !home_.contains(made.in[0])) {
        result.push_back(std::move(made));
      } else if (const Gathered& home = home_.at(made.in[0]); made.out[0] != home.from) {
        const auto block = moved(made, comm::Move::Part::block, comm::Move::Placed::sum);
        result.push_back(brought(made, 0, graph::Placement::split(block->dim)));
      }
    }
    return result;
  }

  /// Replaces a task that sums a ring's result: the result is at home, each part on one rank, and
  /// is brought to the task's layout.
  TaskTemplate brought(const TaskTemplate& sum, size_t operand, graph::Placement to) {
    const ValueId whole = sum.in[operand];
    const Gathered& home = home_.at(whole);
    const int64_t all = rank_.values[whole].type.dims[home.dim];
    std::vector<int64_t> lengths;
    for (const graph::Run& block : places_.own_blocks()) {
      lengths.push_back(block.length);
    }
    comm::Sharing sharing{.me = frame_.span(cls_, axis_).begin};
    sharing.slots = parallel::unless_shares(std::move(lengths));
    if (sharing.slots.empty() && all % places_.size() != 0) {
      sharing.size = all;
    }
    const auto exchange =
        comm::resharding(rank_.values[home.from].type, graph::Placement::split(home.dim), to,
                         places_.size(), sharing);
    if (!exchange) {
      fail("plan",
           "{} of a ring is wanted {}, and nothing brings it there; try "
           "plan.cp_comm_type: all_gather",
           rank_.values[whole].name, to_string(to));
    }
    TaskTemplate made = sum;
    made.in = {home.from};
    made.out = {sum.out[operand]};
    made.task.kind = edit_.intern_communication(*exchange->op, exchange->attrs, made.in, made.out);
    return made;
  }

  /// Sums values not made by a ring. Those made by one are gathered instead.
  void gather_homes(TaskTemplate made, TaskList* result) {
    TaskTemplate rest = made;
    rest.in.clear();
    rest.out.clear();
    for (size_t i = 0; i < made.in.size(); ++i) {
      if (!home_.contains(made.in[i])) {
        rest.in.push_back(made.in[i]);
        rest.out.push_back(made.out[i]);
        continue;
      }
      result->push_back(brought(made, i, graph::Placement::replicate()));
    }
    if (rest.in.empty()) return;
    if (rest.in.size() < made.in.size()) {
      rest.task.kind =
          edit_.intern_communication(comm::summing(), kind_of(made).attrs, rest.in, rest.out);
    }
    result->push_back(std::move(rest));
  }

  void write_ring(const TaskTemplate& made, const Site& site, TaskList* result) {
    // `keys`: travelling values by the gathered value that they replace. `grads`: outputs by keys,
    // which travel with them, one step behind. There is one hop per step that some query needs (in
    // zigzag order one before the last may be empty); then gradients return home in one message,
    // into the values of a reduce-scatter.
    const program::Task& user = made.task;
    int32_t hops = places_.size();
    while (hops > 1 && places_.block_pairs(made.task, site, hops - 1).empty()) {
      --hops;
    }
    std::map<ValueId, ValueId> keys;
    for (size_t i = 0; i < made.in.size(); ++i) {
      if (dim_of(site.letters.in[i], site.key_letter) >= 0) {
        keys[made.in[i]] = gathered_.at(made.in[i]).from;
      }
    }
    std::map<size_t, ValueId> grads, homes;
    for (size_t i = 0; i < made.out.size(); ++i) {
      if (dim_of(site.letters.out[i], site.key_letter) < 0) continue;
      homes[i] = home_of(made, i, site);
      grads[i] = hops == 1 ? homes[i] : edit_.like(homes[i]);
    }
    for (int32_t hop = 0; hop < hops; ++hop) {
      std::map<ValueId, ValueId> next;
      if (hop + 1 < hops) {
        for (const auto& [whole, here] : keys) {
          const int dim = gathered_.at(whole).dim;
          next[whole] = resized(here, dim, places_.keys_after(site, hop + 1));
          shift(user, 1, here, next[whole], result);
        }
      }
      for (const BlockPair& pair : places_.block_pairs(made.task, site, hop)) {
        attend(made, site, pair, hop, keys, grads, result);
      }
      const bool last = hop + 1 == hops;
      for (auto& [output, here] : grads) {
        if (hops == 1) break;
        const int dim = dim_of(site.letters.out[output], site.key_letter);
        const ValueId there =
            last ? homes.at(output) : resized(here, dim, places_.keys_after(site, hop + 1));
        shift_parts(user, last ? -hop : 1, {here, places_.owner(places_.own(), hop)},
                    {there, places_.owner(places_.own(), last ? 0 : hop + 1)}, dim, result);
        here = there;
      }
      keys = std::move(next);
    }
  }

  /// Returns a value like another one, of the sender's size.
  ValueId resized(ValueId other, int dim, int64_t length) {
    graph::TensorType type = rank_.values[other].type;
    type.dims[dim] = length;
    return edit_.like(other, std::move(type));
  }

  /// A value of keys, and the ring position of their home rank.
  struct OfPlace {
    ValueId value = kNone;
    int32_t place = 0;
  };
  /// Shifts the parts one by one: they are sums over different queries.
  void shift_parts(const program::Task& user, int32_t offset, OfPlace from, OfPlace to, int dim,
                   TaskList* result) {
    for (int64_t part = 0; part < parts_; ++part) {
      const PartChoice choice{part == 0 ? PartChoice::Which::early : PartChoice::Which::late};
      shift(user, offset, part_of(from.value, dim, choice, from.place),
            part_of(to.value, dim, choice, to.place), result);
    }
  }

  /// The value that the sum over all queries of an output ends in, on the rank that has the keys:
  /// the one that a scattered sum would be, or a new one; `brought` takes it where else it is
  /// wanted.
  ValueId home_of(const TaskTemplate& made, size_t output, const Site& site) {
    const ValueId whole = made.out[output];
    const auto sums = summed_.find(whole);
    const int dim = dim_of(site.letters.out[output], site.key_letter);
    if (sums == summed_.end() ||
        std::any_of(sums->second.begin(), sums->second.end(),
                    [&](const Summed& sum) { return sum.axis != axis_; })) {
      fail("plan",
           "{} of {} is not only summed over the ranks that share its tokens; try "
           "plan.cp_comm_type: all_gather",
           rank_.values[whole].name, kind_of(made).op);
    }
    const auto own = std::find_if(sums->second.begin(), sums->second.end(),
                                  [&](const Summed& sum) { return sum.dim == dim; });
    const ValueId home =
        own != sums->second.end() ? own->to : resized(whole, dim, places_.keys_after(site, 0));
    home_[whole] = {home, dim, axis_};
    return home;
  }

  void attend(const TaskTemplate& made, const Site& site, const BlockPair& pair, int32_t hop,
              const std::map<ValueId, ValueId>& keys, const std::map<size_t, ValueId>& grads,
              TaskList* result) {
    // The task on parts of its operands. The first pair of a rank's own queries and keys writes
    // the value itself; later ones write a second value, which is added or merged.
    const bool first = hop == 0 && pair.queries == pair.keys;
    const auto part = [&](ValueId value, const std::string& operand) {
      const int query_dim = dim_of(operand, site.query_letter);
      return query_dim >= 0 ? part_of(value, query_dim, pair.queries, places_.own())
                            : part_of(value, dim_of(operand, site.key_letter), pair.keys,
                                      places_.owner(places_.own(), hop));
    };
    TaskTemplate task = made;
    task.shares.clear();
    for (size_t i = 0; i < made.in.size(); ++i) {
      const auto travelled = keys.find(made.in[i]);
      task.in[i] =
          part(travelled == keys.end() ? made.in[i] : travelled->second, site.letters.in[i]);
    }
    std::vector<ValueId> held;
    for (size_t i = 0; i < made.out.size(); ++i) {
      const auto grad = grads.find(i);
      held.push_back(part(grad == grads.end() ? made.out[i] : grad->second, site.letters.out[i]));
      const graph::TensorType type = rank_.values[held[i]].type;
      task.out[i] = first ? held[i] : edit_.like(made.out[i], type);
    }
    std::erase_if(task.task.piece_offsets, [&](const program::PieceOffset& begin) {
      return begin.letter == site.query_letter || begin.letter == site.key_letter;
    });
    const std::vector<int32_t> axes = places_.axes_of(made.task);
    task.task.piece_offsets.push_back(
        {site.query_letter, 0, table(axes, [&](const Coords& coords) {
           return places_.queries_at(made.task, site, pair.queries, coords).begin;
         })});
    task.task.piece_offsets.push_back(
        {site.key_letter, 0, table(axes, [&](const Coords& coords) {
           return places_.keys_at(made.task, site, pair.keys, hop, coords).begin;
         })});
    task.task.kind = edit_.intern_local({.op = site.op->name,
                                         .attrs = kind_of(made).attrs,
                                         .in = edit_.types_of(task.in),
                                         .out = edit_.types_of(task.out)});
    const std::vector<ValueId> more = task.out;
    result->push_back(std::move(task));
    if (!first) {
      put_together(made.task, site, held, more, result);
    }
  }

  /// Adds or merges a new part into the previous one.
  void put_together(const program::Task& user, const Site& site, const std::vector<ValueId>& held,
                    const std::vector<ValueId>& more, TaskList* result) {
    if (site.op->layout.monoid(site.key_letter) == graph::Monoid::softmax) {
      HOCKET_CHECK(held.size() == 2, "{} has {} outputs", site.op->name, held.size());
      result->push_back(edit_.local(user, ops::of(ops::Meaning::merge_softmax), {},
                                    {held[0], held[1], more[0], more[1]}, held));
      return;
    }
    for (size_t i = 0; i < held.size(); ++i) {
      result->push_back(
          edit_.local(user, ops::of(ops::Meaning::sum), {}, {held[i], more[i]}, {held[i]}));
    }
  }

  void put_in_zigzag() {
    // The host feeds the tokens of all ranks of the ring to each, which takes its two blocks of
    // them: numbers per token are little to move. All that is made of them is in the same order.
    TaskList takes;
    std::map<ValueId, ValueId> taken;
    const size_t values = rank_.values.size();
    for (size_t i = 0; i < values; ++i) {
      const auto id = static_cast<ValueId>(i);
      Value& value = rank_.values[i];
      if (!value.layout[axis_].is_split() || value.base != kNone) continue;
      if (value.life != Value::Life::input) continue;
      const int dim = value.layout[axis_].dim();
      const graph::TensorType own = value.type;
      value.layout.set(static_cast<size_t>(axis_), graph::Placement::replicate());
      value.type.dims[dim] = places_.halves().size();
      const ValueId mine = edit_.like(id, own);
      taken[id] = mine;
      for (const int64_t part : {0, 1}) {
        const auto [from, first] = side_of(id, dim, part, &takes);
        const TableId by = table({axis_}, [&, before = first](const Coords& coords) {
          return places_.halves().at(coords[axis_], part).begin - before;
        });
        const int64_t length = places_.halves().at(places_.own(), part).length;
        const int64_t begin = part == 0 ? 0 : places_.halves().at(places_.own(), 0).length;
        take(edit_.view(from, dim, length, 0, by), edit_.view(mine, dim, length, begin), &takes);
      }
    }
    for_each_list([&](TaskList& list) {
      for (TaskTemplate& made : list) {
        for (ValueId& value : made.in) {
          if (const auto own = taken.find(value); own != taken.end()) {
            value = own->second;
          }
        }
      }
    });
    // The first stage that a rank has on a route comes first for every micro-batch of that.
    int32_t route = kNone;
    for (StageTemplate& stage : rank_.stages) {
      if (stage.route == route) continue;
      route = stage.route;
      for (TaskTemplate& take : takes) {
        take.task.stage = stage.stage;
      }
      stage.forward.insert(stage.forward.begin(), takes.begin(), takes.end());
    }
    refuse_other_positions();
  }

  /// A copy of a part of an input into a part of another value.
  void take(ValueId from, ValueId to, TaskList* takes) {
    program::Task place;
    place.phase = program::Phase::forward;
    place.stage = rank_.stages.front().stage;
    place.layer = graph::kNone;
    takes->push_back(edit_.local(place, ops::of(ops::Meaning::identity), {}, {from}, {to}));
  }

  /// Returns the value from which ranks take their early or late parts of an input of all tokens,
  /// and its offset. If the parts differ in length, or ranks are in several classes, it is a copy
  /// of the parts. The ranks then split it at each offset.
  std::pair<ValueId, int64_t> side_of(ValueId input, int dim, int64_t part, TaskList* takes) {
    const bool one_class = frame_.span(cls_, axis_).count == places_.size();
    if (one_class && !places_.halves().uneven()) return {input, 0};
    const graph::Run side = places_.halves().side(part);
    graph::TensorType type = rank_.values[input].type;
    type.dims[dim] = side.length;
    const ValueId copy = edit_.like(input, type);
    take(edit_.view(input, dim, side.length, side.begin), copy, takes);
    return {copy, side.begin};
  }

  /// Refuses other tasks that read positions. In zigzag order a rank's tokens are no run: only the
  /// ring knows where they begin.
  void refuse_other_positions() {
    for_each_list([&](const TaskList& list) {
      for (const TaskTemplate& made : list) {
        if (site_of(made)) continue;
        for (const program::PieceOffset& begin : made.task.piece_offsets) {
          if (begin.by == kNone) continue;
          const std::vector<int32_t>& axes = frame_.tables[begin.by].axes;
          if (std::find(axes.begin(), axes.end(), axis_) == axes.end()) continue;
          fail("plan",
               "plan.cp_order is zigzag, but {} goes by the position of its tokens; expected "
               "contiguous{}",
               kind_of(made).op, pins_);
        }
      }
    });
  }

  void drop_unread_gathers() {
    std::set<ValueId> read;
    for_each_list([&](const TaskList& list) {
      for (const TaskTemplate& made : list) {
        for_each_read(made, [&](ValueId value) {
          for (; value != kNone; value = rank_.values[value].base) {
            read.insert(value);
          }
        });
      }
    });
    const auto without_unread = [&](TaskList list) {
      std::erase_if(list, [&](const TaskTemplate& made) {
        return made.out.size() == 1 && gathered_.contains(made.out[0]) &&
               !read.contains(made.out[0]) && !rank_.values[made.out[0]].output;
      });
      return list;
    };
    for (StageTemplate& stage : rank_.stages) {
      stage.forward = without_unread(std::move(stage.forward));
      rewrite_backward(&stage, without_unread);
    }
  }

  program::Program& frame_;
  const program::ClassId cls_;
  const graph::Mesh mesh_;
  RankTemplate& rank_;
  TemplateEdit edit_;
  const int32_t axis_;  ///< of the ring
  const bool zigzag_;
  const int64_t parts_;
  const RingAttentionPlaces places_;
  const std::string pins_;
  int32_t next_tag_;
  std::map<ValueId, Gathered> gathered_;           // by gathered value
  std::map<ValueId, std::vector<Summed>> summed_;  // by summed value
  std::map<ValueId, Gathered> home_;               // travelling gradients by their whole value
  std::map<std::tuple<ValueId, int, int64_t, TableId>, ValueId> views_;
};

/// Returns whether the host reads something by token: logits, in the order of the text.
bool reads_by_token(const Templates& templates, int32_t axis) {
  const auto is_read = [axis](const Value& value) {
    return value.output && value.life == Value::Life::micro_batch && value.layout[axis].is_split();
  };
  return std::any_of(templates.ranks.begin(), templates.ranks.end(), [&](const RankTemplate& rank) {
    return std::any_of(rank.values.begin(), rank.values.end(), is_read);
  });
}

void run_ring_attention(Templates& templates, const RingAttentionOptions& options) {
  bool zigzag = options.cp_order == "zigzag";
  if (zigzag && options.cp_comm_type != "p2p") {
    fail("plan", "plan.cp_order is zigzag; expected plan.cp_comm_type: p2p with it, not {}",
         options.cp_comm_type);
  }
  if (options.cp_comm_type != "p2p") return;
  const std::vector<graph::Axis>& axes = templates.frame.roles[0].mesh.axes;
  const auto found = std::find_if(axes.begin(), axes.end(), [](const graph::Axis& axis) {
    return parallel::splits_sequences(axis.name) && axis.size > 1;
  });
  if (found == axes.end()) return;
  const auto axis = static_cast<int32_t>(found - axes.begin());
  // Tokens have one order on all ranks: if some class has rings, all take it.
  std::vector<Blocks> blocks(templates.ranks.size());
  bool any = false;
  for (program::ClassId id = 0; id < templates.frame.classes.size(); ++id) {
    blocks[id.value()] = RingWriter(templates, id, axis, zigzag, {}).find_blocks();
    any = any || !blocks[id.value()].empty();
  }
  if (!any) return;
  zigzag = zigzag && !reads_by_token(templates, axis);
  int32_t tags = templates.num_tags;
  for (program::ClassId id = 0; id < templates.frame.classes.size(); ++id) {
    RingWriter writer(templates, id, axis, zigzag, blocks);
    writer.run();
    tags = std::max(tags, writer.next_tag());
  }
  templates.num_tags = tags;
}

}  // namespace

Pass pass_ring_attention() {
  return templates_pass("ring_attention",
                        "passes keys and values around a ring of ranks (plan.cp_comm_type)", false,
                        {"cp_comm_type=p2p"}, run_ring_attention);
}

}  // namespace hocket::passes
