// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Files of fine-tuning data: lists of files, JSON arrays and lines, compression, damaged and
// hostile files, LLaMA-Factory's registry, and the validation split.
#include <gtest/gtest.h>

#include "base/json_writer.h"
#include "base/rng.h"
#include "tests/data/examples/source_util.h"
#include "tests/log_util.h"

namespace hocket::data {
namespace {

using Kind = Example::Kind;

std::string text_line(const std::string& text) { return "{\"text\":\"" + text + "\"}\n"; }

std::vector<std::string> texts_of(const ReadSource& read) {
  std::vector<std::string> texts;
  for (const Example& example : read.examples) {
    texts.push_back(example.text);
  }
  return texts;
}

std::vector<std::string> places_of(const ReadSource& read) {
  std::vector<std::string> places;
  for (const Example& example : read.examples) {
    places.push_back(example.place().substr(example.place().rfind('/') + 1));
  }
  return places;
}

using Strings = std::vector<std::string>;

/// Text that does not compress away, so that cuts are everywhere.
std::string noise(size_t bytes) {
  Rng rng(5);
  std::string text;
  while (text.size() < bytes) {
    text += static_cast<char>('a' + rng.below(26));
  }
  return text;
}

TEST(Source, ReadsLinesInOrderWithTheirPlaces) {
  const ReadSource read = read_lines("\xEF\xBB\xBF" + text_line("a") + "\r\n \n" +
                                     "{\"text\":\"b\"}\r\n" + "{\"text\":\"c\"}");
  EXPECT_EQ(texts_of(read), (Strings{"a", "b", "c"}));
  EXPECT_EQ(places_of(read), (Strings{"data.jsonl:1", "data.jsonl:4", "data.jsonl:5"}));
  EXPECT_EQ(read.report.format, "text");
  EXPECT_EQ(read.report.examples, 3);
  EXPECT_EQ(read.report.files, 1);
}

TEST(Source, ReadsAnArrayEntryByEntry) {
  const TempFolder folder;
  const std::string path = folder.add("a.json",
                                      "\n [ {\"text\":\"x ] , \\\" }\"},\n\n{\"text\":\n\"b\\\\\"} "
                                      ", {\"text\":\"c\", \"n\":[1,[2]]}\n]\n");
  const ReadSource read = read_all(source_of(path));
  EXPECT_EQ(texts_of(read), (Strings{"x ] , \" }", "b\\", "c"}));
  EXPECT_EQ(places_of(read),
            (Strings{"a.json:2 (entry 1)", "a.json:4 (entry 2)", "a.json:5 (entry 3)"}));
  const auto refused = [&](const std::string& text, const std::string& part) {
    EXPECT_ERROR(read_all(source_of(folder.add("b.json", text))), part);
  };
  refused("[{\"text\":\"a\"},", "is cut off: its array begins in line 1 and has no end; entry 2");
  refused("[{\"text\":\"a", "is cut off");
  refused("[{\"text\":\"a\"}] {}", "b.json:1: text after the end of the array");
  refused("[{\"text\":\"a\"}}, 1]", "b.json:1: a bracket closes nothing, in entry 1");
  refused("[]", "has no examples");
  refused("[{\"text\":\"a\"},]", "b.json:1 (entry 2): not valid JSON");
  refused("[1 2]", "b.json:1 (entry 1): not valid JSON");
  refused("", "has no examples: it is empty");
  SourceOptions named;
  named.key = "data.evaluation: quick";
  EXPECT_ERROR(read_lines("", named), "[data.evaluation: quick] ");
  refused("{\n\"text\": \"a\"\n}\n", "goes on in the next line");
  refused("\xFF\xFE[\0]\0", "UTF-16");
}

TEST(Source, ReadsAllFilesOfAFolderOrGlobSorted) {
  const TempFolder folder;
  folder.add("b.jsonl", text_line("b"));
  folder.add("a.txt", "one\ntwo\n");
  folder.add("sub/c.ndjson", text_line("c"));
  folder.add("sub/d.json.gz", gzip("[{\"text\":\"d\"}]"));
  folder.add("README.md", "# no data");
  folder.add("run", "x");
  folder.add(".hidden.jsonl", text_line("h"));
  const ReadSource read = read_all(source_of(folder.path()));
  EXPECT_EQ(texts_of(read), (Strings{"one\ntwo\n", "b", "c", "d"}));
  EXPECT_EQ(read.report.left_out,
            (std::map<std::string, int64_t>{
                {"hidden", 1}, {"no data file (.md)", 1}, {"no data file (no ending)", 1}}));
  EXPECT_EQ(texts_of(read_all(source_of(folder / "*.jsonl"))), Strings{"b"});
  EXPECT_EQ(texts_of(read_all(source_of(folder / "**/*.ndjson"))), Strings{"c"});
  EXPECT_ERROR(read_all(source_of(folder / "README.md")), "has .md at its end; expected .jsonl");
  EXPECT_ERROR(read_all(source_of(folder / "*.md")), "left out: 1 no data file (.md)");
  EXPECT_ERROR(read_all(source_of(folder / "none.jsonl")), "matches no data file");
  EXPECT_ERROR(read_all(source_of("{a,b}.jsonl")), "{a,b} is not expanded");
  EXPECT_ERROR(read_all(source_of("")), "path is empty");
}

/// As folders from the hub have them: to read all would train on the test.
TEST(Source, AFolderWithSplitsIsRefused) {
  const TempFolder folder;
  folder.add("trainer/latest.jsonl", text_line("a"));
  EXPECT_EQ(texts_of(read_all(source_of(folder.path()))), Strings{"a"});
  folder.add("data/train-00000-of-00001.jsonl", text_line("b"));
  EXPECT_EQ(texts_of(read_all(source_of(folder.path()))), (Strings{"b", "a"}));
  folder.add("data/test-00000-of-00001.jsonl", text_line("c"));
  EXPECT_ERROR(read_all(source_of(folder.path())), "has a training split, ");
  EXPECT_ERROR(read_all(source_of(folder / "data")), "test-00000-of-00001.jsonl; expected one");
  EXPECT_EQ(texts_of(read_all(source_of(folder / "**/*train*"))), Strings{"b"});
  folder.add("split/train/x.jsonl", text_line("d"));
  folder.add("split/validation/y.jsonl", text_line("e"));
  EXPECT_ERROR(read_all(source_of(folder / "split")), "and one for validation, ");
  EXPECT_ERROR(read_all(source_of(folder / "split")), "split/**/*train*/*");
  EXPECT_EQ(texts_of(read_all(source_of(folder / "split/**/*train*/*"))), Strings{"d"});
  EXPECT_EQ(texts_of(read_all(source_of(folder / "split/**/*.jsonl"))), (Strings{"d", "e"}));
}

TEST(Source, TextFilesAreOneExampleOrOneALine) {
  const TempFolder folder;
  SourceOptions options = source_of(folder.add("a.txt", "one\n\ntwo"));
  EXPECT_EQ(texts_of(read_all(options)), Strings{"one\n\ntwo"});
  options.text_lines = true;
  const ReadSource lines = read_all(options);
  EXPECT_EQ(texts_of(lines), (Strings{"one", "two"}));
  EXPECT_EQ(lines.examples[1].line, 3);
  EXPECT_ERROR(read_all(source_of(folder.add("b.txt", "a\xFFz"))),
               "b.txt:1: byte 1 of it is no UTF-8");
  EXPECT_ERROR(read_all(source_of(folder.add("c.txt", std::string("a\0z", 3)))), "NUL character");
  options.format = "chat";
  EXPECT_ERROR(read_all(options), "column messages is missing");
}

TEST(Source, UnpacksGzipAndZstdWholeOrNotAtAll) {
  const TempFolder folder;
  const std::string body = text_line(noise(300'000)) + text_line("end");
  for (const bool is_zstd : {false, true}) {
    const auto pack = [&](std::string_view text) { return is_zstd ? zstd(text) : gzip(text); };
    const std::string name = is_zstd ? "a.jsonl.zst" : "a.jsonl.gz";
    const std::string packed = pack(body);
    EXPECT_EQ(texts_of(read_all(source_of(folder.add(name, packed)))).at(1), "end");
    // Several members one after the other, as of files that were joined.
    const std::string joined = pack(text_line("a")) + pack("") + pack(text_line("b"));
    EXPECT_EQ(texts_of(read_all(source_of(folder.add(name, joined)))), (Strings{"a", "b"}));
    for (const size_t cut : {packed.size() - 1, packed.size() / 2, size_t{3}, size_t{0}}) {
      EXPECT_ERROR(read_all(source_of(folder.add(name, packed.substr(0, cut)))), "is cut off");
    }
    std::string damaged = packed;
    damaged[packed.size() / 2] ^= 0x55;
    EXPECT_ERROR(read_all(source_of(folder.add(name, damaged))), "a.jsonl");
    EXPECT_ERROR(read_all(source_of(folder.add(name, text_line("plain")))), "cannot be unpacked");
    EXPECT_ERROR(read_all(source_of(folder.add(name, joined + "rest"))), "a.jsonl");
  }
  // gzip takes zeros behind a member for padding, of a block or of more than is read at a time.
  const std::string a = gzip(text_line("a")), b = gzip(text_line("b"));
  for (const size_t zeros : {size_t{1}, size_t{511}, size_t{300'000}}) {
    const std::string padding(zeros, '\0');
    const std::string padded = folder.add("padded.jsonl.gz", a + padding + b + padding);
    EXPECT_EQ(texts_of(read_all(source_of(padded))), (Strings{"a", "b"}));
    EXPECT_ERROR(read_all(source_of(folder.add("padded.jsonl.gz", a + padding + "rest"))),
                 "cannot be unpacked");
    EXPECT_ERROR(read_all(source_of(folder.add("padded.jsonl.gz", padding + a))),
                 "cannot be unpacked");
  }
}

/// The limit is of the whole file: its beginning may be packed more than the rest.
TEST(Source, PackedFilesAreJudgedAsAWhole) {
  const TempFolder folder;
  const std::string blanks = gzip(std::string((size_t{1} << 20) - 1, ' ') + "\n");
  std::string begin;
  for (int i = 0; i < 300; ++i) {
    begin += blanks;
  }
  const auto read = [&](const std::string& text) {
    return read_all(source_of(folder.add("a.jsonl.gz", begin + gzip(text_line(text)))));
  };
  EXPECT_ERROR(read("short"), "unpacks to more than 256 MiB, and to more than 200 times its size");
  EXPECT_EQ(read(noise(4'000'000)).report.examples, 1);
}

TEST(Source, UnreadableLinesAreNamedCountedAndRefusedAboveAShare) {
  std::string text;
  for (int i = 0; i < 97; ++i) {
    text += text_line("t" + std::to_string(i));
  }
  text += "oops\n" + text_line("") + "{\"text\":1}\n";
  SourceOptions options;
  options.max_unreadable = 0.03;
  const ReadSource read = read_lines(text, options);
  EXPECT_EQ(read.report.examples, 97);
  EXPECT_EQ(read.report.unreadable, 3);
  ASSERT_EQ(read.report.first_unreadable.size(), 3u);
  EXPECT_NE(read.report.first_unreadable[0].find("data.jsonl:98: not valid JSON; column 1"),
            std::string::npos)
      << read.report.first_unreadable[0];
  JsonWriter json;
  json.object();
  read.report.put(json).end();
  EXPECT_NE(json.take().find(R"("examples":97,"unreadable":3,"first_unreadable":[)"),
            std::string::npos);
  options.max_unreadable = 0.029;
  EXPECT_ERROR(read_lines(text, options), "3 of 100 examples of ");
  EXPECT_ERROR(read_lines(text), "expected at most the share 0.01 (max_unreadable)");
  options.max_unreadable = 1;
  EXPECT_ERROR(read_lines("oops\n", options), "1 of 1 example of ");
  std::string hopeless;
  for (int i = 0; i < 5000; ++i) {
    hopeless += "x\n";
  }
  EXPECT_ERROR(read_lines(hopeless, options), "1000 of 1000 examples");
}

TEST(Source, ReadingEndsWhereTheCallerHasEnough) {
  const TempFolder folder;
  const std::string path =
      folder.add("a.jsonl", text_line("a") + "oops\n" + text_line("b") + text_line("c"));
  Strings seen;
  const ReadReport report = read_source(source_of(path), [&](Example&& example) {
    seen.push_back(example.text);
    return example.text != "b";
  });
  EXPECT_EQ(seen, (Strings{"a", "b"}));
  EXPECT_EQ(report.unreadable, 1);  // named, and no reason to refuse the beginning of a file
}

TEST(Source, LongLinesAreNamedAndTheRestIsRead) {
  const std::string line = std::string(100'000'000, 'x') + "\n";
  const std::string text = text_line("a") + line + text_line("b");
  SourceOptions options;
  options.max_unreadable = 0.5;
  const ReadSource read = read_lines(text, options);
  EXPECT_EQ(texts_of(read), (Strings{"a", "b"}));
  EXPECT_EQ(read.examples[1].line, 3);
  ASSERT_EQ(read.report.first_unreadable.size(), 1u);
  EXPECT_NE(read.report.first_unreadable[0].find(
                "data.jsonl:2: it has more than 33554432 bytes (max_example_bytes)"),
            std::string::npos);
  options.max_example_bytes = 20;
  const TempFolder folder;
  options.path =
      folder.add("a.json", "[{\"text\":\"a\"}, {\"text\":\"0123456789\"}, {\"text\":\"b\"}]");
  EXPECT_EQ(texts_of(read_all(options)), (Strings{"a", "b"}));
  options.path = folder.add("a.txt", "0123456789 0123456789");
  EXPECT_ERROR(read_all(options), "more than 20 bytes (max_example_bytes); try text_lines");
}

TEST(Source, ColumnsThatAreNotUsedAreReported) {
  const ReadSource read = read_lines(
      "{\"prompt\":\"q\",\"completion\":\"a\",\"score\":1}\n"
      "{\"prompt\":\"q\",\"completion\":\"b\",\"score\":2,\"id\":1}\n");
  EXPECT_EQ(read.report.ignored_columns, (std::map<std::string, int64_t>{{"score", 2}, {"id", 1}}));
  EXPECT_EQ(read.report.layout, "prompt, completion");
  SourceOptions options;
  options.columns = {{"prompt", "q"}, {"completion", "a"}};
  EXPECT_EQ(read_lines("{\"q\":\"x\",\"a\":\"y\"}", options).report.layout,
            "q as prompt, a as completion");
}

TEST(Source, OptionsAreReadFromYaml) {
  SourceOptions options;
  parse_config(options,
               "path: a.jsonl\nformat: sharegpt\ncolumns: {messages: chat}\ntags: {user_tag: U}\n"
               "split: valid\nmax_example_bytes: 1MiB\nweight: 2\n",
               "run.yaml");
  EXPECT_EQ(options.columns.at("messages"), "chat");
  EXPECT_EQ(options.tags.at("user_tag"), "U");
  EXPECT_EQ(options.max_example_bytes, 1 << 20);
  EXPECT_EQ(options.split, "valid");
  EXPECT_ERROR(parse_config(options, "path: a\nformat: sharegtp\n", "run.yaml"), "sharegpt");
  EXPECT_ERROR(parse_config(options, "path: a\nmax_unreadable: 2\n", "run.yaml"), "max_unreadable");
  EXPECT_ERROR(parse_config(options, "format: chat\n", "run.yaml"), "path");
}

// A folder as LLaMA-Factory has it.
class DatasetInfo : public ::testing::Test {
 protected:
  ReadSource read(const std::string& entry, const std::string& data,
                  const std::string& name = "set") const {
    folder_.add("data/x.json", data);
    folder_.add("data/dataset_info.json",
                "{\"set\":" + entry + ",\"other\":{\"file_name\":\"y.json\"}}");
    SourceOptions options = source_of(folder_ / "data");
    options.name = name;
    return read_all(options);
  }
  void refused(const std::string& entry, const std::string& part) const {
    EXPECT_ERROR(read(entry, "[]"), part);
  }
  const TempFolder folder_;
};

TEST_F(DatasetInfo, GivesColumnsAndTags) {
  const ReadSource alpaca =
      read(R"({"file_name":"x.json"})",
           R"([{"instruction":"q","input":"i","output":"a","system":"not used"}])");
  EXPECT_EQ(alpaca.report.format, "alpaca");
  EXPECT_EQ(alpaca.examples.at(0).messages.dump(),
            R"([{"role":"user","content":"q\ni"},{"role":"assistant","content":"a"}])");
  EXPECT_EQ(alpaca.report.ignored_columns, (std::map<std::string, int64_t>{{"system", 1}}));
  const ReadSource named = read(
      R"({"file_name":"x.json","columns":{"prompt":"ask","response":"say","system":"sys","history":"old"}})",
      R"([{"ask":"q","input":"not used","say":"a","sys":"s","old":[["x","y"]]}])");
  EXPECT_EQ(named.examples.at(0).messages.size(), 5u);
  EXPECT_EQ(named.examples.at(0).messages[3]["content"], "q");
  const ReadSource ranked = read(
      R"({"file_name":"x.json","ranking":true,"columns":{"prompt":"p","chosen":"good","rejected":"bad"}})",
      R"([{"p":"q","good":"a","bad":"b"}])");
  EXPECT_EQ(ranked.examples.at(0).kind, Kind::preference);
  const ReadSource judged = read(
      R"({"file_name":"x.json","formatting":"sharegpt","columns":{"messages":"messages","kto_tag":"label"},)"
      R"("tags":{"role_tag":"role","content_tag":"content","user_tag":"user","assistant_tag":"assistant"}})",
      R"([{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"label":false}])");
  EXPECT_EQ(judged.examples.at(0).kind, Kind::unpaired);
  EXPECT_EQ(judged.report.layout, "messages (role, content), label");
  const ReadSource pair = read(
      R"({"file_name":"x.json","formatting":"sharegpt","ranking":true,)"
      R"("columns":{"messages":"conversations","chosen":"chosen","rejected":"rejected"}})",
      R"([{"conversations":[{"from":"human","value":"q"}],"chosen":{"from":"gpt","value":"a"},)"
      R"("rejected":{"from":"gpt","value":"b"}}])");
  EXPECT_EQ(pair.examples.at(0).kind, Kind::preference);
  // Columns of another format say nothing, as there.
  const ReadSource other =
      read(R"({"file_name":"x.json","columns":{"prompt":"p","response":"r","messages":"m"}})",
           R"([{"p":"q","r":"a"}])");
  EXPECT_EQ(other.report.format, "alpaca");
  const ReadSource openai = read(
      R"({"file_name":"x.json","formatting":"openai","columns":{"messages":"messages"},)"
      R"("tags":{"role_tag":"role","content_tag":"content","user_tag":"user","assistant_tag":"assistant",)"
      R"("observation_tag":"tool","system_tag":"system"}})",
      R"([{"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}])");
  EXPECT_EQ(openai.report.format, "chat");
  const ReadSource text =
      read(R"({"file_name":"x.json","columns":{"prompt":"body"}})", R"([{"body":"t"}])");
  EXPECT_EQ(texts_of(text), Strings{"t"});
}

TEST_F(DatasetInfo, AnotherHashIsAWarning) {
  const std::string data = R"([{"instruction":"q","output":"a"}])";
  const test::LogLines logged;
  const auto with = [&](const std::string& sha1) {
    return read(R"({"file_name":"x.json","file_sha1":)" + sha1 + "}", data).examples.size();
  };
  EXPECT_EQ(with("\"d44c4d30254283eecc54109475e0131d6c47c863\""), 1u);
  EXPECT_EQ(with("null"), 1u);
  EXPECT_EQ(logged.text(), "");
  EXPECT_EQ(with("\"0123456789012345678901234567890123456789\""), 1u);
  EXPECT_NE(logged.text().find("x.json has the SHA-1 d44c4d30254283eecc54109475e0131d6c47c863"),
            std::string::npos)
      << logged.text();
}

TEST_F(DatasetInfo, RefusesUnsupportedEntries) {
  // Without a tag for it, a role is unknown, as there.
  EXPECT_ERROR(
      read(
          R"({"file_name":"x.json","formatting":"sharegpt","columns":{"messages":"m"},)"
          R"("tags":{"role_tag":"role","content_tag":"content","user_tag":"user","assistant_tag":"assistant"}})",
          R"([{"m":[{"role":"system","content":"s"}]}])"),
      "has the role 'system'; expected one of assistant, user");
  EXPECT_ERROR(read("{}", "[]", ""), "expected the name of one: other, set; try name: other");
  EXPECT_ERROR(read("{}", "[]", "sat"),
               "no entry 'sat'; expected one of other, set; try name: set");
  refused(R"({"hf_hub_url":"a/b"})", "set has hf_hub_url, which is not on this machine");
  refused(R"({"file_name":"x.json","num_samples":5})", "set has num_samples");
  refused(R"({"file_name":"x.json","colums":{}})", "unknown key 'colums'; the nearest is columns");
  refused(R"({"file_name":"x.json","columns":{"promt":"a"}})", "unknown key 'promt'");
  refused(R"({"file_name":"x.json","columns":{"images":"a"}})", "has images; expected text alone");
  refused(R"({"file_name":"x.json","formatting":"chatml"})", "has the formatting 'chatml'");
  refused(R"({"file_name":"x.json","ranking":true})", "ranking without a column chosen");
  refused(R"({"formatting":"alpaca"})", "file_name is missing");
  refused(R"({"file_name":"no.json"})", "no.json' matches no data file");
  SourceOptions options = source_of(folder_ / "data/dataset_info.json");
  options.name = "set";
  options.format = "chat";
  EXPECT_ERROR(read_all(options), "expected none of these here");
}

TEST(HoldOut, DependsOnContentAndIsNeverEmptyNorAll) {
  std::vector<Hash128> contents;
  for (int i = 0; i < 2000; ++i) {
    contents.push_back(hash128(std::to_string(i % 1000)));  // each twice
  }
  const std::vector<bool> held = hold_out(contents, 0.1, 3);
  const auto count = std::count(held.begin(), held.end(), true);
  EXPECT_GT(count, 140);
  EXPECT_LT(count, 260);
  for (size_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(held[i], held[i + 1000]);
  }
  EXPECT_NE(held, hold_out(contents, 0.1, 4));
  // Others do not matter: the first half alone is split alike.
  const std::vector<Hash128> half(contents.begin(), contents.begin() + 1000);
  EXPECT_TRUE(std::equal(held.begin(), held.begin() + 1000, hold_out(half, 0.1, 3).begin()));
  const std::vector<Hash128> three(contents.begin(), contents.begin() + 3);
  for (const double share : {1e-9, 0.5, 1 - 1e-9}) {
    const std::vector<bool> few = hold_out(three, share, 3);
    const auto some = std::count(few.begin(), few.end(), true);
    EXPECT_GT(some, 0) << share;
    EXPECT_LT(some, 3) << share;
  }
  EXPECT_EQ(hold_out(three, 0, 3), std::vector<bool>(3, false));
  // Each side has two, if there are four.
  const std::vector<Hash128> eight(contents.begin(), contents.begin() + 8);
  for (const double share : {1e-9, 1 - 1e-9}) {
    const auto at_least = [&](const std::vector<Hash128>& some) {
      const std::vector<bool> few = hold_out(some, share, 3, 2);
      const auto count = std::count(few.begin(), few.end(), true);
      return share < 0.5 ? count : std::ssize(some) - count;
    };
    EXPECT_EQ(at_least(eight), 2) << share;
    EXPECT_EQ(at_least({eight.begin(), eight.begin() + 4}), 2) << share;
    EXPECT_EQ(at_least(three), 1) << share;
  }
  // Equal contents go together, to where both sides have enough, and else by the nearer end.
  const auto held_of = [&](size_t first, size_t second, size_t third) {
    std::vector<Hash128> order = three, some;
    std::sort(order.begin(), order.end(), [](const Hash128& a, const Hash128& b) -> bool {
      return hold_out({a, b}, 1e-9, 3).front();  // the one that is drawn first
    });
    const size_t counts[] = {first, second, third};
    for (size_t i = 0; i < 3; ++i) {
      some.insert(some.end(), counts[i], order[i]);
    }
    const std::vector<bool> few = hold_out(some, 1e-9, 3, 2);
    return std::count(few.begin(), few.end(), true);
  };
  EXPECT_EQ(held_of(1, 98, 1), 1);
  EXPECT_EQ(held_of(98, 1, 1), 98);
  EXPECT_EQ(held_of(1, 3, 2), 4);
  EXPECT_TRUE(hold_out({}, 0.5, 3).empty());
  EXPECT_ERROR(hold_out({contents[0], contents[0]}, 0.5, 3), "2 examples with one content");
  EXPECT_ERROR(hold_out(three, 1, 3), "the share 1 is held out");
}

TEST(HoldOut, ContentExcludesThePlaceInTheFile) {
  const ReadSource read = read_lines(text_line("a") + text_line("a") + text_line("b"));
  EXPECT_EQ(content_hash(read.examples[0]), content_hash(read.examples[1]));
  EXPECT_NE(content_hash(read.examples[0]), content_hash(read.examples[2]));
  Example one = read.examples[0], other = one;
  other.label = true;
  EXPECT_NE(content_hash(one), content_hash(other));
  other = one;
  other.tools = OrderedJson::array({1});
  EXPECT_NE(content_hash(one), content_hash(other));
  other = one;
  other.ids = {1};
  EXPECT_NE(content_hash(one), content_hash(other));
}

}  // namespace
}  // namespace hocket::data
