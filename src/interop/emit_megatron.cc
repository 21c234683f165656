// SPDX-License-Identifier: Apache-2.0
// Implements: emit_megatron (foreign.h): a script that starts Megatron-LM's pretrain_gpt.py.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "interop/emit.h"
#include "interop/foreign.h"
#include "parallel/schedules/schedule.h"

namespace hocket::interop {

namespace {

constexpr const char* kTrainer = "Megatron-LM";

bool has_schedule(std::string_view name) {
  return name == "1f1b" || name == "interleaved" || name == "interleaved-overlap";
}

class Script {
 public:
  explicit Script(const engine::Run& run) : run_(run), plan_(run.config.plan) {}

  /// Ops that Megatron-LM's selective recomputation covers: norms, and the experts' activations
  /// where their products are one kernel.
  static std::vector<std::string> recompute_ops(const engine::Run& run) {
    std::vector<std::string> ops = {"rms_norm"};
    if (has_grouped_products(run)) {
      ops.push_back("swiglu");
    }
    return ops;
  }

  /// Returns whether the run itself asks for overlapped messages between stages, not by default.
  static bool wants_overlap(const engine::Run& run) {
    return run.config.plan.pass_options.text("overlap_p2p_comm") == "true" &&
           !run.resolved.is_default("plan.overlap_p2p_comm");
  }

  Emitted emitted() {
    expect_expressed(run_, kTrainer,
                     {"plan.overlap_p2p_comm", "plan.overlap_grad_reduce",
                      "plan.overlap_param_gather", "plan.delay_wgrad_compute", "plan.bucket_mib",
                      "plan.recompute_ops", "plan.shard.reshard_after_backward", "train.schedule"});
    if (run_.config.train.schedule == "wsd") {
      refuse_key(run_, kTrainer, "train.schedule", "wsd", "constant, linear or cosine");
    }
    model();
    mesh();
    pipeline();
    sharding();
    training();
    intervals();
    return {written(), notes_};
  }

 private:
  template <class T>
  void add(const char* flag, const T& value) {
    arguments_.push_back(fmt::format("{} {}", flag, value));
  }
  void add(const char* flag) { arguments_.push_back(flag); }

  void model() {
    const models::ModelConfig& model = run_.model;
    add("--num-layers", model.num_layers);
    add("--hidden-size", model.hidden_size);
    add("--ffn-hidden-size", model.intermediate_size);
    add("--num-attention-heads", model.num_heads);
    add("--kv-channels", model.head_dim);
    if (model.num_kv_heads != model.num_heads) {
      add("--group-query-attention");
      add("--num-query-groups", model.num_kv_heads);
    }
    if (const int64_t window = model.common_window().value_or(0); window > 0) {
      add("--window-size", fmt::format("{},0", window - 1));  // before its own, and behind
    }
    add("--padded-vocab-size", model.vocab_size);
    add("--max-position-embeddings", model.max_position);
    add("--position-embedding-type", "rope");
    const nlohmann::ordered_json features = models::features_of(model);
    for (const auto& [name, value] : features.items()) {
      if (name == "head norm" && value == "head") continue;
      refuse_key(run_, kTrainer, "the model's " + name, value.dump(), "none");
    }
    add("--rotary-base", static_cast<int64_t>(model.rope.theta));
    add("--normalization", "RMSNorm");
    add("--norm-epsilon", model.rms_norm_eps);
    add("--init-method-std", model.initializer_range);
    add("--swiglu");
    add("--disable-bias-linear");
    if (!model.tie_word_embeddings) {
      add("--untie-embeddings-and-output-weights");
    }
    if (model.form.head_norm == "head") {
      add("--qk-layernorm");
    }
    if (model.num_experts == 0) return;
    add("--num-experts", model.num_experts);
    add("--moe-router-topk", model.top_k);
    add("--moe-ffn-hidden-size", model.moe_intermediate_size);
    if (!model.norm_topk_prob) {
      add("--moe-router-pre-softmax");
    }
    add("--moe-aux-loss-coeff",
        run_.config.train.balance_coef.value_or(model.router_aux_loss_coef));
    add("--moe-token-dispatcher-type", "alltoall");
    if (has_grouped_products(run_)) {
      add("--moe-grouped-gemm");
    } else {
      notes_.push_back(
          "products of all experts are one kernel here; Megatron-LM has --moe-grouped-gemm with "
          "bf16 alone");
    }
    if (std::find(model.moe_layer.begin(), model.moe_layer.end(), false) != model.moe_layer.end()) {
      std::vector<int> layers;
      for (const bool experts : model.moe_layer) {
        layers.push_back(experts ? 1 : 0);
      }
      add("--moe-layer-freq", fmt::format("'[{}]'", fmt::join(layers, ",")));
    }
  }

  void mesh() {
    add("--tensor-model-parallel-size", plan_.tp);
    add("--pipeline-model-parallel-size", plan_.pp);
    if (plan_.sequence_parallel && plan_.tp > 1) {
      add("--sequence-parallel");
    }
    if (plan_.cp > 1) {
      expect_one_sequence(run_, kTrainer);
      add("--context-parallel-size", plan_.cp);
      const std::string keys = plan_.pass_options.text("cp_comm_type");
      const std::string order = plan_.pass_options.text("cp_order");
      if (keys == "p2p" && order != "zigzag") {
        refuse_key(run_, kTrainer, "plan.cp_order", order, "zigzag with plan.cp_comm_type p2p");
      }
      add("--cp-comm-type", keys == "all_gather" ? "allgather" : keys);
    }
    if (run_.model.num_experts > 0) {
      if (plan_.tp > 1 && !plan_.sequence_parallel) {
        refuse_key(run_, kTrainer, "plan.sequence_parallel", "false",
                   "true with experts and plan.tp");
      }
      if (run_.model.num_experts % plan_.ep != 0) {
        refuse_key(run_, kTrainer, "plan.ep", std::to_string(plan_.ep),
                   fmt::format("a divisor of the {} experts", run_.model.num_experts));
      }
      add("--expert-model-parallel-size", plan_.ep);
      add("--expert-tensor-parallel-size", plan_.etp);
    }
  }

  void pipeline() {
    if (plan_.pp == 1) {
      if (plan_.pp_chunks > 1) {
        refuse_key(run_, kTrainer, "plan.pp_chunks", std::to_string(plan_.pp_chunks),
                   "1 with plan.pp 1");
      }
      return;
    }
    const bool overlaps = plan_.pp_schedule == "interleaved-overlap";
    const bool interleaved = plan_.pp_schedule == "interleaved" || overlaps;
    if (!has_schedule(plan_.pp_schedule)) {
      refuse_key(run_, kTrainer, "plan.pp_schedule", plan_.pp_schedule,
                 "1f1b, interleaved or interleaved-overlap");
    }
    if (overlaps) {
      add("--overlap-moe-expert-parallel-comm");
    }
    const int64_t layers = run_.model.num_layers, stages = plan_.pp * plan_.pp_chunks;
    const bool overlap = plan_.pass_options.text("overlap_p2p_comm") == "true";
    if (!plan_.pp_layers.empty() || layers % stages != 0) {
      layout();
    } else if (interleaved) {
      add("--num-virtual-stages-per-pipeline-rank", plan_.pp_chunks);
    }
    if (interleaved && !overlap) {
      add("--no-overlap-p2p-communication");
    }
    if (!interleaved && overlap) {
      if (wants_overlap(run_)) {
        refuse_key(run_, kTrainer, "plan.overlap_p2p_comm", "true",
                   "false with plan.pp_schedule 1f1b");
      }
      notes_.push_back(
          "plan.overlap_p2p_comm is true by default; with 1f1b Megatron-LM overlaps no messages "
          "between stages");
    }
  }

  bool overlaps_sums() const { return plan_.pass_options.text("overlap_grad_reduce") == "true"; }

  /// Layers of every stage: "Et*3|t*4|t*4L".
  void layout() {
    const int64_t stages = plan_.pp * plan_.pp_chunks;
    std::vector<int64_t> counts(static_cast<size_t>(stages), 0);
    for (const int32_t stage : run_.plan.stage_of_layers(run_.model.num_layers)) {
      ++counts[static_cast<size_t>(stage)];
    }
    std::vector<std::string> parts;
    for (const int64_t count : counts) {
      parts.push_back(count > 0 ? fmt::format("t*{}", count) : "");
    }
    parts.front() = "E" + parts.front();
    parts.back() += "L";
    add("--pipeline-model-parallel-layout", fmt::format("'{}'", join(parts, "|")));
  }

  void sharding() {
    const parallel::Sharding& shard = run_.plan.shard;
    using parallel::Shard;
    const int64_t replicas = run_.plan.dp * run_.plan.cp;
    if (replicas > 1 && shard.any()) {
      const Shard most = shard.update();
      for (const Shard other : {shard.params, shard.grads}) {
        if (other != Shard::none && other != most) {
          refuse_key(run_, kTrainer, "plan.shard", "of groups and of all ranks together",
                     "one of them");
        }
      }
      const bool overlaps = plan_.pass_options.text("overlap_param_gather") == "true";
      // Updated parameters are gathered once a step.
      const bool once = shard.params == most && !shard.reshard_after_backward;
      const bool gathers = shard.params == most && !once;
      if (once && !overlaps) {
        refuse_key(run_, kTrainer, "plan.overlap_param_gather", "false",
                   "true with plan.shard.reshard_after_backward false");
      }
      if (gathers && shard.grads != most) {
        refuse_key(run_, kTrainer, "plan.shard.grads", "none", "as plan.shard.params");
      }
      if (gathers && !shard.reshard_after_forward) {
        refuse_key(run_, kTrainer, "plan.shard.reshard_after_forward", "false", "true");
      }
      if (shard.grads == most) {
        fsdp_ = true;
        add("--use-megatron-fsdp");
        add("--ckpt-format fsdp_dtensor");  // the one that it starts with
        add("--data-parallel-sharding-strategy", gathers ? "optim_grads_params" : "optim_grads");
      }
      add("--use-distributed-optimizer");
      if (most == Shard::group) {
        add("--num-distributed-optimizer-instances", replicas / shard.group);
      }
      if (shard.params == most && overlaps) {
        if (!overlaps_sums()) {
          refuse_key(run_, kTrainer, "plan.overlap_grad_reduce", "false",
                     "true with plan.overlap_param_gather and split parameters");
        }
        add("--overlap-param-gather");
      }
      if (once) {
        notes_.push_back(
            "plan.shard.params is gathered once a step and freed after it; Megatron-LM keeps all "
            "parameters, which takes more memory");
      }
    }
    if (replicas > 1 && overlaps_sums()) {
      add("--overlap-grad-reduce");
    }
    if (plan_.pass_options.text("delay_wgrad_compute") == "true") {
      add("--delay-wgrad-compute");
    }
    double mib = 0;
    if (!run_.resolved.is_default("plan.bucket_mib") &&
        parse_double(plan_.pass_options.text("bucket_mib"), &mib)) {
      add("--ddp-bucket-size", static_cast<int64_t>(mib * (1 << 20) / 4));
    }
  }

  void training() {
    const engine::TrainSection& train = run_.config.train;
    if (const std::string& dtype = run_.config.model.dtype; dtype == "f64" || dtype == "f16") {
      refuse_key(run_, kTrainer, "model.dtype", dtype, "f32 or bf16");
    }
    if (run_.config.model.float8) {
      refuse_key(run_, kTrainer, "model.float8", "true", "false: its 8-bit formats have scales");
    }
    if (run_.config.model.dtype == "bf16") {
      add("--bf16");
      if (train.grad_dtype == "model") {
        add("--grad-reduce-in-bf16");
      }
    }
    add("--micro-batch-size", plan_.micro_batch);
    add("--global-batch-size", train.global_batch);
    add("--seq-length", train.seq_len);
    recompute();
    add("--train-iters", steps_of(train));
    add("--lr", train.lr);
    add("--min-lr", train.final_lr());
    add("--lr-warmup-iters", train.warmup_steps);
    add("--lr-decay-style", train.schedule);
    const engine::OptimizerSection& optimizer = run_.config.optimizer;
    add("--weight-decay", optimizer.weight_decay);
    add("--adam-beta1", optimizer.beta1);
    add("--adam-beta2", optimizer.beta2);
    add("--adam-eps", optimizer.eps);
    add("--clip-grad", train.max_grad_norm);
    add("--seed", train.seed);
    add("--hidden-dropout", train.dropout);
    add("--attention-dropout", 0);
  }

  void intervals() {
    const engine::TrainSection& train = run_.config.train;
    if (train.save_every > 0) {
      add("--save-interval", train.save_every);
    }
    if (train.eval_every > 0) {
      add("--eval-interval", train.eval_every);
    }
    if (!run_.resolved.is_default("plan.timeout_s")) {
      add("--distributed-timeout-minutes", timeout_in(60, run_, kTrainer, &notes_));
    }
    for (std::string& note : notes_of_left_out(
             run_, kTrainer,
             {"train.minutes", "train.save_minutes", "train.skip_grad_norm", "train.on_nonfinite",
              "train.keep_last", "train.eval_sequences", "train.final_eval_sequences"})) {
      notes_.push_back(std::move(note));
    }
  }

  void recompute() {
    const std::string granularity = plan_.pass_options.text("recompute");
    if (granularity == "none") return;
    add("--recompute-granularity", granularity);
    if (granularity == "full") {
      add("--recompute-method", "uniform");
      add("--recompute-num-layers", 1);
      return;
    }
    const bool experts = has_grouped_products(run_);
    const std::string named = plan_.pass_options.text("recompute_ops");
    std::vector<std::string> modules;
    for (const std::string& op : split(named.empty() ? "rms_norm, swiglu" : named, ',')) {
      if (trim(op) == "rms_norm") {
        modules.push_back("layernorm");
      } else if (trim(op) == "swiglu" && experts) {
        modules.push_back("moe_act");
      } else if (!named.empty()) {
        refuse_key(run_, kTrainer, "plan.recompute_ops", fmt::format("[{}]", named),
                   experts ? "rms_norm or swiglu" : "rms_norm");
      }
    }
    add("--recompute-modules", join(modules, " "));
    if (named.empty()) {
      notes_.push_back(
          "plan.recompute selective repeats more than --recompute-modules names: rope, casts, "
          "rows of experts, and of MLPs without experts the activations");
    }
  }

  static bool has_grouped_products(const engine::Run& run) {
    return run.model.num_experts > 0 && run.config.model.dtype == "bf16";
  }

  /// Returns the line without which it does not start on devices before Blackwell, or nothing. Its
  /// FSDP and its overlapped exchanges of experts ask for several connections.
  std::string connections() const {
    const bool splits = plan_.tp > 1 || plan_.cp > 1;
    const bool several = fsdp_ || plan_.pp_schedule == "interleaved-overlap";
    return splits && !several ? "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" : "";
  }

  std::string written() const {
    const int64_t world = run_.plan.world();
    const int64_t per_node =
        plan_.ranks_per_node > 0 ? std::min(plan_.ranks_per_node, world) : world;
    std::string text = fmt::format(
        "#!/usr/bin/env bash\n# {}\n# Data, tokenizer and checkpoints are to be added: "
        "a run says them otherwise.\nMODEL_AND_PLAN=(\n",
        run_.name);
    for (const std::string& argument : arguments_) {
      text += fmt::format("    {}\n", argument);
    }
    const int64_t nodes = (world + per_node - 1) / per_node;
    // Every node runs the script.
    const char* const meeting =
        nodes > 1 ? "--rdzv-backend c10d --rdzv-endpoint \"${MASTER_ADDR:-localhost}:29500\" " : "";
    text += fmt::format(
        ")\n\n{}torchrun --nnodes {} --nproc-per-node {} {}pretrain_gpt.py \\\n    "
        "\"${{MODEL_AND_PLAN[@]}}\" \"$@\"\n",
        connections(), nodes, per_node, meeting);
    return text;
  }

  const engine::Run& run_;
  const engine::PlanSection& plan_;
  std::vector<std::string> arguments_, notes_;
  bool fsdp_ = false;
};

}  // namespace

Emitted emit_megatron(const engine::Run& run) { return Script(run).emitted(); }

std::function<bool(const planner::PlanCandidate&)> expressed_by_megatron(const engine::Run& run) {
  emit_megatron(run);
  const bool overlaps = Script::wants_overlap(run);
  const auto& passes = run.config.plan.pass_options;
  // Parameters that are gathered ahead need sums that begin early.
  const bool late_sums = passes.text("overlap_param_gather") == "true" &&
                         passes.text("overlap_grad_reduce") == "false";
  const bool no_fsdp = late_sums || !run.config.plan.shard.reshard_after_forward;
  const bool gathers_once = !late_sums && passes.text("overlap_param_gather") == "true";
  const int64_t experts = run.model.num_experts;
  return [=](const planner::PlanCandidate& plan) {
    const std::string_view name = parallel::built_in_schedules()[plan.schedule].name;
    const bool has_pipeline = plan.pp == 1 || (has_schedule(name) && !(overlaps && name == "1f1b"));
    const bool has_shards = plan.shard != planner::kHybrid &&
                            !(no_fsdp && plan.shard == planner::kZero3) &&
                            (gathers_once || plan.shard != planner::kGatheredOnce);
    const bool has_experts =
        experts == 0 || (experts % plan.ep == 0 && (plan.tp == 1 || plan.sequence_parallel));
    const bool alike = plan.ep_inner == 1 && plan.sequences == 0 && cuts_alike(plan);
    return plan.collectives == planner::CollectiveAlgorithm::native && alike && has_pipeline &&
           has_shards && has_experts;
  };
}

bool waits_in_megatron(const planner::PlanCandidate& plan) {
  const std::string_view name = parallel::built_in_schedules()[plan.schedule].name;
  return plan.pp > 1 && name == "1f1b";
}

std::vector<std::string> keys_for_megatron(const engine::Run& run) {
  if (!run.config.plan.pass_options.text("recompute_ops").empty()) return {};
  return {fmt::format("plan.recompute_ops=[{}]", join(Script::recompute_ops(run), ", "))};
}

}  // namespace hocket::interop
