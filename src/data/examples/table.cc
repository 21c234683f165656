// SPDX-License-Identifier: Apache-2.0
// Implements: open_table (bytes.h), by a process of Python.
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "data/examples/bytes.h"

namespace hocket::data {
namespace {

constexpr std::string_view kTableRows =
#include "data/table_rows.py.inc"
    ;

std::string interpreter() {
  const char* chosen = std::getenv("HOCKET_PYTHON");
  return chosen != nullptr && *chosen != '\0' ? chosen : "python3";
}

/// Passes rows on, line by line, until the line that says how the process ended.
class TableRows : public ByteSource {
 public:
  explicit TableRows(const std::string& path) : path_(path), python_(interpreter()) {
    RandomFile readable(path);  // its errors are clearer than the process's
    const std::string command =
        fmt::format("exec {} -c {} {}", shell_quoted(python_),
                    shell_quoted(std::string(kTableRows)), shell_quoted(path));
    pipe_ = popen(command.c_str(), "re");
    if (pipe_ == nullptr) fail_run("data", "{} did not start: {}", python_, std::strerror(errno));
  }
  ~TableRows() override {
    if (pipe_ != nullptr) {
      pclose(pipe_);
    }
    std::free(line_);
  }
  TableRows(const TableRows&) = delete;
  TableRows& operator=(const TableRows&) = delete;

  size_t read(char* to, size_t bytes) override {
    if (rest_.empty() && !next_line()) return 0;
    const size_t n = std::min(bytes, rest_.size());
    std::memcpy(to, rest_.data(), n);
    rest_.remove_prefix(n);
    return n;
  }

 private:
  bool next_line() {
    if (pipe_ == nullptr) return false;
    const ssize_t got = getline(&line_, &room_, pipe_);
    const std::string_view line(line_, got > 0 ? static_cast<size_t>(got) : 0);
    if (line.starts_with('{')) {
      rest_ = line;
      return true;
    }
    const int status = pclose(pipe_);
    pipe_ = nullptr;
    if (trim(line) == "#done") return false;
    constexpr std::string_view kFailed = "#error ";
    constexpr int kNotFound = 127;  // the shell's
    if (line.starts_with(kFailed)) {
      fail("data", "{} cannot be read: {}", path_, trim(line.substr(kFailed.size())));
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNotFound) {
      fail("data",
           "{} is read by Python, and there is no {}; try HOCKET_PYTHON=<a Python with pyarrow>",
           path_, python_);
    }
    fail_run("data", "{} read {} and ended early (status {})", python_, path_, status);
  }

  std::string path_, python_;
  FILE* pipe_ = nullptr;
  char* line_ = nullptr;
  size_t room_ = 0;
  std::string_view rest_;
};

}  // namespace

std::unique_ptr<ByteSource> open_table(const std::string& path) {
  return std::make_unique<TableRows>(path);
}

}  // namespace hocket::data
