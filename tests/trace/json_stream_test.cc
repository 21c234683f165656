// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// The pull parser's results for numbers and for similar objects, across the blocks of a file,
// against the C library and a parser of whole documents.
#include "trace/json_stream.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "trace/chrome_events.h"

namespace hocket::trace {
namespace {

class JsonStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "json_stream.XXXXXX";
    dir_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string write(const std::string& text, bool packed = false, int level = 1) const {
    const std::string path = dir_ + (packed ? "/t.json.gz" : "/t.json");
    if (!packed) {
      write_file_atomic(path, text);
      return path;
    }
    const gzFile file = gzopen(path.c_str(), fmt::format("wb{}", level).c_str());
    EXPECT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
              static_cast<int>(text.size()));
    gzclose(file);
    return path;
  }

  std::string dir_;
};

std::string digits(size_t count, std::mt19937_64* rng) {
  std::string text;
  while (text.size() < count) {
    text += static_cast<char>('0' + (*rng)() % 10);
  }
  return text;
}

TEST_F(JsonStreamTest, NumbersParseToTheNearestDouble) {
  std::mt19937_64 rng(5);
  std::vector<std::string> texts = {"0",
                                    "-0",
                                    "0.0",
                                    "-0.000",
                                    "1e3",
                                    "-2.5E-7",
                                    "9007199254740993",
                                    "9007199254740992.5",
                                    "900719925474099.35",
                                    "0.000000000000000001",
                                    "999999999999999999",
                                    "99999999999999999.9",
                                    "12345678901234567890.5",
                                    "848671.6747283936",
                                    "24111.742516199687"};
  while (texts.size() < 60000) {
    std::string text = rng() % 4 == 0 ? "-" : "";
    text += digits(1 + rng() % 10, &rng);
    if (rng() % 8 != 0) {
      text += "." + digits(1 + rng() % 12, &rng);
    }
    texts.push_back(text);
    // A double in the form that parses to the same value.
    const double some = std::ldexp(static_cast<double>(rng() >> 11), -static_cast<int>(rng() % 70));
    texts.push_back(fmt::format("{}", some));
  }
  std::string document = "[";
  for (const std::string& text : texts) {
    document += (document.size() > 1 ? (rng() % 2 == 0 ? "," : " ,\n ") : "") + text;
  }
  document += "]";
  for (const bool packed : {false, true}) {
    JsonStream json(write(document, packed));
    size_t at = 0;
    json.array([&] {
      double value = 77;
      ASSERT_TRUE(json.number(&value)) << texts[at];
      const double expected = std::strtod(texts[at].c_str(), nullptr);
      ASSERT_EQ(value, expected) << texts[at];
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << texts[at];
      ++at;
    });
    EXPECT_EQ(at, texts.size());
    json.check_end();
  }
}

TEST_F(JsonStreamTest, NonNumbersAreConsumed) {
  JsonStream json(write(R"([1., .5, "7", null, 1x, --3, [4, {"a": 5}], {}, 6])"));
  int numbers = 0, others = 0;
  json.array([&] {
    double value = 0;
    if (json.number(&value)) {
      ++numbers;
    } else {
      EXPECT_EQ(value, 0);
      ++others;
    }
  });
  json.check_end();
  EXPECT_EQ(numbers + others, 9);
  EXPECT_GE(numbers, 2);  // "7" and 6
}

// Objects with the same keys in changing orders, with some spaces and escapes.
std::string random_objects(int count, std::mt19937_64* rng) {
  const auto space = [&] { return std::string(" \n\t ").substr((*rng)() % 4); };
  std::vector<std::string> keys = {
      "name", "ts", "a key that is longer than what is remembered", "", "x", "na\\u006de", "q\\\""};
  std::string text = "[";
  for (int i = 0; i < count; ++i) {
    if ((*rng)() % 50 == 0) {
      std::shuffle(keys.begin(), keys.end(), *rng);
    }
    const size_t members = (*rng)() % 10 == 0 ? (*rng)() % (keys.size() + 1) : keys.size();
    const std::string before = (*rng)() % 30 == 0 ? space() : "";
    text += (i > 0 ? "," : "") + before + "{";
    for (size_t m = 0; m < members; ++m) {
      text += fmt::format("{}\"{}\":{}{}", m > 0 ? ", " : before, keys[m],
                          (*rng)() % 30 == 0 ? space() : " ", (*rng)() % 100000);
    }
    text += before + "}";
  }
  return text + "]\n";
}

TEST_F(JsonStreamTest, MemberCacheDoesNotChangeMembers) {
  std::mt19937_64 rng(7);
  const std::string document = random_objects(8000, &rng);
  ASSERT_GT(document.size(), size_t{1} << 20);
  std::vector<std::string> keys;
  const auto number = [&](std::string_view key) {
    keys.emplace_back(key);
    return static_cast<int>(keys.size()) - 1;
  };
  for (const bool packed : {false, true}) {
    const std::string path = write(document, packed);
    JsonStream plain(path), remembers(path);
    MemberCache order;
    std::vector<std::pair<std::string, int64_t>> expected, found;
    plain.array([&] {
      plain.object([&](std::string_view key) {
        std::string name(key);
        expected.emplace_back(std::move(name), plain.integer());
      });
    });
    remembers.array([&] {
      remembers.object(&order, number, [&](int key) {
        found.emplace_back(keys[static_cast<size_t>(key)], remembers.integer());
      });
    });
    remembers.check_end();
    ASSERT_EQ(found, expected);
  }
  size_t members = 0;
  for (const nlohmann::json& object : nlohmann::json::parse(document)) {
    members += object.size();
  }
  EXPECT_GT(members, size_t{30000});
  // The key of most members is not looked up, here in two passes.
  EXPECT_LT(keys.size(), members);
}

TEST_F(JsonStreamTest, MemberCacheRefusesBrokenObjects) {
  for (const char* second : {R"({"a": 1, "b" 2})", R"({"a": 1 "b": 2})", R"({"a": 1, b: 2})",
                             R"({"a": 1, })", R"(["a"])", R"({"a": 1, "b": 2)", R"({"a)"}) {
    const std::string text = fmt::format(R"([{{"a": 1, "b": 2}}, {{"a": 1, "b": 2}}, {}])", second);
    const auto error = [&](bool with_order) -> std::string {
      JsonStream json(write(text));
      MemberCache order;
      try {
        json.array([&] {
          if (with_order) {
            json.object(
                &order, [](std::string_view) { return 0; }, [&](int) { json.integer(); });
          } else {
            json.object([&](std::string_view) { json.integer(); });
          }
        });
      } catch (const Error& thrown) {
        return std::string(thrown.text());
      }
      return "";
    };
    EXPECT_FALSE(error(true).empty()) << second;
    EXPECT_EQ(error(true), error(false)) << second;
  }
}

TEST_F(JsonStreamTest, TruncatedLongFilesAreRefused) {
  std::mt19937_64 rng(3);
  const std::string document = random_objects(8000, &rng);
  std::string packed_path = write(document, true);
  const std::string packed = read_file(packed_path);
  for (const size_t part : {2, 3, 5, 50}) {
    for (const bool is_packed : {false, true}) {
      const std::string& whole = is_packed ? packed : document;
      const std::string path = dir_ + "/cut";
      write_file_atomic(path, whole.substr(0, whole.size() - whole.size() / part));
      JsonStream json(path);
      try {
        json.array([&] { json.skip_value(); });
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_NE(error.text().find("cut off after"), std::string::npos) << error.text();
      }
    }
  }
  // A reader that stops early leaves the rest.
  JsonStream json(packed_path);
  json.expect('[', "an array");
  for (int i = 0; i < 3000; ++i) {
    json.skip_value();
    json.expect(',', "a comma");
  }
}

/// A file of some kilobytes that inflates to gigabytes fails at a bound, before memory runs out.
TEST_F(JsonStreamTest, DecompressionBombsAreRefused) {
  // A string that does not end, and blanks only.
  const struct {
    char letter;
    int mebibytes;
    std::string expected;
  } kRows[] = {{'a', 40, "the end of a string of at most 16 MiB"},
               {' ', 300, "inflates to more than 256 MiB, and to more than 200 times its size"}};
  for (const auto& row : kRows) {
    // Concatenated gzip members are one file.
    const std::string piece = read_file(write(std::string(size_t{1} << 20, row.letter), true, 6));
    std::string all = read_file(write(row.letter == ' ' ? "[" : "[\"", true));
    for (int i = 0; i < row.mebibytes; ++i) {
      all += piece;
    }
    const std::string path = dir_ + "/long.json.gz";
    write_file_atomic(path, all);
    JsonStream json(path);
    try {
      json.array([&] { json.skip_value(); });
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(error.text().find(row.expected), std::string::npos) << error.text();
    }
  }
}

/// Strings of common lengths, across blocks.
TEST_F(JsonStreamTest, StringsMayCrossBlocks) {
  const std::string text(size_t{15} << 20, 'a');
  for (const bool packed : {false, true}) {
    JsonStream json(write("[\"" + text + "\", 1]", packed));
    std::vector<size_t> sizes;
    json.array([&] {
      if (json.next() == '"') {
        sizes.push_back(json.string().size());
      } else {
        json.skip_value();
      }
    });
    EXPECT_EQ(sizes, std::vector<size_t>{text.size()});
  }
}

}  // namespace
}  // namespace hocket::trace
