// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "checkpoint/gguf_model.h"
#include "data/gguf_sampling.h"
#include "data/tokenizer/gguf.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_config.h"
#include "data/tokenizer/tokenizer_spec.h"
#include "gguf/file.h"

namespace hocket::checkpoint {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;
constexpr const char* kCardFile = "README.md";

/// Files of a tokenizer, as transformers names them.
constexpr const char* kTokenizerFiles[] = {
    kTokenizerFile,    kTokenizerConfigFile, kSpecialTokensFile, kAddedTokensFile,
    kChatTemplateFile, "vocab.json",         "merges.txt",       "tokenizer.model"};
/// Begins of names, in small letters, of texts about the rights of users.
constexpr const char* kRights[] = {"license", "licence", "notice", "copying", "use_policy"};
/// Begins and ends of names that are the weights, or belong to one place: nothing is said of them.
constexpr const char* kPlaceBegins[] = {".",           "optimizer.",    "run.json",    "host.json",
                                        "config.json", "training_args", "samples.cbor"};
constexpr const char* kPlaceEnds[] = {
    ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".gguf", ".pt", ".pth"};

template <size_t n>
bool is_one_of(const std::string& name, const char* const (&list)[n]) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

std::string in_small_letters(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

bool goes_along(const std::string& name) {
  const std::string small = in_small_letters(name);
  const auto begins = [&](const char* begin) { return small.starts_with(begin); };
  return is_one_of(name, kTokenizerFiles) || name == kGenerationFile || name == kCardFile ||
         std::any_of(std::begin(kRights), std::end(kRights), begins);
}

bool belongs_to_place(const std::string& name) {
  return std::any_of(std::begin(kPlaceBegins), std::end(kPlaceBegins),
                     [&](const char* begin) { return name.starts_with(begin); }) ||
         std::any_of(std::begin(kPlaceEnds), std::end(kPlaceEnds),
                     [&](const char* end) { return name.ends_with(end); });
}

json parse(const ModelFiles& files, const char* name) {
  return files.has(name) ? parse_json(files.texts.at(name), name, {.max_bytes = kMaxFileBytes})
                         : json::object();
}

/// Special tokens beside those of data::GgufTokenizer: keys of tokenizer_config.json and of GGUF.
constexpr std::pair<const char*, const char*> kFurtherTokens[] = {
    {"unk_token", "tokenizer.ggml.unknown_token_id"},
    {"sep_token", "tokenizer.ggml.seperator_token_id"},
    {"mask_token", "tokenizer.ggml.mask_token_id"}};

/// Adds them to a tokenizer_config.json.
std::string with_further_tokens(const std::string& text, const gguf::Metadata& in) {
  ordered_json config = ordered_json::parse(text);
  const std::vector<std::string>& tokens = in.strings("tokenizer.ggml.tokens");
  for (const auto& [ours, theirs] : kFurtherTokens) {
    if (!in.has(theirs) || config.contains(ours)) continue;
    const int64_t id = in.integer(theirs);
    if (id < 0 || id >= std::ssize(tokens)) {
      in.fail(theirs, fmt::format("is {}; expected 0 to {}", id, tokens.size() - 1));
    }
    config[ours] = tokens[static_cast<size_t>(id)];
  }
  return config.dump(2) + "\n";
}

/// Adds these keys of a tokenizer_config.json to the metadata of a GGUF file.
void add_further_tokens(const ModelFiles& files, const JsonView& config, gguf::Metadata* out) {
  std::optional<data::Tokenizer> tokenizer;
  for (const auto& [ours, theirs] : kFurtherTokens) {
    if (!config.has(ours) || out->has(theirs)) continue;
    if (!tokenizer) {
      tokenizer.emplace(data::Tokenizer::parse(files.texts.at(kTokenizerFile), kTokenizerFile));
    }
    const JsonView token = config.at(ours);
    const std::string text = token.is_object() ? token.get_string("content") : token.as_string();
    const int32_t id = tokenizer->find_token(text);
    if (id < 0) {
      token.fail(fmt::format("is {}, which is no token", quote(text)));
    }
    out->add(theirs, gguf::Value::of_u32(id));
  }
}

/// Returns a sentence for tokens that the post-processor puts around a text and a GGUF file does
/// not: it has one at most, before a text.
std::vector<std::string> lost_around_texts(const ModelFiles& files, const JsonView& config,
                                           const gguf::Metadata& file) {
  const auto tokenizer = data::Tokenizer::parse(files.texts.at(kTokenizerFile), kTokenizerFile);
  const data::TokenizerSpec& spec = tokenizer.spec();
  std::vector<int32_t> before;
  if (file.boolean("tokenizer.ggml.add_bos_token", false)) {
    before.push_back(static_cast<int32_t>(file.integer("tokenizer.ggml.bos_token_id", 0)));
  }
  const auto texts_of = [&](const std::vector<int32_t>& ids) {
    std::vector<std::string> texts;
    for (const int32_t id : ids) {
      texts.push_back(quote(spec.tokens.at(static_cast<size_t>(id))));
    }
    return join(texts, " ");
  };
  std::vector<std::string> lost;
  // A tokenizer_config.json that says whether a text has a beginning wins over the post-processor.
  if (spec.prefix != before && (spec.prefix.size() > 1 || !config.has("add_bos_token"))) {
    lost.push_back(fmt::format("the post-processor's {} before a text: the file has {}",
                               texts_of(spec.prefix), before.empty() ? "none" : texts_of(before)));
  }
  if (!spec.suffix.empty()) {
    lost.push_back(fmt::format("the post-processor's {} behind a text", texts_of(spec.suffix)));
  }
  return lost;
}

/// Key of tokenizer_config.json: a template, or a list of those with a name.
constexpr const char* kTemplateKey = "chat_template";
constexpr std::string_view kNamedTemplate = "tokenizer.chat_template.";

/// Sets the templates of a tokenizer_config.json. A file of its own would hide them, and goes.
void put_template_key(const ordered_json& templates, ModelFiles* files) {
  files->texts.erase(kChatTemplateFile);
  ordered_json config = ordered_json::object();
  if (files->has(kTokenizerConfigFile)) {
    config = ordered_json::parse(files->texts.at(kTokenizerConfigFile));
  }
  config[kTemplateKey] = templates;
  files->texts[kTokenizerConfigFile] = config.dump(2) + "\n";
}

/// Puts templates with a name into a tokenizer_config.json, with the default one in a list. Without
/// a default they are `left`: nothing would choose them.
void take_named_templates(const gguf::Metadata& in, ModelFiles* files) {
  ordered_json list = ordered_json::array();
  const auto put = [&list](const std::string& name, const std::string& text) {
    list.push_back(ordered_json{{"name", name}, {"template", text}});
  };
  const std::string usual = in.string("tokenizer.chat_template", "");
  put("default", usual);
  for (const auto& [key, value] : in.entries()) {
    if (!std::string_view(key).starts_with(kNamedTemplate)) continue;
    if (usual.empty()) {
      files->left.push_back(key);
    } else {
      put(key.substr(kNamedTemplate.size()), in.string(key));
    }
  }
  if (list.size() == 1) return;
  put_template_key(list, files);
}

/// generation_config.json of the sampling that a GGUF file recommends; empty: it says none. Keys
/// that have no place there are `left`.
std::string sampling_of(const gguf::Metadata& in, const models::ModelConfig& config,
                        std::vector<std::string>* left) {
  const json said = data::gguf_sampling(in, left);
  if (said.empty()) return "";
  json out = json::parse(models::generation_config_json(config));
  out.erase("_from_model_config");
  out.update(said);
  // transformers has no temperature of 0.
  const bool samples = !out.contains("temperature") || out["temperature"] != 0.0;
  if (!samples) {
    out.erase("temperature");
  }
  out["do_sample"] = samples;
  return out.dump(2) + "\n";
}

ModelFiles files_of_gguf(const std::string& path) {
  const gguf::File file(path);
  const gguf::Metadata& in = file.metadata();
  ModelFiles files;
  if (in.has("tokenizer.ggml.model")) {
    const data::GgufTokenizer tokenizer = data::read_gguf_tokenizer(in);
    files.texts = {{kTokenizerFile, tokenizer.json},
                   {kTokenizerConfigFile, with_further_tokens(tokenizer.config, in)}};
    if (!tokenizer.chat_template.empty()) {
      files.texts[kChatTemplateFile] = tokenizer.chat_template;
    }
    take_named_templates(in, &files);
  }
  const std::string sampling =
      sampling_of(in, models::parse_config(gguf_config(file), path), &files.left);
  if (!sampling.empty()) {
    files.texts[kGenerationFile] = sampling;
  }
  if (const std::string license = in.string("general.license", ""); !license.empty()) {
    std::string card = "---\nlicense: " + license + "\n";
    for (const char* part : {"name", "link"}) {
      const std::string key = std::string("general.license.") + part;
      if (in.has(key)) {
        card += fmt::format("license_{}: {}\n", part, in.string(key));
      }
    }
    files.texts[kCardFile] =
        card + "library_name: transformers\n---\n# " + in.string("general.name", "Model") + "\n";
  }
  return files;
}

/// Value of a key in the YAML block at the begin of a model card; empty: none.
std::string in_card(const ModelFiles& files, const std::string& key) {
  if (!files.has(kCardFile)) return "";
  const std::vector<std::string> lines = split(files.texts.at(kCardFile), '\n');
  if (lines.empty() || trim(lines[0]) != "---") return "";
  for (size_t i = 1; i < lines.size() && trim(lines[i]) != "---"; ++i) {
    if (!lines[i].starts_with(key + ":")) continue;
    std::string value(trim(std::string_view(lines[i]).substr(key.size() + 1)));
    if (value.size() >= 2 && (value[0] == '"' || value[0] == '\'') && value.back() == value[0]) {
      value = value.substr(1, value.size() - 2);
    }
    return value;
  }
  return "";
}

/// Text of the added token with this id in a tokenizer.json; empty: none.
std::string token_text(const JsonView& tokenizer, int64_t id) {
  if (!tokenizer.has("added_tokens")) return "";
  const JsonView tokens = tokenizer.at("added_tokens");
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens.at(i).get_int("id") == id) return tokens.at(i).get_string("content");
  }
  return "";
}

/// Ids of eos_token_id: a number, a list, or nothing.
std::vector<int64_t> stop_ids(const json& generation) {
  const auto found = generation.find("eos_token_id");
  if (found == generation.end() || found->is_null()) return {};
  const JsonView value(*found, kGenerationFile);
  return value.is_array() ? value.as_ints() : std::vector<int64_t>{value.as_int()};
}

/// Adds the sampling of generation_config.json. Returns the keys that have no place: without
/// do_sample also the numbers, which transformers does not use and others do.
std::vector<std::string> add_sampling(const json& generation, gguf::Metadata* out) {
  const auto sampled = generation.find("do_sample");
  const bool samples = sampled != generation.end() && *sampled == true;
  const bool greedy = sampled != generation.end() && *sampled == false;
  if (greedy) {
    out->add("general.sampling.temp", gguf::Value::of_f32(0));
  }
  std::vector<std::string> lost;
  for (const auto& [key, value] : generation.items()) {
    static const std::set<std::string> kElsewhere = {"_from_model_config", "bos_token_id",
                                                     "do_sample",          "eos_token_id",
                                                     "pad_token_id",       "transformers_version"};
    static const std::map<std::string, const char*> kNumbers = {
        {"temperature", "temp"},
        {"top_p", "top_p"},
        {"min_p", "min_p"},
        {"repetition_penalty", "penalty_repeat"}};
    if (kElsewhere.contains(key) || value.is_null()) continue;
    if (const auto theirs = kNumbers.find(key); theirs != kNumbers.end() && value.is_number()) {
      if (samples) {
        out->add(std::string("general.sampling.") + theirs->second,
                 gguf::Value::of_f32(value.get<double>()));
      } else if (!greedy) {
        lost.push_back(key);
      }
    } else if (key == "top_k" && value.is_number_integer()) {
      if (samples) {
        out->add("general.sampling.top_k",
                 gguf::Value{gguf::ValueType::i32, {}, value.get<int64_t>()});
      } else if (!greedy) {
        lost.push_back(key);
      }
    } else {
      lost.push_back(key);
    }
  }
  return lost;
}

/// The tokenizer_config.json with the special tokens of an older folder's map.
json tokenizer_config_of(const ModelFiles& files) {
  json config = parse(files, kTokenizerConfigFile);
  const json map = parse(files, kSpecialTokensFile);
  data::add_special_tokens_map(JsonView(map, kSpecialTokensFile), &config);
  return config;
}

/// Ids of the special tokens of files with a tokenizer, by their keys in config.json.
std::map<std::string, int64_t> special_ids(const ModelFiles& files) {
  std::map<std::string, int64_t> ids;
  if (!files.has(kTokenizerFile)) return ids;
  const json config = tokenizer_config_of(files);
  const JsonView in(config, kTokenizerConfigFile);
  const auto tokenizer = data::Tokenizer::parse(files.texts.at(kTokenizerFile), kTokenizerFile);
  for (const std::string key : {"bos_token", "eos_token", "pad_token"}) {
    if (!in.has(key)) continue;
    const JsonView token = in.at(key);
    if (!token.is_object() && !token.json().is_string()) continue;
    const std::string text = token.is_object() ? token.get_string("content") : token.as_string();
    if (const int32_t id = tokenizer.find_token(text); id >= 0) {
      ids[key + "_id"] = id;
    }
  }
  return ids;
}

/// Sets the id of a special token that an object of JSON lacks. Returns a sentence about the
/// change; empty: it has it.
std::string set_id(const std::string& key, int64_t id, const char* where, ordered_json* object) {
  const auto found = object->find(key);
  const ordered_json before = found == object->end() ? ordered_json() : *found;
  const bool has = before == id || (before.is_array() &&
                                    std::find(before.begin(), before.end(), id) != before.end());
  if (has) return "";
  (*object)[key] = id;
  return fmt::format("{}: {} is {}, not {}", where, key, id,
                     before.is_null() ? "absent" : before.dump());
}

/// Adds the templates with a name, of a list in tokenizer_config.json. A file of its own hides it.
void add_named_templates(const ModelFiles& files, const JsonView& config, gguf::Metadata* out) {
  if (files.has(kChatTemplateFile)) return;
  if (!config.has(kTemplateKey) || !config.at(kTemplateKey).is_array()) return;
  const JsonView list = config.at(kTemplateKey);
  std::vector<std::string> names;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = list.at(i).get_string("name");
    if (name == "default") continue;
    out->add(std::string(kNamedTemplate) + name,
             gguf::Value::of_string(list.at(i).get_string("template")));
    names.push_back(name);
  }
  if (!names.empty()) {
    out->add("tokenizer.chat_templates", gguf::Value::of_strings(std::move(names)));
  }
}

}  // namespace

ModelFiles read_model_files(const std::string& model) {
  if (gguf::is_gguf(model)) return files_of_gguf(model);
  ModelFiles files;
  for (const std::string& name : list_dir(model)) {
    const std::string path = join_path(model, name);
    if (is_directory(path)) {
      if (!belongs_to_place(name)) {
        files.left.push_back(name + "/");
      }
    } else if (goes_along(name)) {
      files.texts[name] = read_file(path, kMaxFileBytes);
    } else if (!belongs_to_place(name)) {
      files.left.push_back(name);
    }
  }
  for (const char* name : {kTokenizerFile, kTokenizerConfigFile, kGenerationFile}) {
    if (files.has(name)) {  // refuses text that is no JSON
      parse_json(files.texts.at(name), join_path(model, name), {.max_bytes = kMaxFileBytes});
    }
  }
  return files;
}

void take_tokenizer(const std::string& path, ModelFiles* files) {
  const std::string file = is_directory(path) ? join_path(path, kTokenizerFile) : path;
  if (!file_exists(file)) fail(file, "is not there; expected a tokenizer.json");
  ModelFiles given;
  if (gguf::is_gguf(file)) {
    given = files_of_gguf(file);
  } else {
    given = read_model_files(parent_path(file));
    given.texts[kTokenizerFile] = read_file(file, kMaxFileBytes);
    parse_json(given.texts.at(kTokenizerFile), file, {.max_bytes = kMaxFileBytes});
  }
  if (!given.has(kTokenizerFile)) fail(file, "has no tokenizer; expected one");
  for (const char* name : kTokenizerFiles) {
    files->texts.erase(name);
    if (given.has(name)) {
      files->texts[name] = given.texts.at(name);
    }
  }
}

void complete_tokenizer(const models::ModelConfig& config, ModelFiles* files) {
  if (!files->has(kTokenizerFile) || files->has(kTokenizerConfigFile)) return;
  const json tokenizer = parse(*files, kTokenizerFile);
  JsonWriter made({.indent = 2});
  made.object().member("clean_up_tokenization_spaces", false);
  if (!config.eos_token_ids.empty()) {
    const std::string eos =
        token_text(JsonView(tokenizer, kTokenizerFile), config.eos_token_ids[0]);
    if (!eos.empty()) {
      made.member("eos_token", eos);
    }
  }
  made.member("model_max_length", config.max_position)
      .member("tokenizer_class", "PreTrainedTokenizerFast")
      .end();
  files->texts[kTokenizerConfigFile] = made.take() + "\n";
}

std::string add_stop_tokens(const std::vector<int64_t>& ids, const models::ModelConfig& config,
                            ModelFiles* files) {
  const bool made = !files->has(kGenerationFile);
  if (made) {
    files->texts[kGenerationFile] = models::generation_config_json(config);
  }
  ordered_json generation = ordered_json::parse(files->texts.at(kGenerationFile));
  const std::vector<int64_t> before = stop_ids(json::parse(files->texts.at(kGenerationFile)));
  std::vector<int64_t> all = before;
  for (const int64_t id : ids) {
    if (std::find(all.begin(), all.end(), id) == all.end()) {
      all.push_back(id);
    }
  }
  if (all == before) return "";
  if (all.size() == 1) {
    generation["eos_token_id"] = all[0];
  } else {
    generation["eos_token_id"] = all;
  }
  files->texts[kGenerationFile] = generation.dump(2) + "\n";
  return fmt::format("{}: eos_token_id is [{}], not {}", kGenerationFile, fmt::join(all, ", "),
                     before.empty() ? "absent" : fmt::format("[{}]", fmt::join(before, ", ")));
}

std::vector<std::string> take_special_tokens(const ModelFiles& base, models::ModelConfig* config,
                                             ModelFiles* files) {
  const std::map<std::string, int64_t> before = special_ids(base);
  ordered_json object = ordered_json::parse(config->json);
  std::vector<std::string> notes;
  const auto note = [&notes](std::string change) {
    if (!change.empty()) {
      notes.push_back(std::move(change));
    }
  };
  for (const auto& [key, id] : special_ids(*files)) {
    if (const auto same = before.find(key); same != before.end() && same->second == id) continue;
    if (id >= config->vocab_size) {
      fail(kTokenizerConfigFile,
           "{} would be {}; expected a token below the model's vocab_size {}; try --tokenizer FILE "
           "with the tokenizer of the base",
           key, id, config->vocab_size);
    }
    if (key == "eos_token_id") {
      // Tokens of the configuration and the tokenizer ended texts, too; `set_id` replaces one.
      std::vector<int64_t> stops = config->eos_token_ids;
      if (const auto old = before.find(key); old != before.end()) {
        stops.push_back(old->second);
      }
      stops.push_back(id);
      note(add_stop_tokens(stops, *config, files));
    } else if (files->has(kGenerationFile)) {
      ordered_json generation = ordered_json::parse(files->texts.at(kGenerationFile));
      note(set_id(key, id, kGenerationFile, &generation));
      files->texts[kGenerationFile] = generation.dump(2) + "\n";
    }
    note(set_id(key, id, "config.json", &object));
  }
  *config = models::parse_config(object.dump(), "config.json");
  return notes;
}

bool set_chat_template(const std::string& text, ModelFiles* files) {
  bool had = files->has(kChatTemplateFile);
  // Readers that do not know the file would take the key.
  if (const json config = parse(*files, kTokenizerConfigFile); config.contains(kTemplateKey)) {
    ordered_json kept = ordered_json::parse(files->texts.at(kTokenizerConfigFile));
    kept.erase(kTemplateKey);
    files->texts[kTokenizerConfigFile] = kept.dump(2) + "\n";
    had = true;
  }
  files->texts[kChatTemplateFile] = text;
  return had;
}

bool has_chat_template(const ModelFiles& files) {
  const json config = parse(files, kTokenizerConfigFile);
  return files.has(kChatTemplateFile) || JsonView(config, kTokenizerConfigFile).has(kTemplateKey);
}

void take_chat_template(const ModelFiles& from, ModelFiles* files) {
  if (from.has(kChatTemplateFile)) {
    set_chat_template(from.texts.at(kChatTemplateFile), files);
    return;
  }
  if (!has_chat_template(from)) return;
  put_template_key(parse(from, kTokenizerConfigFile).at(kTemplateKey), files);
}

std::string chat_template_of(const ModelFiles& files, const std::string& where) {
  if (files.has(kChatTemplateFile)) return files.texts.at(kChatTemplateFile);
  const json config = parse(files, kTokenizerConfigFile);
  const JsonView in(config, where + ": " + kTokenizerConfigFile);
  if (!in.has(kTemplateKey)) return "";
  const JsonView found = in.at(kTemplateKey);
  if (!found.is_array()) return found.as_string();
  for (size_t i = 0; i < found.size(); ++i) {
    if (found.at(i).get_string("name") == "default") return found.at(i).get_string("template");
  }
  found.fail("has no template named default; expected one");
}

std::vector<std::string> add_gguf_files(const ModelFiles& files, const models::ModelConfig& config,
                                        const std::string& where, gguf::Metadata* metadata) {
  const json tokenizer_config = tokenizer_config_of(files);
  const json generation = parse(files, kGenerationFile);
  const JsonView in(tokenizer_config, where + ": " + kTokenizerConfigFile);
  data::add_gguf_tokenizer(files.texts.at(kTokenizerFile), tokenizer_config.dump(),
                           chat_template_of(files, where), config.vocab_size, where + ": tokenizer",
                           metadata);
  std::vector<std::string> lost = lost_around_texts(files, in, *metadata);
  add_named_templates(files, in, metadata);
  add_further_tokens(files, in, metadata);
  // Beside the end of text there is room for an end of turn and an end of message.
  std::vector<int64_t> stops = stop_ids(generation);
  stops.insert(stops.end(), config.eos_token_ids.begin(), config.eos_token_ids.end());
  constexpr const char* kEos = "tokenizer.ggml.eos_token_id";
  if (!metadata->has(kEos) && !stops.empty()) {
    metadata->add(kEos, gguf::Value::of_u32(stops[0]));
  }
  const int64_t eos = metadata->integer(kEos, -1);
  std::vector<int64_t> others;
  for (const int64_t id : stops) {
    if (id != eos && std::find(others.begin(), others.end(), id) == others.end()) {
      others.push_back(id);
    }
  }
  constexpr const char* kRoom[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
  for (size_t i = 0; i < others.size(); ++i) {
    if (i < std::size(kRoom)) {
      metadata->add(kRoom[i], gguf::Value::of_u32(others[i]));
    } else {
      lost.push_back(fmt::format("stop token {}: there is room for three", others[i]));
    }
  }
  if (const std::vector<std::string> keys = add_sampling(generation, metadata); !keys.empty()) {
    lost.push_back(fmt::format("{} of {}", join(keys, ", "), kGenerationFile));
  }
  for (const char* key : {"license", "license_name", "license_link"}) {
    if (const std::string value = in_card(files, key); !value.empty()) {
      std::string theirs = std::string("general.") + key;
      std::replace(theirs.begin(), theirs.end(), '_', '.');
      metadata->add(theirs, gguf::Value::of_string(value));
    }
  }
  if (in.has("model_max_length") && in.at("model_max_length").is_number() &&
      in.get_double("model_max_length") != static_cast<double>(config.max_position) &&
      in.get_double("model_max_length") < 1e15) {  // transformers writes 1e30 for none
    lost.push_back(fmt::format("model_max_length {} of {}: the file has the model's, {}",
                               in.get_double("model_max_length"), kTokenizerConfigFile,
                               config.max_position));
  }
  for (const auto& [name, text] : files.texts) {
    if (name != kGenerationFile && !is_one_of(name, kTokenizerFiles)) {
      lost.push_back(name == kCardFile ? name + " but for its license" : name);
    }
  }
  return lost;
}

}  // namespace hocket::checkpoint
