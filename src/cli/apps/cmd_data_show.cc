// SPDX-License-Identifier: Apache-2.0
// hocket data show
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/resolve.h"
#include "cli/apps/data_commands.h"
#include "cli/apps/data_show.h"
#include "cli/apps/prompts_show.h"
#include "cli/inputs.h"
#include "gguf/file.h"

namespace hocket::cli {
namespace {

constexpr const char* kShow = "hocket data show";

struct ShowOptions {
  std::vector<std::string> inputs, set;
  std::string model, format, chat_template, train_on, truncate, split = "train", out = "-";
  std::optional<int64_t> seq_len, seed;
  std::optional<double> valid_fraction;
  int64_t count = 3, limit = 0;
  bool no_packing = false, split_special_tokens = false, json = false;
};

bool is_run(const std::string& path) { return path.ends_with(".yaml") || path.ends_with(".yml"); }

/// Sets an enum by its name. Throws Error for another one, with the names there are.
template <class Enum>
void choose(const char* flag, const std::string& name, Enum* value) {
  if (name.empty()) return;
  const auto names = names_of(Enum{});
  std::vector<std::string> known;
  for (size_t i = 0; i < names.size(); ++i) {
    if (name == names[i]) {
      *value = static_cast<Enum>(i);
      return;
    }
    known.emplace_back(names[i]);
  }
  fail(kShow, "{} is {}; expected {}", flag, quote(name), join(known, ", "));
}

/// Returns the folder, or the GGUF file, that has a model's tokenizer.
std::string text_folder(const std::string& model) {
  if (gguf::is_gguf(model) || file_exists(join_path(model, "tokenizer.json"))) return model;
  const checkpoint::ModelLocation found =
      checkpoint::resolve_model(model, checkpoint::Need::config);
  return found.folder.empty() ? parent_path(found.config_file) : found.folder;
}

/// Makes the section that of a set of data.evaluation, where `split` names one. Throws Error for an
/// unknown name.
void choose_split(const std::string& split, engine::DataSection* section) {
  if (split == "train" || split == "valid") return;
  std::vector<std::string> known = {"train", "valid"};
  for (const engine::EvaluationSection& set : section->evaluation) {
    if (set.name == split) {
      *section = section->of(engine::EvaluationSection(set));
      return;
    }
    known.push_back(set.name);
  }
  fail(kShow, "--split is {}; expected {}", quote(split), join(known, ", "));
}

/// Shows prompts of a run with objective: rl. Flags for examples are refused.
int show_prompts_of(engine::Run& run, const ShowOptions& given, const ShowStyle& style) {
  const std::pair<const char*, bool> flags[] = {
      {"--model", !given.model.empty()},
      {"--format", !given.format.empty()},
      {"--chat-template", !given.chat_template.empty()},
      {"--train-on", !given.train_on.empty()},
      {"--truncate", !given.truncate.empty()},
      {"--seq-len", given.seq_len.has_value()},
      {"--seed", given.seed.has_value()},
      {"--valid-fraction", given.valid_fraction.has_value()},
      {"--limit", given.limit > 0},
      {"--no-packing", given.no_packing},
      {"--split-special-tokens", given.split_special_tokens}};
  for (const auto& [flag, is_given] : flags) {
    if (is_given) {
      fail(kShow, "{} is of examples, and objective is rl; expected a key of the run; try --set",
           flag);
    }
  }
  engine::derive(run);
  emit(given.out, show_prompts(run, given.split, given.count, given.json, style));
  return 0;
}

/// Gives a configuration what flags say, and makes its section data that of the split.
void take_flags(const ShowOptions& given, engine::RunConfig& config) {
  engine::DataSection& section = config.data;
  if (!given.format.empty()) {
    for (data::SourceOptions& source : section.sources) {
      source.format = given.format;
    }
  }
  if (!given.model.empty()) {
    config.model.path = given.model;
  }
  if (config.model.path.empty()) {
    fail(kShow, "no model, whose tokenizer and chat template read the data; try --model MODEL");
  }
  if (!given.chat_template.empty()) {
    section.chat_template = given.chat_template;
  }
  choose("--train-on", given.train_on, &section.train_on);
  choose("--truncate", given.truncate, &section.truncate);
  section.packing &= !given.no_packing;
  section.split_special_tokens |= given.split_special_tokens;
  section.valid_fraction = given.valid_fraction.value_or(section.valid_fraction);
  choose_split(given.split, &section);
}

int show(const ShowOptions& given) {
  const bool terminal = given.out == "-" && ::isatty(STDOUT_FILENO) == 1;
  const ShowStyle style = {.colour = terminal && std::getenv("NO_COLOR") == nullptr,
                           .terminal = terminal};
  engine::RunConfig config;
  const bool run = is_run(given.inputs[0]);
  if (run) {
    if (given.inputs.size() > 1) {
      fail(kShow, "got {} behind a run.yaml; expected that alone, or files", given.inputs[1]);
    }
    engine::Run resolved = engine::resolve_run(given.inputs[0], given.set);
    if (resolved.config.objective == engine::Objective::rl) {
      return show_prompts_of(resolved, given, style);
    }
    config = std::move(resolved.config);
    if (config.data.sources.empty()) {
      fail(given.inputs[0], "no data.sources; expected some, or files in place of a run.yaml");
    }
  } else {
    if (!given.set.empty()) fail(kShow, "--set needs a run.yaml; without one use the flags");
    config.data.valid_fraction = 0;
    for (const std::string& path : given.inputs) {
      data::SourceOptions& source = config.data.sources.emplace_back();
      source.path = path;
    }
  }
  take_flags(given, config);
  engine::ExampleDataOptions options;
  options.where = kShow;
  options.model = text_folder(config.model.path);
  options.seq_len = given.seq_len.value_or(config.train.seq_len);
  options.seed = static_cast<uint64_t>(given.seed.value_or(config.train.seed));
  // As a training of the run reads and packs them (train/training_examples.cc).
  options.unpair = config.objective == engine::Objective::kto;
  options.most_examples = config.prefers() ? config.preference.answers_per_sequence : 0;
  options.limit = given.limit;
  Progress progress;
  options.progress = [&](const std::string& what) { progress.update(what); };
  const engine::ExampleData data = engine::read_example_data(config.data, options);
  progress.finish();
  const bool valid = given.split != "train";
  emit(given.out, given.json ? show_json(data, valid, given.count, config.preference)
                             : show_text(data, valid, given.count, config.preference, style));
  return 0;
}

}  // namespace

void declare_data_show(Args& args) {
  auto options = std::make_shared<ShowOptions>();
  args.about(
      "fine-tuning data as the model sees it, with the tokens that are trained",
      "Reads data.sources of a run.yaml, or files, with a model's tokenizer and chat template. "
      "Shows "
      "the first examples in the order of training, as they are after truncation: trained tokens "
      "in colour, or between \u27e6 and \u27e7 where the output is no terminal. Then sizes, "
      "lengths, and "
      "whatever was left out, with the reasons. A set without a trained token is an error. Of a "
      "run with objective: rl it shows the prompts as they are sampled from, with their ground "
      "truths.");
  args.positional("RUN | FILE", &options->inputs,
                  "a run.yaml, or files, folders and globs in quotes (docs/data-formats.md)");
  args.option("--model", "MODEL", &options->model,
              "a folder or GGUF file with the tokenizer; default: model.path");
  args.option("--chat-template", "FILE", &options->chat_template,
              "a Jinja template in place of the model's; default: data.chat_template");
  args.option("--format", "NAME", &options->format,
              "layout of the files' columns; default: by the first example");
  args.option(
      "--train-on", "PART", &options->train_on,
      "part of a chat that training learns: assistant, last or all; default: data.train_on");
  args.option("--seq-len", "N", &options->seq_len,
              "tokens of a row; a longer example is truncated; default: train.seq_len", 2, 1 << 27);
  args.option("--truncate", "MODE", &options->truncate,
              "treatment of an example that is too long: keep_start, drop or refuse; default: "
              "data.truncate");
  args.flag("--no-packing", &options->no_packing,
            "put one example into a row; default: data.packing");
  args.flag("--split-special-tokens", &options->split_special_tokens,
            "read special tokens that stand in the examples' texts as text like any other; "
            "default: data.split_special_tokens");
  args.option("--split", "SPLIT", &options->split,
              "examples to show: train; valid, those held out; or a name in data.evaluation");
  args.option("--valid-fraction", "F", &options->valid_fraction,
              "share of the examples that is held out; default: data.valid_fraction, for files 0");
  args.option("-n", "N", &options->count, "examples to show; a row of several is shown whole", 0,
              1 << 30);
  args.option("--limit", "N", &options->limit, "most examples to read of each source; 0: all", 0,
              int64_t{1} << 40);
  args.option("--seed", "S", &options->seed, "seed of the order of rows; default: train.seed", 0,
              INT64_MAX);
  args.option("--out", "FILE", &options->out, "output file; -: standard output");
  args.flag("--json", &options->json,
            "print as JSON: ids, trained, texts and positions of the examples, and all counts");
  add_set(args, &options->set);
  args.example(
      "hocket data show configs/chat-sample.jsonl --model runs/quickstart/tokenizer "
      "--chat-template configs/chatml.jinja",
      "a small chat set, by a tokenizer and a template");
  args.example(
      "hocket data show configs/chat-sample.jsonl --model runs/quickstart/tokenizer "
      "--chat-template configs/chatml.jinja --train-on last --seq-len 256 --json",
      "the last answers alone, for a program");
  args.run([options] { return show(*options); });
}

}  // namespace hocket::cli
