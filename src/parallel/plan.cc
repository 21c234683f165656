// SPDX-License-Identifier: Apache-2.0
#include "parallel/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace hocket::parallel {

namespace {

// Some 50 tasks each in training: 3 million tasks, 2 GB, 40 s of compilation and check.
constexpr int64_t kMaxLayersTimesMicroBatches = 1 << 16;
constexpr int64_t kMaxRanksPerNode = 1024;
constexpr int64_t kMostRanks = 1 << 20;

/// Throws Error: experts that the ranks do not share, ranks that take them in no two steps.
void validate_experts(const Plan& plan, int64_t num_experts) {
  if (plan.dp % plan.ep != 0) {
    fail("plan", "plan.ep is {}; expected a divisor of plan.dp = {}", plan.ep, plan.dp);
  }
  if (plan.ep > 1 && num_experts == 0) {
    fail("plan", "plan.ep is {} but the model has no experts; try plan.ep: 1", plan.ep);
  }
  if (plan.ep > 1 && num_experts < plan.ep) {
    fail("plan", "plan.ep is {}; expected at most the model's {} experts", plan.ep, num_experts);
  }
  if (plan.ep % plan.ep_inner != 0) {
    fail("plan", "plan.ep_inner is {}; expected a divisor of plan.ep = {}", plan.ep_inner, plan.ep);
  }
  if (plan.ep_inner > 1 && num_experts % plan.ep != 0) {
    fail("plan",
         "plan.ep_inner is {}, but plan.ep = {} does not divide the model's {} experts; try "
         "plan.ep_inner: 1",
         plan.ep_inner, plan.ep, num_experts);
  }
  if (plan.expert_ranks > 0) {
    const auto expect = [](bool good, const char* what) {
      if (!good) fail("plan", "plan.expert_ranks is for {}", what);
    };
    expect(num_experts >= plan.expert_ranks, "models with as many experts at least");
    expect(plan.pp == 1 && plan.pp_chunks == 1, "plans of one stage; try plan.pp: 1");
    expect(plan.tp == 1, "plans without tensor-parallel ranks; try plan.tp: 1");
    expect(plan.ep == 1, "plans whose other ranks have no experts; try plan.ep: 1");
    expect(plan.shard.params == Shard::none,
           "plans whose parameters are whole; try plan.shard.params: none");
    if (plan.dp * plan.micro_batch % plan.expert_ranks != 0) {
      fail("plan",
           "plan.expert_ranks is {}; expected a divisor of the sequences of a micro-batch, plan.dp "
           "{} x plan.micro_batch {}",
           plan.expert_ranks, plan.dp, plan.micro_batch);
    }
  }
}

/// Throws Error: a group that there is not, or whose ranks are not those along the innermost axes.
void validate_groups(const Plan& plan) {
  const Sharding& shard = plan.shard;
  const int64_t ranks = plan.dp * plan.cp;
  if (shard.group == 0) {
    for (const auto& [key, among] : {std::pair{"params", shard.params},
                                     {"grads", shard.grads},
                                     {"optimizer", shard.optimizer}}) {
      if (among != Shard::group) continue;
      fail("plan",
           "plan.shard.{} is group, but plan.shard.group is 0; expected the ranks of a group, a "
           "divisor of the {} that share parameters; try plan.shard.group: {}",
           key, ranks, ranks % 2 == 0 ? ranks / 2 : ranks);
    }
    return;
  }
  std::vector<int64_t> legal;  // ascending: cp, with ep_inner, with ep, with parts of edp
  for (int64_t inside : {plan.cp, plan.cp * plan.ep_inner}) {
    legal.push_back(inside);
  }
  for (int64_t part = 1; part <= plan.dp / plan.ep; ++part) {
    if (plan.dp / plan.ep % part == 0) {
      legal.push_back(plan.cp * plan.ep * part);
    }
  }
  if (std::find(legal.begin(), legal.end(), shard.group) == legal.end()) {
    legal.erase(std::unique(legal.begin(), legal.end()), legal.end());
    fail(
        "plan",
        "plan.shard.group is {}; expected one of {}: the ranks along the innermost axes of plan.dp "
        "{} = {} x plan.ep {} and plan.cp {}",
        shard.group, fmt::join(legal, ", "), plan.dp, plan.dp / plan.ep, plan.ep, plan.cp);
  }
}

/// Throws Error: stages without a layer to begin with, layers that are not the model's.
void validate_stages(const Plan& plan, int64_t num_layers) {
  if (plan.pp > std::max<int64_t>(num_layers, 1)) {
    fail("plan", "plan.pp is {} but the model has {} layers", plan.pp, num_layers);
  }
  if (plan.num_stages() > std::max<int64_t>(num_layers, 1)) {
    fail("plan", "plan.pp x plan.pp_chunks is {} but the model has {} layers", plan.num_stages(),
         num_layers);
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

bool splits_tokens(std::string_view axis) { return axis != kStageAxis && axis != kTensorAxis; }
bool splits_experts(std::string_view axis) {
  return axis == kExpertAxis || axis == kInnerExpertAxis;
}

int64_t Plan::edp_inner() const {
  const int64_t inside = ep * cp;
  const int64_t ranks = shard.group % inside == 0 ? shard.group / inside : 1;
  return ranks > 1 && ranks < dp / ep ? ranks : 1;
}

graph::Mesh Plan::mesh() const {
  graph::Mesh mesh{{{kStageAxis, static_cast<int32_t>(pp)},
                    {kDataAxis, static_cast<int32_t>(dp / ep / edp_inner())}}};
  if (edp_inner() > 1) {
    mesh.axes.push_back({kInnerDataAxis, static_cast<int32_t>(edp_inner())});
  }
  mesh.axes.push_back({kExpertAxis, static_cast<int32_t>(ep / ep_inner)});
  if (ep_inner > 1) {
    mesh.axes.push_back({kInnerExpertAxis, static_cast<int32_t>(ep_inner)});
  }
  if (cp > 1) {
    mesh.axes.push_back({kContextAxis, static_cast<int32_t>(cp)});
  }
  if (tp > 1) {
    mesh.axes.push_back({kTensorAxis, static_cast<int32_t>(tp)});
  }
  return mesh;
}

Plan Plan::of_experts() const {
  Plan plan = *this;
  plan.dp = plan.ep = expert_ranks;
  plan.micro_batch = dp * micro_batch / expert_ranks;
  plan.expert_ranks = 0;
  plan.cp = 1;
  plan.shard = {};
  plan.layouts.clear();
  return plan;
}

void Plan::validate(int64_t num_layers, int64_t num_experts) const {
  // What is wrong is said by key: sizes, experts and layers, then the two bounds
  // that keep a mistyped plan from making a program that nobody can hold in memory.
  const auto positive = [](const char* key, int64_t value) {
    if (value < 1) fail("plan", "{} is {}; expected at least 1", key, value);
  };
  positive("plan.pp", pp);
  positive("plan.pp_chunks", pp_chunks);
  positive("plan.dp", dp);
  positive("plan.ep", ep);
  positive("plan.ep_inner", ep_inner);
  positive("plan.cp", cp);
  positive("plan.tp", tp);
  positive("plan.micro_batch", micro_batch);
  validate_experts(*this, num_experts);
  validate_groups(*this);
  validate_stages(*this, num_layers);
  int64_t ranks = 1;
  for (const int64_t size : {pp, dp, cp, tp}) {
    if (size > kMostRanks / ranks) {
      fail("plan", "plan.pp {} x plan.dp {} x plan.cp {} x plan.tp {}; expected at most {} ranks",
           pp, dp, cp, tp, kMostRanks);
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
    // Without pp_layers, later stages get the smaller shares: the last one has the head as well.
    int64_t layers = num_layers / num + (stage < num_layers % num ? 1 : 0);
    if (!pp_layers.empty()) {
      layers = pp_layers[stage];
    }
    stages.insert(stages.end(), static_cast<size_t>(layers), static_cast<int32_t>(stage));
  }
  return stages;
}

}  // namespace hocket::parallel
