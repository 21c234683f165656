// SPDX-License-Identifier: Apache-2.0
// hocket eval
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/model_weights.h"
#include "checkpoint/resolve.h"
#include "cli/inputs.h"
#include "cli/rank_output.h"
#include "cli/verbs.h"
#include "comm/run_on_all.h"
#include "data/model_text.h"
#include "engine/memory.h"
#include "engine/weights.h"
#include "graph/finite.h"
#include "run/describe.h"
#include "train/choices.h"
#include "train/evaluate.h"
#include "train/preflight.h"

namespace hocket::cli {
namespace {

using Lists = std::vector<std::vector<int32_t>>;

/// The parameters of a program on all ranks.
void load(const engine::Run& run, const engine::Compiled& compiled, const runtime::Store& store) {
  engine::require_memory(run, compiled.program);
  engine::load_weights(engine::open_weights(run), compiled, store);
}

/// Loads the parameters of forward programs.
void load(const engine::Run& run, const runtime::Store& store) {
  load(run, engine::compile(engine::logits(run, {.num_micro_batches = 1})), store);
}

/// Next-token loss of lists, from their logits.
class NextTokenLoss {
 public:
  explicit NextTokenLoss(int64_t vocab) : vocab_(static_cast<size_t>(vocab)) {}
  void add(const std::vector<int32_t>& list, const std::vector<float>& logits) {
    for (size_t t = 0; t + 1 < list.size(); ++t, ++count_) {
      const float* row = logits.data() + t * vocab_;
      double top = row[0], total = 0;
      for (size_t v = 1; v < vocab_; ++v) {
        top = std::max(top, static_cast<double>(row[v]));
      }
      for (size_t v = 0; v < vocab_; ++v) {
        total += std::exp(row[v] - top);
      }
      sum_ += top + std::log(total) - row[list[t + 1]];
    }
  }
  /// Mean loss; nan without a next token.
  double mean() const { return count_ > 0 ? sum_ / static_cast<double>(count_) : std::nan(""); }

 private:
  size_t vocab_;
  double sum_ = 0;
  int64_t count_ = 0;
};

constexpr int64_t kTextContext = 1024;  // tokens; fits the logits of one window in memory

/// Documents cut into windows that overlap by one token: each token but a document's first is
/// predicted once.
class TextWindows {
 public:
  explicit TextWindows(int64_t context) : context_(context) {}
  /// `bytes`: of the tokens that are predicted.
  void add(const std::vector<int32_t>& ids, int64_t bytes) {
    for (int64_t begin = 0; begin + 1 < std::ssize(ids); begin += context_ - 1) {
      const int64_t end = std::min(std::ssize(ids), begin + context_);
      lists_.emplace_back(ids.begin() + begin, ids.begin() + end);
      targets_ += end - begin - 1;
    }
    bytes_ += bytes;
  }
  const Lists& lists() const { return lists_; }
  int64_t targets() const { return targets_; }
  int64_t bytes() const { return bytes_; }

 private:
  const int64_t context_;
  Lists lists_;
  int64_t targets_ = 0, bytes_ = 0;
};

/// Bytes of text of the first id.
int64_t first_bytes(const data::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  return std::ssize(tokenizer.token_bytes(ids[0]));
}

void save_logits(const std::string& path, const Lists& ids,
                 const std::vector<std::vector<float>>& logits, int64_t vocab) {
  std::vector<checkpoint::NamedTensor> tensors;
  for (size_t i = 0; i < logits.size(); ++i) {
    tensors.push_back({fmt::format("logits.{}", i),
                       {graph::DType::f32, {static_cast<int64_t>(ids[i].size()), vocab}, 0},
                       logits[i].data()});
  }
  checkpoint::save_safetensors(path, tensors);
}

void save_grads(const std::string& path, const engine::Run& run,
                const train::Gradients& gradients) {
  const checkpoint::ModelWeights weights = engine::open_weights(run);
  std::vector<checkpoint::SlicedParameter> params;
  for (const auto& [param, bytes] : gradients.grads) {
    params.push_back({{param.name, param.type, bytes.data()}, weights.slices(param.name)});
  }
  checkpoint::save_safetensors(path, checkpoint::to_stored(params));
}

uint64_t hash_of(const Lists& ids) {
  uint64_t hash = 0;
  for (const std::vector<int32_t>& list : ids) {
    hash = hash64({reinterpret_cast<const char*>(list.data()), list.size() * sizeof(int32_t)},
                  hash + list.size());
  }
  return hash;
}

struct EvalOptions {
  std::vector<std::string> given;  // MODEL, then files of text
  std::string adapter, ids, logits, grads, data, choices, details, tokenizer, dtype = "f32";
  std::vector<std::string> set;
  int64_t sequences = 0, context = 0;
  bool json = false;
};

/// Prints the result of --ids: lists, and the mean loss of a next token (nan if no list has one).
void print_ids(const EvalOptions& options, const Lists& ids, double loss) {
  int64_t tokens = 0;
  for (const auto& list : ids) {
    tokens += static_cast<int64_t>(list.size());
  }
  if (options.json) {
    JsonWriter json;
    json.object().member("lists", ids.size()).member("tokens", tokens).member("loss", loss);
    if (!options.logits.empty()) {
      json.member("logits", options.logits);
    }
    if (!options.grads.empty()) {
      json.member("grads", options.grads);
    }
    json.end();
    fmt::print("{}\n", json.take());
    return;
  }
  std::FILE* messages = message_stream(options.logits == "-" ? options.logits : options.grads);
  fmt::print(messages, "{}, {}", counted(static_cast<int64_t>(ids.size()), "list"),
             counted(tokens, "token"));
  if (!std::isnan(loss)) {
    fmt::print(messages, ", mean next-token loss {:.6f}", loss);
  }
  fmt::print(messages, "\n");
  for (const std::string* path : {&options.logits, &options.grads}) {
    if (!path->empty()) {
      fmt::print(messages, "wrote {}\n", *path);
    }
  }
}

/// A token of a list.
struct TokenPosition {
  size_t list = 0;
  int64_t token = 0;
};

/// Throws Error with the place if a logit, a gradient or the loss is infinite or no number.
/// `bad_logit`: the first token with such a logit.
void require_finite(const engine::Run& run, const std::optional<TokenPosition>& bad_logit,
                    const train::Gradients& gradients, double loss) {
  const std::string& model = run.config.model.path;
  if (bad_logit) {
    fail_run(
        "hocket eval",
        "the logits of {} are not finite, from token {} of list {} on: a value of the model is "
        "not, or one in between overflows",
        model, bad_logit->token, bad_logit->list);
  }
  for (const auto& [param, bytes] : gradients.grads) {
    if (!graph::all_finite(param.type.dtype, bytes.data(), param.type.numel())) {
      fail_run("hocket eval", "the gradient of {} in {} is not finite", param.name, model);
    }
  }
  if (std::isinf(loss)) fail_run("hocket eval", "the loss of {} is {}", model, loss);
}

/// Returns the static check of programs that evaluate.
engine::Programs::Inspect checked(const engine::Run& run) {
  return [&run](const engine::Compiled& compiled) {
    engine::expect_proven(run, compiled, "evaluates");
  };
}

/// Evaluates lists of tokens. The logits of all are formed always, since the loss is read off them.
/// With --save-grads also the gradients are, and the loss is that of their program.
int on_ids(const EvalOptions& options, const engine::Run& run) {
  const Lists ids = train::read_ids(options.ids, run.model.vocab_size);
  size_t longest = 0;
  for (const auto& list : ids) {
    longest = std::max(longest, list.size());
  }
  warn_if_long(run.model, static_cast<int64_t>(longest), "the longest list");
  runtime::LocalRanks ranks = engine::local_ranks(run);
  comm::expect_same(
      ranks.processes(), "hocket eval", "--ids of",
      fmt::format("{}, hash {:x}, {} gradients", counted(static_cast<int64_t>(ids.size()), "list"),
                  hash_of(ids), options.grads.empty() ? "without" : "with"));
  engine::Programs programs(run, ranks, checked(run));
  load(run, programs.store());
  // Every process has the collected results; one writes them.
  const bool writes = ranks.processes().index() == 0;
  const bool saves_logits = !options.logits.empty() && writes;
  NextTokenLoss next_tokens(run.model.vocab_size);
  std::vector<std::vector<float>> kept(saves_logits ? ids.size() : 0);
  std::optional<TokenPosition> bad_logit;
  train::for_each_logits(run, ids, programs, [&](size_t list, std::vector<float> logits) {
    next_tokens.add(ids[list], logits);
    const int64_t bad =
        graph::first_not_finite(graph::DType::f32, logits.data(), std::ssize(logits));
    if (bad >= 0 && (!bad_logit || list < bad_logit->list)) {
      bad_logit = TokenPosition{list, bad / run.model.vocab_size};
    }
    if (saves_logits) {
      kept[list] = std::move(logits);
    }
  });
  double loss = next_tokens.mean();
  if (saves_logits) {
    save_logits(options.logits, ids, kept, run.model.vocab_size);
  }
  train::Gradients gradients;
  if (!options.grads.empty()) {
    load(run, programs.compiled(train::gradient_spec(run, ids)), programs.store());
    gradients = train::gradients_of(run, ids, programs);
    loss = gradients.loss;
    if (writes) {
      save_grads(options.grads, run, gradients);
    }
  }
  // The requested output is written all the same, since it locates the fault.
  require_finite(run, bad_logit, gradients, loss);
  print_ids(options, ids, loss);
  return 0;
}

/// Throws Error unless the model can read the data, and the data is unchanged since it was
/// prepared.
void check_data(const engine::Run& run, const data::Dataset& dataset) {
  if (dataset.tokenizer().vocab_size() > run.model.vocab_size) {
    fail("hocket eval", "the tokenizer of {} has {} tokens; the model has {}", dataset.folder(),
         dataset.tokenizer().vocab_size(), run.model.vocab_size);
  }
  data::require_tokenizer_of(
      run.config.model.path, dataset.tokenizer(), dataset.folder(),
      "prepare the data again with `--tokenizer " + run.config.model.path + "`");
  if (dataset.valid() != nullptr) {
    dataset.valid()->verify();
  }
}

/// The held-out files of a folder, or --sequences of them, under the plan.
int on_data(const EvalOptions& options, const engine::Run& run) {
  if (options.sequences < 0) fail("hocket eval", "--sequences is negative");
  const std::unique_ptr<train::TrainingData> data =
      train::training_texts(run, data::Dataset(train::data_dir(run)));
  const data::Dataset& dataset = *data->texts();
  check_data(run, dataset);
  runtime::LocalRanks ranks = engine::local_ranks(run);
  comm::expect_same(ranks.processes(), "hocket eval", "data",
                    fmt::format("{}, --sequences {}", dataset.fingerprint(), options.sequences));
  engine::Programs programs(run, ranks, checked(run));
  load(run, programs.store());
  train::Evaluator evaluator(run, *data, programs);
  Progress progress;
  const std::vector<train::HeldOut> sets =
      evaluator.run(options.sequences, [&](int64_t done, int64_t total) {
        progress.update(fmt::format("evaluation {}/{} sequences", done, total));
      });
  const train::HeldOut& held_out = sets.front();
  progress.finish();
  if (!std::isfinite(held_out.loss())) {
    fail_run("hocket eval", "the loss on {} is {}: the model's values are not finite",
             dataset.folder(), held_out.loss());
  }
  if (options.json) {
    JsonWriter json;
    json.object()
        .member("eval/loss", held_out.loss())
        .member("eval/bits_per_byte", held_out.bits_per_byte())
        .member("targets", held_out.targets)
        .member("bytes", held_out.bytes)
        .member("data", dataset.folder())
        .end();
    fmt::print("{}\n", json.take());
  } else {
    fmt::print("{}: loss {:.4f}, {:.4f} bits/byte ({} tokens, {} bytes held out)\n",
               dataset.folder(), held_out.loss(), held_out.bits_per_byte(), held_out.targets,
               held_out.bytes);
  }
  return 0;
}

/// Options that contradict each other are refused before the model is opened.
void check_eval_options(const EvalOptions& options) {
  if (options.ids.empty() && (!options.logits.empty() || !options.grads.empty())) {
    fail("hocket eval", "--save-logits and --save-grads need --ids FILE");
  }
  if ((options.logits == "-") + (options.grads == "-") + options.json > 1) {
    fail("hocket eval",
         "--json, --save-logits - and --save-grads - all go to standard output; "
         "expected one of them there");
  }
  if (!options.logits.empty() && options.logits == options.grads && options.logits != "-") {
    fail("hocket eval", "--save-logits and --save-grads both go to {}; expected two files",
         options.logits);
  }
  const bool has_text = options.given.size() > 1;
  const bool has_choices = !options.choices.empty();
  if (!options.ids.empty() + !options.data.empty() + has_text + has_choices > 1) {
    fail("hocket eval", "got more than one of FILE, --ids, --choices and --data; expected one");
  }
  if (!has_text && options.context != 0) fail("hocket eval", "--context needs a FILE of text");
  if (!has_text && !has_choices && !options.tokenizer.empty()) {
    fail("hocket eval", "--tokenizer needs a FILE of text, or --choices");
  }
  if (!has_choices && !options.details.empty()) {
    fail("hocket eval", "--details needs --choices FILE");
  }
  require_dtype("hocket eval", options.dtype);
}

/// Files of text, each a document.
int on_text(const EvalOptions& options, const engine::Run& run) {
  const std::string& model = run.config.model.path;
  const int64_t vocabulary = run.model.vocab_size;
  const data::Tokenizer tokenizer =
      data::load_model_tokenizer("hocket eval", model, options.tokenizer, vocabulary);
  int64_t context = options.context > 0 ? options.context : kTextContext;
  if (run.model.max_position > 0 && options.context == 0) {
    context = std::min(context, run.model.max_position);
  }
  if (context < 2) {
    fail("hocket eval", "a window has {}; expected 2 or more: its first token is not predicted",
         counted(context, "token"));
  }
  warn_if_long(run.model, context, "--context");
  TextWindows windows(context);
  const std::vector<int32_t> beginning = data::beginning_of_text(model, tokenizer);
  for (size_t i = 1; i < options.given.size(); ++i) {
    const std::string text = read_file(options.given[i]);
    const auto ids = data::document_ids("hocket eval", beginning, tokenizer, text, vocabulary);
    // Without a token before it, the text's first token is not predicted.
    windows.add(ids, std::ssize(text) - (beginning.empty() ? first_bytes(tokenizer, ids) : 0));
  }
  if (windows.targets() == 0) fail("hocket eval", "the text has no token to predict");
  runtime::LocalRanks ranks = engine::local_ranks(run);
  comm::expect_same(ranks.processes(), "hocket eval", "text of",
                    fmt::format("{}, hash {:x}", counted(std::ssize(windows.lists()), "window"),
                                hash_of(windows.lists())));
  engine::Programs programs(run, ranks, checked(run));
  load(run, programs.store());
  double nats = 0;
  Progress progress;
  train::for_each_logprobs(
      run, windows.lists(), programs, [&](size_t i, std::span<const double> logprobs) {
        nats -= std::accumulate(logprobs.begin(), logprobs.end(), 0.0);
        progress.update(fmt::format("evaluation {}/{} windows", i + 1, windows.lists().size()));
      });
  progress.finish();
  const double loss = nats / static_cast<double>(windows.targets());
  if (!std::isfinite(loss)) {
    fail_run("hocket eval", "the loss of {} is {}: the model's values are not finite", model, loss);
  }
  const double bits = loss * static_cast<double>(windows.targets()) / std::log(2.0) /
                      static_cast<double>(windows.bytes());
  if (options.json) {
    JsonWriter json;
    json.object().member("loss", loss).member("perplexity", std::exp(loss));
    json.member("bits_per_byte", bits).member("tokens", windows.targets());
    json.member("bytes", windows.bytes()).member("context", context).end();
    fmt::print("{}\n", json.take());
  } else {
    fmt::print(
        "perplexity {:.4f}, loss {:.4f}, {:.4f} bits/byte ({} tokens, {} bytes, in windows "
        "of {})\n",
        std::exp(loss), loss, bits, windows.targets(), windows.bytes(), context);
  }
  return 0;
}

/// Evaluates multiple choice.
int on_choices(const EvalOptions& options, const engine::Run& run) {
  const std::string& model = run.config.model.path;
  const data::Tokenizer tokenizer =
      data::load_model_tokenizer("hocket eval", model, options.tokenizer, run.model.vocab_size);
  const std::vector<int32_t> beginning = data::beginning_of_text(model, tokenizer);
  const std::vector<train::ChoiceQuestion> questions = train::read_questions(options.choices);
  std::vector<train::ChoiceTokens> tokens;
  Lists lists;
  int64_t longest = 0;
  for (const train::ChoiceQuestion& question : questions) {
    tokens.push_back(train::tokens_of(question, tokenizer, beginning));
    for (const std::vector<int32_t>& ids : tokens.back().ids) {
      data::require_ids(question.place, ids, tokenizer, run.model.vocab_size);
      longest = std::max(longest, std::ssize(ids));
      lists.push_back(ids);
    }
  }
  warn_if_long(run.model, longest, "the longest question with a choice");
  runtime::LocalRanks ranks = engine::local_ranks(run);
  comm::expect_same(
      ranks.processes(), "hocket eval", "--choices of",
      fmt::format("{}, hash {:x}", counted(std::ssize(lists), "choice"), hash_of(lists)));
  engine::Programs programs(run, ranks, checked(run));
  load(run, programs.store());
  std::optional<FileWriter> details;
  if (!options.details.empty() && ranks.processes().index() == 0) {
    details.emplace(options.details, FileWriter::Mode::create);
  }
  Progress progress;
  const train::ChoiceScores scores = train::score(
      run, questions, tokens, programs, [&](size_t q, const train::ChoiceResult& result) {
        if (details) {
          JsonWriter line;
          line.object()
              .member("question", questions[q].place)
              .member("answer", questions[q].answer);
          line.member("chosen", result.chosen).member("chosen_normed", result.chosen_normed);
          details->write(line.member("logprobs", result.logprobs).end().take() + "\n");
        }
        progress.update(fmt::format("evaluation {}/{} questions", q + 1, questions.size()));
      });
  progress.finish();
  if (details) {
    details->close();
  }
  if (options.json) {
    JsonWriter json;
    json.object().member("questions", scores.questions).member("acc", scores.accuracy());
    json.member("acc_norm", scores.accuracy_normed()).member("acc_stderr", scores.error()).end();
    fmt::print("{}\n", json.take());
  } else {
    fmt::print("acc {:.4f} ± {:.4f}, acc_norm {:.4f} ({})\n", scores.accuracy(), scores.error(),
               scores.accuracy_normed(), counted(scores.questions, "question"));
  }
  return 0;
}

/// A mode of its own for files of text, lists of tokens (--ids), and held-out files (--data).
int eval(const EvalOptions& options) {
  check_eval_options(options);
  std::vector<std::string> set = options.set;
  if (!options.data.empty()) {
    set.push_back("data.dir=" + options.data);
  }
  const engine::Run run = model_run(options.given[0], options.dtype, set, options.adapter);
  std::vector<std::string> inputs = inputs_of(run);
  inputs.push_back(options.ids);
  inputs.push_back(options.choices);
  require_output("hocket eval --details", options.details, inputs);
  require_output("hocket eval --save-logits", options.logits, inputs);
  require_output("hocket eval --save-grads", options.grads, inputs);
  if (options.given.size() > 1) return on_text(options, run);
  if (!options.ids.empty()) return on_ids(options, run);
  if (!options.choices.empty()) return on_choices(options, run);
  if (run.config.data.dir.empty()) {
    fail("hocket eval",
         "nothing to evaluate on; try a FILE of text, --choices FILE, --data DIR (made by `hocket "
         "data "
         "prepare`) or --ids FILE");
  }
  return on_data(options, run);
}

}  // namespace

void verb_eval(Args& args) {
  // Declares options and help; eval() does the work.
  auto options = std::make_shared<EvalOptions>();
  args.about(
      "perplexity, accuracy at multiple choice, held-out loss, logits or gradients of a model",
      "With FILEs: perplexity and bits per byte of their text, each a document, which begins as in "
      "the model's training. Windows overlap by a token, so that each token but a first one is "
      "predicted once.\n"
      "With --choices: questions with several answers, an object a line such as {\"question\": "
      "\"2 + 2 =\", \"choices\": [\"3\", \"4\"], \"answer\": 1}. The model's answer is the choice "
      "with the largest log-probability behind question and blank (acc), or with the largest per "
      "character (acc_norm), as lm-evaluation-harness has it.\n"
      "With --data: loss and bits per byte of the held-out files of a prepared folder; for a "
      "checkpoint of ours the folder that it was trained on is the default.\n"
      "With --ids: runs lists of token ids, e.g. [[1, 2, 3], [4, 5]], each a document of its "
      "own. --save-logits writes the tensors logits.0, logits.1, ... [tokens, vocabulary] in "
      "fp32; --save-grads the gradients of the mean next-token loss over all lists, under the "
      "names that the model's own safetensors use.");
  args.positional(
      "MODEL", &options->given,
      "a Hugging Face folder, a GGUF file, a checkpoint or run folder of ours, or a hub "
      "id in the local cache; then FILEs of text");
  add_set(args, &options->set);
  add_adapter(args, &options->adapter);
  args.option("--ids", "FILE", &options->ids, "JSON file with a list of token lists");
  args.option("--save-logits", "FILE", &options->logits,
              "for --ids: .safetensors file of the logits; -: standard output");
  args.option("--save-grads", "FILE", &options->grads,
              "for --ids: .safetensors file of the gradients; -: standard output");
  args.option("--data", "DIR", &options->data, "a folder made by `hocket data prepare`");
  args.option("--choices", "FILE", &options->choices,
              "file of questions of multiple choice, JSON Lines, maybe packed (.gz, .zst)");
  args.option(
      "--details", "FILE", &options->details,
      "for --choices: file of the log-probabilities and answers of every question, JSON Lines");
  args.option("--sequences", "N", &options->sequences,
              "for --data: number of sequences, spread evenly; 0: all");
  args.option("--context", "N", &options->context,
              "for FILEs: tokens of a window; 0: 1024, or the model's max_position_embeddings if "
              "that is less",
              0, 1 << 20);
  add_tokenizer(args, &options->tokenizer, "for FILEs and --choices: ");
  add_dtype(args, &options->dtype);
  args.flag("--json", &options->json, "print one JSON object");
  args.example("hocket eval MODEL FILE", "perplexity and bits per byte of a text");
  args.example("hocket eval MODEL --choices FILE", "accuracy at multiple choice");
  args.example("hocket eval runs/quickstart", "held-out bits per byte of the newest checkpoint");
  args.example(
      "hocket eval runs/quickstart --ids ids.json --save-logits logits.safetensors "
      "--save-grads grads.safetensors",
      "to compare with another implementation");
  args.example(
      "hocket eval runs/quickstart --ids ids.json --save-logits l2.safetensors "
      "--set plan.dp=2",
      "the same on two ranks");
  args.example("hocket launch -n 2 eval runs/quickstart", "on two processes");
  args.run([options] {
    redirect_output("");
    return eval(*options);
  });
}

}  // namespace hocket::cli
