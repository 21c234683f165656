// SPDX-License-Identifier: Apache-2.0
#include "parallel/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/limits.h"

namespace hocket::parallel {

std::span<const char* const> names_of(Shard) {
  static constexpr const char* kNames[] = {"none", "group", "all"};
  return kNames;
}

const char* to_string(Shard shard) { return names_of(shard)[static_cast<size_t>(shard)]; }

namespace {

// Bound of layers x micro-batches. Each pair is some 50 tasks in training, so the bound is 13
// million tasks: 7 GB, and a minute to lower and to simulate. Megatron-LM's own example of 175
// billion parameters on 128 GPUs, with 96 layers and 1,536 micro-batches, is a little more than
// half of it.
constexpr int64_t kMaxLayersTimesMicroBatches = 1 << 18;
constexpr int64_t kMaxRanksPerNode = 1024;
constexpr int64_t kMaxSamples = 1 << 16;  // sequences per rank and micro-batch
constexpr int64_t kMaxShares = 1 << 30;   // sum of plan.cp_shares
// Bounds of single keys, far above any real run. Their products stay below 2^62.
constexpr double kMaxAxisRanks = 1 << 16;
constexpr double kMaxKib = 1 << 30;
constexpr double kMaxThreads = 1024;

/// Throws Error if experts or their widths cannot be split over the given numbers of ranks.
void validate_expert_ranks(const Plan& plan, int64_t num_experts) {
  for (const auto& [key, ranks] : {std::pair{"ep", plan.ep}, {"etp", plan.etp}}) {
    if (ranks > 1 && num_experts == 0) {
      fail("plan", "plan.{} is {} but the model has no experts; try plan.{}: 1", key, ranks, key);
    }
  }
  if (plan.tp % plan.etp != 0) {
    fail("plan", "plan.etp is {}; expected a divisor of plan.tp = {}", plan.etp, plan.tp);
  }
  const Plan::Over over = plan.ep_over();
  if (plan.dp % over.dp != 0) {
    const std::string inside = over.cp * over.tp > 1
                                   ? fmt::format(" / {} = {} (of cp {} ranks, of tp {})",
                                                 over.cp * over.tp, over.dp, over.cp, over.tp)
                                   : "";
    const bool tokens = plan.tp > plan.etp && !plan.sequence_parallel;
    fail("plan", "plan.ep is {}{}; expected a divisor of plan.dp = {}{}", plan.ep, inside, plan.dp,
         tokens ? "; experts are split over tp only with plan.sequence_parallel: true" : "");
  }
  if (over.cp * over.tp > 1 && num_experts % plan.ep != 0) {
    fail("plan",
         "plan.ep is {}, with {} ranks of cp and {} of tp; expected a divisor of the "
         "model's {} experts",
         plan.ep, over.cp, over.tp, num_experts);
  }
}

/// Throws Error if the ranks cannot share the experts, or not in two steps (ep_inner), or if
/// expert_ranks does not fit.
void validate_experts(const Plan& plan, int64_t num_experts) {
  validate_expert_ranks(plan, num_experts);
  if (plan.ep > 1 && num_experts < plan.ep) {
    fail("plan", "plan.ep is {}; expected at most the model's {} experts", plan.ep, num_experts);
  }
  if (const int64_t over_dp = plan.ep_over().dp; over_dp % plan.ep_inner != 0) {
    fail("plan", "plan.ep_inner is {}; expected a divisor of {}", plan.ep_inner,
         over_dp == plan.ep ? fmt::format("plan.ep = {}", plan.ep)
                            : fmt::format("the {} ranks of plan.ep that are of dp", over_dp));
  }
  if (plan.ep_inner > 1 && num_experts % plan.ep != 0) {
    fail("plan",
         "plan.ep_inner is {}, but plan.ep = {} does not divide the model's {} experts; try "
         "plan.ep_inner: 1",
         plan.ep_inner, plan.ep, num_experts);
  }
  if (plan.expert_ranks > 0) {
    const auto expect = [](bool good, const char* what) {
      if (!good) fail("plan", "plan.expert_ranks needs {}", what);
    };
    expect(num_experts >= plan.expert_ranks, "a model with at least this number of experts");
    expect(plan.pp == 1 && plan.pp_chunks == 1, "a plan of one stage; try plan.pp: 1");
    expect(plan.tp == 1, "a plan without tensor-parallel ranks; try plan.tp: 1");
    expect(plan.ep == 1, "a plan whose other ranks have no experts; try plan.ep: 1");
    expect(plan.shard.params == Shard::none,
           "parameters that are not sharded; try plan.shard.params: none");
    if (plan.sequences() < plan.expert_ranks) {
      fail("plan", "plan.expert_ranks is {}; expected at most the {} sequences of a micro-batch",
           plan.expert_ranks, plan.sequences());
    }
  }
}

/// Throws Error if shard.group is missing, or is not the number of ranks along the innermost axes.
void validate_groups(const Plan& plan) {
  const Sharding& shard = plan.shard;
  const int64_t ranks = plan.dp * plan.cp;
  if (shard.group == 0) {
    for (const auto& [key, among] : {std::pair{"params", shard.params},
                                     {"grads", shard.grads},
                                     {"optimizer", shard.update()}}) {
      if (among != Shard::group) continue;
      fail("plan",
           "plan.shard.{} is group, but plan.shard.group is 0; expected the ranks of a group, a "
           "divisor of the {} that share parameters; try plan.shard.group: {}",
           key, ranks, ranks % 2 == 0 ? ranks / 2 : ranks);
    }
    return;
  }
  const int64_t experts = plan.ep_over().dp;
  std::vector<int64_t> legal;  // ascending: cp, with ep_inner, with ep, with parts of edp
  for (int64_t inside : {plan.cp, plan.cp * plan.ep_inner}) {
    legal.push_back(inside);
  }
  for (int64_t part = 1; part <= plan.dp / experts; ++part) {
    if (plan.dp / experts % part == 0) {
      legal.push_back(plan.cp * experts * part);
    }
  }
  if (std::find(legal.begin(), legal.end(), shard.group) == legal.end()) {
    legal.erase(std::unique(legal.begin(), legal.end()), legal.end());
    fail(
        "plan",
        "plan.shard.group is {}; expected one of {}: the ranks along the innermost axes of plan.dp "
        "{} = {} x {} of plan.ep and plan.cp {}",
        shard.group, fmt::join(legal, ", "), plan.dp, plan.dp / experts, experts, plan.cp);
  }
}

/// Throws Error if there are more stages than layers, or pp_layers does not match the model.
void validate_stages(const Plan& plan, int64_t num_layers) {
  if (plan.pp_layers.empty() && plan.num_stages() > std::max<int64_t>(num_layers, 1)) {
    fail("plan",
         "plan.pp{} is {} but the model has {} layers; try plan.pp_layers, with 0 for a stage "
         "without layers",
         plan.pp_chunks > 1 ? " x plan.pp_chunks" : "", plan.num_stages(), num_layers);
  }
  if (!plan.pp_layers.empty()) {
    if (static_cast<int64_t>(plan.pp_layers.size()) != plan.num_stages()) {
      fail("plan", "plan.pp_layers has {} entries; expected plan.pp{} = {}", plan.pp_layers.size(),
           plan.pp_chunks > 1 ? " x plan.pp_chunks" : "", plan.num_stages());
    }
    for (int64_t n : plan.pp_layers) {
      if (n < 0) fail("plan", "plan.pp_layers has {}; expected 0 or more layers", n);
    }
    int64_t sum = std::accumulate(plan.pp_layers.begin(), plan.pp_layers.end(), int64_t{0});
    if (sum != num_layers) {
      fail("plan", "plan.pp_layers sums to {}; expected the model's {} layers", sum, num_layers);
    }
  }
}

}  // namespace

bool splits_tokens(std::string_view axis) { return axis != kStageAxis && !splits_parameters(axis); }
bool splits_sequences(std::string_view axis) { return axis.starts_with(kContextAxis); }
bool splits_experts(std::string_view axis) {
  return axis == kExpertAxis || axis == kInnerExpertAxis || axis.ends_with("_ep");
}
bool splits_expert_widths(std::string_view axis) { return axis.ends_with("_etp"); }
bool splits_parameters(std::string_view axis) { return axis.starts_with(kTensorAxis); }

Plan::Over Plan::ep_over() const {
  Over over;
  over.tp = sequence_parallel ? std::gcd(ep, tp / etp) : 1;
  over.cp = std::gcd(ep / over.tp, cp);
  if (ring && over.cp != cp) {
    over.cp = 1;
  }
  over.dp = ep / over.tp / over.cp;
  return over;
}

int64_t Plan::edp_inner() const {
  const int64_t experts = ep_over().dp;
  const int64_t inside = experts * cp;
  const int64_t ranks = shard.group % inside == 0 ? shard.group / inside : 1;
  return ranks > 1 && ranks < dp / experts ? ranks : 1;
}

int64_t Plan::sequences() const {
  return dp_samples.empty() ? dp * micro_batch
                            : std::accumulate(dp_samples.begin(), dp_samples.end(), int64_t{0});
}

graph::Mesh Plan::mesh() const {
  graph::Mesh mesh;
  const auto add = [&](const std::string& name, int64_t ranks) {
    mesh.axes.push_back({name, static_cast<int32_t>(ranks)});
  };
  const Over over = ep_over();
  add(kStageAxis, pp);
  add(kDataAxis, dp / over.dp / edp_inner());
  if (edp_inner() > 1) {
    add(kInnerDataAxis, edp_inner());
  }
  add(kExpertAxis, over.dp / ep_inner);
  if (ep_inner > 1) {
    add(kInnerExpertAxis, ep_inner);
  }
  int64_t outside = 1;  // ranks of tp outside of the next axis
  const auto add_parts = [&](const std::string& name, int64_t ranks) {
    // The split of key and value heads may end in the middle of an axis, which is then cut.
    const bool cut = name.starts_with(kTensorAxis) && outside < heads_apart &&
                     heads_apart < outside * ranks && heads_apart % outside == 0 &&
                     outside * ranks % heads_apart == 0;
    const int64_t first = cut ? heads_apart / outside : 1;
    if (first > 1) {
      add(std::string(kTensorAxis) + "_kv" + name.substr(2), first);
    }
    if (ranks > first) {
      add(name, ranks / first);
    }
    outside *= ranks;
  };
  add_parts(kContextAxis, cp / over.cp);
  add_parts(std::string(kContextAxis) + "_ep", over.cp);
  outside = 1;
  add_parts(kTensorAxis, tp / etp / over.tp);
  add_parts(std::string(kTensorAxis) + "_ep", over.tp);
  add_parts(std::string(kTensorAxis) + "_etp", etp);
  return mesh;
}

Plan Plan::of_experts() const {
  Plan plan = *this;
  plan.dp = plan.ep = expert_ranks;
  plan.dp_samples.clear();
  plan.micro_batch = sequences() / expert_ranks;
  for (int64_t rank = 0; sequences() % expert_ranks != 0 && rank < expert_ranks; ++rank) {
    plan.dp_samples.push_back(graph::share(sequences(), expert_ranks, rank).length);
  }
  plan.expert_ranks = 0;
  plan.cp = 1;
  plan.exchange_heads = plan.ring = false;
  plan.shard = {};
  plan.layouts.clear();
  plan.cp_shares.clear();
  return plan;
}

std::vector<int64_t> shares_of(int64_t size, const std::vector<int64_t>& parts) {
  const int64_t all = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  std::vector<int64_t> shares;
  int64_t before = 0, begin = 0;
  for (const int64_t part : parts) {
    before += part;
    const int64_t end = size / all * before + size % all * before / all;
    shares.push_back(end - begin);
    begin = end;
  }
  return shares;
}

void Plan::validate_tokens() const {
  if (!cp_shares.empty() && std::cmp_not_equal(cp_shares.size(), cp)) {
    fail("plan", "plan.cp_shares has {} entries; expected plan.cp = {}", cp_shares.size(), cp);
  }
  int64_t all = 0;
  for (const int64_t share : cp_shares) {
    all += std::clamp<int64_t>(share, 0, kMaxShares);
    if (share < 1 || all > kMaxShares) {
      fail("plan", "plan.cp_shares has {}; expected 1 or more, with a sum of at most {}", share,
           kMaxShares);
    }
  }
  if (dp_samples.empty()) return;
  if (std::cmp_not_equal(dp_samples.size(), dp)) {
    fail("plan", "plan.dp_samples has {} entries; expected plan.dp = {}", dp_samples.size(), dp);
  }
  for (const int64_t samples : dp_samples) {
    if (samples < 1 || samples > kMaxSamples) {
      fail("plan", "plan.dp_samples has {}; expected 1 to {}", samples, kMaxSamples);
    }
  }
}

void Plan::validate(int64_t num_layers, int64_t num_experts) const {
  // Sizes, experts and layers first. Then the bounds that keep a mistyped plan from making a
  // program that does not fit in memory.
  const auto positive = [](const char* key, int64_t value) {
    if (value < 1) fail("plan", "{} is {}; expected at least 1", key, value);
  };
  positive("plan.pp", pp);
  positive("plan.pp_chunks", pp_chunks);
  positive("plan.dp", dp);
  positive("plan.ep", ep);
  positive("plan.ep_inner", ep_inner);
  positive("plan.etp", etp);
  positive("plan.cp", cp);
  positive("plan.tp", tp);
  positive("plan.micro_batch", micro_batch);
  validate_experts(*this, num_experts);
  validate_groups(*this);
  validate_tokens();
  validate_stages(*this, num_layers);
  int64_t ranks = 1;
  for (const int64_t size : {pp, dp, cp, tp}) {
    if (size > kMaxRanks / ranks) {
      fail("plan", "plan.pp {} x plan.dp {} x plan.cp {} x plan.tp {}; expected at most {} ranks",
           pp, dp, cp, tp, kMaxRanks);
    }
    ranks *= size;
  }
  const int64_t on_node = ranks_per_node > 0 ? std::min(ranks_per_node, world()) : world();
  if (on_node > kMaxRanksPerNode) {
    fail("plan",
         "{} ranks are on one node (plan.ranks_per_node is {}); expected at most {}; try "
         "plan.ranks_per_node: 8",
         on_node, ranks_per_node, kMaxRanksPerNode);
  }
  const int64_t most = kMaxLayersTimesMicroBatches / std::max<int64_t>(num_layers, 1);
  if (num_micro_batches > most) {
    fail("plan",
         "a step has {} micro-batches; expected at most {} with {} layers (micro-batches x layers "
         "make the program's size); try a larger plan.micro_batch or plan.dp, or a smaller "
         "train.global_batch",
         num_micro_batches, most, num_layers);
  }
}

std::vector<int32_t> Plan::stage_of_layers(int64_t num_layers) const {
  std::vector<int32_t> stages;
  const int64_t num = num_stages();
  for (int64_t stage = 0; stage < num; ++stage) {
    // Without pp_layers, later stages get the smaller shares: the last one also has the head.
    int64_t layers = num_layers / num + (stage < num_layers % num ? 1 : 0);
    if (!pp_layers.empty()) {
      layers = pp_layers[stage];
    }
    stages.insert(stages.end(), static_cast<size_t>(layers), static_cast<int32_t>(stage));
  }
  return stages;
}

void Sharding::fields(Fields& fields) {
  fields(
      "params", params,
      "sharding of parameters, which are gathered before each use and freed after it: over all "
      "ranks, or inside each group; ZeRO-3 and FSDP (in groups MiCS and HSDP) have grads sharded "
      "alike, without which gradients stay whole, f32, over a step's micro-batches; generation "
      "holds them whole");
  fields(
      "grads", grads,
      "sharding of gradients, which are reduce-scattered after every micro-batch (ZeRO-2); none: "
      "accumulated whole, and reduced once per step");
  fields("optimizer", optimizer,
         "sharding of the optimizer's states and of the update (ZeRO-1); at least as far as "
         "parameters and gradients, which is the default");
  fields("group", group, "ranks of a group, the nearest ones: a divisor of dp x cp; 0: no groups")
      .min(0)
      .max(kMaxAxisRanks * kMaxAxisRanks);
  fields("least_kib", least_kib,
         "KiB below which parameters stay whole, with their gradients and states: their messages "
         "would cost more than the memory that they save")
      .min(0)
      .max(kMaxKib);
  fields("reshard_after_forward", reshard_after_forward,
         "free gathered parameters after the forward pass of a layer and gather them again for its "
         "backward pass; false: keep them in between, for more memory and fewer messages");
  fields("reshard_after_backward", reshard_after_backward,
         "free gathered parameters after the backward pass of a micro-batch; false, with "
         "reshard_after_forward false: gather them once, at the beginning of a step, in the order "
         "in which its stages need them, and keep them until its end");
}

namespace {

/// Adds the keys of the axes of the mesh.
void add_axes(Plan& plan, Fields& fields) {
  fields(
      "pp", plan.pp,
      "pipeline ranks, each with pp_chunks stages; by default the rows of a schedule CSV, else 1")
      .min(1)
      .max(kMaxAxisRanks);
  fields("pp_chunks", plan.pp_chunks,
         "stages per pipeline rank: model chunks, for interleaved and zb-h1; default: the "
         "schedule's own number, which is 2 for zb-v and dualpipev and the number in a "
         "CSV, else 1")
      .min(1)
      .max(kMaxAxisRanks);
  fields(
      "dp", plan.dp,
      "data-parallel ranks; with ranks as processes, the default is the number that the other axes "
      "leave")
      .min(1)
      .max(kMaxAxisRanks);
  fields("ep", plan.ep,
         "expert-parallel ranks, taken from the other axes: first ranks of tp (with "
         "sequence_parallel), then of cp, then of dp")
      .min(1);
  fields("etp", plan.etp, "ranks of tp over which the width of every expert is split").min(1);
  fields("ep_inner", plan.ep_inner,
         "ranks of ep that are near each other, as on a node: rows go to the node of their expert, "
         "then to its rank, and back the same way (two-level all-to-all); 1: in one step")
      .min(1);
  fields("expert_ranks", plan.expert_ranks,
         "additional ranks, which have all experts; 0: none. Forward only: eval, graph --for "
         "evaluate")
      .min(0)
      .max(kMaxAxisRanks);
  fields("cp", plan.cp, "context-parallel ranks: they share the tokens of a data-parallel rank")
      .min(1)
      .max(kMaxAxisRanks);
  fields("tp", plan.tp,
         "tensor-parallel ranks: they have the same tokens, and parts of the vocabulary, heads and "
         "MLPs")
      .min(1)
      .max(kMaxAxisRanks);
}

}  // namespace

void Plan::fields(Fields& fields) {
  add_axes(*this, fields);
  fields("sequence_parallel", sequence_parallel,
         "split the tokens over the ranks of tp, between products: norms and residuals are not "
         "repeated, and take a part of the memory");
  fields("micro_batch", micro_batch, "sequences per data-parallel rank and micro-batch")
      .min(1)
      .max(kMaxSamples);
  fields("dp_samples", dp_samples,
         "sequences of a micro-batch for each data-parallel rank, in place of micro_batch, e.g. "
         "[3, 2, 2, 1] for ranks of different speed; default: micro_batch each, or as evenly as "
         "global_batch divides");
  fields("cp_shares", cp_shares,
         "shares of a data-parallel rank's tokens per rank of cp, relative to each other, e.g. [3, "
         "2, 2, 1] for ranks of different speed; default: equal");
  fields("shard", shard,
         "sharding over data-parallel ranks: none, over a group of near ranks, or over all "
         "(docs/parallelism.md)");
  fields(
      "pp_layers", pp_layers,
      "layers per stage, e.g. [3, 5]; 0 for a first or last stage with the embedding or the head "
      "alone; default: as even as possible");
  fields("pp_schedule", pp_schedule,
         "pipeline schedule: " + built_in_names() +
             ", or a schedule CSV, as `hocket graph --stage schedule` prints it "
             "(docs/schedules.md)");
  fields("layouts", layouts,
         "layouts of tensors, \"PATTERN LAYOUT\" each, e.g. [lm_head.weight tp:S0]: those whose "
         "names match (* and ?) are split along dim 0 over tp; B: whole on every rank; the last "
         "match counts; gradients and optimizer states have the layout of their parameter's update "
         "(docs/parallelism.md)");
  fields("threads_per_rank", threads_per_rank, "compute threads; 0: the cores divided by the ranks")
      .min(0)
      .max(kMaxThreads);
  fields("ranks_per_node", ranks_per_node,
         "ranks per node, which decides the links between them; 0: all ranks on one node, "
         "or, with ranks as processes, the number that the launcher starts on each host")
      .min(0)
      .max(kMaxAxisRanks);
}

}  // namespace hocket::parallel
