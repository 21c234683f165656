// SPDX-License-Identifier: Apache-2.0
// Functions behind `hocket data train-tokenizer|stats|encode|decode|chat-template`; `prepare` is in
// data/prepare.h. They return values, call back with progress, and never print.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "data/baselines.h"
#include "data/prepare.h"
#include "data/tokenizer/bpe_train.h"

namespace hocket::cli {

class Args;

struct TrainTokenizerOptions {
  data::CorpusOptions corpus;  ///< trains on its training split only
  data::BpeTrainOptions bpe;
  std::string output;  ///< a folder: tokenizer.json and tokenizer_config.json
};

struct TrainTokenizerResult {
  int64_t files = 0, bytes = 0;  ///< trained on
  int32_t vocab_size = 0;        ///< may be less than asked for, see BpeTrainOptions::min_count
  bool up_to_date = false;       ///< the folder held the result of this very call already
};

/// Trains a tokenizer and records its input in `output`/tokenizer_source.json. A second call with
/// the same files and settings, and an untouched tokenizer, does nothing. Throws Error like
/// train_bpe and scan_corpus.
TrainTokenizerResult train_tokenizer(const TrainTokenizerOptions& options);

struct DataStatsOptions {
  std::string folder;      ///< made by prepare
  bool verify = false;     ///< reads every id and compares checksums
  bool baselines = false;  ///< of the validation split; xz needs the files where they were
  std::function<void(const std::string&)> progress;  ///< receives a sentence per stage
};

struct DataStats {
  std::string folder, fingerprint;
  data::SplitStats train, valid;
  int32_t vocab_size = 0;
  bool verified = false;
  data::Baselines baselines;  ///< all of them, or none

  /// Bytes of text that a token stands for, on average over both splits.
  double bytes_per_token() const;
  std::string to_json() const;
  std::string to_text() const;
};

/// Returns the figures of a prepared folder. Throws Error for a damaged one. Throws it also for
/// baselines without a validation split, or with files that are gone or changed.
DataStats data_stats(const DataStatsOptions& options);

struct EncodeVerbOptions {
  std::string tokenizer;
  std::string input = "-";   ///< a file; "-": standard input
  std::string output = "-";  ///< a file (replaced atomically); "-": standard output
  /// One JSON string a line ⇄ one JSON list of ids a line. Otherwise the whole input is one text
  /// ⇄ one line with one list.
  bool lines = false;
  bool offsets = false;  ///< [id, begin, end] instead of ids: the bytes of the text
  data::EncodeOptions encoding;
};

/// Returns where the tokenizer of `path` is: there, or in the newest checkpoint of a run's folder.
std::string tokenizer_path(const std::string& path);

/// Encodes text to ids. Throws Error, with the line
/// number, for input that does not match `lines`.
void encode_text(const EncodeVerbOptions& options);
/// Ids → text. With `lines`, bytes that are not UTF-8 are written as U+FFFD; else as they are.
void decode_ids(const EncodeVerbOptions& options);

struct ChatTemplateOptions {
  std::string source;                       ///< a model's folder, or a file with a template
  std::string messages = "-";               ///< JSON list; "-": standard input
  std::string output = "-";                 ///< a file (replaced atomically); "-": standard output
  std::string tools, documents, variables;  ///< JSON files; empty: none
  bool add_generation_prompt = false;
  std::string continue_final_message;  ///< a field of the last message; empty: none
  bool spans = false;                  ///< also the assistant's parts
  bool json = false;
};

/// Renders a chat: the text as it is, or JSON with the bytes that {% generation %} blocks and, with
/// `spans`, the assistant wrote. Throws Error as data::ChatTemplate does.
void chat_template_text(const ChatTemplateOptions& options);

/// Declares `hocket data show` (data_show.h).
void declare_data_show(Args& args);
/// Declares `hocket data task` (rl/task_files.h).
void declare_data_task(Args& args);

/// One line of the above; `where` names it in errors.
std::string encode_line(data::Encoder* encoder, std::string_view json, const std::string& where,
                        const EncodeVerbOptions& options);
std::string decode_line(const data::Tokenizer& tokenizer, std::string_view json,
                        const std::string& where);

}  // namespace hocket::cli
