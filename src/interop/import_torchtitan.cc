// SPDX-License-Identifier: Apache-2.0
// Names and defaults are those of torchtitan/config; names of other releases are read as well.
#include "interop/import_torchtitan.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/product.h"
#include "base/text.h"
#include "interop/tables.h"
#include "interop/torchtitan_model.h"

namespace hocket::interop {

namespace {

/// Keys of earlier releases that only changed their name. Those of [parallelism] were in [training]
/// and [experimental] before (kFormerSections).
constexpr std::pair<const char*, const char*> kFormerNames[] = {
    {"training.local_batch_size", "training.batch_size"},
    {"parallelism.data_parallel_shard_degree", "parallelism.data_parallel_degree"},
    {"parallelism.tensor_parallel_degree", "parallelism.sequence_parallel_degree"},
    {"lr_scheduler.warmup_steps", "training.warmup_steps"},
    {"lr_scheduler.min_lr_factor", "lr_scheduler.lr_min"},
    {"checkpoint.enable", "checkpoint.enable_checkpoint"},
    {"validation.enable", "validation.enabled"},
    {"validation.enable", "validator.enable"},
    {"validation.freq", "validator.freq"},
    {"training.seq_len", "training.max_context_length"},
    {"parallelism.module_fqns_per_model_part",
     "parallelism.pipeline_parallel_module_fqns_per_model_part"},
    {"compile.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel"},
    {"compile.enable_async_tensor_parallel", "experimental.enable_async_tensor_parallel"},
    {"debug.seed", "training.seed"}};
constexpr const char* kFormerSections[] = {"training", "experimental"};

/// A key and the names that it had, the present one first.
std::vector<std::string> names_of(const std::string& path) {
  std::vector<std::string> names = {path};
  for (const auto& [now, before] : kFormerNames) {
    if (path == now) {
      names.push_back(before);
    }
  }
  constexpr std::string_view kParallelism = "parallelism.";
  const size_t with_names = names.size();
  for (size_t i = 0; i < with_names; ++i) {
    if (!names[i].starts_with(kParallelism)) continue;
    for (const char* section : kFormerSections) {
      names.push_back(fmt::format("{}.{}", section, names[i].substr(kParallelism.size())));
    }
  }
  return names;
}

}  // namespace

TorchtitanImport::TorchtitanImport(const std::string& text, const std::string& name,
                                   const RanksOfFile& ranks, const Beside& beside)
    : is_json_(is_json(text)),
      job_(is_json_ ? tree_of_json(text, name) : tree_of_toml(text, name), name, "torchtitan",
           is_json_ ? torchtitan_json_keys() : torchtitan_keys(), names_of),
      name_(name),
      ranks_(ranks),
      beside_(beside),
      layers_(beside.layers) {}

Imported TorchtitanImport::run() {
  read_model();
  read_mesh();
  read_sharding();
  read_pipeline();
  read_precision();
  read_training();
  read_optimizer();
  add_reasons();
  KeyReport report = job_.unread(beside_);
  imported_.ignored = std::move(report.ignored);
  imported_.notes.insert(imported_.notes.end(), report.notes.begin(), report.notes.end());
  return std::move(imported_);
}

bool TorchtitanImport::is_json(const std::string& text) {
  return trim(std::string_view(text).substr(0, 4096)).starts_with("{");
}

/// Reads the model. The JSON of torchtitan has its sizes; a job file only names it.
void TorchtitanImport::read_model() {
  const bool has_spec = is_json_ && job_.has("model_spec.name");
  const std::string section = has_spec ? "model_spec" : "model";
  imported_.model_name =
      fmt::format("{} {}", job_.text(section + ".name", has_spec ? "" : "llama3"),
                  job_.text(section + ".flavor", has_spec ? "" : "debugmodel"));
  const std::string sizes = has_spec ? "model_spec.model" : "model";
  if (!is_json_ || !job_.has(sizes + ".layers")) return;
  job_.use_all(section);
  if (beside_.has_model()) return;
  imported_.config_json = torchtitan_model(job_, sizes, name_, &imported_.notes);
  if (!imported_.config_json.empty()) {
    imported_.model_name.clear();
    layers_ = std::ssize(job_.node(sizes + ".layers")->items);
  }
}

int64_t TorchtitanImport::degree(const std::string& axis, int64_t otherwise) {
  const std::string path = fmt::format("parallelism.{}_degree", axis);
  const int64_t ranks = job_.integer(path, otherwise);
  if (ranks < 1 && ranks != otherwise) {
    fail(name_, "{} is {}; expected at least 1", job_.name_of(path), ranks);
  }
  return ranks;
}

/// Reads the ranks of each axis; those of data parallelism may be the rest of all ranks.
void TorchtitanImport::read_degrees() {
  tp_ = degree("tensor_parallel");
  pp_ = degree("pipeline_parallel");
  cp_ = degree("context_parallel");
  replicate_ = degree("data_parallel_replicate");
  split_ = degree("data_parallel_shard", -1);
  const int64_t others = product_at_most({tp_, pp_, cp_, replicate_});
  if (split_ < 0) {
    const int64_t ranks = ranks_.asked > 0 ? ranks_.asked : ranks_.otherwise;
    if (ranks <= 0) {
      fail(name_,
           "parallelism.data_parallel_shard_degree is {}, which takes all ranks left; "
           "expected --ranks N",
           split_);
    }
    if (ranks % others != 0) {
      fail(name_,
           "there are {} ranks, which parallelism.data_parallel_shard_degree {} takes; expected "
           "a multiple of {}: tp {} x pp {} x cp {} x replicas {}; try another --ranks, or other "
           "degrees in the file",
           ranks, split_, others, tp_, pp_, cp_, replicate_);
    }
    split_ = ranks / others;
  }
  if (job_.text("parallelism.data_parallel_type", "fsdp") == "ddp") {
    std::swap(replicate_, split_);
  }
}

void TorchtitanImport::read_mesh() {
  read_degrees();
  const int64_t all = product_at_most({replicate_, split_, tp_, pp_, cp_});
  if (ranks_.asked > 0 && ranks_.asked != all) {
    fail(name_,
         "--ranks is {}; expected the {} of the file; try --cluster, which finds a plan of other "
         "ranks",
         ranks_.asked, all);
  }
  for (const auto& [key, ranks] : {std::pair{"plan.tp", tp_},
                                   {"plan.pp", pp_},
                                   {"plan.cp", cp_},
                                   {"plan.dp", product_at_most({replicate_, split_})}}) {
    if (ranks > 1) {
      set(key, ranks);
    }
  }
  read_nodes(all);
  if (tp_ > 1) {
    set("plan.sequence_parallel", job_.truth("parallelism.enable_sequence_parallel", true));
  }
  if (job_.truth("compile.enable_async_tensor_parallel", false) && tp_ > 1) {
    set("plan.comm_tiles", tp_);
    imported_.notes.push_back(fmt::format("plan.comm_tiles is {}, for {}", tp_,
                                          job_.name_of("compile.enable_async_tensor_parallel")));
  }
  if (const int64_t ep = degree("expert_parallel"); ep > 1) {
    set("plan.ep", ep);
  }
  if (const int64_t etp = degree("expert_tensor_parallel"); etp > 1) {
    set("plan.etp", etp);
  }
  read_context();
}

/// Reads how context-parallel ranks exchange keys: by an all-gather, or around a ring.
void TorchtitanImport::read_context() {
  if (cp_ == 1) return;
  const std::string rotation = job_.text("parallelism.context_parallel_rotate_method", "allgather");
  if (rotation != "allgather" && rotation != "alltoall") {
    fail(name_,
         "parallelism.context_parallel_rotate_method is {}; expected allgather or "
         "alltoall",
         quote(rotation));
  }
  const bool ring = rotation == "alltoall";
  set("plan.cp_comm_type", std::string(ring ? "p2p" : "all_gather"));
  if (ring) {
    set("plan.cp_order", std::string("zigzag"));
  } else {
    imported_.notes.push_back(
        "ranks of cp have tokens in one run each here (plan.cp_order contiguous), where keys "
        "are gathered");
  }
}

/// Sets 8 ranks on a node, as torchtitan's run_train.sh starts (NGPU): the file does not say.
void TorchtitanImport::read_nodes(int64_t ranks) {
  constexpr int64_t kPerNode = 8;
  if (ranks <= kPerNode) return;
  set("plan.ranks_per_node", kPerNode);
  imported_.notes.push_back(
      fmt::format("plan.ranks_per_node is {}, as run_train.sh starts them: the file does not say "
                  "how many ranks a node has",
                  kPerNode));
}

void TorchtitanImport::read_sharding() {
  const std::string reshard = job_.text("parallelism.fsdp_reshard_after_forward", "default");
  const int64_t group = product_at_most({split_, cp_});
  if (group == 1) return;
  // FSDP splits over the shard and context ranks; with replicas, inside each of them.
  const std::string among = replicate_ > 1 ? "group" : "all";
  set("plan.shard.params", among);
  // PyTorch's pipelining reduces gradients, and frees gathered parameters, after the last backward
  // pass of a stage.
  const bool defers = job_.truth("parallelism.fsdp_defer_gradient_reduction", false) || pp_ > 1;
  set("plan.shard.grads", defers ? "none" : among);
  if (replicate_ > 1) {
    set("plan.shard.group", group);
  }
  if (reshard == "never" || (reshard == "default" && pp_ > 1)) {
    set("plan.shard.reshard_after_forward", false);
    if (pp_ > 1) {
      set("plan.shard.reshard_after_backward", false);
    }
  }
}

void TorchtitanImport::add_reasons() {
  for (const char* key : {"filter_fqns", "recipe_name", "enable_fsdp_float8_all_gather",
                          "precompute_float8_dynamic_scale_for_fsdp"}) {
    job_.leave(fmt::format("float8.{}", key),
               "model.float8 is of the blocks' linear layers, and without scales");
  }
  job_.leave("training.mixed_precision_reduce", "model.dtype is f32");
  job_.leave("lr_scheduler.total_steps", "the learning rate ends with the last step");
  if (cp_ == 1) {
    job_.leave("parallelism.context_parallel_rotate_method", "context_parallel_degree is 1");
    job_.leave("parallelism.context_parallel_load_balancer", "context_parallel_degree is 1");
  }
}

Imported import_torchtitan(const std::string& text, const std::string& name,
                           const RanksOfFile& ranks, const Beside& beside) {
  return TorchtitanImport(text, name, ranks, beside).run();
}

}  // namespace hocket::interop
