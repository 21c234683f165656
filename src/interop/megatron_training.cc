// SPDX-License-Identifier: Apache-2.0
// Implements: read_training, read_optimizer (import_megatron.h).
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/product.h"
#include "base/text.h"
#include "interop/import_megatron.h"

namespace hocket::interop {

void MegatronImport::read_training() {
  if (arguments_.has("--bf16")) {
    set("model.dtype", std::string("bf16"));
    if (arguments_.has("--grad-reduce-in-bf16")) {
      set("train.grad_dtype", std::string("model"));
    }
  } else if (arguments_.has("--fp16")) {
    set("model.dtype", std::string("bf16"));
    imported_.notes.push_back("model.dtype is bf16, for --fp16: equal bytes, without loss scaling");
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

double MegatronImport::balance_coef() {
  const char* const flag = "--moe-router-load-balancing-type";
  const std::string type = arguments_.has(flag) ? arguments_.text(flag) : "aux_loss";
  expect_one_of(flag, {"aux_loss", "seq_aux_loss", "global_aux_loss", "none"});
  if (type != "aux_loss" && type != "none") {
    imported_.notes.push_back(
        fmt::format("experts are balanced over a global micro-batch here, for {} {}", flag, type));
  }
  return type == "none" ? 0 : arguments_.number("--moe-aux-loss-coeff", 0);
}

void MegatronImport::read_float8() {
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

void MegatronImport::read_optimizer() {
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

/// Reads the decay. By default Megatron-LM's learning rate falls linearly to 0.
void MegatronImport::read_decay() {
  set("train.min_lr", arguments_.number("--min-lr", 0));
  expect_one_of("--lr-decay-style", {"cosine", "linear", "constant", "inverse-square-root", "WSD"});
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
bool MegatronImport::read_stable() {
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
int64_t MegatronImport::decay_steps() {
  const int64_t batch = std::max<int64_t>(1, global_batch_);
  const int64_t samples = arguments_.integer("--lr-decay-samples", 0);
  return arguments_.integer("--lr-decay-iters", samples > 0 ? samples / batch : steps_);
}

void MegatronImport::read_warmup() {
  const char* const flag = "--lr-warmup-fraction";
  const int64_t as_steps =
      read_steps("--lr-warmup-iters", "--lr-warmup-samples", "train.warmup_steps");
  if (!arguments_.has(flag)) return;
  const double share = arguments_.number(flag, 0);
  if (!(share >= 0 && share <= 1) || as_steps > 0) {
    fail(name_, "{} is {}{}; expected 0 to 1, and no steps or samples beside it", flag, share,
         as_steps > 0 ? fmt::format(" beside {} of warm-up", counted(as_steps, "step")) : "");
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
int64_t MegatronImport::read_steps(const std::string& flag, const std::string& samples,
                                   const std::string& key) {
  copy(flag, key);
  const int64_t as_steps = arguments_.integer(flag, 0);
  if (!arguments_.has(samples)) return as_steps;
  if (arguments_.has(flag)) {
    arguments_.leave(samples, flag + " says how many steps there are");
    return as_steps;
  }
  const int64_t batch = std::max<int64_t>(1, global_batch_);
  const int64_t steps = arguments_.integer(samples, 0) / batch;
  set(key, steps);
  imported_.notes.push_back(fmt::format("{} is {}: {} {} in steps of {}", key, steps, samples,
                                        arguments_.integer(samples, 0),
                                        counted(batch, "sequence")));
  return steps;
}

}  // namespace hocket::interop
