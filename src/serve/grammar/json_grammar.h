// SPDX-License-Identifier: Apache-2.0
// Constraints of a text to JSON, to JSON of a schema, or to calls of tools
// (docs/structured-output.md): a byte-level automaton over the vocabulary. Texts that end are
// valid; texts that are cut are the beginning of a valid one.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "serve/grammar/vocabulary.h"
#include "serve/request.h"

namespace hocket::serve {

/// Forms of calls that the parsers of tool calls read.
enum class ToolCallForm : uint8_t {
  hermes,       ///< <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>
  llama3_json,  ///< {"name": "f", "parameters": {...}}
  mistral,      ///< [TOOL_CALLS][{"name": "f", "arguments": {...}}]
};

struct ToolCallRules {
  ToolCallForm form = ToolCallForm::hermes;
  std::string name;       ///< the one tool to call; empty: any of them
  int64_t max_calls = 1;  ///< at least 1; -1: any number
};

/// A compiled grammar with the states and masks that its texts met so far: samples of one request,
/// and later requests, share it. May be used concurrently.
class JsonGrammar : public std::enable_shared_from_this<JsonGrammar> {
 public:
  /// Objects of JSON for null, else the values of a JSON Schema; properties are written in its
  /// order. Throws Error with the JSON pointer for a bad schema, for a keyword that cannot be
  /// enforced, by name, and for a schema without values.
  static std::shared_ptr<JsonGrammar> of_schema(
      const nlohmann::ordered_json* schema, std::shared_ptr<const GrammarVocabulary> vocabulary);
  /// Compiles calls of tools, a list as the OpenAI API has it; a mark such as <tool_call> is its
  /// control token or its text. Throws Error also for bad tools, and without the named one.
  static std::shared_ptr<JsonGrammar> of_tools(const nlohmann::ordered_json& tools,
                                               const ToolCallRules& rules,
                                               std::shared_ptr<const GrammarVocabulary> vocabulary);
  ~JsonGrammar();

  /// A new text. Its allow() throws Error (kRun) where no token of the vocabulary can continue it,
  /// or it can be read in too many ways at once.
  std::shared_ptr<TokenConstraint> constraint();
  /// Parts of the schema that are not enforced: formats of strings.
  const std::vector<std::string>& warnings() const;
  int64_t compiled_bytes() const;  ///< without the states
  size_t states() const;           ///< that were met since they were last forgotten
  /// Forgets the states; texts go on, and meet them again.
  void forget();

  /// Bytes of the states of all grammars in the process, and their bound. Beyond `most` bytes a
  /// grammar with more than its share forgets its states, and a cache those of its oldest. May be
  /// used concurrently; bound_all is for tests.
  static int64_t bytes_of_all();
  static void bound_all(int64_t most = kMaxBytesOfAll);
  static constexpr int64_t kMaxBytesOfAll = int64_t{384} << 20;

 private:
  friend class GrammarConstraint;
  struct Impl;
  explicit JsonGrammar(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Grammars by schema or tools. The least recently used ones go, by number and by bytes, but never
/// the last one used; texts keep theirs to their end. May be used concurrently.
class JsonGrammarCache {
 public:
  /// Bytes of compiled grammars with their keys.
  static constexpr int64_t kMaxCompiledBytes = int64_t{256} << 20;
  explicit JsonGrammarCache(std::shared_ptr<const GrammarVocabulary> vocabulary,
                            size_t max_grammars = 32, int64_t max_bytes = kMaxCompiledBytes);
  /// JsonGrammar::of_schema and of_tools, of what was compiled before if possible; else warnings
  /// are logged.
  std::shared_ptr<JsonGrammar> of_schema(const nlohmann::ordered_json* schema);
  std::shared_ptr<JsonGrammar> of_tools(const nlohmann::ordered_json& tools,
                                        const ToolCallRules& rules);

 private:
  /// Has grammars forget their states while all of them have too many, the oldest first. Requires:
  /// the lock.
  void trim();
  std::shared_ptr<JsonGrammar> find(const std::string& key);
  std::shared_ptr<JsonGrammar> keep(std::string key, std::shared_ptr<JsonGrammar> grammar);

  using Entry = std::pair<std::string, std::shared_ptr<JsonGrammar>>;
  static int64_t bytes_of(const Entry& entry);

  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  size_t max_grammars_;
  int64_t max_bytes_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the most recently used one first
  int64_t bytes_ = 0;         // of the entries
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
};

/// The constraint of one text to a schema (null: any object); of_schema()->constraint().
std::shared_ptr<TokenConstraint> json_constraint(
    const nlohmann::ordered_json* schema, std::shared_ptr<const GrammarVocabulary> vocabulary);

/// The constraint of one text to calls of tools; of_tools()->constraint().
std::shared_ptr<TokenConstraint> tool_call_constraint(
    const nlohmann::ordered_json& tools, const ToolCallRules& rules,
    std::shared_ptr<const GrammarVocabulary> vocabulary);

}  // namespace hocket::serve
