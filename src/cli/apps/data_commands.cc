// SPDX-License-Identifier: Apache-2.0
#include "cli/apps/data_commands.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/ordered_json.h"
#include "base/text.h"
#include "checkpoint/resolve.h"
#include "cli/inputs.h"
#include "data/chat/chat_template.h"
#include "data/model_text.h"

namespace hocket::cli {

using data::BpeTrainOptions;
using data::Corpus;
using data::Dataset;
using data::Encoder;
using data::SplitStats;
using data::Tokenizer;

namespace {

constexpr const char* kSource = "tokenizer_source.json";

std::string read_input(const std::string& path) {
  if (path != "-") return read_file(path);
  std::string text;
  char buffer[1 << 16];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, n);
  }
  if (std::ferror(stdin)) fail("data", "standard input cannot be read");
  return text;
}

// Applies `convert(line, where)` to every line; an empty last line is none.
template <class Convert>
std::string each_line(const std::string& text, const std::string& name, const Convert& convert) {
  std::string out;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string where = fmt::format("{}:{}", name == "-" ? "stdin" : name, ++number);
    out += convert(std::string_view(text).substr(begin, end - begin), where);
    out += '\n';
    begin = end + 1;
  }
  return out;
}

std::string json_text(const std::string& bytes) {
  std::string text;
  append_json_string(&text, bytes);
  return text;
}

// "[312,1044]", or with the bytes of each id "[[312,0,3],[1044,3,7]]".
std::string encoded(Encoder* encoder, std::string_view text, const EncodeVerbOptions& options) {
  std::vector<int32_t> ids;
  std::vector<data::ByteRange> ranges;
  encoder->encode(text, &ids, options.encoding, options.offsets ? &ranges : nullptr);
  std::string out = "[";
  for (size_t i = 0; i < ids.size(); ++i) {
    out += i ? "," : "";
    out += options.offsets ? fmt::format("[{},{},{}]", ids[i], ranges[i].begin, ranges[i].end)
                           : std::to_string(ids[i]);
  }
  return out + "]";
}

std::vector<int32_t> parse_ids(const Tokenizer& tokenizer, std::string_view text,
                               const std::string& where) {
  const nlohmann::json json = parse_json(text, where);
  const JsonView list(json, where);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < list.size(); ++i) {
    const int64_t id = list.at(i).as_int();
    if (id < 0 || id >= tokenizer.vocab_size()) {
      list.at(i).fail(
          fmt::format("is {}; expected an id from 0 to {}", id, tokenizer.vocab_size() - 1));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

// Everything that the trained tokenizer depends on.
std::string training_key(const Corpus& corpus, const BpeTrainOptions& bpe) {
  Hasher hasher;
  hasher.add("train-tokenizer 1").add(static_cast<uint64_t>(bpe.vocab_size));
  hasher.add(static_cast<uint64_t>(bpe.min_count))
      .add(uint64_t{bpe.pattern.size()})
      .add(bpe.pattern);
  for (const std::string& text : bpe.special_tokens) {
    hasher.add(uint64_t{text.size()}).add(text);
  }
  hasher.add(uint64_t{bpe.special_tokens.size()});
  for (const Corpus::File& file : corpus.files) {
    if (!file.valid) {
      hasher.add(file.hash.high).add(file.hash.low);
    }
  }
  return hasher.finish().hex();
}

bool is_trained(const std::string& folder, const std::string& key, int32_t* vocab_size) {
  if (!file_exists(join_path(folder, kSource))) return false;
  try {
    const nlohmann::json json = read_json(join_path(folder, kSource));
    const JsonView source(json, kSource);
    if (source.get_string("trained_on") != key) return false;
    const Tokenizer tokenizer = Tokenizer::load(folder);
    *vocab_size = tokenizer.vocab_size();
    return source.get_string("tokenizer") == tokenizer.hash().hex();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

TrainTokenizerResult train_tokenizer(const TrainTokenizerOptions& options) {
  // Beside the tokenizer lies a hash of everything that it depends on: if it is that of this call,
  // and the tokenizer is still the one that was made, there is nothing to do.
  if (options.output.empty()) fail("train-tokenizer", "no output folder");
  const Corpus corpus = data::scan_corpus(options.corpus);
  TrainTokenizerResult result;
  result.files = std::ssize(corpus.paths(false));
  result.bytes = corpus.bytes(false);
  const std::string key = training_key(corpus, options.bpe);
  if (is_trained(options.output, key, &result.vocab_size)) {
    result.up_to_date = true;
    return result;
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    const std::string there = join_path(options.output, name);
    if (file_exists(there) && !file_exists(join_path(options.output, kSource))) {
      fail("hocket data train-tokenizer",
           "{} was not trained here, and would be replaced; try another --out, or `hocket data "
           "prepare` with it as it is",
           there);
    }
  }
  const Tokenizer tokenizer = data::train_bpe(corpus.texts(false), options.bpe);
  result.vocab_size = tokenizer.vocab_size();
  make_dirs(options.output);
  JsonWriter source({.indent = 1});
  source.object()
      .member("trained_on", key)
      .member("tokenizer", tokenizer.hash().hex())
      .member("files", result.files)
      .member("bytes", result.bytes)
      .end();
  // First, so that whatever ends this between the two leaves a folder that is known as ours.
  write_file_atomic(join_path(options.output, kSource), source.take() + "\n");
  tokenizer.save_folder(options.output);
  return result;
}

DataStats data_stats(const DataStatsOptions& options) {
  const Dataset dataset(options.folder);
  DataStats stats;
  stats.folder = options.folder;
  stats.fingerprint = dataset.fingerprint();
  stats.train = dataset.train_stats();
  stats.valid = dataset.valid_stats();
  stats.vocab_size = dataset.tokenizer().vocab_size();
  if (options.verify) {
    if (options.progress) {
      options.progress("verifying checksums");
    }
    for (const auto& stream : {dataset.train(), dataset.valid()}) {
      if (stream != nullptr) {
        stream->verify();
      }
    }
    stats.verified = true;
  }
  if (options.baselines) {
    stats.baselines = data::run_baselines(dataset, {}, options.progress);
  }
  return stats;
}

double DataStats::bytes_per_token() const {
  return static_cast<double>(train.bytes + valid.bytes) /
         static_cast<double>(train.tokens + valid.tokens);
}

std::string DataStats::to_json() const {
  JsonWriter json({.indent = 1});
  json.object()
      .member("folder", folder)
      .member("fingerprint", fingerprint)
      .member("vocab_size", vocab_size)
      .member("bytes_per_token", bytes_per_token());
  for (const auto& [name, split] : {std::pair("train", &train), std::pair("valid", &valid)}) {
    data::put_sizes(json.key(name).object(), *split).member("shards", split->shards.size()).end();
  }
  json.member("verified", verified);
  if (baselines.trigram) {
    json.key("baselines")
        .object()
        .member("xz_bits_per_byte", *baselines.xz_each)
        .member("xz_one_piece_bits_per_byte", *baselines.xz_one_piece)
        .member("trigram_bits_per_byte", *baselines.trigram)
        .end();
  }
  return json.end().take() + "\n";
}

std::string DataStats::to_text() const {
  std::string out =
      fmt::format("{}: vocabulary of {}, {:.2f} bytes a token{}\n", folder, vocab_size,
                  bytes_per_token(), verified ? ", checksums verified" : "");
  for (const auto& [name, split] : {std::pair("train", &train), std::pair("valid", &valid)}) {
    out +=
        fmt::format("  {}  {:>13}  {:>10}  {:>9} tokens  {}\n", name, counted(split->files, "file"),
                    human_bytes(static_cast<double>(split->bytes)),
                    human_count(static_cast<double>(split->tokens)),
                    counted(std::ssize(split->shards), "shard"));
  }
  if (baselines.trigram) {
    out += fmt::format(
        "  bits per byte of the validation files: xz -9e {:.4f} (each alone) and {:.4f} (in one "
        "piece), trigram {:.4f}\n",
        *baselines.xz_each, *baselines.xz_one_piece, *baselines.trigram);
  }
  return out;
}

std::string encode_line(Encoder* encoder, std::string_view json, const std::string& where,
                        const EncodeVerbOptions& options) {
  const nlohmann::json text = parse_json(json, where);
  return encoded(encoder, JsonView(text, where).as_string(), options);
}

std::string decode_line(const Tokenizer& tokenizer, std::string_view json,
                        const std::string& where) {
  return json_text(tokenizer.decode(parse_ids(tokenizer, json, where)));
}

std::string tokenizer_path(const std::string& path) {
  const bool is_run = is_directory(join_path(path, "checkpoints"));
  if (!is_run || file_exists(join_path(path, "tokenizer.json"))) return path;
  return checkpoint::resolve_model(path, checkpoint::Need::config).folder;
}

void encode_text(const EncodeVerbOptions& options) {
  require_output("hocket data --out", options.output, {options.input});
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_path(options.tokenizer));
  Encoder encoder(tokenizer);
  const std::string text = read_input(options.input);
  if (options.lines) {
    write_output(options.output,
                 each_line(text, options.input, [&](std::string_view line, const std::string& at) {
                   return encode_line(&encoder, line, at, options);
                 }));
    return;
  }
  write_output(options.output, encoded(&encoder, text, options) + "\n");
}

void decode_ids(const EncodeVerbOptions& options) {
  require_output("hocket data --out", options.output, {options.input});
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_path(options.tokenizer));
  const std::string text = read_input(options.input);
  if (options.lines) {
    write_output(options.output,
                 each_line(text, options.input, [&](std::string_view line, const std::string& at) {
                   return decode_line(tokenizer, line, at);
                 }));
    return;
  }
  const std::string where = options.input == "-" ? "stdin" : options.input;
  write_output(options.output, tokenizer.decode(parse_ids(tokenizer, text, where)));
}

void chat_template_text(const ChatTemplateOptions& options) {
  require_output("hocket data --out", options.output,
                 {options.messages, options.tools, options.documents, options.variables});
  if (options.spans && !options.json) fail("hocket data chat-template", "--spans needs --json");
  const data::ChatTemplate chat = data::load_chat_template(options.source);
  const auto read = [](const std::string& path) {
    return parse_ordered_json(read_input(path), path == "-" ? "stdin" : path);
  };
  const nlohmann::ordered_json messages = read(options.messages);
  nlohmann::ordered_json tools, documents, variables;
  data::ChatOptions chat_options;
  const auto give = [&](const std::string& path, nlohmann::ordered_json* value) {
    if (path.empty()) return static_cast<const nlohmann::ordered_json*>(nullptr);
    *value = read(path);
    return static_cast<const nlohmann::ordered_json*>(value);
  };
  chat_options.tools = give(options.tools, &tools);
  chat_options.documents = give(options.documents, &documents);
  chat_options.variables = give(options.variables, &variables);
  chat_options.add_generation_prompt = options.add_generation_prompt;
  chat_options.continue_final_message = options.continue_final_message;
  const data::RenderedChat rendered = chat.render(messages, chat_options);
  if (!options.json) return write_output(options.output, rendered.text);
  JsonWriter json;
  json.object().member("text", rendered.text);
  const auto put = [&](const char* name, const std::vector<data::ChatSpan>& spans) {
    json.key(name).array();
    for (const data::ChatSpan& span : spans) {
      json.array().value(span.begin).value(span.end).end();
    }
    json.end();
  };
  put("generation", rendered.generation);
  if (options.spans) {
    put("assistant", chat.assistant_spans(messages, chat_options));
  }
  write_output(options.output, json.end().take() + "\n");
}

}  // namespace hocket::cli
