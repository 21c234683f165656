// SPDX-License-Identifier: Apache-2.0
// Helpers of the data tests: a temporary folder, and the text of an Error.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/glob.h"

namespace hocket::data {

class TempFolder {
 public:
  TempFolder() {
    const char* base = std::getenv("TMPDIR");
    std::string name = std::string(base != nullptr ? base : "/tmp") + "/hocket_data_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      std::abort();
    }
    path_ = name;
  }
  ~TempFolder() { remove_tree(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string operator/(const std::string& name) const { return join_path(path_, name); }
  const std::string& path() const { return path_; }
  /// Writes a file, making its folders, and returns its path.
  std::string add(const std::string& name, std::string_view text) const {
    const std::string path = *this / name;
    make_dirs(parent_path(path));
    FileWriter out(path, FileWriter::Mode::create);  // not synced: thousands are written
    out.write(text);
    out.close();
    return path;
  }

 private:
  std::string path_;
};

/// The text of the bad-input Error that `call` throws; a test failure if it throws none.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Error::Kind::kInput) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

#define EXPECT_ERROR(call, part)                                                        \
  do {                                                                                  \
    const std::string got = ::hocket::data::error_of([&] { static_cast<void>(call); }); \
    EXPECT_NE(got.find(part), std::string::npos) << "the error is: " << got;            \
  } while (0)

}  // namespace hocket::data
