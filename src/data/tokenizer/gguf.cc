// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/gguf.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/tokenizer/gguf_kinds.h"
#include "data/tokenizer/tokenizer.h"

namespace hocket::data {
namespace {

using namespace gguf_kinds;

std::string key_of(const char* name) { return std::string(kPrefix) + name; }

/// Longest token, in bytes, that merges of scored tokenizers are made for.
constexpr size_t kLongestScored = 1024;

const Pretokenizer& pretokenizer_named(const gguf::Metadata& in) {
  const std::string key = key_of("pre");
  if (!in.has(key)) {
    in.fail(key, "is missing, so that words are cut in an unknown way; expected " +
                     pretokenizer_names());
  }
  const std::string& name = in.string(key);
  for (const Pretokenizer& each : pretokenizers()) {
    for (const char* known : each.names) {
      if (name == known) return each;
    }
  }
  in.fail(key,
          fmt::format("is {}, which is not supported; expected {}, or one that llama.cpp takes "
                      "for the same",
                      quote(name), pretokenizer_names()));
}

/// Id of a special token; nothing where there is none.
std::optional<int32_t> id_of(const gguf::Metadata& in, const char* name, int64_t tokens) {
  const std::optional<int64_t> id = gguf::special_token(in, name);
  if (!id) return {};
  if (*id < 0 || *id >= tokens) {
    in.fail(key_of(name), fmt::format("is {}; expected 0 to {}", *id, tokens - 1));
  }
  return static_cast<int32_t>(*id);
}

void write_byte_level(JsonWriter& out, bool regex) {
  out.object()
      .member("type", "ByteLevel")
      .member("add_prefix_space", false)
      .member("trim_offsets", true)
      .member("use_regex", regex)
      .end();
}

void write_pretokenizer(JsonWriter& out, const Pretokenizer& pre) {
  out.key("pre_tokenizer");
  if (pre.patterns.size() == 1 && std::string_view(pre.patterns[0]) == kGpt2Pattern) {
    write_byte_level(out, true);
    return;
  }
  out.object().member("type", "Sequence").key("pretokenizers").array();
  for (const char* pattern : pre.patterns) {
    out.object().member("type", "Split").key("pattern").object().member("Regex", pattern).end();
    out.member("behavior", "Isolated").member("invert", false).end();
  }
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

TokenList tokens_of(const gguf::Metadata& in, TokenKind last_kind) {
  const std::string tokens_key = key_of("tokens");
  const std::string types_key = key_of("token_type");
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
    if (kind < kNormal || kind > last_kind) {
      in.fail(types_key, fmt::format("of token {} is {}; expected {} to {}", id, kind,
                                     int64_t{kNormal}, int64_t{last_kind}));
    }
    if (list.texts[id].empty() || !is_utf8(list.texts[id])) {
      in.fail(tokens_key, fmt::format("has {} as token {}; expected a text in UTF-8",
                                      quote(list.texts[id]), id));
    }
  }
  return list;
}

/// Writes the tokens that are found in a text before it is cut.
void write_added(JsonWriter& out, const TokenList& tokens) {
  out.key("added_tokens").array();
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    const int64_t kind = tokens.kinds[id];
    if (kind == kNormal || kind == kUnused || kind == kByte) continue;
    out.object().member("id", static_cast<int64_t>(id)).member("content", tokens.texts[id]);
    for (const char* off : {"single_word", "lstrip", "rstrip", "normalized"}) {
      out.member(off, false);
    }
    out.member("special", kind != kUserDefined).end();
  }
  out.end();
}

/// Writes all tokens, added ones too: `tokenizers` gives those that are not here the next free ids.
void write_vocabulary(JsonWriter& out, const TokenList& tokens) {
  out.key("vocab").object();
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    if (tokens.kinds[id] != kUnused) {
      out.member(tokens.texts[id], static_cast<int64_t>(id));
    }
  }
  out.end();
}

void write_start(JsonWriter& out, const TokenList& tokens) {
  out.object().member("version", "1.0").key("truncation").null().key("padding").null();
  write_added(out, tokens);
}

void write_post_processor(JsonWriter& out, const TokenList& tokens, const GgufTokenizer& special) {
  if (special.adds_bos) {
    write_beginning(out, tokens.texts[static_cast<size_t>(*special.bos)], *special.bos);
  } else {
    out.key("post_processor").null();
  }
}

std::string byte_level_json(const gguf::Metadata& in, const TokenList& tokens,
                            const Pretokenizer& pre, const GgufTokenizer& special) {
  JsonWriter out;
  write_start(out, tokens);
  out.key("normalizer");
  if (pre.nfc) {
    out.object().member("type", "NFC").end();
  } else {
    out.null();
  }
  write_pretokenizer(out, pre);
  write_post_processor(out, tokens, special);
  out.key("decoder");
  write_byte_level(out, true);
  out.key("model").object().member("type", "BPE");
  for (const char* none :
       {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    out.key(none).null();
  }
  out.member("fuse_unk", false).member("byte_fallback", false);
  out.member("ignore_merges", pre.ignore_merges);
  write_vocabulary(out, tokens);
  out.member("merges", in.strings(key_of("merges"))).end().end();
  return out.take();
}

void write_replace(JsonWriter& out, const char* pattern, const char* content) {
  out.object().member("type", "Replace").key("pattern").object().member("String", pattern).end();
  out.member("content", content).end();
}

/// Writes merges of sentencepiece's kind: every cut of a token into two tokens, those of the token
/// with the highest score first.
void write_scored_merges(JsonWriter& out, const gguf::Metadata& in, const TokenList& tokens) {
  const std::string scores_key = key_of("scores");
  const std::vector<double> scores = in.numbers(scores_key);
  const size_t count = tokens.texts.size();
  if (scores.size() != count) {
    in.fail(scores_key,
            fmt::format("has {} entries; expected {}, one for every token", scores.size(), count));
  }
  std::unordered_map<std::string_view, int32_t> ids;
  std::vector<int32_t> order;
  for (size_t id = 0; id < count; ++id) {
    if (!(std::abs(scores[id]) < std::numeric_limits<double>::infinity())) {
      in.fail(scores_key,
              fmt::format("of token {} is {}; expected a finite number", id, scores[id]));
    }
    if (tokens.kinds[id] != kNormal && tokens.kinds[id] != kUserDefined) continue;
    if (tokens.texts[id].size() > kLongestScored) {
      in.fail(key_of("tokens"), fmt::format("has {} bytes as token {}; expected at most {}",
                                            tokens.texts[id].size(), id, kLongestScored));
    }
    ids.emplace(tokens.texts[id], static_cast<int32_t>(id));
    order.push_back(static_cast<int32_t>(id));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  out.key("merges").array();
  std::vector<std::array<int32_t, 2>> cuts;
  for (const int32_t id : order) {
    const std::string_view text = tokens.texts[id];
    cuts.clear();
    for (size_t at = utf8_length(text, 0); at < text.size(); at += utf8_length(text, at)) {
      const auto left = ids.find(text.substr(0, at)), right = ids.find(text.substr(at));
      if (left != ids.end() && right != ids.end()) {
        cuts.push_back({left->second, right->second});
      }
    }
    std::sort(cuts.begin(), cuts.end());
    for (const auto& [left, right] : cuts) {
      out.array().value(tokens.texts[left]).value(tokens.texts[right]).end();
    }
  }
  out.end();
}

/// A BPE of characters whose blanks are marked, with bytes for characters without a token.
std::string scored_json(const gguf::Metadata& in, const TokenList& tokens,
                        const GgufTokenizer& special) {
  const bool prefix = in.boolean(key_of("add_space_prefix"), true);
  const std::optional<int32_t> unknown = id_of(in, "unknown_token_id", std::ssize(tokens.texts));
  JsonWriter out;
  write_start(out, tokens);
  out.key("normalizer").object().member("type", "Sequence").key("normalizers").array();
  if (prefix) {
    out.object().member("type", "Prepend").member("prepend", kBlank).end();
  }
  write_replace(out, " ", kBlank);
  out.end().end();
  out.key("pre_tokenizer").null();
  write_post_processor(out, tokens, special);
  out.key("decoder").object().member("type", "Sequence").key("decoders").array();
  write_replace(out, kBlank, " ");
  out.object().member("type", "ByteFallback").end();
  out.object().member("type", "Fuse").end();
  if (prefix) {
    out.object().member("type", "Strip").member("content", " ").member("start", 1);
    out.member("stop", 0).end();
  }
  out.end().end();
  out.key("model").object().member("type", "BPE").key("dropout").null().key("unk_token");
  if (unknown) {
    out.value(tokens.texts[static_cast<size_t>(*unknown)]);
  } else {
    out.null();
  }
  out.key("continuing_subword_prefix").null().key("end_of_word_suffix").null();
  const bool bytes = std::count(tokens.kinds.begin(), tokens.kinds.end(), kByte) > 0;
  out.member("fuse_unk", true).member("byte_fallback", bytes).member("ignore_merges", false);
  write_vocabulary(out, tokens);
  write_scored_merges(out, in, tokens);
  out.end().end();
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

}  // namespace

GgufTokenizer read_gguf_tokenizer(const gguf::Metadata& in) {
  const std::string model_key = key_of("model");
  const std::string& model = in.string(model_key);
  const bool scored = model == "llama";
  if (!scored && model != "gpt2") {
    in.fail(model_key,
            fmt::format("is {}, which is not supported; expected gpt2, byte-level BPE, or llama, "
                        "sentencepiece's BPE; try --tokenizer with the model's tokenizer.json",
                        quote(model)));
  }
  const Pretokenizer* pre = scored ? nullptr : &pretokenizer_named(in);
  const TokenList tokens = tokens_of(in, scored ? kByte : kUnused);
  const int64_t count = std::ssize(tokens.texts);
  GgufTokenizer out;
  out.bos = id_of(in, "bos_token_id", count);
  out.eos = id_of(in, "eos_token_id", count);
  out.padding = id_of(in, "padding_token_id", count);
  out.adds_bos = in.boolean(key_of("add_bos_token"), (scored || pre->adds_bos) && out.bos);
  if (out.adds_bos && !out.bos) {
    in.fail(key_of("add_bos_token"), "is true, and there is no bos_token_id");
  }
  if (in.boolean(key_of("add_eos_token"), false)) {
    in.fail(key_of("add_eos_token"), "is true, which is not supported");
  }
  out.chat_template = in.string("tokenizer.chat_template", "");
  if (out.eos) {
    out.eos_text = tokens.texts[static_cast<size_t>(*out.eos)];
  }
  out.json = scored ? scored_json(in, tokens, out) : byte_level_json(in, tokens, *pre, out);
  out.config = config_json(tokens, out);
  return out;
}

}  // namespace hocket::data
