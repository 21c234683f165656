// SPDX-License-Identifier: Apache-2.0
// run.yaml: everything a run depends on. Every key has its meaning and default here; unknown keys
// are errors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "data/examples/options.h"
#include "models/config.h"
#include "models/lora.h"
#include "parallel/plan.h"
#include "passes/pass.h"
#include "program/program.h"
#include "run/rl_section.h"

namespace hocket::engine {

struct ModelSection {
  ModelSection();
  std::string path;  ///< MODEL: a folder, a config.json, a checkpoint
  /// Instead of path: the keys of a config.json. Never null; shared by copies.
  std::shared_ptr<nlohmann::json> config;
  std::string dtype = "f32";
  bool float8 = false;
  std::string init = "auto";
  void fields(Fields& v);
};

/// Held-out data with a name, beside those that are held out of the training's own.
struct EvaluationSection {
  std::string name;
  std::string path;  ///< with objective pretrain a prepared folder, else that of one source
  std::vector<data::SourceOptions> sources;
  /// Returns the files of examples: `sources`, or `path` as the only one; all are held out.
  std::vector<data::SourceOptions> held_out() const;
  void fields(Fields& v);
};

struct DataSection {
  std::string name = "text";
  std::vector<std::string> files;
  std::string dir;
  std::string tokenizer;
  int64_t vocab_size = 0;
  double valid_fraction = 0.05;
  std::vector<std::string> valid_files;
  std::vector<EvaluationSection> evaluation;
  bool split_special_tokens = false;
  /// Fine-tuning data, in place of `dir`; the next members are of it.
  std::vector<data::SourceOptions> sources;
  data::TrainOn train_on = data::TrainOn::assistant;
  bool packing = true;
  data::Truncate truncate = data::Truncate::keep_start;
  bool split_texts = true;
  std::string chat_template;
  /// Returns the section that reads a set of `evaluation` as training reads its data.
  DataSection of(const EvaluationSection& set) const;
  void fields(Fields& v);
};

/// Parameters with settings of their own.
struct OptimizerGroup {
  std::vector<std::string> match;
  std::optional<double> lr, lr_scale, weight_decay;
  std::optional<std::string> optimizer;
  void fields(Fields& v);
};

struct OptimizerSection {
  std::string name = "adamw";
  double weight_decay = 0.1;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  std::optional<double> momentum;
  std::optional<bool> nesterov;
  int64_t ns_steps = 5;
  std::string adjust_lr = "match_rms_adamw";
  std::vector<OptimizerGroup> groups;
  void fields(Fields& v);
};

struct EarlyStoppingSection {
  int64_t patience = 0;
  double min_delta = 0;
  void fields(Fields& v);
};

/// The trained addition to a frozen model. Names are PEFT's, without their `lora_` and `_modules`.
struct AdapterSection {
  std::string type = "none";
  std::string path;
  int64_t r = 8;
  double alpha = 8;
  double dropout = 0;
  /// Endings of modules' names, or one regular expression or `all-linear`.
  std::vector<std::string> targets;
  std::vector<std::string> target_parameters;
  std::map<std::string, std::string> rank_pattern, alpha_pattern;
  std::vector<std::string> modules_to_save;
  bool use_rslora = false;
  std::vector<int64_t> layers;
  bool on() const { return type != "none"; }
  void fields(Fields& v);
};

struct TrainSection {
  std::optional<int64_t> steps;
  double epochs = 0;
  int64_t tokens = 0;
  double minutes = 0;
  int64_t global_batch = 4;
  int64_t seq_len = 512;
  double lr = 1e-3;
  std::optional<double> min_lr;
  std::string schedule = "cosine";
  int64_t warmup_steps = 20;
  std::optional<double> warmup_share;
  double decay_share = 0.1;
  std::string decay = "linear";
  double max_grad_norm = 1.0;
  double skip_grad_norm = 0;
  std::string on_nonfinite = "stop";
  std::string grad_dtype = "f32";
  double dropout = 0;
  std::optional<double> balance_coef;
  std::vector<std::string> freeze;
  int64_t seed = 1;
  int64_t eval_every = 0;
  int64_t eval_sequences = 32;
  int64_t final_eval_sequences = 0;
  int64_t save_every = 0;
  double save_minutes = 10;
  int64_t keep_last = 2;
  bool keep_best = false;
  EarlyStoppingSection early_stopping;
  std::string best_by;  ///< name in data.evaluation; empty: the first of the run's evaluations
  bool resume = true;
  /// Returns the steps of the training; 0: they follow from its data (epochs) or its time
  /// (minutes).
  int64_t num_steps() const;
  /// Returns whether evaluations decide something: which checkpoint is best, when to stop.
  bool compares() const { return keep_best || early_stopping.patience > 0; }
  /// Returns the final learning rate: min_lr, or a tenth of lr; at most lr.
  double final_lr() const { return std::min(min_lr.value_or(lr / 10), lr); }
  void fields(Fields& v);
};

/// Preference tuning (objective dpo or kto); names and defaults are TRL's.
struct PreferenceSection {
  double beta = 0.1;
  std::vector<std::string> loss_type = {"sigmoid"};
  std::vector<double> loss_weights;  ///< of loss_type; empty: 1 each
  double label_smoothing = 0;
  double desirable_weight = 1, undesirable_weight = 1;
  std::string reference;  ///< MODEL; empty: the weights that the training begins with
  bool precompute_ref_log_probs = false;
  int64_t answers_per_sequence = 8;
  void fields(Fields& v);
};

/// The loss of a training.
enum class Objective : uint8_t { pretrain, sft, dpo, kto, rl };
std::span<const char* const> names_of(Objective);

/// The plan, and how its ranks run it.
struct PlanSection : parallel::Plan {
  std::string ranks = "auto", collectives = "auto";
  std::vector<std::string> passes{"recompute", "ring_attention", "chunk",    "overlap",
                                  "tiles",     "bucket",         "compress", "expand"};
  passes::PassOptions pass_options;  ///< keys of the plan, each declared by its pass
  double timeout_s = 300;
  void fields(Fields& v);
};

/// Bytes that a rank can be said to have: 1 EiB, a number that integers and products of it hold.
inline constexpr double kMaxMemory = 0x1p60;

struct ClusterSection {
  std::string file;     ///< a cluster file for check and simulate
  std::string profile;  ///< written by `hocket profile`
  std::optional<double> memory_budget;
  void fields(Fields& v);
};

struct EmulateSection {
  std::string cluster;           ///< a cluster file; empty: no emulation
  std::string profile;           ///< written by `hocket profile`
  std::vector<std::string> set;  ///< keys of the run that is emulated, "a.b=value"
  bool on() const { return !cluster.empty(); }
  void fields(Fields& v);
};

struct OutputSection {
  std::string dir = "runs/default";
  bool trace = true;
  bool report = true;
  bool tensorboard = false;
  std::string baselines = "auto";
  std::string sample_prompt;
  int64_t sample_tokens = 160;
  void fields(Fields& v);
};

struct RunConfig {
  Objective objective = Objective::pretrain;
  ModelSection model;
  DataSection data;
  AdapterSection adapter;
  TrainSection train;
  OptimizerSection optimizer;
  PreferenceSection preference;
  RlSection rl;
  PlanSection plan;
  ClusterSection cluster;
  EmulateSection emulate;
  OutputSection output;
  /// Returns whether the loss is one of whole answers, against a reference.
  bool prefers() const { return objective == Objective::dpo || objective == Objective::kto; }
  void fields(Fields& v);
};

/// Kind of a run's ranks.
enum class Ranks {
  local,  ///< threads of one process
  gloo,   ///< processes, which reach each other through c10d's Gloo
  nccl,   ///< the same with a GPU each, through which c10d's collectives go
};

/// A configuration with derived values.
struct Run {
  RunConfig config;
  ResolvedConfig resolved;
  std::string name;  ///< the file that was read
  models::ModelConfig model;
  parallel::Plan plan;
  Ranks ranks = Ranks::local;
  bool c10d = false;    ///< plan.collectives: those of c10d
  std::string weights;  ///< the folder that a new training takes its weights from; empty: random
  /// An adapter's folder: merged into `weights` when they are loaded, or with `lora` the one that
  /// training starts from.
  std::string adapter;
  std::optional<models::Lora> lora;  ///< the adapter that is trained

  /// Returns whether updates take the experts that samples had: rl.routing_replay of a policy.
  bool replays_routes() const {
    return config.objective == Objective::rl && config.rl.routing_replay && model.num_experts > 0 &&
           !model.value_head;
  }
};

/// Reads the configuration of `path` (a run.yaml, or the text of a program: its embedded one) with
/// overrides "a.b=value". `parsed_program` receives the program, if it is one; the passes of its
/// run are then without commands. Throws Error.
Run resolve_run(const std::string& path, const std::vector<std::string>& overrides,
                std::optional<program::Program>* parsed_program = nullptr);
/// Resolves the text of a configuration, named `name` in errors. Under a launcher with several
/// processes, plan.dp and plan.ranks_per_node are filled in from their number.
Run resolve_text(const std::string& text, const std::string& name,
                 const std::vector<std::string>& overrides);
/// Derives model, weights and plan from the configuration. Throws Error if they do not fit.
void derive(Run& run);

/// Resolves and derives.
Run read_run(const std::string& path, const std::vector<std::string>& overrides,
             std::optional<program::Program>* parsed_program = nullptr);
Run parse_run(const std::string& text, const std::string& name,
              const std::vector<std::string>& overrides);

}  // namespace hocket::engine
