// SPDX-License-Identifier: Apache-2.0
// Files: atomic writes under every failure, mappings, and the errors that users see.
#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/rng.h"

namespace hocket {
namespace {

class File : public testing::Test {
 protected:
  File() {
    char name[] = "/tmp/hocket_file_test.XXXXXX";
    dir_ = ::mkdtemp(name);
  }
  ~File() override { remove_tree(dir_); }
  std::string at(const std::string& name) const { return join_path(dir_, name); }

  std::string dir_;
};

template <class F>
std::string error_of(F&& f, Error::Kind kind) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST_F(File, WriteAndRead) {
  std::string bytes;
  Rng rng(1);
  for (int i = 0; i < 1'000'000; ++i) {
    bytes += static_cast<char>(rng.next());
  }
  write_file_atomic(at("a"), bytes);
  EXPECT_EQ(read_file(at("a")), bytes);
  // Pieces around the buffer's size, mixed with pieces beyond it.
  write_file_atomic(at("b"), [&](FileWriter& file) {
    size_t done = 0;
    while (done < bytes.size()) {
      const size_t n = std::min<size_t>(1 + rng.below(400'000), bytes.size() - done);
      file.write(bytes.data() + done, n);
      done += n;
    }
    EXPECT_EQ(file.written(), static_cast<int64_t>(bytes.size()));
  });
  EXPECT_EQ(read_file(at("b")), bytes);
  EXPECT_EQ(file_size(at("b")), 1'000'000);
  EXPECT_EQ(list_dir(dir_), (std::vector<std::string>{"a", "b"}));
  EXPECT_NE(error_of([&] { read_file(at("a"), 999'999); }, Error::Kind::kInput).find("too long"),
            std::string::npos);
  EXPECT_FALSE(read_file("/proc/self/status").empty());  // has no size
}

// Fails every operation in turn: the old content stays, no temporary is left, the text says why.
TEST_F(File, AtomicWriteSurvivesEveryFailure) {
  const std::string big(3 * 256 * 1024, 'x');
  int failures = 0;
  for (const auto op : {FileFaults::Op::open, FileFaults::Op::write, FileFaults::Op::sync,
                        FileFaults::Op::rename}) {
    for (int nth = 1; nth < 20; ++nth) {
      write_file_atomic(at("a"), "old");
      std::string text;
      try {
        const FileFaults faults(op, nth, ENOSPC);
        write_file_atomic(at("a"), [&](FileWriter& file) {
          for (int i = 0; i < 4; ++i) {
            file.write(big.substr(0, 200'000 * (i + 1) / 4));
          }
        });
      } catch (const Error& e) {
        text = e.what();
        EXPECT_EQ(e.exit_code(), 1);
      }
      if (text.empty()) {
        break;  // the write has fewer operations: none failed
      }
      ++failures;
      EXPECT_NE(text.find(op == FileFaults::Op::sync && nth == 2 ? dir_ : at("a")),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("No space left on device"), std::string::npos) << text;
      if (op != FileFaults::Op::sync || nth == 1) {  // the folder is synced last
        EXPECT_EQ(file_size(at("a")), 3) << static_cast<int>(op) << " " << nth;
      }
      EXPECT_EQ(list_dir(dir_), std::vector<std::string>{"a"});
    }
  }
  EXPECT_GE(failures, 5);
}

TEST_F(File, WriterThatThrowsLeavesNothing) {
  write_file_atomic(at("a"), "old");
  EXPECT_THROW(write_file_atomic(at("a"),
                                 [](FileWriter& file) {
                                   file.write("half");
                                   throw std::runtime_error("mine");
                                 }),
               std::runtime_error);
  EXPECT_EQ(read_file(at("a")), "old");
  EXPECT_EQ(list_dir(dir_), std::vector<std::string>{"a"});
}

mode_t type_of(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 ? st.st_mode & S_IFMT : 0;
}

// A link stays a link: its target is replaced, or created.
TEST_F(File, AtomicWriteFollowsLinks) {
  make_dirs(at("store"));
  write_file_atomic(at("store/real"), "old");
  ASSERT_EQ(::symlink("store/real", at("link").c_str()), 0);
  ASSERT_EQ(::symlink("link", at("second").c_str()), 0);
  ASSERT_EQ(::symlink(at("store/absent").c_str(), at("dangling").c_str()), 0);
  ASSERT_EQ(::symlink("round", at("circle").c_str()), 0);
  ASSERT_EQ(::symlink("circle", at("round").c_str()), 0);
  write_file_atomic(at("second"), "new");
  EXPECT_EQ(read_file(at("store/real")), "new");
  write_file_atomic(at("dangling"), "made");
  EXPECT_EQ(read_file(at("store/absent")), "made");
  EXPECT_NE(error_of([&] { write_file_atomic(at("circle"), "x"); }, Error::Kind::kInput)
                .find("symbolic links"),
            std::string::npos);
  for (const char* name : {"link", "second", "dangling", "circle", "round"}) {
    EXPECT_EQ(type_of(at(name)), mode_t{S_IFLNK}) << name;
  }
  // The temporary lies beside the target, and a failure leaves the target unchanged.
  for (const auto op : {FileFaults::Op::write, FileFaults::Op::rename}) {
    const FileFaults faults(op, 1, ENOSPC);
    EXPECT_THROW(write_file_atomic(at("link"), "lost"), Error);
  }
  EXPECT_EQ(read_file(at("link")), "new");
  EXPECT_EQ(list_dir(at("store")), (std::vector<std::string>{"absent", "real"}));
}

TEST_F(File, AtomicWriteIntoAPipe) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("pipe", at("link").c_str()), 0);
  std::string bytes;  // more than a pipe holds
  for (int i = 0; i < 300'000; ++i) {
    bytes += static_cast<char>(i % 251);
  }
  for (const char* name : {"pipe", "link"}) {
    std::string got;
    std::thread reader([&] { got = read_file(at("pipe")); });
    write_file_atomic(at(name), bytes);
    reader.join();
    EXPECT_EQ(got, bytes);
    EXPECT_EQ(type_of(at("pipe")), mode_t{S_IFIFO});
  }
  EXPECT_EQ(list_dir(dir_), (std::vector<std::string>{"link", "pipe"}));
}

// Uses device nodes of its own, since the shared device is not for tests.
TEST_F(File, AtomicWriteIntoADevice) {
  for (const auto& [name, minor] : {std::pair("null", 3), std::pair("full", 7)}) {
    if (::mknod(at(name).c_str(), S_IFCHR | 0666, makedev(1, minor)) != 0 ||
        ::access(at(name).c_str(), W_OK) != 0) {
      GTEST_SKIP() << "no right to make device nodes";
    }
  }
  write_file_atomic(at("null"), "gone");
  const std::string text = error_of([&] { write_file_atomic(at("full"), "x"); }, Error::Kind::kRun);
  EXPECT_NE(text.find("No space left"), std::string::npos) << text;
  EXPECT_EQ(type_of(at("null")), mode_t{S_IFCHR});
  EXPECT_EQ(type_of(at("full")), mode_t{S_IFCHR});
  EXPECT_EQ(list_dir(dir_), (std::vector<std::string>{"full", "null"}));
}

TEST_F(File, AtomicWriteLeavesSocketsAndFolders) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, at("socket").c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_NE(error_of([&] { write_file_atomic(at("socket"), "x"); }, Error::Kind::kInput), "");
  EXPECT_EQ(type_of(at("socket")), mode_t{S_IFSOCK});
  ::close(fd);
  make_dirs(at("folder"));
  bool asked = false;
  const std::string text =
      error_of([&] { write_file_atomic(at("folder"), [&](FileWriter&) { asked = true; }); },
               Error::Kind::kInput);
  EXPECT_NE(text.find("Is a directory"), std::string::npos) << text;
  EXPECT_FALSE(asked);
}

TEST_F(File, AFullDiskIsAnError) {
  if (::access("/dev/full", W_OK) != 0) {
    GTEST_SKIP() << "no /dev/full here";
  }
  FileWriter file("/dev/full", FileWriter::Mode::append);
  file.write("x");
  const std::string text = error_of([&] { file.flush(); }, Error::Kind::kRun);
  EXPECT_NE(text.find("No space left"), std::string::npos) << text;
}

TEST_F(File, ReadsAtAnyPlace) {
  write_file_atomic(at("digits"), "0123456789");
  RandomFile file(at("digits"));
  EXPECT_EQ(file.size(), 10);
  RandomFile moved(std::move(file));
  EXPECT_EQ(moved.size(), 10);
  std::string piece(4, ' ');
  moved.read(3, piece.data(), piece.size());
  EXPECT_EQ(piece, "3456");
  const std::string text =
      error_of([&] { moved.read(8, piece.data(), piece.size()); }, Error::Kind::kRun);
  EXPECT_NE(text.find("digits"), std::string::npos) << text;
}

TEST_F(File, AppendsToWhatIsThere) {
  {
    FileWriter file(at("log"), FileWriter::Mode::append);
    file.write("one\n");
    file.close();
  }
  {
    FileWriter file(at("log"), FileWriter::Mode::append);
    file.write("two\n");
    file.sync();
    EXPECT_EQ(read_file(at("log")), "one\ntwo\n");
  }
}

TEST_F(File, WritesAtAnyPlaceOfAFile) {
  const std::string path = at("x");
  EXPECT_THROW(FileWriter(path, FileWriter::Mode::within), Error);
  {
    FileWriter file(path, FileWriter::Mode::create);
    file.set_size(12);
    file.close();
  }
  FileWriter one(path, FileWriter::Mode::within), other(path, FileWriter::Mode::within);
  one.seek(8);
  one.write("i");
  one.write("j");  // behind the last write
  one.seek(10);
  one.write("k");
  other.write("a");
  other.seek(4);
  other.write(std::string(2, 'e'));
  other.seek(2);
  other.write("c");
  one.close();
  other.close();
  EXPECT_EQ(read_file(path), std::string("a\0c\0ee\0\0ijk\0", 12));
  const FileFaults fault(FileFaults::Op::write, 1, ENOSPC);
  FileWriter last(path, FileWriter::Mode::within);
  last.write("z");
  EXPECT_THROW(last.seek(5), Error);
  EXPECT_THROW(last.set_size(20), Error);
}

TEST_F(File, OneFileHasOneIdentity) {
  write_file_atomic(at("x"), "abc");
  ASSERT_EQ(::link(at("x").c_str(), at("same").c_str()), 0);
  EXPECT_EQ(file_identity(at("x")), file_identity(at("same")));
  write_file_atomic(at("y"), "abc");
  EXPECT_NE(file_identity(at("x")), file_identity(at("y")));
  EXPECT_THROW(file_identity(at("absent")), Error);
}

TEST_F(File, ErrorsNamePathAndCause) {
  const auto in = Error::Kind::kInput;
  EXPECT_EQ(error_of([&] { read_file(at("none")); }, in),
            "[" + at("none") + "] cannot be opened: No such file or directory");
  EXPECT_EQ(error_of([&] { read_file(dir_); }, in),
            "[" + dir_ + "] cannot be read: Is a directory");
  EXPECT_NE(error_of([&] { write_file_atomic(at("no/where"), "x"); }, in).find(at("no/where")),
            std::string::npos);
  EXPECT_NE(error_of([&] { RandomFile file(at("none")); }, in).find("No such file"),
            std::string::npos);
  write_file_atomic(at("plain"), "x");
  EXPECT_NE(error_of([&] { make_dirs(at("plain/sub")); }, in).find("plain"), std::string::npos);
  EXPECT_NE(error_of([&] { list_dir(at("none")); }, in).find("No such file"), std::string::npos);
}

TEST_F(File, MakesRenamesAndRemovesFoldersAndJoinsNames) {
  make_dirs(at("x/y/z"));
  make_dirs(at("x/y/z"));
  EXPECT_TRUE(is_directory(at("x/y/z")));
  write_file_atomic(at("x/y/f"), "1");
  rename_durable(at("x/y"), at("w"));
  EXPECT_EQ(read_file(at("w/f")), "1");
  ::symlink("/tmp", at("w/link").c_str());
  remove_tree(at("w"));  // must not follow the link
  EXPECT_FALSE(file_exists(at("w")));
  EXPECT_TRUE(file_exists("/tmp"));
  EXPECT_EQ(parent_path("/a/b/"), "/a");
  EXPECT_EQ(parent_path("/a"), "/");
  EXPECT_EQ(parent_path("a"), ".");
  EXPECT_EQ(parent_path("/"), "/");
  EXPECT_EQ(file_name("/a/b"), "b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("a", "/b"), "/b");
  EXPECT_TRUE(is_temporary_name("model.safetensors.hocket-tmp-12-0"));
  EXPECT_FALSE(is_temporary_name("model.safetensors"));
}

}  // namespace
}  // namespace hocket
