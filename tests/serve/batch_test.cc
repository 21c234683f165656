// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Batch jobs in one process: results, resuming, faults.
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/batch/batch_socket.h"
#include "serve/batch/custom_ids.h"
#include "serve/batch/journal.h"
#include "tests/serve/batch_util.h"

namespace hocket::serve {
namespace {

std::string batch_error(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Stops a master once it has `parts` rows.
BatchMasterOptions stopped_at(const BatchFolder& folder, int64_t parts) {
  BatchMasterOptions options = folder.master_options();
  options.shards.target_s = 0.01;
  const std::string path = BatchJournal::path(options.folder);
  options.stop = [path, parts] {
    const std::string text = read_file(path);
    return std::count(text.begin(), text.end(), '\n') >= parts + 2;
  };
  return options;
}

TEST(Batch, WritesEveryRowOnceAndInOrder) {
  const BatchFolder folder(700);
  SleepingGenerator a(200), b(300);
  BatchMasterOptions options = folder.master_options();
  std::string state;
  options.progress = [&](const std::string& line) { state = line; };
  const BatchSummary summary = run_batch_threads(options, {&a, &b});
  EXPECT_TRUE(summary.is_complete);
  EXPECT_TRUE(state.starts_with("700 of 700 rows done, 0 in work")) << state;
  EXPECT_NE(state.find(" tokens/s"), std::string::npos) << state;
  EXPECT_EQ(summary.rows, 700);
  EXPECT_EQ(summary.outputs + summary.errors + summary.blanks, 700);
  EXPECT_EQ(summary.errors, 8);
  EXPECT_EQ(summary.tokens, 5 * summary.outputs);
  folder.expect_whole();
  EXPECT_FALSE(file_exists(folder.file("parts")));
  // Again: nothing is left to do, and the files stay.
  const BatchSummary again = run_batch_threads(folder.master_options(), {});
  EXPECT_TRUE(again.was_complete);
  EXPECT_EQ(again.outputs, summary.outputs);
  folder.expect_whole();
  remove_file(folder.file("output.jsonl"));
  EXPECT_NE(batch_error([&] { run_batch_master(folder.master_options()); }).find("no output.jsonl"),
            std::string::npos);
}

TEST(Batch, AJobGoesOnWhereItStopped) {
  const BatchFolder folder(900);
  SleepingGenerator generator(100);
  BatchMasterOptions options = stopped_at(folder, 5);
  // Workers of a master that leaves wait for the next one: they are on their own thread here.
  int port = 0;
  std::thread worker;
  options.on_listen = [&](int at, const std::string&) {
    port = at;
    worker = std::thread([&] { run_batch_worker(batch_worker_options(port, generator)); });
  };
  const BatchSummary first = run_batch_master(options);
  EXPECT_FALSE(first.is_complete);
  EXPECT_FALSE(file_exists(folder.file("output.jsonl")));
  int second_port = 0;
  options = folder.master_options();
  options.on_listen = [&](int at, const std::string&) { second_port = at; };
  const BatchSummary second = run_batch_master(options);
  worker.join();
  EXPECT_EQ(second_port, port);  // where the workers look for it
  EXPECT_TRUE(second.is_complete);
  EXPECT_GT(second.restored, 0);
  EXPECT_LT(second.restored, 900);
  folder.expect_whole();
}

/// A crash may cut the journal anywhere in its last line, and the disk of a test anywhere at all.
TEST(Batch, AnyPrefixOfTheJournalResumes) {
  const BatchFolder folder(120);
  SleepingGenerator generator(1000);
  BatchMasterOptions options = folder.master_options();
  options.keep_parts = true;
  run_batch_threads(options, {&generator});
  const std::string path = BatchJournal::path(folder.out());
  const std::string journal = read_file(path);
  std::map<std::string, std::string> parts;
  for (const std::string& name : list_dir(folder.file("parts"))) {
    parts[name] = read_file(join_path(folder.file("parts"), name));
  }
  set_log_sink([](LogLevel, const std::string&) {});
  for (size_t bytes = 0; bytes < journal.size(); bytes += 1 + bytes / 3) {
    for (const auto& [name, text] : parts) {
      FileWriter part(join_path(folder.file("parts"), name), FileWriter::Mode::create);
      part.write(text);
      part.close();
    }
    remove_file(folder.file("output.jsonl"));
    remove_file(folder.file("errors.jsonl"));
    write_file_atomic(path, std::string_view(journal).substr(0, bytes));
    const BatchSummary summary = run_batch_threads(options, {&generator});
    EXPECT_TRUE(summary.is_complete) << bytes;
    folder.expect_whole();
    const BatchSummary again = run_batch_threads(options, {});
    EXPECT_TRUE(again.was_complete) << bytes;
  }
  set_log_sink(nullptr);
}

TEST(Batch, RepeatedCustomIdsAreFound) {
  const std::string path = ::testing::TempDir() + fmt::format("/ids-{}.jsonl", ::getpid());
  write_file_atomic(path,
                    "{\"custom_id\": 7}\n{\"body\": {\"custom_id\": 7}}\n{\"custom_id\": \"7\"}\n\n"
                    "{\"a\": [1, {}], \"custom_id\": \"7\"}\n{\"custom_id\": \nnonsense custom_id\n"
                    "[{\"custom_id\": 7}]\n{\"custom_id\": null}\n{\"custom_id\": null}\n"
                    "{\"custom_id\": 7}\n{\"custom_id\": 8}\n");
  const RepeatedIds found = find_repeated_ids(InputRows(path), 1 << 20);
  EXPECT_EQ(found.rows, 2);
  EXPECT_EQ(found.first, 4);
  EXPECT_EQ(found.id, "\"7\"");
  EXPECT_EQ(find_repeated_ids(InputRows(path), 15).rows, 0);
  remove_file(path);
}

TEST(Batch, ProgressHasNoTimeLeftAtTheEnd) {
  const BatchFolder folder(50);
  SleepingGenerator generator(20);
  BatchMasterOptions options = folder.master_options();
  std::string last;
  options.progress = [&](const std::string& state) { last = state; };
  run_batch_threads(options, {&generator});
  EXPECT_TRUE(last.starts_with("50 of 50 rows done")) << last;
  EXPECT_EQ(last.find("left"), std::string::npos) << last;
}

TEST(Batch, AnotherJobInTheFolderIsRefused) {
  const BatchFolder folder(50), other(60);
  SleepingGenerator generator(20);
  run_batch_threads(folder.master_options(), {&generator});
  BatchMasterOptions options = folder.master_options();
  options.settings = "hotter";
  EXPECT_NE(
      batch_error([&] { run_batch_master(options); }).find("other settings: test; got hotter"),
      std::string::npos);
  // The error has those settings that differ.
  const BatchFolder third(50);
  options = third.master_options();
  const auto settings = [](const char* chat_template, const char* window) {
    return fmt::format(R"({{"seed":1,"chat_template":"{}","max_model_len":{}}})", chat_template,
                       window);
  };
  options.settings = settings("a", "0");
  run_batch_threads(options, {&generator});
  options.settings = settings("b", "0");
  EXPECT_NE(batch_error([&] {
              run_batch_master(options);
            }).find(R"(other settings: {"chat_template":"a"}; got {"chat_template":"b"};)"),
            std::string::npos);
  options.settings = settings("a", "9");
  EXPECT_NE(batch_error([&] {
              run_batch_master(options);
            }).find(R"(other settings: {"max_model_len":0}; got {"max_model_len":9};)"),
            std::string::npos);
  options = folder.master_options();
  options.input = other.input();
  EXPECT_NE(batch_error([&] { run_batch_master(options); }).find("another input"),
            std::string::npos);
  write_file_atomic(other.input(), "");
  EXPECT_NE(batch_error([&] { run_batch_master(other.master_options()); }).find("is empty"),
            std::string::npos);
}

TEST(Batch, DamageIsNoticed) {
  const BatchFolder folder(200);
  SleepingGenerator generator(20);
  set_log_sink([](LogLevel, const std::string&) {});
  BatchMasterOptions stopped = stopped_at(folder, 2);
  std::thread worker;
  stopped.on_listen = [&](int port, const std::string&) {
    worker = std::thread([&generator, port] {
      BatchWorkerOptions options = batch_worker_options(port, generator);
      options.reconnect_s = 0.5;
      EXPECT_NE(batch_error([&] { run_batch_worker(options); }).find("no master"),
                std::string::npos);
    });
  };
  run_batch_master(stopped);
  worker.join();
  const std::string parts = folder.file("parts");
  const std::string part = join_path(parts, list_dir(parts).front());
  std::string text = read_file(part);
  text[text.size() / 2] ^= 1;
  write_file_atomic(part, text);
  EXPECT_NE(batch_error([&] {
              run_batch_threads(folder.master_options(), {&generator});
            }).find("not as it was written"),
            std::string::npos);
  std::string journal = read_file(BatchJournal::path(folder.out()));
  journal.insert(journal.find('\n') + 1, "{\"event\":\"party\"}\n");
  write_file_atomic(BatchJournal::path(folder.out()), journal);
  EXPECT_NE(batch_error([&] { run_batch_master(folder.master_options()); }).find("party"),
            std::string::npos);
  set_log_sink(nullptr);
}

/// Hangs at a row until it is cancelled.
class HangingGenerator : public SleepingGenerator {
 public:
  explicit HangingGenerator(int64_t rows) : SleepingGenerator(100), left_(rows) {}
  void begin(InputRow row, Done done) override {
    if (left_-- > 0) return SleepingGenerator::begin(std::move(row), std::move(done));
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return cancelled_; });
    done({}, std::make_exception_ptr(std::runtime_error("cancelled")));
  }
  void cancel() override {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }

 private:
  std::atomic<int64_t> left_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;
};

TEST(Batch, AWorkerThatHangsLosesItsRows) {
  const BatchFolder folder(300);
  BatchMasterOptions options = folder.master_options();
  options.shards.lease_timeout_s = 0.5;
  HangingGenerator hanging(20);
  SleepingGenerator good(300);
  set_log_sink([](LogLevel, const std::string&) {});
  const BatchSummary summary = run_batch_threads(options, {&hanging, &good});
  set_log_sink(nullptr);
  EXPECT_TRUE(summary.is_complete);
  folder.expect_whole();
}

TEST(Batch, RefusesClientsWithoutTheKeyOrProtocol) {
  const BatchFolder folder(400);
  SleepingGenerator generator(500);
  set_log_sink([](LogLevel, const std::string&) {});
  std::vector<std::thread> threads;
  BatchMasterOptions options = folder.master_options();
  options.on_listen = [&](int port, const std::string&) {
    threads.emplace_back([&generator, port] {
      BatchWorkerOptions wrong = batch_worker_options(port, generator);
      wrong.key = "another";
      EXPECT_NE(batch_error([&] { run_batch_worker(wrong); }).find("the key is not"),
                std::string::npos);
      for (const std::string& bytes :
           {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(1 << 20, 'x'), std::string("{}\n"),
            std::string("{\"type\":\"result\",\"first\":0,\"rows\":1,\"count\":0,\"bytes\":0}\n"),
            std::string("{\"type\":\"hello\",\"key\":\"key\",\"first\":0,\"rows\":0,\"count\":1,"
                        "\"bytes\":0}\n{\"type\":\"result\",\"first\":-1,\"rows\":9,\"count\":0,"
                        "\"bytes\":0}\n")}) {
        auto socket = BatchSocket::connect("127.0.0.1", port, 5);
        ASSERT_TRUE(socket);
        [[maybe_unused]] const ssize_t n = ::write(socket->fd(), bytes.data(), bytes.size());
        // The master closes it.
        const int64_t start = now_ns();
        while (socket->read_some() && seconds_since(start) < 5) {
          ::usleep(1000);
        }
        EXPECT_LT(seconds_since(start), 5) << bytes.substr(0, 60);
      }
      run_batch_worker(batch_worker_options(port, generator));
    });
  };
  const BatchSummary summary = run_batch_master(options);
  for (std::thread& thread : threads) {
    thread.join();
  }
  set_log_sink(nullptr);
  EXPECT_TRUE(summary.is_complete);
  folder.expect_whole();
}

TEST(InputRows, ReadsFromAnyRow) {
  const BatchFolder folder(1000);
  const InputRows rows(folder.input());
  EXPECT_EQ(rows.rows(), 1000);
  for (const int64_t first : {0, 1, 255, 256, 257, 700, 999}) {
    const int64_t count = std::min<int64_t>(300, 1000 - first);
    const std::vector<InputRow> read = rows.read(first, count, 1 << 20, 1 << 20);
    ASSERT_EQ(std::ssize(read), count);
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(read[static_cast<size_t>(i)].row, first + i);
      EXPECT_EQ(read[static_cast<size_t>(i)].text, batch_row_text(first + i));
    }
  }
  EXPECT_EQ(rows.read(0, 1000, 100, 1 << 20).size(), 2u);  // each has some 45 bytes
  EXPECT_EQ(rows.read(39, 1, 1, 1 << 20).size(), 1u);
  EXPECT_TRUE(rows.read(39, 1, 1 << 20, 50)[0].is_too_long);
  rows.require_unchanged();
  write_file_atomic(folder.input(), "x");
  EXPECT_THROW(rows.require_unchanged(), Error);
}

}  // namespace
}  // namespace hocket::serve
