// SPDX-License-Identifier: Apache-2.0
// hocket generate
#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <iterator>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "checkpoint/model_weights.h"
#include "cli/inputs.h"
#include "cli/rank_output.h"
#include "cli/verbs.h"
#include "comm/run_on_all.h"
#include "data/tokenizer/tokenizer.h"
#include "train/evaluate.h"
#include "train/memory.h"
#include "train/sample.h"

namespace hocket::cli {
namespace {

std::string read_stdin() {
  std::string text;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, n);
  }
  return text;
}

struct GenerateOptions {
  std::string model, prompt, tokenizer, dtype = "f32";
  std::vector<std::string> set;
  int64_t seed = 1;
  train::GenerateOptions how;
  bool json = false;
};

void check_ranges(const train::GenerateOptions& how) {
  const auto range = [](const char* what, double value, double least, double most) {
    if (value < least || value > most) {
      fail("hocket generate", "{} is {}; expected {} to {}", what, value, least, most);
    }
  };
  range("--max-new-tokens", static_cast<double>(how.max_new_tokens), 1, 1e7);
  range("--temperature", how.temperature, 0, 100);
  range("--top-k", static_cast<double>(how.top_k), 0, 1e9);
  range("--top-p", how.top_p, 0, 1);
}

/// The tokenizer beside the model of `vocabulary` tokens, or the one that was named. Error: it is
/// not the model's.
data::Tokenizer load_tokenizer(const std::string& model_folder, const std::string& named,
                               int64_t vocabulary) {
  const std::string file = named.empty() ? join_path(model_folder, "tokenizer.json") : named;
  if (!file_exists(file)) {
    fail("hocket generate", "{} is not there; try --tokenizer FILE (a tokenizer.json)", file);
  }
  data::Tokenizer tokenizer = data::Tokenizer::load(file);
  if (!named.empty()) {
    if (tokenizer.vocab_size() > vocabulary) {
      fail("hocket generate",
           "the tokenizer of {} has {} tokens; expected at most the model's vocab_size {}", file,
           tokenizer.vocab_size(), vocabulary);
    }
    data::require_tokenizer_of(model_folder, tokenizer, file, "leave --tokenizer out");
  }
  return tokenizer;
}

/// Most tokens of the prompt, with those before it. Error: one that the model has not.
int64_t tokens_of(const train::GenerateOptions& how, const data::Tokenizer& tokenizer,
                  int64_t vocabulary) {
  const std::vector<int32_t> ids =
      tokenizer.encode(how.prompt, {.split_special_tokens = how.split_special_tokens});
  for (const int32_t id : ids) {
    if (id >= vocabulary) {
      fail("hocket generate",
           "the prompt has token {}, {}; expected one below the model's vocab_size {}", id,
           quote(tokenizer.token_bytes(id)), vocabulary);
    }
  }
  return std::ssize(ids) + std::max<int64_t>(1, std::ssize(tokenizer.spec().prefix));
}

/// Opens and checks model, tokenizer and weights one after the other, so that faults are reported
/// before the first token. Prints text while it is sampled, or JSON at the end.
int generate(const GenerateOptions& options) {
  check_ranges(options.how);
  require_dtype("hocket generate", options.dtype);
  const engine::Run run = model_run(options.model, options.dtype, options.set);
  const std::string& folder = run.config.model.path;
  const int64_t vocabulary = run.model.vocab_size;
  const data::Tokenizer tokenizer = load_tokenizer(folder, options.tokenizer, vocabulary);
  const checkpoint::ModelWeights weights(folder, run.model);
  train::GenerateOptions how = options.how;
  // With ranks as processes the first one has the input.
  runtime::LocalRanks ranks = engine::local_ranks(run);
  comm::Processes& processes = ranks.processes();
  how.prompt = options.prompt != "-"
                   ? options.prompt
                   : processes.broadcast(processes.index() == 0 ? read_stdin() : "");
  how.seed = static_cast<uint64_t>(options.seed);
  comm::expect_same(
      processes, "hocket generate", "sampling of",
      fmt::format("{} tokens, temperature {}, top_k {}, top_p {}, seed {}, a prompt "
                  "with hash {:x}{}",
                  how.max_new_tokens, how.temperature, how.top_k, how.top_p, how.seed,
                  hash64(how.prompt), how.split_special_tokens ? ", special tokens split" : ""));
  const int64_t prompt = tokens_of(how, tokenizer, vocabulary);
  const int64_t longest = prompt + how.max_new_tokens;
  warn_if_long(run.model, longest, "the prompt with --max-new-tokens");
  const engine::ProgramSpec program = engine::generation(run, longest);
  engine::Programs programs(run, ranks);
  programs.replace(program, train::compile_generation(run, longest));
  const engine::Compiled& compiled = programs.compiled(program);
  train::require_memory(run, compiled.program, train::generation_memory(compiled, prompt, longest));
  train::load_weights(weights, compiled, programs.store());
  if (!options.json) {
    // A pipe or file gets every byte, a terminal none that acts there.
    const bool terminal = ::isatty(STDOUT_FILENO) == 1;
    fmt::print("{}", terminal ? printable(how.prompt) : how.prompt);
    std::fflush(stdout);
    how.on_text = [terminal](const std::string& drawn) {
      const std::string text = terminal ? printable(drawn) : drawn;
      std::fwrite(text.data(), 1, text.size(), stdout);
      if (std::fflush(stdout) != 0) fail_run("hocket generate", "can't write to standard output");
    };
  }
  const std::string text = train::generate(run, tokenizer, programs.session(program), how);
  if (options.json) {
    JsonWriter json;
    json.object().member("prompt", how.prompt).member("text", text).end();
    fmt::print("{}", json.take());
  }
  fmt::print("\n");
  return 0;
}

}  // namespace

void verb_generate(Args& args) {
  // Declares options and help; generate() does the work.
  auto options = std::make_shared<GenerateOptions>();
  args.about("continue a prompt, token by token",
             "Prints the prompt and the generated text while it is sampled. The prompt stands "
             "at the beginning of a document: what the tokenizer puts before a text comes "
             "before it, else the end-of-text token, as in training. Keys and values are kept in a "
             "cache. The same seed draws the same "
             "text under every plan, as far as rounding lets it.");
  args.positional(
      "MODEL", &options->model,
      "a Hugging Face folder with a tokenizer.json, a checkpoint or run folder of ours, or "
      "a hub id in the local cache");
  args.option("--prompt", "TEXT", &options->prompt, "text to continue; -: read standard input");
  args.option("--max-new-tokens", "N", &options->how.max_new_tokens, "most tokens to generate");
  args.option("--temperature", "T", &options->how.temperature, "0: always the most likely token");
  args.option("--top-k", "K", &options->how.top_k, "only the K most likely tokens; 0: all");
  args.option("--top-p", "P", &options->how.top_p,
              "only the most likely tokens that make up this share");
  args.option("--seed", "S", &options->seed, "of the random choices");
  args.flag("--split-special-tokens", &options->how.split_special_tokens,
            "special tokens that stand in the prompt, such as <|im_start|>, are text like any "
            "other; without it they are the tokens, as in transformers");
  args.option(
      "--tokenizer", "FILE", &options->tokenizer,
      "for a model without one: tokenizer.json or its folder; default: that beside the model");
  add_set(args, &options->set);
  args.option("--dtype", "TYPE", &options->dtype,
              "of weights and activations: f32, f64, bf16, f16");
  args.flag("--json", &options->json,
            "{\"prompt\": ..., \"text\": ...} at the end instead of a stream");
  args.example("hocket generate runs/quickstart --prompt 'template <typename T> class '",
               "more C++ from the quickstart's model");
  args.example(
      "hocket generate runs/quickstart --prompt '#include <vec' --temperature 0 "
      "--max-new-tokens 20",
      "the most likely continuation");
  args.example("hocket launch -n 2 generate runs/quickstart --prompt 'struct ' --set plan.tp=2",
               "on two processes, each with half of every matrix");
  args.run([options] {
    redirect_output("");
    return generate(*options);
  });
}

}  // namespace hocket::cli
