// SPDX-License-Identifier: Apache-2.0
// Which files a pattern stands for.
#include "base/glob.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "base/file.h"

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

  std::string dir_;
};

TEST_F(Glob, Patterns) {
  for (const char* name : {"a/1.h", "a/2.h", "a/b/3.h", "a/b/c/4.cc", "a/.hid/5.h", "top.h"}) {
    make_dirs(parent_path(at(name)));
    write_file_atomic(at(name), "x");
  }
  ::symlink(at("a").c_str(), at("a/b/loop").c_str());
  const auto glob = [&](const std::string& pattern) {
    std::vector<std::string> out;
    for (const std::string& path : list_glob(at(pattern))) {
      out.push_back(path.substr(dir_.size() + 1));
    }
    return out;
  };
  using Names = std::vector<std::string>;
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

TEST_F(Glob, TellsWhatAWalkPassesBy) {
  for (const char* name : {"a/1.h", "a/.hid/5.h", "a/.dot", "b/2.h", "shut/3.h"}) {
    make_dirs(parent_path(at(name)));
    write_file_atomic(at(name), "x");
  }
  ::symlink(at("b").c_str(), at("a/link").c_str());
  ::symlink("nowhere", at("a/dangling").c_str());
  ::symlink(at("a/1.h").c_str(), at("a/to_file").c_str());
  const auto skipped = [&](const std::string& pattern) {
    std::vector<GlobSkipped> list;
    list_glob(at(pattern), &list);
    std::vector<std::string> out;
    for (const GlobSkipped& s : list) {
      out.push_back(s.path.substr(dir_.size() + 1) + ": " + to_string(s.why));
    }
    return out;
  };
  using Names = std::vector<std::string>;
  const Names walked = {"a/.dot: hidden", "a/.hid: hidden", "a/dangling: no regular file",
                        "a/link: a link to a folder"};
  EXPECT_EQ(skipped("a/**"), walked);
  EXPECT_EQ(skipped("a/**/*"), walked);
  EXPECT_EQ(skipped("**/*.h"), walked);
  EXPECT_EQ(skipped("a/*"), Names{});  // a pattern that says what it wants
  if (::geteuid() == 0) {
    GTEST_SKIP() << "root reads everything";
  }
  ::chmod(at("shut").c_str(), 0);
  EXPECT_EQ(skipped("shut/*"), Names{"shut: cannot be read"});
  EXPECT_EQ(skipped("shut/**"), Names{"shut: cannot be read"});
  ::chmod(at("shut").c_str(), 0444);  // names, and nothing about them
  EXPECT_EQ(skipped("shut/**"), Names{"shut/3.h: cannot be read"});
  ::chmod(at("shut").c_str(), 0700);
}

}  // namespace
}  // namespace hocket
