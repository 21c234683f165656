// SPDX-License-Identifier: Apache-2.0
#include "data/prepare.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/folder_lock.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "data/index.h"

namespace hocket::data {
namespace {

constexpr const char* kFormat = "hocket-data";
constexpr int64_t kPreparedVersion = 2;
constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kStaging = ".staging";
constexpr size_t kNamed = 5;  // files left out that are named with their sizes

// Special tokens in the texts, and what they were taken for.
struct SpecialTokens {
  int64_t met = 0;
  bool split = false;
};

// Version 1 counted the paths in, so that the same texts from another folder were other data.
std::string fingerprint(const Corpus& corpus, const Tokenizer& tokenizer, int64_t shard_tokens,
                        const SpecialTokens& special, int64_t version) {
  Hasher hasher;
  hasher.add(kFormat).add(version).add(shard_tokens);
  hasher.add(tokenizer.hash().high).add(tokenizer.hash().low);
  for (const Corpus::File& file : corpus.files) {
    hasher.add(file.hash.high).add(file.hash.low).add(uint64_t{file.valid});
    if (version == 1) {
      hasher.add(uint64_t{file.path.size()}).add(file.path);
    }
  }
  if (special.met > 0) {
    hasher.add(special.split ? "split special tokens" : "special tokens").add(special.met);
  }
  return hasher.finish().hex();
}

// One split's shards, written to the staging folder as they fill up.
class SplitWriter {
 public:
  SplitWriter(const char* name, std::string folder, const Tokenizer& tokenizer, int64_t limit)
      : name_(name), folder_(std::move(folder)), tokenizer_(tokenizer), limit_(limit) {
    open();
  }
  void add(std::span<const int32_t> ids, int64_t bytes) {
    const int64_t tokens = writer_->info().tokens;
    if (tokens > 0 && tokens + std::ssize(ids) > limit_) {
      close();
    }
    writer_->add(ids, bytes);
    ++stats_.files;
    stats_.bytes += bytes;
    stats_.tokens += std::ssize(ids);
  }
  void close() {
    if (writer_->info().documents == 0) return;
    stats_.shards.push_back(fmt::format("{}-{:05}.bin", name_, stats_.shards.size()));
    writer_->write(join_path(folder_, stats_.shards.back()));
    open();
  }
  const SplitStats& stats() const { return stats_; }

 private:
  void open() {
    writer_ = std::make_unique<ShardWriter>(tokenizer_.vocab_size(), tokenizer_.hash());
  }
  const char* name_;
  std::string folder_;
  const Tokenizer& tokenizer_;
  int64_t limit_;
  std::unique_ptr<ShardWriter> writer_;
  SplitStats stats_;
};

void put_split(JsonWriter& json, const char* name, const SplitStats& stats) {
  put_sizes(json.key(name).object(), stats).member("shards", stats.shards).end();
}

SplitStats split_from_json(const JsonView& view) {
  SplitStats stats;
  stats.files = view.get_int("files");
  stats.bytes = view.get_int("bytes");
  stats.tokens = view.get_int("tokens");
  stats.shards = view.at("shards").as_strings();
  for (const std::string& name : stats.shards) {
    if (name.empty() || name.find('/') != std::string::npos) {
      view.fail(fmt::format("names shard {}; expected a name in the folder", quote(name)));
    }
  }
  return stats;
}

Hash128 hash_from_hex(const JsonView& view) {
  const std::string& hex = view.as_string();
  Hash128 hash;
  const char* end = hex.data() + hex.size();
  if (hex.size() != 32 ||
      std::from_chars(hex.data(), hex.data() + 16, hash.high, 16).ptr != end - 16 ||
      std::from_chars(hex.data() + 16, end, hash.low, 16).ptr != end) {
    view.fail(fmt::format("is {}; expected 32 hexadecimal digits", quote(hex)));
  }
  return hash;
}

PrepareResult result_of(const Corpus& corpus, const SplitStats& train, const SplitStats& valid,
                        int64_t special_tokens_met) {
  PrepareResult result;
  result.special_tokens_met = special_tokens_met;
  result.train = train;
  result.valid = valid;
  result.dropped = corpus.dropped_counts();
  result.largest = corpus.largest_dropped(kNamed);
  result.json_lines = std::count_if(corpus.files.begin(), corpus.files.end(),
                                    [](const Corpus::File& file) { return file.line_bytes > 0; });
  return result;
}

// Returns whether files have the same paths: the baselines read the texts again, where index.json
// says that they lie.
bool same_paths(const std::vector<Corpus::File>& a, const std::vector<Corpus::File>& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(),
      [](const Corpus::File& file, const Corpus::File& y) { return file.path == y.path; });
}

// Returns whether the folder has the requested result, and that in *result.
bool is_up_to_date(const PrepareOptions& options, const Corpus& corpus, const Tokenizer& tokenizer,
                   PrepareResult* result) {
  if (!file_exists(join_path(options.output, kIndex))) return false;
  try {
    const Dataset there(options.output);
    const SpecialTokens special{there.special_tokens_met(), there.split_special_tokens()};
    // Older folders do not say it: special tokens were text.
    const bool split = special.split || special.met < 0;
    const bool same_special = special.met == 0 || split == options.split_special_tokens;
    if (!same_special ||
        there.fingerprint() !=
            fingerprint(corpus, tokenizer, options.shard_tokens, special, there.version()) ||
        !same_paths(there.files(), corpus.files)) {
      return false;
    }
    *result = result_of(corpus, there.train_stats(), there.valid_stats(), special.met);
    result->up_to_date = true;
    return true;
  } catch (const Error&) {
    return false;  // damaged: made anew
  }
}

// Returns the manifest for Dataset: the fingerprint and hash of the content, the options, the
// shards, and every file, taken or dropped, in the order of the corpus.
std::string index_json(const PrepareOptions& options, const Corpus& corpus,
                       const std::vector<int64_t>& tokens, const Tokenizer& tokenizer,
                       const PrepareResult& result) {
  const SpecialTokens special{result.special_tokens_met, options.split_special_tokens};
  const std::string print =
      fingerprint(corpus, tokenizer, options.shard_tokens, special, kPreparedVersion);
  JsonWriter json({.indent = 1});
  json.object()
      .member("format", kFormat)
      .member("version", kPreparedVersion)
      .member("fingerprint", print);
  json.key("tokenizer")
      .object()
      .member("file", kTokenizer)
      .member("hash", tokenizer.hash().hex())
      .member("vocab_size", tokenizer.vocab_size())
      .member("eos", tokenizer.eos_id())
      .end();
  json.key("options")
      .object()
      .member("inputs", options.corpus.inputs)
      .member("valid_inputs", options.corpus.valid_inputs)
      .member("valid_fraction", options.corpus.valid_fraction)
      .member("seed", options.corpus.seed)
      .member("shard_tokens", options.shard_tokens)
      .member("split_special_tokens", special.split)
      .end();
  json.member("special_tokens_met", special.met);
  put_split(json, "train", result.train);
  put_split(json, "valid", result.valid);
  json.key("files").array();
  for (size_t i = 0; i < corpus.files.size(); ++i) {
    const Corpus::File& file = corpus.files[i];
    json.object().member("path", file.path).member("bytes", file.bytes).member("tokens", tokens[i]);
    if (file.begin > 0) {
      json.member("begin", file.begin);
    }
    if (file.line_bytes > 0) {
      json.member("line_bytes", file.line_bytes);
    }
    json.member("hash", file.hash.hex()).member("split", file.valid ? "valid" : "train").end();
  }
  json.end().key("dropped").array();
  for (const Corpus::Dropped& dropped : corpus.dropped) {
    json.object().member("path", dropped.path).member("why", to_string(dropped.why));
    if (!dropped.first.empty()) {
      json.member("first", dropped.first);
    }
    json.end();
  }
  return json.end().end().take() + "\n";
}

// Returns whether the bytes of the ids of any text without special tokens are those of the text. No
// step changes or drops any then, and each byte has a token.
bool keeps_bytes(const TokenizerSpec& spec) {
  const auto keeps = [](const PretokenizerStep& step) {
    return step.kind == PretokenizerStep::Kind::split &&
           step.behavior != PretokenizerStep::Behavior::removed;
  };
  const auto strips = [](const AddedToken& token) { return token.lstrip || token.rstrip; };
  const auto is_byte = [](const std::string& token) { return token.size() == 1; };
  return spec.byte_level && spec.unk < 0 && spec.normalizers.empty() &&
         std::count_if(spec.tokens.begin(), spec.tokens.end(), is_byte) >= 256 &&
         std::all_of(spec.pretokenizers.begin(), spec.pretokenizers.end(), keeps) &&
         std::none_of(spec.added.begin(), spec.added.end(), strips);
}

bool is_shard(const std::string& name) {
  return (name.starts_with("train-") || name.starts_with("valid-")) && name.ends_with(".bin");
}

// Throws Error if the folder has a tokenizer or an index that no preparation wrote: both would be
// replaced. One that was cut short may have left shards, or its staging folder, and no index.
void require_own(const std::string& folder) {
  const std::string index = join_path(folder, kIndex), tokenizer = join_path(folder, kTokenizer);
  const bool has_index = file_exists(index);
  if (!has_index && !file_exists(tokenizer)) return;
  const std::vector<std::string> names = list_dir(folder);
  if (std::any_of(names.begin(), names.end(),
                  [](const std::string& name) { return is_shard(name) || name == kStaging; })) {
    return;
  }
  if (has_index && read_file(index).find(kFormat) != std::string::npos) return;
  fail("hocket data prepare", "{} was not prepared here, and would be replaced; try another --out",
       has_index ? index : tokenizer);
}

// Moves the staged files into the folder, index.json last, and removes shards of an earlier result.
void publish(const std::string& folder, const std::string& staging,
             const std::set<std::string>& shards) {
  remove_file(join_path(folder, kIndex));
  for (const std::string& name : list_dir(folder)) {
    if (is_shard(name) && !shards.contains(name)) {
      remove_file(join_path(folder, name));
    }
  }
  for (const std::string& name : list_dir(staging)) {
    if (name != kIndex) {
      rename_durable(join_path(staging, name), join_path(folder, name));
    }
  }
  rename_durable(join_path(staging, kIndex), join_path(folder, kIndex));
  remove_tree(staging);
}

/// Reads and encodes every file into the staging folder, shard by shard, then the tokenizer and the
/// index, which marks completeness. Throws Error for a file that changed since it was scanned.
PrepareResult write_staged(const PrepareOptions& options, const Corpus& corpus,
                           const Tokenizer& tokenizer, const std::string& staging) {
  SplitWriter train("train", staging, tokenizer, options.shard_tokens);
  SplitWriter valid("valid", staging, tokenizer, options.shard_tokens);
  const std::vector<int32_t> lengths = tokenizer.token_lengths();
  const bool exact = keeps_bytes(tokenizer.spec());
  const EncodeOptions encode_options{.split_special_tokens = options.split_special_tokens};
  Encoder encoder(tokenizer);
  std::vector<int32_t> ids;
  std::vector<int64_t> tokens;  // of every file
  TextReader reader;
  PrepareProgress progress;
  progress.bytes_total = corpus.bytes(false) + corpus.bytes(true);
  for (const Corpus::File& file : corpus.files) {
    const std::string text = reader.read(file.text());
    if (hash128(text) != file.hash) fail("data", "{} changed while it was read", file.path);
    ids.clear();
    const int64_t met = encoder.special_tokens_met();
    encoder.encode(text, &ids, encode_options);
    int64_t bytes = 0;
    for (const int32_t id : ids) {
      bytes += lengths[id];
    }
    // Bits per byte refer to the text of the ids.
    HOCKET_CHECK(!exact || bytes == file.bytes || encoder.special_tokens_met() > met,
                 "{}: ids of {} bytes for {}", file.path, bytes, file.bytes);
    ids.push_back(tokenizer.eos_id());
    (file.valid ? valid : train).add(ids, bytes);
    tokens.push_back(std::ssize(ids));
    progress.bytes_done += file.bytes;
    progress.tokens += tokens.back();
    if (options.progress) {
      options.progress(progress);
    }
  }
  train.close();
  valid.close();
  tokenizer.save_folder(staging);
  const PrepareResult result =
      result_of(corpus, train.stats(), valid.stats(), encoder.special_tokens_met());
  write_file_atomic(join_path(staging, kIndex),
                    index_json(options, corpus, tokens, tokenizer, result));
  return result;
}

}  // namespace

JsonWriter& put_sizes(JsonWriter& json, const SplitStats& stats) {
  return json.member("files", stats.files)
      .member("bytes", stats.bytes)
      .member("tokens", stats.tokens);
}

PrepareResult prepare(const PrepareOptions& options) {
  // Idempotent and atomic: an existing result is left alone, and a new one is staged until
  // complete.
  if (options.output.empty()) fail("data", "no output folder");
  if (options.shard_tokens < 1) {
    fail("data", "shard_tokens {}; expected 1 or more", options.shard_tokens);
  }
  const Tokenizer tokenizer = Tokenizer::load(options.tokenizer);
  if (tokenizer.eos_id() < 0) {
    fail("data",
         "{} names no end of text; expected an added token such as <|endoftext|>, or a "
         "tokenizer_config.json with eos_token beside it",
         options.tokenizer);
  }
  require_own(options.output);
  const Corpus corpus = scan_corpus(options.corpus);
  PrepareResult result;
  if (is_up_to_date(options, corpus, tokenizer, &result)) return result;
  make_dirs(options.output);
  const FolderLock lock(options.output, "preparing data into this folder", "choose another one");
  // The previous holder of the lock may have made this result.
  if (is_up_to_date(options, corpus, tokenizer, &result)) return result;
  const std::string staging = join_path(options.output, kStaging);
  remove_tree(staging);
  make_dirs(staging);
  try {
    result = write_staged(options, corpus, tokenizer, staging);
    std::set<std::string> shards(result.train.shards.begin(), result.train.shards.end());
    shards.insert(result.valid.shards.begin(), result.valid.shards.end());
    publish(options.output, staging, shards);
  } catch (...) {
    try {
      remove_tree(staging);
    } catch (const Error&) {  // the first error is the one to report
    }
    throw;
  }
  return result;
}

Dataset::Dataset(const std::string& folder) : folder_(folder) {
  // The index first; then the tokenizer, which must be that of both splits' shards; and the shards
  // must match the index, since either may be of another preparation.
  const std::string path = join_path(folder, kIndex);
  if (!file_exists(path)) {
    fail("data", "{} has no {}; expected a folder made by `hocket data prepare`", folder, kIndex);
  }
  const nlohmann::json json = read_json(path);
  const JsonView root(json, path);
  version_ = root.get_int("version");
  if (root.get_string("format") != kFormat || version_ < 1 || version_ > kPreparedVersion) {
    root.fail(fmt::format("is not of format {} version 1 to {}", kFormat, kPreparedVersion));
  }
  fingerprint_ = root.get_string("fingerprint");
  special_tokens_met_ = root.get_int("special_tokens_met", -1);
  split_special_tokens_ =
      root.has("options") && root.at("options").get_bool("split_special_tokens", false);
  train_stats_ = split_from_json(root.at("train"));
  valid_stats_ = split_from_json(root.at("valid"));
  const JsonView files = root.at("files");
  for (size_t i = 0; i < files.size(); ++i) {
    const JsonView view = files.at(i);
    files_.push_back({view.get_string("path"), view.get_int("bytes"),
                      hash_from_hex(view.at("hash")), view.get_string("split") == "valid",
                      view.get_int("begin", 0), view.get_int("line_bytes", 0)});
  }
  tokenizer_ = std::make_unique<Tokenizer>(Tokenizer::load(join_path(folder, kTokenizer)));
  const auto open = [&](const SplitStats& stats) -> std::shared_ptr<const TokenStream> {
    if (stats.shards.empty()) return nullptr;
    std::vector<std::string> paths;
    for (const std::string& name : stats.shards) {
      paths.push_back(join_path(folder, name));
    }
    auto stream = std::make_shared<TokenStream>(paths);
    if (stream->tokenizer() != tokenizer_->hash() ||
        stream->vocab_size() != tokenizer_->vocab_size()) {
      fail("data",
           "{}: the shards were not made by the tokenizer beside them; try `hocket data "
           "prepare` again",
           folder);
    }
    if (stream->tokens() != stats.tokens || stream->bytes() != stats.bytes ||
        stream->documents() != stats.files) {
      fail("data", "{}: the shards hold {} tokens, {} says {}; try `hocket data prepare` again",
           folder, stream->tokens(), kIndex, stats.tokens);
    }
    return stream;
  };
  train_ = open(train_stats_);
  valid_ = open(valid_stats_);
}

}  // namespace hocket::data
