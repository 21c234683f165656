// SPDX-License-Identifier: Apache-2.0
// Implements: emit_torchtitan (foreign.h): a job file (TOML). Names are those of
// torchtitan/config/job_config.py.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "interop/emit.h"
#include "interop/foreign.h"
#include "interop/torchtitan_names.h"
#include "parallel/schedules/schedule.h"

namespace hocket::interop {

namespace {

constexpr const char* kTrainer = "torchtitan";

/// torchtitan's name of a schedule; null: it has none of this kind.
const char* schedule_name(std::string_view ours) {
  const auto found =
      std::find_if(std::begin(kTorchtitanSchedules), std::end(kTorchtitanSchedules),
                   [&](const ScheduleName& schedule) { return ours == schedule.ours; });
  return found == std::end(kTorchtitanSchedules) ? nullptr : found->theirs;
}

/// Returns whether torchtitan's mixed precision takes effect, with `inside` ranks in tp and pp, and
/// `split` in FSDP and cp: it is off with tp or pp alone.
bool has_bf16(int64_t inside, int64_t split) { return split > 1 || inside == 1; }

/// Returns whether torchtitan has a mesh for experts over `ep` ranks: all of cp, all of tp unless
/// it splits every expert, and some of the `split` ranks of FSDP beside them.
bool has_experts_over(int64_t ep, int64_t etp, int64_t tp, int64_t cp, int64_t split) {
  if (ep == 1) return true;
  const int64_t inside = cp * (etp == tp ? 1 : tp);
  return ep % inside == 0 && split * inside % ep == 0;
}

/// A number that TOML does not take for an integer.
std::string real(double value) {
  const std::string shown = fmt::format("{}", value);
  return shown.find_first_of(".e") == std::string::npos ? shown + ".0" : shown;
}

/// Modules of every stage, as torchtitan names them.
std::string modules_of(const engine::Run& run) {
  std::vector<std::vector<std::string>> parts(static_cast<size_t>(run.plan.num_stages()));
  parts.front().push_back("tok_embeddings");
  int64_t layer = 0;
  for (const int32_t stage : run.plan.stage_of_layers(run.model.num_layers)) {
    parts[static_cast<size_t>(stage)].push_back(fmt::format("layers.{}", layer++));
  }
  parts.back().push_back("norm");
  parts.back().push_back("output");
  std::string text = "[\n";
  for (const std::vector<std::string>& part : parts) {
    text += fmt::format("  [\"{}\"],\n", fmt::join(part, "\", \""));
  }
  return text + "]";
}

class JobFile {
 public:
  explicit JobFile(const engine::Run& run) : run_(run), plan_(run.config.plan) {}

  Emitted emitted() {
    expect_expressed(
        run_, kTrainer,
        {"train.schedule", "plan.shard.reshard_after_backward", "plan.recompute_products"});
    if (const std::string& schedule = run_.config.train.schedule;
        schedule != "linear" && schedule != "cosine") {
      refuse_key(run_, kTrainer, "train.schedule", schedule, "linear or cosine");
    }
    text_ = fmt::format(
        "# {}\n# Model, data and checkpoints are to be added: a run says them "
        "otherwise.\n",
        run_.name);
    precision();
    training();
    optimizer();
    section("parallelism");
    mesh();
    context();
    pipeline();
    recompute();
    intervals();
    return {std::move(text_), std::move(notes_)};
  }

 private:
  void section(const char* name) { text_ += fmt::format("\n[{}]\n", name); }
  template <class T>
  void add(const char* key, const T& value) {
    text_ += fmt::format("{} = {}\n", key, value);
  }
  void add_text(const char* key, const std::string& value) {
    text_ += fmt::format("{} = \"{}\"\n", key, value);
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& value,
                           const std::string& expected) const {
    refuse_key(run_, kTrainer, key, value, expected);
  }

  void precision() {
    const std::string& dtype = run_.config.model.dtype;
    if (dtype == "f64" || dtype == "f16") {
      refuse("model.dtype", dtype, "f32 or bf16");
    }
    if (dtype == "bf16" && !has_bf16(plan_.tp * plan_.pp, ranks_that_split() * plan_.cp)) {
      refuse("model.dtype", dtype, "plan.shard.params with tp or pp, or f32");
    }
    if (dtype == "bf16" && run_.config.train.grad_dtype == "model") {
      refuse("train.grad_dtype", "model", "f32, the one value of training.mixed_precision_reduce");
    }
    if (run_.config.model.float8) {
      section("model");
      text_ += "converters = [\"float8\"]\n";
    }
  }

  void training() {
    const engine::TrainSection& train = run_.config.train;
    section("training");
    add_text("mixed_precision_param", run_.config.model.dtype == "bf16" ? "bfloat16" : "float32");
    add("seq_len", train.seq_len);
    add("global_batch_size", train.global_batch);
    add("local_batch_size", plan_.pp > 1 ? train.global_batch / plan_.dp : plan_.micro_batch);
    add("steps", steps_of(train));
    add("max_norm", real(train.max_grad_norm));
    add("seed", train.seed);
  }

  void optimizer() {
    const engine::TrainSection& train = run_.config.train;
    section("optimizer");
    add_text("name", "AdamW");
    add("lr", real(train.lr));
    const engine::OptimizerSection& optimizer = run_.config.optimizer;
    add("beta1", real(optimizer.beta1));
    add("beta2", real(optimizer.beta2));
    add("eps", real(optimizer.eps));
    add("weight_decay", real(optimizer.weight_decay));
    section("lr_scheduler");
    add("warmup_steps", train.warmup_steps);
    add_text("decay_type", train.schedule);
    add("min_lr_factor", real(train.lr > 0 ? train.final_lr() / train.lr : 0));
  }

  void mesh() {
    if (plan_.tp > 1 && !plan_.sequence_parallel) {
      refuse("plan.sequence_parallel", "false", "true with plan.tp");
    }
    if (plan_.etp > 1 && plan_.etp != plan_.tp) {
      refuse("plan.etp", std::to_string(plan_.etp), "1 or plan.tp");
    }
    if (run_.model.num_kv_heads % plan_.tp != 0) {
      refuse("plan.tp", std::to_string(plan_.tp),
             fmt::format("a divisor of the model's {} heads of keys", run_.model.num_kv_heads));
    }
    const int64_t split = ranks_that_split();
    expect_experts(split);
    add("data_parallel_replicate_degree", plan_.dp / split);
    add("data_parallel_shard_degree", split);
    add("tensor_parallel_degree", plan_.tp);
    add("pipeline_parallel_degree", plan_.pp);
    add("context_parallel_degree", plan_.cp);
    if (run_.model.num_experts > 0) {
      add("expert_parallel_degree", plan_.ep);
      add("expert_tensor_parallel_degree", plan_.etp);
    }
    const parallel::Sharding& shard = run_.plan.shard;
    if (shard.params != parallel::Shard::none) {
      // PyTorch's pipelining frees gathered parameters after the last backward pass of a stage.
      const bool frees = plan_.pp == 1 || shard.reshard_after_forward;
      if (shard.reshard_after_backward != frees) {
        refuse("plan.shard.reshard_after_backward", frees ? "false" : "true",
               frees ? "true without plan.pp"
                     : "false with plan.pp and plan.shard.reshard_after_forward false");
      }
      add_text("fsdp_reshard_after_forward", shard.reshard_after_forward ? "always" : "never");
    }
  }

  /// Throws Error if experts are on ranks on which torchtitan has none, beside `split` ranks of
  /// FSDP.
  void expect_experts(int64_t split) const {
    if (run_.model.num_experts == 0) return;
    if (run_.model.num_experts % plan_.ep != 0) {
      refuse("plan.ep", std::to_string(plan_.ep),
             fmt::format("a divisor of the {} experts", run_.model.num_experts));
    }
    if (!has_experts_over(plan_.ep, plan_.etp, plan_.tp, plan_.cp, split)) {
      refuse(
          "plan.ep", std::to_string(plan_.ep),
          fmt::format("1, or all of plan.cp, and of plan.tp without plan.etp, times a divisor of "
                      "the {} of dp over which plan.shard.params splits",
                      counted(split, "rank")));
    }
  }

  /// Data-parallel ranks over which FSDP splits parameters, gradients and states alike, beside
  /// those of cp; the others are replicas.
  int64_t ranks_that_split() const {
    const parallel::Sharding& shard = run_.plan.shard;
    const int64_t all = plan_.dp * plan_.cp;
    if (all == 1 || !shard.any()) {
      if (plan_.cp > 1) {
        refuse("plan.shard.params", "none", "all with plan.cp, over which FSDP splits");
      }
      return 1;
    }
    if (shard.params == parallel::Shard::none || shard.update() != shard.params) {
      refuse("plan.shard", "not of parameters and states alike", "both, or none");
    }
    // PyTorch's pipelining reduces gradients after the last backward pass of a stage.
    const bool defers = plan_.pp > 1;
    if (shard.grads != (defers ? parallel::Shard::none : shard.params)) {
      refuse("plan.shard.grads", defers ? "split" : "not as plan.shard.params",
             defers ? "none with plan.pp: gradients are whole until a stage's last backward pass"
                    : "both alike");
    }
    const int64_t group = shard.params == parallel::Shard::group ? shard.group : all;
    if (group % plan_.cp != 0) {
      refuse("plan.shard.group", std::to_string(group), "a multiple of plan.cp");
    }
    return group / plan_.cp;
  }

  void context() {
    if (plan_.cp == 1) return;
    expect_one_sequence(run_, kTrainer);
    const std::string keys = plan_.pass_options.text("cp_comm_type");
    const std::string order = plan_.pass_options.text("cp_order");
    if (keys == "a2a") {
      refuse("plan.cp_comm_type", keys, "all_gather or p2p");
    }
    if (keys == "p2p" && order != "zigzag") {
      refuse("plan.cp_order", order, "zigzag");
    }
    add_text("context_parallel_rotate_method", keys == "p2p" ? "alltoall" : "allgather");
  }

  void pipeline() {
    if (plan_.pp == 1) return;
    add("pipeline_parallel_microbatch_size", plan_.micro_batch);
    if (parallel::is_schedule_file(plan_.pp_schedule)) {
      add_text("pipeline_parallel_schedule", "PipelineScheduleMulti");
      add_text("pipeline_parallel_schedule_csv", plan_.pp_schedule);
    } else {
      add_text("pipeline_parallel_schedule", schedule());
    }
    add("module_fqns_per_model_part", modules_of(run_));
  }

  const char* schedule() const {
    const char* name = schedule_name(plan_.pp_schedule);
    if (!name) {
      refuse("plan.pp_schedule", plan_.pp_schedule,
             "1f1b, gpipe, interleaved, zb-h1, zb-v or dualpipev, or a CSV");
    }
    return name;
  }

  void recompute() {
    const std::string mode = plan_.pass_options.text("recompute");
    section("activation_checkpoint");
    add_text("mode", mode);
    if (mode == "selective") {
      add_text("selective_ac_option", "op");
      if (const std::string every = plan_.pass_options.text("recompute_products"); every != "2") {
        notes_.push_back(fmt::format(
            "plan.recompute_products is {}; torchtitan's selective is 2: it repeats every second "
            "product",
            every));
      }
    }
  }

  /// Sections that are off there unless they are given.
  void intervals() {
    const engine::TrainSection& train = run_.config.train;
    std::vector<std::string> left = {"train.minutes",        "train.save_minutes",
                                     "train.skip_grad_norm", "train.on_nonfinite",
                                     "train.dropout",        "train.balance_coef",
                                     "train.eval_sequences", "train.final_eval_sequences"};
    if (train.save_every > 0) {
      section("checkpoint");
      add("enable", true);
      add("interval", train.save_every);
    }
    // torchtitan keeps at least two, since the last may not be whole yet.
    if (train.save_every > 0 && train.keep_last != 1) {
      add("keep_latest_k", train.keep_last);
    } else {
      left.push_back("train.keep_last");
    }
    if (train.eval_every > 0) {
      section("validation");
      add("enable", true);
      add("freq", train.eval_every);
    }
    if (!run_.resolved.is_default("plan.timeout_s")) {
      section("comm");
      add("train_timeout_seconds", timeout_in(1, run_, kTrainer, &notes_));
    }
    for (std::string& note : notes_of_left_out(run_, kTrainer, left)) {
      notes_.push_back(std::move(note));
    }
  }

  const engine::Run& run_;
  const engine::PlanSection& plan_;
  std::string text_;
  std::vector<std::string> notes_;
};

}  // namespace

Emitted emit_torchtitan(const engine::Run& run) { return JobFile(run).emitted(); }

std::function<bool(const planner::PlanCandidate&)> expressed_by_torchtitan(const engine::Run& run) {
  emit_torchtitan(run);
  const bool bf16 = run.config.model.dtype == "bf16";
  const parallel::Sharding& shard = run.config.plan.shard;
  const bool frees = shard.reshard_after_backward;
  // FSDP of a pipeline gathers once a step, unless the run says otherwise.
  const auto may_keep = [&](const char* key, bool reshards) {
    return !reshards || run.resolved.is_default(key);
  };
  const bool keeps = may_keep("plan.shard.reshard_after_forward", shard.reshard_after_forward) &&
                     may_keep("plan.shard.reshard_after_backward", shard.reshard_after_backward);
  const int64_t experts = run.model.num_experts, kv_heads = run.model.num_kv_heads;
  return [=](const planner::PlanCandidate& plan) {
    const bool once = plan.shard == planner::kGatheredOnce;
    const bool splits_all = once || plan.shard == planner::kZero3;
    const bool has_shards = (once && plan.pp > 1 && keeps) ||
                            (plan.shard == planner::kZero3 && plan.pp == 1 && frees) ||
                            (plan.shard == planner::ShardLevel::none && plan.cp == 1);
    const bool has_mesh = (plan.tp == 1 || plan.sequence_parallel) &&
                          (plan.cp == 1 || plan.cp_comm_type != planner::CpCommType::a2a);
    const bool has_precision =
        !bf16 || has_bf16(int64_t{plan.tp} * plan.pp, splits_all ? plan.replicas() : 1);
    const bool has_pipeline =
        plan.pp == 1 || schedule_name(parallel::built_in_schedules()[plan.schedule].name);
    const bool has_experts = experts == 0 || (experts % plan.ep == 0 &&
                                              has_experts_over(plan.ep, plan.etp, plan.tp, plan.cp,
                                                               splits_all ? plan.dp : 1));
    const bool alike = plan.ep_inner == 1 && plan.sequences == 0 && cuts_alike(plan);
    return plan.collectives == planner::CollectiveAlgorithm::native && alike && has_shards &&
           has_mesh && has_experts && kv_heads % plan.tp == 0 && has_precision && has_pipeline;
  };
}

}  // namespace hocket::interop
