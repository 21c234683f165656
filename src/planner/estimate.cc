// SPDX-License-Identifier: Apache-2.0
#include "planner/estimate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <utility>

#include "planner/estimate_parts.h"

namespace hocket::planner {

namespace {

/// Messages of a smaller share of a stage's passes change an estimate by about that share. Its
/// errors are larger (10 to 28 %, bench/results/2026-11-27-plan.md). With less, schedules are
/// replayed in vain. With more, estimates of plans that wait for messages are too low.
constexpr double kMinMessageShare = 0.02;

/// Ranks first, first + stride, .. of the mesh, as a cluster sees them.
cost::GroupShape shape_of(const cost::Cluster& cluster, int64_t count, int64_t stride) {
  std::vector<int32_t> ranks;
  for (int64_t i = 0; i < count; ++i) {
    ranks.push_back(static_cast<int32_t>(i * stride));
  }
  return cluster.shape(ranks);
}

/// Ranks of tp that share something.
double ranks_of_tp(const PlanCandidate& plan, Share share) {
  const double tp = plan.tp;
  switch (share) {
    case Share::tokens:
      return plan.sequence_parallel ? tp : 1;
    case Share::features:
      return tp;
    case Share::experts:
      return plan.sequence_parallel ? tp : plan.etp;
  }
  return 1;
}

/// Returns the number of ranks over which parameters are split without sharding over replicas.
double ranks_of_parameters(const PlanCandidate& plan, Share share) {
  switch (share) {
    case Share::tokens:
      return 1;
    case Share::features:
      return plan.tp;
    case Share::experts:
      return static_cast<double>(plan.ep) * plan.etp;
  }
  return 1;
}

}  // namespace

double arena_ratio(const PlanCandidate& plan) {
  // Measured on programs of 1 to 70 G parameters (bench/results/2026-11-29-planner.md); those with
  // large gaps are placed again, the largest buffer first.
  constexpr double kSharded = 1.06, kInV = 1.15, kOthers = 1.03;
  if (plan.shard >= kZero2) return kSharded;
  return stages_of(plan).is_v ? kInV : kOthers;
}

Estimator::Estimator(const SearchSpace& space, const graph::Graph& graph,
                     const cost::CostModel& costs, EstimatorOptions options)
    : space_(space), costs_(costs), options_(options) {
  tables_ = tables_of(graph, kRecomputeNames);
}

Estimator::~Estimator() = default;

size_t Estimator::HashTransfer::operator()(const Transfer& transfer) const {
  constexpr uint64_t kMix = 0x9e3779b97f4a7c15u;
  uint64_t hash = std::bit_cast<uint64_t>(transfer.payload) * kMix;
  hash = (hash ^ (hash >> 32) ^ reinterpret_cast<uintptr_t>(transfer.shape)) * kMix;
  return (hash ^ (hash >> 29) ^ static_cast<uint64_t>(transfer.op)) * kMix;
}

const Estimator::TransferTime& Estimator::transfer(comm::Id op, double payload,
                                                   const cost::GroupShape& shape) const {
  static const TransferTime kNothing;
  if (shape.members <= 1 || payload <= 0) return kNothing;
  const auto [at, fresh] = seconds_.try_emplace({op, &shape, payload});
  if (fresh) {
    const cost::AlgorithmTime time =
        costs_.algorithm_times(comm::op(op), payload, shape.nodes > 1, shape).front();
    const cost::Cluster& cluster = costs_.cluster();
    const auto members = static_cast<double>(shape.per_node);  // of a node
    const double groups = static_cast<double>(cluster.devices_per_node) / members;
    const double used = std::min(members, static_cast<double>(cluster.adapters()));
    at->second = {time.seconds(), beside_others_s(time, cluster, groups, used)};
  }
  return at->second;
}

/// Returns the bytes of a micro-batch's message from a rank to the next stage.
double Estimator::message_bytes(const PlanCandidate& plan) const {
  return tables_[0].residual_bytes * plan.micro_batch / plan.cp / ranks_of_tp(plan, Share::tokens);
}

const Messages& Estimator::messages(const PlanCandidate& plan) {
  const int64_t devices = plan.replicas() * plan.tp;
  const double bytes = message_bytes(plan);
  const auto at = messages_.find({devices, bytes});
  if (at != messages_.end()) return at->second;
  return messages_.emplace(std::pair(devices, bytes), Messages(costs_, devices, bytes))
      .first->second;
}

const Messages::Load& Estimator::message_load(const PlanCandidate& plan,
                                              const PipelineShape& shape) {
  const int64_t devices = plan.replicas() * plan.tp;
  const auto [at, fresh] = message_loads_.try_emplace({&shape, devices});
  if (fresh) {
    at->second = Messages::load_of(shape, costs_.cluster(), devices);
  }
  return at->second;
}

/// The same in transfers of plan.bucket_mib.
double Estimator::bucketed_s(comm::Id op, double bytes, const cost::GroupShape& shape) const {
  if (bytes <= 0) return 0;
  const double count = std::max(1.0, std::ceil(bytes / std::max(1.0, options_.bucket_bytes)));
  return count * collective_s(op, bytes / count, shape);
}

const Estimator::Groups& Estimator::groups(const PlanCandidate& plan) {
  const std::array<int32_t, 9> key{plan.pp,
                                   plan.dp,
                                   plan.cp,
                                   plan.tp,
                                   plan.ep,
                                   plan.etp,
                                   plan.ep_inner,
                                   plan.sequence_parallel ? 1 : 0,
                                   static_cast<int32_t>(plan.cp_comm_type)};
  std::unique_ptr<Groups>& known = groups_[key];
  if (known) return *known;
  known = std::make_unique<Groups>();
  const cost::Cluster& cluster = costs_.cluster();
  const int64_t tp = plan.tp;
  known->tp = shape_of(cluster, tp, 1);
  known->cp = shape_of(cluster, plan.cp, tp);
  known->etp = shape_of(cluster, plan.etp, 1);
  known->replicas = shape_of(cluster, plan.replicas(), tp);
  const PlanCandidate::Over over = plan.ep_over();
  const auto ranks_of = [&](int64_t over_dp) {
    std::vector<int32_t> ranks;
    for (int64_t d = 0; d < over_dp; ++d) {
      for (int64_t c = 0; c < over.cp; ++c) {
        for (int64_t t = 0; t < over.tp; ++t) {
          ranks.push_back(static_cast<int32_t>((d * plan.cp + c) * tp + t * plan.etp));
        }
      }
    }
    return cluster.shape(ranks);
  };
  const int64_t inner = plan.ep_inner;
  known->ep =
      inner > 1 ? shape_of(cluster, over.dp / inner, inner * plan.cp * tp) : ranks_of(over.dp);
  known->ep_inner = inner > 1 ? ranks_of(inner) : shape_of(cluster, 1, 1);
  const int64_t copies = plan.expert_replicas();
  known->expert_replicas = shape_of(cluster, copies, plan.replicas() * tp / copies);
  const int64_t group = shard_group(space_, plan);
  known->inside = shape_of(cluster, group, tp);
  known->across = shape_of(cluster, plan.replicas() / group, group * tp);
  const int64_t stage = plan.replicas() * tp;
  known->ends = shape_of(cluster, plan.pp > 1 ? 2 : 1, (plan.pp - 1) * stage);
  return *known;
}

/// Bytes of the rows that a rank sends to experts in a layer.
double Estimator::exchanged_rows(const PlanCandidate& plan) const {
  const double sequences = static_cast<double>(plan.micro_batch) / plan.cp;
  return tables_[0].residual_bytes * sequences / ranks_of_tp(plan, Share::tokens) *
         static_cast<double>(space_.model.top_k);
}

/// Seconds until rows are at their experts, in one step or two.
double Estimator::exchange_s(const PlanCandidate& plan, const Groups& groups) const {
  const double rows = exchanged_rows(plan);
  return collective_s(comm::Id::all_to_all, rows, groups.ep) +
         collective_s(comm::Id::all_to_all, rows, groups.ep_inner);
}

PlanCandidate Estimator::with_fastest_exchange(const PlanCandidate& mesh) {
  PlanCandidate fastest = mesh;
  double least = exchange_s(mesh, groups(mesh));
  for (const int32_t inner : inner_experts(space_, mesh)) {
    PlanCandidate other = mesh;
    other.ep_inner = inner;
    const double seconds = exchange_s(other, groups(other));
    if (seconds < least) {
      least = seconds;
      fastest = other;
    }
  }
  return fastest;
}

/// Adds the time of the collectives of one layer's passes.
void Estimator::add_collectives(const PlanCandidate& plan, size_t type, const Groups& groups,
                                Layer* layer) const {
  const ModelTable& table = tables_[place_of(plan.recompute)];
  const LayerWork& work = table.layer_types[type];
  const double sequences = static_cast<double>(plan.micro_batch) / plan.cp;
  const double residual = table.residual_bytes * sequences;
  const auto add = [&](size_t part, double seconds) { layer->seconds[part] += seconds; };
  constexpr size_t kForward = 0, kInputs = 1;
  const bool block = type >= kFirstLayerType;
  const double again = plan.recompute == Recompute::full ? 1 : 0;  // sums are done again
  if (plan.tp > 1) {
    const double sum = plan.sequence_parallel
                           ? collective_s(comm::Id::all_gather, residual, groups.tp) +
                                 collective_s(comm::Id::reduce_scatter, residual, groups.tp)
                           : collective_s(comm::Id::all_reduce, residual, groups.tp);
    const double sums = block && !work.has_experts ? 2 : 1;
    add(kForward, sums * sum);
    add(kInputs, sums * sum * (1 + again));
    if (plan.sequence_parallel) {
      // Inputs of products are gathered again for the gradients of their weights.
      add(kInputs, sums * collective_s(comm::Id::all_gather, residual, groups.tp));
    }
    const bool own_sums = !options_.blocking || costs_.calibrated();
    if (block && !own_sums) {
      const auto alone = [&](comm::Id op) { return transfer(op, residual, groups.tp).alone; };
      const double in_two = alone(comm::Id::all_gather) + alone(comm::Id::reduce_scatter);
      const double in_one = alone(comm::Id::all_reduce);
      layer->least_reductions_s +=
          sums * (plan.sequence_parallel ? std::min(in_two, in_one) : in_one);
    }
  }
  if (block && plan.cp > 1) {
    const double keys = work.key_bytes * plan.micro_batch / plan.tp;
    if (plan.cp_comm_type == CpCommType::a2a) {
      const double heads = work.head_bytes * sequences / plan.tp;
      const double moved = collective_s(comm::Id::all_to_all, heads, groups.cp) * 2 +
                           collective_s(comm::Id::all_to_all, keys / plan.cp, groups.cp);
      add(kForward, moved);
      add(kInputs, moved * (1 + again));
    } else {
      const double gather = collective_s(comm::Id::all_gather, keys, groups.cp);
      const double share = plan.cp_comm_type == CpCommType::p2p ? 0.5 : 1;  // beside attention
      add(kForward, share * gather);
      add(kInputs, share * gather * (2 + again));
    }
  }
  if (work.has_experts) {
    const double rows = exchanged_rows(plan);
    double both = 2 * exchange_s(plan, groups);
    if (plan.etp > 1) {
      both += plan.sequence_parallel
                  ? collective_s(comm::Id::all_gather, rows * plan.etp, groups.etp) +
                        collective_s(comm::Id::reduce_scatter, rows * plan.etp, groups.etp)
                  : collective_s(comm::Id::all_reduce, residual, groups.etp);
    }
    add(kForward, both);
    add(kInputs, both * (1 + again));
  }
}

Estimator::Layer Estimator::price(const PlanCandidate& plan, size_t type,
                                  const Groups& groups) const {
  const LayerWork& work = tables_[place_of(plan.recompute)].layer_types[type];
  const double element = static_cast<double>(tables_[0].element_bytes);
  const double sequences = static_cast<double>(plan.micro_batch) / plan.cp;
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
        seconds(node, ranks_of_tp(plan, node.share), ranks_of_parameters(plan, node.share)) +
        launch;
    // At the best a node is shared by all of tp, and reads nothing but its part of everything.
    const double all = static_cast<double>(plan.tp);
    const double product = costs_.roofline_s(node.op, node.dtype, node.flops * sequences / all, 0);
    layer.least[part] += product * fastest + (costs_.calibrated() ? 0 : launch);
  }
  for (size_t s = 0; s < kShares; ++s) {
    const Share share = static_cast<Share>(s);
    layer.kept += of(work.kept, share) * sequences / ranks_of_tp(plan, share);
    layer.whole +=
        of(tables_[0].layer_types[type].kept, share) * sequences / ranks_of_tp(plan, share);
    layer.least_kept += of(work.kept, share) * sequences / plan.tp;
    const double ranks = ranks_of_parameters(plan, share);
    const double held = of(work.parameters, share) * element / ranks;
    (share == Share::experts ? layer.experts : layer.dense) += held;
    layer.tied += of(work.tied, share) * element / ranks;
  }
  add_collectives(plan, type, groups, &layer);
  return layer;
}

const Estimator::Prices& Estimator::prices(const PlanCandidate& plan) {
  const std::array<int32_t, 10> key{plan.dp,          plan.cp,
                                    plan.tp,          plan.ep,
                                    plan.etp,         plan.sequence_parallel ? 1 : 0,
                                    plan.ep_inner,    static_cast<int32_t>(plan.cp_comm_type),
                                    plan.micro_batch, static_cast<int32_t>(plan.recompute)};
  std::unique_ptr<Prices>& known = prices_[key];
  if (known) return *known;
  known = std::make_unique<Prices>();
  const Groups& groups = this->groups(plan);
  for (size_t type = 0; type < tables_[0].layer_types.size(); ++type) {
    known->layers.push_back(price(plan, type, groups));
  }
  return *known;
}

const Estimator::Pace& Estimator::pace(const PlanCandidate& plan) {
  const std::array<int32_t, 5> key{plan.pp, plan.dp, plan.micro_batch, plan.sequences,
                                   plan.layers.none() ? 0 : 1};
  const auto [at, fresh] = paces_.try_emplace(key);
  Pace& known = at->second;
  if (!fresh) return known;
  const std::vector<int64_t> each = samples(space_, plan);
  const double usual = plan.micro_batch;
  known.most = static_cast<double>(*std::max_element(each.begin(), each.end())) / usual;
  known.times.assign(static_cast<size_t>(plan.pp), space_.speed.empty() ? known.most : 0);
  for (size_t rank = 0; rank < space_.speed.size(); ++rank) {
    const size_t replica = rank / static_cast<size_t>(plan.cp * plan.tp);
    const double share = static_cast<double>(each[replica % each.size()]) / usual;
    double& times = known.times[replica / each.size()];
    times = std::max(times, share / space_.speed[rank]);
  }
  return known;
}

/// Layers of every stage, by type.
const std::vector<Estimator::Counts>& Estimator::stages(const PlanCandidate& plan) {
  std::vector<Counts>& known = stages_[{stages_of(plan).count(), plan.layers}];
  if (!known.empty()) return known;
  const std::vector<int64_t> layers = stage_layers(space_, plan);
  const ModelTable& table = tables_[0];
  known.assign(layers.size(), Counts(table.layer_types.size(), 0));
  size_t next = 0;
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    for (int64_t i = 0; i < layers[stage]; ++i) {
      known[stage][table.type_of[next++]] += 1;
    }
  }
  known.front()[kEmbedding] += 1;
  known.back()[kHead] += 1;
  return known;
}

/// Returns the time that gradient all-reduces add to a step: the part that does not fit beside the
/// passes of the micro-batches (plan.overlap_grad_reduce), and the part after the last of them.
double Estimator::sync_s(const PlanCandidate& plan, const Groups& groups, double dense,
                         double experts, double forward, double backward) const {
  const double count = static_cast<double>(num_micro_batches(space_, plan));
  const auto both = [&](comm::Id op) {
    const double share = op == comm::Id::all_gather ? 1 : tables_[0].gradient_share;
    return bucketed_s(op, dense * share, groups.replicas) +
           bucketed_s(op, experts * share, groups.expert_replicas);
  };
  const auto exposed = [](double sent, double beside) { return std::max(0.0, sent - beside); };
  switch (plan.shard) {
    case ShardLevel::none:
      return exposed(both(comm::Id::all_reduce), backward);
    case kZero1:
      return exposed(both(comm::Id::reduce_scatter), backward) + both(comm::Id::all_gather);
    case kGatheredOnce:  // before the first forward pass of each layer
      return exposed(both(comm::Id::reduce_scatter), backward) +
             exposed(both(comm::Id::all_gather), forward);
    case kZero2:
      return count * exposed(both(comm::Id::reduce_scatter), backward) + both(comm::Id::all_gather);
    case kHybrid: {
      const double all = dense + experts;
      const double gradients = all * tables_[0].gradient_share;
      const auto groups_of = static_cast<double>(shard_group(space_, plan));
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

/// Returns the time of all-reduces along the pipeline after the last pass, before those of
/// replicas: the embedding's gradients, of which a tied head has a part, and those of replicated
/// stages.
double Estimator::pipeline_reductions_s(const PlanCandidate& plan, const Groups& groups,
                                        double dense, double experts, double tied,
                                        bool has_copies) const {
  const double bytes = tied + (has_copies ? dense + experts : 0);
  return plan.pp == 1
             ? 0
             : collective_s(comm::Id::all_reduce, bytes * tables_[0].gradient_share, groups.ends);
}

/// Returns the bytes of parameters, gradients and states of a rank with these bytes of parameters
/// before sharding over replicas.
double Estimator::held_bytes(const PlanCandidate& plan, int64_t micro_batches, double dense,
                             double experts, bool least) const {
  const ModelTable& table = tables_[0];
  const double replicas = static_cast<double>(plan.replicas());
  const double copies = static_cast<double>(plan.expert_replicas());
  const auto part = [&](bool split) {
    return split ? dense / replicas + experts / copies : dense + experts;
  };
  // With one micro-batch gradients may be on their way as soon as they are there.
  const bool pass_by = least && micro_batches == 1;
  if (plan.shard == kHybrid) {
    const double group = (dense + experts) / static_cast<double>(shard_group(space_, plan));
    return group + table.state_share * part(true) + (pass_by ? 0 : table.gradient_share * group);
  }
  const double gradients = pass_by ? 0 : table.gradient_share * part(plan.shard >= kZero2);
  const double kept_parts = plan.shard == kGatheredOnce ? part(true) : 0;  // beside the whole
  return part(plan.shard >= kZero3) + kept_parts + table.state_share * part(plan.shard >= kZero1) +
         gradients;
}

double Estimator::state_bytes() const {
  const ModelTable& table = tables_[0];
  double elements = 0;
  const auto add = [&](size_t type) {
    for (size_t s = 0; s < kShares; ++s) {
      elements += of(table.layer_types[type].parameters, static_cast<Share>(s));
    }
  };
  add(kEmbedding);
  add(kHead);
  for (const size_t type : table.type_of) {
    add(type);
  }
  return elements * static_cast<double>(table.element_bytes) * (1 + table.state_share);
}

/// Returns the working memory of one layer's backward pass beyond kept tensors: about the
/// activations of its forward pass without recompute, and its parameters if gathered.
double Estimator::working_bytes(const PlanCandidate& plan, size_t type) const {
  const double sequences = static_cast<double>(plan.micro_batch) / plan.cp;
  const double element = static_cast<double>(tables_[0].element_bytes);
  double bytes = 0;
  for (size_t s = 0; s < kShares; ++s) {
    const Share share = static_cast<Share>(s);
    bytes += of(tables_[0].layer_types[type].kept, share) * sequences / ranks_of_tp(plan, share);
    if (plan.shard >= kZero3) {
      bytes += 2 * of(tables_[0].layer_types[type].parameters, share) * element /
               ranks_of_parameters(plan, share);
    }
  }
  return bytes;
}

Estimate Estimator::estimate(const PlanCandidate& plan) {
  // Prices by type of layer, summed over the layers of every pipeline rank. The slowest rank sets
  // the pace; the schedule gives its waits, and the micro-batches that a rank keeps. The bound adds
  // the passes before a rank's first and after its last work to its own.
  const Prices& price = prices(plan);
  const std::vector<Counts>& layers = stages(plan);
  const Groups& groups = this->groups(plan);
  const int64_t count = num_micro_batches(space_, plan);
  const PipelineShape& shape = shapes_.of(plan, count);
  const Messages& between = messages(plan);
  const Messages::Load& load = message_load(plan, shape);
  const bool alike = space_.speed.empty() && plan.sequences == 0;
  const Pace* const heterogeneous = alike ? nullptr : &pace(plan);
  const auto sum = [&](const Counts& counts, auto value) {
    double total = 0;
    for (size_t type = 0; type < counts.size(); ++type) {
      total += counts[type] == 0 ? 0 : counts[type] * value(price.layers[type]);
    }
    return total;
  };
  // Per stage: lower bound of the passes through earlier stages.
  std::vector<std::array<double, kParts>> before(layers.size() + 1);
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    for (size_t p = 0; p < kParts; ++p) {
      before[stage + 1][p] =
          before[stage][p] + sum(layers[stage], [&](const Layer& layer) { return layer.least[p]; });
    }
  }
  const double bandwidth = std::max(1.0, costs_.cluster().device.memory_bandwidth.value);
  const double residual = tables_[0].residual_bytes * plan.micro_batch / plan.cp;
  Estimate estimate;
  Counts all;
  double passes = 0;  // of a micro-batch, through all ranks
  for (size_t place = 0; place < shape.ranks.size(); ++place) {
    const PipelineShape::Rank& rank = shape.ranks[place];
    all.assign(price.layers.size(), 0);
    for (const auto& [stage, share] : rank.stages) {
      for (size_t type = 0; type < all.size(); ++type) {
        all[type] += layers[static_cast<size_t>(stage)][type] * share;
      }
    }
    // Parameters of a stage are there whatever share of the micro-batches it has.
    double dense = 0, experts = 0, working = 0, tied = 0;
    bool has_copies = false;
    for (const auto& [stage, share] : rank.stages) {
      has_copies = has_copies || share < 1;
      const Counts& counts = layers[static_cast<size_t>(stage)];
      dense += sum(counts, [](const Layer& layer) { return layer.dense; });
      experts += sum(counts, [](const Layer& layer) { return layer.experts; });
      for (size_t type = 0; type < counts.size(); ++type) {
        if (counts[type] == 0) continue;
        working = std::max(working, working_bytes(plan, type));
        tied = std::max(tied, price.layers[type].tied);
      }
    }
    if (all[kEmbedding] > 0) {
      tied = 0;  // it is the embedding's own
    }
    dense += tied;
    std::array<double, kParts> part{}, least{};
    for (size_t p = 0; p < kParts; ++p) {
      part[p] = sum(all, [&](const Layer& layer) { return layer.seconds[p]; }) *
                (heterogeneous ? heterogeneous->times[place] : 1);
      least[p] = sum(all, [&](const Layer& layer) { return layer.least[p]; });
    }
    const double pass = part[0] + part[1] + part[2];
    const double update = 7 * held_bytes(plan, 1, dense, experts, true) / 3 / bandwidth;
    passes += pass;
    const double after = update + sync_s(plan, groups, dense, experts, part[0], part[1] + part[2]) +
                         pipeline_reductions_s(plan, groups, dense, experts, tied, has_copies);
    estimate.after_s = std::max(estimate.after_s, after);
    estimate.expected_s = std::max(estimate.expected_s, static_cast<double>(count) * pass + after);
    const std::array<double, kParts>& last = before[static_cast<size_t>(rank.last_stage)];
    const double back = rank.last_kind == 'B'   ? last[1] + last[2]
                        : rank.last_kind == 'I' ? last[1]
                                                : 0;
    const double lower_bound_s = before[static_cast<size_t>(rank.first_stage)][0] + back +
                                 static_cast<double>(count) * (least[0] + least[1] + least[2]);
    const double sums =
        shape.overlaps ? 0 : sum(all, [](const Layer& layer) { return layer.least_reductions_s; });
    estimate.lower_bound_any_s = std::max(estimate.lower_bound_any_s, lower_bound_s);
    estimate.lower_bound_s =
        std::max(estimate.lower_bound_s, lower_bound_s + static_cast<double>(count) * sums);

    const double alive = shape.live(rank, count);
    const double kept = sum(all, [](const Layer& layer) { return layer.kept; });
    // Delayed weight gradients need recomputed activations, and the gradients of outputs.
    const double whole = sum(all, [](const Layer& layer) { return layer.whole; });
    const double put_off = rank.pending * ((1 + kOutputGradients) * whole - kept);
    estimate.bytes = std::max(estimate.bytes, held_bytes(plan, count, dense, experts, false) +
                                                  (alive * kept + put_off + working) *
                                                      (heterogeneous ? heterogeneous->most : 1));
    // A stage does not keep its output; of a split backward pass the first half may free its own
    // operands.
    const double least_kept = sum(all, [](const Layer& layer) { return layer.least_kept; });
    const double sent = plan.pp > 1 ? residual / plan.tp * plan.chunks : 0;
    const double live = shape.splits_backward ? alive / 2 : alive;
    estimate.lower_bound_bytes =
        std::max(estimate.lower_bound_bytes, held_bytes(plan, count, dense, experts, true) +
                                                 live * std::max(0.0, least_kept - sent));
  }
  estimate.bytes *= arena_ratio(plan);
  // The network may be slower than the passes.
  const double micro_batches = static_cast<double>(count);
  estimate.messages_s = micro_batches * between.shared_s(load);
  estimate.expected_s = std::max(estimate.expected_s, estimate.messages_s + estimate.after_s);
  if (plan.sequences == 0 && !costs_.calibrated()) {
    const double lower_bound_s = micro_batches * between.lower_bound_s(load);
    estimate.lower_bound_any_s = std::max(estimate.lower_bound_any_s, lower_bound_s);
    estimate.lower_bound_s = std::max(estimate.lower_bound_s, lower_bound_s);
  }
  // Ranks wait for the passes of others, long and short ones, and for the first and last messages.
  estimate.expected_s += shape.waits * passes / static_cast<double>(shape.ranks.size());
  estimate.expected_s += between.there_and_back_s(load);
  return estimate;
}

Estimate Estimator::with_schedule_replayed(const PlanCandidate& plan) {
  Estimate estimate = this->estimate(plan);
  if (plan.pp == 1) return estimate;
  const Prices& price = prices(plan);
  const Pace& pace = this->pace(plan);
  const Messages& between = messages(plan);
  // By stage, on the fastest device.
  std::vector<std::array<double, kParts>> seconds;
  double all = 0;
  for (const Counts& counts : stages(plan)) {
    std::array<double, kParts>& parts = seconds.emplace_back();
    for (size_t p = 0; p < kParts; ++p) {
      for (size_t type = 0; type < counts.size(); ++type) {
        parts[p] += counts[type] == 0 ? 0 : counts[type] * price.layers[type].seconds[p];
      }
      all += parts[p];
    }
  }
  const double pass = all / static_cast<double>(seconds.size());
  const double longest = std::max(between.seconds(0, 1), between.seconds(plan.pp - 1, 0));
  if (longest < kMinMessageShare * pass) return estimate;
  const std::array<int32_t, 3> schedule{plan.schedule, plan.pp, plan.chunks};
  const auto [at, fresh] = replayed_.try_emplace({&price, &pace, schedule, plan.layers}, 0.0);
  if (fresh) {
    // Passes take about a unit of the schedule's clock.
    const auto cell = [&](int rank, std::span<const parallel::Action> actions) {
      double sum = 0;
      for (const parallel::Action& action : actions) {
        const std::array<double, kParts>& parts = seconds[static_cast<size_t>(action.stage)];
        sum += action.kind == 'F'   ? parts[0]
               : action.kind == 'I' ? parts[1]
               : action.kind == 'W' ? parts[2]
                                    : parts[1] + parts[2];
      }
      return sum * pace.times[static_cast<size_t>(rank)] / pass;
    };
    const auto message = [&](int from, int to) { return between.seconds(from, to) / pass; };
    at->second = pass * replayed_s(plan, num_micro_batches(space_, plan), {cell, message});
  }
  // Two ranks of a pipeline on one node share adapters, which a replay of one of each does not see.
  estimate.expected_s = estimate.after_s + std::max(at->second, estimate.messages_s);
  return estimate;
}

Estimate Estimator::floor_of_mesh(const PlanCandidate& mesh) {
  // All work shared evenly by the pipeline's ranks, no recomputation, everything sharded, nothing
  // kept.
  PlanCandidate plan = mesh;
  plan.recompute = Recompute::none;
  plan.shard = plan.replicas() > 1 ? kZero3 : ShardLevel::none;
  const Prices& price = prices(plan);
  PlanCandidate whole = plan;
  whole.pp = whole.chunks = 1;
  whole.layers = {};
  const std::vector<Counts>& layers = stages(whole);
  Estimate estimate;
  double dense = 0, experts = 0;
  for (size_t type = 0; type < layers[0].size(); ++type) {
    const double count = layers[0][type] / plan.pp;
    if (count == 0) continue;
    for (size_t p = 0; p < kParts; ++p) {
      estimate.lower_bound_s += count * price.layers[type].least[p];
    }
    dense += count * price.layers[type].dense;
    experts += count * price.layers[type].experts;
  }
  const int64_t steps = num_micro_batches(space_, plan);
  estimate.lower_bound_s *= static_cast<double>(steps);
  estimate.lower_bound_bytes = held_bytes(plan, steps, dense, experts, true);
  return estimate;
}

}  // namespace hocket::planner
