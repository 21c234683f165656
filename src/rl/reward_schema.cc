// SPDX-License-Identifier: Apache-2.0
// Implements: make_schema_reward (reward_parts.h).
#include <algorithm>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/ordered_json.h"
#include "base/text.h"
#include "rl/reward_parts.h"
#include "serve/grammar/compile.h"
#include "serve/grammar/matcher.h"

namespace hocket::rl {

namespace {

namespace grammar = serve::grammar;
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxSchemas = 64;  // read ones that are kept
constexpr size_t kMaxMatcherBytes = size_t{16} << 20;
constexpr int kMaxDepth = 1000;  // of values inside one another, which are compared recursively

/// The texts that are right. May be used concurrently.
class SchemaTexts {
 public:
  virtual ~SchemaTexts() = default;
  virtual bool accept(std::string_view text) = 0;
};

/// Texts whose value the schema allows, as JSON Schema says.
class ValidTexts : public SchemaTexts {
 public:
  explicit ValidTexts(const OrderedJson& schema) : reader_(schema), root_(reader_.root()) {
    check(root_);
    if (!root_.empty() && reader_.alternatives(root_).empty()) {
      fail("json_schema", "no value satisfies the schema; try fewer restrictions");
    }
  }
  bool accept(std::string_view text) override {
    bool is_deep = false;
    const OrderedJson value = OrderedJson::parse(
        text,
        [&](int depth, OrderedJson::parse_event_t, OrderedJson&) {
          is_deep = is_deep || depth > kMaxDepth;
          return true;
        },
        false);
    if (value.is_discarded()) return false;
    if (is_deep) {
      fail_run("json_schema", "the answer has more than {} values inside one another", kMaxDepth);
    }
    const std::lock_guard lock(mutex_);
    reader_.begin_value();
    return reader_.matches(root_, value);
  }

 private:
  /// Reads all subschemas that values may be compared with, so that a wrong one ends the run before
  /// it begins.
  void check(const grammar::Goal& goal) {
    if (goal.empty() || !checked_.insert(goal).second) return;
    for (const grammar::Flat& flat : reader_.alternatives(goal)) {
      for (const auto& [pattern, where] : flat.patterns) {
        reader_.pattern(pattern, where);
      }
      for (const grammar::Goal& item : flat.prefix) {
        check(item);
      }
      for (const grammar::Property& property : flat.properties) {
        check(property.goal);
      }
      for (const grammar::PatternProperty& property : flat.pattern_properties) {
        reader_.pattern(property.pattern, property.where);
        check(property.goal);
      }
      check(flat.items.value_or(grammar::Goal{}));
      check(flat.additional.value_or(grammar::Goal{}));
      check(flat.names);
    }
  }

  std::mutex mutex_;
  grammar::SchemaReader reader_;
  const grammar::Goal root_;
  std::set<grammar::Goal> checked_;
};

/// Texts that structured output writes for the schema.
class WrittenTexts : public SchemaTexts {
 public:
  explicit WrittenTexts(const OrderedJson& schema) {
    grammar::JsonParts parts(&grammar_);
    grammar::SchemaReader reader(schema);
    grammar_.finish(grammar::SchemaCompiler(&grammar_, &parts, &reader).compile(reader.root()));
    if (!grammar_.expr(grammar_.root()).productive) {
      fail("json_schema", "no value satisfies the schema; try fewer restrictions");
    }
    matcher_ = std::make_unique<grammar::Matcher>(grammar_, no_tokens_);
  }
  bool accept(std::string_view text) override {
    const std::lock_guard lock(mutex_);
    if (matcher_->bytes() > kMaxMatcherBytes) {
      matcher_->clear();
    }
    return matcher_->may_end(matcher_->read(text));
  }

 private:
  grammar::Grammar grammar_;
  const serve::GrammarVocabulary no_tokens_{std::vector<std::string>{}};
  std::mutex mutex_;
  std::unique_ptr<grammar::Matcher> matcher_;
};

class SchemaRule : public Reward {
 public:
  SchemaRule(const engine::RewardSection& section, const std::string& where)
      : part_(section.extract, where), is_strict_(section.form == "strict") {
    if (section.schema.empty()) return;
    try {
      own_ = texts_of(parse_ordered_json(read_file(section.schema), section.schema));
    } catch (const Error& error) {
      fail(where, "schema {}: {}: {}", section.schema, error.where(), error.text());
    }
  }
  RewardPart score(const Scored& scored) override {
    const std::shared_ptr<SchemaTexts> texts = own_ ? own_ : texts_of_line(scored.prompt);
    const std::optional<std::string_view> got = part_.of(scored.sample.text);
    return {.score = got && texts->accept(*got) ? 1.0 : 0.0, .error = {}, .details = {}};
  }

 private:
  std::shared_ptr<SchemaTexts> texts_of(const OrderedJson& schema) const {
    if (is_strict_) return std::make_shared<WrittenTexts>(schema);
    return std::make_shared<ValidTexts>(schema);
  }

  /// Returns the texts of the line's schema, made before if possible.
  std::shared_ptr<SchemaTexts> texts_of_line(const Prompt& prompt) {
    const OrderedJson* given = nullptr;
    if (prompt.columns.is_object() && prompt.columns.contains("json_schema")) {
      given = &prompt.columns.at("json_schema");
    }
    const bool is_text = given && given->is_string();
    if (!given || !(is_text || given->is_object() || given->is_boolean())) {
      fail("json_schema",
           "the column json_schema of prompt {} is {}; expected a schema or its text, or the key "
           "schema with a file",
           prompt.index, given ? shown_value(*given) : "missing");
    }
    const std::string key = is_text ? given->get<std::string>() : given->dump();
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(kept_.begin(), kept_.end(),
                                    [&](const auto& each) { return each.first == key; });
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
    } else {
      const std::string where = fmt::format("json_schema of prompt {}", prompt.index);
      kept_.emplace_front(key, texts_of(parse_ordered_json(key, where)));
      kept_.resize(std::min(kept_.size(), kMaxSchemas));
    }
    return kept_.front().second;
  }

  const AnswerPart part_;
  const bool is_strict_;
  std::shared_ptr<SchemaTexts> own_;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<SchemaTexts>>> kept_;  // latest first
};

}  // namespace

std::unique_ptr<Reward> make_schema_reward(const engine::RewardSection& section,
                                           const std::string& where) {
  return std::make_unique<SchemaRule>(section, where);
}

}  // namespace hocket::rl
