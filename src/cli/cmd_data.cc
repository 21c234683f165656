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
    engine::DataSection d;
    if (!files.empty() && !run.empty() && !run.ends_with(".yaml") && !run.ends_with(".yml")) {
      fail("hocket data",
           "{} stands where a run.yaml is expected; if the shell expanded the pattern of "
           "--files, quote it: --files '*.txt'",
           quote(run));
    }
    if (!run.empty()) {
      d = engine::read_run(run, set).config.data;
    } else if (!set.empty()) {
      fail("hocket data", "--set needs a RUN; without one use the flags");
    }
    if (!files.empty()) {
      d.files = files;
    }
    if (valid_fraction) {
      d.valid_fraction = *valid_fraction;
    }
    if (vocab_size) {
      d.vocab_size = *vocab_size;
    }
    if (out == "-") {
      fail("hocket data", "--out is '-'; expected a folder: what goes there are several files");
    }
    if (d.files.empty()) {
      fail("hocket data", "no files; try --files 'folder/**' or data.files in a run.yaml");
    }
    if (d.valid_fraction < 0 || d.valid_fraction > 0.9) {
      fail("hocket data", "--valid-fraction is {}; expected 0 to 0.9", d.valid_fraction);
    }
    return d;
  }
  data::CorpusOptions options(const engine::DataSection& d) const {
    return {d.files, d.valid_fraction, static_cast<uint64_t>(seed.value_or(0))};
  }
};

void declare_train_tokenizer(Args& args) {
  auto o = std::make_shared<Corpus>();
  args.about(
      "train a byte-level BPE on the training files",
      "Writes tokenizer.json and tokenizer_config.json, which transformers opens. Counts only "
      "the files that `prepare` puts into the training split. Does nothing if the folder holds "
      "the result already.");
  o->declare(args, "folder of the tokenizer; default: data.tokenizer");
  args.option(
      "--vocab-size", "N", &o->vocab_size,
      "tokens, with the 256 bytes and the end of text; default: data.vocab_size, else 4096");
  args.example(
      "hocket data train-tokenizer --files '/usr/include/c++/**' --vocab-size 4096 "
      "--out runs/quickstart/tokenizer",
      "on the C++ headers of this machine");
  args.run([o] {
    const engine::DataSection d = o->section();
    TrainTokenizerOptions options;
    options.corpus = o->options(d);
    options.output = o->out.empty() ? d.tokenizer : o->out;
    if (options.output.empty()) {
      fail("hocket data train-tokenizer", "no folder to write to; try --out DIR or data.tokenizer");
    }
    if (d.vocab_size > 1 << 24) {
      fail("hocket data train-tokenizer", "--vocab-size is {}; expected at most {}", d.vocab_size,
           1 << 24);
    }
    if (d.vocab_size > 0) {
      options.bpe.vocab_size = static_cast<int32_t>(d.vocab_size);
    }
    Progress progress;
    options.bpe.progress = [&](const data::BpeTrainProgress& p) {
      if (p.phase == data::BpeTrainProgress::Phase::count_words) {
        progress.update(
            fmt::format("counting words: {}", human_bytes(static_cast<double>(p.done))));
      } else {
        progress.update(fmt::format("merging: {}/{} tokens", p.done, p.total));
      }
    };
    const TrainTokenizerResult r = train_tokenizer(options);
    progress.finish();
    if (o->json) {
      JsonWriter j;
      j.object().member("out", options.output).member("vocab_size", r.vocab_size);
      j.member("files", r.files).member("bytes", r.bytes).member("up_to_date", r.up_to_date).end();
      fmt::print("{}\n", j.take());
    } else if (r.up_to_date) {
      fmt::print("{}: {} tokens, up to date\n", options.output, r.vocab_size);
    } else {
      fmt::print("{}: {} tokens from {} files, {}\n", options.output, r.vocab_size, r.files,
                 human_bytes(static_cast<double>(r.bytes)));
    }
    return 0;
  });
}

void declare_prepare(Args& args) {
  auto o = std::make_shared<Corpus>();
  args.about(
      "turn text files into token shards for training",
      "Tokenises every file as one document; drops empty, binary and duplicate files; splits "
      "by the hash of a file's content. The folder is complete or as it was before, and left "
      "alone if it holds the result already.");
  o->declare(args, "folder of the shards; default: data.dir");
  args.option("--tokenizer", "FILE", &o->tokenizer,
              "tokenizer.json or its folder; default: data.tokenizer");
  args.example(
      "hocket data prepare --files '/usr/include/c++/**' --valid-fraction 0.04 "
      "--tokenizer runs/quickstart/tokenizer --out runs/quickstart/data",
      "what configs/quickstart.yaml trains on");
  args.run([o] {
    const engine::DataSection d = o->section();
    data::PrepareOptions options;
    options.corpus = o->options(d);
    options.tokenizer = o->tokenizer.empty() ? d.tokenizer : o->tokenizer;
    options.output = o->out.empty() ? d.dir : o->out;
    if (options.output.empty()) {
      fail("hocket data prepare", "no folder to write to; try --out DIR or data.dir");
    }
    if (options.tokenizer.empty()) {
      fail("hocket data prepare", "no tokenizer; try --tokenizer FILE or data.tokenizer");
    }
    Progress progress;
    options.progress = [&](const data::PrepareProgress& p) {
      progress.update(fmt::format("{} of {}, {} tokens",
                                  human_bytes(static_cast<double>(p.bytes_done)),
                                  human_bytes(static_cast<double>(p.bytes_total)),
                                  human_count(static_cast<double>(p.tokens))));
    };
    const data::PrepareResult r = data::prepare(options);
    progress.finish();
    if (o->json) {
      JsonWriter j;
      const auto split = [&](const char* name, const data::SplitStats& s) {
        j.key(name).object().member("files", s.files).member("bytes", s.bytes);
        j.member("tokens", s.tokens).end();
      };
      j.object().member("out", options.output);
      split("train", r.train);
      split("valid", r.valid);
      j.key("dropped").object();
      for (const auto& [why, count] : r.dropped) {
        j.member(data::to_string(why), count);
      }
      j.end().member("up_to_date", r.up_to_date).end();
      fmt::print("{}\n", j.take());
      return 0;
    }
    fmt::print("{}{}: training {} files, {}, {} tokens; held out {} files, {}, {} tokens\n",
               options.output, r.up_to_date ? " (up to date)" : "", r.train.files,
               human_bytes(static_cast<double>(r.train.bytes)),
               human_count(static_cast<double>(r.train.tokens)), r.valid.files,
               human_bytes(static_cast<double>(r.valid.bytes)),
               human_count(static_cast<double>(r.valid.tokens)));
    fmt::print("left out: {}\n", data::left_out_text(r.dropped));
    return 0;
  });
}

void declare_stats(Args& args) {
  struct Options {
    DataStatsOptions how;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  args.about("what a prepared folder holds, and the baselines of its held-out files", "");
  args.positional("DIR", &o->how.folder, "a folder made by `hocket data prepare`");
  args.flag("--verify", &o->how.verify, "read every token and compare checksums");
  args.flag("--baselines", &o->how.baselines,
            "bits per byte of xz -9e on each held-out file alone and on all in one piece, and of a "
            "Witten-Bell trigram");
  args.flag("--json", &o->json, "as JSON");
  args.example("hocket data stats runs/quickstart/data --verify", "is the folder intact?");
  args.example("hocket data stats runs/quickstart/data --baselines --json", "what to beat");
  args.run([o] {
    Progress progress;
    o->how.progress = [&](const std::string& what) { progress.update(what); };
    const DataStats stats = data_stats(o->how);
    progress.finish();
    const std::string text = o->json ? stats.to_json() : stats.to_text();
    fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n");
    return 0;
  });
}

void declare_coder(Args& args, bool encode) {
  auto o = std::make_shared<EncodeOptions>();
  args.about(encode ? "text to token ids" : "token ids to text",
             encode
                 ? "The whole input is one text and gives one line, a JSON list of ids; with "
                   "--lines each line is a JSON string."
                 : "The input is one JSON list of ids; with --lines one per line, and each gives "
                   "a JSON string.");
  args.positional("TOKENIZER", &o->tokenizer, "tokenizer.json, or a folder that holds one");
  args.option("--in", "FILE", &o->input, "what to read; -: standard input");
  args.option("--out", "FILE", &o->output, "where to write; -: standard output");
  args.flag("--lines", &o->lines, "one JSON value a line");
  if (encode) {
    args.example("echo 'int main() {}' | hocket data encode runs/quickstart/tokenizer",
                 "[312, 1044, ...]");
  } else {
    args.example("echo '[312, 1044]' | hocket data decode runs/quickstart/tokenizer", "the text");
  }
  args.run([o, encode] {
    encode ? encode_text(*o) : decode_ids(*o);
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
