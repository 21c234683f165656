// SPDX-License-Identifier: Apache-2.0
// Implements: import_megatron (foreign.h). Names and defaults are those of its
// megatron/training/arguments.py.
#include "interop/import_megatron.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/product.h"
#include "base/text.h"
#include "interop/import_base.h"
#include "interop/megatron_model.h"
#include "models/config.h"

namespace hocket::interop {

Imported MegatronImport::run() {
  read_model();
  read_mesh();
  read_pipeline();
  read_sharding();
  read_batch();
  read_training();
  read_optimizer();
  add_reasons();
  KeyReport report = arguments_.unread(beside_);
  imported_.ignored = std::move(report.ignored);
  imported_.notes.insert(imported_.notes.begin(), report.notes.begin(), report.notes.end());
  return std::move(imported_);
}

void MegatronImport::read_model() {
  layers_ = arguments_.at_least(1, "--num-layers", 0);
  if (layers_ > models::kMaxLayers) {
    fail(name_, "--num-layers is {}; expected at most {}", layers_, models::kMaxLayers);
  }
  if (has_model_) {
    imported_.notes.push_back(
        "the model is the one that --set names: sizes in the script are ignored");
  } else {
    MegatronModel model = megatron_model(arguments_, name_, &imported_.notes);
    imported_.config_json = std::move(model.config_json);
  }
}

void MegatronImport::read_mesh() {
  tp_ = arguments_.at_least(1, "--tensor-model-parallel-size", 1);
  pp_ = arguments_.at_least(1, "--pipeline-model-parallel-size", 1);
  cp_ = arguments_.at_least(1, "--context-parallel-size", 1);
  const int64_t nodes = arguments_.launcher("--nnodes", 1);
  const int64_t per_node = arguments_.launcher("--nproc-per-node", 0);
  const bool launches = per_node > 0 && nodes > 0;
  const int64_t launched = launches ? product_at_most({per_node, nodes}) : ranks_.otherwise;
  const int64_t ranks = ranks_.asked > 0 ? ranks_.asked : launched;
  const int64_t others = product_at_most({tp_, pp_, cp_});
  if (ranks > 0 && ranks % others != 0) {
    const bool asked = ranks_.asked > 0 || !launches;
    fail(name_, "there are {} ranks{}; expected a multiple of tp {} x pp {} x cp {}", ranks,
         asked ? "" : fmt::format(" ({} nodes of {})", nodes, per_node), tp_, pp_, cp_);
  }
  dp_ = ranks > 0 ? ranks / others : 1;
  if (ranks == 0) {
    imported_.notes.push_back(
        "the file does not say how many ranks there are: plan.dp is 1; try --ranks");
  }
  for (const auto& [key, size] :
       {std::pair{"plan.tp", tp_}, {"plan.pp", pp_}, {"plan.cp", cp_}, {"plan.dp", dp_}}) {
    if (size > 1) {
      set(key, size);
    }
  }
  if (per_node > 0 && ranks > per_node) {
    set("plan.ranks_per_node", per_node);
  } else if (per_node == 0 && ranks > 1) {
    imported_.notes.push_back(
        "the file does not say how many ranks a node has: all are on one; try "
        "--set plan.ranks_per_node=8");
  }
  if (arguments_.has("--sequence-parallel") && tp_ > 1) {
    set("plan.sequence_parallel", true);
  }
  read_tiles();
  read_experts();
  if (cp_ > 1) {
    read_context();
  }
}

/// Reads the overlap of tensor parallelism: Transformer Engine splits a product and its collective
/// into so many blocks.
void MegatronImport::read_tiles() {
  constexpr int64_t kBlocks = 4;
  if (!arguments_.has("--tp-comm-overlap")) return;
  if (tp_ > 1 && arguments_.has("--sequence-parallel")) {
    set("plan.comm_tiles", kBlocks);
    imported_.notes.push_back(fmt::format("plan.comm_tiles is {}, for --tp-comm-overlap", kBlocks));
  } else {
    arguments_.leave("--tp-comm-overlap",
                     "there is nothing to overlap without "
                     "--sequence-parallel over tp");
  }
}

void MegatronImport::read_experts() {
  const bool may_have = has_model_ && arguments_.has("--expert-model-parallel-size");
  if (arguments_.integer("--num-experts", 0) > 0 || may_have) {
    const int64_t ep = arguments_.integer("--expert-model-parallel-size", 1);
    const int64_t etp = arguments_.integer("--expert-tensor-parallel-size", tp_);
    if (ep > 1) {
      set("plan.ep", ep);
    }
    if (etp > 1) {
      set("plan.etp", etp);
    }
    return;
  }
  for (const char* flag : {"--expert-model-parallel-size", "--expert-tensor-parallel-size"}) {
    if (arguments_.integer(flag, 1) > 1) {
      fail(name_, "{} is {}, and the model has no experts; expected --num-experts beside it", flag,
           arguments_.integer(flag, 1));
    }
  }
}

void MegatronImport::read_context() {
  const std::string type =
      arguments_.has("--cp-comm-type") ? arguments_.text("--cp-comm-type") : "p2p";
  const std::map<std::string, std::string> known = {
      {"p2p", "p2p"}, {"a2a", "a2a"}, {"allgather", "all_gather"}};
  const auto found = known.find(type);
  if (found == known.end()) {
    fail(name_, "--cp-comm-type is {}; expected p2p, a2a or allgather", quote(type));
  }
  set("plan.cp_comm_type", found->second);
  if (type == "p2p") {
    set("plan.cp_order", std::string("zigzag"));
  }
}

void MegatronImport::read_batch() {
  const int64_t micro = arguments_.at_least(1, "--micro-batch-size", 1);
  set("plan.micro_batch", micro);
  expect_one_sequence(name_, "Megatron-LM", "--context-parallel-size", "--micro-batch-size",
                      imported_, beside_);
  global_batch_ = arguments_.at_least(1, "--global-batch-size", product_at_most({micro, dp_}));
  set("train.global_batch", global_batch_);
  set("train.seq_len", arguments_.at_least(1, "--seq-length", 4096));
  read_recompute();
}

/// Throws Error for a flag without an equal here, unless --set or a search gives `key`.
void MegatronImport::need_key(const std::string& flag, const std::string& key,
                              const std::string& why) {
  if (beside_.has(key) || !beside_.keeps_plan) {
    arguments_.leave(flag, why);
    return;
  }
  fail(name_, "{} {} would make another plan: {}; expected {} beside it; try --set {}=VALUE", flag,
       join(arguments_.words(flag), " "), why, key, key);
}

/// Throws Error if a flag is there with none of the values that Megatron-LM takes.
void MegatronImport::expect_one_of(const std::string& flag,
                                   const std::vector<std::string>& values) {
  if (!arguments_.has(flag)) return;
  const std::string given = arguments_.text(flag);
  if (std::find(values.begin(), values.end(), given) == values.end()) {
    fail(name_, "{} is {}; expected one of {}", flag, quote(given), join(values, ", "));
  }
}

void MegatronImport::add_reasons() {
  arguments_.leave("--rampup-batch-size", "every step has equally many sequences here");
  arguments_.leave("--distributed-backend", "plan.ranks follows from the launcher");
  if (arguments_.has("--num-query-groups") && !arguments_.has("--group-query-attention") &&
      !has_model_) {
    arguments_.leave("--num-query-groups", "--group-query-attention is not given");
  }
}

Imported import_megatron(const std::string& text, const std::string& name, const RanksOfFile& ranks,
                         const Beside& beside) {
  return MegatronImport(text, name, ranks, beside).run();
}

}  // namespace hocket::interop
