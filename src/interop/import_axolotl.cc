// SPDX-License-Identifier: Apache-2.0
// Implements: import_axolotl (foreign.h). Names and defaults are those of axolotl/utils/schemas.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
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

class AxolotlImport : public TreeImport {
 public:
  AxolotlImport(const std::string& text, const std::string& name, const RanksOfFile& ranks,
                const Beside& beside)
      : TreeImport(Settings(parse_config_tree(text, name), name, "Axolotl", axolotl_keys()), name,
                   ranks, beside) {}

  Imported run() {
    imported_.model_path = file_.text("base_model", "");
    read_objective();
    read_data();
    read_mesh();
    read_sharding();
    read_types();
    read_adapter();
    read_length();
    read_optimizer();
    read_intervals();
    read_best();
    read_plugins();
    return finish();
  }

 private:
  void read_objective() {
    const std::string method = file_.text("rl", "");
    const bool texts = file_.has("pretraining_dataset");
    if (method.empty()) {
      set("objective", std::string(texts ? "pretrain" : "sft"));
      return;
    }
    if (method != "dpo" && method != "ipo" && method != "kto") {
      file_.refuse("rl", "dpo, ipo or kto");
    }
    set("objective", std::string(method == "kto" ? "kto" : "dpo"));
    set("preference.beta", file_.number("dpo_beta", file_.number("rl_beta", 0.1)));
    if (const std::vector<std::string> losses = losses_of(method); !losses.empty()) {
      set("preference.loss_type", fmt::format("[{}]", join(losses, ", ")));
    }
    if (file_.has("dpo_loss_weights")) {
      set("preference.loss_weights",
          fmt::format("[{}]", join(file_.texts("dpo_loss_weights"), ", ")));
    }
    set("preference.label_smoothing", file_.number("dpo_label_smoothing", 0));
    set("preference.desirable_weight", file_.number("kto_desirable_weight", 1));
    set("preference.undesirable_weight", file_.number("kto_undesirable_weight", 1));
    set("preference.precompute_ref_log_probs", file_.truth("precompute_ref_log_probs", false));
  }

  /// Returns the losses of pairs; none: the default. With dpo_norm_loss they compare means over an
  /// answer's tokens, as ipo does anyway.
  std::vector<std::string> losses_of(const std::string& method) {
    std::vector<std::string> losses;
    if (method == "ipo") {
      losses = {"ipo"};
    } else if (method == "dpo") {
      losses = file_.texts("dpo_loss_type");
    }
    if (method == "kto" || !file_.truth("dpo_norm_loss", false)) return losses;
    if (losses.empty()) {
      losses = {"sigmoid"};
    }
    for (std::string& loss : losses) {
      if (loss == "sigmoid") {
        loss = "sigmoid_norm";
      } else if (loss != "ipo") {
        file_.refuse("dpo_norm_loss",
                     "false beside dpo_loss_type " + loss + ": per token are sigmoid and ipo here");
      }
    }
    return losses;
  }

  void read_data() {
    std::string sources;
    for (int64_t i = 0; file_.has(fmt::format("datasets.{}.path", i)); ++i) {
      sources += (sources.empty() ? "" : ", ") + source(fmt::format("datasets.{}", i), "train");
    }
    const bool has_tests = file_.has("test_datasets.0.path");
    for (int64_t i = 0; file_.has(fmt::format("test_datasets.{}.path", i)); ++i) {
      sources +=
          (sources.empty() ? "" : ", ") + source(fmt::format("test_datasets.{}", i), "valid");
    }
    if (!sources.empty()) {
      set("data.sources", "[" + sources + "]");
    }
    if (file_.has("pretraining_dataset")) {
      file_.use_all("pretraining_dataset");
      note("texts are prepared by `hocket data prepare` here: set data.files");
    }
    if (!has_tests) {
      const double share = file_.number("val_set_size", 0);
      if (share >= 1)
        file_.refuse("val_set_size", "a share below 1: examples are not counted here");
      set("data.valid_fraction", share);
    }
    note_template();
    const std::string model = file_.text("base_model", "");
    if (file_.text("tokenizer_config", model) != model) {
      if (!beside_.has_model()) {
        file_.refuse("tokenizer_config",
                     "base_model, " + model + "; try --set model.path=MODEL, a folder with both");
      }
      file_.leave("tokenizer_config", "the tokenizer is that of the model in --set");
    }
    if (!file_.truth("shuffle_merged_datasets", true)) {
      note("shuffle_merged_datasets is false: rows of an epoch are shuffled here");
    }
    set("data.packing", file_.truth("sample_packing", false));
    set("data.train_on", std::string(file_.truth("train_on_inputs", false) ? "all" : "assistant"));
    const std::string longer =
        file_.one_of("excess_length_strategy", "drop", {"drop", "truncate", "raise"});
    // Long texts become parts there, before an example can be too long.
    const bool keeps = longer == "truncate" || (texts_ > 0 && others_ == 0);
    if (!keeps && texts_ > 0) {
      note("data.truncate is of texts, too: those longer than train.seq_len do not become parts");
    }
    set("data.truncate", std::string(keeps ? "keep_start" : longer == "drop" ? "drop" : "refuse"));
  }

  void note_template() {
    const std::string name = file_.text("chat_template", "");
    const bool of_model = name.empty() || name.starts_with("tokenizer_default");
    if (!of_model || file_.has("chat_template_jinja")) {
      note("chats have the template of the model: set data.chat_template to a file with another");
    }
  }

  /// Returns the format of an example's answers that pairs or labels judge. Other types write the
  /// text of a template around columns of their own.
  std::string format_of_answers(const std::string& at, const std::string& type, bool pairs) {
    if (pairs && (type == "chat_template" || type == "chat_template.default")) return "chat";
    const bool is_read =
        type.empty() ||
        (pairs && (type == "chat_template.argilla_chat" || type.starts_with("passthrough")));
    if (!is_read) {
      file_.refuse(at + ".type", pairs ? "chat_template, passthrough, or names of columns"
                                       : "names of columns (field_prompt, field_completion)");
    }
    return pairs ? "preference" : "unpaired";
  }

  std::string format_of(const std::string& at, const std::string& whole, bool is_own) {
    const std::string objective = imported_.keys["objective"];
    if (objective == "dpo" || objective == "kto") {
      return format_of_answers(at, whole, objective == "dpo");
    }
    const std::map<std::string, std::string> kFormats = {
        {"completion", "text"},   {"chat_template", "chat"}, {"alpaca", "alpaca"},
        {"sharegpt", "sharegpt"}, {"input_output", ""},      {"", "auto"}};
    // "alpaca:chat" and "chat_template.default" are kinds of one type.
    const auto found = kFormats.find(whole.substr(0, whole.find_first_of(":.")));
    if (found == kFormats.end() || found->second.empty()) {
      file_.refuse(at + ".type", "completion, chat_template, alpaca or sharegpt");
    }
    if (is_own || found->second == "alpaca") {
      note(
          fmt::format("{}.type: instructions become turns of a chat, without headings or texts "
                      "around them",
                      at));
    }
    return is_own ? "alpaca" : found->second;
  }

  /// One source as YAML. Types of prompts become formats of examples.
  std::string source(const std::string& at, const std::string& part) {
    const ConfigNode* given = file_.node(at + ".type");
    const bool is_own = given != nullptr && given->kind == ConfigNode::Kind::map;
    const std::string format = format_of(at, is_own ? "" : file_.text(at + ".type", ""), is_own);
    ++(format == "text" ? texts_ : others_);
    const std::vector<std::string> trained = file_.texts(at + ".roles_to_train");
    if (!trained.empty() && trained != std::vector<std::string>{"assistant"} &&
        trained != std::vector<std::string>{"gpt"}) {
      file_.refuse(at + ".roles_to_train", "[assistant], or train_on_inputs: true");
    }
    std::string text = fmt::format("path: {}, format: {}", quoted(path_of(at)), format);
    if (part == "valid" || file_.has("test_datasets.0.path")) {
      text += ", split: " + part;
    }
    text += columns(at, format, is_own) + tags(at);
    return "{" + text + "}";
  }
  std::string path_of(const std::string& at) {
    const std::vector<std::string> files = file_.texts(at + ".data_files");
    if (files.size() > 1) {
      file_.refuse(at + ".data_files", "one file, or a glob");
    }
    const std::string path = files.empty() ? file_.text(at + ".path", "") : files[0];
    if (path.find('.') == path.npos && std::count(path.begin(), path.end(), '/') == 1) {
      note(fmt::format("{} is {}: data of the hub has to be a file here; set data.sources",
                       at + ".path", path));
    }
    return path;
  }
  static std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char letter : text) {
      out += letter == '"' || letter == '\\' ? std::string("\\") + letter : std::string(1, letter);
    }
    return out + "\"";
  }

  std::string columns(const std::string& at, const std::string& format, bool is_own) {
    std::string text;
    const auto add = [&](const std::string& ours, const std::string& path) {
      const std::string theirs = file_.text(path, ours);
      if (theirs != ours) {
        text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", ours, quoted(theirs));
      }
    };
    if (is_own) {
      add_own_columns(at + ".type.", format, add);
    } else if (format == "text") {
      add("text", at + ".field");
    } else if (format == "chat" || format == "sharegpt") {
      add("messages", at + ".field_messages");
      add("tools", at + ".field_tools");
    }
    if (!is_own && imported_.keys["objective"] == "dpo") {
      add("chosen", at + ".field_chosen");
      add("rejected", at + ".field_rejected");
    }
    return text.empty() ? "" : ", columns: {" + text + "}";
  }
  /// Adds the columns that a type names itself, `in` which its keys are.
  template <typename Add>
  void add_own_columns(const std::string& in, const std::string& format, const Add& add) {
    std::vector<std::string> names = {"instruction", "input", "output", "system"};
    if (format == "preference") {
      names = {"prompt", "chosen", "rejected"};
    } else if (format == "unpaired") {
      names = {"prompt", "completion", "label"};
    }
    for (const std::string& name : names) {
      add(name, in + "field_" + name);
      if (format == "alpaca") continue;
      const std::string path = in + name + "_format", plain = "{" + name + "}";
      if (const std::string given = file_.text(path, ""); !given.empty() && given != plain) {
        file_.refuse(path, quoted(plain) + ": answers are read as they are");
      }
    }
  }
  std::string tags(const std::string& at) {
    const std::string mappings = at + ".message_property_mappings";
    std::string text;
    for (const auto& [tag, path, former] :
         {std::tuple{"role_tag", mappings + ".role", at + ".message_field_role"},
          {"content_tag", mappings + ".content", at + ".message_field_content"}}) {
      const std::string name = file_.text(path, file_.text(former, ""));
      if (!name.empty() && name != "role" && name != "content") {
        text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", tag, quoted(name));
      }
    }
    for (const char* role : {"user", "assistant", "system"}) {
      const std::vector<std::string> names = file_.texts(fmt::format("{}.roles.{}", at, role));
      if (names.size() == 1 && names[0] != role) {
        text += fmt::format("{}{}_tag: {}", text.empty() ? "" : ", ", role, quoted(names[0]));
      }
    }
    return text.empty() ? "" : ", tags: {" + text + "}";
  }

  void read_mesh() {
    tp_ = file_.at_least(1, "tensor_parallel_size", 1);
    const char* const context =
        file_.has("context_parallel_size") ? "context_parallel_size" : "sequence_parallel_degree";
    cp_ = file_.at_least(1, context, 1);
    const int64_t ep = file_.at_least(1, "expert_parallel_size", 1);
    const int64_t shard = file_.at_least(1, "dp_shard_size", 1);
    const int64_t replicas = file_.at_least(1, "dp_replicate_size", 1);
    const bool says = file_.has("dp_shard_size") || file_.has("dp_replicate_size");
    set_mesh(says ? product_at_most({shard, replicas, tp_, cp_}) : 0);
    if (ep > 1) {
      set("plan.ep", ep);
    }
    if (cp_ > 1) {
      read_context();
    }
    const int64_t micro = file_.at_least(1, "micro_batch_size", 1);
    const int64_t rounds = file_.at_least(1, "gradient_accumulation_steps", 1);
    set("plan.micro_batch", micro);
    expect_one_sequence(context, "micro_batch_size");
    if (file_.has("batch_size") &&
        file_.integer("batch_size", 0) != product_at_most({micro, rounds})) {
      file_.refuse("batch_size", fmt::format("{}, micro_batch_size by gradient_accumulation_steps",
                                             product_at_most({micro, rounds})));
    }
    set("train.global_batch", product_at_most({micro, rounds, dp_}));
  }

  void read_context() {
    const bool packs = file_.truth("sample_packing", false);
    const std::string ring =
        file_.one_of("ring_attn_func", packs ? "varlen_llama3" : "batch_ring",
                     {"varlen_llama3", "batch_ring", "batch_zigzag", "varlen_zigzag"});
    set("plan.cp_comm_type", std::string(ring == "varlen_llama3" ? "all_gather" : "p2p"));
    if (ring.ends_with("zigzag")) {
      set("plan.cp_order", std::string("zigzag"));
    }
  }

  /// Recognizes DeepSpeed's files by the names of those that Axolotl ships.
  void read_sharding() {
    const int64_t ranks = product_at_most({dp_, cp_});
    if (file_.has("deepspeed")) {
      read_deepspeed(ranks);
      return;
    }
    const std::vector<std::string> words = file_.texts("fsdp");
    const bool shards = file_.has("fsdp_config") || !words.empty() || file_.has("dp_shard_size");
    if (!shards) return;
    for (const std::string& word : words) {
      if (word == "offload") {
        file_.refuse("fsdp", "no offload: nothing is offloaded here");
      }
    }
    const std::string in = "fsdp_config.";
    const auto either = [&](const std::string& key) {
      return file_.has(in + key) ? in + key : in + "fsdp_" + key;
    };
    if (file_.truth(either("offload_params"), false)) {
      file_.refuse(either("offload_params"), "false: nothing is offloaded here");
    }
    const std::string strategy =
        file_.one_of(either("sharding_strategy"), "FULL_SHARD",
                     {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"});
    if (file_.truth(either("activation_checkpointing"), false)) {
      set("plan.recompute", std::string("full"));
    }
    if (strategy == "NO_SHARD" || ranks == 1) return;
    const int64_t replicas = file_.at_least(1, "dp_replicate_size", 1);
    if (strategy == "HYBRID_SHARD" && replicas == 1) {
      file_.need_key(either("sharding_strategy"), "plan.shard.group",
                     "the file does not say how many ranks a group has", beside_);
    }
    const bool grouped = replicas > 1 || strategy == "HYBRID_SHARD";
    const std::string among = grouped ? "group" : "all";
    set("plan.shard.params", among);
    set("plan.shard.grads", among);
    if (replicas > 1) {
      set("plan.shard.group", ranks / replicas);
    }
    if (strategy == "SHARD_GRAD_OP" || !file_.truth(either("reshard_after_forward"), true)) {
      set("plan.shard.reshard_after_forward", false);
    }
  }

  void read_deepspeed(int64_t ranks) {
    const std::string path = file_.text("deepspeed", "");
    const std::string file = lower_of(path.substr(path.rfind('/') + 1));
    if (file.find("offload") != file.npos) {
      file_.refuse("deepspeed", "a file without offload: nothing is offloaded here");
    }
    const size_t zero = file.find("zero");
    const char stage = zero == file.npos || zero + 4 >= file.size() ? '0' : file[zero + 4];
    if (stage < '1' || stage > '3') {
      file_.need_key("deepspeed", "plan.shard.params",
                     "the stage is in that file, which `--from deepspeed` reads", beside_);
      return;
    }
    note(fmt::format("ZeRO stage {}, by the name of {}: `--from deepspeed` reads that file", stage,
                     path));
    if (ranks == 1) return;
    set(stage == '1' ? "plan.shard.optimizer" : "plan.shard.grads", std::string("all"));
    if (stage == '3') {
      set("plan.shard.params", std::string("all"));
    }
  }

  void read_types() {
    const auto is_on = [&](const std::string& path) {
      const std::string given = lower_of(file_.text(path, "false"));
      if (given == "auto" || given == "full") return true;
      return file_.truth(path, false);
    };
    const bool half = is_on("fp16") || is_on("float16");
    if (is_on("bf16") || is_on("bfloat16") || half) {
      set("model.dtype", std::string("bf16"));
    }
    if (half) {
      note("model.dtype is bf16, for fp16: equal bytes, without loss scaling");
    }
    if (file_.truth("fp8", false)) {
      set("model.dtype", std::string("bf16"));
      set("model.float8", true);
    }
    const std::string repeats = lower_of(file_.text("gradient_checkpointing", "false"));
    if (repeats == "offload" || repeats == "offload_disk") {
      file_.refuse("gradient_checkpointing", "true or false: nothing is offloaded here");
    }
    if (repeats == "unsloth" || file_.truth("gradient_checkpointing", false)) {
      set("plan.recompute", std::string("full"));
    }
  }

  void read_adapter() {
    const std::string adapter = file_.text("adapter", "");
    if (adapter.empty()) {
      for (const char* path :
           {"lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear",
            "lora_modules_to_save", "peft_init_lora_weights"}) {
        file_.leave(path, "adapter is not given");
      }
      return;
    }
    if (adapter != "lora") {
      file_.refuse("adapter", adapter == "qlora"
                                  ? "lora: QLoRA is not supported, weights are not quantised here"
                                  : "lora");
    }
    set("adapter.type", adapter);
    read_initial_matrices();
    if (file_.has("lora_model_dir")) {
      set("adapter.path", file_.text("lora_model_dir", ""));
    }
    set("adapter.r", file_.at_least(1, "lora_r", 8));
    set("adapter.alpha", file_.number("lora_alpha", 16));
    set("adapter.dropout", file_.number("lora_dropout", 0));
    if (file_.truth("lora_target_linear", false)) {
      set("adapter.targets", std::string("[all-linear]"));
    } else if (file_.has("lora_target_modules")) {
      const bool pattern = file_.node("lora_target_modules")->kind == ConfigNode::Kind::scalar;
      const std::vector<std::string> names = file_.texts("lora_target_modules");
      set("adapter.targets", pattern && names[0] != "all-linear"
                                 ? "[" + quoted("regex:" + names[0]) + "]"
                                 : fmt::format("[{}]", join(names, ", ")));
    }
    for (const auto& [theirs, ours] : {std::pair{"lora_modules_to_save", "adapter.modules_to_save"},
                                       {"lora_target_parameters", "adapter.target_parameters"},
                                       {"peft_layers_to_transform", "adapter.layers"}}) {
      if (file_.has(theirs)) {
        set(ours, fmt::format("[{}]", join(file_.texts(theirs), ", ")));
      }
    }
    for (const auto& [theirs, ours] : {std::pair{"lora_rank_pattern", "adapter.rank_pattern"},
                                       {"lora_alpha_pattern", "adapter.alpha_pattern"}}) {
      if (file_.has(theirs)) {
        set(ours, text_of(*file_.node(theirs)));
      }
    }
    set("adapter.use_rslora", file_.truth("peft_use_rslora", false));
  }

  /// Refuses first matrices that belong to a changed base.
  void read_initial_matrices() {
    const std::string init = lower_of(file_.text("peft_init_lora_weights", "true"));
    if (init == "true") return;
    if (init != "gaussian") {
      file_.refuse("peft_init_lora_weights",
                   "true or gaussian: others change the base or the start");
    }
    note("peft_init_lora_weights is gaussian: A begins as U(-1/sqrt(in), 1/sqrt(in)) here");
  }

  void read_length() {
    const int64_t length = file_.at_least(1, "sequence_len", 512);
    const bool has_pairs = imported_.keys["objective"] == "dpo";
    set("train.seq_len", has_pairs ? product_at_most({2, length}) : length);
    if (has_pairs) {
      note("train.seq_len is twice sequence_len: both answers of a pair lie in one sequence here");
    }
    if (file_.has("max_steps")) {
      set("train.steps", file_.at_least(1, "max_steps", 1));
      file_.leave("num_epochs", "max_steps says how many steps there are");
    } else {
      set("train.epochs", file_.number("num_epochs", 1));
    }
    set("train.seed", file_.integer("seed", 42));
    if (file_.has("output_dir")) {
      set("output.dir", file_.text("output_dir", ""));
    }
    if (file_.truth("use_tensorboard", false)) {
      set("output.tensorboard", true);
    }
  }

  void read_optimizer() {
    const double lr = file_.number("learning_rate", 2e-4);
    set("train.lr", lr);
    const std::string type = file_.text("optimizer", "adamw_torch_fused");
    if (type.starts_with("adamw_torch") || type == "adamw_hf" || type == "adamw_apex_fused") {
      set("optimizer.name", std::string("adamw"));
    } else if (type == "muon" || type == "sgd") {
      set("optimizer.name", type);
    } else {
      const bool small = type.find("8bit") != type.npos || type.find("4bit") != type.npos;
      file_.need_key("optimizer", "optimizer.name",
                     small ? "states of the optimizer are f32 here"
                           : "optimizers are adamw, muon and sgd here",
                     beside_);
    }
    set("optimizer.beta1", file_.number("adam_beta1", 0.9));
    set("optimizer.beta2", file_.number("adam_beta2", 0.999));
    set("optimizer.eps", file_.number("adam_epsilon", 1e-8));
    set("optimizer.weight_decay", file_.number("weight_decay", 0));
    set("train.max_grad_norm", file_.number("max_grad_norm", 1));
    read_schedule(lr);
  }

  void read_schedule(double lr) {
    const std::string schedule = file_.one_of(
        "lr_scheduler", "cosine",
        {"cosine", "linear", "constant", "constant_with_warmup", "cosine_with_min_lr"});
    const std::string form = schedule.substr(0, schedule.find('_'));
    set("train.schedule", form);
    set("train.min_lr", lr * read_min_ratio(schedule));
    read_min_lr(schedule, lr);
    if (file_.has("warmup_ratio")) {
      set("train.warmup_share", file_.number("warmup_ratio", 0));
      if (file_.has("warmup_steps")) {
        file_.refuse("warmup_steps", "none beside warmup_ratio");
      }
    } else {
      set("train.warmup_steps", file_.at_least(0, "warmup_steps", 0));
    }
  }

  /// Returns the last learning rate over the first. The key for it is Axolotl's schedule of
  /// cosines alone: other schedules are transformers' there, which do not read it.
  double read_min_ratio(const std::string& schedule) {
    constexpr const char* kKey = "cosine_min_lr_ratio";
    if (schedule != "cosine") {
      if (file_.has(kKey)) {
        file_.leave(kKey, "Axolotl reads it with lr_scheduler cosine alone");
      }
      return schedule.starts_with("constant") ? 1 : 0;
    }
    const double ratio = file_.number(kKey, 0);
    if (!(ratio >= 0 && ratio <= 1)) {
      file_.refuse(kKey, "0 to 1");
    }
    return ratio;
  }

  /// Reads the argument of cosine_with_min_lr. Throws Error unless it is one of two, as
  /// transformers does, and for one of another schedule.
  void read_min_lr(const std::string& schedule, double lr) {
    const std::string rate = "lr_scheduler_kwargs.min_lr", share = rate + "_rate";
    if (schedule == "cosine_with_min_lr") {
      if (file_.has(rate) == file_.has(share)) {
        file_.refuse("lr_scheduler",
                     "either min_lr or min_lr_rate in lr_scheduler_kwargs beside it");
      }
      set("train.min_lr", file_.number(rate, lr * file_.number(share, 0)));
      return;
    }
    for (const std::string& path : {rate, share}) {
      if (file_.has(path)) {
        file_.refuse(path, "none with lr_scheduler " + schedule + "; try cosine_with_min_lr");
      }
    }
  }

  void read_intervals() {
    for (const auto& [theirs, ours] :
         {std::pair{"eval_steps", "train.eval_every"}, {"save_steps", "train.save_every"}}) {
      if (!file_.has(theirs)) continue;
      const double every = file_.number(theirs, 0);
      if (every > 0 && every < 1) {
        file_.leave(theirs, "it is a share of all steps; set " + std::string(ours) + " to steps");
      } else {
        set(ours, file_.at_least(0, theirs, 0));
      }
    }
    if (file_.has("save_total_limit")) {
      set("train.keep_last", file_.at_least(0, "save_total_limit", 2));
    }
    if (file_.has("early_stopping_patience")) {
      set("train.early_stopping.patience", file_.at_least(0, "early_stopping_patience", 0));
    }
  }

  void read_best() {
    const bool keeps = file_.truth("load_best_model_at_end", false);
    if (keeps) {
      set("train.keep_best", true);
      note("the best checkpoint is named in output.dir/best.json; the last one is kept, too");
    }
    if (keeps || file_.has("early_stopping_patience")) {
      file_.one_of("metric_for_best_model", "loss", {"loss", "eval_loss"});
      if (file_.truth("greater_is_better", false)) {
        file_.refuse("greater_is_better", "false: the best loss is the lowest");
      }
    }
  }

  /// Leaves out plugins of kernels, measurements and logs. Others change the training.
  void read_plugins() {
    const std::string package = "axolotl.integrations.";
    const std::set<std::string> kinds = {"cut_cross_entropy", "liger",   "kernels",
                                         "expert_parallel",   "lm_eval", "swanlab"};
    for (const std::string& plugin : file_.texts("plugins")) {
      const std::string kind =
          plugin.starts_with(package) ? split(plugin.substr(package.size()), '.')[0] : "";
      if (kinds.count(kind) == 0) {
        file_.refuse("plugins", "none but those of " + join({kinds.begin(), kinds.end()}, ", ") +
                                    ": others make another training");
      }
    }
    file_.leave("plugins", "they change kernels, measurements and logs alone");
  }

  int64_t texts_ = 0, others_ = 0;  ///< sources of plain texts, and others
};

}  // namespace

Imported import_axolotl(const std::string& text, const std::string& name, const RanksOfFile& ranks,
                        const Beside& beside) {
  return AxolotlImport(text, name, ranks, beside).run();
}

}  // namespace hocket::interop
