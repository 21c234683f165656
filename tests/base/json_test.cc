// SPDX-License-Identifier: Apache-2.0
// JSON from hostile files: limits, positions in errors, typed access by path.
#include "base/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/ordered_json.h"
#include "base/rng.h"

namespace hocket {
namespace {

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

std::string parse_error(const std::string& text, const JsonLimits& limits = {}) {
  return error_of([&] { parse_json(text, "f.json", limits); });
}

TEST(Json, ParsesWhatTheLibraryParses) {
  const std::string text =
      R"({"a": [1, -2, 3.5, 18446744073709551615, true, null, "x\u00e9\n"], "b": {"c": []}})";
  EXPECT_EQ(parse_json(text, "f"), nlohmann::json::parse(text));
  EXPECT_EQ(parse_json(" 7 ", "f"), 7);
}

TEST(Json, ErrorsGivePositionAndCause) {
  const std::string text = parse_error("{\n  \"a\": 1,\n  \"b\": tru\n}");
  EXPECT_NE(text.find("[f.json] not valid JSON; line 3, column 11: "), std::string::npos) << text;
  EXPECT_NE(parse_error("").find("unexpected end of input"), std::string::npos);
  EXPECT_NE(parse_error("{\"a\": 1").find("unexpected end of input"), std::string::npos);
  EXPECT_NE(parse_error("[1] x").find("line 1, column 5"), std::string::npos)
      << parse_error("[1] x");
  // Errors name the fault, without the library's own position and stage.
  for (const char* bad :
       {"", "{", "[", "[1", "{\"a\"", "{\"a\": ", "{\"a\": 1,", "{1", "[1] x", "tru"}) {
    const std::string said = parse_error(bad);
    EXPECT_EQ(said.find("parse"), std::string::npos) << said;
    EXPECT_EQ(said.find("syntax error"), std::string::npos) << said;
    EXPECT_EQ(said.find("while"), std::string::npos) << said;
  }
  EXPECT_NE(parse_error("[\"\xff\"]").find("UTF-8"), std::string::npos);
  EXPECT_NE(parse_error("[1e999]").find("1e999"), std::string::npos);
  EXPECT_NE(parse_error("{\"a\": 1, \"b\": 2, \"a\": 3}").find("key 'a' appears twice"),
            std::string::npos);
}

TEST(Json, LimitsDepthAndSize) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_NE(parse_error(deep).find("nested too deep; expected at most 128"), std::string::npos);
  const std::string fits = std::string(128, '[') + std::string(128, ']');
  EXPECT_NO_THROW(parse_json(fits, "f"));
  EXPECT_NE(parse_error("[1, 2, 3]", {.max_bytes = 8}).find("got 9 bytes; expected at most 8"),
            std::string::npos);
}

TEST(Json, LimitsAreNoFaultOfTheText) {
  EXPECT_EQ(
      error_of([] { parse_ordered_json("[123456789012345678901]", "f"); }),
      "[f] unsupported JSON; the integer '123456789012345678901' is beyond 64 bits; try it as "
      "a string");
  EXPECT_NE(parse_error(std::string(200, '[')).find("] unsupported JSON; nested too deep"),
            std::string::npos);
  EXPECT_NE(parse_error("{\"a\": 1, \"a\": 3}").find("] not valid JSON; key"), std::string::npos);
  EXPECT_EQ(parse_json("123456789012345678901", "f"), 123456789012345678901.0);
}

TEST(Json, RandomMutantsNeverEscape) {
  const std::string good = R"({"config": {"layers": 4, "names": ["a", "b"], "eps": 1e-6}})";
  Rng rng(5);
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (int k = 0; k < 3; ++k) {
      text[rng.below(text.size())] = static_cast<char>(rng.next());
    }
    text.resize(rng.below(text.size() + 1));
    try {
      parse_json(text, "f");
    } catch (const Error&) {
    }
  }
}

TEST(Json, ViewReadsStrictly) {
  const auto json = parse_json(
      R"({"hidden_size": 64, "theta": 1e4, "act": "silu", "tie": false, "scaling": null,
          "rope": {"factor": "x"}, "ids": [1, 2], "big": 18446744073709551615, "f": 1.5})",
      "config.json");
  const JsonView view(json, "config.json");
  EXPECT_EQ(view.get_int("hidden_size"), 64);
  EXPECT_EQ(view.get_int("theta"), 10000);  // integral though written as a double
  EXPECT_EQ(view.get_double("hidden_size"), 64.0);
  EXPECT_EQ(view.get_string("act"), "silu");
  EXPECT_FALSE(view.get_bool("tie", true));
  EXPECT_FALSE(view.has("scaling"));
  EXPECT_EQ(view.get_int("scaling", 5), 5);
  EXPECT_EQ(view.at("ids").as_ints(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(error_of([&] { view.at("rope").get_double("factor"); }),
            "[config.json] rope.factor is 'x'; expected a number");
  EXPECT_EQ(error_of([&] { view.get_int("hiden_size"); }),
            "[config.json] hiden_size is missing; there is 'hidden_size'");
  EXPECT_EQ(error_of([&] { view.get_int("scaling"); }), "[config.json] scaling is null");
  EXPECT_EQ(error_of([&] { view.get_int("f"); }), "[config.json] f is 1.5; expected an integer");
  EXPECT_NE(error_of([&] { view.get_int("big"); }).find("below 2^63"), std::string::npos);
  EXPECT_EQ(error_of([&] { view.at("ids").as_strings(); }),
            "[config.json] ids[0] is 1; expected a string");
  EXPECT_NE(error_of([&] { view.at("ids").at(size_t{2}); }).find("has 2 elements"),
            std::string::npos);
  EXPECT_NE(error_of([&] { view.at("act").has("x"); }).find("expected an object"),
            std::string::npos);
}

}  // namespace
}  // namespace hocket
