// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar/json_grammar.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "serve/grammar/compile.h"
#include "serve/grammar/grammar.h"
#include "serve/grammar/matcher.h"
#include "serve/grammar/reasoning.h"
#include "serve/grammar/schema.h"

namespace hocket::serve::grammar {
namespace {

constexpr int64_t kMaxMatcherBytes = int64_t{24} << 20;  // then states and masks are forgotten
constexpr int64_t kMinShare = int64_t{1} << 20;          // of a matcher, if all have too many

/// Returns the schema as text, for the keys of the cache.
std::string dumped(const Schema& schema, const char* where) {
  try {
    return schema.dump();
  } catch (const nlohmann::json::exception&) {
    fail(where, "text that is not UTF-8");
  }
}

/// Adds the warnings of a schema.
void add_warnings(const SchemaReader& reader, std::vector<std::string>* out) {
  out->insert(out->end(), reader.warnings().begin(), reader.warnings().end());
}

/// A mark of a chat: its text, or its control token.
ExprId mark(Grammar* g, const std::string& text) {
  return g->choice({g->text(text), g->text(static_cast<char>(GrammarVocabulary::kSpecial) + text)});
}

const Schema& object_schema() {
  static const Schema schema = {{"type", "object"}};
  return schema;
}
const Schema& no_arguments() {
  static const Schema schema = {{"type", "object"}, {"properties", Schema::object()}};
  return schema;
}

struct ToolSchema {
  std::string name;
  Schema parameters;
};

std::vector<ToolSchema> read_tools(const Schema& tools, const ToolCallRules& rules) {
  if (!tools.is_array() || tools.empty()) fail("tools", "expected a list of tools, not empty");
  std::vector<ToolSchema> out;
  std::set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const Schema& tool = tools[i];
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    if (!tool.is_object() || function == tool.end() || !function->is_object()) {
      fail(where, "no function; expected {{\"type\": \"function\", \"function\": {{...}}}}");
    }
    const auto name = function->find("name");
    if (name == function->end() || !name->is_string() ||
        name->get_ref<const std::string&>().empty()) {
      fail(where, "function has no name; expected a text");
    }
    if (!names.insert(name->get<std::string>()).second) {
      fail(where, "two functions have one name; got {}", quote(name->get<std::string>()));
    }
    if (!rules.name.empty() && rules.name != name->get_ref<const std::string&>()) continue;
    const auto parameters = function->find("parameters");
    const bool none = parameters == function->end() || parameters->is_null();
    out.push_back({name->get<std::string>(), none ? no_arguments() : Schema(*parameters)});
  }
  if (out.empty()) fail("tools", "no function is named {}; try one of the list", quote(rules.name));
  return out;
}

/// Compiles {"name": ..., "<key>": {...}} of any of the tools.
ExprId call_of(const std::vector<ToolSchema>& tools, const char* key, Grammar* g, JsonParts* parts,
               std::vector<std::string>* warnings) {
  std::vector<ExprId> calls;
  for (const ToolSchema& tool : tools) {
    try {
      SchemaReader reader(tool.parameters);
      const Goal goal = SchemaReader::both(reader.root(), reader.goal_of(object_schema(), "#"));
      const ExprId arguments = SchemaCompiler(g, parts, &reader).compile(goal);
      add_warnings(reader, warnings);
      calls.push_back(g->sequence({g->text("{"), parts->space(), parts->key("name"),
                                   parts->constant(tool.name), parts->separator(), parts->key(key),
                                   arguments, parts->space(), g->text("}")}));
    } catch (const Error& error) {
      throw error.with(fmt::format("parameters of {}", quote(tool.name)));
    }
  }
  return g->choice(std::move(calls));
}

ExprId calls_of(const std::vector<ToolSchema>& tools, const ToolCallRules& rules, Grammar* g,
                std::vector<std::string>* warnings) {
  JsonParts parts(g);
  const int64_t more = rules.max_calls < 0 ? -1 : rules.max_calls - 1;
  const auto listed = [&](ExprId call, ExprId separator) {
    return g->sequence({call, g->repeat(g->sequence({separator, call}), 0, more)});
  };
  switch (rules.form) {
    case ToolCallForm::hermes: {
      const ExprId call = call_of(tools, "arguments", g, &parts, warnings);
      return listed(g->sequence({mark(g, "<tool_call>"), g->text("\n"), call, g->text("\n"),
                                 mark(g, "</tool_call>")}),
                    g->text("\n"));
    }
    case ToolCallForm::llama3_json:
      return listed(call_of(tools, "parameters", g, &parts, warnings), g->text("; "));
    case ToolCallForm::mistral:
      break;
  }
  const ExprId call = call_of(tools, "arguments", g, &parts, warnings);
  return g->sequence({mark(g, "[TOOL_CALLS]"), g->optional(g->text(" ")), g->text("["),
                      parts.space(), listed(call, parts.separator()), parts.space(), g->text("]")});
}

std::string rules_key(const ToolCallRules& rules) {
  return fmt::format("{} {} {} ", static_cast<int>(rules.form), rules.max_calls, rules.name);
}

}  // namespace
}  // namespace hocket::serve::grammar

namespace hocket::serve {

namespace {

/// Sums over all matchers, and the bound of their bytes.
struct AllMatchers {
  std::atomic<int64_t> bytes{0}, count{0}, most{JsonGrammar::kMaxBytesOfAll};
};
AllMatchers& all_matchers() {
  static AllMatchers all;
  return all;
}

}  // namespace

struct JsonGrammar::Impl {
  Impl(std::shared_ptr<const GrammarVocabulary> words, grammar::Grammar made,
       std::vector<std::string> about, const std::string& where)
      : vocabulary(std::move(words)), rules(std::move(made)), warnings(std::move(about)) {
    if (!rules.expr(rules.root()).productive) {
      fail(where, "no value satisfies the schema; try fewer restrictions");
    }
    compiled_bytes = static_cast<int64_t>(rules.memory_bytes());
    matcher = std::make_unique<grammar::Matcher>(rules, *vocabulary);
    ++all_matchers().count;
    count_bytes();
  }
  ~Impl() {
    --all_matchers().count;
    all_matchers().bytes -= counted;
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void count_bytes() {
    const auto now = static_cast<int64_t>(matcher->bytes());
    all_matchers().bytes += now - counted;
    counted = now;
  }
  /// Returns whether states are to be forgotten: not soon after they were, as every text is then
  /// read again.
  bool is_full() const {
    const AllMatchers& all = all_matchers();
    const int64_t share = std::max(grammar::kMinShare, all.most / std::max<int64_t>(all.count, 1));
    const int64_t most = all.bytes > all.most ? std::min(share, grammar::kMaxMatcherBytes)
                                              : grammar::kMaxMatcherBytes;
    return static_cast<int64_t>(matcher->bytes()) > std::max(most, 2 * read_again);
  }
  void forget() {
    matcher->clear();
    ++generation;
    read_again = 0;
    count_bytes();
  }

  std::shared_ptr<const GrammarVocabulary> vocabulary;
  grammar::Grammar rules;
  std::vector<std::string> warnings;
  int64_t compiled_bytes = 0;
  std::mutex mutex;
  std::unique_ptr<grammar::Matcher> matcher;
  uint64_t generation = 0;  // rises when the matcher forgets its states
  int64_t counted = 0;      // bytes of it among those of all
  int64_t read_again = 0;   // bytes of it that texts took since, when they were read again
};

class GrammarConstraint : public TokenConstraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<JsonGrammar> owner)
      : owner_(std::move(owner)), grammar_(*owner_->impl_) {
    const std::lock_guard lock(grammar_.mutex);
    state_ = grammar_.matcher->start();
    generation_ = grammar_.generation;
    ends_ = grammar_.matcher->may_end(state_);
  }

  bool prepare(int64_t* work) override {
    const std::lock_guard lock(grammar_.mutex);
    if (*work <= 0 && generation_ != grammar_.generation) return false;
    const int64_t begin = grammar_.matcher->work(), left = *work;
    bool ready = true;
    try {
      refresh();
      ready = grammar_.matcher->prepare_mask(state_, work);
    } catch (const Error&) {
      // allow() throws it again.
    }
    *work = left - (grammar_.matcher->work() - begin);
    grammar_.count_bytes();
    return ready;
  }

  void begin_with_reasoning(bool is_open, const std::vector<int32_t>& ends) override {
    reasoning_.emplace(*grammar_.vocabulary, is_open, ends);
  }

  void allow(std::span<uint32_t> mask) override {
    if (reasons()) {
      reasoning_->allow(mask);
      return;
    }
    const std::lock_guard lock(grammar_.mutex);
    refresh();
    const std::span<const uint32_t> all = grammar_.matcher->mask(state_);
    grammar_.count_bytes();
    const size_t words = std::min(mask.size(), all.size());
    std::copy_n(all.begin(), words, mask.begin());
    if (reasoning_) {
      reasoning_->allow(mask);
      return;
    }
    const bool stuck = !ends_ && std::all_of(all.begin(), all.begin() + static_cast<int64_t>(words),
                                             [](uint32_t word) { return word == 0; });
    if (stuck) {
      fail_run("json grammar",
               "no token of the vocabulary can continue the text {}; try a schema "
               "without characters that the tokenizer lacks",
               quote(text_.substr(text_.size() - std::min<size_t>(text_.size(), 60))));
    }
  }

  void accept(int32_t token) override {
    std::string_view bytes = grammar_.vocabulary->bytes(token);
    std::string rest;  // behind the reasoning
    if (reasoning_) {
      const bool begun = reasons();
      const std::optional<std::string> behind = reasoning_->take(token);
      if (!behind) return;
      reasoning_.reset();
      if (begun) {
        rest = *behind;
        if (rest.empty()) return;
        bytes = rest;
      }
    }
    const std::lock_guard lock(grammar_.mutex);
    // Not in prepare(), as allow() would then have its work to do again.
    if (grammar_.is_full()) {
      grammar_.forget();
    }
    refresh();
    const grammar::Matcher::StateId next = grammar_.matcher->step(state_, bytes);
    grammar_.count_bytes();
    if (next == grammar::Matcher::kDead && !rest.empty()) {
      fail_run("json grammar", "{} follows </think> in one token, and begins no valid text",
               quote(rest));
    }
    HOCKET_CHECK(!bytes.empty() && next != grammar::Matcher::kDead, "token {} was not allowed",
                 token);
    state_ = next;
    ends_ = grammar_.matcher->may_end(state_);
    text_ += bytes;
  }

  bool may_end() const override { return ends_ && !reasons(); }

 private:
  /// Returns whether the text is within its reasoning.
  bool reasons() const {
    return reasoning_ && reasoning_->state() == grammar::Reasoning::State::running;
  }
  /// Finds the state of the text again if the states were forgotten.
  void refresh() {
    if (generation_ == grammar_.generation) return;
    const int64_t before = grammar_.counted;
    state_ = grammar_.matcher->read(text_);
    generation_ = grammar_.generation;
    grammar_.count_bytes();
    grammar_.read_again += grammar_.counted - before;
  }

  std::shared_ptr<JsonGrammar> owner_;
  JsonGrammar::Impl& grammar_;
  std::optional<grammar::Reasoning> reasoning_;  // none: there is none, or it is over
  std::string text_;                             // bytes of the accepted tokens behind it
  grammar::Matcher::StateId state_ = grammar::Matcher::kDead;
  uint64_t generation_ = 0;
  bool ends_ = false;
};

JsonGrammar::JsonGrammar(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JsonGrammar::~JsonGrammar() = default;

std::shared_ptr<JsonGrammar> JsonGrammar::of_schema(
    const grammar::Schema* schema, std::shared_ptr<const GrammarVocabulary> vocabulary) {
  grammar::Grammar g;
  grammar::JsonParts parts(&g);
  std::vector<std::string> warnings;
  if (schema == nullptr) {
    g.finish(parts.any_object());
  } else {
    grammar::dumped(*schema, "json schema");
    grammar::SchemaReader reader(*schema);
    g.finish(grammar::SchemaCompiler(&g, &parts, &reader).compile(reader.root()));
    grammar::add_warnings(reader, &warnings);
  }
  return std::shared_ptr<JsonGrammar>(new JsonGrammar(std::make_unique<Impl>(
      std::move(vocabulary), std::move(g), std::move(warnings), "json schema #")));
}

std::shared_ptr<JsonGrammar> JsonGrammar::of_tools(
    const grammar::Schema& tools, const ToolCallRules& rules,
    std::shared_ptr<const GrammarVocabulary> vocabulary) {
  grammar::dumped(tools, "tools");
  grammar::Grammar g;
  std::vector<std::string> warnings;
  g.finish(grammar::calls_of(grammar::read_tools(tools, rules), rules, &g, &warnings));
  return std::shared_ptr<JsonGrammar>(new JsonGrammar(
      std::make_unique<Impl>(std::move(vocabulary), std::move(g), std::move(warnings), "tools")));
}

std::shared_ptr<TokenConstraint> JsonGrammar::constraint() {
  auto made = std::make_shared<GrammarConstraint>(shared_from_this());
  int64_t work = std::numeric_limits<int64_t>::max();
  made->prepare(&work);  // here, and not in a step of the engine
  return made;
}

const std::vector<std::string>& JsonGrammar::warnings() const { return impl_->warnings; }

int64_t JsonGrammar::compiled_bytes() const { return impl_->compiled_bytes; }

size_t JsonGrammar::states() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->matcher->states();
}

void JsonGrammar::forget() {
  const std::lock_guard lock(impl_->mutex);
  impl_->forget();
}

int64_t JsonGrammar::bytes_of_all() { return all_matchers().bytes; }
void JsonGrammar::bound_all(int64_t most) { all_matchers().most = most; }

JsonGrammarCache::JsonGrammarCache(std::shared_ptr<const GrammarVocabulary> vocabulary,
                                   size_t max_grammars, int64_t max_bytes)
    : vocabulary_(std::move(vocabulary)),
      max_grammars_(std::max<size_t>(1, max_grammars)),
      max_bytes_(max_bytes) {}

int64_t JsonGrammarCache::bytes_of(const Entry& entry) {
  // The key is held twice.
  return entry.second->compiled_bytes() + 2 * std::ssize(entry.first);
}

void JsonGrammarCache::trim() {
  for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
    if (JsonGrammar::bytes_of_all() <= all_matchers().most) return;
    it->second->forget();
  }
}

std::shared_ptr<JsonGrammar> JsonGrammarCache::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  trim();
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->second;
}

std::shared_ptr<JsonGrammar> JsonGrammarCache::keep(std::string key,
                                                    std::shared_ptr<JsonGrammar> grammar) {
  const std::lock_guard lock(mutex_);
  if (const auto it = by_key_.find(key); it != by_key_.end()) return it->second->second;
  for (const std::string& warning : grammar->warnings()) {
    log_warning("{}", escape(warning, ""));  // it has names of the client's
  }
  entries_.emplace_front(key, grammar);
  by_key_.emplace(std::move(key), entries_.begin());
  bytes_ += bytes_of(entries_.front());
  while (entries_.size() > max_grammars_ || (bytes_ > max_bytes_ && entries_.size() > 1)) {
    bytes_ -= bytes_of(entries_.back());
    by_key_.erase(entries_.back().first);
    entries_.pop_back();
  }
  return grammar;
}

std::shared_ptr<JsonGrammar> JsonGrammarCache::of_schema(const grammar::Schema* schema) {
  const std::string key =
      schema == nullptr ? "object" : "schema " + grammar::dumped(*schema, "json schema");
  if (std::shared_ptr<JsonGrammar> found = find(key)) return found;
  return keep(key, JsonGrammar::of_schema(schema, vocabulary_));
}

std::shared_ptr<JsonGrammar> JsonGrammarCache::of_tools(const grammar::Schema& tools,
                                                        const ToolCallRules& rules) {
  const std::string key = "tools " + grammar::rules_key(rules) + grammar::dumped(tools, "tools");
  if (std::shared_ptr<JsonGrammar> found = find(key)) return found;
  return keep(key, JsonGrammar::of_tools(tools, rules, vocabulary_));
}

std::shared_ptr<TokenConstraint> json_constraint(
    const grammar::Schema* schema, std::shared_ptr<const GrammarVocabulary> vocabulary) {
  return JsonGrammar::of_schema(schema, std::move(vocabulary))->constraint();
}

std::shared_ptr<TokenConstraint> tool_call_constraint(
    const grammar::Schema& tools, const ToolCallRules& rules,
    std::shared_ptr<const GrammarVocabulary> vocabulary) {
  return JsonGrammar::of_tools(tools, rules, std::move(vocabulary))->constraint();
}

}  // namespace hocket::serve
