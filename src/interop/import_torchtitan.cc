// SPDX-License-Identifier: Apache-2.0
// Implements: import_torchtitan (foreign.h), for job files (TOML) and the JSON of a configuration.
// Names and defaults are those of torchtitan/config; names of other releases are read as well.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "base/product.h"
#include "base/text.h"
#include "interop/foreign.h"
#include "interop/settings.h"
#include "interop/tables.h"
#include "interop/torchtitan_model.h"
#include "interop/torchtitan_names.h"

namespace hocket::interop {

namespace {

/// Keys of earlier releases that only changed their name. Those of [parallelism] were in [training]
/// and [experimental] before (kFormerSections).
constexpr std::pair<const char*, const char*> kFormerNames[] = {
    {"training.local_batch_size", "training.batch_size"},
    {"parallelism.data_parallel_shard_degree", "parallelism.data_parallel_degree"},
    {"parallelism.tensor_parallel_degree", "parallelism.sequence_parallel_degree"},
    {"lr_scheduler.warmup_steps", "training.warmup_steps"},
    {"lr_scheduler.min_lr_factor", "lr_scheduler.lr_min"},
    {"checkpoint.enable", "checkpoint.enable_checkpoint"},
    {"validation.enable", "validation.enabled"},
    {"validation.enable", "validator.enable"},
    {"validation.freq", "validator.freq"},
    {"training.seq_len", "training.max_context_length"},
    {"parallelism.module_fqns_per_model_part",
     "parallelism.pipeline_parallel_module_fqns_per_model_part"},
    {"compile.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel"},
    {"compile.enable_async_tensor_parallel", "experimental.enable_async_tensor_parallel"},
    {"debug.seed", "training.seed"}};
constexpr const char* kFormerSections[] = {"training", "experimental"};

/// A key and the names that it had, the present one first.
std::vector<std::string> names_of(const std::string& path) {
  std::vector<std::string> names = {path};
  for (const auto& [now, before] : kFormerNames) {
    if (path == now) {
      names.push_back(before);
    }
  }
  constexpr std::string_view kParallelism = "parallelism.";
  const size_t with_names = names.size();
  for (size_t i = 0; i < with_names; ++i) {
    if (!names[i].starts_with(kParallelism)) continue;
    for (const char* section : kFormerSections) {
      names.push_back(fmt::format("{}.{}", section, names[i].substr(kParallelism.size())));
    }
  }
  return names;
}

class TorchtitanImport {
 public:
  TorchtitanImport(const std::string& text, const std::string& name, const RanksOfFile& ranks,
                   const Beside& beside)
      : is_json_(is_json(text)),
        job_(is_json_ ? tree_of_json(text, name) : tree_of_toml(text, name), name, "torchtitan",
             is_json_ ? torchtitan_json_keys() : torchtitan_keys(), names_of),
        name_(name),
        ranks_(ranks),
        beside_(beside),
        layers_(beside.layers) {}

  Imported run() {
    read_model();
    read_mesh();
    read_sharding();
    read_pipeline();
    read_precision();
    read_training();
    read_optimizer();
    add_reasons();
    KeyReport report = job_.unread(beside_);
    imported_.ignored = std::move(report.ignored);
    imported_.notes.insert(imported_.notes.end(), report.notes.begin(), report.notes.end());
    return std::move(imported_);
  }

 private:
  static bool is_json(const std::string& text) {
    return trim(std::string_view(text).substr(0, 4096)).starts_with("{");
  }
  /// Its JSON has the model's sizes; a job file only names it.
  void read_model() {
    const bool has_spec = is_json_ && job_.has("model_spec.name");
    const std::string section = has_spec ? "model_spec" : "model";
    imported_.model_name =
        fmt::format("{} {}", job_.text(section + ".name", has_spec ? "" : "llama3"),
                    job_.text(section + ".flavor", has_spec ? "" : "debugmodel"));
    const std::string sizes = has_spec ? "model_spec.model" : "model";
    if (!is_json_ || !job_.has(sizes + ".layers")) return;
    job_.use_all(section);
    if (beside_.has_model()) return;
    imported_.config_json = torchtitan_model(job_, sizes, name_, &imported_.notes);
    if (!imported_.config_json.empty()) {
      imported_.model_name.clear();
      layers_ = std::ssize(job_.node(sizes + ".layers")->items);
    }
  }
  void set(const std::string& key, const std::string& value) { imported_.keys[key] = value; }
  void set(const std::string& key, int64_t value) { set(key, std::to_string(value)); }
  void set(const std::string& key, double value) { set(key, fmt::format("{:.12g}", value)); }
  void set(const std::string& key, bool value) { set(key, std::string(value ? "true" : "false")); }
  int64_t degree(const std::string& axis, int64_t otherwise = 1) {
    const std::string path = fmt::format("parallelism.{}_degree", axis);
    const int64_t ranks = job_.integer(path, otherwise);
    if (ranks < 1 && ranks != otherwise) {
      fail(name_, "{} is {}; expected at least 1", job_.name_of(path), ranks);
    }
    return ranks;
  }

  void read_mesh() {
    tp_ = degree("tensor_parallel");
    pp_ = degree("pipeline_parallel");
    cp_ = degree("context_parallel");
    replicate_ = degree("data_parallel_replicate");
    split_ = degree("data_parallel_shard", -1);
    const int64_t others = product_at_most({tp_, pp_, cp_, replicate_});
    if (split_ < 0) {
      const int64_t ranks = ranks_.asked > 0 ? ranks_.asked : ranks_.otherwise;
      if (ranks <= 0) {
        fail(name_,
             "parallelism.data_parallel_shard_degree is {}, which takes all ranks left; "
             "expected --ranks N",
             split_);
      }
      if (ranks % others != 0) {
        fail(name_,
             "there are {} ranks, which parallelism.data_parallel_shard_degree {} takes; expected "
             "a multiple of {}: tp {} x pp {} x cp {} x replicas {}; try another --ranks, or other "
             "degrees in the file",
             ranks, split_, others, tp_, pp_, cp_, replicate_);
      }
      split_ = ranks / others;
    }
    if (job_.text("parallelism.data_parallel_type", "fsdp") == "ddp") {
      std::swap(replicate_, split_);
    }
    const int64_t all = product_at_most({replicate_, split_, tp_, pp_, cp_});
    if (ranks_.asked > 0 && ranks_.asked != all) {
      fail(name_,
           "--ranks is {}; expected the {} of the file; try --cluster, which finds a plan of other "
           "ranks",
           ranks_.asked, all);
    }
    for (const auto& [key, ranks] : {std::pair{"plan.tp", tp_},
                                     {"plan.pp", pp_},
                                     {"plan.cp", cp_},
                                     {"plan.dp", product_at_most({replicate_, split_})}}) {
      if (ranks > 1) {
        set(key, ranks);
      }
    }
    read_nodes(all);
    if (tp_ > 1) {
      set("plan.sequence_parallel", job_.truth("parallelism.enable_sequence_parallel", true));
    }
    if (job_.truth("compile.enable_async_tensor_parallel", false) && tp_ > 1) {
      set("plan.comm_tiles", tp_);
      imported_.notes.push_back(fmt::format("plan.comm_tiles is {}, for {}", tp_,
                                            job_.name_of("compile.enable_async_tensor_parallel")));
    }
    if (const int64_t ep = degree("expert_parallel"); ep > 1) {
      set("plan.ep", ep);
    }
    if (const int64_t etp = degree("expert_tensor_parallel"); etp > 1) {
      set("plan.etp", etp);
    }
    if (cp_ > 1) {
      const std::string rotation =
          job_.text("parallelism.context_parallel_rotate_method", "allgather");
      if (rotation != "allgather" && rotation != "alltoall") {
        fail(name_,
             "parallelism.context_parallel_rotate_method is {}; expected allgather or "
             "alltoall",
             quote(rotation));
      }
      const bool ring = rotation == "alltoall";
      set("plan.cp_comm_type", std::string(ring ? "p2p" : "all_gather"));
      if (ring) {
        set("plan.cp_order", std::string("zigzag"));
      } else {
        imported_.notes.push_back(
            "ranks of cp have tokens in one run each here (plan.cp_order contiguous), where keys "
            "are gathered");
      }
    }
  }

  /// torchtitan's run_train.sh starts 8 ranks on a node (NGPU); the file does not say.
  void read_nodes(int64_t ranks) {
    constexpr int64_t kPerNode = 8;
    if (ranks <= kPerNode) return;
    set("plan.ranks_per_node", kPerNode);
    imported_.notes.push_back(
        fmt::format("plan.ranks_per_node is {}, as run_train.sh starts them: the file does not say "
                    "how many ranks a node has",
                    kPerNode));
  }

  void read_sharding() {
    const std::string reshard = job_.text("parallelism.fsdp_reshard_after_forward", "default");
    const int64_t group = product_at_most({split_, cp_});
    if (group == 1) return;
    // FSDP splits over the shard and context ranks; with replicas, inside each of them.
    const std::string among = replicate_ > 1 ? "group" : "all";
    set("plan.shard.params", among);
    set("plan.shard.grads", among);
    if (replicate_ > 1) {
      set("plan.shard.group", group);
    }
    if (job_.truth("parallelism.fsdp_defer_gradient_reduction", false)) {
      set("plan.shard.grads", std::string("none"));
    }
    if (reshard == "never" || (reshard == "default" && pp_ > 1)) {
      set("plan.shard.reshard_after_forward", false);
    }
  }

  void read_pipeline() {
    const std::string csv = job_.text("parallelism.pipeline_parallel_schedule_csv", "");
    const std::string name = job_.text("parallelism.pipeline_parallel_schedule", "1F1B");
    const int64_t per_stage = job_.integer("parallelism.pipeline_parallel_layers_per_stage", 0);
    const std::vector<int64_t> layers = layers_of_parts();
    const std::vector<std::string> points =
        job_.texts("parallelism.pipeline_parallel_split_points");
    if (pp_ == 1) return;
    if (!points.empty() && layers.empty()) {
      fail(name_,
           "{} is [{}], and the file does not say how many layers the last stage has; expected "
           "layers of all stages; try without it, and --set plan.pp_layers",
           job_.name_of("parallelism.pipeline_parallel_split_points"), join(points, ", "));
    }
    const ScheduleName* schedule = find_schedule(name);
    if (csv.empty() && schedule == nullptr) {
      std::vector<std::string> known;
      for (const ScheduleName& each : kTorchtitanSchedules) {
        known.push_back(each.theirs);
      }
      fail(name_, "{} is {}; expected one of {}, or a schedule of one's own in …_schedule_csv",
           job_.name_of("parallelism.pipeline_parallel_schedule"), quote(name), join(known, ", "));
    }
    set("plan.pp_schedule", csv.empty() ? schedule->ours : csv);
    int64_t chunks = schedule != nullptr && schedule->looped ? 2 : 1;
    if (!layers.empty()) {
      if (std::ssize(layers) % pp_ != 0) {
        fail(name_,
             "parallelism.module_fqns_per_model_part has {} parts; expected a multiple of {}",
             layers.size(), pp_);
      }
      chunks = std::ssize(layers) / pp_;
      set("plan.pp_layers", fmt::format("[{}]", fmt::join(layers, ", ")));
    } else if (per_stage > 0) {
      chunks = chunks_of(per_stage, chunks);
    }
    if (chunks > 1) {
      set("plan.pp_chunks", chunks);
    }
    stages_ = product_at_most({pp_, chunks});
    if (layers.empty()) {
      share_layers_out();
    }
  }

  /// Earlier releases wrote interleaved_1f1b. Null: there is none of this name.
  static const ScheduleName* find_schedule(const std::string& name) {
    const auto* const found =
        std::find_if(std::begin(kTorchtitanSchedules), std::end(kTorchtitanSchedules),
                     [&](const ScheduleName& schedule) {
                       std::string one = schedule.theirs, other = name;
                       for (std::string* text : {&one, &other}) {
                         std::erase(*text, '_');
                         std::transform(text->begin(), text->end(), text->begin(),
                                        [](unsigned char c) { return std::tolower(c); });
                       }
                       return one == other;
                     });
    return found == std::end(kTorchtitanSchedules) ? nullptr : found;
  }

  /// Returns the layers that the "first" or "last" stage has less: the embedding or the head counts
  /// as so many.
  int64_t less_layers(const char* stage) {
    constexpr int64_t kMost = int64_t{1} << 20;
    const std::string path =
        fmt::format("parallelism.pipeline_parallel_{}_stage_less_layers", stage);
    const int64_t less = job_.at_least(0, path, 1);
    if (less > kMost) {
      job_.refuse(path, fmt::format("at most {}", kMost));
    }
    return less;
  }

  /// Returns whether stages can have torchtitan's layers: their number is known, and no other
  /// stages are asked for. Releases with the degree in [experimental] shared layers out otherwise.
  bool follows_their_rule() {
    constexpr const char* kStages[] = {"plan.pp", "plan.pp_chunks", "plan.pp_layers",
                                       "plan.pp_schedule"};
    return layers_ > 0 && beside_.keeps_plan &&
           job_.text("parallelism.pipeline_parallel_schedule_csv", "").empty() &&
           std::none_of(std::begin(kStages), std::end(kStages),
                        [&](const char* key) { return beside_.has(key); }) &&
           !job_.name_of("parallelism.pipeline_parallel_degree").starts_with("experimental.");
  }

  /// Returns the stages of a rank that have at most `per_stage` layers each.
  int64_t chunks_of(int64_t per_stage, int64_t otherwise) {
    const char* const path = "parallelism.pipeline_parallel_layers_per_stage";
    if (!follows_their_rule()) {
      job_.leave(path, "set plan.pp_chunks to the layers of a rank divided by it");
      return otherwise;
    }
    const int64_t all = layers_ + less_layers("first") + less_layers("last");
    const int64_t stages = (all - 1) / per_stage + 1;
    if (stages % pp_ != 0) {
      job_.refuse(path, fmt::format("a number that makes a multiple of {} stages, not {}, of {} "
                                    "layers and {} for the ends",
                                    pp_, stages, layers_, all - layers_));
    }
    return stages / pp_;
  }

  /// torchtitan counts the embedding and the head as layers where it shares layers out.
  void share_layers_out() {
    const int64_t first = less_layers("first"), last = less_layers("last");
    if ((first == 0 && last == 0) || !beside_.keeps_plan || beside_.has("plan.pp_layers")) return;
    if (!follows_their_rule()) {
      imported_.notes.push_back(fmt::format(
          "stages have equally many layers here; torchtitan gives the first {} and the last {} "
          "less (pipeline_parallel_*_stage_less_layers, 1 by default); try --set plan.pp_layers",
          first, last));
      return;
    }
    const int64_t all = layers_ + first + last, least = all / stages_;
    if (least < std::max(first, last)) {
      fail(name_,
           "there are {} stages of {} layers, with {} more for the embedding and {} for the head; "
           "expected room for these in the first stage and the last; try fewer stages, or --set "
           "plan.pp_layers",
           stages_, layers_, first, last);
    }
    std::vector<int64_t> of_stage(static_cast<size_t>(stages_), least);
    for (int64_t stage = 0; stage < all % stages_; ++stage) {
      ++of_stage[static_cast<size_t>(stage)];
    }
    of_stage.front() -= first;
    of_stage.back() -= last;
    set("plan.pp_layers", fmt::format("[{}]", fmt::join(of_stage, ", ")));
  }

  /// Layers among the modules of each part of the model.
  std::vector<int64_t> layers_of_parts() {
    const char* const path = "parallelism.module_fqns_per_model_part";
    std::vector<int64_t> layers;
    const ConfigNode* parts = job_.node(path);
    if (parts == nullptr) return layers;
    const bool is_list = parts->kind == ConfigNode::Kind::list;
    for (const ConfigNode& part : parts->items) {
      if (!is_list || part.kind != ConfigNode::Kind::list) {
        job_.refuse(path, "a list of lists of names");
      }
      layers.push_back(std::count_if(part.items.begin(), part.items.end(), [](const auto& name) {
        return name.text.starts_with("layers.");
      }));
    }
    return layers;
  }

  /// FSDP has parameters in bf16 by default, and so does autocast where nothing is split at all;
  /// with tp or pp alone mixed precision is off.
  void read_precision() {
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
  bool had_float8() {
    const bool by_switch = job_.truth("float8.enable_float8_linear", false);
    const bool by_older_switch = job_.truth("training.enable_fp8_linear", false);
    const std::string scaling = job_.text("training.fp8_linear", "");
    if (!scaling.empty() && scaling != "dynamic") {
      fail(name_, "training.fp8_linear is {}; expected dynamic, or nothing", quote(scaling));
    }
    return by_switch || by_older_switch || !scaling.empty();
  }
  std::string precision(const std::string& path, const std::string& otherwise) {
    const std::string dtype = job_.text(path, otherwise);
    if (dtype != "bfloat16" && dtype != "float32") {
      fail(name_, "{} is {}; expected bfloat16 or float32", path, quote(dtype));
    }
    return dtype;
  }

  void read_training() {
    const int64_t dp = product_at_most({replicate_, split_});
    if (job_.has(kTokens) || job_.has("training.max_context_length")) {
      read_tokens(dp);
    } else {
      read_batch(dp);
    }
    set("train.steps", job_.at_least(1, "training.steps", 10000));
    set("train.max_grad_norm", job_.number("training.max_norm", 1.0));
    if (job_.has("debug.seed")) {
      set("train.seed", job_.integer("debug.seed", 1));
    }
    set("train.warmup_steps", job_.at_least(0, "lr_scheduler.warmup_steps", 200));
    const std::string mode = checkpointing();
    if (mode != "none" && mode != "selective" && mode != "full") {
      fail(name_, "activation_checkpoint.mode is {}; expected none, selective or full",
           quote(mode));
    }
    set("plan.recompute", mode);
    if (mode == "selective") {
      job_.leave("activation_checkpoint.selective_ac_option",
                 "selective recomputation repeats ops with much memory and little arithmetic");
    }
    if (job_.has("comm.train_timeout_seconds")) {
      set("plan.timeout_s", job_.integer("comm.train_timeout_seconds", 100));
    }
    read_decay();
    read_intervals();
  }

  static constexpr const char* kTokens = "training.num_tokens_per_microbatch_per_dp_rank";

  void read_batch(int64_t dp) {
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
  void read_tokens(int64_t dp) {
    const int64_t length = job_.at_least(1, "training.seq_len", 2048);
    const int64_t tokens = job_.at_least(1, kTokens, 16384);
    const int64_t passes = pp_ > 1 ? job_.at_least(1, "parallelism.num_pp_microbatches", 1) : 1;
    if (tokens % length != 0) {
      job_.refuse(kTokens, fmt::format("a multiple of {} {}, as a micro-batch has whole sequences "
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
      job_.refuse(kStep, fmt::format("a multiple of {}, the tokens of all micro-batches of a pass",
                                     of_pass));
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
  int64_t sequences_of_a_pass(int64_t local) {
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

  /// Its JSON has the class's fields in place of a mode.
  std::string checkpointing() {
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

  /// One group of parameters, in its JSON with the arguments of an optimizer's class.
  void read_optimizer() {
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
      if (betas.size() == 2 &&
          !(parse_double(betas[0], &beta1) && parse_double(betas[1], &beta2))) {
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

  /// Its learning rate falls in a line if nothing else is said.
  void read_decay() {
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
  void read_intervals() {
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

  void add_reasons() {
    for (const char* key : {"filter_fqns", "recipe_name", "enable_fsdp_float8_all_gather",
                            "precompute_float8_dynamic_scale_for_fsdp"}) {
      job_.leave(fmt::format("float8.{}", key),
                 "model.float8 is of the blocks' linear layers, and without scales");
    }
    job_.leave("training.mixed_precision_reduce", "model.dtype is f32");
    job_.leave("lr_scheduler.total_steps", "the learning rate ends with the last step");
    if (cp_ == 1) {
      job_.leave("parallelism.context_parallel_rotate_method", "context_parallel_degree is 1");
      job_.leave("parallelism.context_parallel_load_balancer", "context_parallel_degree is 1");
    }
  }

  bool is_json_ = false;
  Settings job_;
  std::string name_;
  RanksOfFile ranks_;
  Beside beside_;
  int64_t layers_ = 0;  ///< of the model; 0: not known
  int64_t tp_ = 1, pp_ = 1, cp_ = 1, replicate_ = 1, split_ = 1;
  int64_t stages_ = 1;  ///< of the pipeline, chunks of a rank counted
  Imported imported_;
};

}  // namespace

Imported import_torchtitan(const std::string& text, const std::string& name,
                           const RanksOfFile& ranks, const Beside& beside) {
  return TorchtitanImport(text, name, ranks, beside).run();
}

}  // namespace hocket::interop
