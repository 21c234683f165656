// SPDX-License-Identifier: Apache-2.0
// Implements: fields() of the sections of run.yaml (config.h).
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "autodiff/autodiff.h"
#include "base/error.h"
#include "base/math.h"
#include "base/text.h"
#include "passes/pass.h"
#include "run/bounds.h"
#include "run/config.h"

namespace hocket::engine {

namespace {

// Bounds of sizes: far beyond any practical run, with products below 2^62.
constexpr double kMaxTokens = 1 << 27;  // of a micro-batch (models/builder.cc)
constexpr double kMaxTrainTokens = 1e18;
constexpr double kMaxDropout = 0.999;  // kept elements are divided by 1 - dropout
// AdamW divides by 1 - beta^t.
constexpr double kMaxBeta = 0.999999;
// AdamW divides by the root of a moment, which can be 0, and this; far less is 0 in f32.
constexpr double kLeastEps = 1e-30;

constexpr const char* kNoDora = "DoRA is not supported; expected plain LoRA, adapter.type: lora";
constexpr const char* kNoQalora =
    "QALoRA is not supported; expected plain LoRA, adapter.type: lora";
constexpr const char* kNoQlora =
    "QLoRA is not supported, since the base's weights are not quantised in memory; expected plain "
    "LoRA, adapter.type: lora, with model.dtype: bf16 for less memory";

/// Refuses other adapters by their names.
void refuse_adapters(Field& field) {
  field.refuse("dora", kNoDora).refuse("qalora", kNoQalora).refuse("qlora", kNoQlora);
}

/// Refuses the keys by which PEFT and Axolotl quantise the weights of a base.
void refuse_quantised(Fields& fields) {
  fields.refuse("load_in_4bit", kNoQlora);
  fields.refuse("load_in_8bit", kNoQlora);
}

}  // namespace

ModelSection::ModelSection() : config(std::make_shared<nlohmann::json>()) {}

void ModelSection::fields(Fields& fields) {
  fields("path", path,
         "MODEL: a Hugging Face folder, a GGUF file, a config.json, one of our checkpoints, a hub "
         "id");
  fields("config", *config, "keys of a Hugging Face config.json, in place of path");
  fields("dtype", dtype,
         "type of parameters and activations; with bf16 and f16, sums, gradients of parameters "
         "(but for train.grad_dtype), moments and master weights are f32; 8-bit products are "
         "float8")
      .one_of({"f32", "f64", "bf16", "f16"});
  fields("float8", float8,
         "multiply in f8_e4m3 in linear layers of the blocks, but for routers and experts, with "
         "dtype bf16; operands are cast by tasks of their own, without scales");
  fields("init", init,
         "initial parameters of a new training: weights (those of path), "
         "random, or auto: the weights if path is a folder, file or hub id that has them, else "
         "random")
      .one_of({"auto", "random", "weights"});
  refuse_quantised(fields);
}

std::vector<data::SourceOptions> EvaluationSection::held_out() const {
  std::vector<data::SourceOptions> list = sources;
  if (list.empty()) {
    list.emplace_back().path = path;
  }
  for (data::SourceOptions& source : list) {
    source.split = "valid";
    source.weight.reset();
    source.key = "data.evaluation: " + name;
  }
  return list;
}

void EvaluationSection::fields(Fields& fields) {
  fields(
      "name", name,
      "name of the set, whose losses are eval/NAME/loss in metrics.jsonl: letters, digits, . _ -")
      .required();
  fields("path", path,
         "file, folder or glob of examples; with objective pretrain a folder that `hocket data "
         "prepare` wrote: its held-out files, or all if none are");
  fields("sources", sources, "files of examples in place of path, as in data.sources");
}

DataSection DataSection::of(const EvaluationSection& set) const {
  DataSection section = *this;
  section.sources = set.held_out();
  section.valid_fraction = 0;
  return section;
}

void DataSection::fields(Fields& fields) {
  fields("name", name, "name of the text in reports");
  fields("files", files, "text files or globs (** recurses) that `hocket data prepare` reads");
  fields("dir", dir, "folder of the prepared tokens");
  fields("tokenizer", tokenizer,
         "tokenizer.json that `hocket data prepare` uses; training takes the one in data.dir");
  fields(
      "vocab_size", vocab_size,
      "tokens in the vocabulary of the tokenizer that `hocket data train-tokenizer` makes; 0: 4096")
      .min(0);
  fields("valid_fraction", valid_fraction,
         "share of the files that is held out, at least one file; of a single file, its end")
      .min(0)
      .max(0.9);
  fields("valid_files", valid_files,
         "files or globs that are held out, in place of a share of `files` (docs/data.md)");
  fields("evaluation", evaluation,
         "held-out sets with names, each with losses of its own, beside the data's held-out part "
         "(docs/outputs.md)");
  fields("split_special_tokens", split_special_tokens,
         "read special tokens that stand in the files, such as <s>, as text like any other; false: "
         "they are the tokens, as in a prompt (docs/tokenizers.md)");
  fields("sources", sources,
         "files of texts, chats, completions or preferences to fine-tune on, in place of `dir` "
         "(docs/fine-tuning-data.md)");
  fields(
      "train_on", train_on,
      "part of a chat that enters the loss: assistant, every message of the assistant (of a prompt "
      "and a completion the completion); last, the assistant's last one; all, every token");
  fields("packing", packing,
         "pack several whole examples, which don't see each other, into a row; false: one, and "
         "padding");
  fields("truncate", truncate,
         "treatment of an example longer than train.seq_len: keep_start cuts off its end, drop "
         "leaves it out, refuse ends with an error");
  fields("split_texts", split_texts,
         "split a text longer than train.seq_len into parts of that length, with truncate "
         "keep_start, so that nothing is lost; false: its end is cut off");
  fields("chat_template", chat_template,
         "file with a Jinja template for chats, in place of the model's");
}

void AdapterSection::fields(Fields& fields) {
  refuse_adapters(
      fields("type", type,
             "kind of adapter: none, every parameter is trained; lora, the model is frozen, and "
             "low-rank products beside its linear layers are trained (docs/adapters.md)")
          .one_of({"none", "lora"}));
  fields("path", path,
         "folder of an adapter (PEFT's), or of a run that trained one, to start from; its "
         "configuration replaces the keys below");
  fields("r", r, "rank of the products").min(1).max(kMaxRank);
  fields("alpha", alpha, "scale of the products: they are multiplied by alpha / r").min(0);
  fields("dropout", dropout, "probability of dropping an element of the products' inputs; 0: none")
      .min(0)
      .max(kMaxDropout);
  fields(
      "targets", targets,
      "modules with a product: endings of their names ([q_proj, v_proj]), one regular expression "
      "for whole names (regex:PATTERN), or all-linear: every linear layer but head, router and "
      "experts");
  fields(
      "target_parameters", target_parameters,
      "experts with products: endings of parameters' names, such as mlp.experts.gate_up_proj and "
      "mlp.experts.down_proj");
  fields("rank_pattern", rank_pattern,
         "ranks of single modules in place of r, by the ending of a module's name or a regular "
         "expression for it");
  fields("alpha_pattern", alpha_pattern,
         "alphas of single modules in place of alpha, by the same names");
  fields("modules_to_save", modules_to_save,
         "modules that are trained in full, with all that is in them, and saved with the adapter: "
         "endings of their names, as in PEFT also within a word (norm: every ..._layernorm, too; "
         "model.norm: the last norm alone)");
  fields("use_rslora", use_rslora,
         "scale by alpha / sqrt(r), in place of alpha / r (arXiv 2312.03732)");
  fields("layers", layers,
         "layers with products, from 0, for endings of names or all-linear; default: all");
  fields.refuse("use_dora", kNoDora);
  fields.refuse("use_qalora", kNoQalora);
  refuse_quantised(fields);
}

void TrainSection::fields(Fields& fields) {
  // One line per key: name, member, meaning for docs/config.md, bounds.
  fields("steps", steps,
         "optimizer steps; default: 1000, unless epochs, tokens or minutes give them")
      .min(1);
  fields("epochs", epochs,
         "passes over the data, in place of `steps`; the last step is full; 0: not used")
      .min(0)
      .max(1e6);
  fields("tokens", tokens, "tokens to train on, in place of `steps`; 0: not used")
      .min(0)
      .max(kMaxTrainTokens);
  fields("minutes", minutes,
         "minutes to train, in place of `steps`: the steps that fit, at first by the predicted "
         "step time, then by measured ones; the learning rate follows; 0: not used")
      .min(0)
      .max(1e6);
  fields("global_batch", global_batch, "sequences per step, over all ranks and micro-batches")
      .min(1);
  fields("seq_len", seq_len, "tokens per sequence").min(1).max(kMaxTokens);
  fields("lr", lr, "peak learning rate").min(0);
  fields("min_lr", min_lr,
         "learning rate at the end of the decay; default: a tenth of lr; one above lr "
         "counts as lr")
      .min(0);
  fields("schedule", schedule,
         "learning rate after the warm-up: constant; linear or cosine, to min_lr at the last step; "
         "wsd (warm-up, stable, decay), constant until the last decay_share of the steps "
         "(docs/optimizers.md)")
      .one_of({"constant", "linear", "cosine", "wsd"});
  fields("warmup_steps", warmup_steps, "steps of linear warm-up").min(0);
  fields("warmup_share", warmup_share,
         "warm-up as a share of all steps, rounded up, in place of warmup_steps")
      .min(0)
      .max(1);
  fields("decay_share", decay_share, "share of all steps that decay, rounded up, for schedule wsd")
      .min(0)
      .max(1);
  fields("decay", decay, "form of the decay to min_lr, for schedule wsd")
      .one_of({"linear", "cosine", "1-sqrt"});
  fields("max_grad_norm", max_grad_norm,
         "bound of the global gradient norm, to which larger ones are clipped; 0: no clipping")
      .min(0);
  fields("skip_grad_norm", skip_grad_norm,
         "global gradient norm above which a step is skipped: parameters and optimizer states stay "
         "as they are, on all ranks; 0: no step is")
      .min(0);
  fields("on_nonfinite", on_nonfinite,
         "treatment of a step whose gradient norm is not finite: stop ends the run; skip leaves "
         "the step out, up to nine in a row")
      .one_of({"stop", "skip"});
  fields("grad_dtype", grad_dtype,
         "type of parameters' gradients and of their sums over micro-batches and ranks, with dtype "
         "bf16 or f16: f32, or model, the parameters' type, to which every sum is rounded; moments "
         "and master weights are f32 either way")
      .one_of({"f32", "model"});
  fields("balance_coef", balance_coef,
         "coefficient of the load-balancing loss; default: the model's router_aux_loss_coef")
      .min(0);
  fields("dropout", dropout,
         "probability of dropping an element of the attention and MLP outputs "
         "(hidden_dropout); 0: none")
      .min(0)
      .max(kMaxDropout);
  fields("freeze", freeze,
         "globs of parameters' names (`hocket graph` lists them) that are not trained, such as "
         "[model.embed_tokens.*, \"*norm*\"]");
  fields("seed", seed, "seed of initialisation, data order and dropout").min(0);
  fields("eval_every", eval_every, "steps between validations; 0: only at the end").min(0);
  fields("eval_sequences", eval_sequences,
         "held-out sequences of each set per validation while training, spread evenly")
      .min(1);
  fields("final_eval_sequences", final_eval_sequences,
         "held-out sequences of the validation at the end; 0: all of them")
      .min(0);
  fields("save_every", save_every, "steps between checkpoints; 0: by time alone, and at the end")
      .min(0);
  fields("save_minutes", save_minutes,
         "most minutes between checkpoints, saved after a step; 0: by steps alone")
      .min(0)
      .max(1e6);
  fields("keep_last", keep_last, "checkpoints that are kept; 0: all").min(0);
  fields("keep_best", keep_best,
         "save the checkpoint of the evaluation with the lowest held-out loss, name it in "
         "output.dir/best.json, and do not remove it; with eval_every");
  fields("early_stopping", early_stopping, "end of the training by held-out loss; with eval_every");
  fields("best_by", best_by,
         "set of data.evaluation whose loss keep_best and early_stopping go by; default: the "
         "data's held-out part, without one the first set");
  fields("resume", resume,
         "continue from the newest checkpoint of output.dir, if there is one; false: "
         "start anew, in a folder without checkpoints");
}

void PreferenceSection::fields(Fields& fields) {
  fields("beta", beta, "weight of the distance to the reference: the larger, the closer it stays")
      .min(1e-6)
      .max(1e6);
  fields("loss_type", loss_type,
         "loss of dpo: sigmoid (DPO), sigmoid_norm (the same per token), ipo, or hinge; several: "
         "their sum")
      .one_of({"sigmoid", "sigmoid_norm", "ipo", "hinge"});
  fields("loss_weights", loss_weights, "weight of each loss, if there are several; default: 1");
  fields(
      "label_smoothing", label_smoothing,
      "probability that a preference is the wrong way round, for dpo with sigmoid and sigmoid_norm")
      .min(0)
      .max(0.499);
  fields("desirable_weight", desirable_weight, "weight of desirable answers, for kto").min(0);
  fields("undesirable_weight", undesirable_weight, "weight of undesirable answers, for kto").min(0);
  fields("reference", reference,
         "MODEL of the frozen reference, of the model's configuration; default: the weights that "
         "the training begins with, or under an adapter the model without it");
  fields(
      "precompute_ref_log_probs", precompute_ref_log_probs,
      "compute the reference's log-probabilities once, before the first step, and keep them in "
      "output.dir: the reference takes no memory in training, and no time after the first epoch");
  fields("answers_per_sequence", answers_per_sequence,
         "most pairs (dpo) or answers (kto) that are packed into one sequence")
      .min(1)
      .max(1 << 16);
}

std::span<const char* const> names_of(Objective) {
  static constexpr const char* kNames[] = {"pretrain", "sft", "dpo", "kto", "rl"};
  return kNames;
}

int64_t TrainSection::num_steps() const {
  constexpr int64_t kSteps = 1000;
  if (minutes > 0 || epochs > 0) return 0;
  if (tokens > 0) return ceil_div(tokens, global_batch * seq_len);
  return steps.value_or(kSteps);
}

void EarlyStoppingSection::fields(Fields& fields) {
  fields("patience", patience,
         "evaluations in a row whose loss is not below the lowest one, after which the training "
         "ends; 0: it does not")
      .min(0);
  fields("min_delta", min_delta,
         "margin by which a loss must lie below the lowest one to count as better")
      .min(0);
}

void OptimizerSection::fields(Fields& fields) {
  fields("name", name,
         "update rule; muon updates the matrices of the blocks, and adamw all else "
         "(docs/optimizers.md)")
      .one_of(autodiff::optimizers())
      .formerly("train.optimizer");
  fields("weight_decay", weight_decay, "weight decay of matrices; vectors are not decayed")
      .min(0)
      .formerly("train.weight_decay");
  fields("beta1", beta1, "decay rate of adamw's first moment; of sgd the default of momentum")
      .min(0)
      .max(kMaxBeta)
      .formerly("train.beta1");
  fields("beta2", beta2, "decay rate of adamw's second moment")
      .min(0)
      .max(kMaxBeta)
      .formerly("train.beta2");
  fields("eps", eps,
         "number that adamw adds to the root of the second moment, against division by zero")
      .min(kLeastEps)
      .formerly("train.eps");
  fields("momentum", momentum, "momentum of sgd (default: beta1) and of muon (default: 0.95)")
      .min(0)
      .max(kMaxBeta);
  fields("nesterov", nesterov, "use Nesterov's momentum; default: true for muon, false for sgd");
  fields("ns_steps", ns_steps, "Newton-Schulz steps of every update, for muon").min(1).max(99);
  fields(
      "adjust_lr", adjust_lr,
      "factor of muon on the learning rate of a matrix of R rows and C columns: match_rms_adamw, "
      "0.2 sqrt(max(R, C)), for which a learning rate of adamw fits; original, sqrt(max(1, R / C))")
      .one_of(autodiff::lr_adjustments());
  fields("groups", groups,
         "parameters with settings of their own; one that matches several has those of the first");
}

void OptimizerGroup::fields(Fields& fields) {
  fields("match", match,
         "globs of parameters' names (`hocket graph` lists them), such as [\"*.mlp.*\"]; one that "
         "matches no trained parameter is refused")
      .required();
  fields("lr", lr, "peak learning rate, in place of train.lr").min(0);
  fields("lr_scale", lr_scale, "factor on train.lr, in place of lr").min(0);
  fields("weight_decay", weight_decay, "weight decay of these parameters, vectors too").min(0);
  fields("optimizer", optimizer, "adamw or muon for these parameters, with optimizer.name muon")
      .one_of({"adamw", "muon"});
}

void PlanSection::fields(Fields& fields) {
  fields("ranks", ranks,
         "form of ranks: local, threads of this process; gloo, processes, each started by "
         "a launcher (hocket launch, torchrun, mpirun, srun); nccl, the same with a GPU "
         "each, through which collectives go; auto: if a launcher started several, nccl "
         "where PyTorch has CUDA and there are GPUs for all, else gloo; else local")
      .one_of({"auto", "local", "gloo", "nccl"});
  fields("collectives", collectives,
         "transport of the collectives that all_reduce, reduce_scatter and all_gather do not write "
         "as messages, with ranks as processes: own, which has the bits of local ranks; c10d, by "
         "its groups, in their order of sums; auto: c10d with plan.ranks nccl, else own")
      .one_of({"auto", "own", "c10d"});
  Plan::fields(fields);
  fields("passes", passes, "passes to run, in this order (`hocket graph --list-passes`)");
  pass_options.fields(fields);
  fields("timeout_s", timeout_s, "seconds after which a wait for another rank or lane fails")
      .min(0.1)
      .max(1e6);
}

void ClusterSection::fields(Fields& fields) {
  fields("file", file,
         "cluster file for simulate, and for check, which takes the memory of its devices; "
         "default: this machine");
  fields("profile", profile,
         "timings written by `hocket profile`, which are only read; without, or where they do not "
         "have every task, `train` times them itself, for output.dir/profile.json");
  fields(
      "memory_budget", memory_budget,
      "memory per rank that check, simulate and plan compare with; where tasks execute, default: "
      "this machine's free memory, shared")
      .unit(Unit::bytes)
      .min(1)
      .max(kMaxMemory);
}

void EmulateSection::fields(Fields& fields) {
  fields("cluster", cluster,
         "cluster file: every task of a training step takes its time on a device of that cluster "
         "(docs/cluster-in-a-box.md)");
  fields("profile", profile,
         "timings of that device, written by `hocket profile`; default: the constants of the file");
  fields("set", set,
         "changes of keys, \"KEY=VALUE\", e.g. [train.seq_len=4096], that make the emulated run of "
         "this one: its durations, and its bytes in every message between processes");
}

void OutputSection::fields(Fields& fields) {
  fields("dir", dir, "folder of checkpoints, metrics, traces and the report");
  fields("trace", trace, "write the trace of one step");
  fields("report", report, "write report.html at the end");
  fields("tensorboard", tensorboard,
         "write the numbers of metrics.jsonl as events of TensorBoard, beside it");
  fields("baselines", baselines,
         "references for the held-out loss, computed once per data: all (xz -9e, a second "
         "per MB, and a trigram model), trigram, or none; auto: all if there is a report, "
         "else none")
      .one_of({"auto", "all", "trigram", "none"});
  fields("sample_prompt", sample_prompt,
         "prompt of the samples before the first step and at the end; default: the prompt of the "
         "first held-out example; of texts the first lines of a held-out file, for a sample at the "
         "end alone");
  fields("sample_tokens", sample_tokens, "most tokens of a sample; 0: no samples")
      .min(0)
      .max(kMaxTokens);
}

void RunConfig::fields(Fields& fields) {
  fields(
      "objective", objective,
      "objective of the training: pretrain, on texts (data.dir); sft, on the answers of examples "
      "(data.sources); dpo, on pairs of a chosen and a rejected answer; kto, on answers that are "
      "desirable or not; rl, on rewards of the model's own answers (`hocket rl`)");
  fields("model", model, "model to train");
  fields("data", data, "training and held-out data");
  refuse_adapters(
      fields("adapter", adapter, "small addition that is trained in place of the model"));
  fields("train", train,
         "length, batch, learning rate, evaluations and checkpoints of the training");
  fields("preference", preference, "losses and reference, for objectives dpo and kto");
  fields("rl", rl, "samples, rewards and loss, for objective rl");
  fields("optimizer", optimizer, "update of parameters by their gradients");
  fields("plan", plan, "parallelism over ranks");
  fields("cluster", cluster, "hardware of the run");
  fields("emulate", emulate, "emulated device, for more ranks than cores").formerly("timed");
  fields("output", output, "folder and contents of the run's results");
  refuse_quantised(fields);
}

}  // namespace hocket::engine
