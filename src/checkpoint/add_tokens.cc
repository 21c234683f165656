// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/add_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/json.h"
#include "base/math.h"
#include "base/text.h"
#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"
#include "graph/elements.h"
#include "models/weights.h"

namespace hocket::checkpoint {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kWhere = "checkpoint add-tokens";
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;

/// Token of `added_tokens`, as transformers' add_special_tokens and add_tokens write it.
struct NewToken {
  std::string text;
  int64_t id = 0;
  bool special = true;
};

/// Returns the object of a token. Words are found in normalised text, special tokens before.
ordered_json token_object(const NewToken& token) {
  return {{"content", token.text}, {"lstrip", false},      {"normalized", !token.special},
          {"rstrip", false},       {"single_word", false}, {"special", token.special}};
}

/// Range of a member's value in the text of a JSON object. Requires: `text` is valid JSON.
std::optional<std::pair<size_t, size_t>> member_of(const std::string& text,
                                                   const std::string& name) {
  int depth = 0;
  std::string key;
  std::optional<size_t> begin;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      const size_t first = i + 1;
      for (++i; text[i] != '"'; ++i) {
        if (text[i] == '\\') {
          ++i;
        }
      }
      if (depth == 1 && !begin) {
        key = text.substr(first, i - first);
      }
    } else if (c == ':' && depth == 1 && key == name && !begin) {
      begin = i + 1;
    } else if (begin && depth == 1 && (c == ',' || c == '}')) {
      return {{*begin, i}};
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return {};
}

/// Adds tokens to the text of a tokenizer.json, which otherwise stays as it is.
void add_to_tokenizer(const std::vector<NewToken>& tokens, std::string* text) {
  if (tokens.empty()) return;
  std::string items;
  for (const NewToken& token : tokens) {
    ordered_json object = {{"id", token.id}};
    object.update(token_object(token));
    items += (items.empty() ? "" : ",") + std::string("\n    ") + object.dump();
  }
  const auto place = member_of(*text, "added_tokens");
  if (!place) {
    text->insert(text->find('{') + 1, "\n  \"added_tokens\": [" + items + "\n  ],");
    return;
  }
  const auto [begin, end] = *place;
  const json list = json::parse(text->substr(begin, end - begin));
  if (!list.is_array() || list.empty()) {
    text->replace(begin, end - begin, " [" + items + "\n  ]");
    return;
  }
  text->insert(text->find_last_not_of(" \t\r\n", text->rfind(']', end - 1) - 1) + 1, "," + items);
}

/// Sets keys of a JSON file beside the weights, in the order that they have.
class FileEditor {
 public:
  FileEditor(ModelFiles* files, const char* name) : files_(files), name_(name) {
    if (files->has(name)) {
      json_ = ordered_json::parse(files->texts.at(name));
    }
  }
  bool exists() const { return files_->has(name_); }
  ordered_json& json() { return json_; }
  void save() { files_->texts[name_] = json_.dump(2) + "\n"; }

 private:
  ModelFiles* files_;
  const char* name_;
  ordered_json json_ = ordered_json::object();
};

/// Numbers of one parameter's new rows, by row.
using Rows = std::map<int64_t, std::vector<float>>;

/// Makes the rows of new tokens.
class RowMaker {
 public:
  RowMaker(const ModelWeights& weights, const models::ModelConfig& config,
           const data::Tokenizer& tokenizer, const std::string& init)
      : weights_(weights), config_(config), tokenizer_(tokenizer), init_(init) {}

  /// Rows `ids` of a parameter; in a file of rows they are the first.
  Rows make(const std::string& param, const std::vector<int64_t>& ids, int64_t from_file) const {
    Rows rows;
    if (ids.empty()) return rows;
    if (init_.ends_with(".safetensors")) {
      const TensorFiles file(init_);
      const TensorFiles::Entry entry = file.find(param);
      if (entry.tensor == nullptr) {
        fail(init_, "tensor {} is missing; expected rows for {}", quote(param),
             counted(from_file, "token"));
      }
      const graph::Dims want{from_file, config_.hidden_size};
      if (entry.tensor->dims != want) {
        fail(init_, "tensor {} has shape [{}]; expected [{}], a row for every new token",
             quote(param), fmt::join(graph::sizes(entry.tensor->dims), ","),
             fmt::join(graph::sizes(want), ","));
      }
      for (int64_t i = 0; i < from_file; ++i) {
        std::vector<float>& row = rows[ids[static_cast<size_t>(i)]];
        row.resize(static_cast<size_t>(config_.hidden_size));
        entry.file->read(*entry.tensor, i * config_.hidden_size, config_.hidden_size,
                         graph::DType::f32, row.data());
      }
    }
    if (std::ssize(rows) == std::ssize(ids)) return rows;
    const std::vector<float> usual = mean(param);
    for (const int64_t id : ids) {
      rows.emplace(id, usual);
    }
    return rows;
  }

 private:
  /// Mean of the rows of a text's tokens, or of all tokens.
  std::vector<float> mean(const std::string& param) const {
    constexpr std::string_view kText = "text:";
    std::vector<int32_t> ids;
    if (init_.starts_with(kText)) {
      ids = tokenizer_.encode(init_.substr(kText.size()));
      if (ids.empty()) fail(kWhere, "--init is {}, a text without tokens", quote(init_));
    }
    const int64_t width = config_.hidden_size;
    const int64_t count = ids.empty() ? tokenizer_.vocab_size() : std::ssize(ids);
    std::vector<double> sum(static_cast<size_t>(width)), row(static_cast<size_t>(width));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t id = ids.empty() ? i : ids[static_cast<size_t>(i)];
      weights_.load_range(param, id * width, width, graph::DType::f64, row.data());
      for (size_t k = 0; k < row.size(); ++k) {
        sum[k] += row[k];
      }
    }
    std::vector<float> mean;
    for (const double each : sum) {
      mean.push_back(static_cast<float>(each / static_cast<double>(count)));
    }
    return mean;
  }

  const ModelWeights& weights_;
  const models::ModelConfig& config_;
  const data::Tokenizer& tokenizer_;
  const std::string& init_;
};

/// Returns a source in which some parameters have other rows, and more of them.
ModelSource with_rows(ModelSource before, models::ModelConfig config,
                      std::map<std::string, Rows> changed) {
  const int64_t width = config.hidden_size, old_rows = before.config.vocab_size;
  ModelSource after{std::move(config), nullptr, nullptr};
  after.dtype = [dtype = before.dtype, width, old_rows](const std::string& param, int64_t first,
                                                        int64_t count) {
    const bool table = param == kEmbedding || param == kHead;
    return table ? dtype(param, 0, old_rows * width) : dtype(param, first, count);
  };
  after.read = [before = std::move(before), changed = std::move(changed), width, old_rows](
                   const std::string& param, int64_t first, int64_t count, graph::DType dtype,
                   void* to) {
    const auto rows = changed.find(param);
    if (rows == changed.end()) {
      before.read(param, first, count, dtype, to);
      return;
    }
    auto* out = static_cast<char*>(to);
    for (int64_t at = first; at < first + count;) {
      const int64_t row = at / width, column = at % width;
      const auto next = rows->second.lower_bound(row);
      int64_t now = 0;
      if (next != rows->second.end() && next->first == row) {
        now = std::min(width - column, first + count - at);
        const std::span<const float> numbers = next->second;
        graph::write_numbers(numbers.subspan(static_cast<size_t>(column), static_cast<size_t>(now)),
                             dtype, out);
      } else {
        const int64_t end = next == rows->second.end() ? old_rows : next->first;
        now = std::min(end * width - at, first + count - at);
        before.read(param, at, now, dtype, out);
      }
      out += now * graph::size_of(dtype);
      at += now;
    }
  };
  return after;
}

/// Adds tokens to a tokenizer's files.
class TokenAdder {
 public:
  TokenAdder(ModelFiles* files, const TokenAdditions& additions)
      : files_(files),
        additions_(additions),
        before_(data::Tokenizer::parse(files->texts.at(kTokenizerFile), kTokenizerFile)) {
    next_ = before_.vocab_size();
  }

  void add() {
    read_known();
    for (const std::string& text : additions_.special) {
      add(text, true);
    }
    for (const std::string* purpose : {&additions_.bos, &additions_.eos, &additions_.pad}) {
      if (!purpose->empty() && before_.find_token(*purpose) < 0 && !find(*purpose)) {
        add(*purpose, true);
      }
    }
    for (const std::string& text : additions_.words) {
      add(text, false);
    }
    add_to_tokenizer(tokens_, &files_->texts.at(kTokenizerFile));
    edit_config();
    edit_special_map();
    FileEditor added(files_, kAddedTokensFile);
    if (added.exists() && !tokens_.empty()) {
      for (const NewToken& token : tokens_) {
        added.json()[token.text] = token.id;
      }
      added.save();
    }
    check();
  }

  const data::Tokenizer& before() const { return before_; }
  const std::vector<NewToken>& tokens() const { return tokens_; }
  const std::vector<std::string>& notes() const { return notes_; }
  int64_t size() const { return next_; }
  /// Id of a token, old or new.
  int64_t id_of(const std::string& text) const {
    if (const NewToken* token = find(text)) return token->id;
    return before_.find_token(text);
  }

 private:
  void read_known() {
    const json tokenizer = json::parse(files_->texts.at(kTokenizerFile));
    if (!tokenizer.contains("added_tokens") || !tokenizer["added_tokens"].is_array()) return;
    for (const json& token : tokenizer["added_tokens"]) {
      known_.push_back(token.at("content").get<std::string>());
    }
  }

  const NewToken* find(const std::string& text) const {
    for (const NewToken& token : tokens_) {
      if (token.text == text) return &token;
    }
    return nullptr;
  }

  void add(const std::string& text, bool special) {
    if (text.empty()) fail(kWhere, "a token has no text; expected one, such as '<|im_start|>'");
    if (find(text) != nullptr) fail(kWhere, "token {} is given twice", quote(text));
    const int32_t old = before_.find_token(text);
    if (std::find(known_.begin(), known_.end(), text) != known_.end()) {
      notes_.push_back(fmt::format("{} is already a token, {}", quote(text), old));
      return;
    }
    if (old >= 0) {
      notes_.push_back(
          fmt::format("{} was a token of the vocabulary already, {}: it is now found "
                      "whole in a text, and keeps its row",
                      quote(text), old));
    }
    tokens_.push_back({text, old >= 0 ? old : next_++, special});
  }

  /// Sets bos_token, eos_token and pad_token, as texts.
  void set_purposes(ordered_json& json) const {
    for (const auto& [key, text] : {std::pair{"bos_token", &additions_.bos},
                                    {"eos_token", &additions_.eos},
                                    {"pad_token", &additions_.pad}}) {
      if (!text->empty()) {
        json[key] = *text;
      }
    }
  }

  /// Adds special tokens to the lists in which transformers 4 and 5 keep them.
  void add_to_lists(ordered_json& json) const {
    for (const char* list : {"additional_special_tokens", "extra_special_tokens"}) {
      if (!json.contains(list) || !json[list].is_array()) continue;
      for (const NewToken& token : tokens_) {
        const bool purpose = token.text == additions_.bos || token.text == additions_.eos ||
                             token.text == additions_.pad;
        if (token.special && !purpose) {
          json[list].push_back(token.text);
        }
      }
    }
  }

  void edit_config() {
    FileEditor config(files_, kTokenizerConfigFile);
    ordered_json& json = config.json();
    if (json.contains("added_tokens_decoder") && json["added_tokens_decoder"].is_object()) {
      for (const NewToken& token : tokens_) {
        json["added_tokens_decoder"][fmt::format("{}", token.id)] = token_object(token);
      }
    }
    set_purposes(json);
    add_to_lists(json);
    config.save();
    if (additions_.chat_template.empty()) return;
    data::ChatTemplate::parse(additions_.chat_template, "--chat-template", {});
    if (set_chat_template(additions_.chat_template, files_)) {
      notes_.emplace_back("the chat template replaces the model's");
    }
  }

  void edit_special_map() {
    FileEditor map(files_, kSpecialTokensFile);
    if (!map.exists()) return;
    set_purposes(map.json());
    add_to_lists(map.json());
    map.save();
  }

  /// Throws Error unless the new file has the intended meaning.
  void check() const {
    const data::Tokenizer after =
        data::Tokenizer::parse(files_->texts.at(kTokenizerFile), kTokenizerFile);
    for (const NewToken& token : tokens_) {
      if (after.find_token(token.text) == token.id &&
          after.encode(token.text) == std::vector<int32_t>{static_cast<int32_t>(token.id)}) {
        continue;
      }
      fail(kTokenizerFile,
           "token {} is not read as {}; expected ids without gaps, and no other "
           "token in its text",
           quote(token.text), token.id);
    }
  }

  ModelFiles* files_;
  const TokenAdditions& additions_;
  const data::Tokenizer before_;
  std::vector<std::string> known_;
  std::vector<NewToken> tokens_;
  std::vector<std::string> notes_;
  int64_t next_ = 0;
};

/// The configuration with other rows and special tokens.
models::ModelConfig changed_config(const models::ModelConfig& config, int64_t rows,
                                   const TokenAdditions& additions, const TokenAdder& adder) {
  json object = json::parse(config.json);
  object["vocab_size"] = rows;
  for (const auto& [key, text] : {std::pair{"bos_token_id", &additions.bos},
                                  {"eos_token_id", &additions.eos},
                                  {"pad_token_id", &additions.pad}}) {
    if (!text->empty()) {
      object[key] = adder.id_of(*text);
    }
  }
  return models::parse_config(object.dump(), kConfigFile);
}

/// Sets the ids of generation_config.json, where there is one.
void edit_generation(const models::ModelConfig& config, const TokenAdditions& additions,
                     ModelFiles* files, std::vector<std::string>* notes) {
  FileEditor generation(files, kGenerationFile);
  if (!generation.exists()) return;
  if (!additions.bos.empty()) {
    generation.json()["bos_token_id"] = *config.bos_token_id;
  }
  if (!additions.pad.empty()) {
    generation.json()["pad_token_id"] = *config.pad_token_id;
  }
  generation.save();
  if (additions.eos.empty()) return;
  const std::string change = add_stop_tokens(config.eos_token_ids, config, files);
  if (!change.empty()) {
    notes->push_back(change);
  }
}

}  // namespace

ExtendedModel add_tokens(const ModelWeights& weights, const models::ModelConfig& config,
                         ModelFiles files, const TokenAdditions& additions) {
  if (!files.has(kTokenizerFile)) {
    fail(kWhere, "the model has no tokenizer.json; try --tokenizer FILE");
  }
  const std::string& init = additions.init;
  if (init != "mean" && !init.starts_with("text:") && !init.ends_with(".safetensors")) {
    fail(kWhere, "--init is {}; expected mean, text:TEXT or a .safetensors file", quote(init));
  }
  TokenAdder adder(&files, additions);
  adder.add();
  const int64_t old_rows = config.vocab_size, old_size = adder.before().vocab_size();
  if (old_size > old_rows) {
    fail(kWhere, "the tokenizer has {} tokens; expected at most the model's vocab_size {}",
         old_size, old_rows);
  }
  const int64_t rows = round_up(std::max(old_rows, adder.size()),
                                std::max<int64_t>(additions.pad_to_multiple_of, 1));
  if (rows > kMaxRows) fail(kWhere, "the embedding would have {} rows", rows);
  // New tokens come first, then rows without a token.
  std::vector<int64_t> ids;
  for (int64_t id = old_size; id < adder.size(); ++id) {
    ids.push_back(id);
  }
  const int64_t tokens = std::ssize(ids);
  for (int64_t id = std::max(old_rows, adder.size()); id < rows; ++id) {
    ids.push_back(id);
  }
  ExtendedModel out;
  const RowMaker maker(weights, config, adder.before(), init);
  std::map<std::string, Rows> changed;
  for (const models::ParamWeights& param : weights.params()) {
    if (param.param == kEmbedding || param.param == kHead) {
      changed[param.param] = maker.make(param.param, ids, tokens);
    }
  }
  for (const NewToken& token : adder.tokens()) {
    out.added.emplace_back(token.text, token.id);
  }
  out.notes = adder.notes();
  out.rows_before = old_rows;
  const models::ModelConfig after = changed_config(config, rows, additions, adder);
  edit_generation(after, additions, &files, &out.notes);
  out.source = with_rows(source_of(weights, config), after, std::move(changed));
  out.files = std::move(files);
  return out;
}

}  // namespace hocket::checkpoint
