// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/gguf.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/tokenizer/tokenizer.h"

namespace hocket::data {
namespace {

/// Kinds of tokens in tokenizer.ggml.token_type.
enum TokenKind : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

constexpr const char* kPrefix = "tokenizer.ggml.";

/// Digits one by one, and GPT-2's words between them, as one expression: white space before a digit
/// is as that at the end of a text.
constexpr const char* kDigitsPattern =
    R"('(?:[sdmt]|ll|ve|re)|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+)";
/// GPT-2's pattern as it is also written.
constexpr const char* kGpt2Spelled =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Pre-tokenizer by its name in tokenizer.ggml.pre.
struct NamedPretokenizer {
  const char* name;
  const char* pattern;
  bool ignore_merges;
  bool nfc;
  bool adds_bos;  ///< without tokenizer.ggml.add_bos_token
};

/// The first of a pattern is the name that is written.
const std::vector<NamedPretokenizer>& pretokenizers() {
  static const std::vector<NamedPretokenizer> list = {
      {"gpt-2", kGpt2Pattern, false, false, false},
      {"smollm", kDigitsPattern, false, false, false},
      {"starcoder", kDigitsPattern, false, false, false},
      {"llama-bpe", kLlama3Pattern, true, false, true},
      {"llama3", kLlama3Pattern, true, false, true},
      {"llama-v3", kLlama3Pattern, true, false, true},
      {"qwen2", kQwen2Pattern, false, true, false}};
  return list;
}

const NamedPretokenizer& pretokenizer_named(const gguf::Metadata& in) {
  const std::string key = std::string(kPrefix) + "pre";
  std::vector<std::string> names;
  for (const NamedPretokenizer& each : pretokenizers()) {
    names.push_back(each.name);
  }
  if (!in.has(key)) {
    in.fail(key,
            "is missing, so that words are cut in an unknown way; expected " + join(names, ", "));
  }
  const std::string& name = in.string(key);
  for (const NamedPretokenizer& each : pretokenizers()) {
    if (name == each.name) return each;
  }
  in.fail(key, fmt::format("is {}, which is not supported; expected {}", quote(name),
                           join(names, ", ")));
}

/// Id of a special token; nothing for a key that is absent.
std::optional<int32_t> id_of(const gguf::Metadata& in, const char* name, int64_t tokens) {
  const std::string key = std::string(kPrefix) + name;
  if (!in.has(key)) return {};
  const int64_t id = in.integer(key);
  if (id < 0 || id >= tokens) {
    in.fail(key, fmt::format("is {}; expected 0 to {}", id, tokens - 1));
  }
  return static_cast<int32_t>(id);
}

void write_byte_level(JsonWriter& out, bool regex) {
  out.object()
      .member("type", "ByteLevel")
      .member("add_prefix_space", false)
      .member("trim_offsets", true)
      .member("use_regex", regex)
      .end();
}

void write_pretokenizer(JsonWriter& out, const std::string& pattern) {
  out.key("pre_tokenizer");
  if (pattern == kGpt2Pattern) {
    write_byte_level(out, true);
    return;
  }
  out.object().member("type", "Sequence").key("pretokenizers").array();
  out.object().member("type", "Split").key("pattern").object().member("Regex", pattern).end();
  out.member("behavior", "Isolated").member("invert", false).end();
  write_byte_level(out, false);
  out.end().end();
}

/// A post-processor that puts `token` before every text.
void write_beginning(JsonWriter& out, const std::string& token, int32_t id) {
  const auto special = [&] {
    out.object().key("SpecialToken").object().member("id", token).member("type_id", 0).end().end();
  };
  const auto text = [&](const char* name, int type) {
    out.object().key("Sequence").object().member("id", name).member("type_id", type).end().end();
  };
  out.key("post_processor").object().member("type", "TemplateProcessing").key("single").array();
  special();
  text("A", 0);
  out.end().key("pair").array();
  special();
  text("A", 0);
  text("B", 1);
  out.end().key("special_tokens").object().key(token).object().member("id", token);
  out.member("ids", std::vector<int64_t>{id}).member("tokens", std::vector<std::string>{token});
  out.end().end().end();
}

/// Tokens of a file with their kinds, checked.
struct TokenList {
  const std::vector<std::string>& texts;
  std::vector<int64_t> kinds;
};

TokenList tokens_of(const gguf::Metadata& in) {
  const std::string tokens_key = std::string(kPrefix) + "tokens";
  const std::string types_key = std::string(kPrefix) + "token_type";
  TokenList list{in.strings(tokens_key), {}};
  list.kinds.assign(list.texts.size(), kNormal);
  if (in.has(types_key)) {
    list.kinds = in.integers(types_key);
  }
  if (list.kinds.size() != list.texts.size()) {
    in.fail(types_key, fmt::format("has {} entries; expected {}, one for every token",
                                   list.kinds.size(), list.texts.size()));
  }
  for (size_t id = 0; id < list.texts.size(); ++id) {
    const int64_t kind = list.kinds[id];
    if (kind < kNormal || kind > kUnused) {
      in.fail(types_key, fmt::format("of token {} is {}; expected {} to {}", id, kind,
                                     int64_t{kNormal}, int64_t{kUnused}));
    }
    if (list.texts[id].empty() || !is_utf8(list.texts[id])) {
      in.fail(tokens_key, fmt::format("has {} as token {}; expected a text in UTF-8",
                                      quote(list.texts[id]), id));
    }
  }
  return list;
}

std::string tokenizer_json(const gguf::Metadata& in, const TokenList& tokens,
                           const NamedPretokenizer& pre, const GgufTokenizer& special) {
  JsonWriter out;
  out.object().member("version", "1.0").key("truncation").null().key("padding").null();
  out.key("added_tokens").array();
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    const int64_t kind = tokens.kinds[id];
    if (kind == kNormal || kind == kUnused) continue;
    out.object().member("id", static_cast<int64_t>(id)).member("content", tokens.texts[id]);
    for (const char* off : {"single_word", "lstrip", "rstrip", "normalized"}) {
      out.member(off, false);
    }
    out.member("special", kind != kUserDefined).end();
  }
  out.end().key("normalizer");
  if (pre.nfc) {
    out.object().member("type", "NFC").end();
  } else {
    out.null();
  }
  write_pretokenizer(out, pre.pattern);
  if (special.adds_bos) {
    write_beginning(out, tokens.texts[static_cast<size_t>(*special.bos)], *special.bos);
  } else {
    out.key("post_processor").null();
  }
  out.key("decoder");
  write_byte_level(out, true);
  out.key("model").object().member("type", "BPE");
  for (const char* none :
       {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    out.key(none).null();
  }
  out.member("fuse_unk", false).member("byte_fallback", false);
  // Added tokens as well: `tokenizers` gives those that are not here the next free ids.
  out.member("ignore_merges", pre.ignore_merges).key("vocab").object();
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    if (tokens.kinds[id] != kUnused) {
      out.member(tokens.texts[id], static_cast<int64_t>(id));
    }
  }
  out.end().member("merges", in.strings(std::string(kPrefix) + "merges")).end().end();
  return out.take();
}

std::string config_json(const TokenList& tokens, const GgufTokenizer& special) {
  JsonWriter out({.indent = 2});
  out.object()
      .member("add_bos_token", special.adds_bos)
      .member("clean_up_tokenization_spaces", false)
      .member("tokenizer_class", "PreTrainedTokenizerFast");
  const auto token = [&](const char* name, const std::optional<int32_t>& id) {
    if (id) {
      out.member(name, tokens.texts[static_cast<size_t>(*id)]);
    }
  };
  token("bos_token", special.bos);
  token("eos_token", special.eos);
  token("pad_token", special.padding);
  if (!special.chat_template.empty()) {
    out.member("chat_template", special.chat_template);
  }
  return out.end().take() + "\n";
}

/// Reads a tokenizer.json into the lists of a GGUF file.
class TokenizerExport {
 public:
  TokenizerExport(const JsonView& root, int64_t vocabulary) : root_(root), size_(vocabulary) {}

  void write(gguf::Metadata& out) {
    const NamedPretokenizer& pre = pretokenizer();
    const JsonView model = root_.at("model");
    if (model.get_bool("ignore_merges", false) != pre.ignore_merges) {
      model.at("ignore_merges")
          .fail(fmt::format("is {}; expected {}, as for the pre-tokenizer {} of GGUF",
                            !pre.ignore_merges, pre.ignore_merges, pre.name));
    }
    const JsonView vocab = model.at("vocab");
    for (const auto& [text, id] : vocab.json().items()) {
      put(JsonView(id, vocab.where()), text, kNormal);
    }
    added_tokens();
    for (int64_t id = 0; id < size_; ++id) {
      tokens_.try_emplace(id, fmt::format("[PAD{}]", id), kUnused);
    }
    std::vector<std::string> texts;
    std::vector<int64_t> kinds;
    for (auto& [id, token] : tokens_) {
      texts.push_back(token.first);
      kinds.push_back(token.second);
    }
    out.add(std::string(kPrefix) + "model", gguf::Value::of_string("gpt2"));
    out.add(std::string(kPrefix) + "pre", gguf::Value::of_string(pre.name));
    out.add(std::string(kPrefix) + "tokens", gguf::Value::of_strings(std::move(texts)));
    out.add(std::string(kPrefix) + "token_type", gguf::Value::of_i32s(std::move(kinds)));
    out.add(std::string(kPrefix) + "merges", gguf::Value::of_strings(merges(model.at("merges"))));
  }

  /// Returns the id of a text; nothing if there is none.
  std::optional<int64_t> find(const std::string& text) const {
    for (const auto& [id, token] : tokens_) {
      if (token.first == text && token.second != kUnused) return id;
    }
    return {};
  }

 private:
  void put(const JsonView& id, const std::string& text, int64_t kind) {
    const int64_t number = id.as_int();
    if (number < 0 || number >= size_) {
      id.fail(fmt::format("is {}, of token {}; expected less than the model's vocab_size {}",
                          number, quote(text), size_));
    }
    tokens_[number] = {text, kind};
  }

  void added_tokens() {
    if (!root_.has("added_tokens")) return;
    const JsonView list = root_.at("added_tokens");
    for (size_t i = 0; i < list.size(); ++i) {
      const JsonView token = list.at(i);
      for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
        if (token.get_bool(flag, false)) {
          token.at(flag).fail("is true, which GGUF cannot say; expected false");
        }
      }
      put(token.at("id"), token.get_string("content"),
          token.get_bool("special", false) ? kControl : kUserDefined);
    }
  }

  static std::vector<std::string> merges(const JsonView& list) {
    std::vector<std::string> out;
    for (size_t i = 0; i < list.size(); ++i) {
      const JsonView merge = list.at(i);
      if (merge.is_string()) {
        out.push_back(merge.as_string());
        continue;
      }
      const std::string left = merge.at(0).as_string(), right = merge.at(1).as_string();
      if ((left + right).find(' ') != std::string::npos) {
        merge.fail("has a blank in a token, which GGUF cannot say");
      }
      out.push_back(left + " " + right);
    }
    return out;
  }

  const NamedPretokenizer& pretokenizer() const {
    const JsonView steps = root_.at("pre_tokenizer");
    const std::string pattern = pattern_of(steps);
    for (const NamedPretokenizer& each : pretokenizers()) {
      if (pattern == each.pattern) return each;
    }
    std::vector<std::string> names;
    for (const NamedPretokenizer& each : pretokenizers()) {
      names.push_back(each.name);
    }
    steps.fail("has no name in GGUF that is known; expected that of " + join(names, ", "));
  }

  /// Returns the expression by which words are cut; "" for none that is known.
  static std::string pattern_of(const JsonView& steps) {
    std::vector<JsonView> list;
    if (steps.get_string("type") == "Sequence") {
      const JsonView parts = steps.at("pretokenizers");
      for (size_t i = 0; i < parts.size(); ++i) {
        list.push_back(parts.at(i));
      }
    } else {
      list.push_back(steps);
    }
    if (list.empty() || list.size() > 2) return "";
    const JsonView& last = list.back();
    if (last.get_string("type") != "ByteLevel" || last.get_bool("add_prefix_space", true)) {
      return "";
    }
    const bool regex = last.get_bool("use_regex", true);
    if (list.size() == 1) return regex ? kGpt2Pattern : "";
    const std::string type = list[0].get_string("type");
    if (type == "Digits" && regex && list[0].get_bool("individual_digits", false)) {
      return kDigitsPattern;
    }
    if (type != "Split" || regex || list[0].get_string("behavior") != "Isolated" ||
        list[0].get_bool("invert", false) || !list[0].at("pattern").has("Regex")) {
      return "";
    }
    const std::string pattern = list[0].at("pattern").get_string("Regex");
    return pattern == kGpt2Spelled ? kGpt2Pattern : pattern;
  }

  JsonView root_;
  int64_t size_;
  std::map<int64_t, std::pair<std::string, int64_t>> tokens_;
};

/// Text of a special token: a string, or an object with `content`.
std::string special_text(const JsonView& config, const char* name) {
  if (!config.has(name)) return "";
  const JsonView token = config.at(name);
  return token.is_object() ? token.get_string("content") : token.as_string();
}

/// Returns whether every text begins with a token of its own.
bool begins_with_token(const JsonView& root, const JsonView& config) {
  if (config.has("add_bos_token")) return config.get_bool("add_bos_token");
  if (!root.has("post_processor")) return false;
  const JsonView after = root.at("post_processor");
  const auto puts_first = [](const JsonView& step) {
    return step.get_string("type") == "TemplateProcessing" && step.at("single").size() > 0 &&
           step.at("single").at(0).has("SpecialToken");
  };
  if (after.get_string("type") != "Sequence") return puts_first(after);
  const JsonView steps = after.at("processors");
  for (size_t i = 0; i < steps.size(); ++i) {
    if (puts_first(steps.at(i))) return true;
  }
  return false;
}

}  // namespace

GgufTokenizer read_gguf_tokenizer(const gguf::Metadata& in) {
  const std::string model_key = std::string(kPrefix) + "model";
  if (const std::string& model = in.string(model_key); model != "gpt2") {
    in.fail(model_key, fmt::format("is {}, which is not supported; expected gpt2, byte-level BPE; "
                                   "try --tokenizer with the model's tokenizer.json",
                                   quote(model)));
  }
  const NamedPretokenizer& pre = pretokenizer_named(in);
  const TokenList tokens = tokens_of(in);
  const int64_t count = std::ssize(tokens.texts);
  GgufTokenizer out;
  out.bos = id_of(in, "bos_token_id", count);
  out.eos = id_of(in, "eos_token_id", count);
  out.padding = id_of(in, "padding_token_id", count);
  out.adds_bos = in.boolean(std::string(kPrefix) + "add_bos_token", pre.adds_bos && out.bos);
  if (out.adds_bos && !out.bos) {
    in.fail(std::string(kPrefix) + "add_bos_token", "is true, and there is no bos_token_id");
  }
  if (in.boolean(std::string(kPrefix) + "add_eos_token", false)) {
    in.fail(std::string(kPrefix) + "add_eos_token", "is true, which is not supported");
  }
  out.chat_template = in.string("tokenizer.chat_template", "");
  if (out.eos) {
    out.eos_text = tokens.texts[static_cast<size_t>(*out.eos)];
  }
  out.json = tokenizer_json(in, tokens, pre, out);
  out.config = config_json(tokens, out);
  return out;
}

void add_gguf_tokenizer(std::string_view json, std::string_view config_text,
                        const std::string& chat_template, int64_t vocabulary,
                        const std::string& where, gguf::Metadata* metadata) {
  const nlohmann::json root = parse_json(json, where);
  const nlohmann::json config =
      config_text.empty() ? nlohmann::json::object() : parse_json(config_text, where);
  const JsonView root_view(root, where), config_view(config, where);
  TokenizerExport tokenizer(root_view, vocabulary);
  tokenizer.write(*metadata);
  const auto special = [&](const char* ours, const char* theirs) {
    const std::string text = special_text(config_view, ours);
    if (text.empty()) return false;
    const auto id = tokenizer.find(text);
    if (!id) {
      config_view.at(ours).fail(fmt::format("is {}, which is no token", quote(text)));
    }
    metadata->add(std::string(kPrefix) + theirs, gguf::Value::of_u32(*id));
    return true;
  };
  const bool has_bos = special("bos_token", "bos_token_id");
  special("eos_token", "eos_token_id");
  special("pad_token", "padding_token_id");
  metadata->add(std::string(kPrefix) + "add_bos_token",
                gguf::Value::of_bool(has_bos && begins_with_token(root_view, config_view)));
  if (!chat_template.empty()) {
    metadata->add("tokenizer.chat_template", gguf::Value::of_string(chat_template));
  }
}

}  // namespace hocket::data
