// SPDX-License-Identifier: Apache-2.0
#include "tests/serve/grammar/grammar_util.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/regex.h"
#include "serve/grammar/compile.h"

namespace hocket::test {
namespace {

using Json = nlohmann::json;
using serve::GrammarVocabulary;

class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) {}

  bool valid(const Json& schema, const Json& value) {
    if (schema.is_boolean()) return schema.get<bool>();
    return applicators(schema, value) && simple(schema, value) &&
           (!value.is_object() || object(schema, value)) &&
           (!value.is_array() || array(schema, value)) &&
           (!value.is_string() || string(schema, value.get<std::string>())) &&
           (!value.is_number() || number(schema, value));
  }

 private:
  static bool is_type(const std::string& type, const Json& value) {
    if (type == "integer") {
      return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
    }
    return (type == "null" && value.is_null()) || (type == "boolean" && value.is_boolean()) ||
           (type == "object" && value.is_object()) || (type == "array" && value.is_array()) ||
           (type == "string" && value.is_string()) || (type == "number" && value.is_number());
  }

  bool applicators(const Json& schema, const Json& value) {
    const auto count = [&](const char* key) {
      int64_t n = 0;
      for (const Json& each : schema.at(key)) {
        n += valid(each, value) ? 1 : 0;
      }
      return n;
    };
    if (schema.contains("$ref")) {
      std::string ref = schema.at("$ref").get<std::string>().substr(1);
      for (size_t at = ref.find("%20"); at != std::string::npos; at = ref.find("%20")) {
        ref.replace(at, 3, " ");
      }
      if (!valid(root_.at(Json::json_pointer(ref)), value)) return false;
    }
    if (schema.contains("allOf") && count("allOf") != static_cast<int64_t>(schema["allOf"].size()))
      return false;
    if (schema.contains("anyOf") && count("anyOf") == 0) return false;
    return !schema.contains("oneOf") || count("oneOf") == 1;
  }

  bool simple(const Json& schema, const Json& value) {
    if (schema.contains("type")) {
      const Json& type = schema.at("type");
      const std::vector<std::string> types = type.is_array() ? type.get<std::vector<std::string>>()
                                                             : std::vector{type.get<std::string>()};
      if (std::none_of(types.begin(), types.end(),
                       [&](const std::string& each) { return is_type(each, value); })) {
        return false;
      }
    }
    if (schema.contains("const") && schema.at("const") != value) return false;
    if (!schema.contains("enum")) return true;
    const Json& list = schema.at("enum");
    return std::find(list.begin(), list.end(), value) != list.end();
  }

  static bool within(const Json& schema, const char* least, const char* most, size_t count) {
    return (!schema.contains(least) || count >= schema.at(least).get<size_t>()) &&
           (!schema.contains(most) || count <= schema.at(most).get<size_t>());
  }

  static bool found(const std::string& pattern, const std::string& text) {
    std::string words = pattern;  // PCRE2 has \x{1234} for \u1234
    for (size_t at = words.find("\\u"); at != std::string::npos; at = words.find("\\u", at)) {
      words.replace(at, 6, "\\x{" + words.substr(at + 2, 4) + "}");
    }
    data::Regex regex(words);
    data::Regex::Cursor cursor(regex);
    cursor.start(text);
    std::string_view piece;
    bool is_match = false;
    while (cursor.next(&piece, &is_match)) {
      if (is_match) return true;
    }
    return false;
  }

  static bool string(const Json& schema, const std::string& text) {
    size_t length = 0;
    for (size_t at = 0; at < text.size(); ++length) {
      at += static_cast<size_t>(std::max(1, utf8_length(text, at)));
    }
    return within(schema, "minLength", "maxLength", length) &&
           (!schema.contains("pattern") || found(schema.at("pattern").get<std::string>(), text));
  }

  static bool number(const Json& schema, const Json& number) {
    const auto value = number.get<double>();
    const auto multiple = [&](double of) {
      return number.is_number_integer() ? number.get<int64_t>() % static_cast<int64_t>(of) == 0
                                        : std::fmod(value, of) == 0;
    };
    const auto at = [&](const char* key) { return schema.at(key).get<double>(); };
    return (!schema.contains("minimum") || value >= at("minimum")) &&
           (!schema.contains("maximum") || value <= at("maximum")) &&
           (!schema.contains("exclusiveMinimum") || value > at("exclusiveMinimum")) &&
           (!schema.contains("exclusiveMaximum") || value < at("exclusiveMaximum")) &&
           (!schema.contains("multipleOf") || multiple(at("multipleOf")));
  }

  bool array(const Json& schema, const Json& value) {
    if (!within(schema, "minItems", "maxItems", value.size())) return false;
    Json prefix = schema.value("prefixItems", Json::array());
    Json items = schema.value("items", Json(true));
    if (items.is_array()) {
      prefix = items;
      items = schema.value("additionalItems", Json(true));
    }
    for (size_t i = 0; i < value.size(); ++i) {
      if (!valid(i < prefix.size() ? prefix[i] : items, value[i])) return false;
    }
    return true;
  }

  bool object(const Json& schema, const Json& value) {
    if (!within(schema, "minProperties", "maxProperties", value.size())) return false;
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    const Json properties = schema.value("properties", Json::object());
    const Json patterns = schema.value("patternProperties", Json::object());
    for (const auto& [name, member] : value.items()) {
      if (schema.contains("propertyNames") && !valid(schema.at("propertyNames"), Json(name))) {
        return false;
      }
      bool known = properties.contains(name);
      if (known && !valid(properties.at(name), member)) return false;
      for (const auto& [pattern, each] : patterns.items()) {
        if (!found(pattern, name)) continue;
        known = true;
        if (!valid(each, member)) return false;
      }
      if (!known && !valid(schema.value("additionalProperties", Json(true)), member)) return false;
    }
    return true;
  }

  const Json& root_;
};

serve::grammar::Grammar grammar_of(const OrderedJson& schema) {
  serve::grammar::Grammar g;
  serve::grammar::JsonParts parts(&g);
  serve::grammar::SchemaReader reader(schema);
  g.finish(serve::grammar::SchemaCompiler(&g, &parts, &reader).compile(reader.root()));
  return g;
}

/// Tokens that lead towards the end of a text, the best first.
int end_rank(std::string_view token) {
  if (token == "\"") return 0;
  return token.size() == 1 && std::string_view("}]ab01eruls").find(token[0]) != token.npos ? 1 : 2;
}

}  // namespace

std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(1, static_cast<char>(byte));
  }
  return tokens;
}

std::vector<std::string> mixed_tokens() {
  std::vector<std::string> tokens = {"", ""};  // such as the end of text
  for (std::string& byte : byte_tokens()) {
    tokens.push_back(std::move(byte));
  }
  for (const char* piece : {"{\"",
                            "\":",
                            "\",",
                            "\", \"",
                            "\":\"",
                            "\": \"",
                            "\"}",
                            "}}",
                            "}]",
                            "]}",
                            "},{",
                            "}, {",
                            "[{\"",
                            "[[",
                            "null",
                            "true",
                            "false",
                            "tr",
                            "nul",
                            "\\\"",
                            "\\u00",
                            "\\ud83d",
                            "\\ude00",
                            "\\n",
                            "name",
                            "value",
                            "kind",
                            "cat",
                            "item",
                            "e\":",
                            " \"",
                            "\n  ",
                            "\n    ",
                            " ",
                            "  ",
                            "10",
                            "100",
                            "12",
                            "0.",
                            "-1",
                            "e-",
                            "E+",
                            ".5",
                            "000",
                            "2024",
                            "-02",
                            "T23",
                            "@example",
                            "ab",
                            "abc",
                            "the",
                            " the",
                            " of",
                            "hello",
                            "\xC3",
                            "\xC3\xA9",
                            "\xA9",
                            "\xE6\x97",
                            "\xA5\xE6",
                            "\xE6\x97\xA5",
                            "\xF0\x9F",
                            "\x98\x80",
                            "\xF0\x9F\x98",
                            "\x80\"",
                            "\xF0\x9F\x98\x80",
                            "\xC3\xA9\"",
                            "value-0",
                            "-",
                            "\"\"",
                            "{}",
                            "[]",
                            "\"a\"",
                            "\"b\""}) {
    tokens.emplace_back(piece);
  }
  tokens.emplace_back("ab");  // a second token of one text
  return tokens;
}

ByteReader::ByteReader(const OrderedJson& schema)
    : grammar_(grammar_of(schema)),
      vocabulary_(std::make_shared<const GrammarVocabulary>(byte_tokens())) {
  matcher_ = std::make_unique<serve::grammar::Matcher>(grammar_, *vocabulary_);
}

size_t ByteReader::allowed(std::string_view text) {
  auto state = matcher_->start();
  for (size_t i = 0; i < text.size(); ++i) {
    state = matcher_->step(state, text.substr(i, 1));
    if (state == serve::grammar::Matcher::kDead) return i;
  }
  return text.size();
}

bool ByteReader::accepts(std::string_view text) {
  return matcher_->may_end(matcher_->step(matcher_->start(), text));
}

std::vector<int32_t> allowed_tokens(serve::TokenConstraint* constraint,
                                    const GrammarVocabulary& vocabulary) {
  std::vector<uint32_t> mask(vocabulary.mask_words(), 0);
  constraint->allow(mask);
  std::vector<int32_t> out;
  for (int32_t token = 0; token < vocabulary.size(); ++token) {
    if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0) {
      out.push_back(token);
    }
  }
  return out;
}

RandomText random_text(serve::TokenConstraint* constraint, const GrammarVocabulary& vocabulary,
                       size_t free, Rng* rng) {
  RandomText out;
  for (; out.tokens < 20'000; ++out.tokens) {
    if (constraint->may_end() && (out.tokens >= free || rng->below(8) == 0)) {
      out.ended = true;
      return out;
    }
    std::vector<int32_t> tokens = allowed_tokens(constraint, vocabulary);
    if (tokens.empty()) {
      out.ended = constraint->may_end();
      return out;
    }
    // A byte of a text's end is drawn more often than the other tokens.
    if (out.tokens >= free && rng->below(4) != 0) {
      int best = 9;
      for (int32_t token : tokens) {
        best = std::min(best, end_rank(vocabulary.bytes(token)));
      }
      std::erase_if(tokens, [&](int32_t t) { return end_rank(vocabulary.bytes(t)) != best; });
    }
    const int32_t token = tokens[rng->below(tokens.size())];
    constraint->accept(token);
    out.text += vocabulary.bytes(token);
  }
  return out;
}

bool is_valid(const Json& schema, const Json& value) {
  return Validator(schema).valid(schema, value);
}

const OrderedJson& peer_instances() {
  static const OrderedJson all = [] {
    const char* root = std::getenv("HOCKET_SOURCE_DIR");
    std::ifstream file(std::string(root != nullptr ? root : ".") +
                       "/tests/peers/json_schema/fixtures/instances.json");
    return OrderedJson::parse(file);
  }();
  return all;
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace hocket::test
