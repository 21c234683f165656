// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// ctest: timeout=300
// The Jinja engine: cases with transformers' text, limits, and mutated templates.
// HOCKET_FUZZ_SECONDS=S and HOCKET_SEED=S make the last one longer, and another.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/file.h"
#include "base/ordered_json.h"
#include "base/rng.h"
#include "data/chat/chat_template.h"
#include "tests/data/data_util.h"

namespace hocket::data {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson read_cases() {
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  const std::string path = join_path(root != nullptr ? root : ".", "tests/data/chat/cases.json");
  return parse_ordered_json(read_file(path), path);
}

RenderedChat rendered(const std::string& text, const OrderedJson& messages,
                      ChatOptions options = {}) {
  return ChatTemplate::parse(text, "template", {{"bos_token", "<s>"}}).render(messages, options);
}

const OrderedJson kHello = {{{"role", "user"}, {"content", "Hello"}}};

std::string text_of(const std::string& text) { return rendered(text, kHello).text; }

TEST(ChatEngine, RendersAsTransformersDoes) {
  const OrderedJson all = read_cases();
  ChatOptions options;
  options.variables = &all.at("variables");
  size_t good = 0, bad = 0;
  for (const OrderedJson& row : all.at("cases")) {
    const auto text = row.at("template").get<std::string>();
    if (row.contains("error")) {
      error_of([&] { rendered(text, all.at("messages"), options); });
      EXPECT_FALSE(testing::Test::HasFailure()) << text;
      ++bad;
      continue;
    }
    RenderedChat got;
    EXPECT_NO_THROW(got = rendered(text, all.at("messages"), options)) << text;
    EXPECT_EQ(got.text, row.at("want").get<std::string>()) << text;
    std::vector<ChatSpan> spans;
    for (const OrderedJson& span : row.value("generation", OrderedJson::array())) {
      spans.push_back({span[0].get<size_t>(), span[1].get<size_t>()});
    }
    EXPECT_EQ(got.generation, spans) << text;
    ++good;
  }
  EXPECT_GT(good, 50U);
  EXPECT_GT(bad, 40U);
}

TEST(ChatEngine, ErrorsNameLineAndConstruct) {
  EXPECT_ERROR(text_of("a\n{% if x %}\n{{ y | nosuch }}{% endif %}"),
               "line 3: the filter 'nosuch'");
  EXPECT_ERROR(text_of("{{ 1|uppr }}"), "did you mean 'upper'?");
  EXPECT_ERROR(text_of("{% include 'x' %}"), "line 1: the tag 'include' is not supported");
  EXPECT_ERROR(text_of("\n\n{{ x.y }}"), "[template] line 3: 'x' is undefined");
  EXPECT_ERROR(text_of("{{ 99999999999999999999 }}"), "beyond 64 bits");
  EXPECT_ERROR(text_of("{{ 9223372036854775807 + 1 }}"), "an integer beyond 64 bits");
  EXPECT_ERROR(text_of("{{ '\\N{DASH}' }}"), "\\N");
  EXPECT_ERROR(text_of("{{ '\\ud800' }}"), "is no character");
  EXPECT_ERROR(text_of("{{ 'x'.encode() }}"), "the attribute 'encode' of 'str' is not supported");
  EXPECT_ERROR(text_of("{{ messages|map('upper') }}"), "prints a generator");
  EXPECT_ERROR(text_of("{% if true %}\n{{ raise_exception('no way') }}\n{% endif %}"),
               "line 2 refuses the messages: no way");
}

TEST(ChatEngine, ReadsTheGivenClock) {
  ChatOptions options;
  options.local_time = [] {
    std::tm time{};
    time.tm_year = 124;
    time.tm_mon = 6;
    time.tm_mday = 4;
    time.tm_hour = 17;
    time.tm_wday = 4;
    return time;
  };
  EXPECT_EQ(rendered("{{ strftime_now('%d %b %Y %A %-H %%') }}", kHello, options).text,
            "04 Jul 2024 Thursday 17 %");
  EXPECT_EQ(rendered("{{ strftime_now('') }}", kHello, options).text, "");
  EXPECT_ERROR(rendered("{{ strftime_now('%f') }}", kHello, options), "directive '%f'");
  EXPECT_ERROR(rendered("{{ strftime_now('%1000000d') }}", kHello, options), "directive");
  EXPECT_EQ(text_of("{{ strftime_now('%Y')|length }}"), "4");
}

TEST(ChatEngine, ALoopSeesItsElementsWhenItComesToThem) {
  // The condition of a later element is tested after the body of the one before it.
  EXPECT_EQ(text_of("{% set ns = namespace(go=true) %}{% for i in [1, 2, 3] if ns.go %}{{ i }}"
                    "{% if i == 2 %}{% set ns.go = false %}{% endif %}{% endfor %}"),
            "12");
  EXPECT_EQ(text_of("{% set g = [1, 2, 3]|map('string') %}{{ g|first }}{{ g|list }}"),
            "1['2', '3']");
}

TEST(ChatEngine, AHostileTemplateEnds) {
  const auto stops = [](const std::string& text) {
    ChatOptions options;
    options.max_steps = 3'000'000;
    const int64_t began = now_ns();
    const std::string error = error_of([&] { rendered(text, kHello, options); });
    EXPECT_LT(seconds_since(began), 60) << text;
    return error;
  };
  const std::string loop =
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
  EXPECT_NE(stops(loop).find("more steps"), std::string::npos);
  EXPECT_NE(stops("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").find("nests calls"),
            std::string::npos);
  EXPECT_NE(stops("{{ 'x' * 9999999999 }}").find("more text"), std::string::npos);
  EXPECT_NE(stops("{{ [1] * 9999999999 }}").find("more text"), std::string::npos);
  EXPECT_NE(stops("{{ 'x'.center(99999999) }}").find("width"), std::string::npos);
  EXPECT_NE(stops("{{ '%999999999d' % 1 }}").find("width"), std::string::npos);
  EXPECT_NE(stops("{% set ns = namespace(t='x') %}{% for i in range(99) %}"
                  "{% set ns.t = ns.t ~ ns.t %}{% endfor %}")
                .find("more "),
            std::string::npos);
  EXPECT_NE(stops("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}"
                  "{% set ns.l = [ns.l] %}{% endfor %}")
                .find("levels"),
            std::string::npos);
  // Values that share their parts are small in memory, and large as text.
  EXPECT_NE(stops("{% set ns = namespace(l=[1]) %}{% for i in range(60) %}"
                  "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson|length }}")
                .find("more "),
            std::string::npos);
  EXPECT_NE(stops("{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(60) %}"
                  "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l "
                  "== ns.m }}")
                .find("more steps"),
            std::string::npos);
  EXPECT_NE(stops("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}").find("too deep"),
            std::string::npos);
  EXPECT_NE(stops("{% set ns = namespace(g=[1]) %}{% for i in range(9999) %}"
                  "{% set ns.g = ns.g|map('string') %}{% endfor %}{{ ns.g|list }}")
                .find("levels"),
            std::string::npos);
  const auto many = [](const std::string& piece, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) {
      out += piece;
    }
    return out;
  };
  EXPECT_NE(stops("{{ " + many("(", 5000) + "1" + many(")", 5000) + " }}").find("nested deeper"),
            std::string::npos);
  EXPECT_NE(stops("{{ 1" + many(" + 1", 5000) + " }}").find("deeper than 400"), std::string::npos);
  EXPECT_NE(stops("{{ " + many("not ", 5000) + "1 }}").find("nested deeper"), std::string::npos);
  EXPECT_NE(stops(many("{% if 1 %}", 5000)).find("nested deeper"), std::string::npos);
  EXPECT_NE(stops("{{ " + many("-", 5000) + "1 }}").find("nested deeper"), std::string::npos);
  // Searching takes linear time whatever the texts are.
  EXPECT_EQ(text_of("{% set a = 'a' * 2000000 %}{{ (a[:1000000] ~ 'b') in a }}"), "False");
}

// Templates of many parts, from which mutants are made.
std::vector<std::string> seeds() {
  std::vector<std::string> out;
  const OrderedJson all = read_cases();
  for (const OrderedJson& row : all.at("cases")) {
    out.push_back(row.at("template").get<std::string>());
  }
  return out;
}

std::string mutated(const std::vector<std::string>& seeds, Rng* rng) {
  static const std::string kPieces[] = {
      "{%",          "%}",         "{{",      "}}",       "{#",
      "#}",          "-",          "|",       "(",        ")",
      "[",           "]",          "'",       "\"",       " if ",
      " else ",      " for x in ", "endfor",  "endif",    " set ",
      "namespace()", "ns.",        "loop.",   "messages", "9999999",
      "\\",          ":",          "::-1",    "\xC3\xA9", "\xFF",
      "\n",          "**",         "//",      "%",        "~",
      ",",           "recursive",  "|tojson", "|list",    "|map('upper')",
      "generation",  "macro m(",   "call ",   "not ",     " is ",
      "caller()",    "range(9)",   " * 1000", "\x00",     "loop(",
      "|join",       "|sort"};
  std::string text = seeds[rng->below(seeds.size())];
  for (uint64_t n = 1 + rng->below(4); n > 0; --n) {
    const size_t at = rng->below(text.size() + 1);
    const size_t length = std::min<size_t>(rng->below(12), text.size() - at);
    switch (rng->below(4)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, kPieces[rng->below(std::size(kPieces))]);
        break;
      case 2: {
        const std::string& other = seeds[rng->below(seeds.size())];
        const size_t from = rng->below(other.size() + 1);
        text.insert(at, other.substr(from, rng->below(40)));
        break;
      }
      default:
        text.insert(at, text.substr(rng->below(text.size() + 1), rng->below(30)));
        break;
    }
  }
  return text;
}

TEST(ChatEngine, MutatedTemplatesNeitherCrashNorHang) {
  const char* seconds = std::getenv("HOCKET_FUZZ_SECONDS");
  const char* given = std::getenv("HOCKET_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  const double limit = seconds != nullptr ? std::atof(seconds) : 5;
  std::cout << "HOCKET_SEED=" << seed << " HOCKET_FUZZ_SECONDS=" << limit << "\n";
  const std::vector<std::string> from = seeds();
  const OrderedJson cases = read_cases();
  ChatOptions options;
  options.variables = &cases.at("variables");
  options.max_steps = 300'000;
  Rng rng(seed);
  int64_t rounds = 0, good = 0;
  for (const int64_t began = now_ns(); seconds_since(began) < limit; ++rounds) {
    const std::string text = mutated(from, &rng);
    const int64_t start = now_ns();
    try {
      const RenderedChat chat = rendered(text, cases.at("messages"), options);
      for (const ChatSpan& span : chat.generation) {
        ASSERT_LE(span.begin, span.end) << text;
        ASSERT_LE(span.end, chat.text.size()) << text;
      }
      ++good;
    } catch (const Error& e) {
      ASSERT_EQ(e.kind(), Error::Kind::kInput) << text;
      ASSERT_TRUE(e.where().starts_with("template")) << e.what() << "\n" << text;
    }
    ASSERT_LT(seconds_since(start), 20) << "took too long:\n" << text;
  }
  std::cout << rounds << " templates, " << good << " of them rendered\n";
  EXPECT_GT(good, 0);
  EXPECT_LT(good, rounds);
}

}  // namespace
}  // namespace hocket::data
