// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Calls of a public benchmark there and back: parsers read them wherever the text is split, and the
// grammars of forced calls allow those that are valid. `./test peers bfcl` writes the file.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "serve/grammar/json_grammar.h"
#include "serve/openai/tool_parser.h"
#include "tests/serve/grammar/grammar_util.h"

namespace hocket::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kBytesOfEverySplit = 1000;  // longer texts are split at every 7th byte

std::string path_of_calls() {
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  return std::string(root == nullptr ? "." : root) + "/.venv-peers/bfcl/calls.jsonl";
}

struct Calls {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  ///< name, text of arguments
  bool operator==(const Calls&) const = default;
};

void add(const ToolText& text, Calls* out) {
  out->content += text.content;
  for (const ToolCallPart& part : text.calls) {
    if (!part.name.empty()) {
      out->calls.emplace_back(part.name, "");
    }
    ASSERT_EQ(part.index + 1, std::ssize(out->calls));
    out->calls.back().second += part.arguments;
  }
}

Calls parsed(const std::string& parser_name, std::initializer_list<std::string_view> pieces) {
  Calls out;
  const auto parser = make_tool_parser(parser_name);
  for (const std::string_view piece : pieces) {
    ToolText text;
    parser->feed(piece, &text);
    add(text, &out);
  }
  ToolText rest;
  parser->finish(&rest);
  add(rest, &out);
  return out;
}

ToolCallForm form_of(const std::string& parser) {
  return parser == "hermes"        ? ToolCallForm::hermes
         : parser == "llama3_json" ? ToolCallForm::llama3_json
                                   : ToolCallForm::mistral;
}

/// Returns bytes of the text that a grammar allows; one more than it has if it may end there.
size_t allowed_bytes(TokenConstraint* constraint, const std::string& text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    std::vector<uint32_t> mask(8, 0);
    constraint->allow(mask);
    if ((mask[byte / 32] >> (byte % 32) & 1) == 0) return i;
    constraint->accept(byte);
  }
  return text.size() + (constraint->may_end() ? 1 : 0);
}

class RealCalls : public testing::Test {
 protected:
  void SetUp() override {
    file.open(path_of_calls());
    if (!file) {
      GTEST_SKIP() << "no " << path_of_calls() << "; try ./test peers bfcl";
    }
  }
  /// Calls `check` for every line.
  template <typename Check>
  void for_each_line(const Check& check) {
    std::string line;
    int64_t count = 0;
    while (std::getline(file, line) && !HasFatalFailure()) {
      const OrderedJson row = OrderedJson::parse(line);
      SCOPED_TRACE(row["parser"].get<std::string>() + " " + row["text"].get<std::string>());
      check(row);
      ++count;
    }
    EXPECT_GE(count, 1000);
  }
  std::ifstream file;
};

TEST_F(RealCalls, AreReadWhereverTheTextIsSplit) {
  int64_t splits = 0;
  for_each_line([&](const OrderedJson& row) {
    const std::string parser = row["parser"], text = row["text"];
    const Calls whole = parsed(parser, {text});
    EXPECT_EQ(whole.content, "");
    ASSERT_EQ(whole.calls.size(), row["calls"].size());
    for (size_t i = 0; i < whole.calls.size(); ++i) {
      EXPECT_EQ(whole.calls[i].first, row["calls"][i][0].get<std::string>());
      EXPECT_EQ(OrderedJson::parse(whole.calls[i].second), row["calls"][i][1]);
    }
    const std::string_view view = text;
    const size_t step = std::ssize(text) <= kBytesOfEverySplit ? 1 : 7;
    for (size_t at = 1; at < view.size(); at += step, ++splits) {
      ASSERT_EQ(parsed(parser, {view.substr(0, at), view.substr(at)}), whole) << "at byte " << at;
    }
  });
  RecordProperty("splits", std::to_string(splits));
}

TEST_F(RealCalls, ValidOnesAreAllowedByTheGrammar) {
  const auto vocabulary = std::make_shared<const GrammarVocabulary>(test::byte_tokens());
  std::map<std::string, int64_t> refused;
  int64_t allowed = 0;
  for_each_line([&](const OrderedJson& row) {
    if (!row["valid"].get<bool>()) return;
    const std::string text = row["text"];
    std::shared_ptr<JsonGrammar> grammar;
    try {
      grammar = JsonGrammar::of_tools(
          row["tools"],
          {.form = form_of(row["parser"]), .name = "", .max_calls = std::ssize(row["calls"])},
          vocabulary);
    } catch (const std::exception& error) {
      ++refused[error.what()];
      return;
    }
    const size_t bytes = allowed_bytes(grammar->constraint().get(), text);
    EXPECT_EQ(bytes, text.size() + 1) << "allowed: " << text.substr(0, bytes);
    ++allowed;
  });
  for (const auto& [why, count] : refused) {
    ADD_FAILURE() << count << " requests are refused: " << why;
  }
  RecordProperty("allowed", std::to_string(allowed));
}

}  // namespace
}  // namespace hocket::serve
