// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Token files of Megatron-LM, Parquet files, and mutated files of every kind.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>

#include "base/process.h"
#include "base/text.h"
#include "tests/data/examples/source_util.h"
#include "tests/fuzz_util.h"

namespace hocket::data {
namespace {

template <class T>
std::string bytes_of(const std::vector<T>& numbers) {
  std::string bytes(numbers.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

/// Token files as Megatron-LM writes them, to be changed before they are written.
struct Tokens {
  std::string magic{"MMIDIDX\0\0", 9};
  uint64_t version = 1;
  uint8_t type = 8;
  std::vector<int32_t> lengths = {3, 1, 2};
  std::vector<int64_t> places = {0, 6, 8};
  std::vector<int64_t> ends = {0, 1, 3};
  std::string modes;
  std::string ids = bytes_of<uint16_t>({1, 2, 65535, 4, 5, 6});

  std::string index() const {
    return magic + bytes_of<uint64_t>({version}) + static_cast<char>(type) +
           bytes_of<uint64_t>({lengths.size(), ends.size()}) + bytes_of(lengths) +
           bytes_of(places) + bytes_of(ends) + modes;
  }
  std::string write(const TempFolder& folder) const {
    folder.add("t.bin", ids);
    return folder.add("t.idx", index());
  }
};

std::vector<std::vector<int32_t>> ids_of(const std::string& path) {
  std::vector<std::vector<int32_t>> ids;
  for (Example& example : read_all(source_of(path)).examples) {
    EXPECT_EQ(example.kind, Example::Kind::tokens);
    ids.push_back(std::move(example.ids));
  }
  return ids;
}

TEST(TokenFiles, AreReadDocumentByDocument) {
  const TempFolder folder;
  using Ids = std::vector<std::vector<int32_t>>;
  Tokens().write(folder);
  for (const char* name : {"t.idx", "t.bin", "t", "*.idx", ""}) {
    EXPECT_EQ(ids_of(folder / name), (Ids{{1, 2, 65535}, {4, 5, 6}})) << name;
  }
  const ReadSource read = read_all(source_of(folder / "t"));
  EXPECT_EQ(read.report.format, "tokens");
  EXPECT_EQ(read.examples[1].place(), (folder / "t.bin") + ":2");
  Tokens wide;
  wide.type = 4;
  wide.places = {0, 12, 16};
  wide.ids = bytes_of<int32_t>({1, 2, 3, 70000, 5, 2147483647});
  EXPECT_EQ(ids_of(wide.write(folder)), (Ids{{1, 2, 3}, {70000, 5, 2147483647}}));
  wide.type = 5;
  wide.places = {0, 24, 32};
  wide.ids = bytes_of<int64_t>({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(ids_of(wide.write(folder)), (Ids{{1, 2, 3}, {4, 5, 6}}));
  SourceOptions options = source_of(folder / "t");
  options.format = "text";
  EXPECT_ERROR(read_all(options), "has tokens and no columns");
  folder.add("a.txt", "text");
  EXPECT_ERROR(read_all(source_of(folder.path())), "token files (.idx) beside files of text");
}

TEST(TokenFiles, RefusedIfTheyDoNotFit) {
  const TempFolder folder;
  const auto refused = [&](const auto& change, const std::string& part) {
    Tokens tokens;
    change(tokens);
    EXPECT_ERROR(read_all(source_of(tokens.write(folder))), part);
  };
  refused([](Tokens& t) { t.magic[0] = 'X'; }, "does not begin with MMIDIDX");
  refused([](Tokens& t) { t.version = 2; }, "its version is 2; expected 1");
  refused([](Tokens& t) { t.type = 7; }, "its type of ids is 7; expected an integer type");
  refused([](Tokens& t) { t.type = 0; }, "its type of ids is 0");
  refused([](Tokens& t) { t.modes = "abc"; }, "have modes");
  refused([](Tokens& t) { t.modes = "a"; }, "its counts stand for");
  refused([](Tokens& t) { t.lengths[0] = -1; }, "sequence 0 has -1 ids");
  refused([](Tokens& t) { t.lengths[2] = 3; }, "sequence 2 has 3 ids at byte 8");
  refused([](Tokens& t) { t.places[1] = -2; }, "sequence 1 has 1 ids at byte -2");
  refused([](Tokens& t) { t.ids += "xx"; }, "its sequences have 12 bytes");
  refused([](Tokens& t) { t.ends = {1, 1, 3}; }, "its first document begins at sequence 1");
  refused([](Tokens& t) { t.ends = {0, 2, 1}; }, "document 1 ends at sequence 1 of 3");
  refused([](Tokens& t) { t.ends = {0, 1, 2}; }, "its documents have 2 of 3 sequences");
  refused([](Tokens& t) { t.ends = {}; }, "it counts 3 sequences and 0 ends");
  refused([](Tokens& t) { t.ends = {0, 0, 3}; }, "t.bin:1: the document has no tokens");
  refused([](Tokens& t) { t.type = 3; }, "id 2 is -1; expected 0 to 2147483647");
  Tokens tokens;
  const std::string path = tokens.write(folder);
  folder.add("t.idx", tokens.index().substr(0, 20));
  EXPECT_ERROR(read_all(source_of(path)), "20 bytes, less than its head");
  folder.add("t.idx", tokens.index().substr(0, 60));
  EXPECT_ERROR(read_all(source_of(path)), "expected the index of tokens by Megatron-LM");
  remove_file(folder / "t.bin");
  EXPECT_ERROR(read_all(source_of(path)), "t.bin");
}

/// Sets the Python of a test.
class PythonIs {
 public:
  explicit PythonIs(const std::string& python) { ::setenv("HOCKET_PYTHON", python.c_str(), 1); }
  ~PythonIs() { ::unsetenv("HOCKET_PYTHON"); }
  PythonIs(const PythonIs&) = delete;
  PythonIs& operator=(const PythonIs&) = delete;
};

/// Writes a program that ignores its arguments and prints rows.
std::string printer(const TempFolder& folder, const std::string& script) {
  const std::string path = folder.add("python.sh", "#!/bin/sh\n" + script);
  run_command("chmod +x " + shell_quoted(path), "", "chmod");
  return path;
}

TEST(Table, RowsComeFromAProcess) {
  const TempFolder folder;
  const std::string table = folder.add("a.parquet", "PAR1");
  const auto read = [&](const std::string& script) {
    const PythonIs python(printer(folder, script));
    return read_all(source_of(table));
  };
  // Every row of a table has all keys: null is none.
  const ReadSource rows = read(
      "echo '{\"messages\":[{\"role\":\"user\",\"content\":\"q\",\"tool_calls\":null},"
      "{\"role\":\"assistant\",\"content\":\"a\",\"name\":null}],\"x\":null}'\necho '#done'");
  EXPECT_EQ(rows.examples.at(0).messages.dump(),
            R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])");
  EXPECT_EQ(rows.examples.at(0).place(), table + ":1");
  EXPECT_ERROR(read("echo '#error no pyarrow; try pip'"),
               "a.parquet cannot be read: no pyarrow; try pip");
  // One that ends without a word has not read the table to its end.
  try {
    read("echo '{\"text\":\"a\"}'");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("ended early"), std::string::npos);
  }
  const PythonIs none(folder / "no_python");
  EXPECT_ERROR(read_all(source_of(table)), "try HOCKET_PYTHON=");
}

TEST(Table, ReadsParquet) {
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  const char* given = std::getenv("HOCKET_TEST_PYTHON");
  const std::string python =
      given != nullptr ? given : std::string(root == nullptr ? "." : root) + "/.venv/bin/python";
  const TempFolder folder;
  const std::string path = folder / "a.parquet";
  const std::string script = folder.add("write.py", R"(
import sys
try:
    import pyarrow, pyarrow.parquet
except ImportError:
    print("none", end="")
    sys.exit()
rows = [{"messages": [{"role": "user", "content": "q%d\n" % i},
                      {"role": "assistant", "content": "é", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
         "score": float("nan"), "raw": b"\xff", "n": i} for i in range(300)]
pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sys.argv[1], row_group_size=100)
print("done", end="")
)");
  std::string made = "none";
  if (file_exists(python)) {
    made = run_command(shell_quoted(python) + " " + shell_quoted(script) + " " + shell_quoted(path),
                       "", "python");
  }
  if (made == "none") {
    GTEST_SKIP() << "no pyarrow here to write Parquet with (tools/setup.sh --tests)";
  }
  const PythonIs chosen(python);
  const ReadSource read = read_all(source_of(path));
  ASSERT_EQ(read.report.examples, 300);
  EXPECT_EQ(read.examples[299].messages.dump(),
            R"([{"role":"user","content":"q299\n"},{"role":"assistant","content":"é","tool_calls":)"
            R"([{"function":{"name":"f","arguments":{}}}]}])");
  EXPECT_EQ(read.examples[299].line, 300);
  EXPECT_ERROR(read_all(source_of(folder.add("b.parquet", read_file(path).substr(0, 1000)))),
               "b.parquet cannot be read: ");
  EXPECT_ERROR(read_all(source_of(folder.add("c.parquet", "no table"))),
               "c.parquet cannot be read: ");
}

TEST(SourceFiles, MutatedFilesNeitherCrashNorHang) {
  const TempFolder folder;
  const std::vector<nlohmann::json> seeds = [] {
    std::vector<nlohmann::json> out;
    for (
        const char* text :
        {R"({"text":"a"})", R"({"prompt":"q","completion":"a","label":true})",
         R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}],"tools":"[]"})",
         R"({"prompt":"q","chosen":"a","rejected":"b"})",
         R"({"chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"rejected":[{"role":"user","content":"q"},{"role":"assistant","content":"b"}]})",
         R"({"instruction":"i","input":"","output":"o","history":[["a","b"]],"system":"s"})",
         R"({"conversations":[{"from":"human","value":"q"},{"from":"function_call","value":"{\"name\":\"f\",\"arguments\":{}}"}],"tools":"[{\"name\":\"f\"}]"})"}) {
      out.push_back(nlohmann::json::parse(text));
    }
    return out;
  }();
  // The first byte of an input selects the reader.
  const auto draw = [&](Rng* rng) {
    const char kind = static_cast<char>('0' + rng->below(5));
    if (kind == '4') {
      const std::string index = Tokens().index();
      return kind + test::mutated_bytes(index, index.size(), rng);
    }
    std::string text = seeds[rng->below(seeds.size())].dump() + "\n";
    text += rng->below(4) > 0 ? test::mutated_json(seeds, rng) : text;
    if (kind == '1') {
      text[text.find('\n')] = ',';
      text = "[" + text + "]";
    }
    if (kind == '3') {
      text = gzip(text);
    }
    if (rng->below(3) == 0) {
      text = test::mutated_bytes(text, text.size(), rng);
    }
    return kind + text;
  };
  const auto read = [&](const std::string& input) {
    const char* const names[] = {"a.jsonl", "a.json", "a.txt", "a.jsonl.gz", "t.idx"};
    folder.add("t.bin", Tokens().ids);
    SourceOptions options = source_of(folder.add(names[input[0] - '0'], input.substr(1)));
    options.max_unreadable = 0.5;
    for (const Example& example : read_all(options).examples) {
      content_hash(example);
      ASSERT_GT(example.line, 0);
    }
  };
  test::fuzz(3, draw, read);
}

}  // namespace
}  // namespace hocket::data
