// SPDX-License-Identifier: Apache-2.0
// hocket batch
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/apps/local_workers.h"
#include "cli/apps/served_model.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/rank_output.h"
#include "cli/verbs.h"
#include "comm/launch.h"
#include "serve/batch/api_answerer.h"
#include "serve/batch/master.h"
#include "serve/batch/row_answerer.h"
#include "serve/batch/worker.h"

namespace hocket::cli {
namespace {

constexpr const char* kBatchVerb = "hocket batch";
constexpr int64_t kBatchTokens = 200;
constexpr const char* kKeyVariable = "HOCKET_BATCH_KEY";
constexpr double kWorkersEnd = 20;  ///< seconds that workers have to end
constexpr int kInterruptedCode = 130;

struct BatchOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string input, out, chat_template, worker, listen = "127.0.0.1:0";
  std::string tool_parser = "auto", reasoning_parser = "auto";
  std::vector<std::string> names;
  int64_t samples = 1, workers = 1, slots = 64, max_losses = 5;
  double shard_s = 10, lease_timeout_s = 600, reconnect_s = 60;
  std::optional<int64_t> logprobs;
  bool ignore_eos = false, split_special_tokens = false, keep_parts = false;
};

std::pair<std::string, int> host_and_port(const char* option, const std::string& text) {
  const size_t colon = text.rfind(':');
  int64_t port = -1;
  if (colon == std::string::npos || !parse_int(text.substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    fail(kBatchVerb, "{} is {}; expected HOST:PORT", option, quote(text));
  }
  return {text.substr(0, colon), static_cast<int>(port)};
}

void check_batch_options(const BatchOptions& options) {
  require_dtype(kBatchVerb, options.model.dtype);
  const auto positive = [](const char* option, double value) {
    if (!(value > 0 && value < 1e9)) {
      fail(kBatchVerb, "{} is {}; expected seconds above 0", option, value);
    }
  };
  require_tool_parser(kBatchVerb, options.tool_parser);
  require_reasoning_parser(kBatchVerb, options.reasoning_parser);
  positive("--shard-seconds", options.shard_s);
  positive("--lease-timeout", options.lease_timeout_s);
  positive("--reconnect", options.reconnect_s);
  if (options.worker.empty()) {
    if (options.input.empty()) fail(kBatchVerb, "--input is missing; expected a .jsonl file");
    if (options.out.empty()) fail(kBatchVerb, "--out is missing; expected a folder");
  } else if (!options.input.empty() || !options.out.empty()) {
    fail(kBatchVerb, "--worker does not go with --input and --out: its master has these");
  }
}

/// Returns the sampling options that were given, as fields of a body of /v1/completions.
nlohmann::ordered_json body_defaults(const BatchOptions& options) {
  const SamplingOptions& given = options.sampling;
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();
  const auto add = [&](const char* name, const auto& value) {
    if (value) {
      fields[name] = *value;
    }
  };
  add("max_tokens", given.max_new_tokens);
  add("temperature", given.temperature);
  add("top_k", given.top_k);
  add("top_p", given.top_p);
  add("min_p", given.min_p);
  add("repetition_penalty", given.repetition_penalty);
  add("logprobs", options.logprobs);
  if (given.presence_penalty != 0) {
    fields["presence_penalty"] = given.presence_penalty;
  }
  if (given.frequency_penalty != 0) {
    fields["frequency_penalty"] = given.frequency_penalty;
  }
  if (options.samples > 1) {
    fields["n"] = options.samples;
  }
  if (!given.stops.empty()) {
    fields["stop"] = given.stops;
  }
  if (options.ignore_eos) {
    fields["ignore_eos"] = true;
  }
  return fields;
}

/// Everything that determines the results, as JSON: the master gives it to its workers.
std::string job_settings(const BatchOptions& options, const ModelFiles& files) {
  const ModelSampling chosen =
      choose_sampling(kBatchVerb, options.sampling, files.run.config.model.path, kBatchTokens);
  const serve::Sampling& sampling = chosen.sampling;
  const nlohmann::ordered_json settings = {
      {"model", file_name(options.model.model)},
      {"fingerprint", model_fingerprint(files)},
      {"chat_template", files.template_hash},
      {"max_model_len", options.model.engine.max_model_len},
      {"names", options.names},
      {"temperature", sampling.temperature},
      {"top_k", sampling.top_k},
      {"top_p", sampling.top_p},
      {"min_p", sampling.min_p},
      {"repetition_penalty", sampling.repetition_penalty},
      {"presence_penalty", sampling.presence_penalty},
      {"frequency_penalty", sampling.frequency_penalty},
      {"seed", sampling.seed},
      {"max_tokens", chosen.max_tokens},
      {"samples", options.samples},
      {"logprobs", options.logprobs.value_or(-1)},
      {"ignore_eos", options.ignore_eos},
      {"split_special_tokens", options.split_special_tokens},
      {"stops", options.sampling.stops},
      {"body", body_defaults(options).dump()},
      {"tool_parser",
       choose_tool_parser(options.tool_parser, files.tokenizer, files.chat_template)},
      {"splits_reasoning", splits_reasoning(options.reasoning_parser, files.tokenizer)}};
  return settings.dump();
}

// ---- worker ------------------------------------------------------------------------------------

serve::RowSettings row_settings(const std::string& text, const ModelFiles& files) {
  const nlohmann::json json = parse_json(text, "the job's settings");
  const JsonView view(json, "the job's settings");
  if (view.get_string("fingerprint") != model_fingerprint(files)) {
    fail(kBatchVerb, "the job is of the model {}, whose files or tokenizer are not those here",
         quote(view.get_string("model")));
  }
  if (const std::string job = view.get_string("chat_template"); job != files.template_hash) {
    const auto shown = [](const std::string& hash) {
      return hash.empty() ? "the model's own" : "a file with the hash " + hash;
    };
    fail(kBatchVerb, "the job's chat template is {}; got {}; try the master's --chat-template",
         shown(job), shown(files.template_hash));
  }
  serve::RowSettings settings;
  settings.sampling.temperature = view.get_double("temperature");
  settings.sampling.top_k = view.get_int("top_k");
  settings.sampling.top_p = view.get_double("top_p");
  settings.sampling.min_p = view.get_double("min_p");
  settings.sampling.repetition_penalty = view.get_double("repetition_penalty");
  settings.sampling.presence_penalty = view.get_double("presence_penalty");
  settings.sampling.frequency_penalty = view.get_double("frequency_penalty");
  settings.sampling.seed = static_cast<uint64_t>(view.get_int("seed"));
  settings.max_tokens = view.get_int("max_tokens");
  settings.samples = view.get_int("samples");
  settings.logprobs = view.get_int("logprobs");
  settings.split_special_tokens = view.get_bool("split_special_tokens");
  settings.stops = view.at("stops").as_strings();
  settings.body_defaults = view.get_string("body");
  if (!view.get_bool("ignore_eos")) {
    settings.stop_tokens = files.stop_tokens;
  }
  return settings;
}

/// A model that answers the rows of a worker.
class BatchModel {
 public:
  explicit BatchModel(const BatchOptions& options)
      : options_(options), files_(kBatchVerb, options.model, options.chat_template) {}

  /// Opens the engine for a job. Called once.
  serve::RowGenerator& open(const std::string& settings_text) {
    const serve::RowSettings settings = row_settings(settings_text, files_);
    const nlohmann::json json = parse_json(settings_text, "the job's settings");
    const JsonView view(json, "the job's settings");
    open_engine(view.get_int("max_model_len"), settings.logprobs);
    serve::RowModel model;
    model.service = engine_.get();
    model.tokenizer = &files_.tokenizer;
    model.chat_template = files_.chat_template ? &*files_.chat_template : nullptr;
    model.beginning = files_.beginning;
    model.openai = openai(settings, view);
    answerer_ = std::make_unique<serve::RowAnswerer>(std::move(model), settings);
    // Two rows per text at a time: the engine's queue is never empty.
    const int64_t rows = std::max<int64_t>(1, 2 * options_.slots / settings.samples);
    generator_ = serve::pooled_generator(
        rows, [this](const serve::InputRow& row, const std::function<bool()>& cancelled) {
          return answerer_->answer(row, cancelled);
        });
    return *generator_;
  }

 private:
  /// Opens the engine with the job's window: it decides which rows are errors.
  void open_engine(int64_t window, int64_t logprobs) {
    serve::EngineOptions engine = options_.model.engine;
    if (engine.max_model_len != 0 && engine.max_model_len != window) {
      fail(kBatchVerb, "--max-model-len is {}, but the job's is {}; try without it",
           engine.max_model_len, window);
    }
    engine.max_model_len = window;
    engine.max_num_seqs = options_.slots;
    engine.max_logprobs = std::max(engine.max_logprobs, logprobs);
    engine_ = std::make_unique<serve::ModelEngine>(files_.run, files_.tokenizer, engine);
    if (window == 0 && engine_->max_model_len() < files_.run.model.max_position) {
      log_warning(
          "this worker's KV cache holds texts of {} tokens, of the model's {}: longer rows are "
          "errors here; give the master a --max-model-len that all workers can hold",
          engine_->max_model_len(), files_.run.model.max_position);
    }
  }

  serve::BodyAnswerer openai(const serve::RowSettings& settings, const JsonView& job) {
    serve::ApiOptions api;
    api.names = job.at("names").as_strings();
    api.names.push_back(options_.model.model);
    api.root = options_.model.model;
    api.stop_tokens = files_.stop_tokens;
    api.beginning = files_.beginning;
    set_model_options(files_.run, files_.tokenizer,
                      data::read_sampling_defaults(files_.run.config.model.path), &api);
    api.tool_parser = job.get_string("tool_parser");
    api.splits_reasoning = job.get_bool("splits_reasoning");
    api.limits.max_logprobs = std::max(api.limits.max_logprobs, settings.logprobs);
    api.max_streams = 4 * options_.slots;
    return serve::api_answerer(std::move(api), *engine_, files_.tokenizer,
                               files_.chat_template ? &*files_.chat_template : nullptr);
  }

  const BatchOptions& options_;
  const ModelFiles files_;
  std::unique_ptr<serve::ModelEngine> engine_;
  std::unique_ptr<serve::RowAnswerer> answerer_;
  std::unique_ptr<serve::RowGenerator> generator_;
};

int run_worker(const BatchOptions& options) {
  if (comm::launch_info().size > 1) {
    fail(kBatchVerb, "a worker is one process; start several workers in place of hocket launch");
  }
  const char* key = std::getenv(kKeyVariable);
  if (!key) {
    fail(kBatchVerb, "--worker needs the job's key in {}; its master prints it", kKeyVariable);
  }
  const Interrupt interrupt;
  BatchModel model(options);
  serve::BatchWorkerOptions worker;
  std::tie(worker.host, worker.port) = host_and_port("--worker", options.worker);
  worker.key = key;
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  worker.name = fmt::format("{}:{}", host, ::getpid());
  worker.reconnect_s = options.reconnect_s;
  worker.generator = [&](const std::string& text) -> serve::RowGenerator& {
    return model.open(text);
  };
  worker.stop = [] { return Interrupt::came(); };
  serve::run_batch_worker(worker);
  return Interrupt::came() ? kInterruptedCode : 0;
}

// ---- master ------------------------------------------------------------------------------------

/// Words of a local worker: those of this command that concern the model.
std::vector<std::string> worker_words(const BatchOptions& options, int port) {
  std::vector<std::string> words = {"batch", options.model.model, "--worker",
                                    fmt::format("127.0.0.1:{}", port)};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) {
      words.insert(words.end(), {option, value});
    }
  };
  add("--adapter", options.model.adapter);
  add("--tokenizer", options.model.tokenizer);
  add("--dtype", options.model.dtype);
  add("--chat-template", options.chat_template);
  add("--max-num-seqs", std::to_string(options.slots));
  for (const std::string& set : options.model.set) {
    add("--set", set);
  }
  return words;
}

void print_summary(const BatchOptions& options, const serve::BatchSummary& summary) {
  if (!summary.is_complete) {
    print_line("stopped; the same command goes on");
    return;
  }
  const int64_t fresh = summary.rows - summary.restored;
  print_line(fmt::format("{}: {} answered, {} wrong (errors.jsonl), {} empty; {} + {} tokens{}",
                         counted(summary.rows, "row"), summary.outputs, summary.errors,
                         summary.blanks, summary.prompt_tokens, summary.tokens,
                         summary.was_complete ? "; the job was complete" : ""));
  if (!summary.was_complete && fresh > 0 && summary.seconds > 0) {
    print_line(fmt::format(
        "{} in {}: {:.3g} rows/s, {:.3g} tokens/s", counted(fresh, "row"),
        human_time(summary.seconds), static_cast<double>(fresh) / summary.seconds,
        static_cast<double>(summary.tokens - summary.restored_tokens) / summary.seconds));
  }
  print_line(fmt::format("results: {}", join_path(options.out, "output.jsonl")));
}

int run_master(const BatchOptions& options) {
  serve::BatchMasterOptions master;
  {
    // A model that cannot be used is reported before any process starts.
    const ModelFiles files(kBatchVerb, options.model, options.chat_template);
    master.settings = job_settings(options, files);
  }
  master.input = options.input;
  master.folder = options.out;
  std::tie(master.host, master.port) = host_and_port("--listen", options.listen);
  master.shards.target_s = options.shard_s;
  master.shards.lease_timeout_s = options.lease_timeout_s;
  master.shards.max_losses = static_cast<int>(options.max_losses);
  master.keep_parts = options.keep_parts;
  int port = 0;
  LocalWorkers workers(options.workers, [&](int64_t) { return worker_words(options, port); });
  Progress progress;
  const Interrupt interrupt;
  master.on_listen = [&](int at, const std::string& key) {
    port = at;
    ::setenv(kKeyVariable, key.c_str(), 1);
    if (!options.listen.starts_with("127.")) {
      print_line(fmt::format("more workers: {}={} hocket batch MODEL --worker THIS_HOST:{}",
                             kKeyVariable, key, at));
    }
    workers.start();
  };
  master.tend = [&](int64_t rows) { workers.tend(rows); };
  master.progress = [&](const std::string& state) { progress.update(state); };
  master.stop = [] { return Interrupt::came(); };
  const serve::BatchSummary summary = serve::run_batch_master(master);
  progress.finish();
  workers.join(summary.is_complete ? kWorkersEnd : 0);
  print_summary(options, summary);
  return summary.is_complete ? 0 : kInterruptedCode;
}

void declare_batch_options(Args& args, BatchOptions* options) {
  args.option("--input", "FILE", &options->input,
              "file of a row a line: a string, {\"prompt\": ...}, {\"messages\": [...]}, or a line "
              "of OpenAI's batches, {\"custom_id\", \"method\", \"url\", \"body\"}");
  args.option("--out", "FOLDER", &options->out,
              "folder of the job: output.jsonl, errors.jsonl, journal");
  args.option("--workers", "N", &options->workers,
              "worker processes on this machine; 0: only those that come from elsewhere", 0, 1024);
  args.option("--listen", "HOST:PORT", &options->listen,
              "address that workers connect to; 0.0.0.0:PORT: also those of other hosts (a trusted "
              "network: nothing is encrypted)");
  args.option("--worker", "HOST:PORT", &options->worker,
              "work for the master there, whose key is in HOCKET_BATCH_KEY");
  args.option("--samples", "N", &options->samples, "texts per row", 1, 1 << 20);
  add_sampling_options(args, &options->sampling, kBatchTokens);
  args.option("--logprobs", "K", &options->logprobs,
              "add the log-probability of every token of a text, and the K most likely tokens in "
              "its place",
              0, 1000);
  args.flag("--split-special-tokens", &options->split_special_tokens,
            "read special tokens that stand in a prompt as text like any other; rows with messages "
            "or a body are then errors");
  args.flag("--ignore-eos", &options->ignore_eos, "go on beyond the model's stop tokens");
  args.list("--served-model-name", "NAME", &options->names,
            "name that a row's body may have as its model, beside MODEL; one or more");
  args.option("--max-num-seqs", "N", &options->slots, "most texts in a batch of a worker", 1,
              1 << 16);
  args.option("--chat-template", "FILE", &options->chat_template,
              "file with a Jinja template, in place of the model's");
  args.option("--tool-call-parser", "NAME", &options->tool_parser,
              "form of calls in answers to rows with tools, as for hocket serve");
  args.option("--reasoning-parser", "NAME", &options->reasoning_parser,
              "form of reasoning in answers to rows with a body, as for hocket serve");
  args.option("--shard-seconds", "S", &options->shard_s,
              "seconds of work of a worker between two results, the most that its loss costs");
  args.option("--lease-timeout", "S", &options->lease_timeout_s,
              "reassign a worker's rows if it finishes none for this many seconds");
  args.option("--max-losses", "N", &options->max_losses,
              "give up a row after this many workers died on it", 2, 1000);
  args.option("--reconnect", "S", &options->reconnect_s,
              "for --worker: seconds without a master after which the worker ends");
  args.flag("--keep-parts", &options->keep_parts, "keep the shards' results after the merge");
  add_model_options(args, &options->model);
}

}  // namespace

void verb_batch(Args& args) {
  auto options = std::make_shared<BatchOptions>();
  args.about(
      "answer the rows of a large file, on any number of workers",
      "A master cuts the input into shards, which workers take as they can: fast ones more, "
      "slow ones less. Each row's result is kept exactly once, whatever process ends, in the "
      "order of the input; rows that are wrong go to errors.jsonl, with their line. The same "
      "command goes on with a job that was stopped.");
  args.positional(
      "MODEL", &options->model.model,
      "a Hugging Face folder with a tokenizer.json, a GGUF file, a checkpoint or run folder of "
      "ours, or a hub id in the local cache");
  args.positional_option("--model");
  declare_batch_options(args, options.get());
  args.example("hocket batch MODEL --input prompts.jsonl --out answers",
               "a file on this machine; again, to go on");
  args.example(
      "hocket batch MODEL --input prompts.jsonl --out answers --listen 0.0.0.0:7000 --workers 0",
      "a master for workers on other hosts");
  args.run([options] {
    redirect_output("");
    check_batch_options(*options);
    return options->worker.empty() ? run_master(*options) : run_worker(*options);
  });
}

}  // namespace hocket::cli
