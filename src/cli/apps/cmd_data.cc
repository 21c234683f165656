// SPDX-License-Identifier: Apache-2.0
// hocket data: train-tokenizer, prepare, stats, encode, decode, chat-template; show and task are in
// files of their own.
#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/apps/data_commands.h"
#include "cli/inputs.h"
#include "cli/verbs.h"

namespace hocket::cli {
namespace {

constexpr const char* kSplitHelp =
    "read special tokens that stand in the text, such as <|im_start|>, as text like any other; "
    "default: they are the tokens, as in transformers";

/// Options shared by train-tokenizer and prepare: the data section of RUN, and flags over it.
struct Corpus {
  explicit Corpus(const char* called) : verb(called) {}

  const char* verb;  ///< which of the two: where its errors are
  std::string run, tokenizer, out;
  std::vector<std::string> files, valid_files, set;
  std::optional<double> valid_fraction;
  std::optional<int64_t> vocab_size, seed;
  bool json = false, split_special_tokens = false;

  void declare(Args& args, const char* out_help) {
    args.positional("RUN", &run, "a run.yaml; its data section supplies options without a flag",
                    false);
    add_set(args, &set);
    args.option("--files", "GLOB", &files,
                "a text file, a folder or a glob in quotes ('**' recurses); may be repeated");
    args.option("--out", "DIR", &out, out_help);
    args.option("--valid-fraction", "F", &valid_fraction,
                "share of the files that is held out, at least one; of a single file, its end "
                "[0.05]");
    args.option("--valid-files", "GLOB", &valid_files,
                "files held out instead, like --files; may be repeated");
    args.option("--seed", "S", &seed, "seed of the split into training and held-out files [0]");
    args.flag("--json", &json, "print the result as JSON");
  }
  /// Returns the section of the run.yaml, if any, with the flags over it. Throws Error for no
  /// files, or for values that cannot be meant.
  engine::DataSection section() const {
    engine::DataSection section;
    if (!files.empty() && !run.empty() && !run.ends_with(".yaml") && !run.ends_with(".yml")) {
      fail(verb,
           "{} stands where a run.yaml is expected; if the shell expanded the pattern of "
           "--files, quote it: --files '*.txt'",
           quote(run));
    }
    if (!run.empty()) {
      section = engine::read_run(run, set).config.data;
    } else if (!set.empty()) {
      fail(verb, "--set needs a RUN; without one use the flags");
    }
    if (!files.empty()) {
      section.files = files;
    }
    if (!valid_files.empty()) {
      if (valid_fraction) {
        fail(verb, "got --valid-files and --valid-fraction; expected one of them");
      }
      section.valid_files = valid_files;
    }
    if (valid_fraction) {
      section.valid_files.clear();
      section.valid_fraction = *valid_fraction;
    }
    if (vocab_size) {
      section.vocab_size = *vocab_size;
    }
    section.split_special_tokens |= split_special_tokens;
    if (out == "-") {
      fail(verb, "--out is '-'; expected a folder for several files");
    }
    if (section.files.empty()) {
      fail(verb, "no files; try --files 'folder/**' or data.files in a run.yaml");
    }
    if (section.valid_fraction < 0 || section.valid_fraction > 0.9) {
      fail(verb, "--valid-fraction is {}; expected 0 to 0.9", section.valid_fraction);
    }
    return section;
  }
  data::CorpusOptions options(const engine::DataSection& section) const {
    return {section.files, section.valid_fraction, static_cast<uint64_t>(seed.value_or(0)),
            section.valid_files};
  }
};

void print_tokenizer(const TrainTokenizerResult& result, const std::string& folder, bool json) {
  if (json) {
    JsonWriter out;
    out.object()
        .member("out", folder)
        .member("vocab_size", result.vocab_size)
        .member("files", result.files)
        .member("bytes", result.bytes)
        .member("up_to_date", result.up_to_date)
        .end();
    fmt::print("{}\n", out.take());
  } else if (result.up_to_date) {
    fmt::print("{}: {} tokens, up to date\n", folder, result.vocab_size);
  } else {
    fmt::print("{}: {} tokens from {}, {}\n", folder, result.vocab_size,
               counted(result.files, "file"), human_bytes(static_cast<double>(result.bytes)));
  }
}

/// Flags over the run.yaml, both checked before the first file is read.
int run_train_tokenizer(const Corpus& corpus) {
  const engine::DataSection section = corpus.section();
  TrainTokenizerOptions options;
  options.corpus = corpus.options(section);
  options.output = corpus.out.empty() ? section.tokenizer : corpus.out;
  if (options.output.empty()) {
    fail(corpus.verb, "no folder to write to; try --out DIR or data.tokenizer");
  }
  if (section.vocab_size > 1 << 24) {
    fail(corpus.verb, "--vocab-size is {}; expected at most {}", section.vocab_size, 1 << 24);
  }
  if (section.vocab_size > 0) {
    options.bpe.vocab_size = static_cast<int32_t>(section.vocab_size);
  }
  Progress progress;
  options.bpe.progress = [&](const data::BpeTrainProgress& at) {
    if (at.phase == data::BpeTrainProgress::Phase::count_words) {
      progress.update(fmt::format("counting words: {}", human_bytes(static_cast<double>(at.done))));
    } else {
      progress.update(fmt::format("merging: {}/{} tokens", at.done, at.total));
    }
  };
  const TrainTokenizerResult result = train_tokenizer(options);
  progress.finish();
  print_tokenizer(result, options.output, corpus.json);
  if (!corpus.json && result.vocab_size < options.bpe.vocab_size) {
    fmt::print("{} were asked for; the text gave no more merges\n", options.bpe.vocab_size);
  }
  return 0;
}

void declare_train_tokenizer(Args& args) {
  auto corpus = std::make_shared<Corpus>("hocket data train-tokenizer");
  args.about(
      "train a byte-level BPE on the training files",
      "Writes tokenizer.json and tokenizer_config.json, which transformers opens. Counts only "
      "the files that `prepare` puts into the training split. Does nothing if the folder holds "
      "the result already.");
  corpus->declare(args, "folder of the tokenizer; default: data.tokenizer");
  args.option("--vocab-size", "N", &corpus->vocab_size,
              "size of the vocabulary, with the 256 bytes and the end of text; default: "
              "data.vocab_size, else 4096",
              257, 1 << 24);
  args.example(
      "hocket data train-tokenizer --files '/usr/include/c++/**' --vocab-size 4096 "
      "--out runs/quickstart/tokenizer",
      "on the C++ headers of this machine");
  args.run([corpus] { return run_train_tokenizer(*corpus); });
}

std::string json_of(const data::PrepareResult& result, const std::string& folder) {
  JsonWriter json;
  json.object().member("out", folder);
  data::put_sizes(json.key("train").object(), result.train).end();
  data::put_sizes(json.key("valid").object(), result.valid).end();
  json.key("dropped").object();
  for (const auto& [why, count] : result.dropped) {
    json.member(data::to_string(why), count);
  }
  json.end()
      .member("json_lines", result.json_lines)
      .member("special_tokens_met", result.special_tokens_met)
      .member("up_to_date", result.up_to_date)
      .end();
  return json.take();
}

void print_prepared(const data::PrepareResult& result, const std::string& folder,
                    bool split_special) {
  const auto split = [](const data::SplitStats& stats) {
    return fmt::format("{}, {}, {} tokens", counted(stats.files, "file"),
                       human_bytes(static_cast<double>(stats.bytes)),
                       human_count(static_cast<double>(stats.tokens)));
  };
  fmt::print("{}{}: training {}; held out {}\n", folder, result.up_to_date ? " (up to date)" : "",
             split(result.train), split(result.valid));
  if (result.json_lines > 0) {
    fmt::print("of these, {} of JSON Lines, each a document: its column text\n",
               counted(result.json_lines, "line"));
  }
  fmt::print("left out: {}\n", data::left_out_text(result.dropped));
  for (const data::Corpus::Dropped& file : result.largest) {
    const bool packed = file.path.ends_with(".xz") || file.path.ends_with(".bz2") ||
                        file.path.ends_with(".zip") || file.path.ends_with(".parquet");
    fmt::print("  {}: {}, {}{}\n", data::to_string(file.why), file.path,
               human_bytes(static_cast<double>(file.bytes)),
               packed ? " (compressed: unpack it first)" : "");
  }
  if (result.special_tokens_met > 0) {
    fmt::print("in the texts: {}, {}\n", counted(result.special_tokens_met, "special token"),
               split_special ? "taken for plain text"
                             : "taken as such (--split-special-tokens: as plain text)");
  }
}

/// Flags over the run.yaml, both checked before the first file is read.
int run_prepare(const Corpus& corpus) {
  const engine::DataSection section = corpus.section();
  data::PrepareOptions options;
  options.corpus = corpus.options(section);
  options.tokenizer = corpus.tokenizer.empty() ? section.tokenizer : corpus.tokenizer;
  options.output = corpus.out.empty() ? section.dir : corpus.out;
  options.split_special_tokens = section.split_special_tokens;
  if (options.output.empty()) {
    fail(corpus.verb, "no folder to write to; try --out DIR or data.dir");
  }
  if (options.tokenizer.empty()) {
    fail(corpus.verb, "no tokenizer; try --tokenizer FILE or data.tokenizer");
  }
  options.tokenizer = tokenizer_path(options.tokenizer);
  Progress progress;
  options.progress = [&](const data::PrepareProgress& at) {
    progress.update(fmt::format("{} of {}, {} tokens",
                                human_bytes(static_cast<double>(at.bytes_done)),
                                human_bytes(static_cast<double>(at.bytes_total)),
                                human_count(static_cast<double>(at.tokens))));
  };
  const data::PrepareResult result = data::prepare(options);
  progress.finish();
  if (corpus.json) {
    fmt::print("{}\n", json_of(result, options.output));
  } else {
    print_prepared(result, options.output, options.split_special_tokens);
  }
  return 0;
}

void declare_prepare(Args& args) {
  auto corpus = std::make_shared<Corpus>("hocket data prepare");
  args.about(
      "turn text files into token shards for training",
      "Tokenises every file as one document, of JSON Lines (.jsonl) the column text of every line; "
      "drops empty, binary and duplicate files; splits "
      "by the hash of a file's content. The folder is complete or as it was before, and left "
      "alone if it holds the result already.");
  corpus->declare(args, "folder of the shards; default: data.dir");
  args.option("--tokenizer", "FILE", &corpus->tokenizer,
              "tokenizer.json, its folder or that of a run; default: data.tokenizer");
  args.flag("--split-special-tokens", &corpus->split_special_tokens,
            std::string(kSplitHelp) + "; data.split_special_tokens: true asks for it, too");
  args.example(
      "hocket data prepare --files '/usr/include/c++/**' --valid-fraction 0.04 "
      "--tokenizer runs/quickstart/tokenizer --out runs/quickstart/data",
      "the data of configs/quickstart.yaml");
  args.run([corpus] { return run_prepare(*corpus); });
}

void declare_stats(Args& args) {
  // Declares the options; data_stats() reads the folder.
  struct StatsVerbOptions {
    DataStatsOptions stats;
    bool json = false;
  };
  auto options = std::make_shared<StatsVerbOptions>();
  args.about("contents of a prepared folder, and the baselines of its held-out files", "");
  args.positional("DIR", &options->stats.folder, "a folder made by `hocket data prepare`");
  args.flag("--verify", &options->stats.verify, "read every token and compare checksums");
  args.flag("--baselines", &options->stats.baselines,
            "compute the bits per byte of xz -9e on each held-out file alone and on all in one "
            "piece, and of a Witten-Bell trigram");
  args.flag("--json", &options->json, "print the contents as JSON");
  args.example("hocket data stats runs/quickstart/data --verify", "is the folder intact?");
  args.example("hocket data stats runs/quickstart/data --baselines --json", "the losses to beat");
  args.run([options] {
    Progress progress;
    options->stats.progress = [&](const std::string& what) { progress.update(what); };
    const DataStats stats = data_stats(options->stats);
    progress.finish();
    const std::string text = options->json ? stats.to_json() : stats.to_text();
    fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n");
    return 0;
  });
}

void declare_coder(Args& args, bool encode) {
  auto encode_options = std::make_shared<EncodeVerbOptions>();
  args.about(encode ? "text to token ids" : "token ids to text",
             encode
                 ? "The whole input is one text and gives one line, a JSON list of ids; with "
                   "--lines each line is a JSON string."
                 : "The input is one JSON list of ids; with --lines one per line, and each gives "
                   "a JSON string.");
  args.positional("TOKENIZER", &encode_options->tokenizer,
                  "tokenizer.json, a folder that holds one, a run's folder, or a GGUF file");
  args.option("--in", "FILE", &encode_options->input, "input file; -: standard input");
  args.option("--out", "FILE", &encode_options->output, "output file; -: standard output");
  args.flag("--lines", &encode_options->lines, "read and write one JSON value a line");
  if (encode) {
    args.flag("--add-special-tokens", &encode_options->encoding.add_special_tokens,
              "add the tokens that the tokenizer's post-processor puts before and behind a text");
    args.flag("--split-special-tokens", &encode_options->encoding.split_special_tokens, kSplitHelp);
    args.flag("--offsets", &encode_options->offsets,
              "print [id, begin, end] for each id: the bytes of the text that it stands for");
    args.example("echo 'int main() {}' | hocket data encode runs/quickstart/tokenizer",
                 "[312, 1044, ...]");
  } else {
    args.example("echo '[312, 1044]' | hocket data decode runs/quickstart/tokenizer", "the text");
  }
  args.run([encode_options, encode] {
    encode ? encode_text(*encode_options) : decode_ids(*encode_options);
    return 0;
  });
}

void declare_chat_template(Args& args) {
  auto options = std::make_shared<ChatTemplateOptions>();
  args.about("messages to the text that a model reads, by its chat template",
             "Runs the Jinja template of a Hugging Face model's folder as transformers does: "
             "chat_template.jinja, else chat_template of tokenizer_config.json, with its special "
             "tokens. What is supported: docs/chat-templates.md.");
  args.positional("MODEL", &options->source,
                  "a model's folder, a GGUF file, or a file that holds a template");
  args.option("--messages", "FILE", &options->messages,
              "JSON list of messages, objects with role and content; -: standard input");
  args.option("--tools", "FILE", &options->tools, "JSON list of the tools' schemas");
  args.option("--documents", "FILE", &options->documents, "JSON list of documents");
  args.option("--variables", "FILE", &options->variables,
              "JSON object of more variables of the template (enable_thinking); they win over "
              "special tokens");
  args.flag("--add-generation-prompt", &options->add_generation_prompt,
            "end where the assistant's next message begins");
  args.option("--continue", "FIELD", &options->continue_final_message,
              "end with this field of the last message (content), for the model to continue");
  args.option("--out", "FILE", &options->output, "output file; -: standard output");
  args.flag("--json", &options->json,
            "print JSON: the text, and the bytes that the template's generation blocks wrote");
  args.flag("--spans", &options->spans,
            "add to --json the bytes that the assistant wrote, which training learns");
  args.example("hocket data chat-template MODEL --messages FILE --add-generation-prompt",
               "the prompt of the next answer");
  args.run([options] {
    chat_template_text(*options);
    return 0;
  });
}

}  // namespace

void verb_data(Args& args) {
  args.about("text files to tokens: train a tokenizer, prepare shards, look at them",
             "First train-tokenizer, then prepare; `train` reads the folder that prepare made, or "
             "the files of data.sources, which `show` shows. `task` draws problems for `rl`.");
  declare_train_tokenizer(args.sub("train-tokenizer"));
  declare_prepare(args.sub("prepare"));
  declare_data_show(args.sub("show"));
  declare_data_task(args.sub("task"));
  declare_stats(args.sub("stats"));
  declare_coder(args.sub("encode"), true);
  declare_coder(args.sub("decode"), false);
  declare_chat_template(args.sub("chat-template"));
  args.example("hocket data train-tokenizer configs/quickstart.yaml --files '/usr/include/c++/**'",
               "a tokenizer from this machine's C++ headers");
  args.example("hocket data prepare configs/quickstart.yaml --files '/usr/include/c++/**'",
               "the tokens that configs/quickstart.yaml trains on");
}

}  // namespace hocket::cli
