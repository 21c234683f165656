// SPDX-License-Identifier: Apache-2.0
#include "parallel/layouts/layout_problem.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/stop.h"
#include "parallel/layouts/layout_cost.h"

namespace hocket::parallel {

using graph::Graph;
using graph::kNone;
using graph::Layout;
using graph::Mesh;
using graph::Node;
using graph::Phase;
using graph::Placement;
using graph::TensorId;
using graph::TensorKind;
using graph::TensorType;

namespace {

/// Readers of a tensor in one table. More are united pairwise into auxiliary choices, since a table
/// grows exponentially with its readers.
constexpr size_t kReadersInTable = 3;

/// Returns the placement in which a signature reads an input, accumulators included.
Placement wanted_of(const Node& node, const ops::AxisSignature& signature, size_t input) {
  size_t accumulator = num_inputs(node);
  if (input < accumulator) return signature.in[input];
  for (size_t output = 0; output < node.out.size(); ++output) {
    if (node.accumulate.contains(output) && accumulator++ == input) return signature.out[output];
  }
  HOCKET_CHECK(false, "{} has no input {}", node.op, input);
}

template <class T>
void add_once(T value, std::vector<T>* list) {
  if (std::find(list->begin(), list->end(), value) == list->end()) {
    list->push_back(std::move(value));
  }
}

/// A placement on the axis. `supported`: see LayoutRules::supports.
struct PlacementOption {
  Placement placed;
  bool supported = false;
  bool operator==(const PlacementOption&) const = default;
};

/// Possible placements of a tensor, by the choice of its producer.
struct PlacementOptions {
  std::vector<PlacementOption> all;
  ChoiceId choice = kNone;        ///< kNone: there is one placement
  std::vector<int32_t> by_value;  ///< by value of the choice: index into `all`
};

/// Placements in which a node reads a tensor, by value of its choice; one if it has no choice.
struct Reader {
  ChoiceId choice = kNone;
  std::vector<Placement> wants;
  Phase phase = Phase::forward;
};

/// A node while its choice is turned into tables.
struct NodeChoice {
  const Node& node;
  const std::vector<ops::AxisSignature> all;
  const int32_t first;              ///< its current signature
  std::vector<int32_t> candidates;  ///< indices into `all`, ascending
};

class Builder {
 public:
  Builder(LayoutRules* rules, const Layouts& now, size_t axis, int64_t num_micro_batches,
          const Freedom& freedom)
      : rules_(*rules),
        graph_(rules->graph()),
        now_(now),
        axis_(axis),
        per_step_(1.0 / num_micro_batches),
        freedom_(freedom),
        path_(Mesh{{rules->mesh().axes[axis]}}),
        options_(graph_.tensors.size()),
        readers_(graph_.tensors.size()),
        total_of_(graph_.tensors.size(), kNone),
        one_of_several_(graph_.tensors.size(), false) {
    made_.choice_of.assign(graph_.nodes.size(), kNone);
    for (size_t index = 0; index < graph_.grads.size(); ++index) {
      const graph::ParamGrad& grad = graph_.grads[index];
      if (grad.total != kNone) {
        total_of_[grad.total] = index;
      }
      for (TensorId id : grad.contributions) {
        one_of_several_[id] = grad.contributions.size() > 1;
      }
    }
    for (const std::vector<TensorId>* read : {&graph_.losses, &graph_.outputs}) {
      read_by_host_.insert(read->begin(), read->end());
    }
  }

  AxisProblem run() {
    for (size_t id = 0; id < graph_.tensors.size(); ++id) {
      options_[id].all = {{now_.tensor[id][axis_], false}};
    }
    for (const Node& node : graph_.nodes) {
      rules_.follow_rows(node);
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      stop_if_asked();
      add_node(n);
    }
    for (size_t id = 0; id < graph_.tensors.size(); ++id) {
      const TensorKind kind = graph_.tensors[id].kind;
      if (kind == TensorKind::param || kind == TensorKind::state) continue;
      stop_if_asked();
      add_bringing(id);
    }
    return std::move(made_);
  }

 private:
  ChoiceId add_choice(std::vector<int32_t> signatures, size_t values, int32_t start) {
    made_.problem.values.push_back(values);
    made_.start.push_back(start);
    made_.signatures.push_back(std::move(signatures));
    return made_.start.size() - 1;
  }

  void add_node(size_t n) {
    // Signatures that are legal for some placements of the inputs become the values of the node's
    // choice, and fix the placements of the outputs.
    const Node& node = graph_.nodes[n];
    NodeChoice at{node, rules_.signatures(node), now_.node[n].signature[axis_], {}};
    for (int32_t i = 0; i < std::ssize(at.all); ++i) {
      if (i == at.first || may_become(at, at.all[i])) {
        at.candidates.push_back(i);
      }
    }
    const ChoiceId choice = add_legality(n, &at);
    made_.choice_of[n] = choice;
    for (size_t output = 0; output < node.out.size(); ++output) {
      add_options(at, output, choice);
    }
    for (size_t i = 0; i < node.in.size(); ++i) {
      Reader reader{choice, {}, node.phase};
      for (int32_t candidate : at.candidates) {
        reader.wants.push_back(wanted_of(node, at.all[candidate], i));
      }
      readers_[node.in[i]].push_back(std::move(reader));
    }
    if (choice != kNone) {
      add_own_cost(n, at, choice);
    }
  }

  /// Returns whether memory and the plan allow a signature. The plan splits to save memory: split
  /// tensors stay split and are not gathered, except where a gather makes a gradient whole and
  /// saves its reduction. Gradients with several contributions keep their layouts, since all must
  /// match. Optimizer nodes follow the layouts of the update, and nodes on routed rows follow their
  /// experts.
  bool may_become(const NodeChoice& at, const ops::AxisSignature& signature) const {
    const Node& node = at.node;
    const ops::AxisSignature& before = at.all[at.first];
    if (node.phase == Phase::optimizer) return false;
    const auto is_routed = [&](TensorId id) { return graph_.tensor(id).type.routed(); };
    if (std::any_of(node.in.begin(), node.in.end(), is_routed) ||
        std::any_of(node.out.begin(), node.out.end(), is_routed)) {
      return false;
    }
    const auto gathers = [](Placement was, Placement is) {
      return was.is_split() && !is.is_split();
    };
    bool only_gradients = true;
    for (size_t output = 0; output < node.out.size(); ++output) {
      const TensorId id = node.out[output];
      const Placement was = before.out[output];
      const Placement is = signature.out[output];
      only_gradients = only_gradients && rules_.param_of(id) != kNone;
      if (was != is && one_of_several_[id]) return false;
      if (gathers(was, is) && !freedom_.unsplit) return false;
    }
    if (only_gradients || freedom_.unsplit) return true;
    for (size_t i = 0; i < num_inputs(node); ++i) {
      if (gathers(before.in[i], signature.in[i])) return false;
    }
    return true;
  }

  ChoiceId add_legality(size_t n, NodeChoice* at) {
    // Evaluates which candidates are legal for every combination of the inputs' placements. Returns
    // the choice among candidates that are ever legal, or kNone.
    const Node& node = at->node;
    std::vector<ChoiceId> makers;
    for (TensorId id : node.in) {
      if (options_[id].choice != kNone) {
        add_once(options_[id].choice, &makers);
      }
    }
    if (makers.empty() && at->candidates.size() == 1) return kNone;
    const NodeLayouts wanted = wanted_before(n);
    const std::vector<Layout> before = layouts_of(node.in);
    rules_.begin(node);
    std::vector<std::vector<bool>> legal;
    for_each_value(makers, [&](const std::vector<int32_t>& values) {
      place_all(node.in, makers, values);
      rules_.begin(node);
      std::vector<bool>& here = legal.emplace_back();
      for (int32_t candidate : at->candidates) {
        const ops::AxisSignature& signature = at->all[candidate];
        here.push_back(rules_.may_take(node, signature, wanted, axis_) &&
                       rules_.cost_of(node, signature, axis_) < kInfinity);
      }
    });
    for (size_t i = 0; i < node.in.size(); ++i) {
      rules_.put(node.in[i], before[i]);
    }
    return add_table_of(legal, std::move(makers), at);
  }

  ChoiceId add_table_of(const std::vector<std::vector<bool>>& legal, std::vector<ChoiceId> makers,
                        NodeChoice* at) {
    std::vector<size_t> kept;  // indices of candidates that are ever legal
    std::vector<int32_t> signatures;
    int32_t start = kNone;
    for (size_t i = 0; i < at->candidates.size(); ++i) {
      if (std::none_of(legal.begin(), legal.end(), [&](const auto& row) { return row[i]; })) {
        continue;
      }
      if (at->candidates[i] == at->first) {
        start = kept.size();
      }
      kept.push_back(i);
      signatures.push_back(at->candidates[i]);
    }
    HOCKET_CHECK(start != kNone, "{}: signature {} is not legal on axis {}", at->node.op, at->first,
                 rules_.mesh().axes[axis_].name);
    at->candidates = signatures;
    const ChoiceId choice =
        kept.size() > 1 ? add_choice(std::move(signatures), kept.size(), start) : kNone;
    CostTable table{std::move(makers), {}};
    if (choice != kNone) {
      table.of.push_back(choice);
    }
    bool any = false;  // is any entry illegal
    for (const std::vector<bool>& row : legal) {
      for (size_t i : kept) {
        table.cost.push_back(row[i] ? 0 : kInfinity);
        any = any || !row[i];
      }
    }
    if (any) {
      made_.problem.tables.push_back(std::move(table));
    }
    return choice;
  }

  /// Returns the layouts that the node reads, on the axes that are chosen before this one.
  NodeLayouts wanted_before(size_t n) const {
    const Node& node = graph_.nodes[n];
    NodeLayouts wanted;
    wanted.in.resize(node.in.size());
    for (size_t axis : rules_.order_of_axes(node)) {
      if (axis == axis_) break;
      for (size_t i = 0; i < node.in.size(); ++i) {
        wanted.in[i].set(axis, now_.node[n].in[i][axis]);
      }
    }
    return wanted;
  }

  std::vector<Layout> layouts_of(const std::vector<TensorId>& ids) const {
    std::vector<Layout> layouts;
    for (TensorId id : ids) {
      layouts.push_back(rules_.layouts()[id]);
    }
    return layouts;
  }

  /// Places these tensors as the choices' values say.
  void place_all(const std::vector<TensorId>& ids, const std::vector<ChoiceId>& choices,
                 const std::vector<int32_t>& values) {
    for (TensorId id : ids) {
      const PlacementOptions& options = options_[id];
      const auto found = std::find(choices.begin(), choices.end(), options.choice);
      if (found == choices.end()) continue;
      const PlacementOption& option =
          options.all[options.by_value[values[found - choices.begin()]]];
      rules_.place(id, option.placed, option.supported, axis_);
    }
  }

  template <class Visit>
  void for_each_value(const std::vector<ChoiceId>& choices, const Visit& visit) const {
    for_each_combination(choices, made_.problem.values, visit);
  }

  void add_options(const NodeChoice& at, size_t output, ChoiceId choice) {
    PlacementOptions options;
    for (int32_t candidate : at.candidates) {
      const ops::AxisSignature& signature = at.all[candidate];
      const PlacementOption option{signature.out[output],
                                   LayoutRules::supports(at.node, signature, output)};
      add_once(option, &options.all);
      options.by_value.push_back(std::find(options.all.begin(), options.all.end(), option) -
                                 options.all.begin());
    }
    const TensorId id = at.node.out[output];
    if (options.all.size() > 1) {
      options.choice = choice;
    } else {
      const Layout was = rules_.layouts()[id];
      rules_.place(id, options.all[0].placed, options.all[0].supported, axis_);
      rules_.put(id, was);
    }
    options_[id] = std::move(options);
  }

  /// Adds the cost that each signature has by itself.
  void add_own_cost(size_t n, const NodeChoice& at, ChoiceId choice) {
    CostTable table{{choice}, {}};
    for (int32_t candidate : at.candidates) {
      const ops::AxisSignature& signature = at.all[candidate];
      std::vector<Layout> in = now_.node[n].in;
      std::vector<Layout> out;
      for (size_t i = 0; i < in.size(); ++i) {
        in[i].set(axis_, wanted_of(at.node, signature, i));
      }
      double cost = candidate == at.first ? 0 : kDeparture;
      for (size_t output = 0; output < at.node.out.size(); ++output) {
        const TensorId id = at.node.out[output];
        out.push_back(now_.tensor[id]);
        out.back().set(axis_, signature.out[output]);
        cost += cost_to_finish(id, signature.out[output]);
      }
      table.cost.push_back(cost + work_cost(graph_, at.node, rules_.mesh(), in, out));
    }
    made_.problem.tables.push_back(std::move(table));
  }

  /// Returns the cost of a gradient's path to its accumulator and its update, or of the sum of an
  /// output that the host reads.
  double cost_to_finish(TensorId id, Placement placed) {
    if (rules_.param_of(id) == kNone) {
      const bool sums = placed.is_partial() && read_by_host_.contains(id);
      return sums ? cost_between(id, placed, Placement::replicate()) : 0;
    }
    double cost = 0;
    if (rules_.sharding().grads != Shard::none) {
      const Layout was = rules_.layouts()[id];
      rules_.place(id, placed, false, axis_);
      const Placement accumulated = rules_.accumulation_layout(id)[axis_];
      rules_.put(id, was);
      cost = cost_between(id, placed, accumulated);
      placed = accumulated;
    }
    if (total_of_[id] == kNone) return cost;
    double bytes = 0;
    const double last = cost_between(id, placed, rules_.updates()[total_of_[id]][axis_], &bytes);
    // Gradients are reduced in buckets and share their rounds.
    return cost + per_step_ * (bytes > 0 ? bytes : last);
  }

  double cost_between(TensorId id, Placement from, Placement to, double* bytes = nullptr) {
    if (from == to) return 0;
    const TensorType& whole = graph_.tensor(id).type;
    if (whole.routed() || !graph::is_floating(whole.dtype)) {
      return reshard_cost(whole, from, to, &path_, bytes);
    }
    Layout elsewhere = now_.tensor[id];
    elsewhere.set(axis_, Placement::replicate());
    const TensorType part = part_of(whole, elsewhere, rules_.mesh());
    const double cost = reshard_cost(part, from, to, &path_, bytes);
    if (cost < kInfinity) return cost;
    // Another axis leaves too little of a dim and would have to release it first: scale the cost of
    // the whole tensor.
    const double share = static_cast<double>(part.bytes()) / whole.bytes();
    double all = 0;
    const double of_whole = reshard_cost(whole, from, to, &path_, &all);
    if (bytes) {
      *bytes = all * share;
    }
    return of_whole * share;
  }

  void add_bringing(TensorId id) {
    // Readers in one pass share a resharding. Tensors that the backward pass gathers again are
    // resharded once per pass.
    std::map<bool, std::vector<Reader>> passes;
    for (const Reader& reader : readers_[id]) {
      if (reader.phase == Phase::optimizer) continue;
      passes[now_.gathers_again[axis_] && reader.phase == Phase::backward].push_back(reader);
    }
    for (auto& [again, readers] : passes) {
      add_bringing(id, readers);
    }
  }

  void add_bringing(TensorId id, const std::vector<Reader>& readers) {
    std::vector<Placement> always;
    std::map<ChoiceId, std::vector<std::vector<Placement>>> by_choice;  // and by value
    for (const Reader& reader : readers) {
      const auto same = [&](Placement placed) { return placed == reader.wants[0]; };
      if (std::all_of(reader.wants.begin(), reader.wants.end(), same)) {
        add_once(reader.wants[0], &always);
        continue;
      }
      auto& wanted = by_choice[reader.choice];
      wanted.resize(reader.wants.size());
      for (size_t value = 0; value < reader.wants.size(); ++value) {
        add_once(reader.wants[value], &wanted[value]);
      }
    }
    const PlacementOptions& options = options_[id];
    if (options.choice == kNone && by_choice.empty()) return;
    std::vector<Wanted> list;
    for (const auto& [choice, wanted] : by_choice) {
      list.push_back({choice, wanted});
    }
    while (list.size() > kReadersInTable) {
      unite(&list);
    }
    CostTable table;
    if (options.choice != kNone) {
      table.of.push_back(options.choice);
    }
    for (const Wanted& one : list) {
      table.of.push_back(one.choice);
    }
    for_each_value(table.of, [&](const std::vector<int32_t>& values) {
      const bool made = options.choice != kNone;
      const PlacementOption& option = options.all[made ? options.by_value[values[0]] : 0];
      std::vector<Placement> wanted = always;
      for (size_t i = 0; i < list.size(); ++i) {
        for (Placement placed : list[i].by_value[values[i + (made ? 1 : 0)]]) {
          add_once(placed, &wanted);
        }
      }
      double cost = 0;
      for (Placement placed : wanted) {
        cost += cost_between(id, option.placed, placed);
      }
      table.cost.push_back(cost);
    });
    made_.problem.tables.push_back(std::move(table));
  }

  /// Placements in which a choice reads a tensor, by its value.
  struct Wanted {
    ChoiceId choice = kNone;
    std::vector<std::vector<Placement>> by_value;
  };

  /// Replaces the last two entries by one: an auxiliary choice, which follows from both, of the
  /// placements that they read together.
  void unite(std::vector<Wanted>* list) {
    const Wanted left = std::move((*list)[list->size() - 2]);
    const Wanted right = std::move(list->back());
    list->resize(list->size() - 2);
    Wanted both;
    std::vector<int32_t> which;  // by the values of both
    int32_t start = 0;
    for_each_value({left.choice, right.choice}, [&](const std::vector<int32_t>& values) {
      std::vector<Placement> wanted = left.by_value[values[0]];
      for (Placement placed : right.by_value[values[1]]) {
        add_once(placed, &wanted);
      }
      std::sort(wanted.begin(), wanted.end());
      add_once(wanted, &both.by_value);
      const auto found = std::find(both.by_value.begin(), both.by_value.end(), wanted);
      which.push_back(found - both.by_value.begin());
      if (values[0] == made_.start[left.choice] && values[1] == made_.start[right.choice]) {
        start = which.back();
      }
    });
    both.choice = add_choice({}, both.by_value.size(), start);
    CostTable table{{left.choice, right.choice, both.choice}, {}};
    for (int32_t value : which) {
      for (int32_t other = 0; other < std::ssize(both.by_value); ++other) {
        table.cost.push_back(other == value ? 0 : kInfinity);
      }
    }
    made_.problem.tables.push_back(std::move(table));
    list->push_back(std::move(both));
  }

  LayoutRules& rules_;
  const Graph& graph_;
  const Layouts& now_;
  const size_t axis_;
  const double per_step_;
  const Freedom freedom_;
  ReshardPaths path_;
  std::vector<PlacementOptions> options_;     // by tensor
  std::vector<std::vector<Reader>> readers_;  // by tensor
  std::vector<int32_t> total_of_;             // by tensor: the gradient that it totals, or kNone
  std::vector<bool> one_of_several_;          // by tensor: its gradient has several contributions
  std::set<TensorId> read_by_host_;
  AxisProblem made_;
};

}  // namespace

AxisProblem axis_problem(LayoutRules* rules, const Layouts& now, size_t axis,
                         int64_t num_micro_batches, const Freedom& freedom) {
  return Builder(rules, now, axis, num_micro_batches, freedom).run();
}

}  // namespace hocket::parallel
