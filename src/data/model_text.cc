// SPDX-License-Identifier: Apache-2.0
#include "data/model_text.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "data/gguf_sampling.h"
#include "data/tokenizer/gguf.h"
#include "data/tokenizer/tokenizer_config.h"
#include "gguf/file.h"
#include "gguf/special_tokens.h"

namespace hocket::data {
namespace {

constexpr double kMaxTemperature = 100;
constexpr int64_t kMaxCount = int64_t{1} << 30;  // of tokens
constexpr double kMaxPenalty = 1e3;
constexpr int64_t kMaxRecordBytes = int64_t{4} << 30;  // of a checkpoint's run.json

/// The generation_config.json of a model, or an empty object.
nlohmann::json generation_config(const std::string& model, std::string* where) {
  *where = join_path(model, "generation_config.json");
  if (gguf::is_gguf(model) || !file_exists(*where)) return nlohmann::json::object();
  return read_json(*where);
}

double number_in(const JsonView& in, const char* key, double least, double most) {
  const double value = in.get_double(key);
  if (!(value >= least && value <= most)) {
    in.at(key).fail(fmt::format("is {}; expected {} to {}", value, least, most));
  }
  return value;
}

int64_t count_in(const JsonView& in, const char* key, int64_t least) {
  const int64_t value = in.get_int(key);
  if (value < least || value > kMaxCount) {
    in.at(key).fail(fmt::format("is {}; expected {} to {}", value, least, kMaxCount));
  }
  return value;
}

/// Keys of transformers' GenerationConfig that change the text, with the value that does not.
const std::map<std::string, double>& unsupported_keys() {
  static const std::map<std::string, double> keys = {{"no_repeat_ngram_size", 0},
                                                     {"encoder_repetition_penalty", 1},
                                                     {"typical_p", 1},
                                                     {"epsilon_cutoff", 0},
                                                     {"eta_cutoff", 0},
                                                     {"num_beams", 1},
                                                     {"min_new_tokens", 0},
                                                     {"min_length", 0},
                                                     {"penalty_alpha", 0},
                                                     {"guidance_scale", 1},
                                                     {"top_h", 0}};
  return keys;
}

/// Adds a key's token, or list of tokens.
void add_ids(const JsonView& in, const char* key, int64_t vocabulary, std::set<int32_t>* ids) {
  if (!in.has(key)) return;
  const JsonView value = in.at(key);
  for (const int64_t id :
       value.is_array() ? value.as_ints() : std::vector<int64_t>{value.as_int()}) {
    if (id < 0 || id >= vocabulary) {
      value.fail(fmt::format("has token {}; expected 0 to {}", id, vocabulary - 1));
    }
    ids->insert(static_cast<int32_t>(id));
  }
}

}  // namespace

SamplingDefaults read_sampling_defaults(const std::string& model) {
  SamplingDefaults out;
  nlohmann::json json;
  if (gguf::is_gguf(model)) {
    out.source = model;
    json = gguf_sampling(gguf::File(model).metadata(), &out.ignored);
  } else {
    json = generation_config(model, &out.source);
  }
  const JsonView in(json, out.source);
  if (in.has("temperature")) {
    out.temperature = number_in(in, "temperature", 0, kMaxTemperature);
  }
  if (in.has("top_p")) {
    out.top_p = number_in(in, "top_p", 0, 1);
  }
  if (in.has("min_p")) {
    out.min_p = number_in(in, "min_p", 0, 1);
  }
  if (in.has("repetition_penalty")) {
    out.repetition_penalty = number_in(in, "repetition_penalty", 1 / kMaxPenalty, kMaxPenalty);
  }
  if (in.has("top_k")) {
    out.top_k = std::max<int64_t>(count_in(in, "top_k", -1), 0);  // -1: all, as vLLM has it
  }
  if (in.has("max_new_tokens")) {
    out.max_new_tokens = count_in(in, "max_new_tokens", 1);
  }
  if (in.has("do_sample") && !in.get_bool("do_sample")) {
    out.temperature = 0;
  }
  for (const auto& [key, neutral] : unsupported_keys()) {
    if (in.has(key) && in.at(key).is_number() && in.get_double(key) != neutral) {
      out.ignored.push_back(key);
    }
  }
  for (const char* key :
       {"bad_words_ids", "force_words_ids", "suppress_tokens", "sequence_bias",
        "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "stop_strings",
        "exponential_decay_length_penalty", "dola_layers", "watermarking_config"}) {
    if (in.has(key) && !(in.at(key).is_array() && in.at(key).size() == 0)) {
      out.ignored.emplace_back(key);
    }
  }
  return out;
}

std::vector<int32_t> stop_tokens(const std::string& model, const models::ModelConfig& config,
                                 const Tokenizer& tokenizer) {
  std::set<int32_t> ids;
  for (const int64_t id : config.eos_token_ids) {
    ids.insert(static_cast<int32_t>(id));
  }
  if (tokenizer.eos_id() >= 0) {
    ids.insert(tokenizer.eos_id());
  }
  std::string where;
  const nlohmann::json json = generation_config(model, &where);
  add_ids(JsonView(json, where), "eos_token_id", config.vocab_size, &ids);
  if (gguf::is_gguf(model)) {
    const gguf::File file(model);
    for (const int64_t id : gguf::stop_tokens(file.metadata())) {
      if (id >= config.vocab_size) {
        fail(model, "a token that ends texts is {}; expected less than {}", id, config.vocab_size);
      }
      ids.insert(static_cast<int32_t>(id));
    }
  }
  // Small models have the ids of large ones in their config.json: none is ever drawn.
  const int64_t drawn = std::min<int64_t>(config.vocab_size, tokenizer.vocab_size());
  std::erase_if(ids, [drawn](int32_t id) { return id < 0 || id >= drawn; });
  return {ids.begin(), ids.end()};
}

Tokenizer load_model_tokenizer(const std::string& where, const std::string& model,
                               const std::string& named, int64_t vocabulary,
                               const std::string& key) {
  std::string file = named;
  if (named.empty()) {
    file = gguf::is_gguf(model) ? model : join_path(model, "tokenizer.json");
  }
  if (!file_exists(file)) {
    fail(where, "{} is not there; expected a tokenizer.json{}; try {}", file,
         named.empty() ? "" : ", for " + key, named.empty() ? key + " FILE" : "another " + key);
  }
  Tokenizer tokenizer = Tokenizer::load(file);
  if (named.empty()) return tokenizer;
  if (tokenizer.vocab_size() > vocabulary) {
    fail(where, "the tokenizer of {} has {} tokens; expected at most the model's vocab_size {}",
         file, tokenizer.vocab_size(), vocabulary);
  }
  require_tokenizer_of(model, tokenizer, file, "leave " + key + " out");
  return tokenizer;
}

namespace {

/// Tokens that a checkpoint of ours says to have begun the texts of its training; nothing: it does
/// not say.
std::optional<std::vector<int32_t>> recorded_beginning(const std::string& record,
                                                       const Tokenizer& tokenizer) {
  constexpr const char* kKey = "beginning";
  const nlohmann::json json = read_json(record, {.max_bytes = kMaxRecordBytes});
  const JsonView run(json, record);
  if (!run.has("data") || !run.at("data").is_object() || !run.at("data").has(kKey)) return {};
  const JsonView value = run.at("data").at(kKey);
  std::vector<int32_t> out;
  for (const int64_t id : value.as_ints()) {
    if (id < 0 || id >= tokenizer.vocab_size()) {
      value.fail(fmt::format("has token {}; expected 0 to {}", id, tokenizer.vocab_size() - 1));
    }
    out.push_back(static_cast<int32_t>(id));
  }
  return out;
}

}  // namespace

std::vector<int32_t> beginning_of_text(const std::string& model, const Tokenizer& tokenizer) {
  if (gguf::is_gguf(model)) {
    const GgufTokenizer in_file = read_gguf_tokenizer(gguf::File(model).metadata());
    return in_file.adds_bos ? std::vector<int32_t>{*in_file.bos} : std::vector<int32_t>();
  }
  const std::vector<int32_t>& prefix = tokenizer.spec().prefix;
  const std::string record = join_path(model, "run.json");
  const bool is_ours = file_exists(record);
  if (is_ours) {
    if (auto recorded = recorded_beginning(record, tokenizer)) return std::move(*recorded);
  }
  if (prefix.empty() && is_ours && tokenizer.eos_id() >= 0) return {tokenizer.eos_id()};
  return prefix;
}

std::vector<int32_t> document_ids(const std::string& where, const std::vector<int32_t>& beginning,
                                  const Tokenizer& tokenizer, std::string_view text,
                                  int64_t vocabulary, const EncodeOptions& encode_options) {
  std::vector<int32_t> ids = beginning;
  for (const int32_t id : tokenizer.encode(text, encode_options)) {
    ids.push_back(id);
  }
  if (ids.empty()) fail(where, "the text is empty, and no token comes before it");
  require_ids(where, ids, tokenizer, vocabulary);
  return ids;
}

void require_ids(const std::string& where, const std::vector<int32_t>& ids,
                 const Tokenizer& tokenizer, int64_t vocabulary) {
  for (const int32_t id : ids) {
    if (id < vocabulary) continue;
    fail(where, "the text has token {}, {}; expected one below the model's vocab_size {}", id,
         quote(tokenizer.token_bytes(id)), vocabulary);
  }
}

ChatTemplate load_chat_template(const std::string& model) {
  if (!gguf::is_gguf(model)) return ChatTemplate::load(model);
  std::optional<ChatTemplate> found = find_chat_template(model);
  if (!found) {
    fail(model, "has no tokenizer.chat_template; expected a model that was trained to chat");
  }
  return std::move(*found);
}

namespace {

/// Templates of a GGUF file beside the default one, by name.
std::map<std::string, std::string> named_templates(const gguf::Metadata& in) {
  constexpr std::string_view prefix = "tokenizer.chat_template.";
  std::map<std::string, std::string> out;
  for (const auto& [key, value] : in.entries()) {
    if (std::string_view(key).starts_with(prefix)) {
      out[key.substr(prefix.size())] = in.string(key);
    }
  }
  return out;
}

std::map<std::string, std::string> special_tokens_in(const GgufTokenizer& in_file,
                                                     const std::string& model) {
  const nlohmann::json config = parse_json(in_file.config, model);
  return special_tokens_of(JsonView(config, model));
}

/// Reads the model's template, or the one in `file` if that is given.
std::optional<ChatTemplate> read_chat_template(const std::string& model, const std::string& file) {
  if (!gguf::is_gguf(model)) return ChatTemplate::find(model, file);
  const gguf::File opened(model);
  const GgufTokenizer in_file = read_gguf_tokenizer(opened.metadata());
  if (in_file.chat_template.empty() && file.empty()) return std::nullopt;
  std::map<std::string, std::string> special = special_tokens_in(in_file, model);
  if (file.empty()) {
    return ChatTemplate::parse(in_file.chat_template, model, std::move(special),
                               named_templates(opened.metadata()));
  }
  return ChatTemplate::parse(read_file(file), file, std::move(special));
}

}  // namespace

std::map<std::string, std::string> special_tokens(const std::string& model) {
  if (gguf::is_gguf(model)) {
    return special_tokens_in(read_gguf_tokenizer(gguf::File(model).metadata()), model);
  }
  const nlohmann::json config = read_tokenizer_config(model);
  return special_tokens_of(JsonView(config, join_path(model, "tokenizer_config.json")));
}

std::optional<ChatTemplate> find_chat_template(const std::string& model, const std::string& file,
                                               const std::string& key) {
  if (!file.empty()) {
    with_note(key + " names it, and expects a file with a Jinja template",
              [&] { ChatTemplate::parse(read_file(file), file, {}); });
  }
  return read_chat_template(model, file);
}

}  // namespace hocket::data
