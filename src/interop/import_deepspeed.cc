// SPDX-License-Identifier: Apache-2.0
// Implements: import_deepspeed (foreign.h). Names and defaults are those of deepspeed/runtime.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "base/product.h"
#include "base/text.h"
#include "interop/foreign.h"
#include "interop/import_base.h"
#include "interop/tables.h"

namespace hocket::interop {

namespace {

class DeepspeedImport : public TreeImport {
 public:
  DeepspeedImport(const std::string& text, const std::string& name, const RanksOfFile& ranks,
                  const Beside& beside)
      : TreeImport(Settings(tree_of_json(text, name), name, "DeepSpeed", deepspeed_keys()), name,
                   ranks, beside) {}

  Imported run() {
    read_types();
    read_mesh();
    read_sharding();
    read_training();
    read_optimizer();
    read_schedule();
    for (const char* key : {"train.seq_len", "plan.recompute"}) {
      if (!beside_.has(key)) {
        note(fmt::format("the file does not say {}, which has its default; try --set {}=VALUE", key,
                         key));
      }
    }
    return finish();
  }

 private:
  /// Values that transformers' Trainer fills in.
  bool is_auto(const std::string& path) {
    const ConfigNode* found = file_.node(path);
    return found != nullptr && found->kind == ConfigNode::Kind::scalar && found->text == "auto";
  }
  bool has(const std::string& path) { return file_.has(path) && !is_auto(path); }
  int64_t count(const std::string& path, int64_t otherwise) {
    return has(path) ? file_.at_least(1, path, otherwise) : otherwise;
  }
  double value(const std::string& path, double otherwise) {
    return has(path) ? file_.number(path, otherwise) : otherwise;
  }

  void read_types() {
    const bool bf16 = is_on("bf16.enabled") || is_on("bfloat16.enabled");
    const bool casts = is_on("torch_autocast.enabled");
    const bool fp16 = is_on("fp16.enabled");
    is_half_ = bf16 || casts || fp16;
    if (is_half_) {
      set("model.dtype", std::string("bf16"));
    }
    if (fp16 || (casts && file_.text("torch_autocast.dtype", "bfloat16") == "float16")) {
      note("model.dtype is bf16, for fp16: equal bytes, without loss scaling");
    }
  }
  /// Returns whether a key is on; "auto" is: nearly every file with it trains so.
  bool is_on(const std::string& path) {
    if (!is_auto(path)) return file_.truth(path, false);
    note(path + " is auto: taken as true");
    return true;
  }

  void read_mesh() {
    tp_ = count("tensor_parallel.autotp_size", count("tensor_parallel.tp.tp_size", 1));
    pp_ = count("pipeline.stages", 1);
    cp_ = count("sequence_parallel_size", 1);
    const int64_t micro = read_micro_batch();
    const bool has_rounds = has("gradient_accumulation_steps");
    const int64_t rounds = count("gradient_accumulation_steps", 1);
    const int64_t batch = count("train_batch_size", 0);
    // Two of the three sizes and the number of ranks give the third.
    const int64_t of_pass = product_at_most({micro, rounds});
    const bool says_ranks = batch > 0 && has_rounds && has("train_micro_batch_size_per_gpu");
    if (says_ranks && batch % of_pass != 0) {
      file_.refuse("train_batch_size",
                   fmt::format("a multiple of {}, micro-batches and accumulation", of_pass));
    }
    set_mesh(says_ranks ? product_at_most({batch / of_pass, tp_, pp_, cp_}) : 0);
    const int64_t all = product_at_most({of_pass, dp_});
    if (batch > 0 && has_rounds && has("train_micro_batch_size_per_gpu") && all != batch) {
      file_.refuse("train_batch_size", fmt::format("{}: micro-batches of {} x {} accumulated x {} "
                                                   "data-parallel ranks",
                                                   all, micro, rounds, dp_));
    }
    if (is_auto("gradient_accumulation_steps") && batch == 0) {
      file_.need_key("gradient_accumulation_steps", "train.global_batch",
                     "auto is what transformers' Trainer has", beside_);
    }
    set("train.global_batch", batch > 0 ? batch : all);
    if (cp_ > 1) {
      set("plan.cp_comm_type", std::string("a2a"));
      expect_one_sequence("sequence_parallel_size", "train_micro_batch_size_per_gpu");
    }
  }

  int64_t read_micro_batch() {
    const char* const path = "train_micro_batch_size_per_gpu";
    if (is_auto(path)) {
      file_.need_key(path, "plan.micro_batch", "auto is what transformers' Trainer has", beside_);
      return 1;
    }
    int64_t micro = count(path, 0);
    const int64_t batch = count("train_batch_size", 0);
    if (micro == 0 && batch > 0) {
      // The batch is divided by ranks and accumulation.
      const int64_t ranks = ranks_.asked > 0 ? ranks_.asked : ranks_.otherwise;
      const int64_t dp = ranks > 0 ? ranks / product_at_most({tp_, pp_, cp_}) : 1;
      const int64_t parts = product_at_most({count("gradient_accumulation_steps", 1), dp});
      if (parts < 1 || batch % parts != 0) {
        file_.refuse("train_batch_size", fmt::format("a multiple of {}", parts));
      }
      micro = batch / parts;
    }
    if (micro == 0) {
      fail(
          name_,
          "has no batch; expected train_micro_batch_size_per_gpu, or train_batch_size and --ranks");
    }
    set("plan.micro_batch", micro);
    return micro;
  }

  void read_sharding() {
    const std::string zero = "zero_optimization.";
    expect_no_offload(zero + "offload_param.device");
    expect_no_offload(zero + "offload_optimizer.device");
    if (file_.truth(zero + "cpu_offload", false)) {
      file_.refuse(zero + "cpu_offload", "false: nothing is offloaded here");
    }
    const int64_t stage = has(zero + "stage") ? file_.integer(zero + "stage", 0) : 0;
    if (stage < 0 || stage > 3) {
      file_.refuse(zero + "stage", "0 to 3");
    }
    if (pp_ > 1 && stage > 1) {
      file_.refuse(zero + "stage", "0 or 1 beside pipeline.stages, as in DeepSpeed");
    }
    const int64_t replicas = product_at_most({dp_, cp_});
    const int64_t group = count(zero + "mics_shard_size", 0);
    const std::string among = group > 0 ? "group" : "all";
    if (replicas > 1 && stage > 0) {
      set(stage == 1 ? "plan.shard.optimizer" : "plan.shard.grads", among);
    }
    if (replicas > 1 && stage == 3) {
      set("plan.shard.params", among);
      read_prefetch(zero);
    }
    if (replicas > 1 && stage > 0 && group > 0) {
      set("plan.shard.group", group);
    }
    // Stage 3 overlaps by default, the others do not.
    if (replicas > 1) {
      set("plan.overlap_grad_reduce", file_.truth(zero + "overlap_comm", stage == 3));
    }
    read_gradients(stage);
    if (const int64_t bucket = count(zero + "reduce_bucket_size", 500'000'000); stage > 0) {
      constexpr double kMib = 1 << 20;
      const double bytes = static_cast<double>(bucket) * (grads_are_half_ ? 2 : 4);
      set("plan.bucket_mib", std::min(bytes / kMib, 1048576.0));
    }
  }

  void expect_no_offload(const std::string& path) {
    const std::string device = file_.text(path, "none");
    if (device != "none") {
      file_.refuse(path, "none: nothing is offloaded here");
    }
  }

  void read_prefetch(const std::string& zero) {
    const auto either = [&](const std::string& name, int64_t otherwise) {
      const std::string former = zero + "stage3_" + name, now = zero + name;
      const std::string path = file_.has(former) ? former : now;
      return has(path) ? file_.at_least(0, path, otherwise) : otherwise;
    };
    if (either("prefetch_bucket_size", 50'000'000) == 0) {
      set("plan.overlap_param_gather", false);
    }
    // Smaller parameters stay whole.
    const int64_t least = either("param_persistence_threshold", 100'000);
    set("plan.shard.least_kib", static_cast<double>(least) * (is_half_ ? 2 : 4) / 1024);
  }

  /// Stages 2 and 3 keep gradients in the model's type by default.
  void read_gradients(int64_t stage) {
    const std::string type = file_.text("data_types.grad_accum_dtype", "");
    const std::string sent = file_.text("communication_data_type", "");
    const bool wide = type == "fp32" || (type.empty() && (stage < 2 || sent == "fp32"));
    grads_are_half_ = is_half_ && !wide;
    if (grads_are_half_) {
      set("train.grad_dtype", std::string("model"));
    }
  }

  void read_training() {
    set("train.max_grad_norm", value("gradient_clipping", 0));
    const std::string total = "scheduler.params.total_num_steps";
    if (has(total)) {
      set("train.steps", file_.at_least(1, total, 1));
    } else if (!beside_.has("train.steps")) {
      note("the file does not say train.steps, which has its default; try --set train.steps=N");
    }
  }

  void read_optimizer() {
    const std::string type = file_.text("optimizer.type", "");
    const std::string params = "optimizer.params.";
    if (type.empty()) {
      note("the file has no optimizer: it is adamw here");
      return;
    }
    const std::string lower = lower_of(type);
    if (lower == "sgd") {
      set("optimizer.name", lower);
      set("optimizer.momentum", value(params + "momentum", 0));
      set("optimizer.nesterov", file_.truth(params + "nesterov", false));
    } else if (lower == "muon") {
      set("optimizer.name", lower);
      set("optimizer.momentum", value(params + "momentum", 0.95));
      set("optimizer.ns_steps", count(params + "ns_steps", 5));
    } else if (lower != "adam" && lower != "adamw") {
      file_.refuse("optimizer.type", "Adam, AdamW, SGD or Muon");
    }
    if (lower == "adam" && !file_.truth(params + "adam_w_mode", true)) {
      note("weight decay is AdamW's here, for optimizer.params.adam_w_mode false");
    }
    if (has(params + "lr")) {
      set("train.lr", value(params + "lr", 0));
    }
    double beta1 = 0.9, beta2 = 0.999;
    if (has(params + "betas")) {
      const std::vector<std::string> betas = file_.texts(params + "betas");
      if (betas.size() != 2 || !parse_double(betas[0], &beta1) || !parse_double(betas[1], &beta2)) {
        file_.refuse(params + "betas", "two numbers");
      }
    }
    set("optimizer.beta1", beta1);
    set("optimizer.beta2", beta2);
    set("optimizer.eps", value(params + "eps", 1e-8));
    set("optimizer.weight_decay", value(params + "weight_decay", 0));
  }

  void read_schedule() {
    const std::string type = file_.text("scheduler.type", ""), params = "scheduler.params.";
    if (type.empty()) {
      set("train.schedule", std::string("constant"));
      set("train.warmup_steps", int64_t{0});
      return;
    }
    const std::string schedule =
        file_.one_of("scheduler.type", "", {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"});
    set("train.schedule", std::string(schedule == "WarmupLR"        ? "constant"
                                      : schedule == "WarmupDecayLR" ? "linear"
                                                                    : "cosine"));
    set("train.warmup_steps", has(params + "warmup_num_steps")
                                  ? file_.at_least(0, params + "warmup_num_steps", 1000)
                                  : int64_t{1000});
    const double peak = value(params + "warmup_max_lr", value("optimizer.params.lr", 1e-3));
    if (has(params + "warmup_max_lr")) {
      set("train.lr", peak);
    }
    const double share = schedule == "WarmupCosineLR" ? value(params + "cos_min_ratio", 1e-4) : 0;
    set("train.min_lr", peak * share);
    if (value(params + "warmup_min_lr", 0) > 0 || value(params + "warmup_min_ratio", 0) > 0) {
      note("the learning rate rises from 0 here");
    }
    if (file_.text(params + "warmup_type", "log") == "log") {
      note("the learning rate rises in a line here, for scheduler.params.warmup_type log");
    }
  }

  bool is_half_ = false, grads_are_half_ = false;
};

}  // namespace

Imported import_deepspeed(const std::string& text, const std::string& name,
                          const RanksOfFile& ranks, const Beside& beside) {
  return DeepspeedImport(text, name, ranks, beside).run();
}

}  // namespace hocket::interop
