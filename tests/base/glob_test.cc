// SPDX-License-Identifier: Apache-2.0
// Expansion of file patterns.
#include "base/glob.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "base/file.h"
#include "tests/unprivileged_util.h"

namespace hocket {
namespace {

class Glob : public testing::Test {
 protected:
  Glob() {
    char name[] = "/tmp/hocket_glob_test.XXXXXX";
    dir_ = ::mkdtemp(name);
  }
  ~Glob() override { remove_tree(dir_); }
  std::string at(const std::string& name) const { return join_path(dir_, name); }
  void write(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      make_dirs(parent_path(at(name)));
      write_file_atomic(at(name), "x");
    }
  }
  /// Returns the paths that a walk skips, with the reason.
  std::vector<std::string> skipped(const std::string& pattern) const {
    std::vector<GlobSkipped> list;
    list_glob(at(pattern), &list);
    std::vector<std::string> out;
    for (const GlobSkipped& s : list) {
      out.push_back(s.path.substr(dir_.size() + 1) + ": " + to_string(s.why));
    }
    return out;
  }

  std::string dir_;
};

using Names = std::vector<std::string>;

TEST_F(Glob, MatchesPatternsAcrossFolders) {
  write({"a/1.h", "a/2.h", "a/b/3.h", "a/b/c/4.cc", "a/.hid/5.h", "top.h"});
  ::symlink(at("a").c_str(), at("a/b/loop").c_str());
  const auto glob = [&](const std::string& pattern) {
    std::vector<std::string> out;
    for (const std::string& path : list_glob(at(pattern))) {
      out.push_back(path.substr(dir_.size() + 1));
    }
    return out;
  };
  EXPECT_EQ(glob("a/*.h"), (Names{"a/1.h", "a/2.h"}));
  EXPECT_EQ(glob("**/*.h"), (Names{"a/1.h", "a/2.h", "a/b/3.h", "top.h"}));
  EXPECT_EQ(glob("**"), (Names{"a/1.h", "a/2.h", "a/b/3.h", "a/b/c/4.cc", "top.h"}));
  EXPECT_EQ(glob("a/**/**/[34].*"), (Names{"a/b/3.h", "a/b/c/4.cc"}));
  EXPECT_EQ(glob("a/1.h"), Names{"a/1.h"});
  EXPECT_EQ(glob("a/b/loop/?.h"), (Names{"a/b/loop/1.h", "a/b/loop/2.h"}));  // named: followed
  EXPECT_EQ(glob("a/none"), Names{});
  EXPECT_EQ(glob("a"), Names{});  // a folder is no file
  EXPECT_EQ(list_glob(""), Names{});
}

TEST_F(Glob, ReportsFilesThatAWalkSkips) {
  write({"a/1.h", "a/.hid/5.h", "a/.dot", "b/2.h"});
  ::symlink(at("b").c_str(), at("a/link").c_str());
  ::symlink("nowhere", at("a/dangling").c_str());
  ::symlink(at("a/1.h").c_str(), at("a/to_file").c_str());
  const Names walked = {"a/.dot: hidden", "a/.hid: hidden", "a/dangling: no regular file",
                        "a/link: a link to a folder"};
  EXPECT_EQ(skipped("a/**"), walked);
  EXPECT_EQ(skipped("a/**/*"), walked);
  EXPECT_EQ(skipped("**/*.h"), walked);
  EXPECT_EQ(skipped("a/*"), Names{});  // an explicit pattern skips nothing
}

TEST_F(Glob, ReportsFoldersThatCannotBeRead) {
  write({"shut/3.h"});
  const std::string why_not = run_unprivileged(dir_, [&] {
    ASSERT_EQ(::chmod(at("shut").c_str(), 0), 0);
    EXPECT_EQ(skipped("shut/*"), Names{"shut: cannot be read"});
    EXPECT_EQ(skipped("shut/**"), Names{"shut: cannot be read"});
    ASSERT_EQ(::chmod(at("shut").c_str(), 0444), 0);  // names, and nothing about them
    EXPECT_EQ(skipped("shut/**"), Names{"shut/3.h: cannot be read"});
    ASSERT_EQ(::chmod(at("shut").c_str(), 0700), 0);
    EXPECT_EQ(skipped("shut/**"), Names{});
  });
  if (!why_not.empty()) {
    GTEST_SKIP() << why_not;
  }
}

}  // namespace
}  // namespace hocket
