// SPDX-License-Identifier: Apache-2.0
#include "cli/inputs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/resolve.h"
#include "comm/launch.h"
#include "run/machine.h"
#ifndef HOCKET_SIM_ONLY
#include "engine/processes.h"
#endif

namespace hocket::cli {
namespace {

bool is_config_json(const std::string& path) {
  if (!path.ends_with(".json") || !file_exists(path) || is_directory(path)) return false;
  const nlohmann::json json = read_json(path);
  return json.is_object() && json.contains("model_type");
}

/// Returns the sequences of a micro-batch, over all ranks. Parsing the run reports faults in them.
int64_t sequences_of(const parallel::Plan& plan) {
  if (plan.dp_samples.empty()) return plan.dp * plan.micro_batch;
  int64_t sequences = 0;
  for (const int64_t samples : plan.dp_samples) {
    sequences += std::clamp<int64_t>(samples, 1, 1 << 16);
  }
  return sequences;
}

/// Sets train.global_batch to `per_stage` micro-batches per pipeline stage unless it is given.
engine::Run with_batch(nlohmann::json tree, const std::string& name,
                       const std::vector<std::string>& overrides, int64_t per_stage) {
  const engine::Run probe = engine::resolve_text(tree.dump(), name, overrides);
  if (probe.resolved.is_default("train.global_batch")) {
    const parallel::Plan& plan = probe.config.plan;
    tree["train"]["global_batch"] = sequences_of(plan) * (plan.pp > 1 ? per_stage * plan.pp : 1);
  }
  return engine::parse_run(tree.dump(), name, overrides);
}

/// The timings that `given` names (--profile), else cluster.profile.
std::optional<cost::Profile> profile_of(const engine::Run& run, const std::string& given,
                                        const cost::Cluster& cluster, const std::string& verb) {
  const std::string& file = given.empty() ? run.config.cluster.profile : given;
  if (file.empty()) return std::nullopt;
  cost::Profile profile = cost::read_profile(file);
  const std::string kernels = cluster.this_machine ? engine::kernels_here() : "";
  const std::string why = engine::mismatch(profile, cluster, kernels);
  if (why.empty()) return profile;
  if (!given.empty()) {
    fail(verb, "--profile {} {}; try without it", file, why);
  }
  log_warning("cluster.profile {} is not used: it {}", file, why);
  return std::nullopt;
}

}  // namespace

engine::Compiled Source::compile() const {
  return parsed_program ? engine::with_program(run, *parsed_program) : engine::compile(run);
}

std::optional<engine::Compiled> Source::evaluation() const {
  const bool trains =
      !parsed_program || engine::program_name(parsed_program->purpose, run.name) == "train";
  if (!trains || !engine::evaluates(run)) return std::nullopt;
  if (parsed_program && !engine::has_ranks_of(*parsed_program, run.plan)) {
    log_warning(
        "{}: the program has other ranks than the plan in its configuration, so the one that "
        "evaluates beside it is not looked at",
        run.name);
    return std::nullopt;
  }
  return engine::compile(engine::evaluation(run));
}

Source read_source(const std::string& path, const std::vector<std::string>& overrides,
                   bool bare_model) {
  Source source;
  if (!bare_model && is_directory(path)) {
    fail(path,
         "is a folder; expected a run.yaml or the text of a program; try a run.yaml with "
         "model.path: {}",
         path);
  }
  if (bare_model &&
      (!file_exists(path) || is_directory(path) || is_config_json(path) || gguf::is_gguf(path))) {
    if (path.ends_with(".yaml") || path.ends_with(".txt")) {
      read_file(path);  // Throws with the reason.
    }
    const std::string config =
        checkpoint::resolve_model(path, checkpoint::Need::config).config_file;
    const models::ModelConfig model = checkpoint::read_model_config(config);
    const int64_t longest = model.max_position > 0 ? model.max_position : 4096;
    source.run = with_batch(
        {{"model", {{"path", config}}}, {"train", {{"seq_len", std::min<int64_t>(4096, longest)}}}},
        path, overrides, 4);
    return source;
  }
  if (!bare_model && file_exists(path) && (is_config_json(path) || gguf::is_gguf(path))) {
    fail(path,
         "is a model; expected a run.yaml or the text of a program; try a run.yaml with "
         "model.path: {}",
         path);
  }
  source.run = engine::read_run(path, overrides, &source.parsed_program);
  return source;
}

namespace {

engine::Run run_at(const checkpoint::ModelLocation& at, const std::string& model,
                   const std::string& dtype, const std::vector<std::string>& overrides) {
  nlohmann::json tree = {{"model", {{"path", at.folder}, {"init", "weights"}, {"dtype", dtype}}}};
  if (at.is_checkpoint) {
    // Settings of the training run that evaluation has, too. Other keys of its data belong to its
    // objective; the plan is the caller's.
    const std::string file = join_path(at.folder, "run.json");
    const nlohmann::json state = read_json(file);
    nlohmann::json config;
    if (state.is_object() && state.contains("config")) {
      const nlohmann::json& object = state["config"];
      config = object.is_string() ? parse_json(object.get<std::string>(), file) : object;
    }
    for (const char* key : {"/data/dir", "/train/seq_len"}) {
      const nlohmann::json::json_pointer at_key(key);
      if (config.contains(at_key)) {
        tree[at_key] = config[at_key];
      }
    }
  }
  if (!tree["train"].contains("seq_len")) {
    // A sequence is no longer than the table of learned positions.
    const int64_t rows = checkpoint::read_model_config(at.config_file).form.position_table;
    if (rows > 0) {
      tree["train"]["seq_len"] = std::min(engine::TrainSection().seq_len, rows);
    }
  }
  engine::Run run = with_batch(std::move(tree), model, overrides, 1);
  run.adapter = at.adapter;
  return run;
}

}  // namespace

namespace {

/// Types of --dtype, by their names here and those of vLLM and PyTorch.
const std::map<std::string, std::string>& known_dtypes() {
  static const std::map<std::string, std::string> known = {
      {"f32", "f32"},     {"f64", "f64"},   {"bf16", "bf16"},     {"f16", "f16"},
      {"float32", "f32"}, {"float", "f32"}, {"float64", "f64"},   {"double", "f64"},
      {"float16", "f16"}, {"half", "f16"},  {"bfloat16", "bf16"}, {"auto", "f32"}};
  return known;
}

}  // namespace

void require_dtype(const char* verb, const std::string& dtype) {
  if (known_dtypes().contains(dtype)) return;
  fail(verb,
       "--dtype is {}; expected f32, f64, bf16, f16, or one of these as float32, float64, "
       "bfloat16, float16; auto is f32",
       quote(dtype));
}

engine::Run model_run(const std::string& model, const std::string& given_dtype,
                      const std::vector<std::string>& overrides, const std::string& adapter) {
  const auto known = known_dtypes().find(given_dtype);
  const std::string& dtype = known == known_dtypes().end() ? given_dtype : known->second;
  using checkpoint::Need;
  const auto resolve = [&](Need need, comm::Processes& processes) {
    checkpoint::ModelLocation at = checkpoint::resolve_model(model, need, processes);
    return adapter.empty() ? at : checkpoint::with_adapter(std::move(at), adapter);
  };
#ifndef HOCKET_SIM_ONLY
  if (comm::launch_info().size > 1) {
    // The configuration gives the number of processes. Together they then compare the weights.
    const engine::Run probe = run_at(resolve(Need::config, comm::alone()), model, dtype, overrides);
    if (probe.ranks != engine::Ranks::local) {
      comm::Processes& processes = *engine::connection(probe);
      return run_at(resolve(Need::intact, processes), model, dtype, overrides);
    }
  }
#endif
  return run_at(resolve(Need::intact, comm::alone()), model, dtype, overrides);
}

std::string long_text(const models::ModelConfig& model, int64_t tokens, const std::string& what) {
  if (tokens <= model.max_position) return "";
  return fmt::format(
      "{} has {} tokens, but the model's max_position_embeddings is {}: positions "
      "beyond are extrapolated",
      what, tokens, model.max_position);
}

void warn_if_long(const models::ModelConfig& model, int64_t tokens, const std::string& what) {
  if (const std::string text = long_text(model, tokens, what); !text.empty()) {
    log_warning("{}", text);
  }
}

PredictionBasis prediction_basis(const engine::Run& run, const PredictionOptions& options) {
  std::vector<std::string> inputs = inputs_of(run);
  inputs.insert(inputs.end(), {options.source, options.cluster, options.profile});
  for (const auto& [option, file] : options.outputs) {
    require_output(fmt::format("{} {}", options.verb, option), file, inputs);
    require_writable(fmt::format("{} {}", options.verb, option), file);
  }
  PredictionBasis basis;
  basis.cluster_file = options.cluster.empty() ? run.config.cluster.file : options.cluster;
  basis.cluster = engine::cluster_of(run, basis.cluster_file);
  basis.profile = profile_of(run, options.profile, basis.cluster, options.verb);
  return basis;
}

void add_set(Args& args, std::vector<std::string>* overrides) {
  args.option("--set", "KEY=VALUE", overrides,
              "override a key of the run, e.g. plan.dp=2; may be repeated");
}

void add_prediction_basis(Args& args, std::string* cluster, std::string* profile, bool has_run) {
  args.option("--cluster", "FILE", cluster,
              std::string("cluster file (configs/clusters); default: ") +
                  (has_run ? "cluster.file, else this machine" : "this machine"));
  args.option("--profile", "FILE", profile,
              std::string("timings of `hocket profile`; default: ") +
                  (has_run ? "cluster.profile" : "none"));
}

void add_adapter(Args& args, std::string* adapter) {
  args.option(
      "--adapter", "DIR", adapter,
      "folder of an adapter of MODEL (PEFT's, or a run that trained one), merged when loaded");
}

void add_tokenizer(Args& args, std::string* tokenizer, const std::string& prefix) {
  args.option("--tokenizer", "FILE", tokenizer,
              prefix + "tokenizer.json or its folder; default: the model's own");
}

void add_dtype(Args& args, std::string* dtype) {
  args.option("--dtype", "TYPE", dtype,
              "type of weights and activations: f32, f64, bf16 or f16, also as float32, float64, "
              "bfloat16 and float16; auto: f32");
}

namespace {

/// Returns the errno that writing a file would give, as far as it can be predicted; 0 for none.
int error_of_writing(const std::string& path) {
  std::error_code none;
  std::filesystem::path place =
      std::filesystem::weakly_canonical(std::filesystem::absolute(path, none), none);
  if (none) return none.value();  // a cycle of links
  if (std::filesystem::is_directory(place, none)) return EISDIR;
  // A regular file is replaced by one that its folder takes; into others the bytes go.
  if (!std::filesystem::exists(place, none) || std::filesystem::is_regular_file(place, none)) {
    place = place.parent_path() / "";
  }
  return ::access(place.c_str(), W_OK) == 0 ? 0 : errno;
}

}  // namespace

void require_output(const std::string& option, const std::string& path,
                    const std::vector<std::string>& inputs) {
  std::error_code none;  // an unreadable path is no input
  const std::filesystem::path output = std::filesystem::canonical(path, none);
  if (none || !std::filesystem::is_regular_file(output, none)) return;
  for (const std::string& name : inputs) {
    const std::filesystem::path input = std::filesystem::canonical(name, none);
    if (none) continue;
    if (std::filesystem::equivalent(output, input, none) || output.parent_path() == input) {
      fail(option, "{} is an input of this command and would be replaced; expected another file",
           path);
    }
  }
}

void require_writable(const std::string& option, const std::string& path) {
  if (path.empty() || path == "-") return;
  if (const int error = error_of_writing(path)) {
    fail(option, "{} cannot be written: {}; expected a file in a folder that is there", path,
         std::generic_category().message(error));
  }
}

std::vector<std::string> inputs_of(const engine::Run& run) {
  std::vector<std::string> out = {run.config.model.path, run.config.data.dir,
                                  run.config.cluster.file, run.config.cluster.profile,
                                  run.config.plan.pp_schedule};
  for (const data::SourceOptions& source : run.config.data.sources) {
    out.push_back(source.path);
  }
  return out;
}

void emit(const std::string& path, const std::string& text) {
  write_output(path.empty() ? "-" : path, text);
}

std::FILE* message_stream(const std::string& path) { return path == "-" ? stderr : stdout; }

}  // namespace hocket::cli
