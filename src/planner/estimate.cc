// SPDX-License-Identifier: Apache-2.0
#include "planner/estimate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace hocket::planner {

/// Seconds and bytes of one layer on one rank, per micro-batch. `least`: what no layout goes below.
struct Estimator::Layer {
  std::array<double, kParts> seconds{}, least{};
  double least_sums = 0;  ///< seconds of the sums that a forward pass waits for
  double kept = 0, least_kept = 0;
  double whole = 0;               ///< kept without recompute
  double dense = 0, experts = 0;  ///< bytes of a rank's parameters, nothing split among replicas
  double tied = 0;                ///< and of its copies of the embedding's
};

struct Estimator::Prices {
  std::vector<Layer> layers;  // by kind
};

struct Estimator::Groups {
  cost::GroupShape tp, cp, etp, replicas, expert_replicas, next;
  cost::GroupShape ep, ep_inner;    ///< where rows go first, and then, if not in one step
  cost::GroupShape inside, across;  ///< replicas of one shard.group, and those that have one part
};

/// How many times as long ranks take as the fastest device would with as many sequences as the
/// others, by their place in the pipeline; and how many times as many the replica with most has.
struct Estimator::Pace {
  std::vector<double> times;
  double most = 1;
};

namespace {

/// Of what a forward pass keeps, the gradients that products of weights need later on are about as
/// much: those of the outputs of linear layers, some of which are freed when they are used.
constexpr double kOutputGradients = 0.15;
/// Where all ranks on average are estimated to take more than this times what there is, no layers
/// on stages will fit.
constexpr double kHopeless = 1.3;

/// Ranks first, first + stride, .. of the mesh, as a cluster sees them.
cost::GroupShape shape_of(const cost::Cluster& cluster, int64_t count, int64_t stride) {
  std::vector<int32_t> ranks;
  for (int64_t i = 0; i < count; ++i) {
    ranks.push_back(static_cast<int32_t>(i * stride));
  }
  return cluster.shape(ranks);
}

/// Ranks of tp that share something.
double ranks_of_tp(const Choice& choice, Share share) {
  const double tp = choice.tp;
  switch (share) {
    case Share::tokens:
      return choice.sequence_parallel ? tp : 1;
    case Share::features:
      return tp;
    case Share::experts:
      return choice.sequence_parallel ? tp : choice.etp;
  }
  return 1;
}

/// Ranks over which parameters lie that are not split among replicas.
double ranks_of_parameters(const Choice& choice, Share share) {
  switch (share) {
    case Share::tokens:
      return 1;
    case Share::features:
      return choice.tp;
    case Share::experts:
      return static_cast<double>(choice.ep) * choice.etp;
  }
  return 1;
}

}  // namespace

Estimator::Estimator(const Space& space, const graph::Graph& graph, const cost::CostModel& costs,
                     How how)
    : space_(space), costs_(costs), how_(how) {
  tables_ = tables_of(graph, kRecompute);
}

Estimator::~Estimator() = default;

size_t Estimator::HashTransfer::operator()(const Transfer& transfer) const {
  constexpr uint64_t kMix = 0x9e3779b97f4a7c15u;
  uint64_t hash = std::bit_cast<uint64_t>(transfer.payload) * kMix;
  hash = (hash ^ (hash >> 32) ^ reinterpret_cast<uintptr_t>(transfer.shape)) * kMix;
  return (hash ^ (hash >> 29) ^ static_cast<uint64_t>(transfer.op)) * kMix;
}

double Estimator::collective_s(comm::Id op, double payload, const cost::GroupShape& shape) const {
  if (shape.members <= 1 || payload <= 0) return 0;
  const auto [at, fresh] = seconds_.try_emplace({op, &shape, payload}, 0.0);
  if (fresh) {
    at->second = costs_.ways(comm::op(op), payload, shape.nodes > 1, shape).front().seconds();
  }
  return at->second;
}

/// The same in transfers of plan.bucket_mib.
double Estimator::bucketed_s(comm::Id op, double bytes, const cost::GroupShape& shape) const {
  if (bytes <= 0) return 0;
  const double count = std::max(1.0, std::ceil(bytes / std::max(1.0, how_.bucket_bytes)));
  return count * collective_s(op, bytes / count, shape);
}

const Estimator::Groups& Estimator::groups(const Choice& choice) {
  const std::array<int32_t, 9> key{
      choice.pp,  choice.dp,  choice.cp,       choice.tp,
      choice.ep,  choice.etp, choice.ep_inner, choice.sequence_parallel ? 1 : 0,
      choice.keys};
  std::unique_ptr<Groups>& known = groups_[key];
  if (known) return *known;
  known = std::make_unique<Groups>();
  const cost::Cluster& cluster = costs_.cluster();
  const int64_t tp = choice.tp;
  known->tp = shape_of(cluster, tp, 1);
  known->cp = shape_of(cluster, choice.cp, tp);
  known->etp = shape_of(cluster, choice.etp, 1);
  known->replicas = shape_of(cluster, choice.replicas(), tp);
  const Choice::Over over = choice.ep_over();
  const auto ranks_of = [&](int64_t over_dp) {
    std::vector<int32_t> ranks;
    for (int64_t d = 0; d < over_dp; ++d) {
      for (int64_t c = 0; c < over.cp; ++c) {
        for (int64_t t = 0; t < over.tp; ++t) {
          ranks.push_back(static_cast<int32_t>((d * choice.cp + c) * tp + t * choice.etp));
        }
      }
    }
    return cluster.shape(ranks);
  };
  const int64_t together = choice.ep_inner;
  known->ep = together > 1 ? shape_of(cluster, over.dp / together, together * choice.cp * tp)
                           : ranks_of(over.dp);
  known->ep_inner = together > 1 ? ranks_of(together) : shape_of(cluster, 1, 1);
  const int64_t copies = choice.expert_replicas();
  known->expert_replicas = shape_of(cluster, copies, choice.replicas() * tp / copies);
  const int64_t group = shard_group(space_, choice);
  known->inside = shape_of(cluster, group, tp);
  known->across = shape_of(cluster, choice.replicas() / group, group * tp);
  const int64_t stage = choice.replicas() * tp;
  known->next = shape_of(cluster, choice.pp > 1 ? 2 : 1, stage);
  return *known;
}

/// Bytes of the rows that a rank sends to experts in a layer.
double Estimator::exchanged_rows(const Choice& choice) const {
  const double sequences = static_cast<double>(choice.micro_batch) / choice.cp;
  return tables_[0].residual_bytes * sequences / ranks_of_tp(choice, Share::tokens) *
         static_cast<double>(space_.model.top_k);
}

/// Until they are there, in one step or two.
double Estimator::exchange_s(const Choice& choice, const Groups& groups) const {
  const double rows = exchanged_rows(choice);
  return collective_s(comm::Id::all_to_all, rows, groups.ep) +
         collective_s(comm::Id::all_to_all, rows, groups.ep_inner);
}

Choice Estimator::with_fastest_exchange(const Choice& mesh) {
  Choice fastest = mesh;
  double least = exchange_s(mesh, groups(mesh));
  for (const int32_t together : inner_experts(space_, mesh)) {
    Choice other = mesh;
    other.ep_inner = together;
    const double seconds = exchange_s(other, groups(other));
    if (seconds < least) {
      least = seconds;
      fastest = other;
    }
  }
  return fastest;
}

/// Adds the time of the collectives of one layer's passes.
void Estimator::add_sums(const Choice& choice, size_t kind, const Groups& groups,
                         Layer* layer) const {
  const ModelTable& table = tables_[choice.recompute];
  const LayerWork& work = table.kinds[kind];
  const double sequences = static_cast<double>(choice.micro_batch) / choice.cp;
  const double residual = table.residual_bytes * sequences;
  const auto add = [&](size_t part, double seconds) { layer->seconds[part] += seconds; };
  constexpr size_t kForward = 0, kInputs = 1;
  const bool block = kind >= kFirstLayerKind;
  const double again = choice.recompute == kRecomputeFull ? 1 : 0;  // sums are done again
  if (choice.tp > 1) {
    const double sum = choice.sequence_parallel
                           ? collective_s(comm::Id::all_gather, residual, groups.tp) +
                                 collective_s(comm::Id::reduce_scatter, residual, groups.tp)
                           : collective_s(comm::Id::all_reduce, residual, groups.tp);
    const double sums = block && !work.has_experts ? 2 : 1;
    add(kForward, sums * sum);
    add(kInputs, sums * sum * (1 + again));
    if (choice.sequence_parallel) {
      // What products read is gathered again for the gradients of their weights.
      add(kInputs, sums * collective_s(comm::Id::all_gather, residual, groups.tp));
    }
    const bool own_sums = !how_.blocking || costs_.calibrated();
    if (block && !own_sums) {
      const double least = std::min(sum, collective_s(comm::Id::all_reduce, residual, groups.tp));
      layer->least_sums += sums * least;
    }
  }
  if (block && choice.cp > 1) {
    const double keys = work.key_bytes * choice.micro_batch / choice.tp;
    if (choice.keys == kHeadsForTokens) {
      const double heads = work.head_bytes * sequences / choice.tp;
      const double moved = collective_s(comm::Id::all_to_all, heads, groups.cp) * 2 +
                           collective_s(comm::Id::all_to_all, keys / choice.cp, groups.cp);
      add(kForward, moved);
      add(kInputs, moved * (1 + again));
    } else {
      const double gather = collective_s(comm::Id::all_gather, keys, groups.cp);
      const double share = choice.keys == kKeysInRing ? 0.5 : 1;  // beside attention
      add(kForward, share * gather);
      add(kInputs, share * gather * (2 + again));
    }
  }
  if (work.has_experts) {
    const double rows = exchanged_rows(choice);
    double both = 2 * exchange_s(choice, groups);
    if (choice.etp > 1) {
      both += choice.sequence_parallel
                  ? collective_s(comm::Id::all_gather, rows * choice.etp, groups.etp) +
                        collective_s(comm::Id::reduce_scatter, rows * choice.etp, groups.etp)
                  : collective_s(comm::Id::all_reduce, residual, groups.etp);
    }
    add(kForward, both);
    add(kInputs, both * (1 + again));
  }
}

Estimator::Layer Estimator::price(const Choice& choice, size_t kind, const Groups& groups) const {
  const LayerWork& work = tables_[choice.recompute].kinds[kind];
  const double element = static_cast<double>(tables_[0].element_bytes);
  const double sequences = static_cast<double>(choice.micro_batch) / choice.cp;
  const double fastest = costs_.fastest_share();
  const double launch = costs_.cluster().device.launch.value;
  Layer layer;
  const auto seconds = [&](const NodeWork& node, double ranks, double of_parameters) {
    const double moved = node.activations * sequences / ranks + node.parameters / of_parameters;
    return costs_.roofline_s(node.op, node.dtype, node.flops * sequences / ranks,
                             static_cast<int64_t>(moved));
  };
  for (const NodeWork& node : work.nodes) {
    const size_t part = static_cast<size_t>(node.part);
    layer.seconds[part] +=
        seconds(node, ranks_of_tp(choice, node.share), ranks_of_parameters(choice, node.share)) +
        launch;
    // At the best a node is shared by all of tp, and reads nothing but its part of everything.
    const double all = static_cast<double>(choice.tp);
    const double product = costs_.roofline_s(node.op, node.dtype, node.flops * sequences / all, 0);
    layer.least[part] += product * fastest + (costs_.calibrated() ? 0 : launch);
  }
  for (size_t s = 0; s < kShares; ++s) {
    const Share share = static_cast<Share>(s);
    layer.kept += of(work.kept, share) * sequences / ranks_of_tp(choice, share);
    layer.whole += of(tables_[0].kinds[kind].kept, share) * sequences / ranks_of_tp(choice, share);
    layer.least_kept += of(work.kept, share) * sequences / choice.tp;
    const double ranks = ranks_of_parameters(choice, share);
    const double held = of(work.parameters, share) * element / ranks;
    (share == Share::experts ? layer.experts : layer.dense) += held;
    layer.tied += of(work.tied, share) * element / ranks;
  }
  add_sums(choice, kind, groups, &layer);
  return layer;
}

const Estimator::Prices& Estimator::prices(const Choice& choice) {
  const std::array<int32_t, 10> key{choice.dp,       choice.cp,   choice.tp,
                                    choice.ep,       choice.etp,  choice.sequence_parallel ? 1 : 0,
                                    choice.ep_inner, choice.keys, choice.micro_batch,
                                    choice.recompute};
  std::unique_ptr<Prices>& known = prices_[key];
  if (known) return *known;
  known = std::make_unique<Prices>();
  const Groups& lie = groups(choice);
  for (size_t kind = 0; kind < tables_[0].kinds.size(); ++kind) {
    known->layers.push_back(price(choice, kind, lie));
  }
  return *known;
}

const Estimator::Pace& Estimator::pace(const Choice& choice) {
  const std::array<int32_t, 5> key{choice.pp, choice.dp, choice.micro_batch, choice.sequences,
                                   choice.layers.none() ? 0 : 1};
  const auto [at, fresh] = paces_.try_emplace(key);
  Pace& known = at->second;
  if (!fresh) return known;
  const std::vector<int64_t> each = samples(space_, choice);
  const double usual = choice.micro_batch;
  known.most = static_cast<double>(*std::max_element(each.begin(), each.end())) / usual;
  known.times.assign(static_cast<size_t>(choice.pp), space_.speed.empty() ? known.most : 0);
  for (size_t rank = 0; rank < space_.speed.size(); ++rank) {
    const size_t replica = rank / static_cast<size_t>(choice.cp * choice.tp);
    const double share = static_cast<double>(each[replica % each.size()]) / usual;
    double& times = known.times[replica / each.size()];
    times = std::max(times, share / space_.speed[rank]);
  }
  return known;
}

/// Layers of every stage, by kind.
const std::vector<Estimator::Counts>& Estimator::stages(const Choice& choice) {
  std::vector<Counts>& known = stages_[{stages_of(choice).count(), choice.layers}];
  if (!known.empty()) return known;
  const std::vector<int64_t> layers = stage_layers(space_, choice);
  const ModelTable& table = tables_[0];
  known.assign(layers.size(), Counts(table.kinds.size(), 0));
  size_t next = 0;
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    for (int64_t i = 0; i < layers[stage]; ++i) {
      known[stage][table.kind_of[next++]] += 1;
    }
  }
  known.front()[kEmbedding] += 1;
  known.back()[kHead] += 1;
  return known;
}

/// Time by which sums over replicas make a step longer: what does not fit beside the passes of the
/// micro-batches (plan.overlap_grad_reduce), and what follows the last of them.
double Estimator::sync_s(const Choice& choice, const Groups& groups, double dense, double experts,
                         double forward, double backward) const {
  const double count = static_cast<double>(num_micro_batches(space_, choice));
  const auto both = [&](comm::Id op) {
    const double share = op == comm::Id::all_gather ? 1 : tables_[0].gradient_share;
    return bucketed_s(op, dense * share, groups.replicas) +
           bucketed_s(op, experts * share, groups.expert_replicas);
  };
  const auto exposed = [](double sent, double beside) { return std::max(0.0, sent - beside); };
  switch (choice.shard) {
    case 0:
      return exposed(both(comm::Id::all_reduce), backward);
    case kZero1:
      return exposed(both(comm::Id::reduce_scatter), backward) + both(comm::Id::all_gather);
    case kZero2:
      return count * exposed(both(comm::Id::reduce_scatter), backward) + both(comm::Id::all_gather);
    case kHybrid: {
      const double all = dense + experts;
      const double gradients = all * tables_[0].gradient_share;
      const auto groups_of = static_cast<double>(shard_group(space_, choice));
      const double gather = bucketed_s(comm::Id::all_gather, all, groups.inside);
      const double scatter = bucketed_s(comm::Id::reduce_scatter, gradients, groups.inside);
      return count * (exposed(gather, forward) + exposed(gather + scatter, backward)) +
             bucketed_s(comm::Id::reduce_scatter, gradients / groups_of, groups.across) +
             bucketed_s(comm::Id::all_gather, all / groups_of, groups.across);
    }
    default: {  // kZero3
      const double gather = both(comm::Id::all_gather);
      const double scatter = both(comm::Id::reduce_scatter);
      return count * (exposed(gather, forward) + exposed(gather + scatter, backward));
    }
  }
}

/// Bytes of parameters, gradients and states of a rank that has so many bytes of parameters before
/// they are split among replicas.
double Estimator::held_bytes(const Choice& choice, int64_t micro_batches, double dense,
                             double experts, bool least) const {
  const ModelTable& table = tables_[0];
  const double replicas = static_cast<double>(choice.replicas());
  const double copies = static_cast<double>(choice.expert_replicas());
  const auto part = [&](bool split) {
    return split ? dense / replicas + experts / copies : dense + experts;
  };
  // With one micro-batch gradients may be on their way as soon as they are there.
  const bool pass_by = least && micro_batches == 1;
  if (choice.shard == kHybrid) {
    const double group = (dense + experts) / static_cast<double>(shard_group(space_, choice));
    return group + table.state_share * part(true) + (pass_by ? 0 : table.gradient_share * group);
  }
  const double gradients = pass_by ? 0 : table.gradient_share * part(choice.shard >= kZero2);
  return part(choice.shard >= kZero3) + table.state_share * part(choice.shard >= kZero1) +
         gradients;
}

/// What the backward pass of one layer has at a time beyond what is kept: about as much as its
/// forward pass would keep without recompute, and its parameters where these are gathered.
double Estimator::working_bytes(const Choice& choice, size_t kind) const {
  const double sequences = static_cast<double>(choice.micro_batch) / choice.cp;
  const double element = static_cast<double>(tables_[0].element_bytes);
  double bytes = 0;
  for (size_t s = 0; s < kShares; ++s) {
    const Share share = static_cast<Share>(s);
    bytes += of(tables_[0].kinds[kind].kept, share) * sequences / ranks_of_tp(choice, share);
    if (choice.shard >= kZero3) {
      bytes += 2 * of(tables_[0].kinds[kind].parameters, share) * element /
               ranks_of_parameters(choice, share);
    }
  }
  return bytes;
}

Guess Estimator::guess(const Choice& choice) {
  // Prices by kind of layer, summed over the layers of every pipeline rank; the slowest of these
  // sets the pace, and the schedule says how long it waits, and how many micro-batches a rank
  // keeps. The bound adds to a rank's own work the passes that must come before its first and
  // after its last one.
  const Prices& price = prices(choice);
  const std::vector<Counts>& layers = stages(choice);
  const Groups& lie = groups(choice);
  const int64_t count = num_micro_batches(space_, choice);
  const PipelineShape& shape = shapes_.of(choice, count);
  const bool alike = space_.speed.empty() && choice.sequences == 0;
  const Pace* const unlike = alike ? nullptr : &pace(choice);
  const auto sum = [&](const Counts& counts, auto value) {
    double total = 0;
    for (size_t kind = 0; kind < counts.size(); ++kind) {
      total += counts[kind] == 0 ? 0 : counts[kind] * value(price.layers[kind]);
    }
    return total;
  };
  // By stage: what passes through the stages before it take at least.
  std::vector<std::array<double, kParts>> before(layers.size() + 1);
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    for (size_t p = 0; p < kParts; ++p) {
      before[stage + 1][p] =
          before[stage][p] + sum(layers[stage], [&](const Layer& layer) { return layer.least[p]; });
    }
  }
  const double bandwidth = std::max(1.0, costs_.cluster().device.memory_bandwidth.value);
  const double residual = tables_[0].residual_bytes * choice.micro_batch / choice.cp;
  Guess guess;
  Counts all;
  double passes = 0;  // of a micro-batch, through all ranks
  for (size_t place = 0; place < shape.ranks.size(); ++place) {
    const PipelineShape::Rank& rank = shape.ranks[place];
    all.assign(price.layers.size(), 0);
    for (const auto& [stage, share] : rank.stages) {
      for (size_t kind = 0; kind < all.size(); ++kind) {
        all[kind] += layers[static_cast<size_t>(stage)][kind] * share;
      }
    }
    // Parameters of a stage are there whatever share of the micro-batches it has.
    double dense = 0, experts = 0, working = 0, tied = 0;
    for (const auto& [stage, share] : rank.stages) {
      const Counts& counts = layers[static_cast<size_t>(stage)];
      dense += sum(counts, [](const Layer& layer) { return layer.dense; });
      experts += sum(counts, [](const Layer& layer) { return layer.experts; });
      for (size_t kind = 0; kind < counts.size(); ++kind) {
        if (counts[kind] == 0) continue;
        working = std::max(working, working_bytes(choice, kind));
        tied = std::max(tied, price.layers[kind].tied);
      }
    }
    if (all[kEmbedding] == 0) {
      dense += tied;
    }
    std::array<double, kParts> part{}, least{};
    for (size_t p = 0; p < kParts; ++p) {
      part[p] = sum(all, [&](const Layer& layer) { return layer.seconds[p]; }) *
                (unlike ? unlike->times[place] : 1);
      least[p] = sum(all, [&](const Layer& layer) { return layer.least[p]; });
    }
    const double pass = part[0] + part[1] + part[2];
    const double update = 7 * held_bytes(choice, 1, dense, experts, true) / 3 / bandwidth;
    passes += pass;
    guess.seconds = std::max(guess.seconds,
                             static_cast<double>(count) * pass + update +
                                 sync_s(choice, lie, dense, experts, part[0], part[1] + part[2]));
    const std::array<double, kParts>& last = before[static_cast<size_t>(rank.last_stage)];
    const double after = rank.last_kind == 'B'   ? last[1] + last[2]
                         : rank.last_kind == 'I' ? last[1]
                                                 : 0;
    const double least_s = before[static_cast<size_t>(rank.first_stage)][0] + after +
                           static_cast<double>(count) * (least[0] + least[1] + least[2]);
    const double sums =
        shape.overlaps ? 0 : sum(all, [](const Layer& layer) { return layer.least_sums; });
    guess.least_any_s = std::max(guess.least_any_s, least_s);
    guess.least_s = std::max(guess.least_s, least_s + static_cast<double>(count) * sums);

    const double kept = sum(all, [](const Layer& layer) { return layer.kept; });
    // Gradients of weights that are put off need what was computed again, and the gradients of
    // outputs.
    const double whole = sum(all, [](const Layer& layer) { return layer.whole; });
    const double put_off = rank.pending * ((1 + kOutputGradients) * whole - kept);
    guess.bytes = std::max(
        guess.bytes, held_bytes(choice, count, dense, experts, false) +
                         (rank.live * kept + put_off + working) * (unlike ? unlike->most : 1));
    // What a stage gives to the next one it does not keep; of a split backward pass the first half
    // may free what only it reads.
    const double least_kept = sum(all, [](const Layer& layer) { return layer.least_kept; });
    const double sent = choice.pp > 1 ? residual / choice.tp * choice.chunks : 0;
    const double live = shape.splits_backward ? rank.live / 2 : rank.live;
    guess.least_bytes =
        std::max(guess.least_bytes, held_bytes(choice, count, dense, experts, true) +
                                        live * std::max(0.0, least_kept - sent));
  }
  // Ranks wait for the passes of others, long and short ones.
  guess.seconds += shape.waits * passes / static_cast<double>(shape.ranks.size());
  const double message = residual / ranks_of_tp(choice, Share::tokens);
  guess.seconds += 2 * collective_s(comm::Id::send, message, lie.next) * (choice.pp - 1);
  return guess;
}

Guess Estimator::floor_of_mesh(const Choice& mesh) {
  // All of the work shared evenly by the pipeline's ranks, nothing done again, everything split
  // that can be, nothing kept.
  Choice choice = mesh;
  choice.recompute = 0;
  choice.shard = choice.replicas() > 1 ? kZero3 : 0;
  const Prices& price = prices(choice);
  Choice whole = choice;
  whole.pp = whole.chunks = 1;
  whole.layers = {};
  const std::vector<Counts>& layers = stages(whole);
  Guess guess;
  double dense = 0, experts = 0;
  for (size_t kind = 0; kind < layers[0].size(); ++kind) {
    const double count = layers[0][kind] / choice.pp;
    if (count == 0) continue;
    for (size_t p = 0; p < kParts; ++p) {
      guess.least_s += count * price.layers[kind].least[p];
    }
    dense += count * price.layers[kind].dense;
    experts += count * price.layers[kind].experts;
  }
  const int64_t steps = num_micro_batches(space_, choice);
  guess.least_s *= static_cast<double>(steps);
  guess.least_bytes = held_bytes(choice, steps, dense, experts, true);
  return guess;
}

/// Bytes that a layer adds to those of a rank.
double Estimator::layer_bytes(const Choice& choice, const Layer& layer,
                              const PipelineShape::Rank& rank, double most) const {
  const double put_off = rank.pending * ((1 + kOutputGradients) * layer.whole - layer.kept);
  return held_bytes(choice, num_micro_batches(space_, choice), layer.dense, layer.experts, false) +
         (rank.live * layer.kept + put_off) * most;
}

/// Of a plan whose ranks have a stage each.
StageLoads Estimator::loads(const Choice& choice, bool with_bytes) {
  const Prices& price = prices(choice);
  const int64_t count = num_micro_batches(space_, choice);
  const PipelineShape& shape = shapes_.of(choice, count);
  const Pace& lie = pace(choice);
  StageLoads loads{.kind_of = tables_[0].kind_of};
  for (size_t kind = 0; kind < price.layers.size(); ++kind) {
    const std::array<double, kParts>& parts = price.layers[kind].seconds;
    loads.seconds.push_back(parts[0] + parts[1] + parts[2]);
    loads.working.push_back(working_bytes(choice, kind) * lie.most);
  }
  for (size_t place = 0; place < shape.ranks.size(); ++place) {
    loads.speed.push_back(1 / lie.times[place]);
    if (!with_bytes) continue;
    std::vector<double>& bytes = loads.bytes.emplace_back();
    for (const Layer& layer : price.layers) {
      bytes.push_back(layer_bytes(choice, layer, shape.ranks[place], lie.most));
    }
    bytes[kHead] += held_bytes(choice, count, price.layers[kHead].tied, 0, false);
  }
  return loads;
}

/// Layers go one by one from the rank that takes most memory to the one that takes least, for as
/// long as the former takes more than there is.
std::vector<int64_t> Estimator::fitted_by_moves(const Choice& choice, double limit) {
  const Prices& price = prices(choice);
  const int64_t count = num_micro_batches(space_, choice);
  const PipelineShape& shape = shapes_.of(choice, count);
  const double most = pace(choice).most;
  const std::vector<size_t>& kind_of = tables_[0].kind_of;
  const auto bytes_of_ranks = [&](const std::vector<int64_t>& layers) {
    std::vector<size_t> first(layers.size() + 1, 0);  // layer of a stage
    std::partial_sum(layers.begin(), layers.end(), first.begin() + 1);
    std::vector<double> found;
    for (const PipelineShape::Rank& rank : shape.ranks) {
      double& bytes = found.emplace_back(0);
      double working = 0, tied = 0;
      bool has_embedding = false;
      const auto add = [&](size_t kind) {
        bytes += layer_bytes(choice, price.layers[kind], rank, most);
        working = std::max(working, working_bytes(choice, kind) * most);
        tied += kind == kHead ? held_bytes(choice, count, price.layers[kind].tied, 0, false) : 0;
        has_embedding = has_embedding || kind == kEmbedding;
      };
      for (const auto& [stage, share] : rank.stages) {
        const auto at = static_cast<size_t>(stage);
        if (at == 0) {
          add(kEmbedding);
        }
        if (at + 1 == layers.size()) {
          add(kHead);
        }
        for (size_t layer = first[at]; layer < first[at + 1]; ++layer) {
          add(kind_of[layer]);
        }
      }
      bytes += working + (has_embedding ? 0 : tied);
    }
    return found;
  };
  std::vector<int64_t> layers = stage_layers(space_, choice);
  for (std::vector<double> bytes = bytes_of_ranks(layers);;) {
    const auto fullest = std::max_element(bytes.begin(), bytes.end());
    const auto emptiest = std::min_element(bytes.begin(), bytes.end());
    if (*fullest <= limit) return layers;
    // From the longest of its stages to the shortest of the other's.
    const auto stage_of = [&](const PipelineShape::Rank& rank, auto is_better) {
      size_t best = static_cast<size_t>(rank.stages.front().first);
      for (const auto& [stage, share] : rank.stages) {
        const auto at = static_cast<size_t>(stage);
        best = is_better(layers[at], layers[best]) ? at : best;
      }
      return best;
    };
    std::vector<int64_t> moved = layers;
    const size_t from =
        stage_of(shape.ranks[static_cast<size_t>(fullest - bytes.begin())], std::greater<>());
    const bool is_inner = from > 0 && from + 1 < layers.size();
    if (moved[from] == (is_inner ? 1 : 0)) return layers;
    --moved[from];
    ++moved[stage_of(shape.ranks[static_cast<size_t>(emptiest - bytes.begin())], std::less<>())];
    std::vector<double> then = bytes_of_ranks(moved);
    if (*std::max_element(then.begin(), then.end()) >= *fullest) return layers;
    layers = std::move(moved);
    bytes = std::move(then);
  }
}

/// Every rank of the pipeline has one stage, of all micro-batches.
bool Estimator::has_stage_each(const Choice& choice) {
  const PipelineShape& shape = shapes_.of(choice, num_micro_batches(space_, choice));
  return std::all_of(shape.ranks.begin(), shape.ranks.end(),
                     [](const PipelineShape::Rank& rank) { return rank.stages.size() == 1; });
}

StageLayers Estimator::layers_by_time(const Choice& even) {
  if (even.pp == 1 || is_given(space_, "plan.pp_layers")) return {};
  Choice choice = even;
  choice.layers = StageLayers(stage_layers(space_, even));
  if (!deals_well(space_, choice)) return {};
  if (!has_stage_each(choice)) {
    const auto by_speed = space_.balanced.find(stages_of(choice));
    return by_speed == space_.balanced.end() ? StageLayers() : StageLayers(by_speed->second);
  }
  const auto [at, fresh] = by_time_.try_emplace({&prices(choice), &pace(choice), choice.pp});
  if (fresh) {
    const StageLoads loads = this->loads(choice, false);
    std::vector<int64_t> laid = *lay_layers(loads, std::numeric_limits<double>::infinity());
    if (slowest_stage(loads, laid) < slowest_stage(loads, choice.layers.each()) * kWorthBalancing) {
      at->second = StageLayers(std::move(laid));
    }
  }
  return at->second;
}

std::vector<StageLayers> Estimator::layers_by_memory(const Choice& even, double limit) {
  std::vector<StageLayers> found;
  Choice choice = even;
  choice.layers = StageLayers(stage_layers(space_, even));
  if (!deals_well(space_, choice)) return found;
  const StageLayers by_time = layers_by_time(even);
  const auto add = [&](std::vector<int64_t> layers) {
    StageLayers laid(std::move(layers));
    if (laid != choice.layers && laid != by_time &&
        std::find(found.begin(), found.end(), laid) == found.end()) {
      found.push_back(std::move(laid));
    }
  };
  if (!has_stage_each(choice)) {
    add(fitted_by_moves(choice, limit));
    return found;
  }
  const StageLoads loads = this->loads(choice, true);
  double all = 0;
  const std::vector<Counts>& counts = stages(choice);
  for (size_t stage = 0; stage < counts.size(); ++stage) {
    all += std::inner_product(counts[stage].begin(), counts[stage].end(),
                              loads.bytes[stage].begin(), 0.0);
  }
  if (all > limit * kHopeless * static_cast<double>(counts.size())) return found;
  if (std::optional<std::vector<int64_t>> by_both = lay_layers(loads, limit)) {
    add(std::move(*by_both));
  }
  add(*lay_layers(loads, least_bytes(loads)));
  return found;
}

}  // namespace hocket::planner
