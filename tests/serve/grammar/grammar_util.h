// SPDX-License-Identifier: Apache-2.0
// Small vocabularies, random texts of a grammar, and a validator of JSON Schema of its own.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "serve/grammar/grammar.h"
#include "serve/grammar/json_grammar.h"
#include "serve/grammar/matcher.h"
#include "serve/grammar/vocabulary.h"

namespace hocket::test {

using OrderedJson = nlohmann::ordered_json;

/// A token of each byte: id and byte are equal.
std::vector<std::string> byte_tokens();
/// Bytes, pieces of JSON, words, characters and parts of characters; some ids have no text.
std::vector<std::string> mixed_tokens();

/// A schema's grammar, to be read byte by byte.
class ByteReader {
 public:
  explicit ByteReader(const OrderedJson& schema);
  static ByteReader of(const std::string& schema) { return ByteReader(OrderedJson::parse(schema)); }
  ByteReader(const ByteReader&) = delete;
  ByteReader& operator=(const ByteReader&) = delete;
  /// Bytes of the text, from its beginning, that the grammar allows.
  size_t allowed(std::string_view text);
  /// Returns whether the grammar accepts a whole text.
  bool accepts(std::string_view text);
  serve::grammar::Matcher& matcher() { return *matcher_; }

 private:
  serve::grammar::Grammar grammar_;
  std::shared_ptr<const serve::GrammarVocabulary> vocabulary_;
  std::unique_ptr<serve::grammar::Matcher> matcher_;
};

/// A text of random tokens: `free` of them at random, then such that it ends soon.
struct RandomText {
  std::string text;
  bool ended = false;  ///< false: not within 20,000 tokens
  size_t tokens = 0;
};
RandomText random_text(serve::TokenConstraint* constraint,
                       const serve::GrammarVocabulary& vocabulary, size_t free, Rng* rng);

/// Ids with a set bit.
std::vector<int32_t> allowed_tokens(serve::TokenConstraint* constraint,
                                    const serve::GrammarVocabulary& vocabulary);

/// Returns whether the value is valid by the words of the specification alone, without formats.
bool is_valid(const nlohmann::json& schema, const nlohmann::json& value);

/// The schemas of tests/peers/json_schema, each with `name`, `schema`, `valid`, `invalid`.
const OrderedJson& peer_instances();

/// The text of an Error that `run` throws; empty without one.
std::string error_of(const std::function<void()>& run);

}  // namespace hocket::test
