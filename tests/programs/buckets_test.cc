// SPDX-License-Identifier: Apache-2.0
// Buckets: several parameters in one flat buffer, which is sharded over ranks without regard to
// the borders of parameters. Sharded optimizer states; gradients that are reduce-scattered into
// shards; parameters that are gathered, freed and gathered again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "autodiff/autodiff.h"
#include "base/error.h"
#include "base/rng.h"
#include "check/check.h"
#include "engine/params.h"
#include "graph/names.h"
#include "kernels/backend.h"
#include "runtime/local_ranks.h"
#include "tests/programs/program_builder_util.h"

namespace hocket::test::buckets_test {
namespace {

using graph::Attrs;
using graph::Phase;
using program::BufferKind;
using program::kNone;

constexpr int64_t kTokens = 12;

/// Two products in a chain and one beside them, with gradients and the optimizer. The parameters
/// have 12, 8 and 6 elements; the third one is optional.
struct Model {
  ProgramBuilder w;
  int32_t micro_batches;
  TensorId x, dy, du = graph::kNone, w1, w2, w3 = graph::kNone;
  std::vector<TensorId> params;
  std::vector<graph::Dims> dims{{4, 3}, {2, 4}};
  Attrs clip{{"max_norm", 0.5}};
  Attrs adamw{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};

  Model(std::vector<graph::Axis> axes, int32_t micro_batches, bool third)
      : w(std::move(axes)), micro_batches(micro_batches) {
    w.program.num_micro_batches = micro_batches;
    x = w.input("x", f64({kTokens, 3}), false);
    dy = w.input("dy", f64({kTokens, 2}), false);
    w1 = w.param("W1", f64({4, 3}));
    w2 = w.param("W2", f64({2, 4}));
    params = {w1, w2};
    const TensorId h = w.apply("h", "linear", {}, {x, w1})[0];
    w.apply("y", "linear", {}, {h, w2});
    if (third) {
      w3 = w.param("W3", f64({1, 2, 3}));
      dims.push_back({1, 2, 3});
      params.push_back(w3);
      w.apply("u", "linear", {}, {x, w3});
      du = w.input("du", f64({kTokens, 1, 2}), false);
    }
    const TensorId dh = w.apply("dh", "linear_dx", {}, {dy, w2}, Phase::backward)[0];
    const TensorId g1 = w.apply("g1", "linear_dw", {}, {dh, x}, Phase::backward)[0];
    const TensorId g2 = w.apply("g2", "linear_dw", {}, {dy, h}, Phase::backward)[0];
    w.gradient(w1, g1);
    w.gradient(w2, g2);
    if (third) {
      w.gradient(w3, w.apply("g3", "linear_dw", {}, {du, x}, Phase::backward)[0]);
    }
    autodiff::OptimizerConfig config;
    config.max_norm = 0.5;
    autodiff::append_optimizer(w.graph, config);
  }

  TensorId state(const char* prefix, TensorId param) const {
    return w.graph.find(prefix + w.graph.tensor(param).name);
  }
  /// Returns where each parameter begins in a bucket: one behind the other.
  std::vector<int64_t> begins() const {
    std::vector<int64_t> list{0};
    for (TensorId param : params) {
      list.push_back(list.back() + w.graph.tensor(param).type.numel());
    }
    return list;
  }
  int64_t elements() const { return begins().back(); }
  /// Adds a bucket of `elements` elements, with the parameters or one state of each.
  BufferId bucket(const char* prefix, const std::string& name, int64_t elements,
                  const Layout& layout) {
    std::vector<ProgramBuilder::BucketEntry> places;
    for (size_t i = 0; i < params.size(); ++i) {
      const TensorId tensor = *prefix ? state(prefix, params[i]) : params[i];
      places.push_back({tensor, begins()[i]});
    }
    return w.bucket(BufferKind::persistent, name, elements, places, layout);
  }
  /// The tensors in a bucket.
  std::vector<BufferId> views(BufferId bucket) {
    std::vector<BufferId> list;
    for (size_t i = 0; i < params.size(); ++i) {
      list.push_back(w.flat_view(bucket, dims[i], begins()[i]));
    }
    return list;
  }
  /// Forward and backward of a micro-batch on the rank's tokens: gradients, added if they are not
  /// the first.
  void gradients(int32_t micro_batch, const std::vector<BufferId>& forward,
                 const std::function<std::vector<BufferId>()>& backward,
                 const std::vector<BufferId>& grads, bool add) {
    const Layout tokens = w.split(0, {"dp"});
    const int64_t mine = kTokens / w.mesh().axes[0].size;
    const BufferId rows = w.input_buffer(x, tokens, micro_batch),
                   up = w.input_buffer(dy, tokens, micro_batch);
    const BufferId h = w.step_buffer(f64({mine, 4})), dh = w.step_buffer(f64({mine, 4}));
    w.task("linear", {}, {rows, forward[0]}, {h});
    const std::vector<BufferId> again = backward();
    w.task("linear_dx", {}, {up, again[1]}, {dh});
    const auto give = [&](BufferId dy, BufferId in, BufferId to) {
      program::Task& task = w.task("linear_dw", {}, {dy, in}, {to});
      if (add) {
        task.accumulate.add(0);
      }
    };
    give(dh, rows, grads[0]);
    give(up, h, grads[1]);
    if (w3 != graph::kNone) {
      give(w.input_buffer(du, tokens, micro_batch), rows, grads[2]);
    }
  }
  /// Updates the shards of parameters and states by the shard of the gradients.
  void update(BufferId shard, BufferId grads, const std::vector<std::string>& axes,
              int64_t elements, const Layout& sharded) {
    const BufferId norm = w.step_buffer(f64({1})), coef = w.step_buffer(f64({1}));
    w.task("sumsq", {}, {grads}, {norm});
    w.collective("all_reduce", {}, axes, {norm}, {norm});
    const TensorId total = w.graph.find(graph::names::kGradNorm);
    w.task("clip_coef", clip, {norm}, {coef, w.output_buffer(total, {}, kNone)});
    const BufferId mean = bucket(graph::names::kExpAvgOf, "means", elements, sharded);
    const BufferId square = bucket(graph::names::kExpAvgSqOf, "squares", elements, sharded);
    const BufferId hyper = w.input_buffer(w.graph.find(graph::names::kHyper));
    w.task("adamw", adamw, {shard, grads, mean, square, coef, hyper}, {shard, mean, square});
  }
  /// Zeroes the padding behind the parameters in a bucket of gradients.
  void clear_padding(BufferId bucket) {
    const int64_t rest = w.type(bucket).numel() - elements();
    if (rest > 0) {
      const Attrs attrs{{"type", to_string(f64({rest}))}};
      w.task("zero", attrs, {}, {w.flat_view(bucket, {rest}, elements())});
    }
  }
};

int64_t padded(int64_t elements, int64_t ranks) { return (elements + ranks - 1) / ranks * ranks; }

/// Returns a program with sharded states (ZeRO-1): gradients are reduce-scattered, each rank
/// updates its shard of the parameters, and these are gathered.
ProgramBuilder sharded_states(int32_t ranks, bool third, int32_t micro_batches = 1) {
  Model m({{"dp", ranks}}, micro_batches, third);
  ProgramBuilder& w = m.w;
  const int64_t elements = padded(m.elements(), ranks), part = elements / ranks;
  const BufferId params = m.bucket("", "params", elements, {});
  const BufferId grads = w.step_buffer(f64({elements})), shard = w.step_buffer(f64({part}));
  const std::vector<BufferId> weights = m.views(params), to = m.views(grads);
  for (int32_t mb = 0; mb < micro_batches; ++mb) {
    m.gradients(
        mb, weights, [&] { return weights; }, to, mb > 0);
  }
  m.clear_padding(grads);
  w.collective("reduce_scatter", {{"dim", int64_t{0}}}, {"dp"}, {grads}, {shard});
  const BufferId mine = w.flat_view(params, {part}, [=](const At& at) { return at[0] * part; });
  m.update(mine, shard, {"dp"}, elements, w.split(0, {"dp"}));
  const BufferId sent = w.step_buffer(f64({part}));
  w.task("copy", {}, {mine}, {sent});
  w.collective("all_gather", {{"dim", int64_t{0}}}, {"dp"}, {sent}, {params});
  return std::move(m.w);
}

/// Returns a program with sharded gradients, too (ZeRO-2): those of every micro-batch are
/// reduce-scattered, and the shards are accumulated.
ProgramBuilder sharded_gradients(int32_t ranks, bool third) {
  Model m({{"dp", ranks}}, 2, third);
  ProgramBuilder& w = m.w;
  const int64_t elements = padded(m.elements(), ranks), part = elements / ranks;
  const BufferId params = m.bucket("", "params", elements, {});
  const BufferId own = m.bucket("", "shards", elements, w.split(0, {"dp"}));
  const std::vector<BufferId> weights = m.views(params);
  BufferId sum = kNone;
  for (int32_t mb = 0; mb < 2; ++mb) {
    const BufferId grads = w.step_buffer(f64({elements})), shard = w.step_buffer(f64({part}));
    m.gradients(
        mb, weights, [&] { return weights; }, m.views(grads), false);
    m.clear_padding(grads);
    w.collective("reduce_scatter", {{"dim", int64_t{0}}}, {"dp"}, {grads}, {shard});
    if (mb == 0) {
      sum = shard;
    } else {
      w.task("add", {}, {sum, shard}, {sum});
    }
  }
  m.update(own, sum, {"dp"}, elements, w.split(0, {"dp"}));
  w.collective("all_gather", {{"dim", int64_t{0}}}, {"dp"}, {own}, {params});
  return std::move(m.w);
}

/// Returns a program with sharded parameters (ZeRO-3): gathered before the forward pass, freed, and
/// gathered again for the backward pass. Between steps only shards exist.
ProgramBuilder sharded_parameters(int32_t ranks, bool third, int32_t micro_batches) {
  Model m({{"dp", ranks}}, micro_batches, third);
  ProgramBuilder& w = m.w;
  const int64_t elements = padded(m.elements(), ranks), part = elements / ranks;
  const BufferId own = m.bucket("", "shards", elements, w.split(0, {"dp"}));
  const BufferId grads = w.step_buffer(f64({elements})), shard = w.step_buffer(f64({part}));
  const std::vector<BufferId> to = m.views(grads);
  const auto gathered = [&] {
    // Starts only after the readers of the earlier gather: its memory is then free.
    const program::TaskId last = std::ssize(w.program.classes[0].tasks) - 1;
    const BufferId params = w.step_buffer(f64({elements}));
    w.collective("all_gather", {{"dim", int64_t{0}}}, {"dp"}, {own}, {params});
    if (last != kNone) {
      w.program.classes[0].tasks.back().deps = {last};
    }
    return m.views(params);
  };
  for (int32_t mb = 0; mb < micro_batches; ++mb) {
    m.gradients(mb, gathered(), gathered, to, mb > 0);
  }
  m.clear_padding(grads);
  w.collective("reduce_scatter", {{"dim", int64_t{0}}}, {"dp"}, {grads}, {shard});
  m.update(own, shard, {"dp"}, elements, w.split(0, {"dp"}));
  return std::move(m.w);
}

/// Returns a program whose reduce-scatter is a ring of messages: blocks of the bucket travel,
/// regardless of the borders of tensors.
ProgramBuilder ring_of_blocks(int32_t ranks) {
  Model m({{"dp", ranks}}, 1, true);
  ProgramBuilder& w = m.w;
  const int64_t elements = padded(m.elements(), ranks), part = elements / ranks;
  const BufferId params = m.bucket("", "params", elements, {});
  const BufferId own = m.bucket("", "shards", elements, w.split(0, {"dp"}));
  const BufferId grads = w.step_buffer(f64({elements})), arrived = w.step_buffer(f64({part}));
  const std::vector<BufferId> weights = m.views(params);
  m.gradients(
      0, weights, [&] { return weights; }, m.views(grads), false);
  m.clear_padding(grads);
  const auto block = [&](int32_t which) {
    return w.flat_view(grads, {part}, [=](const At& at) {
      return ((at[0] + which) % ranks + ranks) % ranks * part;
    });
  };
  for (int32_t hop = 1; hop < ranks; ++hop) {
    w.shift("dp", 1, block(-hop), arrived);
    const BufferId to = block(-hop - 1);
    w.task("add", {}, {to, arrived}, {to});
  }
  m.update(own, block(0), {"dp"}, elements, w.split(0, {"dp"}));
  w.collective("all_gather", {{"dim", int64_t{0}}}, {"dp"}, {own}, {params});
  return std::move(m.w);
}

/// Returns a program with a tied embedding, whose gradient is the sum of two ops' outputs. Its
/// bucket also has a parameter that is split over ep.
ProgramBuilder tied_and_split(int split_dim) {
  ProgramBuilder w({{"dp", 2}, {"ep", 2}});
  const Attrs vocab{{"vocab", int64_t{8}}};
  const Attrs attrs{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.0}};
  const TensorId ids = w.input("ids", i32({8})), dz = w.input("dz", f64({8, 8}));
  const TensorId a = w.input("a", f64({8, 4})), db = w.input("db", f64({8, 2}));
  const TensorId hyper = w.input(graph::names::kHyper, f64({3})), coef = w.input("coef", f64({1}));
  const TensorId table = w.param("E", f64({8, 3})), other = w.param("V", f64({2, 4}));
  const TensorId h = w.apply("h", "embedding", vocab, {ids, table})[0];
  w.apply("z", "linear", {}, {h, table});
  w.apply("b", "linear", {}, {a, other});
  const TensorId dh = w.apply("dh", "linear_dx", {}, {dz, table}, Phase::backward)[0];
  const TensorId head = w.apply("head", "linear_dw", {}, {dz, h}, Phase::backward)[0];
  const TensorId looked = w.apply("looked", "embedding_dw", vocab, {ids, dh}, Phase::backward)[0];
  const TensorId of_other = w.apply("gV", "linear_dw", {}, {db, a}, Phase::backward)[0];
  const TensorId sum = w.apply("gE", "add", {}, {head, looked}, Phase::optimizer)[0];
  w.graph.grads = {{table, {head, looked}, sum}, {other, {of_other}, of_other}};
  std::map<TensorId, std::array<TensorId, 2>> states;
  for (const auto& [param, grad] : {std::pair{table, sum}, {other, of_other}}) {
    for (int i : {0, 1}) {
      graph::Tensor state = w.graph.tensor(param);
      state.name = (i ? graph::names::kExpAvgSqOf : graph::names::kExpAvgOf) + state.name;
      state.kind = graph::TensorKind::state;
      state.state = graph::StateKind::optimizer;
      state.of = param;
      states[param][i] = w.graph.add_tensor(state);
    }
    w.apply("adamw." + w.graph.tensor(param).name, "adamw", attrs,
            {param, grad, states[param][0], states[param][1], coef, hyper}, Phase::optimizer);
  }
  // E takes 24 elements, a half of V 4: blocks of 14, and the second one has a part of E and V.
  const Layout tokens = w.split(0, {"dp"});
  Layout both = tokens;
  const Layout part_of_other = w.split(split_dim, {"ep"});
  both.set(w.axis("ep"), graph::Placement::split(1));
  const auto bucket = [&](const std::string& name, int which, const Layout& layout) {
    const TensorId first = which < 0 ? table : states[table][which];
    const TensorId second = which < 0 ? other : states[other][which];
    return w.bucket(BufferKind::persistent, name, 28, {{first, 0, {}}, {second, 24, part_of_other}},
                    layout);
  };
  const BufferId params = bucket("params", -1, {});
  const graph::Dims half =
      graph::local_type(w.graph.tensor(other).type, part_of_other, w.mesh()).dims;
  const BufferId rows = w.step_buffer(f64({4, 3})), back = w.step_buffer(f64({4, 3}));
  const BufferId one = w.step_buffer(f64({8, 3})), two = w.step_buffer(f64({8, 3}));
  const BufferId mine = w.input_buffer(ids, tokens), up = w.input_buffer(dz, tokens);
  const BufferId weights = w.flat_view(params, {8, 3}, 0);
  w.task("embedding", vocab, {mine, weights}, {rows});
  w.task("linear_dx", {}, {up, weights}, {back});
  w.task("linear_dw", {}, {up, rows}, {one});
  w.task("embedding_dw", vocab, {mine, back}, {two});
  const BufferId grads = w.step_buffer(f64({28})), shard = w.step_buffer(f64({14}));
  w.task("add", {}, {one, two}, {w.flat_view(grads, {8, 3}, 0)});
  w.task("linear_dw", {},
         {w.input_buffer(db, split_dim == 0 ? both : tokens),
          w.input_buffer(a, split_dim == 1 ? both : tokens)},
         {w.flat_view(grads, half, 24)});
  w.collective("reduce_scatter", {{"dim", int64_t{0}}}, {"dp"}, {grads}, {shard});
  const BufferId own = w.flat_view(params, {14}, [](const At& at) { return at[0] * 14; });
  const BufferId mean = bucket("means", 0, tokens), square = bucket("squares", 1, tokens);
  w.task("adamw", attrs, {own, shard, mean, square, w.input_buffer(coef), w.input_buffer(hyper)},
         {own, mean, square});
  const BufferId sent = w.step_buffer(f64({14}));
  w.task("copy", {}, {own}, {sent});
  w.collective("all_gather", {{"dim", int64_t{0}}}, {"dp"}, {sent}, {params});
  return w;
}

/// Returns a program with random parameters in a sharded bucket, in any order and with gaps.
/// Gradients are reduce-scattered, shards are updated, and gathered for their readers.
ProgramBuilder random_bucket(uint64_t seed) {
  Rng rng(seed);
  const auto ranks = static_cast<int32_t>(rng.between(2, 4));
  ProgramBuilder w({{"dp", ranks}});
  const Layout shards = w.split(0, {"dp"});
  const TensorId x = w.input("x", f64({kTokens, 2}));
  std::vector<TensorId> params, ups;
  std::vector<graph::Dims> dims;
  for (int64_t i = 0, n = rng.between(1, 4); i < n; ++i) {
    dims.push_back({rng.between(1, 5), 2});
    if (rng.below(2) == 0) {
      dims.back().insert(dims.back().begin(), rng.between(1, 3));
    }
    const std::string number = std::to_string(i);
    params.push_back(w.param("W" + number, f64(dims[i])));
    w.apply("y" + number, "linear", {}, {x, params[i]});
    graph::Dims up = dims[i];
    up.pop_back();
    up.insert(up.begin(), kTokens);
    ups.push_back(w.input("dy" + number, f64(up)));
    w.gradient(params[i], w.apply("g" + number, "linear_dw", {}, {ups[i], x}, Phase::backward)[0]);
  }
  autodiff::OptimizerConfig config;
  config.max_norm = 0.5;
  autodiff::append_optimizer(w.graph, config);
  // The order, and the gaps.
  std::vector<size_t> order(params.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  rng.shuffle(order);
  std::vector<int64_t> begin(params.size());
  std::vector<std::pair<int64_t, int64_t>> gaps;
  int64_t elements = 0;
  const auto leave = [&](int64_t length) {
    if (length > 0) {
      gaps.push_back({elements, length});
    }
    elements += length;
  };
  for (size_t i : order) {
    leave(rng.between(0, 2));
    begin[i] = elements;
    elements += w.graph.tensor(params[i]).type.numel();
  }
  leave(padded(elements, ranks) - elements);
  const auto bucket = [&](const char* prefix, const std::string& name, const Layout& layout) {
    std::vector<ProgramBuilder::BucketEntry> places;
    for (size_t i : order) {
      const std::string tensor = prefix + w.graph.tensor(params[i]).name;
      places.push_back({w.graph.find(tensor), begin[i]});
    }
    return w.bucket(BufferKind::persistent, name, elements, places, layout);
  };
  const BufferId own = bucket("", "shards", shards), all = bucket("", "params", {});
  const BufferId mean = bucket(graph::names::kExpAvgOf, "means", shards);
  const BufferId square = bucket(graph::names::kExpAvgSqOf, "squares", shards);
  const BufferId grads = w.step_buffer(f64({elements})),
                 shard = w.step_buffer(f64({elements / ranks}));
  const BufferId rows = w.input_buffer(x, shards);
  for (size_t i = 0; i < params.size(); ++i) {
    const BufferId up = w.input_buffer(ups[i], shards);
    w.task("linear_dw", {}, {up, rows}, {w.flat_view(grads, dims[i], begin[i])});
  }
  for (const auto& [at, length] : gaps) {
    const Attrs attrs{{"type", to_string(f64({length}))}};
    w.task("zero", attrs, {}, {w.flat_view(grads, {length}, at)});
  }
  w.collective("reduce_scatter", {{"dim", int64_t{0}}}, {"dp"}, {grads}, {shard});
  const BufferId norm = w.step_buffer(f64({1})), coef = w.step_buffer(f64({1}));
  w.task("sumsq", {}, {shard}, {norm});
  w.collective("all_reduce", {}, {"dp"}, {norm}, {norm});
  w.task("clip_coef", {{"max_norm", 0.5}}, {norm},
         {coef, w.output_buffer(w.graph.find(graph::names::kGradNorm), {}, kNone)});
  const Attrs adamw{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};
  w.task("adamw", adamw,
         {own, shard, mean, square, coef, w.input_buffer(w.graph.find(graph::names::kHyper))},
         {own, mean, square});
  w.collective("all_gather", {{"dim", int64_t{0}}}, {"dp"}, {own}, {all});
  return w;
}

/// Returns a program for the norm of a tensor of 4 rows of 8. Every rank has half of the columns
/// and squares the elements between the bounds, part by part; all ranks square the rest.
ProgramBuilder norm_of_columns(const std::vector<int64_t>& bounds) {
  ProgramBuilder w({{"dp", 2}});
  const TensorId g = w.input("g", f64({4, 8}));
  const TensorId norm = w.apply("norm", "sumsq", {}, {g})[0];
  w.result(norm);
  const BufferId fed = w.input_buffer(g), wide = w.step_buffer(f64({4, 8})),
                 narrow = w.step_buffer(f64({4, 4}));
  const BufferId whole = w.step_buffer(f64({4, 8}));
  w.task("copy", {}, {fed}, {wide});
  w.task("copy", {}, {fed}, {whole});
  w.task("copy", {}, {w.view(wide, 1, 4, [](const At& at) { return at[0] * 4; })}, {narrow});
  const BufferId sum = w.step_buffer(f64({1}));
  const auto square = [&](BufferId base, int64_t begin, int64_t end, bool first) {
    const BufferId part = w.step_buffer(f64({1}));
    w.task("sumsq", {}, {w.flat_view(base, {end - begin}, begin)}, {first ? sum : part});
    if (!first) {
      w.task("add", {}, {sum, part}, {sum});
    }
  };
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    square(narrow, bounds[i], bounds[i + 1], i == 0);
  }
  w.collective("all_reduce", {}, {"dp"}, {sum}, {sum});
  square(whole, 0, 2 * bounds.front(), false);
  square(whole, 2 * bounds.back(), 32, false);
  w.task("copy", {}, {sum}, {w.output_buffer(norm)});
  return w;
}

const std::vector<ProgramCase>& cases() {
  static const std::vector<ProgramCase> all = {
      {"states", [] { return sharded_states(4, false); }, {"view", "slot"}},
      {"states of three parameters, two micro-batches",
       [] { return sharded_states(2, true, 2); },
       {"view", "slot"}},
      {"states, with padding", [] { return sharded_states(3, false); }, {"view", "slot"}},
      {"gradients", [] { return sharded_gradients(4, false); }, {"view", "slot"}},
      {"gradients, with padding", [] { return sharded_gradients(3, true); }, {"view", "slot"}},
      {"parameters", [] { return sharded_parameters(4, false, 1); }, {"view", "slot"}},
      {"parameters, with padding", [] { return sharded_parameters(4, true, 2); }, {"view", "slot"}},
      {"ring of blocks", [] { return ring_of_blocks(4); }, {"view", "slot"}},
      {"tied, and one split by rows", [] { return tied_and_split(0); }, {"view", "slot"}},
      {"tied, and one split by columns", [] { return tied_and_split(1); }, {"view", "slot"}},
      {"a norm of columns and rows",
       [] {
         return norm_of_columns({4, 12});
       },
       {"view"}},
      {"a norm of columns in parts",
       [] {
         return norm_of_columns({4, 6, 12});
       },
       {"view"}},
  };
  return all;
}

TEST(Buckets, ProvenRunAndSimulated) { expect_proven_run_simulated(cases()); }
TEST(Buckets, RandomShapesProvenRunAndSimulated) {
  std::vector<ProgramCase> any;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    any.push_back({"seed " + std::to_string(seed), [=] { return random_bucket(seed); }});
  }
  expect_proven_run_simulated(any);
}
TEST(Buckets, MutantsAreRefusedOrEqual) { expect_mutants_refused_or_equal(cases()); }

/// Equal numbers of elements of columns and of whole rows are different elements, unless the
/// columns are whole rows.
TEST(Buckets, ColumnsAndRowsOfEqualSizeAreDifferentElements) {
  for (const auto& [bounds, ok] :
       {std::pair<std::vector<int64_t>, bool>{{4, 12}, true}, {{2, 14}, false}, {{4, 10}, false}}) {
    ProgramBuilder w = norm_of_columns(bounds);
    w.finish();
    const check::Verdict verdict = check::check(w.program, w.graph);
    EXPECT_EQ(verdict.ok(), ok) << bounds[0] << "\n" << to_text(verdict);
  }
}

/// Gathered parameters live until their last reader: six times they take turns in the same memory.
TEST(Buckets, ParametersAreFreed) {
  ProgramBuilder w = sharded_parameters(4, false, 3);
  w.finish();
  const auto& cls = w.program.classes[0];
  std::set<int64_t> places;
  int gathers = 0;
  for (const program::Task& task : cls.tasks) {
    if (w.program.kind(task).op == "all_gather") {
      ++gathers;
      places.insert(cls.buffers[task.out[0]].offset);
    }
  }
  EXPECT_EQ(gathers, 6);
  EXPECT_LE(places.size(), 3u);
}

/// Three ranks hold parameters in shards of a bucket, one rank holds them whole. The host fills
/// both alike and reads the same values. A store refuses a program with another layout.
TEST(Buckets, TheHostFillsAndReadsThem) {
  const auto ranks_of = [](int32_t count) {
    return std::make_unique<runtime::LocalRanks>(count, kernels::cpu_backend(),
                                                 runtime::RankOptions{});
  };
  ProgramBuilder sharded = sharded_parameters(3, false, 1);
  ProgramBuilder whole = sharded_states(1, false);
  sharded.finish();
  whole.finish();
  const auto three = ranks_of(3), alone = ranks_of(1);
  const runtime::Store many(*three), one(*alone), again(*three);
  engine::initialise(sharded.graph, sharded.program, 5, many);
  engine::initialise(whole.graph, whole.program, 5, one);
  for (const graph::Tensor& tensor : sharded.graph.tensors) {
    if (tensor.kind != graph::TensorKind::param && tensor.kind != graph::TensorKind::state)
      continue;
    SCOPED_TRACE(tensor.name);
    const std::vector<std::byte> full = engine::gather(tensor, sharded.program, many);
    EXPECT_EQ(full, engine::gather(tensor, whole.program, one));
    engine::scatter(tensor, sharded.program, again, [&](int64_t begin, int64_t count, void* to) {
      std::memcpy(to, full.data() + begin * 8, static_cast<size_t>(count * 8));
    });
    EXPECT_EQ(full, engine::gather(tensor, sharded.program, again));
  }
  EXPECT_NO_THROW(many.at(0).expect_same_layouts(sharded.program));
  ProgramBuilder other = sharded_states(3, false);
  EXPECT_THROW(many.at(0).expect_same_layouts(other.program), Error);
}

/// Edits a program and returns the first problem that the check reports.
check::Problem problem_of(ProgramBuilder w, const std::function<void(ProgramBuilder&)>& edit) {
  edit(w);
  w.finish();
  const check::Verdict verdict = check::check(w.program, w.graph);
  EXPECT_FALSE(verdict.ok());
  return verdict.ok() ? check::Problem{} : verdict.problems[0];
}

program::Task& task_of(ProgramBuilder& w, const std::string& op) {
  for (program::Task& task : w.program.classes[0].tasks) {
    if (w.program.kind(task).op == op) return task;
  }
  throw std::runtime_error("no " + op);
}

void remove_task(ProgramBuilder& w, const std::string& op, size_t which = 0) {
  auto& tasks = w.program.classes[0].tasks;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (w.program.kind(tasks[i]).op == op && which-- == 0) {
      tasks.erase(tasks.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }
}

#define EXPECT_SAYS(problem, want_rule, what)                        \
  do {                                                               \
    const check::Problem seen = problem;                             \
    EXPECT_EQ(seen.rule, want_rule) << seen.text;                    \
    EXPECT_NE(seen.text.find(what), std::string::npos) << seen.text; \
  } while (false)

TEST(Buckets, APartThatIsWrittenDoesNotBringBackTheRest) {
  // A gradient is in its place in a bucket when a repeated task puts its output over it. Then the
  // other gradient is written beside it.
  ProgramBuilder w = tied_and_split(0);
  w.finish();
  auto& tasks = w.program.classes[0].tasks;
  const auto is = [&](const char* op) {
    return [&w, op](const program::Task& task) { return w.program.kind(task).op == op; };
  };
  const program::Task again = *std::find_if(tasks.begin(), tasks.end(), is("linear_dx"));
  const auto place = std::find_if(tasks.begin(), tasks.end(), is("add")) - tasks.begin() + 1;
  tasks.insert(tasks.begin() + place, again);
  for (auto task = tasks.begin() + place; task != tasks.end(); ++task) {
    for (program::TaskId& dep : task->deps) {
      dep = dep >= place ? program::TaskId(dep.value() + 1) : dep;
    }
  }
  const check::Verdict verdict = check::check(w.program, w.graph);
  ASSERT_FALSE(verdict.ok());
  EXPECT_EQ(verdict.problems[0].rule, "overwritten") << to_text(verdict);
}

TEST(Buckets, RefusalsNameWhatIsMissing) {
  // The norm of a rank's own shard; the parameters before they are gathered; a shard that is
  // updated with that of the next rank; padding that nothing has cleared.
  EXPECT_SAYS(
      problem_of(sharded_states(4, false), [](ProgramBuilder& w) { remove_task(w, "all_reduce"); }),
      "unfinished-sum", "clip_coef");
  EXPECT_SAYS(
      problem_of(sharded_states(4, false), [](ProgramBuilder& w) { remove_task(w, "all_gather"); }),
      "final-value", "W1");
  EXPECT_SAYS(problem_of(sharded_states(4, false),
                         [](ProgramBuilder& w) {
                           const BufferId own = task_of(w, "adamw").in[0];
                           program::Buffer& view = w.program.classes[0].buffers[own];
                           program::Table moved = w.program.tables[view.by];
                           std::rotate(moved.values.begin(), moved.values.begin() + 1,
                                       moved.values.end());
                           view.by = w.program.intern(moved);
                         }),
              "pack-fits", "other elements");
  EXPECT_SAYS(
      problem_of(sharded_states(3, false), [](ProgramBuilder& w) { remove_task(w, "zero"); }),
      "view-tiled", "only");
  // A block of gradients that were not reduced.
  EXPECT_SAYS(problem_of(sharded_states(4, false),
                         [](ProgramBuilder& w) {
                           program::Task& scatter = task_of(w, "reduce_scatter");
                           const auto place = &scatter - w.program.classes[0].tasks.data();
                           const BufferId grads = scatter.in[0], shard = scatter.out[0];
                           const BufferId block = w.flat_view(
                               grads, {5}, [](const At& at) { return int64_t{at[0]} * 5; });
                           w.task("copy", {}, {block}, {shard});
                           auto& tasks = w.program.classes[0].tasks;
                           tasks[static_cast<size_t>(place)] = tasks.back();
                           tasks.pop_back();
                         }),
              "layout-legal", "sumsq");
  // Blocks of the ranks that hold other parts of a parameter, instead of other blocks.
  for (int split_dim : {0, 1}) {
    const auto over_ep = [](const std::string& op) {
      return [op](ProgramBuilder& w) {
        task_of(w, op).group = w.program.intern(program::group_over({w.axis("ep")}));
      };
    };
    EXPECT_SAYS(problem_of(tied_and_split(split_dim), over_ep("reduce_scatter")), "scatter-layout",
                "not partial over ep");
    EXPECT_SAYS(problem_of(tied_and_split(split_dim), over_ep("all_gather")),
                split_dim == 0 ? "final-value" : "gather-layout",
                split_dim == 0 ? "params" : "over ep");
  }
}

TEST(Buckets, RefuseSlotsThatAreNotPartsOfTheirTensors) {
  // Declares a dim that no tensor here has, so that the bucket's content after the step is wrong in
  // any case.
  const auto spoil = [](ProgramBuilder& w) {
    for (program::Buffer& buffer : w.current().buffers) {
      if (buffer.kind == program::BufferKind::persistent && !buffer.slots.empty()) {
        buffer.slots[0].layout.set(0, graph::Placement::split(3));
      }
    }
  };
  EXPECT_SAYS(problem_of(sharded_states(4, false), spoil), "named-tensor", "no such dims");
}

/// Returns the first problem of a program that uses views of a tensor of two rows of three, or "".
std::string said_of_views(const std::function<void(ProgramBuilder&, BufferId)>& use) {
  ProgramBuilder w({{"dp", 1}});
  const TensorId x = w.input("x", f64({2, 3}));
  const TensorId weight = w.input("W", f64({2, 3}));
  const TensorId y = w.apply("y", "linear", {}, {x, weight})[0];
  w.result(y);
  const BufferId fed = w.input_buffer(x);
  w.task("linear", {}, {fed, w.input_buffer(weight)}, {w.output_buffer(y)});
  use(w, fed);
  w.finish();
  const check::Verdict verdict = check::check(w.program, w.graph);
  return verdict.ok() ? "" : verdict.problems[0].rule + ": " + verdict.problems[0].text;
}

TEST(Buckets, AViewOfWholeRowsMustBeginAtARow) {
  const auto copy_of = [](const graph::Dims& dims, int64_t begin) {
    return [=](ProgramBuilder& w, BufferId x) {
      w.task("copy", {}, {w.flat_view(x, dims, begin)}, {w.step_buffer(f64(dims))});
    };
  };
  EXPECT_EQ(said_of_views(copy_of({1, 3}, 3)), "");
  EXPECT_EQ(said_of_views(copy_of({3}, 1)), "");
  const std::string said = said_of_views(copy_of({1, 3}, 1));
  EXPECT_EQ(said.rfind("view-tiled: ", 0), 0u) << said;
  EXPECT_NE(said.find("whole rows of one"), std::string::npos) << said;
}

TEST(Buckets, OtherElementsAreNotAddedUp) {
  const auto sum_with = [](int64_t begin) {
    return [=](ProgramBuilder& w, BufferId x) {
      w.task("add", {}, {w.flat_view(x, {3}, 1), w.flat_view(x, {3}, begin)},
             {w.step_buffer(f64({3}))});
    };
  };
  EXPECT_EQ(said_of_views(sum_with(1)), "");
  EXPECT_NE(said_of_views(sum_with(2)), "");
}

/// Two lists of tensors are added to one and the same list, element by element.
TEST(Buckets, SumsDependOnTheTensorsOfBothSides) {
  ProgramBuilder w({{"a", 1}});
  constexpr int64_t kSize = 4;
  std::map<char, BufferId> fed;
  std::map<char, TensorId> tensor;
  for (const char name : std::string("pqxyz")) {
    tensor[name] = w.input(std::string(1, name), f64({kSize}));
    fed[name] = w.input_buffer(tensor[name]);
  }
  const auto list = [&](const std::string& names) {
    const BufferId whole = w.step_buffer(f64({kSize * std::ssize(names)}));
    for (size_t i = 0; i < names.size(); ++i) {
      const BufferId part = w.flat_view(whole, {kSize}, kSize * static_cast<int64_t>(i));
      w.task("copy", {}, {fed[names[i]]}, {part});
    }
    return whole;
  };
  const BufferId common = list("pqp");
  const auto add = [&](const std::string& names) {
    const BufferId sum = w.step_buffer(f64({3 * kSize}));
    w.task("add", {}, {list(names), common}, {sum});
    return sum;
  };
  const auto expect = [&](char one, char other, BufferId sum, int64_t begin) {
    const TensorId id =
        w.apply(std::string{one, other}, "add", {}, {tensor[one], tensor[other]})[0];
    w.result(id);
    w.task("copy", {}, {w.flat_view(sum, {kSize}, begin)}, {w.output_buffer(id)});
  };
  const BufferId twice = add("xyx"), once = add("xyz");
  expect('x', 'p', twice, 2 * kSize);
  expect('y', 'q', twice, kSize);
  expect('z', 'p', once, 2 * kSize);
  w.finish();
  const check::Verdict verdict = check::check(w.program, w.graph);
  EXPECT_TRUE(verdict.ok()) << to_text(verdict);
}

/// Shards move around the ranks of a second role, along its own axis.
TEST(Buckets, MoveAlongTheAxesOfTheirRole) {
  for (const int32_t hops : {0, 1, 2}) {
    ProgramBuilder w({{"dp", 2}});
    const TensorId x = w.input("x", f64({4, 3}));
    const TensorId weight = w.param("W", f64({2, 3}));
    const TensorId y = w.apply("y", "linear", {}, {x, weight})[0];
    const TensorId other = w.param("V", f64({2, 2}));
    w.result(y);
    w.task("linear", {}, {w.input_buffer(x), w.persistent_buffer(weight)}, {w.output_buffer(y)});
    w.add_role("others", {{"one", 1}, {"q", 2}});
    const BufferId own =
        w.bucket(BufferKind::persistent, "own", 10, {{weight, 0}, {other, 6}}, w.split(0, {"q"}));
    const BufferId came = w.step_buffer(f64({5}));
    for (int32_t hop = 0; hop < hops; ++hop) {
      w.shift("q", 1, own, came);
      w.task("copy", {}, {came}, {own});
    }
    w.finish();
    const check::Verdict verdict = check::check(w.program, w.graph);
    EXPECT_EQ(verdict.ok(), hops != 1) << hops << "\n" << to_text(verdict);
  }
}

}  // namespace
}  // namespace hocket::test::buckets_test
