// SPDX-License-Identifier: Apache-2.0
// Implements: read_sharding, read_recompute (import_megatron.h).
#include <set>

#include "base/error.h"
#include "base/product.h"
#include "base/text.h"
#include "interop/import_megatron.h"

namespace hocket::interop {

void MegatronImport::read_sharding() {
  std::string split = "no_shard";
  if (arguments_.has("--use-distributed-optimizer")) {
    split = "optim";
  }
  const bool fsdp = arguments_.has("--use-custom-fsdp") || arguments_.has("--use-megatron-fsdp");
  if (fsdp || arguments_.has("--data-parallel-sharding-strategy")) {
    const std::string given = arguments_.text("--data-parallel-sharding-strategy");
    split = given.empty() ? "no_shard" : given;
  }
  if (arguments_.has("--use-torch-fsdp2")) {
    split = "optim_grads_params";
    if (arguments_.has("--torch-fsdp2-no-reshard-after-forward")) {
      set("plan.shard.reshard_after_forward", false);
    }
  }
  const int64_t instances = arguments_.integer("--num-distributed-optimizer-instances", 1);
  const int64_t replicas = product_at_most({dp_, cp_});
  const std::string among = instances > 1 ? "group" : "all";
  if (split == "no_shard" || replicas == 1) {
    // Nothing is split.
  } else if (split == "optim") {
    set("plan.shard.optimizer", among);
  } else if (split == "optim_grads" || split == "optim_grads_params") {
    set("plan.shard.grads", among);
    if (split == "optim_grads_params") {
      set("plan.shard.params", among);
    }
  } else {
    fail(name_,
         "--data-parallel-sharding-strategy is {}; expected no_shard, optim, optim_grads "
         "or optim_grads_params",
         quote(split));
  }
  if (instances > 1 && split != "no_shard") {
    set("plan.shard.group", replicas / instances);
  }
  read_gathers(replicas > 1 ? split : "no_shard");
  if (replicas > 1 && !arguments_.has("--overlap-grad-reduce")) {
    set("plan.overlap_grad_reduce", false);
  }
  if (const int64_t bucket = arguments_.integer("--ddp-bucket-size", 0); bucket > 0) {
    constexpr double kMib = 1 << 20;
    set("plan.bucket_mib", static_cast<double>(bucket) * 4 / kMib);
  }
  if (arguments_.has("--ddp-num-buckets")) {
    need_key("--ddp-num-buckets", "plan.bucket_mib", "buckets have a size here");
  }
  if (arguments_.has("--delay-wgrad-compute")) {
    set("plan.delay_wgrad_compute", true);
  }
}

/// Reads when parameters are gathered. If they are not sharded, they stay whole with and without
/// --overlap-param-gather, which gathers updated ones beside the next step's forward passes.
void MegatronImport::read_gathers(const std::string& split) {
  const bool overlap = arguments_.has("--overlap-param-gather");
  if (split == "optim_grads_params") {
    if (!overlap) {
      set("plan.overlap_param_gather", false);
    }
  } else if (overlap && split != "no_shard") {
    imported_.notes.push_back(
        "updated parameters are gathered at the end of a step here, where --overlap-param-gather "
        "hides that behind the next forward passes; --set plan.shard.params=all, with "
        "plan.shard.reshard_after_forward=false and reshard_after_backward=false, has that time, "
        "but less memory: it frees parameters between steps");
  } else {
    arguments_.leave("--overlap-param-gather", "no ranks split parameters or the optimizer");
  }
}

void MegatronImport::read_recompute() {
  const std::string granularity = arguments_.text("--recompute-granularity");
  const bool some = arguments_.has("--recompute-activations");
  expect_one_of("--recompute-granularity", {"full", "selective"});
  expect_one_of("--recompute-method", {"uniform", "block"});
  if (granularity == "full") {
    set("plan.recompute", std::string("full"));
    read_recompute_layers();
  } else if (granularity == "selective" || some || arguments_.has("--moe-layer-recompute")) {
    read_recompute_modules();
  }
}

/// Reads which layers are recomputed. Full recomputation repeats every layer from its input here.
/// Megatron-LM repeats some layers of a stage (block), or keeps the input of every few layers
/// (uniform).
void MegatronImport::read_recompute_layers() {
  const bool block = arguments_.text("--recompute-method") == "block";
  const int64_t layers = arguments_.at_least(0, "--recompute-num-layers", 1);
  const int64_t of_stage = (layers_ + pp_ - 1) / pp_;
  const bool is_all = block ? layers_ > 0 && layers >= of_stage : layers == 1;
  if (!is_all) {
    need_key("--recompute-num-layers", "plan.recompute",
             block ? fmt::format("all {} layers of a stage are computed again here", of_stage)
                   : "every layer keeps its input here");
  }
}

/// Reads which modules are recomputed: selective repeats ops of some kinds here, wherever they
/// stand.
void MegatronImport::read_recompute_modules() {
  std::vector<std::string> modules = arguments_.words("--recompute-modules");
  if (modules.empty()) {
    modules = {"core_attn"};
  }
  if (arguments_.has("--moe-layer-recompute")) {
    need_key("--moe-layer-recompute", "plan.recompute", "selective repeats no products here");
  }
  std::set<std::string> ops;
  std::vector<std::string> left;
  for (const std::string& module : modules) {
    if (module == "layernorm") {
      ops.insert("rms_norm");
    } else if (module == "moe_act") {
      ops.insert("swiglu");
    } else if (module == "core_attn") {
      imported_.notes.push_back(
          "core_attn need not be computed again: attention keeps no scores here");
    } else {
      left.push_back(module);
    }
  }
  if (!left.empty()) {
    need_key("--recompute-modules", "plan.recompute",
             join(left, ", ") + (left.size() == 1 ? " is" : " are") +
                 " not computed again, since selective repeats no products here");
  }
  if (!ops.empty()) {
    set("plan.recompute", std::string("selective"));
    set("plan.recompute_ops", fmt::format("[{}]", fmt::join(ops, ", ")));
    imported_.notes.push_back(fmt::format(
        "plan.recompute_ops repeats every {}: norms of queries and keys, and activations of MLPs "
        "without experts, among them",
        join({ops.begin(), ops.end()}, " and ")));
  }
}

}  // namespace hocket::interop
