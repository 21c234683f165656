// SPDX-License-Identifier: Apache-2.0
#include "planner/space.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/math.h"
#include "parallel/schedules/schedule.h"

namespace hocket::planner {

const char* to_string(CpCommType type) {
  constexpr const char* kNames[] = {"all_gather", "p2p", "a2a"};
  return kNames[place_of(type)];
}

const char* to_string(CollectiveAlgorithm algorithm) {
  constexpr const char* kNames[] = {"native", "ring", "halving_doubling", "hierarchical",
                                    "ho_ring"};
  return kNames[place_of(algorithm)];
}

bool is_given(const SearchSpace& space, const char* key) { return space.given.count(key) > 0; }

namespace {

/// Micro-batches x layers of a program, at most: beyond, a plan is refused (parallel/plan.cc).
constexpr int64_t kMaxLayerPasses = 1 << 16;

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> found;
  for (int64_t part = 1; part * part <= number; ++part) {
    if (number % part != 0) continue;
    found.push_back(part);
    if (part * part != number) {
      found.push_back(number / part);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool fits(const SearchSpace& space, const char* key, const std::string& value) {
  const auto given = space.given.find(key);
  return given == space.given.end() || given->second == value;
}

bool fits(const SearchSpace& space, const char* key, int64_t value) {
  return fits(space, key, std::to_string(value));
}

constexpr const char* kLayers = "plan.pp_layers";
constexpr const char* kSamples = "plan.dp_samples";
constexpr const char* kInner = "plan.ep_inner";

/// Returns plan.pp_layers or plan.dp_samples, if given.
std::vector<int64_t> given_numbers(const SearchSpace& space, const char* key) {
  return nlohmann::json::parse(space.given.at(key)).get<std::vector<int64_t>>();
}

/// Ranks of tp with other key and value heads must not cut a head, and are no more than the heads.
bool splits_heads(const SearchSpace& space, int64_t tp) {
  return tp <= space.model.num_heads && space.model.num_heads % tp == 0;
}

bool legal_experts(const SearchSpace& space, const PlanCandidate& mesh) {
  const PlanCandidate::Over over = mesh.ep_over();
  if (mesh.dp % over.dp != 0 || over.dp % mesh.ep_inner != 0) return false;
  const bool inside = over.cp * over.tp * mesh.ep_inner > 1;
  return mesh.ep <= space.model.num_experts && (space.model.num_experts % mesh.ep == 0 || !inside);
}

/// Returns whether there is such a schedule: for an odd number of ranks there may be none. Its
/// record says which numbers of micro-batches it takes.
bool makes(const parallel::BuiltIn& schedule, int ranks, int chunks) {
  if (ranks % 2 == 0) return true;
  const int least = 2 * ranks;
  try {
    schedule.make(ranks, chunks, schedule.fitting ? schedule.fitting(ranks, chunks, least) : least);
  } catch (const Error&) {
    return false;
  }
  return true;
}

/// The mesh with every way to split experts.
void add_experts(const SearchSpace& space, PlanCandidate mesh, std::vector<PlanCandidate>* found) {
  const bool dense = space.model.num_experts == 0;
  const int64_t among = dense ? 1 : mesh.replicas() * mesh.tp;
  if (is_given(space, kInner)) {
    mesh.ep_inner = static_cast<int32_t>(std::stoll(space.given.at(kInner)));
    if (dense && mesh.ep_inner > 1) return;
  }
  for (const int64_t etp : {int64_t{1}, int64_t{mesh.tp}}) {
    if (!fits(space, "plan.etp", etp)) continue;
    if (etp > 1 && (dense || space.model.moe_intermediate_size % etp != 0)) continue;
    mesh.etp = static_cast<int32_t>(etp);
    for (const int64_t ep : divisors(among)) {
      mesh.ep = static_cast<int32_t>(ep);
      if (!fits(space, "plan.ep", ep) || (!dense && !legal_experts(space, mesh))) continue;
      found->push_back(mesh);
    }
    if (mesh.tp == 1) break;
  }
}

}  // namespace

PlanCandidate::Over PlanCandidate::ep_over() const {
  Over over;
  over.tp = sequence_parallel ? std::gcd(ep, tp / etp) : 1;
  over.cp = std::gcd(ep / over.tp, int64_t{cp});
  if (cp_comm_type == CpCommType::p2p && over.cp != cp) {
    over.cp = 1;  // keys travel around cp, which is then one axis
  }
  over.dp = ep / over.tp / over.cp;
  return over;
}

int64_t PlanCandidate::expert_replicas() const {
  // Without sequence_parallel the ranks of tp beside etp have the same experts and tokens.
  const int64_t beside = sequence_parallel ? tp / etp : 1;
  return std::max<int64_t>(1, replicas() * beside / ep);
}

const std::vector<std::string>& searched_keys() {
  static const std::vector<std::string> keys = {"plan.pp",           "plan.pp_chunks",
                                                "plan.dp",           "plan.ep",
                                                "plan.etp",          "plan.cp",
                                                "plan.tp",           "plan.sequence_parallel",
                                                "plan.micro_batch",  "plan.pp_schedule",
                                                "plan.recompute",    "plan.shard.params",
                                                "plan.shard.grads",  "plan.shard.optimizer",
                                                "plan.cp_comm_type", "plan.cp_order",
                                                "plan.all_reduce",   "plan.reduce_scatter",
                                                "plan.all_gather",   "plan.pp_layers",
                                                "plan.ep_inner",     "plan.dp_samples"};
  return keys;
}

namespace {

/// Adds the keys of plan.shard by `add`, which takes a key and its value.
template <typename Add>
void add_sharding(const PlanCandidate& plan, const SearchSpace& space, const Add& add) {
  if (plan.shard == kZero1) {
    add("shard.optimizer", "all");
  }
  if (plan.shard == kZero2 || plan.shard == kZero3) {
    add("shard.grads", "all");
  }
  if (plan.shard == kZero3 || plan.shard == kGatheredOnce) {
    add("shard.params", "all");
  }
  if (plan.shard == kGatheredOnce) {
    add("shard.reshard_after_forward", "false");
    add("shard.reshard_after_backward", "false");
  }
  if (plan.shard == kHybrid) {
    add("shard.group", std::to_string(shard_group(space, plan)));
    add("shard.params", "group");
    add("shard.grads", "group");
    add("shard.optimizer", "all");
  }
}

}  // namespace

std::vector<std::string> assignments(const PlanCandidate& plan, const SearchSpace& space) {
  std::vector<std::string> list;
  const auto add = [&](const char* key, const std::string& value) {
    list.push_back(fmt::format("plan.{}={}", key, value));
  };
  const auto add_ranks = [&](const char* key, int64_t ranks) {
    if (ranks > 1) {
      add(key, std::to_string(ranks));
    }
  };
  add_ranks("pp", plan.pp);
  add_ranks("pp_chunks", plan.chunks);
  if (plan.pp > 1) {
    add("pp_schedule", parallel::built_in_schedules()[plan.schedule].name);
    if (space.waits_for_messages && space.waits_for_messages(plan)) {
      add("overlap_p2p_comm", "false");
    }
  }
  if (!plan.layers.none() || is_given(space, kLayers)) {
    add("pp_layers", fmt::format("[{}]", fmt::join(stage_layers(space, plan), ", ")));
  }
  add_ranks("dp", plan.dp);
  add_ranks("ep", plan.ep);
  add_ranks("ep_inner", plan.ep_inner);
  add_ranks("etp", plan.etp);
  add_ranks("cp", plan.cp);
  add_ranks("tp", plan.tp);
  if (plan.sequence_parallel) {
    add("sequence_parallel", "true");
  }
  if (plan.sequences > 0) {
    add("dp_samples", fmt::format("[{}]", fmt::join(samples(space, plan), ", ")));
  } else {
    add("micro_batch", std::to_string(plan.micro_batch));
  }
  if (plan.cp > 1) {
    add("cp_comm_type", to_string(plan.cp_comm_type));
    if (plan.cp_comm_type == CpCommType::p2p) {
      add("cp_order", "zigzag");
    }
  }
  if (plan.recompute != Recompute::none) {
    add("recompute", to_string(plan.recompute));
  }
  add_sharding(plan, space, add);
  if (plan.collectives != CollectiveAlgorithm::native) {
    for (const char* key : {"all_reduce", "reduce_scatter", "all_gather"}) {
      add(key, to_string(plan.collectives));
    }
  }
  if (space.ranks > space.ranks_per_node) {
    add("ranks_per_node", std::to_string(space.ranks_per_node));
  }
  return list;
}

int64_t shard_group(const SearchSpace& space, const PlanCandidate& plan) {
  const int64_t group = space.ranks_per_node / plan.tp;
  const bool inside = group > 1 && group < plan.dp && plan.dp % group == 0;
  // Experts and rings of cp have replicas of their own.
  return inside && plan.cp == 1 && plan.ep == 1 ? group : 1;
}

Stages stages_of(const PlanCandidate& plan) {
  const bool is_v = plan.pp > 1 && parallel::built_in_schedules()[plan.schedule].is_v;
  return {plan.pp, plan.chunks, is_v};
}

std::vector<int64_t> stage_layers(const SearchSpace& space, const PlanCandidate& plan) {
  if (!plan.layers.none()) return plan.layers.each();
  if (plan.pp > 1 && is_given(space, kLayers)) return given_numbers(space, kLayers);
  return even_layers(space.model.num_layers, int64_t{plan.pp} * plan.chunks);
}

std::vector<int64_t> samples(const SearchSpace& space, const PlanCandidate& plan) {
  if (plan.sequences == 0) {
    return std::vector<int64_t>(static_cast<size_t>(plan.dp), plan.micro_batch);
  }
  if (is_given(space, kSamples)) return given_numbers(space, kSamples);
  return space.samples_by_speed.at({plan.pp, plan.dp, plan.sequences, !plan.layers.none()});
}

bool balances_replicas(const SearchSpace& space, const PlanCandidate& plan) {
  if (plan.sequences == 0 || is_given(space, kSamples)) return true;
  return space.samples_by_speed.count({plan.pp, plan.dp, plan.sequences, !plan.layers.none()}) > 0;
}

std::vector<double> replica_speeds(const SearchSpace& space, int64_t dp, const LayerCosts& costs,
                                   const std::vector<int64_t>& layers) {
  // Ranks of a stage are neighbours, in these those of a replica.
  const int64_t stages = std::ssize(layers);
  const int64_t inside = space.ranks / stages / dp;
  std::vector<double> speeds;
  for (int64_t replica = 0; replica < dp; ++replica) {
    std::vector<double> of_stages;
    for (int64_t stage = 0; stage < stages; ++stage) {
      const auto first = space.speed.begin() + (stage * dp + replica) * inside;
      of_stages.push_back(*std::min_element(first, first + inside));
    }
    const Stages one_each{.pp = static_cast<int32_t>(stages)};
    speeds.push_back(1 / busiest_rank(costs, one_each, of_stages, layers));
  }
  return speeds;
}

std::vector<PlanCandidate> meshes(const SearchSpace& space) {
  std::vector<PlanCandidate> found;
  const bool cp_given = is_given(space, "plan.cp");
  for (const int64_t pp : divisors(space.ranks)) {
    if (!fits(space, "plan.pp", pp) || pp > space.model.num_layers) continue;
    for (const int64_t tp : divisors(space.ranks / pp)) {
      if (!fits(space, "plan.tp", tp) || !splits_heads(space, tp)) continue;
      for (const int64_t cp : divisors(space.ranks / pp / tp)) {
        const int64_t dp = space.ranks / pp / tp / cp;
        if (!fits(space, "plan.cp", cp) || !fits(space, "plan.dp", dp)) continue;
        if (cp > 1 && space.seq_len % (2 * cp) != 0) continue;
        if (cp > 1 && !cp_given && space.seq_len / cp < kMinCpTokens) continue;
        PlanCandidate mesh;
        mesh.pp = static_cast<int32_t>(pp);
        mesh.tp = static_cast<int32_t>(tp);
        mesh.cp = static_cast<int32_t>(cp);
        mesh.dp = static_cast<int32_t>(dp);
        for (const CpCommType type : kCpCommTypes) {
          if (cp == 1 && type != CpCommType::all_gather) continue;
          const bool exchanges = type == CpCommType::a2a;
          if (exchanges && space.model.num_heads % (tp * cp) != 0) continue;
          if (cp > 1 &&
              (!fits(space, "plan.cp_comm_type", to_string(type)) ||
               !fits(space, "plan.cp_order", type == CpCommType::p2p ? "zigzag" : "contiguous"))) {
            continue;
          }
          mesh.cp_comm_type = type;
          for (const bool sequence : {true, false}) {
            if (sequence && (tp == 1 || space.seq_len / cp % tp != 0)) continue;
            if (!fits(space, "plan.sequence_parallel", sequence ? "true" : "false") && tp > 1) {
              continue;
            }
            mesh.sequence_parallel = sequence;
            add_experts(space, mesh, &found);
          }
        }
      }
    }
  }
  return found;
}

std::vector<int32_t> inner_experts(const SearchSpace& space, const PlanCandidate& mesh) {
  std::vector<int32_t> found;
  // No other trainer has them: of an exchange in two steps one in one step is left there.
  if (mesh.ep == 1 || is_given(space, kInner) || space.expressible) return found;
  const int64_t inside = int64_t{mesh.cp} * mesh.tp;
  const int64_t over_dp = mesh.ep_over().dp;
  if (over_dp * inside <= space.ranks_per_node || space.model.num_experts % mesh.ep != 0) {
    return found;
  }
  for (const int64_t part : divisors(over_dp)) {
    if (part > 1 && space.ranks_per_node % (part * inside) == 0) {
      found.push_back(static_cast<int32_t>(part));
    }
  }
  return found;
}

std::vector<PlanCandidate> micro_batches(const SearchSpace& space, const PlanCandidate& mesh) {
  const bool given = is_given(space, "plan.micro_batch");
  std::vector<PlanCandidate> found;
  const auto add = [&](int64_t each, int64_t sequences) {
    PlanCandidate plan = mesh;
    plan.micro_batch = static_cast<int32_t>(each);
    plan.sequences = static_cast<int32_t>(sequences);
    const int64_t layers = std::max<int64_t>(1, space.model.num_layers);
    if (num_micro_batches(space, plan) * layers <= kMaxLayerPasses) {
      found.push_back(plan);
    }
  };
  // In zigzag order all replicas have equal numbers; [] means that, too.
  const std::vector<int64_t> samples =
      is_given(space, kSamples) ? given_numbers(space, kSamples) : std::vector<int64_t>();
  const bool may_differ =
      mesh.cp_comm_type != CpCommType::p2p && !(is_given(space, kSamples) && samples.empty());
  if (!samples.empty()) {
    const int64_t all = std::accumulate(samples.begin(), samples.end(), int64_t{0});
    // plan.micro_batch would have no effect beside them.
    if (may_differ && !given && std::ssize(samples) == mesh.dp && space.global_batch % all == 0) {
      add(ceil_div(all, int64_t{mesh.dp}), all);
    }
    return found;
  }
  if (space.global_batch % mesh.dp == 0) {
    for (const int64_t sequences : divisors(space.global_batch / mesh.dp)) {
      if (!fits(space, "plan.micro_batch", sequences)) continue;
      if (!given && sequences > kMaxMicroBatch) continue;
      // Ranks of cp with whole sequences are data-parallel ranks, of another mesh.
      const bool is_whole = mesh.cp > 1 && sequences % mesh.cp == 0;
      if (is_whole && !(given && is_given(space, "plan.cp"))) continue;
      add(sequences, 0);
    }
  }
  if (given || !may_differ) return found;
  int32_t last = 0;  // with even layers and with balanced ones
  for (auto at = space.samples_by_speed.lower_bound({mesh.pp, mesh.dp, 0, false});
       at != space.samples_by_speed.end() && at->first.pp == mesh.pp && at->first.dp == mesh.dp;
       ++at) {
    if (at->first.sequences == last) continue;
    last = at->first.sequences;
    add(ceil_div(int64_t{last}, int64_t{mesh.dp}), last);
  }
  return found;
}

int64_t num_micro_batches(const SearchSpace& space, const PlanCandidate& plan) {
  if (plan.sequences > 0) return space.global_batch / plan.sequences;
  return space.global_batch / plan.dp / plan.micro_batch;
}

std::vector<Pipeline> pipelines(const SearchSpace& space, const PlanCandidate& mesh) {
  const int64_t count = num_micro_batches(space, mesh);
  std::vector<Pipeline> found;
  const std::vector<parallel::BuiltIn>& schedules = parallel::built_in_schedules();
  for (size_t s = 0; s < schedules.size(); ++s) {
    const parallel::BuiltIn& schedule = schedules[s];
    if (mesh.pp == 1) {
      if (s > 0 || !fits(space, "plan.pp_chunks", 1) || is_given(space, kLayers)) continue;
      found.push_back({0, 1});
      continue;
    }
    if (!fits(space, "plan.pp_schedule", schedule.name)) continue;
    for (int64_t chunks = 1; mesh.pp * chunks <= space.model.num_layers; ++chunks) {
      if (schedule.chunks != 0 && chunks != schedule.chunks) continue;
      if (!fits(space, "plan.pp_chunks", chunks)) continue;
      // An interleaved schedule of one chunk is another name of 1F1B.
      if (schedule.chunks == 0 && schedule.shown_chunks > 1 && chunks == 1) continue;
      // Among numbers of chunks with equal layers per chunk, the smaller sends less.
      const int64_t layers = space.model.num_layers;
      const auto most = [&](int64_t stages) { return (layers + stages - 1) / stages; };
      if (chunks > 2 && schedule.chunks == 0 &&
          most(mesh.pp * chunks) == most(mesh.pp * (chunks - 1))) {
        continue;
      }
      if (schedule.fitting &&
          schedule.fitting(mesh.pp, static_cast<int>(chunks), static_cast<int>(count)) != count) {
        continue;
      }
      if (!makes(schedule, mesh.pp, static_cast<int>(chunks))) continue;
      const bool given = is_given(space, kLayers);
      if (given && std::ssize(given_numbers(space, kLayers)) != mesh.pp * chunks) continue;
      found.push_back({static_cast<uint8_t>(s), static_cast<int32_t>(chunks)});
    }
  }
  return found;
}

namespace {

/// Returns whether another trainer lacks ZeRO-1 for a plan. Else parameters that are gathered once
/// gain nothing: a step takes the same within 0.4 % (16 and 64 H100), and a rank holds its parts
/// of parameters beside the whole ones.
bool lacks_zero1(const SearchSpace& space, PlanCandidate plan) {
  plan.shard = kZero1;
  return space.expressible && !space.expressible(plan);
}

}  // namespace

void visit_rest(const SearchSpace& space, const PlanCandidate& given,
                const std::function<void(const PlanCandidate&)>& visit) {
  PlanCandidate plan = given;
  const bool splits = plan.replicas() > 1;
  const auto part = [](ShardLevel shard, ShardLevel from) {
    if (shard == kHybrid) return from == kZero1 ? "all" : "group";
    if (shard == kGatheredOnce) return from == kZero2 ? "none" : "all";
    return shard >= from ? "all" : "none";
  };
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    if (!fits(space, "plan.recompute", to_string(recompute))) continue;
    plan.recompute = recompute;
    for (const ShardLevel shard : kShardLevels) {
      if (!splits && shard != ShardLevel::none) continue;
      if (shard == kHybrid && shard_group(space, plan) == 1) continue;
      if (shard == kGatheredOnce && !lacks_zero1(space, plan)) continue;
      if (splits && (!fits(space, "plan.shard.optimizer", part(shard, kZero1)) ||
                     !fits(space, "plan.shard.grads", part(shard, kZero2)) ||
                     !fits(space, "plan.shard.params", part(shard, kZero3)))) {
        continue;
      }
      plan.shard = shard;
      if (space.expressible && !space.expressible(plan)) continue;
      visit(plan);
    }
  }
}

std::vector<PlanCandidate> with_a_layer_moved(const SearchSpace& space, const PlanCandidate& plan) {
  std::vector<PlanCandidate> found;
  if (plan.pp == 1 || is_given(space, "plan.pp_layers")) return found;
  PlanCandidate even = plan;
  even.layers = {};
  const std::vector<int64_t> layers = stage_layers(space, plan), equal = stage_layers(space, even);
  for (size_t from = 0; from < layers.size(); ++from) {
    for (size_t to = 0; to < layers.size(); ++to) {
      const size_t apart = from < to ? to - from : from - to;
      const bool is_near = apart == 1 || layers.size() <= kMaxStagesOfPairs;
      if (apart == 0 || !is_near || layers[from] == 0) continue;
      std::vector<int64_t> moved = layers;
      --moved[from];
      ++moved[to];
      PlanCandidate other = even;
      if (moved != equal) {
        other.layers = StageLayers(std::move(moved));
      }
      if (!space.expressible || space.expressible(other)) {
        found.push_back(std::move(other));
      }
    }
  }
  return found;
}

std::vector<CollectiveAlgorithm> other_collectives(const SearchSpace& space,
                                                   const PlanCandidate& plan) {
  std::vector<CollectiveAlgorithm> found;
  if (plan.tp * plan.replicas() == 1) return found;
  const bool given = is_given(space, "plan.all_reduce") || is_given(space, "plan.all_gather") ||
                     is_given(space, "plan.reduce_scatter");
  if (!given && std::max<int64_t>(plan.tp, plan.replicas()) > kMaxGroupByMessages) {
    return found;
  }
  // Sums of more than a number are among ranks of a stage, neighbours: on one node there is nothing
  // inside of nodes that would come first.
  const int64_t stage = plan.replicas() * plan.tp;
  const bool nodes = space.ranks_per_node > 1 && space.ranks_per_node % stage != 0;
  for (const CollectiveAlgorithm algorithm : kOtherAlgorithms) {
    if (algorithm >= CollectiveAlgorithm::hierarchical && !nodes) continue;
    PlanCandidate other = plan;
    other.collectives = algorithm;
    bool fit = !space.expressible || space.expressible(other);
    for (const char* key : {"plan.all_reduce", "plan.reduce_scatter", "plan.all_gather"}) {
      fit = fit && fits(space, key, to_string(algorithm));
    }
    if (fit) {
      found.push_back(algorithm);
    }
  }
  return found;
}

namespace {

/// Returns "4", or "(2 of 3 + 2 of 1)": groups of replicas by their number of sequences.
std::string samples_text(const SearchSpace& space, const PlanCandidate& plan) {
  if (plan.sequences == 0) return std::to_string(plan.micro_batch);
  const std::vector<int64_t> each = samples(space, plan);
  std::vector<std::string> runs;
  for (size_t begin = 0; begin < each.size();) {
    size_t end = begin;
    while (end < each.size() && each[end] == each[begin]) {
      ++end;
    }
    runs.push_back(fmt::format("{} of {}", end - begin, each[begin]));
    begin = end;
  }
  return fmt::format("({})", fmt::join(runs, " + "));
}

}  // namespace

std::string describe(const PlanCandidate& plan, const SearchSpace& space) {
  std::string text;
  const auto add = [&](const char* axis, int64_t ranks) {
    if (ranks > 1) {
      text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis, ranks);
    }
  };
  add("pp", plan.pp);
  add("dp", plan.dp);
  add("cp", plan.cp);
  add("tp", plan.tp);
  if (text.empty()) {
    text = "1 rank";
  }
  if (plan.cp > 1) {
    text += fmt::format(" ({})", to_string(plan.cp_comm_type));
  }
  if (plan.sequence_parallel) {
    text += " sequence parallel";
  }
  if (plan.ep > 1) {
    text += fmt::format(", ep {}", plan.ep);
    if (plan.ep_inner > 1) {
      text += fmt::format(" = {} x {}", plan.ep / plan.ep_inner, plan.ep_inner);
    }
  }
  if (plan.etp > 1) {
    text += fmt::format(", etp {}", plan.etp);
  }
  if (plan.pp > 1) {
    text += fmt::format(", {}", parallel::built_in_schedules()[plan.schedule].name);
    if (plan.chunks > 1) {
      text += fmt::format(" of {}", plan.chunks);
    }
    if (!plan.layers.none()) {
      text += fmt::format(" of {} layers", fmt::join(stage_layers(space, plan), "+"));
    }
  }
  const int64_t micro_batches = num_micro_batches(space, plan);
  text += fmt::format(", {} micro-batch{} of {}", micro_batches, micro_batches == 1 ? "" : "es",
                      samples_text(space, plan));
  if (plan.recompute != Recompute::none) {
    text += fmt::format(", recompute {}", to_string(plan.recompute));
  }
  if (plan.shard != ShardLevel::none) {
    constexpr const char* kNames[] = {"",       "ZeRO-1", "FSDP gathered once a step",
                                      "ZeRO-2", "ZeRO-3", "HSDP"};
    text += fmt::format(", {}", kNames[place_of(plan.shard)]);
  }
  if (plan.collectives != CollectiveAlgorithm::native) {
    text += fmt::format(", collectives by {}", to_string(plan.collectives));
  }
  return text;
}

}  // namespace hocket::planner
