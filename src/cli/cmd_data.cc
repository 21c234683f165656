// SPDX-License-Identifier: Apache-2.0
// hocket data: train-tokenizer, prepare, stats, encode, decode
#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/data_commands.h"
#include "cli/inputs.h"
#include "cli/verbs.h"

namespace hocket::cli {
namespace {

/// What train-tokenizer and prepare share: settings from the data section of RUN, and flags over
/// it.
struct Corpus {
  std::string run, tokenizer, out;
  std::vector<std::string> files, set;
  std::optional<double> valid_fraction;
  std::optional<int64_t> vocab_size, seed;
  bool json = false;

  void declare(Args& args, const char* out_help) {
    args.positional("RUN", &run, "a run.yaml; its data section says what flags do not", false);
    add_set(args, &set);
    args.option("--files", "GLOB", &files,
                "a text file, a folder or a glob in quotes ('**' recurses); may be repeated");
    args.option("--out", "DIR", &out, out_help);
    args.option("--valid-fraction", "F", &valid_fraction,
                "share of the files that is held out [0.05]");
    args.option("--seed", "S", &seed, "of the split into training and held-out files [0]");
    args.flag("--json", &json, "the result as JSON");
  }
  engine::DataSection section() const {
    engine::DataSection data_section;
    if (!files.empty() && !run.empty() && !run.ends_with(".yaml") && !run.ends_with(".yml")) {
      fail("hocket data",
           "{} stands where a run.yaml is expected; if the shell expanded the pattern of "
           "--files, quote it: --files '*.txt'",
           quote(run));
    }
    if (!run.empty()) {
      data_section = engine::read_run(run, set).config.data;
    } else if (!set.empty()) {
      fail("hocket data", "--set needs a RUN; without one use the flags");
    }
    if (!files.empty()) {
      data_section.files = files;
    }
    if (valid_fraction) {
      data_section.valid_fraction = *valid_fraction;
    }
    if (vocab_size) {
      data_section.vocab_size = *vocab_size;
    }
    if (out == "-") {
      fail("hocket data", "--out is '-'; expected a folder: what goes there are several files");
    }
    if (data_section.files.empty()) {
      fail("hocket data", "no files; try --files 'folder/**' or data.files in a run.yaml");
    }
    if (data_section.valid_fraction < 0 || data_section.valid_fraction > 0.9) {
      fail("hocket data", "--valid-fraction is {}; expected 0 to 0.9", data_section.valid_fraction);
    }
    return data_section;
  }
  data::CorpusOptions options(const engine::DataSection& data_section) const {
    return {data_section.files, data_section.valid_fraction,
            static_cast<uint64_t>(seed.value_or(0))};
  }
};

void declare_train_tokenizer(Args& args) {
  auto corpus = std::make_shared<Corpus>();
  args.about(
      "train a byte-level BPE on the training files",
      "Writes tokenizer.json and tokenizer_config.json, which transformers opens. Counts only "
      "the files that `prepare` puts into the training split. Does nothing if the folder holds "
      "the result already.");
  corpus->declare(args, "folder of the tokenizer; default: data.tokenizer");
  args.option(
      "--vocab-size", "N", &corpus->vocab_size,
      "tokens, with the 256 bytes and the end of text; default: data.vocab_size, else 4096");
  args.example(
      "hocket data train-tokenizer --files '/usr/include/c++/**' --vocab-size 4096 "
      "--out runs/quickstart/tokenizer",
      "on the C++ headers of this machine");
  args.run([corpus] {
    const engine::DataSection data_section = corpus->section();
    TrainTokenizerOptions options;
    options.corpus = corpus->options(data_section);
    options.output = corpus->out.empty() ? data_section.tokenizer : corpus->out;
    if (options.output.empty()) {
      fail("hocket data train-tokenizer", "no folder to write to; try --out DIR or data.tokenizer");
    }
    if (data_section.vocab_size > 1 << 24) {
      fail("hocket data train-tokenizer", "--vocab-size is {}; expected at most {}",
           data_section.vocab_size, 1 << 24);
    }
    if (data_section.vocab_size > 0) {
      options.bpe.vocab_size = static_cast<int32_t>(data_section.vocab_size);
    }
    Progress progress;
    options.bpe.progress = [&](const data::BpeTrainProgress& bpe_train_progress) {
      if (bpe_train_progress.phase == data::BpeTrainProgress::Phase::count_words) {
        progress.update(fmt::format("counting words: {}",
                                    human_bytes(static_cast<double>(bpe_train_progress.done))));
      } else {
        progress.update(fmt::format("merging: {}/{} tokens", bpe_train_progress.done,
                                    bpe_train_progress.total));
      }
    };
    const TrainTokenizerResult train_tokenizer_result = train_tokenizer(options);
    progress.finish();
    if (corpus->json) {
      JsonWriter json;
      json.object()
          .member("out", options.output)
          .member("vocab_size", train_tokenizer_result.vocab_size);
      json.member("files", train_tokenizer_result.files)
          .member("bytes", train_tokenizer_result.bytes)
          .member("up_to_date", train_tokenizer_result.up_to_date)
          .end();
      fmt::print("{}\n", json.take());
    } else if (train_tokenizer_result.up_to_date) {
      fmt::print("{}: {} tokens, up to date\n", options.output, train_tokenizer_result.vocab_size);
    } else {
      fmt::print("{}: {} tokens from {} files, {}\n", options.output,
                 train_tokenizer_result.vocab_size, train_tokenizer_result.files,
                 human_bytes(static_cast<double>(train_tokenizer_result.bytes)));
    }
    return 0;
  });
}

void declare_prepare(Args& args) {
  auto corpus = std::make_shared<Corpus>();
  args.about(
      "turn text files into token shards for training",
      "Tokenises every file as one document; drops empty, binary and duplicate files; splits "
      "by the hash of a file's content. The folder is complete or as it was before, and left "
      "alone if it holds the result already.");
  corpus->declare(args, "folder of the shards; default: data.dir");
  args.option("--tokenizer", "FILE", &corpus->tokenizer,
              "tokenizer.json or its folder; default: data.tokenizer");
  args.example(
      "hocket data prepare --files '/usr/include/c++/**' --valid-fraction 0.04 "
      "--tokenizer runs/quickstart/tokenizer --out runs/quickstart/data",
      "what configs/quickstart.yaml trains on");
  args.run([corpus] {
    const engine::DataSection data_section = corpus->section();
    data::PrepareOptions options;
    options.corpus = corpus->options(data_section);
    options.tokenizer = corpus->tokenizer.empty() ? data_section.tokenizer : corpus->tokenizer;
    options.output = corpus->out.empty() ? data_section.dir : corpus->out;
    if (options.output.empty()) {
      fail("hocket data prepare", "no folder to write to; try --out DIR or data.dir");
    }
    if (options.tokenizer.empty()) {
      fail("hocket data prepare", "no tokenizer; try --tokenizer FILE or data.tokenizer");
    }
    Progress progress;
    options.progress = [&](const data::PrepareProgress& prepare_progress) {
      progress.update(fmt::format("{} of {}, {} tokens",
                                  human_bytes(static_cast<double>(prepare_progress.bytes_done)),
                                  human_bytes(static_cast<double>(prepare_progress.bytes_total)),
                                  human_count(static_cast<double>(prepare_progress.tokens))));
    };
    const data::PrepareResult prepare_result = data::prepare(options);
    progress.finish();
    if (corpus->json) {
      JsonWriter json;
      const auto split = [&](const char* name, const data::SplitStats& split_stats) {
        json.key(name)
            .object()
            .member("files", split_stats.files)
            .member("bytes", split_stats.bytes);
        json.member("tokens", split_stats.tokens).end();
      };
      json.object().member("out", options.output);
      split("train", prepare_result.train);
      split("valid", prepare_result.valid);
      json.key("dropped").object();
      for (const auto& [why, count] : prepare_result.dropped) {
        json.member(data::to_string(why), count);
      }
      json.end().member("up_to_date", prepare_result.up_to_date).end();
      fmt::print("{}\n", json.take());
      return 0;
    }
    fmt::print(
        "{}{}: training {} files, {}, {} tokens; held out {} files, {}, {} tokens\n",
        options.output, prepare_result.up_to_date ? " (up to date)" : "",
        prepare_result.train.files, human_bytes(static_cast<double>(prepare_result.train.bytes)),
        human_count(static_cast<double>(prepare_result.train.tokens)), prepare_result.valid.files,
        human_bytes(static_cast<double>(prepare_result.valid.bytes)),
        human_count(static_cast<double>(prepare_result.valid.tokens)));
    fmt::print("left out: {}\n", data::left_out_text(prepare_result.dropped));
    return 0;
  });
}

void declare_stats(Args& args) {
  struct Options {
    DataStatsOptions how;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  args.about("what a prepared folder holds, and the baselines of its held-out files", "");
  args.positional("DIR", &options->how.folder, "a folder made by `hocket data prepare`");
  args.flag("--verify", &options->how.verify, "read every token and compare checksums");
  args.flag("--baselines", &options->how.baselines,
            "bits per byte of xz -9e on each held-out file alone and on all in one piece, and of a "
            "Witten-Bell trigram");
  args.flag("--json", &options->json, "as JSON");
  args.example("hocket data stats runs/quickstart/data --verify", "is the folder intact?");
  args.example("hocket data stats runs/quickstart/data --baselines --json", "what to beat");
  args.run([options] {
    Progress progress;
    options->how.progress = [&](const std::string& what) { progress.update(what); };
    const DataStats stats = data_stats(options->how);
    progress.finish();
    const std::string text = options->json ? stats.to_json() : stats.to_text();
    fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n");
    return 0;
  });
}

void declare_coder(Args& args, bool encode) {
  auto encode_options = std::make_shared<EncodeOptions>();
  args.about(encode ? "text to token ids" : "token ids to text",
             encode
                 ? "The whole input is one text and gives one line, a JSON list of ids; with "
                   "--lines each line is a JSON string."
                 : "The input is one JSON list of ids; with --lines one per line, and each gives "
                   "a JSON string.");
  args.positional("TOKENIZER", &encode_options->tokenizer,
                  "tokenizer.json, or a folder that holds one");
  args.option("--in", "FILE", &encode_options->input, "what to read; -: standard input");
  args.option("--out", "FILE", &encode_options->output, "where to write; -: standard output");
  args.flag("--lines", &encode_options->lines, "one JSON value a line");
  if (encode) {
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

}  // namespace

void verb_data(Args& args) {
  args.about("text files to tokens: train a tokenizer, prepare shards, look at them",
             "First train-tokenizer, then prepare; `train` reads the folder that prepare made.");
  declare_train_tokenizer(args.sub("train-tokenizer"));
  declare_prepare(args.sub("prepare"));
  declare_stats(args.sub("stats"));
  declare_coder(args.sub("encode"), true);
  declare_coder(args.sub("decode"), false);
  args.example("hocket data train-tokenizer configs/quickstart.yaml --files '/usr/include/c++/**'",
               "a tokenizer from this machine's C++ headers");
  args.example("hocket data prepare configs/quickstart.yaml --files '/usr/include/c++/**'",
               "the tokens that configs/quickstart.yaml trains on");
}

}  // namespace hocket::cli
