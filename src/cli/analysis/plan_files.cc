// SPDX-License-Identifier: Apache-2.0
#include "cli/analysis/plan_files.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/resolve.h"
#include "cli/inputs.h"
#include "models/build.h"
#include "models/config.h"
#include "run/describe.h"
#include "run/run_text.h"

namespace hocket::cli {

std::vector<std::string> PlanFile::overrides() const {
  std::vector<std::string> keys = set;
  if (global_batch) {
    keys.push_back(fmt::format("train.global_batch={}", *global_batch));
  }
  if (seq_len) {
    keys.push_back(fmt::format("train.seq_len={}", *seq_len));
  }
  return keys;
}

bool PlanFile::sets_model() const {
  return std::any_of(set.begin(), set.end(), [](const std::string& key) {
    return key.starts_with("model.path=") || key.starts_with("model.config");
  });
}

void add_plan_file(Args& args, PlanFile* file) {
  args.positional("RUN", &file->path,
                  "a run.yaml, or a MODEL (its config.json); with --from another trainer's file: a "
                  "shell script of Megatron-LM or verl, a job file or the JSON of torchtitan, "
                  "DeepSpeed's JSON, verl's or Axolotl's YAML");
  add_set(args, &file->set);
  args.option("--global-batch", "N", &file->global_batch, "train.global_batch: sequences a step", 1,
              int64_t{1} << 40);
  args.option("--seq-len", "N", &file->seq_len, "train.seq_len: tokens a sequence", 1,
              int64_t{1} << 27);
  args.option("--from", "FORMAT", &file->from,
              "format of RUN, megatron, torchtitan, deepspeed, verl or axolotl: read its model and "
              "plan, and list which of its options are ignored");
  args.option(
      "--model-out", "FOLDER", &file->model_out,
      "for --from megatron: folder to write the model's config.json to; default: into the run");
}

void add_emit(Args& args, std::string* emit, std::string help) {
  args.option("--emit", "FORMAT", emit, std::move(help));
}

void expect_formats(const std::string& verb, const PlanFile& file, const std::string& emit) {
  if (!file.from.empty() && interop::importer_of(file.from) == nullptr) {
    fail(verb + " --from", "is {}; expected one of {}", quote(file.from),
         join(interop::import_formats(), ", "));
  }
  if (!emit.empty() && emit != "megatron" && emit != "torchtitan") {
    fail(verb + " --emit", "is {}; expected megatron or torchtitan", quote(emit));
  }
  if (!file.model_out.empty() && file.from != "megatron" && file.from != "torchtitan") {
    fail(verb,
         "--model-out goes with --from megatron, and the JSON of torchtitan: these have the "
         "model's sizes");
  }
}

namespace {

std::string parameters_text(const models::ModelConfig& model) {
  const int64_t count = models::param_count(models::build(model, {.tokens = 1}));
  return human_count(static_cast<double>(count)) + " parameters";
}

/// Returns the layers of the model that --set names.
int64_t layers_of_model(const PlanFile& file) {
  std::vector<std::string> of_model;
  std::copy_if(file.set.begin(), file.set.end(), std::back_inserter(of_model),
               [](const std::string& key) { return key.starts_with("model."); });
  const engine::Run run = engine::resolve_text("{}", file.path, of_model);
  const engine::ModelSection& model = run.config.model;
  if (!model.config->is_null()) {
    return models::parse_config(model.config->dump(), file.path + ": model.config").num_layers;
  }
  if (model.path.empty()) return 0;
  const auto at = checkpoint::resolve_model(model.path, checkpoint::Need::config);
  return checkpoint::read_model_config(at.config_file).num_layers;
}

}  // namespace

engine::Run read_foreign(const PlanFile& file, const interop::RanksOfFile& ranks, bool keeps_plan,
                         std::FILE* messages, std::string* model_name) {
  const std::string text = read_file(file.path);
  const bool named = file.sets_model();
  interop::Beside beside;
  beside.keeps_plan = keeps_plan;
  if (named && keeps_plan && file.from == "torchtitan") {
    beside.layers = layers_of_model(file);
  }
  for (const std::string& key : file.overrides()) {
    beside.keys.insert(key.substr(0, key.find('=')));
  }
  const interop::Imported imported =
      interop::importer_of(file.from)(text, file.path, ranks, beside);
  std::vector<std::string> all;
  for (const auto& [key, value] : imported.keys) {
    all.push_back(fmt::format("{}={}", key, value));
  }
  nlohmann::json tree = nlohmann::json::object();
  if (!imported.config_json.empty() && !named) {
    if (file.model_out.empty()) {
      tree["model"]["config"] = parse_json(imported.config_json, file.path);
    } else {
      const std::string config_file = join_path(file.model_out, "config.json");
      make_dirs(file.model_out);
      write_output(config_file, imported.config_json);
      tree["model"]["path"] = config_file;
    }
  } else if (!named && !imported.model_path.empty()) {
    tree["model"]["path"] = imported.model_path;
  } else if (!named) {
    const std::string& model = imported.model_name;
    fail(file.path, "{}; expected --set model.path=MODEL, a folder with its config.json",
         model.empty() ? "names no model"
                       : fmt::format("names the model {} without its sizes", quote(model)));
  }
  for (const std::string& line : imported.notes) {
    fmt::print(messages, "note     {}\n", line);
  }
  for (const std::string& line : imported.ignored) {
    fmt::print(messages, "ignored  {}\n", line);
  }
  const std::vector<std::string> set = file.overrides();
  all.insert(all.end(), set.begin(), set.end());
  *model_name = imported.model_name;
  return keeps_plan ? engine::parse_run(tree.dump(), file.path, all)
                    : engine::resolve_text(tree.dump(), file.path, all);
}

void note_model(std::FILE* messages, const std::string& model_name, const engine::Run& run) {
  if (model_name.empty()) return;
  fmt::print(messages, "note     the file names the model {}; the one of this run has {} ({})\n",
             quote(model_name), parameters_text(run.model), engine::describe(run.model));
}

interop::Emitted text_of(const engine::Run& run, const std::string& emit_format,
                         const std::string& comment) {
  if (emit_format == "megatron") return interop::emit_megatron(run);
  if (emit_format == "torchtitan") return interop::emit_torchtitan(run);
  return {engine::run_yaml(run, comment), {}};
}

namespace {

/// Notes that sharded parameters beside whole gradients are no FSDP: the gradients of all
/// micro-batches are kept whole.
void note_gradients(std::FILE* messages, const engine::Run& run) {
  const parallel::Sharding& shard = run.plan.shard;
  if (shard.params == parallel::Shard::none || shard.grads != parallel::Shard::none ||
      !shard.reshard_after_backward || run.plan.num_micro_batches <= 1) {
    return;
  }
  fmt::print(messages,
             "note     plan.shard.grads is none: gradients stay whole over the {} micro-batches of "
             "a step, unlike FSDP's; try --set plan.shard.grads={}\n",
             run.plan.num_micro_batches, shard.params == parallel::Shard::all ? "all" : "group");
}

struct ConvertPlanOptions {
  PlanFile file;
  std::string emit, out;
  std::optional<int64_t> ranks;
};

int convert(const ConvertPlanOptions& options) {
  const char* verb = "hocket plan convert";
  const PlanFile& file = options.file;
  expect_formats(verb, file, options.emit);
  if (options.ranks && file.from.empty()) {
    fail(verb, "--ranks goes with --from; a run.yaml has its ranks; try --set plan.dp=N");
  }
  require_output("hocket plan convert --out", options.out, {file.path});
  require_writable("hocket plan convert --out", options.out);
  std::FILE* messages = message_stream(options.out.empty() ? "-" : options.out);
  std::string model_name;
  const engine::Run run =
      file.from.empty()
          ? read_source(file.path, file.overrides(), true).run
          : read_foreign(file, {.asked = options.ranks.value_or(0)}, true, messages, &model_name);
  note_model(messages, model_name, run);
  note_gradients(messages, run);
  if (options.ranks && run.plan.world() != *options.ranks) {
    fail(verb, "--ranks is {}; expected {}, which the plan has with the keys of --set",
         *options.ranks, run.plan.world());
  }
  const std::string comment =
      file.from.empty() ? "" : fmt::format("from {} ({})", file.path, file.from);
  const interop::Emitted emitted = text_of(run, options.emit, comment);
  for (const std::string& line : emitted.notes) {
    fmt::print(messages, "note     {}\n", line);
  }
  emit(options.out, emitted.text);
  return 0;
}

}  // namespace

void declare_plan_convert(Args& args) {
  auto options = std::make_shared<ConvertPlanOptions>();
  args.about("read or write the plan of another trainer",
             "Converts a run between our run.yaml, scripts of Megatron-LM and job files of "
             "torchtitan, with the plan that it has, and reads files of DeepSpeed, verl and "
             "Axolotl. Prints which options of a file are ignored, refuses unknown ones with the "
             "nearest name, and says which key a format cannot express. docs/interop.md lists the "
             "options.");
  add_plan_file(args, &options->file);
  args.option("--ranks", "N", &options->ranks, "ranks of the plan, where the file does not say", 1,
              int64_t{1} << 16);
  add_emit(args, &options->emit, "format to write, megatron or torchtitan; default: a run.yaml");
  args.option("--out", "FILE", &options->out, "file to write [-: standard output]");
  args.example(
      "hocket plan convert configs/qwen3-30b-a3b.yaml --set plan.pp=1 --set plan.shard.params=all "
      "--set plan.shard.grads=all --emit torchtitan --out job.toml",
      "a job file of torchtitan; --from torchtitan reads it");
  args.run([options] { return convert(*options); });
}

}  // namespace hocket::cli
