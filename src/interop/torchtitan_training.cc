// SPDX-License-Identifier: Apache-2.0
// Implements: read_precision, read_training, read_optimizer (import_torchtitan.h).
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/product.h"
#include "base/text.h"
#include "interop/import_base.h"
#include "interop/import_torchtitan.h"

namespace hocket::interop {

namespace {

constexpr const char* kTokensOfPass = "training.num_tokens_per_microbatch_per_dp_rank";

}  // namespace

/// Reads the precision. FSDP has parameters in bf16 by default, and so does autocast where nothing
/// is split at all. With tp or pp alone, mixed precision is off.
void TorchtitanImport::read_precision() {
  const std::string param = precision("training.mixed_precision_param", "bfloat16");
  const std::string kept = precision("training.dtype", "float32");
  const bool is_mixed = split_ > 1 || cp_ > 1 || (tp_ == 1 && pp_ == 1);
  const bool bf16 = kept == "bfloat16" || (is_mixed && param == "bfloat16");
  if (bf16) {
    set("model.dtype", std::string("bf16"));
    if (precision("training.mixed_precision_reduce", "float32") == "bfloat16") {
      set("train.grad_dtype", std::string("model"));
    }
  } else if (param == "bfloat16") {
    imported_.notes.push_back(
        "model.dtype is f32: with tp or pp torchtitan has mixed precision only beside FSDP or "
        "cp");
  }
  if (kept == "bfloat16") {
    imported_.notes.push_back(
        "training.dtype is bfloat16: gradients, moments and master weights are of f32 here");
  }
  std::vector<std::string> converters = job_.texts("model.converters");
  if (had_float8()) {
    converters.push_back("float8");
  }
  for (const std::string& converter : converters) {
    const bool float8 = converter == "float8" || converter == "quantize.linear.float8";
    if (float8 && bf16) {
      set("model.float8", true);
    } else {
      imported_.notes.push_back(
          fmt::format("model.converters has {}, which {}", quote(converter),
                      float8 ? "goes with bf16 here" : "there is nothing like here"));
    }
  }
}

/// Returns whether float8 is on by a key from releases before converters.
bool TorchtitanImport::had_float8() {
  const bool by_switch = job_.truth("float8.enable_float8_linear", false);
  const bool by_older_switch = job_.truth("training.enable_fp8_linear", false);
  const std::string scaling = job_.text("training.fp8_linear", "");
  if (!scaling.empty() && scaling != "dynamic") {
    fail(name_, "training.fp8_linear is {}; expected dynamic, or nothing", quote(scaling));
  }
  return by_switch || by_older_switch || !scaling.empty();
}

std::string TorchtitanImport::precision(const std::string& path, const std::string& otherwise) {
  const std::string dtype = job_.text(path, otherwise);
  if (dtype != "bfloat16" && dtype != "float32") {
    fail(name_, "{} is {}; expected bfloat16 or float32", path, quote(dtype));
  }
  return dtype;
}

void TorchtitanImport::read_training() {
  const int64_t dp = product_at_most({replicate_, split_});
  const bool in_tokens = job_.has(kTokensOfPass) || job_.has("training.max_context_length");
  if (in_tokens) {
    read_tokens(dp);
  } else {
    read_batch(dp);
  }
  const std::string batch = in_tokens ? kTokensOfPass
                            : pp_ > 1 ? "parallelism.pipeline_parallel_microbatch_size"
                                      : job_.name_of("training.local_batch_size");
  expect_one_sequence(name_, "torchtitan", job_.name_of("parallelism.context_parallel_degree"),
                      batch, imported_, beside_);
  set("train.steps", job_.at_least(1, "training.steps", 10000));
  set("train.max_grad_norm", job_.number("training.max_norm", 1.0));
  if (job_.has("debug.seed")) {
    set("train.seed", job_.integer("debug.seed", 1));
  }
  set("train.warmup_steps", job_.at_least(0, "lr_scheduler.warmup_steps", 200));
  const std::string mode = checkpointing();
  if (mode != "none" && mode != "selective" && mode != "full") {
    fail(name_, "activation_checkpoint.mode is {}; expected none, selective or full", quote(mode));
  }
  set("plan.recompute", mode);
  if (mode == "selective") {
    // By op, every second product of a block is computed again there.
    const char* const kOption = "activation_checkpoint.selective_ac_option";
    if (is_json_ || job_.text(kOption, "") == "op") {
      set("plan.recompute_products", int64_t{2});
    } else {
      job_.leave(kOption,
                 "selective recomputation repeats ops with much memory and little arithmetic");
    }
  }
  if (job_.has("comm.train_timeout_seconds")) {
    set("plan.timeout_s", job_.integer("comm.train_timeout_seconds", 100));
  }
  read_decay();
  read_intervals();
}

void TorchtitanImport::read_batch(int64_t dp) {
  const int64_t local = job_.at_least(1, "training.local_batch_size", 8);
  // Batch of all ranks together; negative for unset.
  const int64_t global = job_.integer("training.global_batch_size", -1);
  if (global == 0) {
    job_.at_least(1, "training.global_batch_size", 0);
  }
  const int64_t piece = sequences_of_a_pass(local);
  set("plan.micro_batch", pp_ > 1 ? piece : local);
  set("train.global_batch", global > 0 ? global : product_at_most({local, dp}));
  if (const int64_t rounds = local > 0 ? global / product_at_most({local, dp}) : 0;
      pp_ > 1 && rounds > 1) {
    imported_.notes.push_back(fmt::format(
        "a step is one pass through the pipeline here, of all {} sequences of a data-parallel "
        "rank; torchtitan accumulates {} of training.local_batch_size {}, which wait for the "
        "pipeline to fill and empty each",
        global / dp, rounds, local));
  }
  set("train.seq_len", job_.at_least(1, "training.seq_len", 2048));
}

/// Reads batches that are counted in tokens, of sequences of the full context each.
void TorchtitanImport::read_tokens(int64_t dp) {
  const int64_t length = job_.at_least(1, "training.seq_len", 2048);
  const int64_t tokens = job_.at_least(1, kTokensOfPass, 16384);
  const int64_t passes = pp_ > 1 ? job_.at_least(1, "parallelism.num_pp_microbatches", 1) : 1;
  if (tokens % length != 0) {
    job_.refuse(kTokensOfPass,
                fmt::format("a multiple of {} {}, as a micro-batch has whole sequences "
                            "here",
                            job_.name_of("training.seq_len"), length));
  }
  set("train.seq_len", length);
  set("plan.micro_batch", tokens / length);
  const int64_t of_pass = product_at_most({tokens, passes, dp});
  const char* const kStep = "training.num_tokens_per_train_step";
  const int64_t given = job_.integer(kStep, -1);
  const int64_t of_step = given > 0 ? given : of_pass;
  if (of_step % of_pass != 0 || given == 0 || given < -1) {
    job_.refuse(
        kStep, fmt::format("a multiple of {}, the tokens of all micro-batches of a pass", of_pass));
  }
  set("train.global_batch", of_step / length);
  if (pp_ > 1 && of_step > of_pass) {
    imported_.notes.push_back(fmt::format(
        "a step is one pass through the pipeline here; torchtitan accumulates {} passes of {} "
        "micro-batches, which wait for the pipeline to fill and empty each",
        of_step / of_pass, passes));
  }
}

/// Returns the sequences per pipeline pass. Releases with the degree in [experimental] counted
/// passes instead, by default one per stage.
int64_t TorchtitanImport::sequences_of_a_pass(int64_t local) {
  const char* const kCounted = "parallelism.pipeline_parallel_microbatches";
  const char* const kSized = "parallelism.pipeline_parallel_microbatch_size";
  const bool counts_passes =
      job_.name_of("parallelism.pipeline_parallel_degree").starts_with("experimental.");
  const bool is_counted = job_.has(kCounted) || (counts_passes && !job_.has(kSized));
  const int64_t sized = job_.at_least(1, kSized, 1);
  const int64_t passes = job_.at_least(1, kCounted, stages_);
  if (!is_counted || pp_ == 1) return sized;
  if (local % passes != 0) {
    fail(name_, "{} is {}; expected a multiple of the {} passes through the pipeline ({}{})",
         job_.name_of("training.local_batch_size"), local, passes, job_.name_of(kCounted),
         job_.has(kCounted) ? "" : ", by default one per stage");
  }
  return local / passes;
}

/// Returns the mode of checkpointing. The JSON of torchtitan has the class's fields in its place.
std::string TorchtitanImport::checkpointing() {
  const std::string section = "activation_checkpoint";
  if (!is_json_ || job_.has(section + ".mode")) {
    return job_.text(section + ".mode", "selective");
  }
  if (job_.has(section + ".memory_budget")) {
    job_.need_key(section + ".memory_budget", "plan.recompute",
                  "a compiler chooses what is computed again", beside_);
    return "none";
  }
  if (!job_.has(section)) return "none";
  return job_.has(section + ".force_recompute_mm_shapes_by_fqns") ? "selective" : "full";
}

/// Reads one group of parameters, in torchtitan's JSON with the arguments of an optimizer's class.
void TorchtitanImport::read_optimizer() {
  const std::string group = "optimizer.param_groups.0";
  std::string name = job_.text("optimizer.name", "AdamW");
  double lr = job_.number("optimizer.lr", 8e-4);
  double beta1 = job_.number("optimizer.beta1", 0.9);
  double beta2 = job_.number("optimizer.beta2", 0.95);
  double eps = job_.number("optimizer.eps", 1e-8);
  double decay = job_.number("optimizer.weight_decay", 0.1);
  if (job_.has(group)) {
    if (job_.has("optimizer.param_groups.1")) {
      fail(name_,
           "optimizer.param_groups has several groups; expected one; try a file with one, and "
           "optimizer.groups in the run that comes out");
    }
    job_.use_all(group);
    const std::string with = group + ".optimizer_kwargs";
    name = job_.text(group + ".optimizer_name", name);
    lr = job_.number(with + ".lr", lr);
    const std::vector<std::string> betas = job_.texts(with + ".betas");
    if (betas.size() == 2 && !(parse_double(betas[0], &beta1) && parse_double(betas[1], &beta2))) {
      job_.refuse(with + ".betas", "two numbers");
    }
    eps = job_.number(with + ".eps", eps);
    decay = job_.number(with + ".weight_decay", decay);
  }
  if (name != "AdamW" && name != "Adam") {
    fail(name_, "{} is {}; expected AdamW", job_.has(group) ? "optimizer_name" : "optimizer.name",
         quote(name));
  }
  set("train.lr", lr);
  set("train.min_lr", lr * job_.number("lr_scheduler.min_lr_factor", 0.0));
  set("optimizer.beta1", beta1);
  set("optimizer.beta2", beta2);
  set("optimizer.eps", eps);
  set("optimizer.weight_decay", decay);
}

/// Reads the decay. By default the learning rate of torchtitan falls linearly.
void TorchtitanImport::read_decay() {
  const std::string type = job_.text("lr_scheduler.decay_type", "linear");
  if (type != "linear" && type != "sqrt" && type != "cosine") {
    fail(name_, "lr_scheduler.decay_type is {}; expected linear, sqrt or cosine", quote(type));
  }
  if (const double share = job_.number("lr_scheduler.decay_ratio", 1); share < 1) {
    if (share < 0) {
      job_.refuse("lr_scheduler.decay_ratio", "0 to 1");
    }
    set("train.schedule", std::string("wsd"));
    set("train.decay_share", share);
    set("train.decay", type == "sqrt" ? std::string("1-sqrt") : type);
    return;
  }
  set("train.schedule", type == "sqrt" ? "cosine" : type);
  if (type == "sqrt") {
    imported_.notes.push_back(fmt::format(
        "the learning rate follows a cosine here, for lr_scheduler.decay_type {}", type));
  }
}

/// Checkpoints and validations are off there if nothing else is said.
void TorchtitanImport::read_intervals() {
  const bool by_time = job_.text("checkpoint.interval_type", "steps") == "seconds";
  const bool saves = job_.truth("checkpoint.enable", false);
  if (saves && by_time) {
    job_.leave("checkpoint.interval", "it is in seconds; set train.save_every to steps");
  } else if (saves) {
    set("train.save_every", job_.at_least(1, "checkpoint.interval", 500));
    if (job_.has("checkpoint.keep_latest_k")) {
      set("train.keep_last", job_.at_least(0, "checkpoint.keep_latest_k", 10));
    }
  } else {
    const char* const why = "checkpoint.enable is false: one is saved at the end here";
    job_.leave("checkpoint.interval", why);
    job_.leave("checkpoint.keep_latest_k", why);
  }
  if (job_.truth("validation.enable", false)) {
    set("train.eval_every", job_.at_least(1, "validation.freq", 10));
  } else {
    job_.leave("validation.freq", "validation.enable is false: there is one at the end here");
  }
}

}  // namespace hocket::interop
