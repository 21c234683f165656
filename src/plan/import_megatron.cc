// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's command line as a run. Names and defaults are those of its
// megatron/training/arguments.py.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/math.h"
#include "base/text.h"
#include "plan/foreign.h"
#include "plan/shell.h"

namespace hocket::plan {

namespace {

/// The arguments of a script by flag, each with its words, and what the launcher was told.
class Arguments {
 public:
  Arguments(const std::string& text, const std::string& name) : name_(name) {
    // Behind the .py file of a command stand the arguments of the trainer, in front of it those of
    // its launcher; a file without such a command only assigns them.
    const ShellScript script = read_shell(text, name);
    notes_ = script.notes;
    bool found = false;
    for (const std::vector<ShellWord>& command : script.commands) {
      const auto program = std::find_if(command.begin(), command.end(), [](const ShellWord& word) {
        return word.text.ends_with(".py");
      });
      if (program == command.end()) continue;
      if (found) {
        fail(name, "line {}: a second command with {}; expected one", program->line, program->text);
      }
      found = true;
      collect({command.begin(), program}, &launcher_);
      collect({program + 1, command.end()}, &flags_);
    }
    if (!found) {
      collect(script.assigned, &flags_);
    }
    if (flags_.empty()) {
      fail(name,
           "has no arguments of Megatron-LM; expected a command with pretrain_gpt.py and arguments "
           "such as --num-layers 32 behind it, or assignments of them");
    }
  }

  bool has(const std::string& flag) { return find(flag) != nullptr; }
  /// The one word of a flag; empty if it is not there.
  std::string text(const std::string& flag) {
    const std::vector<std::string>* words = find(flag);
    if (!words) return "";
    if (words->size() != 1) {
      fail(name_, "{} has {}; expected one", flag, counted(std::ssize(*words), "value"));
    }
    return words->front();
  }
  int64_t integer(const std::string& flag, int64_t otherwise) {
    if (!has(flag)) return otherwise;
    int64_t value = 0;
    if (!parse_int(text(flag), &value)) {
      fail(name_, "{} is {}; expected an integer, written out or assigned in this file", flag,
           quote(text(flag)));
    }
    return value;
  }
  double number(const std::string& flag, double otherwise) {
    if (!has(flag)) return otherwise;
    double value = 0;
    if (!parse_double(text(flag), &value)) {
      fail(name_, "{} is {}; expected a number, written out or assigned in this file", flag,
           quote(text(flag)));
    }
    return value;
  }
  int64_t launcher(const std::string& flag, int64_t otherwise) const {
    for (const auto& [key, words] : launcher_) {
      std::string given = key;
      std::replace(given.begin(), given.end(), '_', '-');
      int64_t value = 0;
      if (given == flag && words.size() >= 1 && parse_int(words[0], &value)) return value;
    }
    return otherwise;
  }
  /// Says why a flag is left aside, if it is there.
  void leave(const std::string& flag, const std::string& why) { reasons_[flag] = why; }
  /// Every flag that nobody asked for.
  std::vector<std::string> ignored() const {
    std::vector<std::string> lines;
    for (const auto& [flag, words] : flags_) {
      const auto reason = reasons_.find(flag);
      if (reason == reasons_.end() && asked_.count(flag) > 0) continue;
      lines.push_back(flag + (words.empty() ? "" : " " + join(words, " ")));
      if (reason != reasons_.end()) {
        lines.back() += ": " + reason->second;
      }
    }
    return lines;
  }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  using Flags = std::vector<std::pair<std::string, std::vector<std::string>>>;

  static void collect(const std::vector<ShellWord>& words, Flags* flags) {
    for (const ShellWord& word : words) {
      const bool flag = word.text.starts_with("--") && word.text.size() > 2;
      if (flag) {
        const size_t equal = word.text.find('=');
        flags->push_back({word.text.substr(0, equal), {}});
        if (equal != std::string::npos) {
          flags->back().second.push_back(word.text.substr(equal + 1));
        }
      } else if (!flags->empty()) {
        flags->back().second.push_back(word.text);
      }
    }
  }

  /// The last one counts, as with argparse.
  const std::vector<std::string>* find(const std::string& flag) {
    asked_.insert(flag);
    for (auto at = flags_.rbegin(); at != flags_.rend(); ++at) {
      if (at->first == flag) return &at->second;
    }
    return nullptr;
  }

  std::string name_;
  Flags flags_, launcher_;
  std::set<std::string> asked_;
  std::map<std::string, std::string> reasons_;
  std::vector<std::string> notes_;
};

/// A list of 0 and 1 for each layer: "([0]*3+[1]*58)", as Python reads it.
class Pattern {
 public:
  explicit Pattern(std::string text) {
    for (const char letter : text) {
      if (letter != ' ' && letter != '\'' && letter != '"') {
        text_ += letter;
      }
    }
  }
  bool read(std::vector<int64_t>* list) { return sum(list) && at_ == text_.size(); }

 private:
  static constexpr size_t kMost = 1 << 16;

  bool take(char letter) {
    if (at_ >= text_.size() || text_[at_] != letter) return false;
    ++at_;
    return true;
  }
  bool integer(int64_t* value) {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      ++at_;
    }
    return parse_int(std::string_view(text_).substr(begin, at_ - begin), value);
  }
  bool one(std::vector<int64_t>* list) {
    if (take('(')) {
      return sum(list) && take(')');
    }
    if (!take('[')) return false;
    do {
      int64_t value = 0;
      if (!integer(&value)) return false;
      list->push_back(value);
    } while (take(','));
    return take(']');
  }
  bool product(std::vector<int64_t>* list) {
    std::vector<int64_t> part;
    if (!one(&part)) return false;
    while (take('*')) {
      int64_t times = 0;
      if (!integer(&times) || static_cast<size_t>(times) * part.size() > kMost) return false;
      const std::vector<int64_t> once = part;
      part.clear();
      for (int64_t i = 0; i < times; ++i) {
        part.insert(part.end(), once.begin(), once.end());
      }
    }
    list->insert(list->end(), part.begin(), part.end());
    return list->size() <= kMost;
  }
  bool sum(std::vector<int64_t>* list) {
    do {
      if (!product(list)) return false;
    } while (take('+'));
    return true;
  }

  std::string text_;
  size_t at_ = 0;
};

/// Layers without experts.
std::vector<int64_t> dense_layers(Arguments& arguments, const std::string& name, int64_t layers) {
  std::vector<int64_t> dense;
  if (!arguments.has("--moe-layer-freq")) return dense;
  const std::string text = arguments.text("--moe-layer-freq");
  int64_t every = 0;
  if (parse_int(text, &every) && every >= 1) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      if (layer % every != 0) {
        dense.push_back(layer);
      }
    }
    return dense;
  }
  std::vector<int64_t> pattern;
  if (!Pattern(text).read(&pattern) || std::ssize(pattern) != layers) {
    fail(name, "--moe-layer-freq is {}; expected an integer, or a list like ([0]*3+[1]*{}) of {}",
         quote(text), layers - 3, counted(layers, "layer"));
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (pattern[static_cast<size_t>(layer)] == 0) {
      dense.push_back(layer);
    }
  }
  return dense;
}

/// The model as a config.json: a llama, or a qwen3_moe with experts. What these lack is noted.
std::string model_of(Arguments& arguments, const std::string& name, Imported* imported) {
  const auto need = [&](const char* flag) {
    if (!arguments.has(flag)) {
      fail(name, "has no {}; expected it, or --set model.path=MODEL in its place", flag);
    }
    return arguments.integer(flag, 0);
  };
  const auto note = [&](const std::string& text) { imported->notes.push_back(text); };
  nlohmann::json model;
  const int64_t layers = need("--num-layers");
  const int64_t hidden = need("--hidden-size");
  const int64_t heads = need("--num-attention-heads");
  const int64_t experts = arguments.integer("--num-experts", 0);
  if (heads < 1 || hidden < 1 || layers < 1) {
    fail(name,
         "--num-layers, --hidden-size and --num-attention-heads are {}, {} and {}; expected "
         "at least 1 each",
         layers, hidden, heads);
  }
  model["model_type"] = experts > 0 ? "qwen3_moe" : "llama";
  model["num_hidden_layers"] = layers;
  model["hidden_size"] = hidden;
  model["num_attention_heads"] = heads;
  model["head_dim"] = arguments.integer("--kv-channels", hidden / heads);
  const bool grouped = arguments.has("--group-query-attention");
  model["num_key_value_heads"] = grouped ? arguments.integer("--num-query-groups", 1) : heads;
  const int64_t wide = arguments.integer("--ffn-hidden-size", 4 * hidden);
  if (arguments.has("--swiglu")) {
    model["intermediate_size"] = wide;
  } else {
    // Two products of this width have the parameters of three that are two thirds as wide.
    model["intermediate_size"] = std::max<int64_t>(1, wide * 2 / 3);
    note(
        fmt::format("MLPs without --swiglu are gated ones of two thirds of their width here: {} "
                    "for {}",
                    wide * 2 / 3, wide));
  }
  const int64_t tp = arguments.integer("--tensor-model-parallel-size", 1);
  int64_t vocabulary = arguments.integer("--padded-vocab-size", 0);
  if (vocabulary == 0) {
    const int64_t multiple = arguments.integer("--make-vocab-size-divisible-by", 128) * tp;
    vocabulary = round_up(need("--vocab-size"), std::max<int64_t>(1, multiple));
  }
  model["vocab_size"] = vocabulary;
  model["max_position_embeddings"] =
      arguments.integer("--max-position-embeddings", arguments.integer("--seq-length", 4096));
  model["rope_theta"] = arguments.number("--rotary-base", 10000);
  model["rms_norm_eps"] = arguments.number("--norm-epsilon", 1e-5);
  model["initializer_range"] = arguments.number("--init-method-std", 0.02);
  model["tie_word_embeddings"] = !arguments.has("--untie-embeddings-and-output-weights");
  model["hidden_act"] = "silu";
  if (experts > 0) {
    model["num_experts"] = experts;
    model["num_experts_per_tok"] = arguments.integer("--moe-router-topk", 2);
    model["moe_intermediate_size"] = arguments.integer("--moe-ffn-hidden-size", wide);
    model["mlp_only_layers"] = dense_layers(arguments, name, layers);
    model["decoder_sparse_step"] = 1;
    // Softmax over the chosen experts is softmax over all, normalised.
    model["norm_topk_prob"] = !arguments.has("--moe-router-pre-softmax");
    model["router_aux_loss_coef"] = arguments.number("--moe-aux-loss-coeff", 0);
    if (!arguments.has("--qk-layernorm")) {
      note("queries and keys are normalised in models with experts here, as with --qk-layernorm");
    }
  } else if (arguments.has("--qk-layernorm")) {
    arguments.leave("--qk-layernorm", "models without experts do not normalise queries and keys");
  }
  const std::string norm = arguments.text("--normalization");
  if (norm != "RMSNorm") {
    note(fmt::format("norms are RMSNorm here, for {}", norm.empty() ? "LayerNorm" : norm));
  }
  const std::string positions = arguments.text("--position-embedding-type");
  if (positions != "rope" && !arguments.has("--use-rotary-position-embeddings")) {
    note(fmt::format("positions are rotary here, for {}",
                     positions.empty() ? "learned_absolute" : positions));
  }
  if (!arguments.has("--disable-bias-linear")) {
    note("products have no bias here");
  }
  arguments.leave("--moe-shared-expert-intermediate-size", "models here have no shared experts");
  arguments.leave("--multi-latent-attention", "attention here has whole heads");
  arguments.leave("--mtp-num-layers", "models here predict one token");
  return model.dump(2) + "\n";
}

class Import {
 public:
  Import(const std::string& text, const std::string& name, int64_t ranks)
      : arguments_(text, name), name_(name), ranks_(ranks) {}

  Imported run() {
    // The model, the mesh, and what of the training a run has keys for.
    imported_.config_json = model_of(arguments_, name_, &imported_);
    read_mesh();
    read_pipeline();
    read_sharding();
    read_batch();
    read_training();
    say_why();
    imported_.ignored = arguments_.ignored();
    const std::vector<std::string>& notes = arguments_.notes();
    imported_.notes.insert(imported_.notes.begin(), notes.begin(), notes.end());
    return std::move(imported_);
  }

 private:
  void set(const std::string& key, const std::string& value) { imported_.keys[key] = value; }
  void set(const std::string& key, int64_t value) { set(key, std::to_string(value)); }
  void set(const std::string& key, double value) { set(key, fmt::format("{}", value)); }
  void set(const std::string& key, bool value) { set(key, std::string(value ? "true" : "false")); }
  void copy(const std::string& flag, const std::string& key) {
    if (arguments_.has(flag)) {
      set(key, arguments_.text(flag));
    }
  }

  void read_mesh() {
    tp_ = arguments_.integer("--tensor-model-parallel-size", 1);
    pp_ = arguments_.integer("--pipeline-model-parallel-size", 1);
    cp_ = arguments_.integer("--context-parallel-size", 1);
    if (tp_ < 1 || pp_ < 1 || cp_ < 1) {
      fail(name_,
           "the sizes of tensor, pipeline and context parallel ranks are {}, {} and {}; "
           "expected at least 1 each",
           tp_, pp_, cp_);
    }
    const int64_t nodes = arguments_.launcher("--nnodes", 1);
    const int64_t per_node = arguments_.launcher("--nproc-per-node", 0);
    const int64_t ranks = ranks_ > 0 ? ranks_ : per_node * nodes;
    const int64_t others = tp_ * pp_ * cp_;
    if (ranks > 0 && ranks % others != 0) {
      fail(name_,
           "there are {} ranks ({} nodes of {}); expected a multiple of tp {} x pp {} x cp {}",
           ranks, nodes, per_node, tp_, pp_, cp_);
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
    if (per_node > 0 && nodes > 1) {
      set("plan.ranks_per_node", per_node);
    }
    if (arguments_.has("--sequence-parallel") && tp_ > 1) {
      set("plan.sequence_parallel", true);
    }
    if (arguments_.integer("--num-experts", 0) > 0) {
      const int64_t ep = arguments_.integer("--expert-model-parallel-size", 1);
      const int64_t etp = arguments_.integer("--expert-tensor-parallel-size", tp_);
      if (ep > 1) {
        set("plan.ep", ep);
      }
      if (etp > 1) {
        set("plan.etp", etp);
      }
    }
    if (cp_ > 1) {
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
  }

  void read_pipeline() {
    const int64_t layers = arguments_.integer("--num-layers", 1);
    const int64_t per_stage = arguments_.integer("--num-layers-per-virtual-pipeline-stage", 0);
    int64_t chunks = arguments_.integer("--num-virtual-stages-per-pipeline-rank", 1);
    if (per_stage > 0) {
      if (layers % (pp_ * per_stage) != 0) {
        fail(
            name_,
            "--num-layers-per-virtual-pipeline-stage is {}; expected a divisor of the {} layers of "
            "a pipeline rank",
            per_stage, layers / pp_);
      }
      chunks = layers / pp_ / per_stage;
    }
    const std::string layout = arguments_.text("--pipeline-model-parallel-layout");
    if (!layout.empty()) {
      chunks = read_layout(layout);
    }
    if (pp_ > 1 && chunks > 1) {
      set("plan.pp_chunks", chunks);
      set("plan.pp_schedule", std::string("interleaved"));
    }
    const bool no_overlap = arguments_.has("--no-overlap-p2p-communication");
    if (pp_ > 1 && (chunks == 1 || no_overlap)) {
      set("plan.overlap_p2p_comm", false);
    }
    const int64_t first = arguments_.integer("--decoder-first-pipeline-num-layers", -1);
    const int64_t last = arguments_.integer("--decoder-last-pipeline-num-layers", -1);
    if (pp_ > 1 && (first >= 0 || last >= 0)) {
      read_ends(layers, first, last, chunks);
    }
  }

  /// Layers of the first and the last stage are told, the others share what is left.
  void read_ends(int64_t layers, int64_t first, int64_t last, int64_t chunks) {
    const int64_t between = pp_ - (first >= 0 ? 1 : 0) - (last >= 0 ? 1 : 0);
    const int64_t left = layers - std::max<int64_t>(first, 0) - std::max<int64_t>(last, 0);
    if (chunks > 1 || left < 0 || (between > 0 && left % between != 0) ||
        (between == 0 && left != 0)) {
      fail(name_,
           "--decoder-first-pipeline-num-layers {} and --decoder-last-pipeline-num-layers {} leave "
           "{} layers to {} stages; expected as many for each, and no virtual stages",
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

  /// "Et*3|(t|)*6tL": letters with a number of times, stages between bars, groups in parentheses.
  /// Returns the stages of a rank.
  int64_t read_layout(const std::string& text) {
    std::string flat;
    size_t at = 0;
    if (!flatten(text, &at, &flat) || at != text.size()) {
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

  static bool flatten(const std::string& text, size_t* at, std::string* out) {
    constexpr size_t kMost = 1 << 16;
    while (*at < text.size() && text[*at] != ')') {
      std::string part;
      if (text[*at] == ',' || text[*at] == ' ') {
        ++*at;
        continue;
      }
      if (text[*at] == '(') {
        ++*at;
        if (!flatten(text, at, &part) || *at >= text.size()) return false;
        ++*at;
      } else if (std::string_view("ELtm|").find(text[*at]) != std::string_view::npos) {
        part = text[(*at)++];
      } else {
        return false;
      }
      int64_t times = 1;
      if (*at < text.size() && text[*at] == '*') {
        const size_t begin = ++*at;
        while (*at < text.size() && text[*at] >= '0' && text[*at] <= '9') {
          ++*at;
        }
        if (!parse_int(std::string_view(text).substr(begin, *at - begin), &times)) return false;
      }
      if (times < 0 || out->size() + part.size() * static_cast<size_t>(times) > kMost) return false;
      for (int64_t i = 0; i < times; ++i) {
        *out += part;
      }
    }
    return true;
  }

  void read_sharding() {
    std::string split = "no_shard";
    if (arguments_.has("--use-distributed-optimizer")) {
      split = "optim";
    }
    if (arguments_.has("--use-megatron-fsdp") ||
        arguments_.has("--data-parallel-sharding-strategy")) {
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
    const int64_t replicas = dp_ * cp_;
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
    const bool gathers = split == "optim_grads_params" && replicas > 1;
    if (gathers && !arguments_.has("--overlap-param-gather")) {
      set("plan.overlap_param_gather", false);
    }
    if (replicas > 1 && !arguments_.has("--overlap-grad-reduce")) {
      set("plan.overlap_grad_reduce", false);
    }
    arguments_.has("--overlap-param-gather");
    if (const int64_t bucket = arguments_.integer("--ddp-bucket-size", 0); bucket > 0) {
      constexpr double kMib = 1 << 20;
      set("plan.bucket_mib", static_cast<double>(bucket) * 4 / kMib);
    }
    if (arguments_.has("--delay-wgrad-compute")) {
      set("plan.delay_wgrad_compute", true);
    }
  }

  void read_batch() {
    const int64_t micro = arguments_.integer("--micro-batch-size", 1);
    set("plan.micro_batch", micro);
    set("train.global_batch", arguments_.integer("--global-batch-size", micro * dp_));
    set("train.seq_len", arguments_.integer("--seq-length", 4096));
    const std::string granularity = arguments_.text("--recompute-granularity");
    const bool some = arguments_.has("--recompute-activations");
    if (granularity == "full") {
      set("plan.recompute", std::string("full"));
      const std::string method = arguments_.text("--recompute-method");
      const int64_t layers = arguments_.integer("--recompute-num-layers", 1);
      if (method == "block" || layers > 1) {
        arguments_.leave("--recompute-num-layers",
                         "every layer is computed again, and keeps its input");
        arguments_.leave("--recompute-method",
                         "every layer is computed again, and keeps its input");
      }
    } else if (granularity == "selective" || some) {
      set("plan.recompute", std::string("selective"));
      arguments_.leave("--recompute-modules",
                       "selective repeats what takes much memory for little arithmetic");
    }
  }

  void read_training() {
    copy("--train-iters", "train.steps");
    copy("--lr", "train.lr");
    copy("--min-lr", "train.min_lr");
    copy("--lr-warmup-iters", "train.warmup_steps");
    copy("--eval-interval", "train.eval_every");
    copy("--save-interval", "train.save_every");
    set("train.weight_decay", arguments_.number("--weight-decay", 0.01));
    set("train.beta1", arguments_.number("--adam-beta1", 0.9));
    set("train.beta2", arguments_.number("--adam-beta2", 0.999));
    set("train.eps", arguments_.number("--adam-eps", 1e-8));
    set("train.max_grad_norm", arguments_.number("--clip-grad", 1.0));
    set("train.seed", arguments_.integer("--seed", 1234));
    set("train.dropout", arguments_.number("--hidden-dropout", 0.1));
    if (arguments_.integer("--num-experts", 0) > 0) {
      set("train.balance_coef", arguments_.number("--moe-aux-loss-coeff", 0));
    }
    if (arguments_.has("--distributed-timeout-minutes")) {
      set("plan.timeout_s", arguments_.integer("--distributed-timeout-minutes", 10) * 60);
    }
  }

  void say_why() {
    for (const char* flag : {"--bf16", "--fp16", "--fp8-format"}) {
      arguments_.leave(flag, "programs here are of model.dtype f32");
    }
    arguments_.leave("--attention-dropout", "attention here drops nothing");
    arguments_.leave("--train-samples", "train.steps is a number of steps");
    arguments_.leave("--rampup-batch-size", "a step has always as many sequences here");
    arguments_.leave("--distributed-backend", "plan.ranks follows from the launcher");
    arguments_.leave("--tp-comm-overlap", "plan.comm_tiles says so here");
    arguments_.leave("--use-tp-pp-dp-mapping", "pp is the outermost axis here");
  }

  Arguments arguments_;
  std::string name_;
  int64_t ranks_;
  int64_t tp_ = 1, pp_ = 1, cp_ = 1, dp_ = 1;
  Imported imported_;
};

}  // namespace

Imported import_megatron(const std::string& text, const std::string& name, int64_t ranks) {
  return Import(text, name, ranks).run();
}

}  // namespace hocket::plan
