// SPDX-License-Identifier: Apache-2.0
// Batch jobs of tests: inputs with known answers, generators that need no model, and the check of a
// job's output.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "serve/batch/master.h"
#include "serve/batch/worker.h"

namespace hocket::serve {

inline bool is_blank_row(int64_t row) { return row % 53 == 7; }
inline bool is_error_row(int64_t row) { return row % 97 == 13 && !is_blank_row(row); }

/// A row's text; another for every row.
inline std::string batch_row_text(int64_t row) {
  if (is_blank_row(row)) return "";
  return fmt::format("{{\"prompt\": \"{}\", \"pad\": \"{}\"}}", mix64(static_cast<uint64_t>(row)),
                     std::string(static_cast<size_t>(row % 40), 'x'));
}

inline RowResult fake_result(const InputRow& row) {
  if (trim(row.text).empty()) return {row.row, RowResult::Kind::blank, 0, 0, ""};
  if (is_error_row(row.row)) return row_error(row.row, {}, "bad", "it is bad");
  const auto prompt = nlohmann::json::parse(row.text)["prompt"].get<std::string>();
  return {row.row, RowResult::Kind::output, 3, 5,
          fmt::format("{{\"line\":{},\"answer\":\"{}\"}}", row.row + 1, prompt)};
}

/// Takes `row_us` for a row, one after the other.
class SleepingGenerator : public RowGenerator {
 public:
  explicit SleepingGenerator(int64_t row_us) : row_us_(row_us) {}
  int64_t slots() const override { return 1; }
  void begin(InputRow row, Done done) override {
    ::usleep(static_cast<useconds_t>(row_us_));
    done(fake_result(row), nullptr);
  }
  void cancel() override {}

 private:
  const int64_t row_us_;
};

/// A folder with an input of `rows` rows.
class BatchFolder {
 public:
  explicit BatchFolder(int64_t rows) : rows_(rows) {
    static std::atomic<int> number = 0;
    folder_ = ::testing::TempDir() + fmt::format("/batch-{}-{}", ::getpid(), number++);
    make_dirs(folder_);
    std::string text;
    for (int64_t row = 0; row < rows; ++row) {
      text += batch_row_text(row) + "\n";
    }
    write_file_atomic(input(), text);
  }
  ~BatchFolder() { remove_tree(folder_); }
  BatchFolder(const BatchFolder&) = delete;
  BatchFolder& operator=(const BatchFolder&) = delete;

  std::string input() const { return join_path(folder_, "input.jsonl"); }
  std::string out() const { return join_path(folder_, "out"); }
  std::string file(const std::string& name) const { return join_path(out(), name); }

  BatchMasterOptions master_options() const {
    BatchMasterOptions options;
    options.input = input();
    options.folder = out();
    options.settings = "test";
    options.key = "key";
    options.shards.target_s = 0.05;
    options.silence_s = 5;
    return options;
  }

  /// Every row once, in order, with its answer; `given_up` are errors, too.
  void expect_whole(const std::vector<int64_t>& given_up = {}) const {
    std::string output, errors;
    for (int64_t row = 0; row < rows_; ++row) {
      if (is_blank_row(row)) continue;
      if (std::find(given_up.begin(), given_up.end(), row) != given_up.end()) {
        errors += fmt::format("{} worker_lost\n", row + 1);
      } else if (is_error_row(row)) {
        errors += fmt::format("{} bad\n", row + 1);
      } else {
        output += fmt::format("{{\"line\":{},\"answer\":\"{}\"}}\n", row + 1,
                              mix64(static_cast<uint64_t>(row)));
      }
    }
    EXPECT_TRUE(read_file(file("output.jsonl")) == output);
    std::string found;
    for (const std::string& line : split(read_file(file("errors.jsonl")), '\n')) {
      if (line.empty()) continue;
      const auto json = nlohmann::json::parse(line);
      found += fmt::format("{} {}\n", json["line"].get<int64_t>(),
                           json["error"]["code"].get<std::string>());
    }
    EXPECT_EQ(found, errors);
  }

 private:
  const int64_t rows_;
  std::string folder_;
};

/// Options of a worker for the master of `folder` at a port.
inline BatchWorkerOptions batch_worker_options(int port, RowGenerator& generator) {
  BatchWorkerOptions options;
  options.port = port;
  options.key = "key";
  options.name = "test";
  options.beat_s = 0.05;
  options.reconnect_s = 10;
  options.generator = [&generator](const std::string&) -> RowGenerator& { return generator; };
  return options;
}

/// Runs a job with workers on threads of this process, one per generator.
inline BatchSummary run_batch_threads(BatchMasterOptions options,
                                      const std::vector<RowGenerator*>& generators) {
  std::vector<std::thread> workers;
  options.on_listen = [&](int port, const std::string&) {
    for (RowGenerator* generator : generators) {
      workers.emplace_back(
          [port, generator] { run_batch_worker(batch_worker_options(port, *generator)); });
    }
  };
  const auto join = [&] {
    for (std::thread& worker : workers) {
      worker.join();
    }
  };
  try {
    const BatchSummary summary = run_batch_master(options);
    join();
    return summary;
  } catch (...) {
    join();
    throw;
  }
}

}  // namespace hocket::serve
