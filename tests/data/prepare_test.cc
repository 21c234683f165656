// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Preparing a folder of shards from files: the texts kept, the split, when shards are made again,
// and the state after a failure.
#include "data/prepare.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/folder_lock.h"
#include "data/baselines.h"
#include "data/tokenizer/bpe_train.h"
#include "tests/data/data_util.h"
#include "tests/unprivileged_util.h"

namespace hocket::data {
namespace {

class Prepare : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 60; ++i) {
      folder_.add(fmt::format("in/d{}/f{}.txt", i % 3, i),
                  fmt::format("file {} says <|endoftext|> {} times\n", i, i * i));
    }
    BpeTrainOptions bpe;
    bpe.vocab_size = 300;
    train_bpe(list_glob(folder_ / "in/**/*"), bpe).save_folder(folder_ / "tok");
    options_.corpus.inputs = {folder_ / "in"};
    options_.corpus.valid_fraction = 0.2;
    options_.tokenizer = folder_ / "tok";
    options_.output = folder_ / "out";
  }
  // Returns content and modification time of every file of the output.
  std::map<std::string, std::pair<std::string, int64_t>> snapshot() const {
    std::map<std::string, std::pair<std::string, int64_t>> out;
    for (const std::string& name : list_dir(options_.output)) {
      const std::string path = join_path(options_.output, name);
      struct stat info;
      EXPECT_EQ(::stat(path.c_str(), &info), 0);
      out[name] = {is_directory(path) ? "" : read_file(path),
                   int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
    }
    return out;
  }

  TempFolder folder_;
  PrepareOptions options_;
};

TEST_F(Prepare, EveryFileIsADocumentOfItsSplit) {
  int64_t seen = 0;
  options_.split_special_tokens = true;
  options_.progress = [&](const PrepareProgress& p) {
    EXPECT_GT(p.bytes_done, seen);
    seen = p.bytes_done;
    EXPECT_LE(p.bytes_done, p.bytes_total);
  };
  const PrepareResult result = prepare(options_);
  EXPECT_FALSE(result.up_to_date);
  EXPECT_EQ(result.train.files + result.valid.files, 60);
  EXPECT_GT(result.valid.files, 3);
  EXPECT_EQ(seen, result.train.bytes + result.valid.bytes);
  EXPECT_EQ(result.train.shards, std::vector<std::string>{"train-00000.bin"});

  const Dataset data(options_.output);
  data.train()->verify();
  data.valid()->verify();
  const Tokenizer& t = data.tokenizer();
  std::map<bool, int64_t> next;
  for (const Corpus::File& f : data.files()) {
    const TokenStream& stream = f.valid ? *data.valid() : *data.train();
    const int64_t d = next[f.valid]++;
    std::vector<int32_t> ids(
        static_cast<size_t>(stream.document_begin(d + 1) - stream.document_begin(d)));
    stream.read(stream.document_begin(d), ids);
    ASSERT_EQ(ids.back(), t.eos_id());
    ids.pop_back();
    // The text "<|endoftext|>" in a file is text and does not end the document.
    for (const int32_t id : ids) {
      ASSERT_NE(id, t.eos_id());
    }
    EXPECT_EQ(t.decode(ids), read_file(f.path));
    EXPECT_EQ(stream.document_bytes(d), file_size(f.path));
  }
}

TEST_F(Prepare, SpecialTokensInTextsAreCounted) {
  const auto ends = [&] {
    const Dataset data(options_.output);
    const int32_t eos = data.tokenizer().eos_id();
    int64_t count = 0;
    for (const auto& stream : {data.train(), data.valid()}) {
      std::vector<int32_t> ids(static_cast<size_t>(stream->tokens()));
      stream->read(0, ids);
      count += std::count(ids.begin(), ids.end(), eos) - stream->documents();
    }
    return count;
  };
  const PrepareResult tokens = prepare(options_);
  EXPECT_GT(tokens.special_tokens_met, 0);
  EXPECT_EQ(ends(), tokens.special_tokens_met);
  EXPECT_EQ(prepare(options_).special_tokens_met, tokens.special_tokens_met);
  const std::string before = Dataset(options_.output).fingerprint();
  options_.split_special_tokens = true;
  const PrepareResult text = prepare(options_);
  EXPECT_FALSE(text.up_to_date);
  EXPECT_EQ(text.special_tokens_met, tokens.special_tokens_met);
  EXPECT_EQ(ends(), 0);
  EXPECT_NE(Dataset(options_.output).fingerprint(), before);
}

TEST_F(Prepare, SecondCallDoesNothing) {
  prepare(options_);
  const auto before = snapshot();
  options_.progress = [](const PrepareProgress&) { ADD_FAILURE() << "worked again"; };
  const PrepareResult again = prepare(options_);
  EXPECT_TRUE(again.up_to_date);
  EXPECT_EQ(again.train.files + again.valid.files, 60);
  EXPECT_EQ(snapshot(), before);
}

// A second process neither removes the first one's staged files nor publishes over them.
TEST_F(Prepare, ASecondProcessIsRefused) {
  bool refused = false;
  options_.progress = [&](const PrepareProgress&) {
    if (std::exchange(refused, true)) return;
    const pid_t child = ::fork();
    if (child == 0) {
      PrepareOptions second = options_;
      second.progress = nullptr;
      std::string text;
      try {
        prepare(second);
      } catch (const Error& e) {
        text = e.what();
      }
      ::_exit(text.find("another process is preparing data") == std::string::npos);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << "was not refused";
  };
  EXPECT_FALSE(prepare(options_).up_to_date);
  EXPECT_TRUE(refused);
  Dataset(options_.output).train()->verify();
  // A complete output is up to date even while another process holds the lock.
  const FolderLock held(options_.output, "preparing data", "wait");
  options_.progress = nullptr;
  EXPECT_TRUE(prepare(options_).up_to_date);
}

TEST_F(Prepare, AnyChangeIsNoticed) {
  prepare(options_);
  folder_.add("in/d0/f0.txt", "something new");
  EXPECT_FALSE(prepare(options_).up_to_date);
  options_.corpus.seed = 1;
  EXPECT_FALSE(prepare(options_).up_to_date);
  options_.corpus.valid_fraction = 0.4;
  EXPECT_FALSE(prepare(options_).up_to_date);
  options_.shard_tokens = 200;
  EXPECT_FALSE(prepare(options_).up_to_date);
  folder_.add("in/new.txt", "one more");
  EXPECT_FALSE(prepare(options_).up_to_date);
  std::filesystem::resize_file(options_.output + "/train-00000.bin", 100);
  EXPECT_FALSE(prepare(options_).up_to_date);
  Dataset(options_.output).train()->verify();
  EXPECT_TRUE(prepare(options_).up_to_date);
}

TEST_F(Prepare, SmallShardsHoldTheSameAndOldOnesGo) {
  const PrepareResult one = prepare(options_);
  const Dataset whole(options_.output);
  std::vector<int32_t> before(static_cast<size_t>(whole.train()->tokens()));
  whole.train()->read(0, before);
  options_.shard_tokens = 100;
  const PrepareResult many = prepare(options_);
  EXPECT_GT(many.train.shards.size(), 5U);
  EXPECT_EQ(many.train.tokens, one.train.tokens);
  const Dataset cut(options_.output);
  std::vector<int32_t> after(static_cast<size_t>(cut.train()->tokens()));
  cut.train()->read(0, after);
  EXPECT_EQ(after, before);
  options_.shard_tokens = int64_t{1} << 20;
  prepare(options_);
  EXPECT_EQ(
      list_dir(options_.output),
      (std::vector<std::string>{".lock", "index.json", "tokenizer.json", "tokenizer_config.json",
                                "train-00000.bin", "valid-00000.bin"}));
}

TEST_F(Prepare, SplitDependsOnContentOnly) {
  const Corpus here = scan_corpus(options_.corpus);
  std::set<std::string> valid;
  for (const std::string& path : here.paths(true)) {
    valid.insert(read_file(path));
  }
  const TempFolder elsewhere;
  int n = 0;
  for (const Corpus::File& f : here.files) {
    elsewhere.add(fmt::format("x/{}.h", 1000 - n++), read_file(f.path));
  }
  CorpusOptions moved = options_.corpus;
  moved.inputs = {elsewhere / "x/*.h"};
  std::set<std::string> also;
  for (const std::string& path : scan_corpus(moved).paths(true)) {
    also.insert(read_file(path));
  }
  EXPECT_EQ(also, valid);
  moved.seed = 77;
  EXPECT_NE(scan_corpus(moved).paths(true), scan_corpus(options_.corpus).paths(true));
}

TEST_F(Prepare, SplitFractionIsKept) {
  for (int i = 0; i < 2000; ++i) {
    folder_.add(fmt::format("in/many/{}.txt", i), std::to_string(i));
  }
  const Corpus corpus = scan_corpus(options_.corpus);
  const double share =
      static_cast<double>(corpus.paths(true).size()) / static_cast<double>(corpus.files.size());
  EXPECT_NEAR(share, 0.2, 0.04);  // four standard deviations
}

// Few files and a small share: both splits have at least one file, whatever the seed; of two files
// each has one.
TEST_F(Prepare, NoSplitIsEmpty) {
  CorpusOptions few{.inputs = {folder_ / "in/d0/f0.txt", folder_ / "in/d1/f1.txt"}};
  for (const double fraction : {0.01, 0.5, 0.9}) {
    few.valid_fraction = fraction;
    for (few.seed = 0; few.seed < 6; ++few.seed) {
      const Corpus corpus = scan_corpus(few);
      EXPECT_EQ(corpus.paths(true).size(), 1U) << fraction << " seed " << few.seed;
      EXPECT_EQ(corpus.paths(false).size(), 1U) << fraction << " seed " << few.seed;
    }
  }
  CorpusOptions more{.inputs = {folder_ / "in/d0"}, .valid_fraction = 0.001};
  for (more.seed = 0; more.seed < 6; ++more.seed) {
    EXPECT_EQ(scan_corpus(more).paths(true).size(), 1U) << "seed " << more.seed;
  }
  more.valid_fraction = 0;
  EXPECT_TRUE(scan_corpus(more).paths(true).empty());
}

// A single file is cut at a line: its end is held out, and both parts are documents.
TEST_F(Prepare, OneFileIsCutInTwo) {
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += fmt::format("line {:02} of a book\n", i);
  }
  options_.corpus.inputs = {folder_.add("book.txt", text)};
  const PrepareResult result = prepare(options_);
  EXPECT_EQ(result.train.bytes, 80 * 18);
  EXPECT_EQ(result.valid.bytes, 20 * 18);
  EXPECT_TRUE(prepare(options_).up_to_date);
  const Dataset data(options_.output);
  std::vector<int32_t> ids(static_cast<size_t>(data.valid()->tokens()));
  data.valid()->read(0, ids);
  ids.pop_back();
  EXPECT_EQ(data.tokenizer().decode(ids), text.substr(80 * 18));
  ASSERT_EQ(data.files().size(), 2U);
  EXPECT_EQ(data.files()[0].text().read() + data.files()[1].text().read(), text);
  EXPECT_GT(*run_baselines(data, {.trigram = false}).xz_each, 0);
  // The tokenizer learns from the training split alone.
  EXPECT_EQ(scan_corpus(options_.corpus).texts(false)[0].read(), text.substr(0, 80 * 18));
}

TEST_F(Prepare, OneFileOfOneLineIsCutAtACharacter) {
  for (const double fraction : {0.001, 0.3, 0.5, 0.9}) {
    options_.corpus.valid_fraction = fraction;
    options_.corpus.inputs = {
        folder_.add("line.txt", "title\n" + std::string(40, 'x') + "\xC3\xA9\xC3\xA9")};
    const Corpus corpus = scan_corpus(options_.corpus);
    ASSERT_EQ(corpus.files.size(), 2U);
    for (const Corpus::File& file : corpus.files) {
      EXPECT_GT(file.bytes, 0);
      EXPECT_NE(static_cast<unsigned char>(file.text().read()[0]), 0xA9) << fraction;
    }
  }
  options_.corpus.inputs = {folder_.add("byte.txt", "x")};
  EXPECT_ERROR(scan_corpus(options_.corpus), "too short to hold out its end");
}

TEST_F(Prepare, AByteOrderMarkIsNoText) {
  const std::string mark = "\xEF\xBB\xBF";
  folder_.add("marked/a.txt", mark + "one text\n");
  folder_.add("marked/b.txt", "one text\n");
  folder_.add("marked/c.txt", mark);
  options_.corpus.inputs = {folder_ / "marked"};
  options_.corpus.valid_fraction = 0;
  Corpus corpus = scan_corpus(options_.corpus);
  ASSERT_EQ(corpus.files.size(), 1U);
  EXPECT_EQ(corpus.files[0].text().read(), "one text\n");
  EXPECT_EQ(corpus.dropped_counts(),
            (std::map<Corpus::Why, int64_t>{{Corpus::Why::duplicate, 1}, {Corpus::Why::empty, 1}}));
  EXPECT_EQ(prepare(options_).train.bytes, 9);
  // Both parts of a file that is cut begin at the right byte.
  options_.corpus.inputs = {folder_.add("book.txt", mark + "line 1\nline 2\nline 3\nline 4\n")};
  options_.corpus.valid_fraction = 0.5;
  corpus = scan_corpus(options_.corpus);
  ASSERT_EQ(corpus.files.size(), 2U);
  EXPECT_EQ(corpus.files[0].text().read(), "line 1\nline 2\n");
  EXPECT_EQ(corpus.files[1].text().read(), "line 3\nline 4\n");
}

TEST_F(Prepare, TheLargestFilesThatAreNoTextAreNamed) {
  folder_.add("mixed/a.txt", "text\n");
  for (int i = 1; i <= 7; ++i) {
    folder_.add(fmt::format("mixed/{}.gz", i), std::string(static_cast<size_t>(100 * i), '\0'));
  }
  options_.corpus.inputs = {folder_ / "mixed"};
  options_.corpus.valid_fraction = 0;
  const PrepareResult result = prepare(options_);
  ASSERT_EQ(result.largest.size(), 5U);
  EXPECT_TRUE(result.largest[0].path.ends_with("7.gz"));
  EXPECT_EQ(result.largest[0].bytes, 700);
  EXPECT_EQ(result.largest[4].bytes, 300);
  EXPECT_EQ(prepare(options_).largest.size(), 5U);
}

// Lines of JSON are documents. Columns may be in any order, texts have escapes, lines be blank, and
// the last line lack its end.
TEST_F(Prepare, LinesOfJsonAreDocuments) {
  const std::string path = folder_.add(
      "lines/t.jsonl",
      "{\"text\":\"first \\u00e9\\n\"}\n\n{\"id\":2,\"text\":\"second\"}\r\n{\"text\":\"\"}\n"
      "{\"text\":\"second\",\"id\":9}\n{\"text\":\"third\"}");
  options_.corpus.inputs = {folder_ / "lines"};
  options_.corpus.valid_fraction = 0;
  const PrepareResult result = prepare(options_);
  EXPECT_EQ(result.json_lines, 3);
  EXPECT_EQ(result.train.files, 3);
  EXPECT_EQ(result.train.bytes, 9 + 6 + 5);
  EXPECT_EQ(result.dropped,
            (std::map<Corpus::Why, int64_t>{{Corpus::Why::duplicate, 1}, {Corpus::Why::empty, 1}}));
  const Dataset data(options_.output);
  std::vector<std::string> texts;
  for (const Corpus::File& file : data.files()) {
    EXPECT_EQ(file.path, path);
    texts.push_back(file.text().read());
    EXPECT_EQ(hash128(texts.back()), file.hash);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"first \xC3\xA9\n", "second", "third"}));
  std::vector<int32_t> ids(static_cast<size_t>(data.train()->document_begin(1) - 1));
  data.train()->read(0, ids);
  EXPECT_EQ(data.tokenizer().decode(ids), texts[0]);
  EXPECT_TRUE(prepare(options_).up_to_date);
  const std::string index = read_file(options_.output + "/index.json");
  EXPECT_NE(index.find("t.jsonl:5"), std::string::npos) << "a duplicate is named by its line";
}

TEST_F(Prepare, LinesOfJsonAreSplitOneByOne) {
  std::string lines;
  for (int i = 0; i < 50; ++i) {
    lines += fmt::format("{{\"text\":\"document {}\"}}\n", i);
  }
  options_.corpus.inputs = {folder_.add("many.jsonl", lines)};
  const PrepareResult result = prepare(options_);
  EXPECT_EQ(result.train.files + result.valid.files, 50);
  EXPECT_GT(result.valid.files, 2);
  EXPECT_GT(*run_baselines(Dataset(options_.output), {.trigram = false}).xz_each, 0);
  options_.corpus.inputs = {folder_.add("one.jsonl", "{\"text\":\"alone\"}\n")};
  EXPECT_ERROR(scan_corpus(options_.corpus), "has one document");
  options_.corpus.inputs = {folder_.add("bad.jsonl", "{\"text\":\"a\"}\n\n{\"txt\":\"b\"}\n")};
  EXPECT_ERROR(scan_corpus(options_.corpus), "bad.jsonl:3 is no object with a string text");
  // A file with other JSON is one document.
  options_.corpus.inputs = {folder_.add("other.jsonl", "{\"message\":\"a\"}\n{\"text\":\"b\"}\n")};
  options_.corpus.valid_fraction = 0;
  EXPECT_EQ(scan_corpus(options_.corpus).files.size(), 1U);
  EXPECT_EQ(scan_corpus(options_.corpus).files[0].line_bytes, 0);
}

// Files held out by name are held out whatever the share and the other inputs, and no copy of them
// is trained on.
TEST_F(Prepare, FilesAreHeldOutByName) {
  folder_.add("in/copy.txt", read_file(folder_ / "in/d1/f1.txt"));
  options_.corpus.valid_inputs = {folder_ / "in/d1/f1.txt", folder_ / "in/d2/f2.txt"};
  const PrepareResult result = prepare(options_);
  EXPECT_EQ(result.valid.files, 2);
  EXPECT_EQ(result.train.files, 58);
  EXPECT_EQ(result.dropped, (std::map<Corpus::Why, int64_t>{{Corpus::Why::duplicate, 1}}));
  EXPECT_EQ(scan_corpus(options_.corpus).paths(true), options_.corpus.valid_inputs);
  options_.corpus.valid_inputs = {folder_ / "in"};
  EXPECT_ERROR(prepare(options_), "nothing is left to train on");
  options_.corpus.valid_inputs = {folder_ / "none/*.txt"};
  EXPECT_ERROR(prepare(options_), "matches nothing");
}

TEST_F(Prepare, DropsDuplicatesEmptyAndBinaryFiles) {
  folder_.add("in/zz1.txt", "");
  folder_.add("in/zz2.txt", std::string_view("a\0b", 3));
  folder_.add("in/zz3.txt", read_file(folder_ / "in/d0/f0.txt"));
  ASSERT_EQ(::symlink((folder_ / "in/d0/f3.txt").c_str(), (folder_ / "in/zz4.txt").c_str()), 0);
  const PrepareResult result = prepare(options_);
  EXPECT_EQ(result.train.files + result.valid.files, 60);
  using Why = Corpus::Why;
  EXPECT_EQ(result.dropped,
            (std::map<Why, int64_t>{{Why::duplicate, 2}, {Why::empty, 1}, {Why::binary, 1}}));
}

// Reports files that a walk skips, and files that look binary and are text in another encoding.
TEST_F(Prepare, ReportsFilesThatItSkips) {
  folder_.add("in/.hidden.txt", "h");
  folder_.add("in/.git/HEAD", "x");
  folder_.add("elsewhere/a.txt", "not reached by a link");
  ASSERT_EQ(::symlink((folder_ / "elsewhere").c_str(), (folder_ / "in/linked").c_str()), 0);
  ASSERT_EQ(::symlink("nowhere", (folder_ / "in/dangling").c_str()), 0);
  ASSERT_EQ(::mkfifo((folder_ / "in/pipe").c_str(), 0600), 0);
  folder_.add("in/le.txt", std::string_view("\xFF\xFE"
                                            "a\0b\0",
                                            6));
  folder_.add("in/be.txt", std::string_view("\xFE\xFF\x4E\x2D", 4));  // no byte is 0
  const PrepareResult result = prepare(options_);
  using Why = Corpus::Why;
  EXPECT_EQ(result.dropped,
            (std::map<Why, int64_t>{
                {Why::utf16, 2}, {Why::hidden, 2}, {Why::linked_folder, 1}, {Why::no_file, 2}}));
  EXPECT_EQ(result.train.files + result.valid.files, 60);
  EXPECT_EQ(left_out_text({{Why::utf16, 2}, {Why::unreadable, 1}}),
            "2 UTF-16 (try iconv -t UTF-8), 1 that cannot be read");
  EXPECT_EQ(left_out_text({}), "nothing");
  const std::string index = read_file(options_.output + "/index.json");
  for (const char* part : {"linked_folder", "in/.git\"", "utf16", "no_file"}) {
    EXPECT_NE(index.find(part), std::string::npos) << part;
  }
  // A hidden file and a linked folder are read if the inputs name them.
  options_.corpus.inputs = {folder_ / "in/.hidden.txt", folder_ / "in/linked"};
  options_.corpus.valid_fraction = 0;
  EXPECT_EQ(prepare(options_).train.files, 2);
}

// Outputs of train-tokenizer and prepare are skipped among the inputs, so that a second call has
// nothing to do. Other files with the same names are texts.
TEST_F(Prepare, SkipsItsOwnOutputs) {
  folder_.add("tok/tokenizer_source.json", "{}");
  folder_.add("texts/index.json", "{\"of\": \"something else\"}");
  folder_.add("texts/tokenizer.json", "{\"also\": 1}");
  options_.corpus.inputs = {folder_.path()};
  const PrepareResult first = prepare(options_);
  EXPECT_EQ(first.train.files + first.valid.files, 62);
  EXPECT_EQ(first.dropped, (std::map<Corpus::Why, int64_t>{{Corpus::Why::output, 3}}));
  folder_.add("out/baselines.json", "{}");
  const PrepareResult second = prepare(options_);
  EXPECT_TRUE(second.up_to_date);
  EXPECT_EQ(second.dropped.at(Corpus::Why::output), 7);
  EXPECT_EQ(second.dropped.at(Corpus::Why::binary), 2);
  // A text in the folder of the shards is read.
  folder_.add("out/text.txt", "a text beside the shards");
  const PrepareResult third = prepare(options_);
  EXPECT_EQ(third.train.files + third.valid.files, 63);
  EXPECT_EQ(third.dropped, second.dropped);
}

TEST_F(Prepare, ReportsFilesThatCannotBeRead) {
  folder_.add("in/closed/secret.txt", "s");
  const std::string why_not = run_unprivileged(folder_.path(), [&] {
    ASSERT_EQ(::chmod((folder_ / "in/closed").c_str(), 0), 0);
    const PrepareResult result = prepare(options_);
    EXPECT_EQ(result.dropped, (std::map<Corpus::Why, int64_t>{{Corpus::Why::unreadable, 1}}));
    EXPECT_EQ(result.train.files + result.valid.files, 60);
    ASSERT_EQ(::chmod((folder_ / "in/closed").c_str(), 0700), 0);
    const PrepareResult all = prepare(options_);
    EXPECT_EQ(all.train.files + all.valid.files, 61);
  });
  if (!why_not.empty()) {
    GTEST_SKIP() << why_not;
  }
}

// The same texts in another folder have the same fingerprint, so a run resumes with them.
TEST_F(Prepare, FingerprintDependsOnTheTextsAlone) {
  prepare(options_);
  const std::string before = Dataset(options_.output).fingerprint();
  PrepareOptions moved = options_;
  rename_durable(folder_ / "in", folder_ / "other");
  moved.corpus.inputs = {folder_ / "other"};
  moved.output = folder_ / "out2";
  prepare(moved);
  EXPECT_EQ(Dataset(moved.output).fingerprint(), before);
  // The new paths are recorded, since baselines read the texts again.
  moved.output = options_.output;
  EXPECT_FALSE(prepare(moved).up_to_date);
  EXPECT_EQ(Dataset(moved.output).fingerprint(), before);
  EXPECT_TRUE(Dataset(moved.output).files()[0].path.starts_with(folder_ / "other"));
  EXPECT_TRUE(prepare(moved).up_to_date);
  folder_.add("other/d0/f0.txt", "changed");
  prepare(moved);
  EXPECT_NE(Dataset(moved.output).fingerprint(), before);
}

// A folder of version 1 is up to date if split_special_tokens is set: in that version special
// tokens in texts were text. Its fingerprint depended on the paths.
TEST_F(Prepare, OlderFoldersAreUpToDate) {
  options_.split_special_tokens = true;
  prepare(options_);
  const Dataset made(options_.output);
  Hasher h;
  h.add("hocket-data").add(uint64_t{1}).add(static_cast<uint64_t>(options_.shard_tokens));
  h.add(made.tokenizer().hash().high).add(made.tokenizer().hash().low);
  for (const Corpus::File& f : made.files()) {
    h.add(f.hash.high).add(f.hash.low).add(uint64_t{f.valid});
    h.add(uint64_t{f.path.size()}).add(f.path);
  }
  const std::string path = options_.output + "/index.json";
  nlohmann::json index = nlohmann::json::parse(read_file(path));
  index["version"] = 1;
  index.erase("special_tokens_met");
  index["options"].erase("split_special_tokens");
  index["fingerprint"] = h.finish().hex();
  write_file_atomic(path, index.dump());
  EXPECT_TRUE(prepare(options_).up_to_date);
  EXPECT_EQ(Dataset(options_.output).fingerprint(), h.finish().hex());
  options_.split_special_tokens = false;
  EXPECT_FALSE(prepare(options_).up_to_date);
  EXPECT_EQ(Dataset(options_.output).version(), 2);
}

TEST_F(Prepare, AFailureKeepsTheOldData) {
  prepare(options_);
  const auto before = snapshot();
  options_.corpus.seed = 5;
  for (const FileFaults::Op op : {FileFaults::Op::open, FileFaults::Op::write, FileFaults::Op::sync,
                                  FileFaults::Op::rename}) {
    for (int nth = 1; nth <= 4; ++nth) {  // shards, tokenizer, its configuration
      {
        const FileFaults full(op, nth, ENOSPC);
        EXPECT_THROW(prepare(options_), Error);
      }
      const auto after = snapshot();
      EXPECT_EQ(after, before);
    }
  }
  EXPECT_FALSE(prepare(options_).up_to_date);
}

TEST_F(Prepare, ErrorsNameTheWrongInputOrOption) {
  const auto with = [&](auto change) {
    PrepareOptions o = options_;
    change(&o);
    return error_of([&] { prepare(o); });
  };
  const auto says = [](const std::string& e, const char* part) {
    EXPECT_NE(e.find(part), std::string::npos) << e;
  };
  folder_.add("empty/a.txt", "");
  folder_.add("one/a.txt", "x");
  make_dirs(folder_ / "bare");
  says(with([](auto* o) { o->corpus.inputs = {}; }), "no inputs");
  says(with([](auto* o) { o->corpus.inputs = {"/nonexistent/*.h"}; }), "/nonexistent");
  says(with([](auto* o) { o->corpus.inputs = {"~/texts"}; }), "~ is not expanded here");
  says(with([](auto* o) { o->corpus.inputs = {"a/{b,c}.txt"}; }), "{a,b} is not expanded here");
  says(with([&](auto* o) { o->corpus.inputs = {folder_ / "bare"}; }), "without files");
  says(with([&](auto* o) { o->corpus.inputs = {folder_ / "empty"}; }), "no text");
  says(with([&](auto* o) { o->corpus.inputs = {folder_ / "one"}; }), "too short to hold out");
  says(with([](auto* o) { o->corpus.valid_fraction = 1; }), "valid_fraction");
  says(with([](auto* o) { o->tokenizer = "/nonexistent"; }), "/nonexistent");
  says(with([](auto* o) { o->output = ""; }), "output");
  says(with([](auto* o) { o->shard_tokens = 0; }), "shard_tokens");
  EXPECT_ERROR(Dataset(folder_ / "bare"), "index.json");
  // valid_fraction: 0 gives no validation split.
  options_.corpus.inputs = {folder_ / "one"};
  options_.corpus.valid_fraction = 0;
  prepare(options_);
  EXPECT_EQ(Dataset(options_.output).valid(), nullptr);
}

TEST_F(Prepare, DamagedFoldersAreRefused) {
  prepare(options_);
  const std::string index = options_.output + "/index.json", good = read_file(index);
  const auto put = [&](const char* from, const char* to) {
    std::string text = good;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write_file_atomic(index, text.replace(at, std::string_view(from).size(), to));
  };
  put("\"version\": 2", "\"version\": 9");
  EXPECT_ERROR(Dataset(options_.output), "version 1 to 2");
  put("train-00000.bin", "../00000.bin");
  EXPECT_ERROR(Dataset(options_.output), "../00000.bin");
  put("train-00000.bin", "valid-00000.bin");
  EXPECT_ERROR(Dataset(options_.output), "shards hold");
  put("\"fingerprint\"", "\"finger\"");
  EXPECT_ERROR(Dataset(options_.output), "fingerprint");
  put("\"tokens\"", "\"token\"");
  EXPECT_ERROR(Dataset(options_.output), "tokens");
  write_file_atomic(index, good.substr(0, good.size() / 2));
  EXPECT_ERROR(Dataset(options_.output), "index.json");
  write_file_atomic(index, good);
  BpeTrainOptions bpe;
  bpe.vocab_size = 270;
  train_bpe(list_glob(folder_ / "in/**/*"), bpe).save(options_.output + "/tokenizer.json");
  EXPECT_ERROR(Dataset(options_.output), "tokenizer beside");
}

TEST_F(Prepare, BaselinesAreComputedOnceAndAsAskedFor) {
  prepare(options_);
  const Dataset dataset(options_.output);
  std::vector<std::string> done;
  const auto note = [&](const std::string& what) { done.push_back(what); };
  // The trigram needs no text, only tokens.
  const std::string held_out = scan_corpus(options_.corpus).paths(true)[0];
  const std::string text = read_file(held_out);
  remove_file(held_out);
  const Baselines trigram = kept_baselines(dataset, {.xz = false}, note);
  EXPECT_TRUE(trigram.trigram && !trigram.xz_each && !trigram.xz_one_piece);
  EXPECT_EQ(done, (std::vector<std::string>{"trigram: counting", "trigram: held-out files"}));
  EXPECT_ERROR(kept_baselines(dataset, {}, note), held_out);
  write_file_atomic(held_out, text);
  done.clear();
  const Baselines all = kept_baselines(dataset, {}, note);
  EXPECT_EQ(all.trigram, trigram.trigram);
  EXPECT_LT(*all.xz_one_piece, *all.xz_each);
  for (const std::string& what : done) {
    EXPECT_EQ(what.find("trigram"), what.npos) << what;
  }
  done.clear();
  EXPECT_EQ(kept_baselines(dataset, {}, note).xz_each, all.xz_each);
  EXPECT_FALSE(kept_baselines(dataset, {.trigram = false}, note).trigram);
  EXPECT_TRUE(done.empty()) << done[0];
  // Baselines of other data, and a truncated file, are ignored.
  const std::string path = options_.output + "/baselines.json";
  for (const std::string kept :
       {R"({"fingerprint": "other", "xz": 1, "xz_one_piece": 1, "trigram": 1})",
        R"({"fingerprint": ")"}) {
    write_file_atomic(path, kept);
    EXPECT_EQ(kept_baselines(dataset, {}, note).xz_one_piece, all.xz_one_piece);
  }
}

}  // namespace
}  // namespace hocket::data
