// SPDX-License-Identifier: Apache-2.0
// Implements: import_megatron (foreign.h). Names and defaults are those of its
// megatron/training/arguments.py.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/product.h"
#include "base/text.h"
#include "interop/foreign.h"
#include "interop/megatron_arguments.h"
#include "interop/megatron_model.h"
#include "models/config.h"

namespace hocket::interop {

namespace {

class MegatronImport {
 public:
  MegatronImport(const std::string& text, const std::string& name, const RanksOfFile& ranks,
                 const Beside& beside)
      : arguments_(text, name),
        name_(name),
        ranks_(ranks),
        beside_(beside),
        has_model_(beside.has_model()) {}

  Imported run() {
    // Reads the model, the mesh, and the training settings that a run has keys for.
    read_model();
    read_mesh();
    read_pipeline();
    read_sharding();
    read_batch();
    read_training();
    read_optimizer();
    say_why();
    KeyReport report = arguments_.unread(beside_);
    imported_.ignored = std::move(report.ignored);
    imported_.notes.insert(imported_.notes.begin(), report.notes.begin(), report.notes.end());
    return std::move(imported_);
  }

 private:
  void set(const std::string& key, const std::string& value) { imported_.keys[key] = value; }
  void set(const std::string& key, int64_t value) { set(key, std::to_string(value)); }
  void set(const std::string& key, double value) { set(key, fmt::format("{}", value)); }
  void set(const std::string& key, bool value) { set(key, std::string(value ? "true" : "false")); }
  void copy(const std::string& flag, const std::string& key) {
    if (arguments_.has(flag)) {
      set(key, arguments_.at_least(0, flag, 0));
    }
  }

  void read_model() {
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

  void read_mesh() {
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

  /// Transformer Engine splits a product and its collective into as many blocks.
  void read_tiles() {
    constexpr int64_t kBlocks = 4;
    if (!arguments_.has("--tp-comm-overlap")) return;
    if (tp_ > 1 && arguments_.has("--sequence-parallel")) {
      set("plan.comm_tiles", kBlocks);
      imported_.notes.push_back(
          fmt::format("plan.comm_tiles is {}, for --tp-comm-overlap", kBlocks));
    } else {
      arguments_.leave("--tp-comm-overlap",
                       "there is nothing to overlap without "
                       "--sequence-parallel over tp");
    }
  }

  void read_experts() {
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
        fail(name_, "{} is {}, and the model has no experts; expected --num-experts beside it",
             flag, arguments_.integer(flag, 1));
      }
    }
  }

  void read_context() {
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

  void read_pipeline() {
    const int64_t first = arguments_.integer("--decoder-first-pipeline-num-layers", -1);
    const int64_t last = arguments_.integer("--decoder-last-pipeline-num-layers", -1);
    const std::string layout = arguments_.text("--pipeline-model-parallel-layout");
    const int64_t chunks = layout.empty() ? read_chunks() : read_layout(layout);
    if (pp_ > 1 && chunks > 1) {
      set("plan.pp_chunks", chunks);
      const bool overlaps = arguments_.has("--overlap-moe-expert-parallel-comm");
      set("plan.pp_schedule", std::string(overlaps ? "interleaved-overlap" : "interleaved"));
    }
    const char* const kOverlap = "--overlap-moe-expert-parallel-comm";
    if (arguments_.has(kOverlap) && (pp_ == 1 || chunks == 1)) {
      need_key(kOverlap, "plan.pp_schedule", "it goes with virtual stages of a pipeline here");
    }
    const bool no_overlap = arguments_.has("--no-overlap-p2p-communication");
    if (pp_ > 1 && (chunks == 1 || no_overlap)) {
      set("plan.overlap_p2p_comm", false);
    }
    if (!layout.empty()) {
      for (const char* flag :
           {"--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"}) {
        arguments_.leave(flag, "--pipeline-model-parallel-layout says so");
      }
    }
    read_groups_of_micro_batches(chunks);
    if (pp_ == 1) {
      expect_pipeline(chunks);
    }
    if (pp_ == 1 || !layout.empty()) return;
    if (first >= 0 || last >= 0) {
      read_ends(first, last, chunks);
    } else {
      read_even(chunks);
    }
  }

  /// A rank's chunk gets as many micro-batches in turn as the pipeline has ranks.
  void read_groups_of_micro_batches(int64_t chunks) {
    const char* const flag = "--microbatch-group-size-per-virtual-pipeline-stage";
    const int64_t group = arguments_.integer(flag, pp_);
    if (chunks > 1 && group != pp_ && !beside_.has("plan.pp_schedule") && beside_.keeps_plan) {
      fail(name_, "{} is {}; expected {}, the ranks of the pipeline; try --set plan.pp_schedule",
           flag, group, pp_);
    }
  }

  /// Error: a flag divides a pipeline that there is not.
  void expect_pipeline(int64_t chunks) {
    for (const char* flag :
         {"--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers",
          "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank",
          "--pipeline-model-parallel-layout"}) {
      if (!arguments_.has(flag)) continue;
      const bool is_one = std::string_view(flag) == "--num-virtual-stages-per-pipeline-rank" ||
                          std::string_view(flag) == "--pipeline-model-parallel-layout";
      if (is_one && chunks == 1) continue;
      fail(name_, "{} is {} without a pipeline; expected --pipeline-model-parallel-size above 1",
           flag, arguments_.text(flag));
    }
  }

  /// Stages of a rank where no layout says so.
  int64_t read_chunks() {
    const char* const flag = "--num-layers-per-virtual-pipeline-stage";
    if (!arguments_.has(flag)) {
      return arguments_.at_least(1, "--num-virtual-stages-per-pipeline-rank", 1);
    }
    const int64_t per_stage = arguments_.at_least(1, flag, 1);
    if (layers_ == 0) {
      arguments_.leave(flag,
                       "set plan.pp_chunks to the layers of a rank divided by it: the script "
                       "has no --num-layers");
      return 1;
    }
    const int64_t parts = layers_and_ends();
    if (parts % product_at_most({pp_, per_stage}) != 0) {
      fail(name_, "{} is {}; expected a divisor of the {} layers of a pipeline rank", flag,
           per_stage, parts / pp_);
    }
    return parts / pp_ / per_stage;
  }

  /// Layers, and the embedding and the loss where they count as one when stages are made.
  int64_t layers_and_ends() {
    return layers_ + (counts_embedding() ? 1 : 0) + (counts_loss() ? 1 : 0);
  }
  bool counts_embedding() { return arguments_.has("--account-for-embedding-in-pipeline-split"); }
  bool counts_loss() { return arguments_.has("--account-for-loss-in-pipeline-split"); }

  /// Reads an even split of layers over stages; Megatron-LM refuses an uneven one here.
  void read_even(int64_t chunks) {
    if (layers_ == 0) {
      const char* const why = "the script has no --num-layers";
      arguments_.leave("--account-for-embedding-in-pipeline-split", why);
      arguments_.leave("--account-for-loss-in-pipeline-split", why);
      return;
    }
    const int64_t parts = layers_and_ends(), stages = product_at_most({pp_, chunks});
    if (parts % stages != 0) {
      fail(name_,
           "--num-layers is {}{}; expected a multiple of the {} stages of the pipeline, or "
           "--pipeline-model-parallel-layout",
           layers_, parts > layers_ ? fmt::format(", {} with the ends", parts) : "", stages);
    }
    if (parts == layers_) return;
    std::vector<int64_t> of_stage(static_cast<size_t>(stages), parts / stages);
    of_stage.front() -= counts_embedding() ? 1 : 0;
    of_stage.back() -= counts_loss() ? 1 : 0;
    set("plan.pp_layers", fmt::format("[{}]", fmt::join(of_stage, ", ")));
  }

  /// Reads a split with given layers of the first and last stage; the others share the rest.
  void read_ends(int64_t first, int64_t last, int64_t chunks) {
    if (layers_ == 0) {
      const char* const why = "the script has no --num-layers: set plan.pp_layers";
      arguments_.leave("--decoder-first-pipeline-num-layers", why);
      arguments_.leave("--decoder-last-pipeline-num-layers", why);
      return;
    }
    const int64_t between = pp_ - (first >= 0 ? 1 : 0) - (last >= 0 ? 1 : 0);
    const int64_t left = layers_ - std::max<int64_t>(first, 0) - std::max<int64_t>(last, 0);
    if (chunks > 1 || left < 0 || pp_ > layers_ || (between > 0 && left % between != 0) ||
        (between == 0 && left != 0)) {
      fail(name_,
           "--decoder-first-pipeline-num-layers {} and --decoder-last-pipeline-num-layers "
           "{} leave {} layers to {} stages; expected equal numbers, and no virtual stages",
           first, last, left, between);
    }
    std::vector<int64_t> of_stage(static_cast<size_t>(pp_), between > 0 ? left / between : 0);
    if (first >= 0) {
      of_stage.front() = first;
    }
    if (last >= 0) {
      of_stage.back() = last;
    }
    set("plan.pp_layers", fmt::format("[{}]", fmt::join(of_stage, ", ")));
  }

  /// Layers of every stage; returns the stages of a rank.
  int64_t read_layout(const std::string& text) {
    std::string flat;
    if (!read_pipeline_layout(text, &flat)) {
      fail(name_,
           "--pipeline-model-parallel-layout is {}; expected letters E, t, L and stages "
           "between |, as in Et*3|(t*4|)*6tL",
           quote(text));
    }
    std::vector<int64_t> of_stage;
    for (const std::string& stage : split(flat, '|')) {
      of_stage.push_back(std::count(stage.begin(), stage.end(), 't'));
    }
    if (flat.find('m') != std::string::npos) {
      arguments_.leave("--mtp-num-layers", "models here predict one token");
    }
    const int64_t stages = std::ssize(of_stage);
    if (stages % pp_ != 0) {
      fail(name_, "--pipeline-model-parallel-layout has {} stages; expected a multiple of {}",
           stages, pp_);
    }
    set("plan.pp_layers", fmt::format("[{}]", fmt::join(of_stage, ", ")));
    return stages / pp_;
  }

  void read_sharding() {
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
    read_gathers(replicas > 1 ? split : "no_shard", among);
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

  /// Reads when sharded parameters are gathered. If only optimizer states are sharded, Megatron-LM
  /// gathers the updated parameters, with --overlap-param-gather beside the next step's forward
  /// passes.
  void read_gathers(const std::string& split, const std::string& among) {
    const bool overlap = arguments_.has("--overlap-param-gather");
    if (split == "optim_grads_params") {
      if (!overlap) {
        set("plan.overlap_param_gather", false);
      }
    } else if (overlap && split != "no_shard") {
      set("plan.shard.params", among);
      set("plan.shard.reshard_after_forward", false);
      set("plan.shard.reshard_after_backward", false);
    } else {
      arguments_.leave("--overlap-param-gather", "no ranks split parameters or the optimizer");
    }
  }

  void read_batch() {
    const int64_t micro = arguments_.at_least(1, "--micro-batch-size", 1);
    set("plan.micro_batch", micro);
    global_batch_ = arguments_.at_least(1, "--global-batch-size", product_at_most({micro, dp_}));
    set("train.global_batch", global_batch_);
    set("train.seq_len", arguments_.at_least(1, "--seq-length", 4096));
    read_recompute();
  }

  void read_recompute() {
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

  /// Full recomputation repeats every layer from its input here. Megatron-LM repeats some layers of
  /// a stage (block), or keeps the input of every few layers (uniform).
  void read_recompute_layers() {
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

  /// Error: a flag has no equal here, and neither --set nor a search gives `key`.
  void need_key(const std::string& flag, const std::string& key, const std::string& why) {
    if (beside_.has(key) || !beside_.keeps_plan) {
      arguments_.leave(flag, why);
      return;
    }
    fail(name_, "{} {} would make another plan: {}; expected {} beside it; try --set {}=VALUE",
         flag, join(arguments_.words(flag), " "), why, key, key);
  }

  /// selective repeats ops of some kinds here, wherever they stand.
  void read_recompute_modules() {
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

  void read_training() {
    if (arguments_.has("--bf16")) {
      set("model.dtype", std::string("bf16"));
      if (arguments_.has("--grad-reduce-in-bf16")) {
        set("train.grad_dtype", std::string("model"));
      }
    } else if (arguments_.has("--fp16")) {
      set("model.dtype", std::string("bf16"));
      imported_.notes.push_back(
          "model.dtype is bf16, for --fp16: equal bytes, without loss scaling");
    }
    read_float8();
    arguments_.at_least(1, "--train-iters", 1);
    steps_ = read_steps("--train-iters", "--train-samples", "train.steps");
    if (arguments_.has("--lr")) {
      set("train.lr", arguments_.number("--lr", 0));
    }
    read_decay();
    read_warmup();
    copy("--eval-interval", "train.eval_every");
    copy("--save-interval", "train.save_every");
    set("optimizer.weight_decay", arguments_.number("--weight-decay", 0.01));
    set("optimizer.beta1", arguments_.number("--adam-beta1", 0.9));
    set("optimizer.beta2", arguments_.number("--adam-beta2", 0.999));
    set("optimizer.eps", arguments_.number("--adam-eps", 1e-8));
    set("train.max_grad_norm", arguments_.number("--clip-grad", 1.0));
    set("train.seed", arguments_.integer("--seed", 1234));
    set("train.dropout", arguments_.number("--hidden-dropout", 0.1));
    if (arguments_.integer("--num-experts", 0) > 0) {
      set("train.balance_coef", balance_coef());
    }
    if (arguments_.has("--distributed-timeout-minutes")) {
      set("plan.timeout_s",
          product_at_most({arguments_.integer("--distributed-timeout-minutes", 10), 60}));
    }
  }

  double balance_coef() {
    const char* const flag = "--moe-router-load-balancing-type";
    const std::string type = arguments_.has(flag) ? arguments_.text(flag) : "aux_loss";
    expect_one_of(flag, {"aux_loss", "seq_aux_loss", "global_aux_loss", "none"});
    if (type != "aux_loss" && type != "none") {
      imported_.notes.push_back(fmt::format(
          "experts are balanced over a global micro-batch here, for {} {}", flag, type));
    }
    return type == "none" ? 0 : arguments_.number("--moe-aux-loss-coeff", 0);
  }

  void read_float8() {
    std::string format = arguments_.text("--fp8-format");
    for (const auto& [flag, name] : {std::pair{"--fp8-e4m3", "e4m3"}, {"--fp8-hybrid", "hybrid"}}) {
      if (arguments_.has(flag)) {
        format = name;
      }
    }
    if (format.empty()) return;
    if (format != "e4m3" && format != "hybrid") {
      fail(name_, "--fp8-format is {}; expected e4m3 or hybrid", quote(format));
    }
    if (!arguments_.has("--bf16")) {
      fail(name_, "--fp8-format is {} without --bf16; expected both: model.float8 goes with bf16",
           format);
    }
    set("model.float8", true);
    imported_.notes.push_back(fmt::format(
        "model.float8 is true, for --fp8-format {}: linear layers but those of experts, all "
        "operands e4m3, without scales",
        format));
  }

  void read_optimizer() {
    const std::string given = arguments_.text("--optimizer");
    const std::string name = given.empty() ? "adam" : given;
    if (name == "sgd") {
      set("optimizer.name", name);
      set("optimizer.momentum", arguments_.number("--sgd-momentum", 0.9));
    } else if (name == "muon" || name == "dist_muon") {
      set("optimizer.name", std::string("muon"));
      set("optimizer.momentum", arguments_.number("--muon-momentum", 0.9));
      const bool uses = arguments_.has("--muon-use-nesterov");
      set("optimizer.nesterov", arguments_.has("--muon-nesterov") || uses);
      set("optimizer.ns_steps", arguments_.at_least(1, "--muon-num-ns-steps", 5));
    } else if (name != "adam") {
      fail(name_, "--optimizer is {}; expected adam, sgd or muon", quote(name));
    }
  }

  /// Its learning rate falls to 0 if nothing else is said, in a line.
  void read_decay() {
    set("train.min_lr", arguments_.number("--min-lr", 0));
    expect_one_of("--lr-decay-style",
                  {"cosine", "linear", "constant", "inverse-square-root", "WSD"});
    const std::string given = arguments_.text("--lr-decay-style");
    const std::string style = given.empty() ? "linear" : given;
    if (style == "WSD" && read_stable()) return;
    if (style == "cosine" || style == "linear" || style == "constant") {
      set("train.schedule", style);
    } else {
      imported_.notes.push_back(
          fmt::format("the learning rate follows a cosine here, for --lr-decay-style {}", style));
    }
    for (const char* flag : {"--lr-decay-iters", "--lr-decay-samples"}) {
      if (decay_steps() != steps_) {
        arguments_.leave(flag, "the learning rate falls up to the last step");
      }
    }
  }

  /// Reads the schedule that is constant up to its last steps. False: it has no equal here.
  bool read_stable() {
    const std::string form = arguments_.text("--lr-wsd-decay-style");
    const std::map<std::string, std::string> kForms = {
        {"linear", "linear"}, {"cosine", "cosine"}, {"minus_sqrt", "1-sqrt"}};
    const auto found = kForms.find(form);
    const int64_t batch = std::max<int64_t>(1, global_batch_);
    const int64_t samples = arguments_.integer("--lr-wsd-decay-samples", 0);
    const int64_t steps = arguments_.integer("--lr-wsd-decay-iters", samples / batch);
    if (found == kForms.end() || steps <= 0 || steps_ < steps) return false;
    set("train.schedule", std::string("wsd"));
    set("train.decay", found->second);
    set("train.decay_share", static_cast<double>(steps) / static_cast<double>(steps_));
    return true;
  }

  /// Steps in which the learning rate falls there; 0: the script does not say.
  int64_t decay_steps() {
    const int64_t batch = std::max<int64_t>(1, global_batch_);
    const int64_t samples = arguments_.integer("--lr-decay-samples", 0);
    return arguments_.integer("--lr-decay-iters", samples > 0 ? samples / batch : steps_);
  }

  void read_warmup() {
    const char* const flag = "--lr-warmup-fraction";
    const int64_t told =
        read_steps("--lr-warmup-iters", "--lr-warmup-samples", "train.warmup_steps");
    if (!arguments_.has(flag)) return;
    const double share = arguments_.number(flag, 0);
    if (!(share >= 0 && share <= 1) || told > 0) {
      fail(name_, "{} is {}{}; expected 0 to 1, and no steps or samples beside it", flag, share,
           told > 0 ? fmt::format(" beside {} of warm-up", counted(told, "step")) : "");
    }
    const int64_t all = decay_steps();
    if (all <= 0) {
      arguments_.leave(flag, "the script does not say how many steps there are");
      return;
    }
    const int64_t steps = std::llround(share * static_cast<double>(all));
    set("train.warmup_steps", steps);
    imported_.notes.push_back(
        fmt::format("train.warmup_steps is {}: {} {} of {} in which the "
                    "learning rate falls",
                    steps, flag, share, counted(all, "step")));
  }

  /// Reads the steps, given as such or as samples, which every step has equally many of. Returns 0
  /// if the file gives neither.
  int64_t read_steps(const std::string& flag, const std::string& samples, const std::string& key) {
    copy(flag, key);
    const int64_t told = arguments_.integer(flag, 0);
    if (!arguments_.has(samples)) return told;
    if (arguments_.has(flag)) {
      arguments_.leave(samples, flag + " says how many steps there are");
      return told;
    }
    const int64_t batch = std::max<int64_t>(1, global_batch_);
    const int64_t steps = arguments_.integer(samples, 0) / batch;
    set(key, steps);
    imported_.notes.push_back(fmt::format("{} is {}: {} {} in steps of {}", key, steps, samples,
                                          arguments_.integer(samples, 0),
                                          counted(batch, "sequence")));
    return steps;
  }

  /// Error: a flag is there with none of the values that Megatron-LM takes.
  void expect_one_of(const std::string& flag, const std::vector<std::string>& values) {
    if (!arguments_.has(flag)) return;
    const std::string given = arguments_.text(flag);
    if (std::find(values.begin(), values.end(), given) == values.end()) {
      fail(name_, "{} is {}; expected one of {}", flag, quote(given), join(values, ", "));
    }
  }

  void say_why() {
    arguments_.leave("--rampup-batch-size", "every step has equally many sequences here");
    arguments_.leave("--distributed-backend", "plan.ranks follows from the launcher");
    if (arguments_.has("--num-query-groups") && !arguments_.has("--group-query-attention") &&
        !has_model_) {
      arguments_.leave("--num-query-groups", "--group-query-attention is not given");
    }
  }

  MegatronArguments arguments_;
  std::string name_;
  RanksOfFile ranks_;
  Beside beside_;
  bool has_model_ = false;
  int64_t layers_ = 0;  // 0: the script does not say
  int64_t steps_ = 0;   // likewise
  int64_t tp_ = 1, pp_ = 1, cp_ = 1, dp_ = 1, global_batch_ = 1;
  Imported imported_;
};

}  // namespace

Imported import_megatron(const std::string& text, const std::string& name, const RanksOfFile& ranks,
                         const Beside& beside) {
  return MegatronImport(text, name, ranks, beside).run();
}

}  // namespace hocket::interop
